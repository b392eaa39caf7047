"""Lanes that meet, and barriers."""

from __future__ import annotations

from ...lowering.builder import int_type
from ...lowering.expansion import Handlers
from ..ops import cluster, sync, warp
from ..runtime.record_access import Fields, leave
from ..runtime.records import FrameHeader, Warp
from .machine import BITS, Machine, Refused, typed
from .syntax import Operand, Pair

INSTRUCTIONS = Handlers()


@INSTRUCTIONS.expands("vote")
def _vote(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = next((part for part in modifiers if part in ("all", "any", "uni", "ballot")), "")
    mask = m.bits(operands[2], 32) if len(operands) > 2 else m.b.i32(-1)
    m.set(operands[0], warp.vote(m.x, m.op, m.b, kind, m.i1(operands[1]), mask))


@INSTRUCTIONS.expands("shfl")
def _shfl(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = next((part for part in modifiers if part in ("up", "down", "bfly", "idx")), "")
    target, value, offset, clamp, *mask = operands
    got, inside = warp.shuffle(
        m.x, m.op, m.b, kind, m.bits(value, 32), m.bits(offset, 32),
        m.bits(mask[0], 32) if mask else m.b.i32(-1), m.bits(clamp, 32),
    )  # fmt: skip
    if isinstance(target, Pair):
        m.set(target.second, inside)
        target = target.first
    m.set(target, got)


@INSTRUCTIONS.expands("redux")
def _redux(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind, parts = typed(modifiers), list(modifiers)
    name = next(part for part in parts if part in ("add", "min", "max", "and", "or", "xor"))
    if kind == "f32":
        name = ".".join([f"f{name}", *(part for part in parts if part in ("abs", "NaN"))])
        value = m.float(operands[1], kind)
        made = warp.redux(m.x, m.op, m.b, name, value, m.bits(operands[2], 32))
        m.set(operands[0], m.b.value("arith.bitcast", int_type(32), (made,)))
        return
    if name in ("min", "max") and kind == "u32":
        name = f"u{name}"
    m.set(operands[0], warp.redux(m.x, m.op, m.b, name, m.bits(operands[1], 32), m.bits(operands[2], 32)))


@INSTRUCTIONS.expands("match")
def _match(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    kind = "any" if "any" in modifiers else "all"
    value = m.bits(operands[1], BITS[typed(modifiers)])
    same, everyone = warp.match(m.x, m.op, m.b, kind, value, m.bits(operands[2], 32))
    target = operands[0]
    if isinstance(target, Pair):
        m.set(target.second, everyone)
        target = target.first
    m.set(target, same)


@INSTRUCTIONS.expands("elect")
def _elect(m: Machine, _modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    chosen, is_it = warp.elect(m.x, m.op, m.b, m.bits(operands[1], 32))
    target = operands[0]
    if not isinstance(target, Pair):
        raise Refused("elect needs a destination d|p")
    m.set(target.first, chosen)
    m.set(target.second, is_it)


@INSTRUCTIONS.expands("activemask")
def _activemask(m: Machine, _modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    """The lanes that have not exited: which of them are together is not modelled."""
    its_warp = Fields(m.b, m.x.frame_of(m.op), FrameHeader).load("warp")
    m.set(operands[0], Fields(m.b, its_warp, Warp).load("live"))


@INSTRUCTIONS.expands("bar", "barrier")
def _bar(m: Machine, modifiers: tuple[str, ...], operands: list[Operand]) -> None:
    x, op, b = m.x, m.op, m.b
    if "cluster" in modifiers:
        if "arrive" in modifiers:
            cluster.cluster_arrive(x, op, b, "relaxed" in modifiers)
        else:
            cluster.cluster_wait(x, op, b)
        return
    if "warp" in modifiers:
        leave(b, warp.meet(x, op, b, "sync_warp", m.bits(operands[0], 32), []))
        return
    if "red" in modifiers:
        target, first, *threads, predicate = operands
        kind = next(part for part in modifiers if part in ("popc", "and", "or"))
        count = m.bits(threads[0], 32) if threads else b.i32(0)
        m.set(target, sync.barrier_reduce(x, op, b, m.bits(first, 32), count, kind, m.i1(predicate)))
        return
    number = m.bits(operands[0], 32)
    count = m.bits(operands[1], 32) if len(operands) > 1 else b.i32(0)
    sync.barrier(x, op, b, number, count, waits="arrive" not in modifiers)
