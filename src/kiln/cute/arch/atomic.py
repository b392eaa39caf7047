"""Atomic operations, and loads and stores with an order or a cache hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Float32, Int32, Numeric, Uint32
from ..deferred_dialects import nvgpu
from .modifiers import ORDERS, SCOPES, access_modifiers
from .values import choice, kernel_only, pointer

if TYPE_CHECKING:
    from ...base_dsl.numeric.operator_types import Number

__all__ = [
    "atomic_add",
    "atomic_and",
    "atomic_cas",
    "atomic_exch",
    "atomic_fmax",
    "atomic_fmin",
    "atomic_max",
    "atomic_min",
    "atomic_or",
    "atomic_rmw",
    "atomic_xor",
    "load",
    "prefetch",
    "red",
    "store",
]

_OPERATIONS = ("add", "min", "max", "and", "or", "xor", "exch", "inc", "dec")


def _element(ptr: object, value: object) -> Any:
    """Return the numeric type an atomic operation works in: the value's, or that of the pointer's elements."""
    if isinstance(value, Numeric):
        return type(value)
    kind = getattr(ptr, "dtype", None)
    return kind or (Float32 if isinstance(value, float) else Int32)


def _rmw(what: str, kind: str, ptr: object, val: Any, sem: object, scope: Any) -> Any:
    kernel_only(what)
    order = choice("sem", sem or "relaxed", ORDERS)
    scope = choice("scope", scope or "gpu", SCOPES)
    address = pointer(ptr, what)
    if isinstance(val, ir.Value) and isinstance(val.type, ir.VectorType):
        return nvgpu.memory.atomic_rmw(kind, address, val, order, scope)
    if not isinstance(val, (int, float, Numeric)) and hasattr(val, "ir_value"):  # a vector
        old = nvgpu.memory.atomic_rmw(kind, address, val.ir_value(), order, scope)
        return type(val)(old, val.shape, val.dtype)
    element = _element(ptr, val)
    if kind in ("min", "max") and not element.is_float and not element.signed:
        kind = f"u{kind}"
    return element._make(nvgpu.memory.atomic_rmw(kind, address, element(val).ir_value(), order, scope))


def atomic_rmw(
    op: object,
    ptr: object,
    val: object,
    *,
    sem: object = None,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Combine the element at a pointer with `val` atomically, and return its old value.

    Args:
        op: "add", "min", "max", "and", "or", "xor", "exch", "inc" (counts up to `val`, then begins at 0 again) or "dec"
            (counts down, then begins at `val` again).
        ptr: a pointer to the element, in global or shared memory.
        val: the operand; a number, or a vector with one operation for each element.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _rmw("atomic_rmw", choice("op", op, _OPERATIONS), ptr, val, sem, scope)


def atomic_add(
    ptr: object, val: object, *, sem: object = None, scope: object = None, loc: object = None, ip: object = None
) -> Number:
    """Add `val` to the element at a pointer atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: what is added; a number, or a vector with one addition for each element.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _rmw("atomic_add", "add", ptr, val, sem, scope)


def atomic_max(
    ptr: object, val: object, *, sem: object = None, scope: object = None, loc: object = None, ip: object = None
) -> Number:
    """Replace the element at a pointer by the larger of it and `val` atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: the operand; a number, or a vector with one operation for each element.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _rmw("atomic_max", "max", ptr, val, sem, scope)


def atomic_min(
    ptr: object, val: object, *, sem: object = None, scope: object = None, loc: object = None, ip: object = None
) -> Number:
    """Replace the element at a pointer by the smaller of it and `val` atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: the operand; a number, or a vector with one operation for each element.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _rmw("atomic_min", "min", ptr, val, sem, scope)


def atomic_and(
    ptr: object, val: object, *, sem: object = None, scope: object = None, loc: object = None, ip: object = None
) -> Number:
    """Combine the element at a pointer with `val` by bitwise and atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: the operand; a number, or a vector with one operation for each element.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _rmw("atomic_and", "and", ptr, val, sem, scope)


def atomic_or(
    ptr: object, val: object, *, sem: object = None, scope: object = None, loc: object = None, ip: object = None
) -> Number:
    """Combine the element at a pointer with `val` by bitwise or atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: the operand; a number, or a vector with one operation for each element.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _rmw("atomic_or", "or", ptr, val, sem, scope)


def atomic_xor(
    ptr: object, val: object, *, sem: object = None, scope: object = None, loc: object = None, ip: object = None
) -> Number:
    """Combine the element at a pointer with `val` by bitwise exclusive or atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: the operand; a number, or a vector with one operation for each element.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _rmw("atomic_xor", "xor", ptr, val, sem, scope)


def atomic_exch(
    ptr: object, val: object, *, sem: object = None, scope: object = None, loc: object = None, ip: object = None
) -> Number:
    """Write `val` to a pointer atomically, and return the old value of the element.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: the new value.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _rmw("atomic_exch", "exch", ptr, val, sem, scope)


def atomic_cas(
    ptr: object,
    cmp: object,
    val: object,
    *,
    sem: object = None,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> Number:
    """Write `val` to a pointer if the element there equals `cmp`, atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        cmp: the value that the element is compared with.
        val: the new value.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    kernel_only("atomic_cas")
    order = choice("sem", sem or "relaxed", ORDERS)
    scope = choice("scope", scope or "gpu", SCOPES)
    element = _element(ptr, val)
    compare = element(cmp).ir_value()
    value = element(val).ir_value()
    return element._make(nvgpu.memory.atomic_cas(pointer(ptr, "atomic_cas"), compare, value, order, scope))


def _float_extreme(
    what: str, kind: str, ptr: object, val: object, sign_bit: bool | None, sem: object, scope: object
) -> Float32:
    """Emit max or min of f32: their order is that of signed words for positive numbers, and the reverse of unsigned
    words for others."""
    kernel_only(what)
    order = choice("sem", sem or "relaxed", ORDERS)
    scope = choice("scope", scope or "gpu", SCOPES)
    bits = tracing.emit_value("arith.bitcast", Int32.mlir_type, (Float32(val).ir_value(),))
    address = pointer(ptr, what)

    def apply(how: str) -> Any:
        return nvgpu.memory.atomic_rmw(how, address, bits, order, scope)

    opposite = {"max": "umin", "min": "umax"}[kind]
    if sign_bit is not None:
        extreme = apply(opposite if sign_bit else kind)
    else:
        extreme = _branch(bits, lambda: apply(opposite), lambda: apply(kind))
    return Float32._make(tracing.emit_value("arith.bitcast", Float32.mlir_type, (extreme,)))


def _branch(bits: Any, negative: Any, positive: Any) -> Any:
    i1 = ir.IntegerType.get_signless(1)
    predicate = {"predicate": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 2)}
    is_negative = tracing.emit_value("arith.cmpi", i1, (bits, tracing.constant(Int32.mlir_type, 0)), predicate)
    branch = tracing.emit("scf.if", (Int32.mlir_type,), (is_negative,), regions=2)
    for region, make in zip(branch.regions, (negative, positive), strict=True):
        with ir.InsertionPoint(region.blocks.append()):
            tracing.emit("scf.yield", (), (make(),))
    return branch.result


def atomic_fmax(
    ptr: object,
    val: object,
    *,
    sign_bit: bool | None = None,
    sem: object = None,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> Float32:
    """Replace a Float32 by the larger of it and `val` atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: a Float32.
        sign_bit: whether `val` is negative, if that is known when compiling: it saves a comparison.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _float_extreme("atomic_fmax", "max", ptr, val, sign_bit, sem, scope)


def atomic_fmin(
    ptr: object,
    val: object,
    *,
    sign_bit: bool | None = None,
    sem: object = None,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> Float32:
    """Replace a Float32 by the smaller of it and `val` atomically, and return its old value.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: a Float32.
        sign_bit: whether `val` is negative, if that is known when compiling: it saves a comparison.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    return _float_extreme("atomic_fmin", "min", ptr, val, sign_bit, sem, scope)


_REDUCTIONS = ("add", "min", "max", "umin", "umax", "and", "or", "xor")


def red(
    ptr: object,
    val: object,
    *,
    op: object,
    dtype: object = None,
    sem: object = None,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Combine the element at a pointer with `val` atomically, without its old value, which is faster.

    Args:
        ptr: a pointer to the element, in global or shared memory.
        val: the operand; a number, or a vector with one operation for each element.
        op: "add", "min", "max", "umin", "umax" (unsigned), "and", "or" or "xor".
        dtype: accepted as in CuTe DSL; the type is that of `val`, or of the pointer's elements.
        sem: the memory order: "relaxed" (the default), "acquire", "release" or "acq_rel".
        scope: which threads it is atomic and ordered for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    name = choice("op", op, _REDUCTIONS)
    if name in ("umin", "umax"):
        name = name[1:]
        val = Uint32(val) if isinstance(val, (int, Int32)) else val
    _rmw("red", name, ptr, val, sem, scope)


def load(
    ptr: object,
    dtype: object,
    *,
    sem: object = None,
    scope: object = None,
    level1_eviction_priority: object = None,
    cop: object = None,
    ss: object = None,
    level_prefetch_size: object = None,
    loc: object = None,
    ip: object = None,
) -> Number:
    """Load the element at a pointer with a memory order, a cache operator or a hint; the load is never removed.

    Args:
        ptr: a pointer to the element.
        dtype: the type to load: a numeric type, or a vector type of the IR.
        sem: the memory order, "relaxed" or "acquire"; None for a plain load.
        scope: which threads the order is for: "gpu" (the default), "cta", "cluster" or "sys".
        level1_eviction_priority: how long the line stays in L1: "evict_normal", "evict_first", "evict_last",
            "evict_no_allocate" or "evict_unchanged".
        cop: the cache operator of PTX: "ca", "cg", "cs", "lu" or "cv".
        ss: accepted as in CuTe DSL; the state space is that of the pointer.
        level_prefetch_size: bytes to prefetch into L2 with it: "size_64b", "size_128b" or "size_256b".
    """
    kernel_only("load")
    address = pointer(ptr, "load")
    modifiers = access_modifiers(sem, scope, cop, level1_eviction_priority, level_prefetch_size)
    if isinstance(dtype, type) and issubclass(dtype, Numeric):
        return dtype._make(nvgpu.memory.ordered_load(address, modifiers, type_=dtype.mlir_type))
    if not hasattr(dtype, "element_type"):
        raise type_error(f"load() takes a numeric type or a vector type, not {dtype!r}")
    return nvgpu.memory.ordered_load(address, modifiers, type_=dtype)


def store(
    ptr: object,
    val: Any,
    *,
    level1_eviction_priority: object = None,
    cop: object = None,
    ss: object = None,
    sem: object = None,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Store an element to a pointer with a memory order, a cache operator or a hint; the store is never removed.

    Args:
        ptr: a pointer to the element.
        val: the value, a number or a vector; a number is converted to the type of the pointer's elements.
        level1_eviction_priority: how long the line stays in L1: "evict_normal", "evict_first", "evict_last",
            "evict_no_allocate" or "evict_unchanged".
        cop: the cache operator of PTX: "wb", "cg", "cs" or "wt".
        ss: accepted as in CuTe DSL; the state space is that of the pointer.
        sem: the memory order, "relaxed" or "release"; None for a plain store.
        scope: which threads the order is for: "gpu" (the default), "cta", "cluster" or "sys".
    """
    kernel_only("store")
    address = pointer(ptr, "store")
    if isinstance(val, (int, float, Numeric)):
        value = _element(ptr, val)(val).ir_value()
    else:
        value = val.ir_value() if hasattr(val, "ir_value") else val
    nvgpu.memory.ordered_store(address, value, access_modifiers(sem, scope, cop, level1_eviction_priority))


def prefetch(
    addr: object,
    *,
    cache_level: object = None,
    evict_priority: object = None,
    predicate: object = None,
    tensormap: bool | None = None,
    uniform: bool | None = None,
    in_param_space: bool | None = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Prefetch a line of global memory into a cache. Results do not change.

    Args:
        addr: a pointer into the line.
        cache_level: "L1" or "L2" (the default).
        evict_priority: no effect here.
        predicate: no effect here: write an `if`.
        tensormap: prefetch a TMA descriptor instead.
        uniform: no effect here.
        in_param_space: no effect here.
    """
    kernel_only("prefetch")
    level = "tensormap" if tensormap else choice("cache_level", cache_level or "L2", ("l1", "l2")).upper()
    nvgpu.memory.prefetch(pointer(addr, "prefetch"), level)
