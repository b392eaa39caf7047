"""Primitives of loads and stores with a memory order, a cache operator or a hint, and of prefetches."""

from __future__ import annotations

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int8, Int16, Int32, Int64, Numeric
from ...cute import arch
from ...cute.arch.modifiers import access_modifiers
from ...cute.arch.values import choice, number
from ...cute.deferred_dialects import nvgpu
from ...cute.tensor.pointer import AddressSpace, element_value
from ...cute.tensor.raw_pointer import RawPointer, as_raw_pointer
from ...cute.tensor.tensor_ssa import TensorSSA
from .addresses import typed

_ORDERS = ("weak", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio", "volatile", "constant")
_WHOLE_ORDERS = {"weak": "weak", "volatile": "volatile", "mmio": "mmio.relaxed.sys", "constant": "nc"}
"""Orders that have no scope, as modifiers of PTX."""
_BITS = {8: Int8, 16: Int16, 32: Int32, 64: Int64}


def _modifiers(order: object, scope: object, cache: object, evict: object) -> str:
    name = None if order is None else choice("order", order, _ORDERS)
    if name not in _WHOLE_ORDERS:
        return access_modifiers(name or (None if scope is None else "relaxed"), scope, cache, evict)
    return ".".join(filter(None, (_WHOLE_ORDERS[name], access_modifiers(None, None, cache, evict))))


def load_ext(
    addr: object,
    *,
    dtype: type[Numeric] | None = None,
    count: int | None = None,
    order: object = None,
    scope: object = None,
    cache_modifier: object = None,
    evict: object = None,
    l2_cache_hint: object = None,
    loc: object = None,
    ip: object = None,
) -> Numeric | TensorSSA:
    """Return the element at an address, or a Vector of `count` elements in one access of at most 16 bytes.

    `dtype` is that of the address unless given. `order` is a `MemOrder` at `scope` (the GPU by default),
    `cache_modifier` a `LoadCacheModifier`, `evict` an `L1EvictKind`, `l2_cache_hint` a cache policy, 64 bits.
    """
    where = as_raw_pointer(typed(addr, "load_ext"), dtype)
    how = _modifiers(order, scope, cache_modifier, evict)
    if l2_cache_hint is not None:
        return _load_hinted(where, count, how, l2_cache_hint)
    kind = where.dtype.mlir_type if count is None else where.dtype.vector_type(count)
    loaded = nvgpu.memory.ordered_load(where.ir_value(), how, type_=kind)
    return where.dtype._make(loaded) if count is None else TensorSSA(loaded, (count,), where.dtype)


def _load_hinted(where: RawPointer, count: int | None, how: str, hint: object) -> Numeric | TensorSSA:
    """Load with a cache policy that the program has as a number."""
    width = where.dtype.width
    words = _accessed("load_ext", where, count)
    parts = [f"{{$w{n}}}" for n in range(words)]
    start, address = _hinted("ld", where, how)
    vector, registers = ("", parts[0]) if count is None else (f".v{words}", f"{{{', '.join(parts)}}}")
    code = f"{start}{vector}.b{width} {registers}, [{{$r0}}], {{$r1}};"
    got = arch.inline_ptx(code, write_only_types=[_BITS[width]] * words, read_only_args=[address, Int64(hint)])
    got = got if words > 1 else (got,)
    loaded = TensorSSA.from_elements([x.ir_value() for x in got], _BITS[width]).bitcast(where.dtype)
    return loaded[0] if count is None else loaded


def _accessed(what: str, where: RawPointer, count: int | None) -> int:
    """Return how many registers an access with a cache policy has."""
    width = where.dtype.width
    if width not in (16, 32, 64) or (count or 1) not in (1, 2, 4) or width * (count or 1) > 128:
        raise type_error(
            f"{what}() of {count or 1} {where.dtype.__name__} with l2_cache_hint",
            "1, 2 or 4 numbers of 16, 32 or 64 bits, at most 16 bytes",
        )
    if where.memspace in (AddressSpace.smem, AddressSpace.dsmem):
        raise type_error(f"{what}() in shared memory with l2_cache_hint", "the L2 cache holds global memory")
    return count or 1


def _hinted(opcode: str, where: RawPointer, how: str) -> tuple[str, Numeric]:
    parts = how.split(".") if how else []
    later = [part for part in parts if part == "nc" or part.startswith("L1")]
    words = [part for part in parts if part not in later]
    near = ["global"] if where.memspace is AddressSpace.gmem else []
    orders = [part for part in words if part not in ("ca", "cg", "cs", "lu", "cv", "wb", "wt")]
    caches = [part for part in words if part not in orders]
    text = ".".join([opcode, *orders, *near, *caches, *later, "L2::cache_hint"])
    return text, Int64(where.toint())


def store_ext(
    val: object,
    addr: object,
    *,
    order: object = None,
    scope: object = None,
    cache_modifier: object = None,
    evict: object = None,
    l2_cache_hint: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Store a number, a Vector or a value of the IR at an address, in one access of at most 16 bytes.

    A number is converted to the type of the address. `order` is a `MemOrder` at `scope` (the GPU by default),
    `cache_modifier` a `StoreCacheModifier`, `evict` an `L1EvictKind`, `l2_cache_hint` a cache policy, 64 bits.
    """
    where = typed(addr, "store_ext")
    how = _modifiers(order, scope, cache_modifier, evict)
    stored = val.to_vector() if isinstance(val, TensorSSA) else None
    if stored is not None:
        value = stored.value
    elif isinstance(val, ir.Value):
        value = val
        stored = TensorSSA(value, tuple(value.type.shape)) if isinstance(value.type, ir.VectorType) else None  # pyright: ignore[reportAttributeAccessIssue]
    else:
        value = element_value(val, where.dtype if hasattr(addr, "dtype") else type(number(val)))
    if l2_cache_hint is None:
        nvgpu.memory.ordered_store(where.ir_value(), value, how)
        return
    where = as_raw_pointer(where, where.dtype if stored is None else stored.dtype)
    words = _accessed("store_ext", where, None if stored is None else stored.numel())
    bits = _BITS[where.dtype.width]
    parts = [where.dtype._make(value).bitcast(bits)] if stored is None else stored.bitcast(bits).to_elements()
    start, address = _hinted("st", where, how)
    places = [f"{{$r{n + 2}}}" for n in range(words)]
    vector, registers = ("", places[0]) if stored is None else (f".v{words}", f"{{{', '.join(places)}}}")
    code = f"{start}{vector}.b{where.dtype.width} [{{$r0}}], {registers}, {{$r1}};"
    arch.inline_ptx(code, read_only_args=[address, Int64(l2_cache_hint), *parts])


def prefetch_l1(addr: object, *, loc: object = None, ip: object = None) -> None:
    """Prefetch the line of an address in global memory into the L1 cache."""
    nvgpu.memory.prefetch(typed(addr, "prefetch_l1").ir_value(), "L1")


def prefetch_l2(addr: object, *, loc: object = None, ip: object = None) -> None:
    """Prefetch the line of an address in global memory into the L2 cache."""
    nvgpu.memory.prefetch(typed(addr, "prefetch_l2").ir_value(), "L2")


def prefetchu(addr: object, *, loc: object = None, ip: object = None) -> None:
    """Prefetch the line of an address in global memory into the cache of uniform loads."""
    where = typed(addr, "prefetchu")
    arch.inline_ptx("prefetchu.L1 [{$r0}];", read_only_args=[Int64(where.toint())])
