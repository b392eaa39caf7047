"""Cluster launch control, which `runtime/launch_control.py` carries out."""

from __future__ import annotations

from ....dialects.nvgpu import launch_control
from ....mlir import ir
from ...lowering.builder import Builder, int_type, parsed_type
from ...lowering.expansion import AnyOp, Handlers
from ..expand import Expander
from ..runtime.launch_control import ANSWER, OVER
from ..runtime.record_access import Fields
from ..runtime.records import FrameHeader
from ..sanitizer.hooks import hooks_of

HANDLERS = Handlers()


def refused_request(why: int) -> tuple[str, str]:
    """Return the message and hint for a request that the runtime refused with a code."""
    if why == OVER:
        return (
            "clc_try_cancel by a thread that has read that there is no further cluster",
            "leave the loop after an answer that says no: what another request does is undefined",
        )
    return f"clc_try_cancel with a response that is not aligned to {ANSWER} bytes", "align it to 16 bytes"


@HANDLERS.calls(launch_control.ClcTryCancel, "response", "mbarrier", "multicast")
def try_cancel(
    x: Expander, op: AnyOp, b: Builder, response: ir.Value, mbarrier: ir.Value, multicast: bool | None
) -> None:
    """Request the work of a cluster that has not started."""
    x.function.copies = x.function.launch_control = True
    frame = x.frame_of(op)
    hooks = hooks_of(x, op)
    hooks.request(b, response, mbarrier, bool(multicast))
    operands = [frame, response, mbarrier, b.i32(int(bool(multicast)))]
    why = x.call(b, "kiln_cpu_clc_try_cancel", operands, int_type(64))
    site = x.module.site(op, "launch control", "clc_try_cancel", x.function.name, ("i64",))
    failed = b.if_(b.compare("ne", why, 0))
    x.fault(failed, site, [why])
    x.end(failed)
    hooks.mbarrier_after(b, mbarrier)


@HANDLERS.calls(launch_control.ClcQueryCancel, "response")
def query_cancel(x: Expander, op: AnyOp, b: Builder, response: ir.Value) -> ir.Value:
    """Return an answer: the index of the first block of the cluster that was canceled, and whether there is one."""
    response = hooks_of(x, op).before_access(b, response, ANSWER, write=False, alignment=ANSWER)
    is_canceled(x, op, b, b.load(int_type(32), b.byte_gep(response, 12)))
    return b.load(parsed_type("vector<4xi32>"), response, 4)


def is_canceled(x: Expander, op: AnyOp, b: Builder, word: ir.Value) -> ir.Value:
    """Return whether the last word of an answer says yes; a thread that has read a no must not request again."""
    frame = x.frame_of(op)
    is_hit = b.compare("ne", word, 0)
    none = b.if_(b.compare("eq", word, 0))
    Fields(none, frame, FrameHeader).store("refused", 1)
    return is_hit
