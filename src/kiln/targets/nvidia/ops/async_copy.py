"""Asynchronous copies: of a thread, and in bulk."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ...lowering.builder import constant_value
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, Instruction, cluster_address, emits, l2_policy, pointer_type, shared_address
from ..expand import Expander

HANDLERS = Handlers()
_WAITS = {
    nvgpu.async_copy.CpAsyncCommit: "cp.async.commit_group",
    nvgpu.async_copy.CpAsyncWait: "cp.async.wait_group {op.count}",
}
emits(HANDLERS, _WAITS)
emits(HANDLERS, {nvgpu.async_copy.CpAsyncBulkCommit: "cp.async.bulk.commit_group"}, features.BULK_COPY)


@HANDLERS.expands(nvgpu.async_copy.CpAsync)
def _cp_async(_x: Expander, op: nvgpu.async_copy.CpAsync, b: DeviceBuilder) -> None:
    asm = Instruction(b)
    operands = [asm.at(shared_address(b, op.target)), asm.at(_global(b, op.source)), str(op.size)]
    if constant_value(op.source_size) != op.size:
        operands.append(asm(op.source_size))
    hint = ""
    if op.hint:
        hint = ".L2::cache_hint"
        operands.append(asm(l2_policy(b, op.hint)))
    if op.prefetch:
        hint += f".L2::{op.prefetch}B"
    asm.emit(f"cp.async.{op.cache}.shared.global{hint}", *operands)


@HANDLERS.expands(nvgpu.async_copy.CpAsyncMbarrierArrive)
def _cp_async_mbarrier(_x: Expander, op: nvgpu.async_copy.CpAsyncMbarrierArrive, b: DeviceBuilder) -> None:
    b.asm("cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r", [shared_address(b, op.pointer)])


@HANDLERS.expands(nvgpu.async_copy.CpAsyncBulkWait)
def _cp_async_bulk_wait(x: Expander, op: nvgpu.async_copy.CpAsyncBulkWait, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    read = ".read" if op.read else ""
    b.asm(f"cp.async.bulk.wait_group{read} {op.count};", "")


@HANDLERS.expands(nvgpu.async_copy.CachePolicy)
def _cache_policy(_x: Expander, op: nvgpu.async_copy.CachePolicy, b: DeviceBuilder) -> ir.Value:
    return l2_policy(b, op.priority)


def _global(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    return b.cast_space(pointer, pointer_type(1))


def _reduction(op: nvgpu.async_copy.BulkSend | nvgpu.async_copy.BulkStore) -> str:
    """Return the reduction and its element type as PTX spells them."""
    name = op.reduction
    element = op.element
    if name in ("and", "or", "xor"):
        return f"{name}.b{element[1:]}"
    return f"{name}.noftz.{element}" if name == "add" and element in ("f16", "bf16") else f"{name}.{element}"


@HANDLERS.expands(nvgpu.async_copy.BulkLoad)
def _bulk_load(x: Expander, op: nvgpu.async_copy.BulkLoad, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    asm = Instruction(b)
    code = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    operands = [asm.at(shared_address(b, op.target)), asm.at(_global(b, op.source)), asm(op.bytes)]
    operands.append(asm.at(shared_address(b, op.mbarrier)))
    if op.multicast:
        code += ".multicast::cluster"
        operands.append(asm(op.mask))
    asm.emit_hinted(op, code, operands)


@HANDLERS.expands(nvgpu.async_copy.BulkSend)
def _bulk_send(x: Expander, op: nvgpu.async_copy.BulkSend, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    asm = Instruction(b)
    code = "async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    code = f"cp.reduce.{code}.{_reduction(op)}" if op.reduction is not None else f"cp.{code}"
    operands = [asm.at(cluster_address(b, op.target)), asm.at(shared_address(b, op.source)), asm(op.bytes)]
    asm.emit(code, *operands, asm.at(cluster_address(b, op.mbarrier)))


@HANDLERS.expands(nvgpu.async_copy.BulkStore)
def _bulk_store(x: Expander, op: nvgpu.async_copy.BulkStore, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    asm = Instruction(b)
    name = "cp"
    reduction = ""
    if op.reduction is not None:
        name = "cp.reduce"
        reduction = f".{_reduction(op)}"
    operands = [asm.at(_global(b, op.target)), asm.at(shared_address(b, op.source)), asm(op.bytes)]
    asm.emit_hinted(op, f"{name}.async.bulk.global.shared::cta.bulk_group", operands, reduction)


@HANDLERS.expands(nvgpu.async_copy.BulkPrefetch)
def _bulk_prefetch(x: Expander, op: nvgpu.async_copy.BulkPrefetch, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    asm = Instruction(b)
    asm.emit_hinted(op, "cp.async.bulk.prefetch.L2.global", [asm.at(_global(b, op.source)), asm(op.bytes)])


@HANDLERS.expands(nvgpu.async_copy.StoreAsync)
def _store_async(x: Expander, op: nvgpu.async_copy.StoreAsync, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY, "an asynchronous store")
    asm = Instruction(b)
    parts = b.elements(op.value)
    target = asm.at(cluster_address(b, op.target))
    mbarrier = asm.at(cluster_address(b, op.mbarrier))
    kind, value = ("b32", asm(parts[0])) if len(parts) == 1 else (f"v{len(parts)}.b32", asm.group(parts))
    asm.emit(f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{kind}", target, value, mbarrier)
