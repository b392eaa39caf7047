"""Cluster launch control: requests, and answers in a register of 128 bits."""

from __future__ import annotations

from ....mlir import ir
from ...lowering.expansion import Handlers
from ..ops import launch_control
from .machine import Machine, Refused, resized
from .syntax import Statement, Vector

INSTRUCTIONS = Handlers()


@INSTRUCTIONS.expands("clusterlaunchcontrol")
def _clusterlaunchcontrol(m: Machine, s: Statement) -> ir.Value | None:
    if s.modifiers[0] == "try_cancel":
        response, mbarrier = (m.pointer(operand, "shared") for operand in s.operands)
        launch_control.try_cancel(m.x, m.op, m.b, response, mbarrier, "multicast::cluster::all" in s.modifiers)
        return None
    target, source = s.operands
    answer = m.bits(source, 128)
    if "is_canceled" in s.modifiers:
        return launch_control.is_canceled(m.x, m.op, m.b, _word(m, answer, 3))
    axis = s.starts("get_first_ctaid").partition("::")[2]
    if axis in ("x", "y", "z"):
        return _word(m, answer, "xyz".index(axis))
    if "get_first_ctaid" not in s.modifiers or "v4" not in s.modifiers or not isinstance(target, Vector):
        raise Refused("this query of an answer")
    for part, number in zip(target.parts, (0, 1, 2)):
        m.set(part, _word(m, answer, number))
    return None


def _word(m: Machine, answer: ir.Value, number: int) -> ir.Value:
    moved = m.b.binary("shrui", answer, m.b.const(answer.type, 32 * number))
    return resized(m.b, moved, 32)
