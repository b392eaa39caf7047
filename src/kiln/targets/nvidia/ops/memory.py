"""Atomic operations, and loads and stores with an order or a cache hint, as PTX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import context, ir
from ...lowering.arithmetic import element_of
from ...lowering.builder import int_type, like
from ...lowering.expansion import AnyOp, Handlers
from ...lowering.memory import carrier_type, to_carrier
from ..device_builder import REGISTER, DeviceBuilder, Instruction, as_bits, bits_of, from_bits, is_float, l2_policy
from ..expand import Expander

HANDLERS = Handlers()


def _space(pointer: ir.Value) -> tuple[str, str]:
    """Return the PTX name of a pointer's address space with its dot, and the constraint letter of the pointer."""
    text = str(pointer.type)
    return {"!llvm.ptr<1>": (".global", "l"), "!llvm.ptr<3>": (".shared", "r")}.get(text, ("", "l"))


def _atomic_type(kind: str, type_: ir.Type) -> str:
    """Return the PTX type of an atomic operation."""
    element = element_of(type_)
    bits = bits_of(type_)
    if isinstance(element, ir.FloatType):
        vector = "x2" if isinstance(type_, ir.VectorType) else ""
        return f"{element}{vector}"
    if kind in ("and", "or", "xor", "exch", "cas"):
        return f"b{bits}"
    if kind in ("min", "max"):
        return f"s{bits}"
    return f"u{bits}"  # add, umin, umax, inc, dec: the bits are the same for signed numbers


@HANDLERS.expands(nvgpu.memory.AtomicRmw)
def _atomic_rmw(x: Expander, op: nvgpu.memory.AtomicRmw, b: DeviceBuilder) -> ir.Value:
    kind = op.kind
    order = op.order
    scope = op.scope
    _check_scope(x, op, scope)
    type_ = op.value.type
    if isinstance(type_, ir.VectorType) and bits_of(type_) > 32:
        return _vector_rmw(x, op, b)
    bits = as_bits(b, op.value)
    width = bits.type.width
    if not _has_instruction(x, kind, type_):
        old = _compare_and_swap_loop(op, b, _combination(kind, op.value))
        return from_bits(b, old, op.result.type)
    letter = REGISTER[width]
    space, address = _space(op.pointer)
    name = kind.removeprefix("u")
    ptx_type = f"b{width}" if kind == "exch" else _atomic_type(kind, type_)
    ftz = ".noftz" if kind == "add" and "16" in ptx_type and is_float(type_) else ""
    code = f"atom.{order}.{scope}{space}.{name}{ftz}.{ptx_type} $0, [$1], $2;"
    (old,) = b.asm(code, f"={letter},{address},{letter}", [op.pointer, bits], [bits.type])
    return from_bits(b, old, op.result.type)


def _vector_rmw(x: Expander, op: nvgpu.memory.AtomicRmw, b: DeviceBuilder) -> ir.Value:
    """Return the old elements of a vector: one instruction on global memory from sm_90 on, else one for each word."""
    type_: Any = op.value.type
    element = type_.element_type
    count = type_.shape[0]
    words = count * bits_of(element) // 32
    packed = "f32" if bits_of(element) == 32 else f"{element}x2"
    as_words = ir.VectorType.get([words], int_type(32), loc=ir.Location.unknown(context()))
    bits = b.value("vector.bitcast", as_words, (op.value,))
    pieces = [_element(b, bits, n) for n in range(words)]
    space, address = _space(op.pointer)
    ftz = "" if packed == "f32" else ".noftz"
    start = f"{op.order}.{op.scope}{space}.add{ftz}"
    if space == ".global" and features.VECTOR_ATOMICS.on(x.arch):
        old, new = (", ".join(f"${n + first}" for n in range(words)) for first in (0, words + 1))
        code = f"atom.{start}.v{words}.{packed} {{{old}}}, [${words}], {{{new}}};"
        letters = ",".join([*["=r"] * words, address, *["r"] * words])
        previous = b.asm(code, letters, [op.pointer, *pieces], [int_type(32)] * words)
    else:
        previous = []
        for n, piece in enumerate(pieces):
            code = f"atom.{start}.{packed} $0, [$1], $2;"
            previous += b.asm(code, f"=r,{address},r", [b.byte_gep(op.pointer, 4 * n), piece], [int_type(32)])
    return b.value("vector.bitcast", type_, (b.value("vector.from_elements", as_words, list(previous)),))


def _element(b: DeviceBuilder, vector: ir.Value, number: int) -> ir.Value:
    position = {"static_position": ir.DenseI64ArrayAttr.get([number], context())}
    return b.value("vector.extract", element_of(vector.type), (vector,), position)


def _check_scope(x: Expander, op: AnyOp, modifiers: str) -> None:
    if "cluster" in modifiers.split("."):
        x.require(op, features.CLUSTERS, "an access at the scope of a cluster")


def _has_instruction(x: Expander, kind: str, type_: ir.Type) -> bool:
    """Return whether PTX has the operation: others are loops around a compare-and-swap."""
    if is_float(type_):
        if kind == "exch":
            return bits_of(type_) >= 32
        narrow = str(element_of(type_)) == "bf16"
        return kind == "add" and (not narrow or features.BFLOAT16_ATOMICS.on(x.arch))
    return bits_of(type_) >= 32


def _combination(kind: str, value: ir.Value) -> Callable[[DeviceBuilder, ir.Value], ir.Value]:
    """Return a function that computes the new element from the old one."""
    names = {
        "add": ("arith.addf", "arith.addi"),
        "max": ("arith.maxnumf", "arith.maxsi"),
        "min": ("arith.minnumf", "arith.minsi"),
        "umax": ("", "arith.maxui"),
        "umin": ("", "arith.minui"),
        "and": ("", "arith.andi"),
        "or": ("", "arith.ori"),
        "xor": ("", "arith.xori"),
        "exch": ("exch", "exch"),
    }
    name = names[kind][not is_float(value.type)]

    def combine(b: DeviceBuilder, old: ir.Value) -> ir.Value:
        if name == "exch":
            return value
        if str(element_of(value.type)) != "bf16":
            return b.value(name, value.type, (old, value))
        wide = like(value.type, ir.F32Type.get(context()))
        combined = b.value(name, wide, [b.value("arith.extf", wide, (part,)) for part in (old, value)])
        return b.value("arith.truncf", value.type, (combined,))

    return combine


def _compare_and_swap_loop(
    op: nvgpu.memory.AtomicRmw, b: DeviceBuilder, combine: Callable[[DeviceBuilder, ir.Value], ir.Value]
) -> ir.Value:
    """Replace an element by a function of it, atomically, and return the bits of the old one."""
    pointer = op.pointer
    value = op.value
    order = op.order
    scope = op.scope
    width = bits_of(carrier_type(value.type))
    letter = REGISTER[width]
    bits = int_type(width)
    space, address = _space(pointer)
    (first,) = b.asm(f"ld.relaxed.{scope}{space}.b{width} $0, [$1];", f"={letter},{address}", [pointer], [bits])
    loop = b.op("scf.while", [bits], (first,), None, 2)
    before, after = (region.blocks.append(bits, arg_locs=[b.location]) for region in loop.regions)
    inner = DeviceBuilder(ir.InsertionPoint(before), b.location)
    old = before.arguments[0]
    new = as_bits(inner, combine(inner, from_bits(inner, old, value.type)))
    code = f"atom.{order}.{scope}{space}.cas.b{width} $0, [$1], $2, $3;"
    (current,) = inner.asm(code, f"={letter},{address},{letter},{letter}", [pointer, old, new], [bits])
    inner.op("scf.condition", (), (inner.compare("ne", current, old), current))
    DeviceBuilder(ir.InsertionPoint(after), b.location).op("scf.yield", (), (after.arguments[0],))
    return loop.results[0]


@HANDLERS.expands(nvgpu.memory.AtomicCas)
def _atomic_cas(x: Expander, op: nvgpu.memory.AtomicCas, b: DeviceBuilder) -> ir.Value:
    order = op.order
    scope = op.scope
    _check_scope(x, op, scope)
    bits = as_bits(b, op.value)
    expected = as_bits(b, op.compare)
    letter = REGISTER[bits.type.width]
    space, address = _space(op.pointer)
    code = f"atom.{order}.{scope}{space}.cas.b{bits.type.width} $0, [$1], $2, $3;"
    (old,) = b.asm(code, f"={letter},{address},{letter},{letter}", [op.pointer, expected, bits], [bits.type])
    return from_bits(b, old, op.result.type)


def _access(type_: ir.Type) -> tuple[int, int]:
    """Return the width and the number of registers of an access to a value."""
    bits = bits_of(type_)
    if bits in (8, 16, 32, 64):
        return bits, 1
    return 64, bits // 64


@HANDLERS.expands(nvgpu.memory.OrderedLoad)
def _ordered_load(x: Expander, op: nvgpu.memory.OrderedLoad, b: DeviceBuilder) -> ir.Value:
    _check_scope(x, op, op.modifiers)
    width, count = _access(carrier_type(op.result.type))
    modifiers, policy = _hinted(b, op.modifiers)
    asm = Instruction(b, [int_type(16 if width == 8 else width)] * count)
    operands = [asm.outputs(), asm.at(op.pointer), *map(asm, policy)]
    registers = asm.emit(_modified("ld", modifiers, op.pointer, width, count), *operands)
    value = b.vector(registers) if count > 1 else registers[0]
    if width == 8:
        value = b.value("arith.trunci", int_type(8), (value,))
    return from_bits(b, value, op.result.type)


@HANDLERS.expands(nvgpu.memory.OrderedStore)
def _ordered_store(x: Expander, op: nvgpu.memory.OrderedStore, b: DeviceBuilder) -> None:
    _check_scope(x, op, op.modifiers)
    value = to_carrier(b, op.value)
    width, count = _access(value.type)
    modifiers, policy = _hinted(b, op.modifiers)
    asm = Instruction(b)
    address = asm.at(op.pointer)
    if count > 1:
        words = ir.VectorType.get([count], int_type(width), loc=ir.Location.unknown(context()))
        value = value if value.type == words else b.value("llvm.bitcast", words, (value,))
        source = asm.group(b.elements(value))
    else:
        value = as_bits(b, value)
        source = asm(b.value("arith.extui", int_type(16), (value,)) if width == 8 else value)
    asm.emit(_modified("st", modifiers, op.pointer, width, count), address, source, *map(asm, policy))


def _hinted(b: DeviceBuilder, modifiers: str) -> tuple[str, list[ir.Value]]:
    """Return modifiers as PTX has them, and the L2 policy that one of them stands for, if any."""
    parts = [part for part in modifiers.split(".") if part]
    policies = [part for part in parts if part.startswith("L2::evict")]
    hints = ["L2::cache_hint"] * len(policies)
    return ".".join([part for part in parts if part not in policies] + hints), [l2_policy(b, name) for name in policies]


_BEFORE_SPACE = ("mmio", "relaxed", "acquire", "release", "volatile", "weak", "cta", "cluster", "gpu", "sys")


def _modified(name: str, modifiers: str, pointer: ir.Value, width: int, count: int) -> str:
    """Return a load or store instruction: the order and scope come before the space, cache hints after it."""
    space = _space(pointer)[0]
    parts = [part for part in modifiers.split(".") if part and (part != "nc" or space)]  # not of generic addresses
    before = [f".{part}" for part in parts if part in _BEFORE_SPACE]
    after = [f".{part}" for part in parts if part not in _BEFORE_SPACE]
    vector = [f".v{count}"] if count > 1 else []
    return "".join([name, *before, space, *after, *vector, f".b{width}"])


@HANDLERS.expands(nvgpu.memory.Prefetch)
def _prefetch(x: Expander, op: nvgpu.memory.Prefetch, b: DeviceBuilder) -> None:
    level = op.level
    space, letter = _space(op.pointer)
    if level == "tensormap":
        x.require(op, features.TENSOR_MAP, "prefetch.tensormap")
        b.asm("prefetch.tensormap [$0];", letter, [op.pointer])
    else:
        b.asm(f"prefetch{space}.{level} [$0];", letter, [op.pointer])
