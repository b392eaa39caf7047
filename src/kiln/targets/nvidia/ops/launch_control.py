"""Cluster launch control."""

from __future__ import annotations

from ....dialects.nvgpu import launch_control
from ....hardware import features
from ....ptx import control
from ...lowering.builder import int_type
from ...lowering.expansion import KEEP, Handlers
from ..device_builder import DeviceBuilder, shared_address
from ..expand import Expander

HANDLERS = Handlers()


@HANDLERS.expands(launch_control.ClcTryCancel)
def _try_cancel(x: Expander, op: launch_control.ClcTryCancel, b: DeviceBuilder) -> None:
    x.require(op, features.CLUSTER_LAUNCH_MULTICAST if op.multicast else features.CLUSTER_LAUNCH_CONTROL)
    b.ptx(control.TRY_CANCEL, response=op.response, mbarrier=op.mbarrier, multicast=op.multicast)


_IS_CANCELED = control.IS_CANCELED.text({"d": "p", "answer": "q"})
_FIRST_CTA = control.FIRST_CTA.text({"d": ["$0", "$1", "$2", "_"], "answer": "q"})
_ANSWER = (
    f"{{ .reg .pred p; .reg .b128 q; ld.shared.b128 q, [$4]; {_IS_CANCELED}; selp.u32 $3, 1, 0, p; "
    f"mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; @p {_FIRST_CTA}; }}"
)


@HANDLERS.expands(launch_control.ClcQueryCancel)
def _query_cancel(x: Expander, op: launch_control.ClcQueryCancel, b: DeviceBuilder) -> object:
    x.require(op, features.CLUSTER_LAUNCH_CONTROL)
    words = [int_type(32)] * 4
    x.results[op.result] = b.asm(_ANSWER, "=r,=r,=r,=r,r", [shared_address(b, op.response)], words)
    return KEEP
