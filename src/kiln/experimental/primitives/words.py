"""Primitives of words: atomic operations, permutations and conversions of bits; and printing."""

from __future__ import annotations

from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import BFloat16, Float16, Float32, Float64, Int32, Int64, Numeric, Uint32, Uint64
from ...cute import arch
from ...cute.arch.values import choice, number
from ...cute.tensor.pointer import AddressSpace
from ...cute.tensor.printing import printf
from ...cute.tensor.tensor_ssa import TensorSSA
from .addresses import absent, typed, word

_RED_TYPES = {
    "s32": Int32,
    "u32": Uint32,
    "b32": Uint32,
    "s64": Int64,
    "u64": Uint64,
    "b64": Uint64,
    "f16": Float16,
    "f16x2": Float16,
    "bf16": BFloat16,
    "bf16x2": BFloat16,
    "f32": Float32,
    "f64": Float64,
}
_RED_WORDS = ("s32", "u32", "s64", "u64")
_RED_OPS = {
    **dict.fromkeys(("and", "or", "xor"), ("b32", "b64", *_RED_WORDS)),
    **dict.fromkeys(("min", "max"), _RED_WORDS),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    "add": tuple(kind for kind in _RED_TYPES if kind[0] != "b" or "f" in kind),
}
"""The types of each operation."""
_ATOMICS = ("and", "or", "xor", "cas", "exch", "add", "inc", "dec", "min", "max")
_PERMUTATIONS = ("default", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
_ORDERS = ("relaxed", "release")
_SCOPES = ("cta", "cluster", "gpu", "sys")


def print_runtime(fmt: str, *args: object, loc: object = None, ip: object = None) -> None:
    """Print a line when the program runs, in kernels and in host code; `{}` are the places of numbers."""
    printf(fmt.removesuffix("\n"), *args)


def red(
    op: object,
    type_: object,
    a: object,
    b: object,
    *,
    mem_order: object = None,
    mem_scope: object = None,
    shared_space: object = None,
    cache_hint: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Combine the element at `a` with `b` atomically, without returning the old one (`red`).

    Of F16X2 and BF16X2 `b` is a Vector of two. The pointer tells which memory it is, so that `shared_space` changes
    nothing; `cache_hint` is a cache policy for global memory.
    """
    where = typed(a, "red")
    name = choice("op", op, tuple(_RED_OPS))
    kind = choice("type_", type_, tuple(_RED_TYPES))
    if kind not in _RED_OPS[name]:
        raise type_error(f"red() by {name} of {kind}", f"{name} takes {', '.join(_RED_OPS[name])}")
    order = choice("mem_order", mem_order or "relaxed", _ORDERS)
    scope = choice("mem_scope", mem_scope or "gpu", _SCOPES)
    choice("shared_space", shared_space or "shared_cta", ("shared_cta", "shared_cluster"))
    spaces = {AddressSpace.smem: ".shared::cta", AddressSpace.dsmem: ".shared::cluster", AddressSpace.gmem: ".global"}
    space = spaces.get(where.memspace, "")
    near = space.startswith(".shared")
    if cache_hint is not None and near:
        raise type_error("red() in shared memory with a cache_hint", "the L2 cache holds global memory")
    noftz = ".noftz" if "16" in kind else ""
    kind_ = f"b{kind[1:]}" if name in ("and", "or", "xor") else "u64" if (name, kind) == ("add", "s64") else kind
    hint, policy = ("", "") if cache_hint is None else (".L2::cache_hint", ", {$r2}")
    code = f"red.{order}.{scope}{space}.{name}{noftz}{hint}.{kind_} [{{$r0}}], {{$r1}}{policy};"
    reads = [word(where) if near else Int64(where.toint()), _red_value(kind, b)]
    arch.inline_ptx(code, read_only_args=reads if cache_hint is None else [*reads, Int64(cache_hint)])


def _red_value(kind: str, value: object) -> Any:
    """Return what `red` of a type takes: two halves as the 32 bits they are."""
    if not kind.endswith("x2"):
        return _RED_TYPES[kind](value)
    if not isinstance(value, TensorSSA) or value.numel() != 2:
        raise type_error(f"red() of {kind} takes {value}", "a Vector of two")
    return value.to(_RED_TYPES[kind]).bitcast(Int32)[0]


def atomicrmw(
    op: object,
    ptr: object,
    a: object,
    *,
    b: object = None,
    mem_order: object = None,
    syncscope: object = None,
    space: object = None,
    results: object = None,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Combine the element at a pointer with `a` in one step and return the old element. CAS writes `b` where it is `a`."""
    name = choice("op", op, _ATOMICS)
    absent("atomicrmw", results=results)
    choice("space", space or "shared_cta", ("shared_cta", "shared_cluster"))  # the pointer tells it
    if name != "cas":
        return arch.atomic_rmw(name, ptr, a, sem=mem_order, scope=syncscope)
    if b is None:
        raise type_error("atomicrmw() by cas has no b", "the value that replaces an element equal to a")
    return arch.atomic_cas(ptr, a, b, sem=mem_order, scope=syncscope)


def convert_and_pack_integer(
    src_a: object,
    src_b: object,
    convert_type: Any,
    *,
    src_c: object = None,
    is_signed: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> Int32:
    """Return two words saturated to `convert_type` (16 bits), `src_a` in the upper half; narrower ones move up `src_c`."""
    if getattr(convert_type, "width", None) not in ((16,) if src_c is None else (2, 4, 8)):
        raise type_error(
            f"convert_type of convert_and_pack_integer() is {convert_type}",
            "integers of 16 bits, or of 2, 4 or 8 with src_c",
        )
    target = f"{'s' if is_signed is None or is_signed else 'u'}{convert_type.width}"
    reads = [src_a, src_b] if src_c is None else [src_a, src_b, src_c]
    places = ", ".join(f"{{$r{n}}}" for n in range(len(reads)))
    code = f"cvt.pack.sat.{target}.s32{'' if src_c is None else '.b32'} {{$w0}}, {places};"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=[Int32(x) for x in reads])


def mov_b32(a: object, *, target_type: Any = Int32, loc: object = None, ip: object = None) -> Any:
    """Return the bits of a 32-bit number as another type."""
    value: Numeric = number(a)
    if {type(value).width, target_type.width} != {32}:
        raise type_error(
            f"mov_b32() of {type(value).__name__} to {target_type.__name__}", "both types must have 32 bits"
        )
    if type(value).mlir_type == target_type.mlir_type:
        return target_type._make(value.ir_value())
    return target_type._make(tracing.emit_value("arith.bitcast", target_type.mlir_type, (value.ir_value(),)))


def prmt(
    lo: object, selector: object, mode: object, *, hi: object = None, loc: object = None, ip: object = None
) -> Int32:
    """Return four of the eight bytes of two words, chosen by `selector` in a mode."""
    name = choice("mode", mode, _PERMUTATIONS)
    if name == "default":
        return Int32(arch.prmt(lo, 0 if hi is None else hi, selector))
    reads = [Int32(lo), Int32(0 if hi is None else hi), Int32(selector)]
    code = f"prmt.b32.{name} {{$w0}}, {{$r0}}, {{$r1}}, {{$r2}};"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=reads)
