"""The way of a warp through the machine code: the instructions between what it was recorded to do.

Operations that copy, multiply, wait and arrive are *anchors*: ptxas may duplicate their code, but executes each as often as the program
does, in the same order. A warp's recorded events choose a path from anchor to anchor; of several paths that fit, the shortest counts.
Code without anchors is assumed to run once where it lies on the way, so loops without anchors are undercounted.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..targets.cpu.event_recorder import Kind

if TYPE_CHECKING:
    from ..hardware.sass import Code, Instruction
    from .recording import Event

_ANCHORS = (
    ("load", r"UTMALDG"),
    ("store", r"UTMASTG"),
    ("reduce", r"UTMAREDG"),
    ("bulk", r"UBLKCP|UBLKRED|STAS"),
    ("commit", r"UTMACMDFLUSH|LDGDEPBAR"),
    ("waited", r"DEPBAR\.LE SB0|LDGDEPBAR\.WAIT"),
    ("wgmma", r"[HQI]GMMA\S* (?!RZ)"),
    ("wgmma waited", r"WARPGROUP\.DEPBAR"),
    ("arrive", r"SYNCS\.ARRIVE"),
    ("wait", r"SYNCS\.PHASECHK"),
    ("init", r"SYNCS\.EXCH\.64"),
    ("barrier", r"BAR\.(SYNC|ARV|RED)"),
    ("cluster", r"UCGABAR_ARV"),
    ("copy", r"LDGSTS"),
    ("request", r"UGETNEXTWORKID"),
    ("tcgen05 mma", r"UTC\w*MMA"),
    ("tcgen05 commit", r"UTCBAR"),
    ("tcgen05 copy", r"UTCCP"),
)
_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in _ANCHORS)
_KINDS = {
    Kind.BULK: "bulk",
    Kind.WGMMA: "wgmma",
    Kind.WGMMA_WAITED: "wgmma waited",
    Kind.ARRIVE: "arrive",
    Kind.WAIT: "wait",
    Kind.MBARRIER_INIT: "init",
    Kind.COPY: "copy",
    Kind.WAITED: "waited",
    Kind.REQUEST: "request",
}
_TENSOR = {"mma": "tcgen05 mma", "commit": "tcgen05 commit", "cp": "tcgen05 copy"}
_ALLOCATES = re.compile(r"UTCATOMSWS\S*FIND_AND_SET")
_CLUSTER_BARRIER = 16
WGMMA_ENGINE = 5


def anchor_of(event: Event) -> str | None:
    """Return what instruction an event is; None for one that is none of its own."""
    kind = event.site.kind
    if event.repeats:
        return None
    if kind is Kind.BOX:
        return event.site.detail
    if kind is Kind.TENSOR:
        return _TENSOR.get(event.site.detail)
    if kind is Kind.BARRIER:
        return "cluster" if event.values[0] == _CLUSTER_BARRIER else "barrier"
    if kind is Kind.COMMIT:
        return None if event.values[0] == WGMMA_ENGINE else "commit"
    return _KINDS.get(kind)


def anchor_at(one: Instruction) -> str | None:
    """Return what an instruction is as an anchor; None if it is none."""
    text = f"{one.name} {one.operands}"
    return next((name for name, pattern in _PATTERNS if pattern.match(text)), None)


@dataclasses.dataclass(frozen=True)
class Segment:
    """The instructions from one anchor, or the start, to the next, or the end."""

    instructions: tuple[int, ...]
    """Indices; the last is the anchor."""


@dataclasses.dataclass
class Walk:
    """A warp's way: a segment before each anchored event, and one behind the last."""

    events: list[Event]
    """The events that are instructions of their own."""
    segments: list[Segment]
    matched: int
    """How many events were found; fewer than there are if the way was lost."""

    @property
    def is_whole(self) -> bool:
        return self.matched == len(self.events)


class Map:
    """The anchors of a kernel's code, and the shortest ways from each to the next ones."""

    def __init__(self, code: Code, accessed: Callable[[Instruction], bool] = lambda one: False) -> None:
        """Take a kernel's code; `accessed` says of an instruction whether it accessed memory in the recorded run."""
        self.code = code
        # ptxas makes a loop with mbarriers of its own of an allocation of tensor memory
        own = {one.place for one in code.instructions if _ALLOCATES.match(one.name) and one.place is not None}
        self.anchors = [
            None if one.place in own and one.name.startswith("SYNCS") else anchor_at(one) for one in code.instructions
        ]
        self.accessed = [accessed(one) for one in code.instructions]
        self._ways: dict[int, dict[int, tuple[int, ...]]] = {}

    def ways(self, start: int) -> dict[int, tuple[int, ...]]:
        """Return the anchors that can come first from an index on, each with the instructions up to it; -1 is the end."""
        if start not in self._ways:
            self._ways[start] = self._ways_from(start)
        return self._ways[start]

    def _ways_from(self, start: int) -> dict[int, tuple[int, ...]]:
        """Of the ways to an anchor, the one with the most instructions that accessed something counts, then the shortest."""
        best: dict[int, tuple[int, int, int | None]] = {start: (0, 0, None)}
        ends: dict[int, tuple[int, int, int]] = {}
        for at, afters in self._forward(start):
            accesses, length, _ = best[at]
            accesses += self.accessed[at]
            length += 1
            end = self._end(at)
            if end is not None and (end not in ends or (accesses, -length) > (ends[end][0], -ends[end][1])):
                ends[end] = accesses, length, at
            for after in afters:
                if after not in best or (accesses, -length) > (best[after][0], -best[after][1]):
                    best[after] = accesses, length, at
        ways: dict[int, tuple[int, ...]] = {}
        for anchor, (_, _, last) in ends.items():
            way: list[int] = []
            at: int | None = last
            while at is not None:
                way.append(at)
                at = best[at][2]
            ways[anchor] = tuple(reversed(way))
        return ways

    def _end(self, at: int) -> int | None:
        """Return what ends at an instruction: the index of an anchor, -1 for the kernel's end, None for nothing."""
        if self.anchors[at] is not None:
            return at
        return -1 if self.code.instructions[at].name.startswith("EXIT") else None

    def _forward(self, start: int) -> list[tuple[int, list[int]]]:
        """Return what is reached without an anchor between, each with its successors but for branches back.

        Each comes behind all that lead to it.
        """
        instructions = self.code.instructions
        finished: dict[int, list[int]] = {}
        under_way: dict[int, None] = {}
        stack: list[tuple[int, list[int], list[int]]] = []

        def enter(at: int) -> None:
            ends = self._end(at) is not None and not instructions[at].conditional
            nexts = [] if ends else [one for one in self._following(at) if one < len(instructions)]
            under_way[at] = None
            stack.append((at, nexts, []))

        enter(start)
        while stack:
            at, left, kept = stack[-1]
            if not left:
                stack.pop()
                del under_way[at]
                finished[at] = kept
                continue
            after = left.pop()
            if after not in under_way:
                kept.append(after)
                if after not in finished:
                    enter(after)
        return list(reversed(finished.items()))

    def _following(self, at: int) -> list[int]:
        one = self.code.instructions[at]
        target = self.code.target(at)
        if one.name.startswith("BRA") and target is not None:
            return [at + 1, target] if one.conditional else [target]
        return [at + 1]

    def loops(self) -> list[frozenset[int]]:
        """Return the instructions of the loops without anchors, outer ones first."""
        bodies = [body for _, body in self.code.loop_bodies()]
        return [frozenset(body) for body in bodies if not any(self.anchors[index] for index in body)]

    def walk(self, events: Sequence[Event]) -> Walk:
        """Return the way of a warp with some events."""
        anchored = [event for event in events if anchor_of(event) is not None]
        # of each anchor that the events so far may end at: the instructions of the way, and the way itself as a chain
        states: dict[int, tuple[int, _Chain | None]] = {-2: (0, None)}
        for number, event in enumerate(anchored):
            reached: dict[int, tuple[int, _Chain | None]] = {}
            for at, (cost, chain) in states.items():
                for anchor, way in self.ways(0 if at == -2 else at + 1).items():
                    if anchor < 0 or not self._fits(anchor, event):
                        continue
                    total = cost + len(way)
                    if anchor not in reached or total < reached[anchor][0]:
                        reached[anchor] = (total, _Chain(way, chain))
            if not reached:
                return Walk(anchored, _segments(min(states.values(), key=lambda state: state[0])[1]), number)
            states = reached
        ending = [
            (cost + len(ways[-1]), _Chain(ways[-1], chain))
            for at, (cost, chain) in states.items()
            if -1 in (ways := self.ways(0 if at == -2 else at + 1))
        ]
        best = min(ending or states.values(), key=lambda state: state[0])
        return Walk(anchored, _segments(best[1]), len(anchored))

    def _fits(self, anchor: int, event: Event) -> bool:
        return self.anchors[anchor] == anchor_of(event)


@dataclasses.dataclass(frozen=True)
class _Chain:
    way: tuple[int, ...]
    before: _Chain | None


def _segments(chain: _Chain | None) -> list[Segment]:
    ways: list[Segment] = []
    while chain is not None:
        ways.append(Segment(chain.way))
        chain = chain.before
    return ways[::-1]
