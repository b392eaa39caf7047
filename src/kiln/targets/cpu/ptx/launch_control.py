"""Cluster launch control: requests, and answers in a register of 128 bits."""

from __future__ import annotations

from ....mlir import ir
from ....ptx import control
from ...lowering.expansion import Handlers
from ..ops import launch_control
from .machine import Fields, Machine, reads, resized

INSTRUCTIONS = Handlers()


@reads(INSTRUCTIONS, control.TRY_CANCEL)
def _try_cancel(m: Machine, f: Fields) -> None:
    launch_control.try_cancel(m.x, m.op, m.b, f.response, f.mbarrier, f.multicast)


@reads(INSTRUCTIONS, control.IS_CANCELED)
def _is_canceled(m: Machine, f: Fields) -> ir.Value:
    return launch_control.is_canceled(m.x, m.op, m.b, _word(m, f.answer, 3))


@reads(INSTRUCTIONS, control.FIRST_CTA)
def _first_cta(m: Machine, f: Fields) -> None:
    for number, part in enumerate(f.d[:3]):
        m.set(part, _word(m, f.answer, number))


@reads(INSTRUCTIONS, control.FIRST_CTA_INDEX)
def _first_cta_index(m: Machine, f: Fields) -> ir.Value:
    return _word(m, f.answer, f.axis)


def _word(m: Machine, answer: ir.Value, number: int) -> ir.Value:
    moved = m.b.binary("shrui", answer, m.b.const(answer.type, 32 * number))
    return resized(m.b, moved, 32)
