"""Asynchronous copies, which are issued to the engines of `runtime/engines.py`."""

from __future__ import annotations

from ....dialects import nvgpu
from ....dialects.nvgpu.tma import REDUCTIONS
from ....hardware.tensor_maps import ELEMENTS
from ....mlir import ir
from ...lowering.builder import Builder, int_type, ptr_type
from ...lowering.expansion import Handlers
from ..expand import Expander
from ..runtime.engine_table import BULK_QUEUE, COPY, COPY_QUEUE
from ..sanitizer.hooks import hooks_of
from .cluster import peer

HANDLERS = Handlers()


def _copies(x: Expander, op: ir.Operation) -> ir.Value:
    x.function.copies = True
    return x.frame_of(op)


@HANDLERS.calls(nvgpu.async_copy.CpAsync, "target", "source", "source_size", "size")
def copy_async(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, size: int
) -> None:
    """Issue a `cp.async` of `bytes_` bytes; the rest of `size` is filled with zeros."""
    if x.module.counter is not None:
        x.module.counter.access(x, op, b, "smem", target, size, size, "cp.async")
        reads = b.compare("ne", bytes_, 0)
        x.module.counter.access(x, op, b, "gmem", source, size, size, "cp.async", reads)
    target, source = hooks_of(x, op).copy(b, target, source, bytes_, size)
    x.call(b, "kiln_cpu_copy", [_copies(x, op), target, source, bytes_, b.i32(size)])


@HANDLERS.expands(nvgpu.async_copy.CpAsyncCommit)
def _cp_async_commit(x: Expander, op: nvgpu.async_copy.CpAsyncCommit, b: Builder) -> None:
    x.call(b, "kiln_cpu_commit", [_copies(x, op), b.i32(COPY_QUEUE)])
    hooks_of(x, op).commit(b, COPY)


@HANDLERS.expands(nvgpu.async_copy.CpAsyncWait)
def _cp_async_wait(x: Expander, op: nvgpu.async_copy.CpAsyncWait, b: Builder) -> None:
    x.call(b, "kiln_cpu_wait_for_groups", [_copies(x, op), b.i32(COPY_QUEUE), b.i32(op.count)])
    hooks_of(x, op).waited(b, op.count, COPY)


@HANDLERS.expands(nvgpu.async_copy.CpAsyncMbarrierArrive)
def _cp_async_mbarrier_arrive(x: Expander, op: nvgpu.async_copy.CpAsyncMbarrierArrive, b: Builder) -> None:
    hooks = hooks_of(x, op)
    hooks.copies_arrive(b, op.pointer)
    x.call(b, "kiln_cpu_copy_arrive", [_copies(x, op), op.pointer])
    hooks.mbarrier_after(b, op.pointer)


@HANDLERS.expands(nvgpu.async_copy.CpAsyncBulkCommit)
def _cp_async_bulk_commit(x: Expander, op: nvgpu.async_copy.CpAsyncBulkCommit, b: Builder) -> None:
    x.call(b, "kiln_cpu_commit", [_copies(x, op), b.i32(BULK_QUEUE)])
    hooks_of(x, op).bulk_commit(b)


@HANDLERS.expands(nvgpu.async_copy.CpAsyncBulkWait)
def _cp_async_bulk_wait(x: Expander, op: nvgpu.async_copy.CpAsyncBulkWait, b: Builder) -> None:
    x.call(b, "kiln_cpu_wait_for_groups", [_copies(x, op), b.i32(BULK_QUEUE), b.i32(op.count)])
    hooks_of(x, op).bulk_waited(b, op.count, op.read)


def bulk_load(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value, mbarrier: ir.Value
) -> None:
    """Issue a bulk copy to shared memory of this block or another, whose mbarrier counts the bytes."""
    hooks = hooks_of(x, op)
    used = hooks.bulk_copy(b, target, source, bytes_, mbarrier)
    x.call(b, "kiln_cpu_bulk_load", [_copies(x, op), *used])
    hooks.mbarrier_after(b, mbarrier)


def multicast(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    target: ir.Value,
    source: ir.Value,
    bytes_: ir.Value,
    mbarrier: ir.Value,
    mask: ir.Value,
) -> None:
    """Issue a bulk copy to the same place of each block of the cluster whose bit is set in `mask` (i16), with its
    mbarrier."""
    each, rank = b.for_(b.i32(0), b.i32(16), b.i32(1))
    wide = each.value("arith.extui", int_type(32), (mask,))
    bit = each.binary("andi", each.binary("shrui", wide, rank), 1)
    there = each.if_(each.compare("ne", bit, 0))
    places = [peer(x, op, there, pointer, rank) for pointer in (target, mbarrier)]
    bulk_load(x, op, there, places[0], source, bytes_, places[1])


def bulk_store(x: Expander, op: ir.Operation, b: Builder, target: ir.Value, source: ir.Value, bytes_: ir.Value) -> None:
    """Issue a bulk copy to global memory."""
    target, source, bytes_, _ = hooks_of(x, op).bulk_copy(b, target, source, bytes_)
    x.call(b, "kiln_cpu_bulk_store", [_copies(x, op), target, source, bytes_])


def bulk_reduce(
    x: Expander,
    op: ir.Operation,
    b: Builder,
    how: tuple[str, str],
    target: ir.Value,
    source: ir.Value,
    bytes_: ir.Value,
    mbarrier: ir.Value | None = None,
) -> None:
    """Issue a bulk reduction (name, element type): in global memory or, with an mbarrier, in shared memory."""
    hooks = hooks_of(x, op)
    x.function.adds_floats |= mbarrier is None and how[0] == "add" and "f" in how[1]
    target, source, bytes_, counts = hooks.bulk_copy(b, target, source, bytes_, mbarrier, combines=True)
    number = REDUCTIONS.index(how[0]) + 1 | list(ELEMENTS).index(how[1]) << 8
    place = counts if counts is not None else b.value("llvm.mlir.zero", ptr_type())
    x.call(
        b,
        "kiln_cpu_bulk_reduce",
        [_copies(x, op), target, source, bytes_, b.i32(ELEMENTS[how[1]] // 8), place, b.i32(number)],
    )
    if mbarrier is not None:
        hooks.mbarrier_after(b, mbarrier)


def store_async(
    x: Expander, op: ir.Operation, b: Builder, target: ir.Value, parts: list[ir.Value], mbarrier: ir.Value
) -> None:
    """Store integers to consecutive addresses, then complete their bytes on an mbarrier."""
    hooks = hooks_of(x, op)  # pyright: ignore[reportAttributeAccessIssue]
    each = parts[0].type.width // 8  # pyright: ignore[reportAttributeAccessIssue]
    target, counts = hooks.store_async(b, target, each * len(parts), mbarrier)
    for number, part in enumerate(parts):
        b.store(part, b.byte_gep(target, number * each))
    x.frame_of(op)
    x.call(b, "kiln_cpu_mbarrier", [counts, b.i32(0), b.i32(-each * len(parts))])
    hooks.mbarrier_after(b, mbarrier)


def _reduction(op: nvgpu.async_copy.BulkSend | nvgpu.async_copy.BulkStore) -> tuple[str, str] | None:
    """Return the reduction and the type of its elements, if the operation has one."""
    return (op.reduction, op.element) if op.reduction else None


@HANDLERS.expands(nvgpu.async_copy.CachePolicy)
def _cache_policy(_x: Expander, _op: nvgpu.async_copy.CachePolicy, b: Builder) -> ir.Value:
    return b.i64(0)  # caches are not modelled


@HANDLERS.expands(nvgpu.async_copy.BulkLoad)
def _bulk_load(x: Expander, op: nvgpu.async_copy.BulkLoad, b: Builder) -> None:
    if op.multicast:
        multicast(x, op, b, op.target, op.source, op.bytes, op.mbarrier, op.mask)
    else:
        bulk_load(x, op, b, op.target, op.source, op.bytes, op.mbarrier)


@HANDLERS.expands(nvgpu.async_copy.BulkSend)
def _bulk_send(x: Expander, op: nvgpu.async_copy.BulkSend, b: Builder) -> None:
    how = _reduction(op)
    if how is None:
        bulk_load(x, op, b, op.target, op.source, op.bytes, op.mbarrier)
    else:
        bulk_reduce(x, op, b, how, op.target, op.source, op.bytes, op.mbarrier)


@HANDLERS.expands(nvgpu.async_copy.BulkStore)
def _bulk_store(x: Expander, op: nvgpu.async_copy.BulkStore, b: Builder) -> None:
    how = _reduction(op)
    if how is None:
        bulk_store(x, op, b, op.target, op.source, op.bytes)
    else:
        bulk_reduce(x, op, b, how, op.target, op.source, op.bytes)


@HANDLERS.expands(nvgpu.async_copy.BulkPrefetch)
def _bulk_prefetch(_x: Expander, _op: nvgpu.async_copy.BulkPrefetch, _b: Builder) -> None:
    pass


@HANDLERS.expands(nvgpu.async_copy.StoreAsync)
def _store_async(x: Expander, op: nvgpu.async_copy.StoreAsync, b: Builder) -> None:
    store_async(x, op, b, op.target, b.elements(op.value), op.mbarrier)
