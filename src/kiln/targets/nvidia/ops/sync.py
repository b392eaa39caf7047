"""Barriers of a block and of a warp, and fences."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....mlir import ir
from ...lowering.builder import constant_value
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(nvgpu.sync.Barrier)
def _barrier(_x: Expander, op: nvgpu.sync.Barrier, b: DeviceBuilder) -> None:
    count = constant_value(op.threads)
    if count == 0:
        b.asm("bar.sync $0;", _number(op.id), [op.id])
    elif count is not None:
        b.asm("bar.sync $0, $1;", f"{_number(op.id)},{_number(op.threads)}", [op.id, op.threads])
    else:  # 0 is not a count to PTX
        whole, part = b.if_else(b.compare("eq", op.threads, 0))
        type(b)(whole.point, b.location).asm("bar.sync $0;", _number(op.id), [op.id])
        type(b)(part.point, b.location).asm("bar.sync $0, $1;", f"{_number(op.id)},r", [op.id, op.threads])


def _number(value: ir.Value) -> str:
    """Return the constraint of an operand that may be a constant in the instruction."""
    return "r" if constant_value(value) is None else "n"


@HANDLERS.expands(nvgpu.sync.BarrierArrive)
def _barrier_arrive(_x: Expander, op: nvgpu.sync.BarrierArrive, b: DeviceBuilder) -> None:
    b.asm("bar.arrive $0, $1;", f"{_number(op.id)},{_number(op.threads)}", [op.id, op.threads])


@HANDLERS.expands(nvgpu.sync.SyncWarp)
def _sync_warp(_x: Expander, op: nvgpu.sync.SyncWarp, b: DeviceBuilder) -> None:
    b.op("nvvm.bar.warp.sync", (), [op.mask])


@HANDLERS.expands(nvgpu.sync.Fence)
def _fence(x: Expander, op: nvgpu.sync.Fence, b: DeviceBuilder) -> None:
    kind = op.kind
    if "cluster" in kind or "async" in kind:
        x.require(op, features.CLUSTERS, f"fence.{kind}")
    b.asm(f"fence.{kind};", "")
