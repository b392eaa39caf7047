"""Asynchronous copies: of a thread, and in bulk."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ...lowering.builder import constant_value, int_type, ptr_type
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, l2_policy, pointer_type, shared_address
from ..expand import Expander

HANDLERS = Handlers()

_Hinted = nvgpu.async_copy.BulkLoad | nvgpu.async_copy.BulkStore | nvgpu.async_copy.BulkPrefetch


@HANDLERS.expands(nvgpu.async_copy.CpAsync)
def _cp_async(_x: Expander, op: nvgpu.async_copy.CpAsync, b: DeviceBuilder) -> None:
    operands, letters, rest = [shared_address(b, op.target), _global(b, op.source)], "r,l", f"{op.size}"
    if constant_value(op.source_size) != op.size:
        operands, letters, rest = [*operands, op.source_size], f"{letters},r", f"{rest}, $2"
    hint = ""
    if op.hint:
        rest, letters, hint = f"{rest}, ${len(operands)}", f"{letters},l", ".L2::cache_hint"
        operands = [*operands, l2_policy(b, op.hint)]
    if op.prefetch:
        hint += f".L2::{op.prefetch}B"
    b.asm(f"cp.async.{op.cache}.shared.global{hint} [$0], [$1], {rest};", letters, operands)


@HANDLERS.expands(nvgpu.async_copy.CpAsyncCommit)
def _cp_async_commit(_x: Expander, _op: nvgpu.async_copy.CpAsyncCommit, b: DeviceBuilder) -> None:
    b.asm("cp.async.commit_group;", "")


@HANDLERS.expands(nvgpu.async_copy.CpAsyncWait)
def _cp_async_wait(_x: Expander, op: nvgpu.async_copy.CpAsyncWait, b: DeviceBuilder) -> None:
    b.asm(f"cp.async.wait_group {op.count};", "")


@HANDLERS.expands(nvgpu.async_copy.CpAsyncMbarrierArrive)
def _cp_async_mbarrier(_x: Expander, op: nvgpu.async_copy.CpAsyncMbarrierArrive, b: DeviceBuilder) -> None:
    b.asm("cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r", [shared_address(b, op.pointer)])


@HANDLERS.expands(nvgpu.async_copy.CpAsyncBulkCommit)
def _cp_async_bulk_commit(x: Expander, op: nvgpu.async_copy.CpAsyncBulkCommit, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    b.asm("cp.async.bulk.commit_group;", "")


@HANDLERS.expands(nvgpu.async_copy.CpAsyncBulkWait)
def _cp_async_bulk_wait(x: Expander, op: nvgpu.async_copy.CpAsyncBulkWait, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    read = ".read" if op.read else ""
    b.asm(f"cp.async.bulk.wait_group{read} {op.count};", "")


@HANDLERS.expands(nvgpu.async_copy.CachePolicy)
def _cache_policy(_x: Expander, op: nvgpu.async_copy.CachePolicy, b: DeviceBuilder) -> ir.Value:
    return l2_policy(b, op.priority)


def cluster_address(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    """Return the 32-bit address of a pointer into the shared memory of any block of the cluster, also the own one."""
    if pointer.type != ptr_type():
        return shared_address(b, pointer)
    code = "{ .reg .b64 t; cvta.to.shared::cluster.u64 t, $1; cvt.u32.u64 $0, t; }"
    return b.asm(code, "=r,l", [b.value("llvm.ptrtoint", int_type(64), (pointer,))], [int_type(32)], pure=True)[0]


def _global(b: DeviceBuilder, pointer: ir.Value) -> ir.Value:
    return b.cast_space(pointer, pointer_type(1))


def _hinted(op: _Hinted, code: str, letters: str, operands: list[ir.Value]) -> tuple[str, str, list[ir.Value]]:
    """Return code, constraints and operands of an instruction, without the cache policy at their end if there is no
    hint.

    `{hint}` and `{policy}` stand for the modifier and the operand in the instruction.
    """
    if op.hint:
        return code.format(hint=".L2::cache_hint", policy=f", ${len(operands) - 1}"), letters, operands
    return code.format(hint="", policy=""), letters.removesuffix(",l"), operands[:-1]


def _reduction(op: nvgpu.async_copy.BulkSend | nvgpu.async_copy.BulkStore) -> str:
    """Return the reduction and its element type as PTX spells them."""
    name, element = op.reduction, op.element
    if name in ("and", "or", "xor"):
        return f"{name}.b{element[1:]}"
    return f"{name}.noftz.{element}" if name == "add" and element in ("f16", "bf16") else f"{name}.{element}"


@HANDLERS.expands(nvgpu.async_copy.BulkLoad)
def _bulk_load(x: Expander, op: nvgpu.async_copy.BulkLoad, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    code = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
    operands = [shared_address(b, op.target), _global(b, op.source), op.bytes, shared_address(b, op.mbarrier)]
    if op.multicast:
        code = f"{code}.multicast::cluster{{hint}} [$0], [$1], $2, [$3], $4{{policy}};"
        b.asm(*_hinted(op, code, "r,l,r,r,h,l", [*operands, op.mask, op.policy]))
    else:
        b.asm(*_hinted(op, f"{code}{{hint}} [$0], [$1], $2, [$3]{{policy}};", "r,l,r,r,l", [*operands, op.policy]))


@HANDLERS.expands(nvgpu.async_copy.BulkSend)
def _bulk_send(x: Expander, op: nvgpu.async_copy.BulkSend, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    code = "async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    code = f"cp.reduce.{code}.{_reduction(op)}" if op.reduction is not None else f"cp.{code}"
    operands = [cluster_address(b, op.target), shared_address(b, op.source), op.bytes, cluster_address(b, op.mbarrier)]
    b.asm(f"{code} [$0], [$1], $2, [$3];", "r,r,r,r", operands)


@HANDLERS.expands(nvgpu.async_copy.BulkStore)
def _bulk_store(x: Expander, op: nvgpu.async_copy.BulkStore, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    code = "async.bulk.global.shared::cta.bulk_group{hint}"
    code = f"cp.reduce.{code}.{_reduction(op)}" if op.reduction is not None else f"cp.{code}"
    operands = [_global(b, op.target), shared_address(b, op.source), op.bytes, op.policy]
    b.asm(*_hinted(op, f"{code} [$0], [$1], $2{{policy}};", "l,r,r,l", operands))


@HANDLERS.expands(nvgpu.async_copy.BulkPrefetch)
def _bulk_prefetch(x: Expander, op: nvgpu.async_copy.BulkPrefetch, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY)
    code = "cp.async.bulk.prefetch.L2.global{hint} [$0], $1{policy};"
    b.asm(*_hinted(op, code, "l,r,l", [_global(b, op.source), op.bytes, op.policy]))


@HANDLERS.expands(nvgpu.async_copy.StoreAsync)
def _store_async(x: Expander, op: nvgpu.async_copy.StoreAsync, b: DeviceBuilder) -> None:
    x.require(op, features.BULK_COPY, "an asynchronous store")
    count = op.value.type.shape[0]  # pyright: ignore[reportAttributeAccessIssue]
    registers = ", ".join(f"${n + 2}" for n in range(count))
    kind, registers = ("b32", registers) if count == 1 else (f"v{count}.b32", f"{{{registers}}}")
    code = f"st.async.shared::cluster.mbarrier::complete_tx::bytes.{kind} [$0], {registers}, [$1];"
    b.asm(
        code,
        ",".join("r" * (2 + count)),
        [cluster_address(b, op.target), cluster_address(b, op.mbarrier), *b.elements(op.value)],
    )
