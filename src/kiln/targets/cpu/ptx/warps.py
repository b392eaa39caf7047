"""Warp operations, and barriers."""

from __future__ import annotations

from collections.abc import Sequence

from ....mlir import ir
from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..ops import cluster, sync, warp
from ..runtime.record_access import Fields, leave
from ..runtime.records import FrameHeader, Warp
from .machine import BITS, Machine, Refused, typed
from .syntax import Operand, Pair, Statement

INSTRUCTIONS = Handlers()


@INSTRUCTIONS.expands("vote")
def _vote(m: Machine, s: Statement) -> ir.Value:
    _, predicate, *mask = s.operands
    kind = s.one_of("all", "any", "uni", "ballot")
    return warp.vote(m.x, m.op, m.b, kind, m.i1(predicate), _number(m, mask, -1))


@INSTRUCTIONS.expands("shfl")
def _shfl(m: Machine, s: Statement) -> tuple[ir.Value, ir.Value]:
    _, value, offset, clamp, *mask = s.operands
    lanes = m.bits(value, 32), m.bits(offset, 32), _number(m, mask, -1), m.bits(clamp, 32)
    return warp.shuffle(m.x, m.op, m.b, s.one_of("up", "down", "bfly", "idx"), *lanes)


@INSTRUCTIONS.expands("redux")
def _redux(m: Machine, s: Statement) -> ir.Value:
    kind, name, (_, value, mask) = typed(s), s.one_of("add", "min", "max", "and", "or", "xor"), s.operands
    if kind == "f32":
        name = ".".join([f"f{name}", *(part for part in s.modifiers if part in ("abs", "NaN"))])
        made = warp.redux(m.x, m.op, m.b, name, m.float(value, kind), m.bits(mask, 32))
        return m.b.value("arith.bitcast", int_type(32), (made,))
    if name in ("min", "max") and kind == "u32":
        name = f"u{name}"
    return warp.redux(m.x, m.op, m.b, name, m.bits(value, 32), m.bits(mask, 32))


@INSTRUCTIONS.expands("match")
def _match(m: Machine, s: Statement) -> tuple[ir.Value, ir.Value]:
    value = m.bits(s.operands[1], BITS[typed(s)])
    mask = m.bits(s.operands[2], 32)
    return warp.match(m.x, m.op, m.b, s.one_of("any") or "all", value, mask)


@INSTRUCTIONS.expands("elect")
def _elect(m: Machine, s: Statement) -> tuple[ir.Value, ir.Value]:
    if not isinstance(s.operands[0], Pair):
        raise Refused("elect needs a destination d|p")
    return warp.elect(m.x, m.op, m.b, m.bits(s.operands[1], 32))


@INSTRUCTIONS.expands("activemask")
def _activemask(m: Machine, _s: Statement) -> ir.Value:
    """Return the lanes that have not exited: which of them are together is not modelled."""
    its_warp = Fields(m.b, m.x.frame_of(m.op), FrameHeader).load("warp")
    return Fields(m.b, its_warp, Warp).load("live")


@INSTRUCTIONS.expands("bar", "barrier")
def _bar(m: Machine, s: Statement) -> ir.Value | None:
    x = m.x
    op = m.op
    b = m.b
    if "cluster" in s.modifiers:
        if "arrive" in s.modifiers:
            cluster.cluster_arrive(x, op, b, "relaxed" in s.modifiers)
        else:
            cluster.cluster_wait(x, op, b)
    elif "warp" in s.modifiers:
        leave(b, warp.meet(x, op, b, "sync_warp", m.bits(s.operands[0], 32), []))
    elif "red" in s.modifiers:
        _, number, *threads, predicate = s.operands
        count = _number(m, threads, 0)
        kind = s.one_of("popc", "and", "or")
        return sync.barrier_reduce(x, op, b, m.bits(number, 32), count, kind, m.i1(predicate))
    else:
        number, *threads = s.operands
        sync.barrier(x, op, b, m.bits(number, 32), _number(m, threads, 0), waits="arrive" not in s.modifiers)
    return None


def _number(m: Machine, operands: Sequence[Operand], otherwise: int) -> ir.Value:
    """Return the first of some operands, 32 bits, or a constant if there are none."""
    return m.bits(operands[0], 32) if operands else m.b.i32(otherwise)
