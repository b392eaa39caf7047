"""Asynchronous copies: of a thread, and in bulk."""

from __future__ import annotations

from typing import Any

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ....ptx import copies
from ...lowering.builder import constant_value
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, l2_policy, parts_of, prints
from ..expand import Expander

HANDLERS = Handlers()
prints(HANDLERS, {nvgpu.async_copy.CpAsyncCommit: copies.COMMIT, nvgpu.async_copy.CpAsyncWait: copies.WAIT})
prints(HANDLERS, {nvgpu.async_copy.CpAsyncMbarrierArrive: copies.ARRIVE}, noinc=True)
_IN_BULK = {
    nvgpu.async_copy.CpAsyncBulkCommit: copies.BULK_COMMIT,
    nvgpu.async_copy.CpAsyncBulkWait: copies.BULK_WAIT,
    nvgpu.async_copy.BulkPrefetch: copies.BULK_PREFETCH,
}
prints(HANDLERS, _IN_BULK, features.BULK_COPY)


@HANDLERS.expands(nvgpu.async_copy.CpAsync)
def _cp_async(_x: Expander, op: nvgpu.async_copy.CpAsync, b: DeviceBuilder) -> None:
    b.ptx(
        copies.CP_ASYNC,
        cache=op.cache,
        prefetch=op.prefetch,
        target=op.target,
        source=op.source,
        size=op.size,
        source_size=None if constant_value(op.source_size) == op.size else op.source_size,
        policy=l2_policy(b, op.hint) if op.hint else None,
    )


@HANDLERS.expands(nvgpu.async_copy.CachePolicy)
def _cache_policy(_x: Expander, op: nvgpu.async_copy.CachePolicy, b: DeviceBuilder) -> ir.Value:
    return l2_policy(b, op.priority)


@HANDLERS.expands(nvgpu.async_copy.BulkLoad)
def _bulk_load(x: Expander, op: nvgpu.async_copy.BulkLoad, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    b.ptx(copies.BULK_LOAD, space="cluster", **parts_of(op, copies.BULK_LOAD))


def _reduction(op: nvgpu.async_copy.BulkSend | nvgpu.async_copy.BulkStore) -> dict[str, Any]:
    return {"reduction": copies.reduction(op.reduction, op.element)} if op.reduction is not None else {}


@HANDLERS.expands(nvgpu.async_copy.BulkSend)
def _bulk_send(x: Expander, op: nvgpu.async_copy.BulkSend, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    form = copies.BULK_SEND if op.reduction is None else copies.REDUCE_SEND
    b.ptx(form, **parts_of(op, copies.BULK_SEND), **_reduction(op))


@HANDLERS.expands(nvgpu.async_copy.BulkStore)
def _bulk_store(x: Expander, op: nvgpu.async_copy.BulkStore, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    form = copies.BULK_STORE if op.reduction is None else copies.REDUCE_STORE
    b.ptx(form, **parts_of(op, copies.BULK_STORE), **_reduction(op))


@HANDLERS.expands(nvgpu.async_copy.StoreAsync)
def _store_async(x: Expander, op: nvgpu.async_copy.StoreAsync, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY, "an asynchronous store")
    words = b.elements(op.value)
    if len(words) == 1:
        b.ptx(copies.STORE_ASYNC, type="b32", target=op.target, value=words[0], mbarrier=op.mbarrier)
    else:
        form = copies.STORE_ASYNC_VECTOR
        b.ptx(form, count=len(words), type="b32", target=op.target, value=words, mbarrier=op.mbarrier)
