"""Barriers of a block and of a warp, and fences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....hardware import features
from ....mlir import ir
from ...lowering.builder import constant_value
from ...lowering.expansion import Handlers, Types
from ..device_builder import DeviceBuilder

if TYPE_CHECKING:
    from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands("cute_nvgpu.barrier")
def _barrier(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    number, threads = op.operands
    count = constant_value(threads)
    if count == 0:
        b.asm("bar.sync $0;", _number(number), [number])
    elif count is not None:
        b.asm("bar.sync $0, $1;", f"{_number(number)},{_number(threads)}", [number, threads])
    else:  # 0 is not a count to PTX
        whole, part = b.if_else(b.compare("eq", threads, b.i32(0)))
        type(b)(whole.point, b.location).asm("bar.sync $0;", _number(number), [number])
        type(b)(part.point, b.location).asm("bar.sync $0, $1;", f"{_number(number)},r", [number, threads])
    return []


def _number(value: ir.Value) -> str:
    """The constraint of an operand that may be a constant in the instruction."""
    return "r" if constant_value(value) is None else "n"


@HANDLERS.expands("cute_nvgpu.barrier_arrive")
def _barrier_arrive(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    number, threads = op.operands
    b.asm("bar.arrive $0, $1;", f"{_number(number)},{_number(threads)}", [number, threads])
    return []


@HANDLERS.expands("cute_nvgpu.sync_warp")
def _sync_warp(_x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    b.op("nvvm.bar.warp.sync", (), [op.operands[0]])
    return []


@HANDLERS.expands("cute_nvgpu.fence")
def _fence(x: Expander, op: ir.Operation, _o: Types, _r: Types, b: DeviceBuilder) -> list[ir.Value]:
    kind = op.attributes["kind"].value
    if "cluster" in kind or "async" in kind:
        x.require(op, features.CLUSTERS, f"fence.{kind}")
    b.asm(f"fence.{kind};", "")
    return []
