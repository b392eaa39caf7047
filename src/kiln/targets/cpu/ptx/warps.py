"""Warp operations, and barriers."""

from __future__ import annotations

from ....mlir import ir
from ....ptx import sync as sync_forms
from ....ptx import warp as warp_forms
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..ops import cluster, sync, warp
from ..runtime.record_access import Fields as Record
from ..runtime.record_access import leave
from ..runtime.records import FrameHeader, Warp
from .machine import Fields, Machine, Refused, reads

INSTRUCTIONS = Handlers()


@reads(INSTRUCTIONS, warp_forms.VOTE, warp_forms.BALLOT)
def _vote(m: Machine, f: Fields) -> ir.Value:
    kind = "ballot" if f.form is warp_forms.BALLOT else f.kind
    return warp.vote(m.x, m.op, m.b, kind, f.predicate, f.mask)


@reads(INSTRUCTIONS, warp_forms.SHUFFLE)
def _shfl(m: Machine, f: Fields) -> tuple[ir.Value, ir.Value]:
    return warp.shuffle(m.x, m.op, m.b, f.kind, f.value, f.offset, f.mask, f.clamp)


@reads(INSTRUCTIONS, warp_forms.REDUX)
def _redux(m: Machine, f: Fields) -> ir.Value:
    return warp.redux(m.x, m.op, m.b, f.kind, f.value, f.mask)


@reads(INSTRUCTIONS, warp_forms.REDUX_FLOAT)
def _redux_float(m: Machine, f: Fields) -> ir.Value:
    return m.b.value("arith.bitcast", int_type(32), (_redux(m, f),))


@reads(INSTRUCTIONS, warp_forms.MATCH, warp_forms.MATCH_WIDE, warp_forms.MATCH_ALL, warp_forms.MATCH_ALL_WIDE)
def _match(m: Machine, f: Fields) -> tuple[ir.Value, ir.Value]:
    return warp.match(m.x, m.op, m.b, f.form.opcode[1], f.value, f.mask)


@reads(INSTRUCTIONS, warp_forms.ELECT)
def _elect(m: Machine, f: Fields) -> tuple[ir.Value, ir.Value]:
    if f.p is None:
        raise Refused("elect needs a destination d|p")
    return warp.elect(m.x, m.op, m.b, f.mask)


@reads(INSTRUCTIONS, warp_forms.ACTIVE)
def _activemask(m: Machine, _f: Fields) -> ir.Value:
    """Return the lanes that have not exited: which of them are together is not modelled."""
    its_warp = Record(m.b, m.x.frame_of(m.op), FrameHeader).load("warp")
    return Record(m.b, its_warp, Warp).load("live")


@reads(INSTRUCTIONS, sync_forms.CLUSTER_ARRIVE)
def _cluster_arrive(m: Machine, f: Fields) -> None:
    cluster.cluster_arrive(m.x, m.op, m.b, f.order == "relaxed")


@reads(INSTRUCTIONS, sync_forms.CLUSTER_WAIT)
def _cluster_wait(m: Machine, _f: Fields) -> None:
    cluster.cluster_wait(m.x, m.op, m.b)


@reads(INSTRUCTIONS, sync_forms.BAR_WARP)
def _bar_warp(m: Machine, f: Fields) -> None:
    leave(m.b, warp.meet(m.x, m.op, m.b, "sync_warp", f.mask, []))


@reads(INSTRUCTIONS, sync_forms.BAR_SYNC, sync_forms.BARRIER_SYNC)
def _bar_sync(m: Machine, f: Fields) -> None:
    sync.barrier(m.x, m.op, m.b, f.id, _threads(m, f), waits=True)


@reads(INSTRUCTIONS, sync_forms.BAR_ARRIVE, sync_forms.BARRIER_ARRIVE)
def _bar_arrive(m: Machine, f: Fields) -> None:
    sync.barrier(m.x, m.op, m.b, f.id, f.threads, waits=False)


@reads(INSTRUCTIONS, sync_forms.BAR_COUNT, sync_forms.BARRIER_COUNT, sync_forms.BAR_TEST, sync_forms.BARRIER_TEST)
def _bar_red(m: Machine, f: Fields) -> ir.Value:
    return sync.barrier_reduce(m.x, m.op, m.b, f.id, _threads(m, f), f.kind or "popc", f.predicate)


def _threads(m: Machine, f: Fields) -> ir.Value:
    """Return how many threads a barrier is for: 0 for all of the block."""
    return m.b.i32(0) if f.threads is None else f.threads
