"""Asynchronous copies: of a thread, in bulk, and of stores to other CTAs."""

from __future__ import annotations

from ....mlir import ir
from ....ptx import copies
from ...lowering.expansion import Handlers
from ..ops import async_copy
from ..ops import memory as memory_ops
from ..runtime.engine_table import BULK_QUEUE, COPY, COPY_QUEUE
from ..sanitizer.hooks import hooks_of
from .machine import BITS, Fields, Machine, reads

INSTRUCTIONS = Handlers()


def _frame(m: Machine) -> ir.Value:
    """Return the frame of a thread that copies."""
    m.x.function.copies = True
    return m.x.frame_of(m.op)


@reads(INSTRUCTIONS, copies.CP_ASYNC)
def _copy(m: Machine, f: Fields) -> None:
    taken = m.b.i32(f.size) if f.source_size is None else f.source_size
    async_copy.copy_async(m.x, m.op, m.b, f.target, f.source, taken, f.size)


@reads(INSTRUCTIONS, copies.COMMIT)
def _commit(m: Machine, _f: Fields | None = None) -> None:
    m.x.call(m.b, "kiln_cpu_commit", [_frame(m), m.b.i32(COPY_QUEUE)])
    hooks_of(m.x, m.op).commit(m.b, COPY)


@reads(INSTRUCTIONS, copies.WAIT)
def _wait(m: Machine, f: Fields) -> None:
    _wait_for(m, f.count)


@reads(INSTRUCTIONS, copies.WAIT_ALL)
def _wait_all(m: Machine, _f: Fields) -> None:
    _commit(m)
    _wait_for(m, 0)


def _wait_for(m: Machine, count: int) -> None:
    groups = m.b.i32(count)
    m.x.call(m.b, "kiln_cpu_wait_for_groups", [_frame(m), m.b.i32(COPY_QUEUE), groups])
    hooks_of(m.x, m.op).waited(m.b, groups, COPY)


@reads(INSTRUCTIONS, copies.ARRIVE)
def _arrive(m: Machine, f: Fields) -> None:
    hooks = hooks_of(m.x, m.op)
    if not f.noinc:  # one more arrival is missing until this one comes
        hooks.mbarrier_after(m.b, f.pointer)
        m.x.call(m.b, "kiln_cpu_mbarrier", [f.pointer, m.b.i32(-1), m.b.i32(0)])
    hooks.copies_arrive(m.b, f.pointer)
    m.x.call(m.b, "kiln_cpu_copy_arrive", [_frame(m), f.pointer])
    hooks.mbarrier_after(m.b, f.pointer)


# --- in bulk ---------------------------------------------------------------------------------------------------------


@reads(INSTRUCTIONS, copies.BULK_COMMIT)
def _bulk_commit(m: Machine, _f: Fields) -> None:
    m.x.call(m.b, "kiln_cpu_commit", [_frame(m), m.b.i32(BULK_QUEUE)])
    hooks_of(m.x, m.op).bulk_commit(m.b)


@reads(INSTRUCTIONS, copies.BULK_WAIT)
def _bulk_wait(m: Machine, f: Fields) -> None:
    groups = m.b.i32(f.count)
    m.x.call(m.b, "kiln_cpu_wait_for_groups", [_frame(m), m.b.i32(BULK_QUEUE), groups])
    hooks_of(m.x, m.op).bulk_waited(m.b, groups, bool(f.read))


@reads(INSTRUCTIONS, copies.BULK_LOAD)
def _bulk_load(m: Machine, f: Fields) -> None:
    m.x.function.copies = True
    operands = (f.target, f.source, f.bytes, f.mbarrier)
    if f.mask is not None:
        async_copy.multicast(m.x, m.op, m.b, *operands, f.mask)
    else:
        async_copy.bulk_load(m.x, m.op, m.b, *operands)


@reads(INSTRUCTIONS, copies.BULK_SEND)
def _bulk_send(m: Machine, f: Fields) -> None:
    async_copy.bulk_load(m.x, m.op, m.b, f.target, f.source, f.bytes, f.mbarrier)


@reads(INSTRUCTIONS, copies.BULK_STORE)
def _bulk_store(m: Machine, f: Fields) -> None:
    async_copy.bulk_store(m.x, m.op, m.b, f.target, f.source, f.bytes)


@reads(INSTRUCTIONS, copies.REDUCE_STORE)
def _bulk_reduce(m: Machine, f: Fields) -> None:
    async_copy.bulk_reduce(m.x, m.op, m.b, _reduction(f), f.target, f.source, f.bytes)


@reads(INSTRUCTIONS, copies.REDUCE_SEND)
def _bulk_reduce_send(m: Machine, f: Fields) -> None:
    async_copy.bulk_reduce(m.x, m.op, m.b, _reduction(f), f.target, f.source, f.bytes, f.mbarrier)


def _reduction(f: Fields) -> tuple[str, str]:
    """Return the name of a reduction, and its elements; bits are unsigned."""
    name, *_, element = f.reduction.split(".")
    return name, element.replace("b", "u") if name in ("and", "or", "xor") else element


@reads(INSTRUCTIONS, copies.BULK_PREFETCH)
def _prefetch(_m: Machine, _f: Fields) -> None:
    """Do nothing: caches are not modelled."""


# --- to other CTAs ---------------------------------------------------------------------------------------------------


@reads(INSTRUCTIONS, copies.RELEASE_STORE)
def _release_store(m: Machine, f: Fields) -> None:
    """Store to global memory, of this device or another one: at once, though a GPU may take its time."""
    memory_ops.ordered_store(m.x, m.op, m.b, f.target, m.bits(f.value, BITS[f.type]), f"release.{f.scope}")


@reads(INSTRUCTIONS, copies.RELEASE_REDUCE)
def _release_reduce(m: Machine, f: Fields) -> None:
    """Combine an element of global memory with a value, atomically and at once."""
    kind, element = _reduction(f)
    kind = f"u{kind}" if kind in ("min", "max") and element.startswith("u") else kind
    value = m.bits(f.value, BITS[element])
    memory_ops.atomic_rmw(m.x, m.op, m.b, kind, f.target, value, f"{f.order}.{f.scope}")


@reads(INSTRUCTIONS, copies.STORE_ASYNC, copies.STORE_ASYNC_VECTOR)
def _store_async(m: Machine, f: Fields) -> None:
    """Store to another block of the cluster, then complete the bytes on its mbarrier."""
    parts = f.value if isinstance(f.value, tuple) else (f.value,)
    values = [m.bits(part, BITS[f.type]) for part in parts]
    async_copy.store_async(m.x, m.op, m.b, f.target, values, f.mbarrier)
