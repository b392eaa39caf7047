"""Asynchronous copies: of a thread, and in bulk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import ir
from ...lowering.builder import constant_value
from ...lowering.expansion import Handlers, Types
from ..device_builder import DeviceBuilder, l2_policy, pointer_type, shared_address

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands("cute_nvgpu.cp_async")
def _cp_async(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    target, source, source_size = op.operands
    size, cache = op.attributes["size"].value, op.attributes["cache"].value
    address, source = shared_address(b, target), b.cast_space(source, pointer_type(1))
    operands, letters, rest = [address, source], "r,l", f"{size}"
    if constant_value(source_size) != size:
        operands, letters, rest = [*operands, source_size], f"{letters},r", f"{rest}, $2"
    hint = ""
    if "hint" in op.attributes:
        operands, letters, rest = (
            [*operands, l2_policy(b, op.attributes["hint"].value)],
            f"{letters},l",
            f"{rest}, ${len(operands)}",
        )
        hint = ".L2::cache_hint"
    if "prefetch" in op.attributes:
        hint += f".L2::{op.attributes['prefetch'].value}B"
    b.asm(f"cp.async.{cache}.shared.global{hint} [$0], [$1], {rest};", letters, operands)
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_commit")
def _cp_async_commit(_x: Expander, _op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("cp.async.commit_group;", "")
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_wait")
def _cp_async_wait(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm(f"cp.async.wait_group {op.attributes['count'].value};", "")
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_mbarrier_arrive")
def _cp_async_mbarrier(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.asm("cp.async.mbarrier.arrive.noinc.shared.b64 [$0];", "r", [shared_address(b, op.operands[0])])
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_bulk_commit")
def _cp_async_bulk_commit(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    b.asm("cp.async.bulk.commit_group;", "")
    return []


@HANDLERS.expands("cute_nvgpu.cp_async_bulk_wait")
def _cp_async_bulk_wait(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    read = ".read" if "read" in op.attributes else ""
    b.asm(f"cp.async.bulk.wait_group{read} {op.attributes['count'].value};", "")
    return []


@HANDLERS.expands("cute_nvgpu.bulk_load")
def _bulk_load(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    target, source, size, mbarrier = op.operands
    code = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
    operands = [shared_address(b, target), b.cast_space(source, pointer_type(1)), size, shared_address(b, mbarrier)]
    b.asm(code, "r,l,r,r", operands)
    return []


@HANDLERS.expands("cute_nvgpu.bulk_store")
def _bulk_store(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    x.require(op, features.BULK_COPY)
    target, source, size = op.operands
    code = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
    b.asm(code, "l,r,r", [b.cast_space(target, pointer_type(1)), shared_address(b, source), size])
    return []
