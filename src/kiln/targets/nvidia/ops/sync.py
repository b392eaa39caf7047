"""Barriers of a block and of a warp, and fences."""

from __future__ import annotations

from ....dialects import nvgpu
from ....hardware import features
from ....ptx import sync
from ...lowering.expansion import Handlers
from ..device_builder import DeviceBuilder, literal
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(nvgpu.sync.Barrier)
def _barrier(_x: Expander, op: nvgpu.sync.Barrier, b: DeviceBuilder) -> None:
    threads = literal(op.threads)
    if threads == 0:  # 0 is not a count to PTX
        b.ptx(sync.BAR_SYNC, id=literal(op.id))
    elif isinstance(threads, int):
        b.ptx(sync.BAR_SYNC, id=literal(op.id), threads=threads)
    else:
        whole, part = b.if_else(b.compare("eq", threads, 0))
        type(b)(whole.point, b.location).ptx(sync.BAR_SYNC, id=literal(op.id))
        type(b)(part.point, b.location).ptx(sync.BAR_SYNC, id=literal(op.id), threads=threads)


@HANDLERS.expands(nvgpu.sync.BarrierArrive)
def _barrier_arrive(_x: Expander, op: nvgpu.sync.BarrierArrive, b: DeviceBuilder) -> None:
    b.ptx(sync.BAR_ARRIVE, id=literal(op.id), threads=literal(op.threads))


@HANDLERS.expands(nvgpu.sync.SyncWarp)
def _sync_warp(_x: Expander, op: nvgpu.sync.SyncWarp, b: DeviceBuilder) -> None:
    b.op("nvvm.bar.warp.sync", (), [op.mask])


@HANDLERS.expands(nvgpu.sync.Fence)
def _fence(x: Expander, op: nvgpu.sync.Fence, b: DeviceBuilder) -> None:
    if "cluster" in op.kind or "async" in op.kind:
        x.require(op, features.CLUSTERS, f"fence.{op.kind}")
    b.ptx(sync.FENCE, kind=op.kind)
