"""Atomic operations, loads and stores with an order, bulk stores of zeros, prefetches.

Blocks of other groups run on other OS threads: these are real atomic operations.
"""

from __future__ import annotations

from typing import Any

from ....analysis import pointers
from ....base_dsl.compiler import report_at
from ....base_dsl.diagnostics import DSLNotImplemented
from ....base_dsl.target import value_bytes
from ....dialects import cute, nvgpu
from ....mlir import context, ir
from ...host.arithmetic import round_to_bf16, widen_bf16
from ...lowering.builder import Builder, int_attr, int_type
from ...lowering.expansion import AnyOp, Handlers
from ...lowering.memory import carrier_type, from_carrier, to_carrier
from .. import spin_loops
from ..expand import Expander, in_open_loop
from ..sanitizer.hooks import hooks_of
from .sync import SEQUENTIAL

HANDLERS = Handlers()

_ATOMICS = {
    "exch": 0,
    "add": 1,
    "and": 3,
    "or": 5,
    "xor": 6,
    "max": 7,
    "min": 8,
    "umax": 9,
    "umin": 10,
    "inc": 15,
    "dec": 16,
}
_FLOAT_ATOMICS = {"add": 11, "max": 13, "min": 14}
_RELAXED = 2
_ACQUIRE = 4
_RELEASE = 5


def _is_float(type_: ir.Type) -> bool:
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    return isinstance(element, ir.FloatType)


@HANDLERS.calls(nvgpu.memory.AtomicRmw, "kind", "pointer", "value")
def atomic_rmw(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    kind: str,
    pointer: ir.Value,
    value: ir.Value,
    modifiers: str = "",
    pauses: bool = True,
) -> ir.Value:
    """Update an element atomically and return the old one. Inline PTX gives order and scope as modifiers.

    `pauses`: other threads may run before it, if it is in a loop.
    """
    if isinstance(value.type, ir.VectorType) and value_bytes(value.type) > 4:
        return _rmw_of_each(x, op, b, kind, pointer, value, modifiers)
    recorder = x.module.recorder
    if recorder is not None and kind == "add" and value.type == int_type(32) and spin_loops.hands_out(op):
        return recorder.handed_out(x, op, b, pointer, value)
    if pauses:
        _wait(x, op, b, "loop around an atomic operation", pointer, value.type)
    if kind == "add" and _is_float(value.type) and x.function.is_kernel:
        x.function.adds_floats |= not _is_shared(x, pointer)
    pointer = hooks_of(x, op).atomic(b, pointer, value.type, modifiers)
    attributes = {"ordering": int_attr(int_type(64), SEQUENTIAL)}
    if kind == "exch" and _is_float(value.type):
        bits = int_type(value.type.width)  # pyright: ignore[reportAttributeAccessIssue]
        raw = b.value("arith.bitcast", bits, (value,))
        old = b.value("llvm.atomicrmw", bits, (pointer, raw), {**attributes, "bin_op": int_attr(int_type(64), 0)})
        return b.value("arith.bitcast", value.type, (old,))
    atomics = _FLOAT_ATOMICS if _is_float(value.type) else _ATOMICS
    if kind not in atomics:
        raise report_at(op.location, DSLNotImplemented, f"atomic {kind} of {value.type}")
    if isinstance(getattr(value.type, "element_type", value.type), ir.BF16Type):
        return _bf16_rmw(b, kind, pointer, value)
    return b.value(
        "llvm.atomicrmw", value.type, (pointer, value), {**attributes, "bin_op": int_attr(int_type(64), atomics[kind])}
    )


def _wait(
    x: Expander, op: ir.Operation, b: Builder, what: str, pointer: ir.Value, type_: ir.Type, shared: bool = False
) -> None:
    """Let other threads run before an operation that may look again and again for what they do."""
    x.let_others_run(op, b, what, pointer)
    if x.module.recorder is not None and not (shared or _is_shared(x, pointer)):
        x.module.recorder.looked(x, op, b, pointer, type_)


def _is_shared(x: Expander, pointer: ir.Value) -> bool:
    """Return whether an address is known to be in the shared memory of a block."""
    own = (x.function.smem, x.function.dynamic_smem)
    for _ in range(256):
        if pointer in own:
            return True
        sources = pointers.address_sources(pointer)
        if len(sources) != 1:
            return False
        pointer = sources[0]
    return False


def _rmw_of_each(
    x: Expander, op: ir.Operation, b: Builder, kind: str, pointer: ir.Value, value: ir.Value, modifiers: str
) -> ir.Value:
    """Return the old elements of a vector; each element is an operation of its own."""
    type_: Any = value.type
    size = value_bytes(type_.element_type)
    olds = []
    for number in range(type_.shape[0]):
        position = {"static_position": ir.DenseI64ArrayAttr.get([number], context())}
        element = b.value("vector.extract", type_.element_type, (value,), position)
        olds.append(atomic_rmw(x, op, b, kind, b.byte_gep(pointer, number * size), element, modifiers))
    return b.value("vector.from_elements", type_, olds)


def _bf16_rmw(b: Builder, kind: str, pointer: ir.Value, value: ir.Value) -> ir.Value:
    """Update a bf16 in a compare-and-swap loop, computing in f32, and return the old element."""
    bits = int_type(8 * value_bytes(value.type))
    ordered = {
        "ordering": int_attr(int_type(64), _RELAXED),
        "alignment": int_attr(int_type(64), value_bytes(value.type)),
    }
    operation = {"add": "addf", "max": "maxnumf", "min": "minnumf"}[kind]

    def exchange(c: Builder) -> tuple[ir.Value, ir.Value]:
        old = c.value("llvm.load", bits, (pointer,), ordered)
        wide = c.binary(operation, widen_bf16(c, _bitcast(c, old, value.type)), widen_bf16(c, value))
        changed = _compare_exchange(c, pointer, old, _bitcast(c, round_to_bf16(c, wide), bits))
        current = c.extract(changed, bits, 0)
        return c.compare("ne", current, old), current

    return _bitcast(b, b.repeat(exchange, bits), value.type)


def _bitcast(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    """Return the bits of a value as another type; a vector may become one number."""
    return b.value("llvm.bitcast", type_, (value,))


def _compare_exchange(b: Builder, pointer: ir.Value, compare: ir.Value, value: ir.Value) -> ir.Value:
    """Return the old element, and whether it was the one expected."""
    pair = ir.Type.parse(f"!llvm.struct<({value.type}, i1)>")
    attributes = {
        "success_ordering": int_attr(int_type(64), SEQUENTIAL),
        "failure_ordering": int_attr(int_type(64), SEQUENTIAL),
    }
    return b.value("llvm.cmpxchg", pair, (pointer, compare, value), attributes)


@HANDLERS.calls(nvgpu.memory.AtomicCas, "pointer", "compare", "value")
def atomic_cas(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    pointer: ir.Value,
    compare: ir.Value,
    value: ir.Value,
    modifiers: str = "",
) -> ir.Value:
    """Update an element atomically and return the old one. Inline PTX gives order and scope as modifiers."""
    x.let_others_run(op, b, "loop around an atomic operation", pointer)
    result = value.type
    bits = value.type
    if _is_float(bits):
        bits = int_type(value.type.width)  # pyright: ignore[reportAttributeAccessIssue]
        compare, value = (b.value("arith.bitcast", bits, (v,)) for v in (compare, value))
    if x.module.recorder is not None and not _is_shared(x, pointer):
        x.module.recorder.looked(x, op, b, pointer, bits, compare)
    pointer = hooks_of(x, op).atomic(b, pointer, result, modifiers)
    old = b.extract(_compare_exchange(b, pointer, compare, value), bits, 0)
    return old if old.type == result else b.value("arith.bitcast", result, (old,))


def _access(type_: ir.Type, modifiers: str, order: int) -> dict[str, ir.Attribute]:
    """Return the attributes of an access: atomic and ordered where the processor can do it in one access."""
    if "nc" in modifiers.split("."):
        return {}
    width = 0 if isinstance(type_, ir.VectorType) else type_.width  # pyright: ignore[reportAttributeAccessIssue]
    if width not in (8, 16, 32, 64) or not {"acquire", "release", "relaxed", "volatile", "mmio"} & set(
        modifiers.split(".")
    ):
        return {"volatile_": ir.UnitAttr.get()}
    return {
        "volatile_": ir.UnitAttr.get(),
        "ordering": int_attr(int_type(64), order),
        "alignment": int_attr(int_type(64), width // 8),
    }


def ordered_load(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, type_: ir.Type, modifiers: str, space: str = ""
) -> ir.Value:
    """Emit a load with an order; `space` is where from, if that is known."""
    if "nc" not in modifiers.split("."):  # nobody writes what it reads
        _wait(x, op, b, "loop around a load", pointer, type_, "smem" in space)
    carrier = carrier_type(type_)
    looks_again = x.module.recorder is not None and in_open_loop(op)  # how often says nothing about a GPU
    if x.module.counter is not None and not looks_again:
        x.module.counter.access(x, op, b, space, pointer, value_bytes(carrier), value_bytes(carrier), "ld")
    pointer = hooks_of(x, op).ordered(b, pointer, carrier, modifiers, stores=False)
    attributes = _access(carrier, modifiers, _ACQUIRE)
    loaded = b.value("llvm.load", carrier, (pointer,), attributes)
    if "acquire" in modifiers and "ordering" not in attributes:  # x86-64 would keep the order anyway, aarch64 would not
        b.op("llvm.fence", (), (), {"ordering": int_attr(int_type(64), _ACQUIRE)})
    return from_carrier(b, loaded, type_)


@HANDLERS.expands(nvgpu.memory.OrderedLoad, types=True)
def _ordered_load(x: Expander, op: nvgpu.memory.OrderedLoad, b: Builder) -> ir.Value:
    space = cute.info(op.types.pointer).space
    return ordered_load(x, op, b, op.pointer, op.result.type, op.modifiers, space)


def ordered_store(
    x: Expander, op: ir.Operation, b: Builder, pointer: ir.Value, value: ir.Value, modifiers: str, space: str = ""
) -> None:
    """Emit a store with an order; `space` is where to, if that is known."""
    value = to_carrier(b, value)
    if x.module.counter is not None:
        x.module.counter.access(x, op, b, space, pointer, value_bytes(value.type), value_bytes(value.type), "st")
    pointer = hooks_of(x, op).ordered(b, pointer, value.type, modifiers, stores=True)
    attributes = _access(value.type, modifiers, _RELEASE)
    if "release" in modifiers and "ordering" not in attributes:
        b.op("llvm.fence", (), (), {"ordering": int_attr(int_type(64), _RELEASE)})
    b.op("llvm.store", (), (value, pointer), attributes)


@HANDLERS.expands(nvgpu.memory.OrderedStore, types=True)
def _ordered_store(x: Expander, op: nvgpu.memory.OrderedStore, b: Builder) -> None:
    ordered_store(x, op, b, op.pointer, op.value, op.modifiers, cute.info(op.types.pointer).space)


@HANDLERS.expands(nvgpu.memory.Prefetch)
def _prefetch(_x: Expander, _op: nvgpu.memory.Prefetch, _b: Builder) -> None:
    pass  # caches are not modelled


@HANDLERS.calls(nvgpu.memory.StoreBulk, "pointer", "bytes")
def store_bulk(x: Expander, op: AnyOp, b: Builder, pointer: ir.Value, bytes_: ir.Value) -> None:
    """Fill bytes of shared memory with zeros."""
    most = nvgpu.memory.MOST_BULK_BYTES
    x.refuse_outside(op, b, bytes_, 0, most, "st.bulk of %d bytes", f"a multiple of 8 up to {most}", multiple=8)
    pointer, bytes_ = hooks_of(x, op).filled(b, pointer, bytes_)
    b.op("llvm.intr.memset", (), (pointer, b.const(int_type(8), 0), bytes_), {"isVolatile": int_attr(int_type(1), 0)})
