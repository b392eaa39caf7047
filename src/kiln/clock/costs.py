"""What segments of machine code cost: cycles of a warp alone, and cycles of the pipes that warps share."""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..hardware import sass
from ..hardware.warp_accesses import GlobalAccess, SharedAccess, WarpAccess

if TYPE_CHECKING:
    from ..hardware.sass import Code, Instruction
    from .rates import Rates
    from .walk import Segment

SUB_CORES = 4
LATENCY = (
    (r"LDSM", 31.0),
    (r"LDS", 23.0),
    (r"LDG|LD\b", 0.0),  # as the rates say
    (r"ATOM|RED", 700.0),
    (r"LDL", 40.0),
    (r"MUFU", 18.0),
    (r"S2R|S2UR|CS2R", 25.0),
    (r"LDC|ULDC", 40.0),
    (r"SHFL|VOTE|MATCH", 24.0),
    (r"R2UR", 12.0),
    (r"REDUX", 44.0),
    (r"POPC|FLO|BREV|I2F|F2I|F2F", 18.0),
    (r"HMMA|IMMA|QMMA|DMMA", 24.4),
)
"""Cycles until a result is there, of instructions whose scoreboard says when."""
INTERVAL = (
    (r"(MUFU|F2I|I2F|F2F|POPC|FLO|BREV)\b", "mufu", 8.0),
    (r"REDUX", "alu", 8.0),
    (r"IMAD", "fma", 2.0),
    (r"HFMA2|HADD2|HMUL2", "fma", 1.35),
    (r"FFMA|FADD|FMUL|FFMA2|FADD2|FMUL2", "fma", 1.0),
    (r"HMMA|IMMA|QMMA", "tensor", 6.2),
    (r"DFMA|DADD|DMUL", "fp64", 2.0),
    (r"STSM|LDSM", "lsu", 16.0),
    (r"LDS\.128|STS\.128|LDG\S*\.128|STG\S*\.128", "lsu", 16.0),
    (r"LDS\.64|STS\.64|LDG\S*\.64|STG\S*\.64", "lsu", 8.0),
    (r"LDS|STS|LDG|STG|SHFL|ATOMS|LDL|STL|RED|ATOMG|LDGSTS", "lsu", 4.0),
    (r"I|LOP3|SHF|PRMT|SEL|FSEL|FSETP|FMNMX|ISETP|LEA|MOV|F2FP|VIADD|PLOP3|FSET|SGXT|P2R|R2P|BMSK|VIMNMX", "alu", 2.0),
)
"""The pipe of a sub-core that takes an instruction, and the cycles until it takes the next; the LSU is the SM's, for four of them."""
_LATENCY = tuple((re.compile(pattern), value) for pattern, value in LATENCY)
_INTERVAL = tuple((re.compile(pattern), pipe, value) for pattern, pipe, value in INTERVAL)
_GLOBAL = re.compile(r"(LDG|LD|STG|ST|RED|ATOMG|ATOM|LDGSTS)\b")
_TENSOR_MEMORY = re.compile(r"(?:LDTM|STTM)(?:\.16dp\w*)?(?:\.x(\d+))?")
_WARP_WORD = 128
"""Bytes of a register of all lanes."""
_LOADS = re.compile(r"(LDG|LD)\b")


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a segment takes: cycles of a warp alone, and cycles of each pipe."""

    alone: float
    pipes: dict[str, float]


NOTHING = Cost(0.01, {})


class Accesses:
    """The accesses of warps to memory by source line, as they were counted beside the recorded events."""

    def __init__(self, accesses: Iterable[WarpAccess]) -> None:
        self._totals: dict[tuple[type, str, int], list[int]] = defaultdict(lambda: [0, 0, 0])
        for one in accesses:
            if one.span is not None:
                entry = self._totals[type(one), one.span.filename, one.span.line]
                entry[0] += one.served
                entry[1] += one.ideal
                entry[2] += one.lanes * one.width

    def factor(self, kind: type, place: tuple[str, int]) -> float:
        """Return by how much more is served at a line than would be without conflicts or gaps."""
        entry = self._totals.get((kind, *place))
        return entry[0] / max(1, entry[1]) if entry else 1.0

    def moved(self, kind: type, place: tuple[str, int]) -> int:
        """Return the bytes that the recorded warps moved at a line."""
        entry = self._totals.get((kind, *place))
        return entry[2] if entry else 0

    def sectors(self) -> int:
        """Return the sectors of global memory that the recorded warps touched."""
        return sum(entry[0] for (kind, _, _), entry in self._totals.items() if kind is GlobalAccess)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Where the data of a launch are: the part of what it loads that comes from DRAM, and of what CTAs load at a time that differs."""

    missed: float = 0.0
    late: float = 0.0
    """The part of copies that wait for DRAM: for what is missed, and for what another CTA missed at the same time."""
    different: float = 0.5
    written: float = 0.0
    """The part of stores that reaches DRAM while the kernel runs."""
    mixed: float = 0.0
    """How much reads and writes of DRAM hinder each other: 0 if there is one kind, 1 if there is as much of both."""


class Costs:
    """The costs of a kernel's segments; loops without anchors count as often as their accesses say."""

    nothing = NOTHING

    def __init__(self, code: Code, rates: Rates, accesses: Accesses, memory: Memory) -> None:
        self.code = code
        self.rates = rates
        self.accesses = accesses
        self.memory = memory
        self.dram_sector = rates.dram_sector * (1.0 + memory.mixed * rates.dram_mix)
        self.trips: dict[int, float] = {}
        """How often an instruction is executed each time that a warp's way passes it; once where nothing is said."""
        self.taken: dict[tuple[type, tuple[str, int]], float] = {}
        """The part of the accesses on the ways that were made: others were switched off by a predicate."""
        self._costs: dict[tuple[tuple[int, ...], bool], Cost] = {}

    def count_trips(self, ways: Iterable[Segment], loops: Sequence[frozenset[int]]) -> None:
        """Learn how often loops run, from the bytes that warps moved at their lines and those that the ways say."""
        said: dict[tuple[type, tuple[str, int]], int] = defaultdict(int)
        for segment in ways:
            for index in segment.instructions:
                if (key := self._access(index)) is not None:
                    said[key] += 32 * sass.access_bytes(self.code.instructions[index].name)
        self.taken = {key: min(1.0, self.accesses.moved(*key) / bytes_) for key, bytes_ in said.items()}
        for loop in loops:
            keys = {key for index in loop if (key := self._access(index)) is not None}
            ratios = [self.accesses.moved(*key) / said[key] for key in keys if said.get(key)]
            if ratios and max(ratios) > 1.0:
                self.trips |= dict.fromkeys(loop, max(ratios))

    def _access(self, index: int) -> tuple[type, tuple[str, int]] | None:
        one = self.code.instructions[index]
        if _GLOBAL.match(one.name):
            return GlobalAccess, one.place
        return (SharedAccess, one.place) if re.match(r"(LDS|STS)\b", one.name) else None

    def of(self, segment: Segment, is_last: bool) -> Cost:
        """Return the cost of a segment; unless it is the last one it ends with an anchor, which has a cost of its own."""
        key = segment.instructions, is_last
        if key not in self._costs:
            self._costs[key] = self._of(segment, not is_last)
        return self._costs[key]

    def _of(self, segment: Segment, without_last: bool) -> Cost:
        now = 0.0
        ready = [0.0] * 6
        pipes: dict[str, float] = defaultdict(float)
        instructions = self.code.instructions
        indices = segment.instructions[:-1] if without_last else segment.instructions
        entered = (0.0, 1.0)
        for index in indices:
            one = instructions[index]
            trips = self.trips.get(index, 1.0)
            if trips != entered[1]:  # into a loop, or out of it
                now += (now - entered[0]) * (entered[1] - 1.0)
                entered = now, trips
            pipes["issue"] += trips
            taken = self.taken.get(access, 1.0) if (access := self._access(index)) is not None else 1.0
            for pipe, cycles in self._pipes(one):
                pipes[pipe] += cycles * trips * taken
            now = self._issued(one, now, ready)
        now += (now - entered[0]) * (entered[1] - 1.0)
        if without_last and segment.instructions:
            control = instructions[segment.instructions[-1]].control
            if control is not None:
                now = max([now, *(ready[board] for board in control.waits)])
        return Cost(max(now, 0.5), dict(pipes))

    def _issued(self, one: Instruction, now: float, ready: list[float]) -> float:
        """Return when the warp may issue what follows an instruction, by its control code."""
        control = one.control
        if control is None:
            return now + 4.0
        now = max([now, *(ready[board] for board in control.waits)])
        if control.writes is not None:
            ready[control.writes] = max(ready[control.writes], now + self._latency(one.name))
        if control.reads is not None:
            ready[control.reads] = max(ready[control.reads], now + 12.0)
        return now + max(1, control.stall)

    def _latency(self, name: str) -> float:
        if _LOADS.match(name):
            return self.rates.load_latency + self.memory.late * self.rates.dram_latency
        if name.startswith("LDTM"):
            return self.rates.tmem_latency
        return next((value for pattern, value in _LATENCY if pattern.match(name)), 20.0)

    def _pipes(self, one: Instruction) -> list[tuple[str, float]]:
        """Return the pipes that an instruction takes, with cycles of a sub-core; what the SM has once counts four times."""
        if (moved := _TENSOR_MEMORY.match(one.name)) is not None and self.rates.tmem_bytes:
            words = int(moved[1] or 1)
            return [("tmem", SUB_CORES * _WARP_WORD * words / self.rates.tmem_bytes)]
        for pattern, pipe, interval in _INTERVAL:
            if pattern.match(one.name):
                if pipe != "lsu":
                    return [(pipe, interval)]
                if _GLOBAL.match(one.name):
                    return [(pipe, interval), *self._memory(one)]
                return [(pipe, interval * self.accesses.factor(SharedAccess, one.place))]
        return []

    def _memory(self, one: Instruction) -> list[tuple[str, float]]:
        rates = self.rates
        factor = self.accesses.factor(GlobalAccess, one.place)
        sectors = sass.access_bytes(one.name) * factor
        is_scattered = factor > 1.5
        if _LOADS.match(one.name):
            cycles = sectors * (rates.load_line if is_scattered else rates.load_sector)
            return [
                ("l2 read", SUB_CORES * cycles),
                ("dram", SUB_CORES * sectors * self.dram_sector * self.memory.missed),
            ]
        cycles = sectors * (rates.partial_sector if is_scattered else rates.store_sector)
        return [
            ("l2 write", SUB_CORES * cycles),
            ("dram", SUB_CORES * sectors * self.dram_sector * self.memory.written),
        ]
