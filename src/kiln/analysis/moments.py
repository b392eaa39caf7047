"""What a trace of a kernel shows of an operation, as its declaration says: a wait, an arrival, work for an engine."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from ..dialects.declaration import DECLARED
from ..hardware.engines import THREAD

if TYPE_CHECKING:
    from ..hardware.engines import Engine
    from ..mlir import ir

_AMONG_WARPS = ("cta", "cluster", "grid", "mbarrier")
"""The orders of operations at which threads of several warps meet."""


@functools.cache
def kind_of(op: str) -> str:
    """Return the kind of event that an operation is in a trace; empty if it is none.

    `wait`: a thread may wait there for other warps, or for an engine. Lanes of a warp that wait for each other do not
    count. `arrive`: others wait for what it does. `issue`: an engine carries it out. `compute`: a warp carries it out
    together, in registers, for all of its lanes.
    """
    kind = DECLARED.get(op)
    if kind is None:
        return ""
    meets_warps = kind.ORDERS in _AMONG_WARPS or kind.CONVERGED == "warpgroup"
    in_memory = kind.READS or kind.WRITES
    if kind.AWAITS or (kind.WAITS and meets_warps) or (kind.ORDERS == "grid" and not in_memory):
        return "wait"
    if kind.ENGINE not in (None, THREAD):
        return "issue"
    if kind.ORDERS in _AMONG_WARPS or (kind.MBARRIER and kind.COMMITS):
        return "" if in_memory else "arrive"
    together = kind.WAITS and kind.CONVERGED == "warp" and kind.VARIES == ""
    return "compute" if together and kind.OPERANDS and not in_memory and not kind.ORDERS else ""


@functools.cache
def may_fail(op: str) -> bool:
    """Return whether a wait may end before what it waits for is there: its result tells."""
    kind = DECLARED.get(op)
    return kind is not None and kind_of(op) == "wait" and bool(kind.RESULTS)


@functools.cache
def opens_late(op: str) -> bool:
    """Return whether a thread goes on behind a wait until it accesses memory: barriers of a CTA let it do so."""
    kind = DECLARED.get(op)
    return kind is not None and kind.WAITS and kind.ORDERS == "cta"


@functools.cache
def engine_of(op: str) -> Engine | None:
    """Return the engine that carries an operation out, that it waits for, or whose operations it commits."""
    kind = DECLARED.get(op)
    if kind is None:
        return None
    return kind.ENGINE or next(iter((*kind.AWAITS, *kind.COMMITS)), None)


@functools.cache
def commits(op: str) -> bool:
    """Return whether an operation makes a group of those that were issued before."""
    kind = DECLARED.get(op)
    return kind is not None and bool(kind.COMMITS)


def left_by(op: ir.Operation) -> int | None:
    """Return how many groups of operations may still be under way after a wait for groups; None for other operations."""
    kind = DECLARED.get(op.name)
    if kind is None or not kind.AWAITS:
        return None
    return op.attributes["count"].value if "count" in op.attributes else 0  # pyright: ignore[reportAttributeAccessIssue]


def meets_cluster(op: str) -> bool:
    """Return whether an operation waits or arrives at the barrier of a cluster."""
    kind = DECLARED.get(op)
    return kind is not None and kind.ORDERS == "cluster"


def mbarrier_of(op: ir.Operation) -> ir.Value | None:
    """Return the mbarrier that an operation waits at, or that it arrives at when it is complete."""
    kind = DECLARED.get(op.name)
    if kind is None or not kind.MBARRIER or kind.MBARRIER not in kind.OPERANDS:
        return None
    return op.operands[list(kind.OPERANDS).index(kind.MBARRIER)]


def barrier_of(op: ir.Operation) -> ir.Value | None:
    """Return the number of the barrier of a CTA that an operation waits or arrives at."""
    kind = DECLARED.get(op.name)
    if kind is None or kind.ORDERS != "cta" or "id" not in kind.OPERANDS:
        return None
    return op.operands[list(kind.OPERANDS).index("id")]
