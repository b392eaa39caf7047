"""Cluster launch control."""

from __future__ import annotations

from ....dialects.nvgpu import launch_control
from ....hardware import features
from ...lowering.builder import int_type
from ...lowering.expansion import KEEP, Handlers
from ..device_builder import DeviceBuilder, Instruction, shared_address
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(launch_control.ClcTryCancel)
def _try_cancel(x: Expander, op: launch_control.ClcTryCancel, b: DeviceBuilder) -> None:
    x.require(op, features.CLUSTER_LAUNCH_MULTICAST if op.multicast else features.CLUSTER_LAUNCH_CONTROL)
    asm = Instruction(b)
    operands = [asm.at(shared_address(b, pointer)) for pointer in (op.response, op.mbarrier)]
    multicast = ".multicast::cluster::all" if op.multicast else ""
    code = f"clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes{multicast}.b128"
    asm.emit(code, *operands)


_QUERY = "clusterlaunchcontrol.query_cancel"
_ANSWER = (
    "{ .reg .pred p; .reg .b128 q; ld.shared.b128 q, [$4]; "
    f"{_QUERY}.is_canceled.pred.b128 p, q; selp.u32 $3, 1, 0, p; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; "
    f"@p {_QUERY}.get_first_ctaid.v4.b32.b128 {{$0, $1, $2, _}}, q; }}"
)


@HANDLERS.expands(launch_control.ClcQueryCancel)
def _query_cancel(x: Expander, op: launch_control.ClcQueryCancel, b: DeviceBuilder) -> object:
    x.require(op, features.CLUSTER_LAUNCH_CONTROL)
    words = [int_type(32)] * 4
    x.results[op.result] = b.asm(_ANSWER, "=r,=r,=r,=r,r", [shared_address(b, op.response)], words)
    return KEEP
