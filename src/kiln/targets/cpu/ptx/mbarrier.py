"""Mbarriers."""

from __future__ import annotations

from ....hardware.limits import MBARRIER_ARRIVALS
from ....mlir import ir
from ....ptx import mbarrier
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..ops.mbarrier import mbarrier_change, mbarrier_init, mbarrier_wait
from ..sanitizer.hooks import hooks_of
from .machine import Fields, Machine, reads, resized

INSTRUCTIONS = Handlers()


@reads(INSTRUCTIONS, mbarrier.INIT)
def _init(m: Machine, f: Fields) -> None:
    mbarrier_init(m.x, m.op, m.b, f.pointer, f.count)


@reads(INSTRUCTIONS, mbarrier.INVAL)
def _inval(m: Machine, f: Fields) -> None:
    hooks_of(m.x, m.op).mbarrier_inval(m.b, f.pointer)


@reads(INSTRUCTIONS, mbarrier.PENDING_COUNT)
def _pending_count(m: Machine, f: Fields) -> ir.Value:
    return resized(m.b, m.b.binary("andi", f.state, MBARRIER_ARRIVALS), 32)


@reads(
    INSTRUCTIONS,
    mbarrier.ARRIVE,
    mbarrier.ARRIVE_REMOTE,
    mbarrier.ARRIVE_NO_COMPLETE,
    mbarrier.ARRIVE_EXPECT_TX,
    mbarrier.ARRIVE_EXPECT_TX_REMOTE,
)
def _arrive(m: Machine, f: Fields) -> ir.Value:
    m.x.frame_of(m.op)
    state = m.b.load(int_type(64), f.pointer)  # of the phase before
    _change(m, f, m.b.i32(1) if f.count is None else f.count, m.b.i32(0) if f.bytes is None else f.bytes)
    return state


@reads(INSTRUCTIONS, mbarrier.EXPECT_TX, mbarrier.COMPLETE_TX)
def _expect(m: Machine, f: Fields) -> None:
    m.x.frame_of(m.op)
    completes = f.form is mbarrier.COMPLETE_TX
    _change(m, f, None, m.b.binary("subi", m.b.i32(0), f.bytes) if completes else f.bytes)


def _change(m: Machine, f: Fields, arrivals: ir.Value | None, bytes_: ir.Value) -> None:
    order = f"{f.order}.{f.scope}" if f.order else ""
    mbarrier_change(m.x, m.op, m.b, f.pointer, arrivals, bytes_, modifiers=order)


@reads(INSTRUCTIONS, mbarrier.TEST_WAIT_PARITY, mbarrier.TRY_WAIT_PARITY)
def _wait(m: Machine, f: Fields) -> ir.Value:
    return mbarrier_wait(m.x, m.op, m.b, f.pointer, f.phase, may_fail=True, relaxed=f.order == "relaxed")


@reads(INSTRUCTIONS, mbarrier.TEST_WAIT, mbarrier.TRY_WAIT)
def _wait_for_state(m: Machine, f: Fields) -> ir.Value:
    phase = resized(m.b, m.b.binary("shrui", f.state, 63), 32)
    return mbarrier_wait(m.x, m.op, m.b, f.pointer, phase, may_fail=True, relaxed=f.order == "relaxed")
