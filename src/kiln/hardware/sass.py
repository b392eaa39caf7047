"""Reads machine code as nvdisasm prints it: instructions with their source lines and classes, and loops."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from . import source_paths

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

CLASSES = {
    "tensor": "MMA",
    "fp": "arithmetic of floating-point numbers and conversions",
    "int": "arithmetic of integers, bits, predicates, moves between registers",
    "lanes": "exchange between the threads of a warp",
    "global": "loads, stores and atomics of global memory by threads",
    "shared": "loads, stores and atomics of shared memory",
    "local": "local memory: spills, and arrays indexed by what is not known",
    "constant": "loads of constants: arguments of the kernel",
    "copy": "asynchronous copies to and from shared memory",
    "tmem": "tensor memory",
    "barrier": "barriers, fences and waits",
    "control": "branches, calls and what is no work",
    "uniform": "done once for a warp",
}
"""Classes of instructions, in the order of tables."""

_PREFIXES = (
    # The first pattern that matches the beginning of a name counts.
    ("tensor", r"[HQIBDO]G?MMA\b|UTC[A-Z0-9]*MMA"),
    ("local", r"LDL|STL"),
    ("copy", r"LDGSTS|UTMA(?!CMD)|UBLK"),
    (
        "barrier",
        r"BAR\b|B2R|SYNCS|U?DEPBAR|LDGDEPBAR|ARRIVES|WARPSYNC|MEMBAR|FENCE|ERRBAR|CGAERRBAR|UCGABAR|WARPGROUP"
        r"|UTCBAR|UTMACMDFLUSH|ACQBULK|PREEXIT|NANOSLEEP|CCTL",
    ),
    ("tmem", r"LDTM|STTM|UTCCP|UTCSHIFT|UTCATOMSWS|LDT\b|STT\b"),
    ("global", r"LDG|STG|RED|ATOMG|ATOM\b|LD\b|ST\b|SULD|SUST|TEX|TLD"),
    ("shared", r"LDS|STS|ATOMS|STAS"),
    ("lanes", r"SHFL|VOTE\b|MATCH|REDUX|MOVM"),
    ("control", r"BRA|BRX|BRXU|JMP|JMX|CALL|RET|EXIT|BSSY|BSYNC|BREAK|BMOV|YIELD|KILL|NOP|BPT|RPCMOV|USETMAXREG|ELECT"),
    ("constant", r"LDC|ULDC|LDCU"),
    ("uniform", r"U(?!SETMAXREG)|R2UR|S2UR|VOTEU|CREDUX"),
    ("fp", r"F|H|D(?=ADD|FMA|MUL|SETP|MNMX)|MUFU|I2F|RRO"),
)
_CLASSES = tuple((name, re.compile(pattern)) for name, pattern in _PREFIXES)
_INTEGERS = re.compile(r"FLO\b|FNS\b")


def class_of(name: str) -> str:
    """Return the class of an instruction by its name, such as "LDG.E.128"."""
    if _INTEGERS.match(name):
        return "int"
    return next((kind for kind, pattern in _CLASSES if pattern.match(name)), "int")


class Control(NamedTuple):
    """What ptxas tells the scheduler of a warp with an instruction, from sm_70 on.

    The fields are bits 105 to 121 of its 128, as published by Jia et al., "Dissecting the NVIDIA Volta GPU architecture" (2018).
    """

    stall: int
    """Cycles until the warp may issue the next instruction."""
    yields: bool
    """Whether another warp is preferred next."""
    writes: int | None
    """The scoreboard that counts down when the result is written."""
    reads: int | None
    """The scoreboard that counts down when the operands were read."""
    waits: tuple[int, ...]
    """The scoreboards that must be zero before it issues."""


def control_of(high: int) -> Control:
    """Return the control code in the upper 64 bits of an instruction."""
    code = high >> 41
    writes = (code >> 5) & 7
    reads = (code >> 8) & 7
    boards = tuple(board for board in range(6) if code >> (11 + board) & 1)
    return Control(code & 15, not code >> 4 & 1, None if writes == 7 else writes, None if reads == 7 else reads, boards)


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction; `place` is a file and a line, ("", 0) if unknown."""

    address: int
    name: str
    operands: str
    conditional: bool = False
    """Whether it has a predicate; a branch then may not be taken."""
    place: tuple[str, int] = ("", 0)
    control: Control | None = None
    """What nvdisasm tells with its option `-hex`."""

    @property
    def kind(self) -> str:
        """One of `CLASSES`."""
        return class_of(self.name)


@dataclasses.dataclass(frozen=True)
class Loop:
    """The instructions on the paths from a header back to it, with those of inner loops."""

    instructions: tuple[Instruction, ...]
    place: tuple[str, int]
    """The place of its back edge, which is the loop's own line."""
    depth: int = 0
    """The number of loops that enclose it."""

    @property
    def mmas(self) -> int:
        """The number of its MMA instructions."""
        return sum(each.kind == "tensor" for each in self.instructions)

    @property
    def only_waits(self) -> bool:
        """Whether it only polls a barrier."""
        works = any(each.kind in ("tensor", "global", "local", "copy", "tmem") for each in self.instructions)
        return not works and any(each.name.startswith(("SYNCS", "NANOSLEEP")) for each in self.instructions)


_KERNEL = re.compile(r"^\.text\.(\S+):")
_LINE = re.compile(r'^\s*//## File "([^"]*)", line (\d+)')
_LABEL = re.compile(r"^(\.L_\w+):")
_CODE = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:\{\s*)?(@!?U?P\w+\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_UPPER = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/$")
"""The line with the upper half of an instruction."""
_ENDS = ("BRA", "EXIT", "RET", "BRX", "JMP", "JMX")
"""Instructions that may end a basic block."""
_TARGET = re.compile(r"`\((\.L_\w+)\)")


def kernels(text: str) -> dict[str, Code]:
    """Return the code of each kernel of a module, by name."""
    codes: dict[str, Code] = {}
    code: Code | None = None
    place = ("", 0)
    for line in text.splitlines():
        if start := _KERNEL.match(line):
            code = codes[start.group(1)] = Code([], {})
            place = ("", 0)
        elif code is None:
            continue
        elif at := _LINE.match(line):
            place = (source_paths.decoded(at.group(1)), int(at.group(2)))
        elif label := _LABEL.match(line):
            code.labels[label.group(1)] = len(code.instructions)
        elif one := _CODE.match(line):
            address, predicate, name, operands = one.groups()
            # BRA.U UP0, `(...) has its predicate among the operands
            conditional = bool(predicate) or (name.startswith("BRA") and not operands.startswith("`"))
            code.instructions.append(Instruction(int(address, 16), name, operands, conditional, place))
        elif (upper := _UPPER.match(line)) and code.instructions:
            one = dataclasses.replace(code.instructions[-1], control=control_of(int(upper.group(1), 16)))
            code.instructions[-1] = one
    for code in codes.values():
        code.drop_padding()
        code.place_first_rounds()
    return codes


@dataclasses.dataclass
class Code:
    """The instructions of a kernel, and the indices of its labels."""

    instructions: list[Instruction]
    labels: dict[str, int]

    def drop_padding(self) -> None:
        """Drop the unreachable code at the end: a branch to itself, and NOPs."""
        while self.instructions and (self.instructions[-1].name == "NOP" or self._is_trap(len(self.instructions) - 1)):
            del self.instructions[-1]

    def place_first_rounds(self) -> None:
        """Give the first poll of a wait, which ptxas puts before the loop without a line, the line of the others."""
        for index in range(len(self.instructions) - 1):
            asks = self.instructions[index]
            target = self.target(index + 1)
            if "TRYWAIT" in asks.name and target is not None and target < len(self.instructions):
                again = self.instructions[target]
                if target != index and (again.name, again.operands) == (asks.name, asks.operands):
                    for one in (index, index + 1):
                        self.instructions[one] = dataclasses.replace(self.instructions[one], place=again.place)

    def _is_trap(self, index: int) -> bool:
        return self.target(index) == index

    def target(self, index: int) -> int | None:
        one = self.instructions[index]
        named = _TARGET.search(one.operands) if one.name.startswith("BRA") else None
        return self.labels.get(named.group(1)) if named else None

    def mix(self) -> dict[str, int]:
        """Count the instructions of each class; classes without any are left out."""
        return mix(self.instructions)

    def by_line(self) -> dict[tuple[str, int], list[Instruction]]:
        """Return the instructions of each source line."""
        by_place: dict[tuple[str, int], list[Instruction]] = {}
        for one in self.instructions:
            by_place.setdefault(one.place, []).append(one)
        return by_place

    def loops(self) -> list[Loop]:
        """Return all loops in the order of their code, outer ones first.

        A branch back counts only if its target dominates it: waits that stand behind the code jump back, too.
        """
        bodies = self.loop_bodies()
        loops_: list[Loop] = []
        for back, body in bodies:
            inside = sum(set(body) < set(other) for _, other in bodies)
            code = tuple(self.instructions[place] for place in body)
            loops_.append(Loop(code, self.instructions[back].place, inside))
        return loops_

    def loop_bodies(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return the indices of the instructions of all loops, with that of the last branch back, in the order of `loops`."""
        starts, following = self._blocks()
        above = _dominators(following)
        bodies: dict[int, set[int]] = {}
        for block, nexts in enumerate(following):
            for header in nexts:
                if header in above[block]:
                    bodies.setdefault(header, {header}).update(_reaching(block, header, following))
        ends = [*starts[1:], len(self.instructions)]
        loops_: list[tuple[int, tuple[int, ...]]] = []
        for header, body in sorted(bodies.items()):
            last = max((block for block in body if header in following[block]), default=header)
            code = tuple(place for block in sorted(body) for place in range(starts[block], ends[block]))
            loops_.append((ends[last] - 1, code))
        return loops_

    def _blocks(self) -> tuple[list[int], list[list[int]]]:
        """Return where basic blocks begin, and the successors of each."""
        count = len(self.instructions)
        branches = [index for index in range(count) if self.instructions[index].name.startswith(_ENDS)]
        begins = {0, *self.labels.values(), *(index + 1 for index in branches)}
        starts = sorted(place for place in begins if place < count)
        number = {start: block for block, start in enumerate(starts)}
        following: list[list[int]] = []
        for block, end in enumerate([*starts[1:], count]):
            last = self.instructions[end - 1]
            nexts = []
            target = self.target(end - 1)
            if target is not None and target in number:
                nexts.append(number[target])
            if block + 1 < len(starts) and (last.conditional or not last.name.startswith(_ENDS)):
                nexts.append(block + 1)
            following.append(nexts)
        return starts, following

    def widths(self) -> dict[str, int]:
        """Return how many instructions access global memory with how many bytes of a thread, widest first."""
        accesses = [one for one in self.instructions if re.match(r"(LDG|STG|LDGSTS)\b", one.name)]
        counted = Counter(access_bytes(one.name) for one in accesses)
        return {str(size): counted[size] for size in sorted(counted, reverse=True)}

    def bytes_loaded_at_a_time(self) -> int:
        """Return the most bytes of global memory that a thread has in flight before it uses one of them."""
        pending: dict[int, tuple[int, int]] = {}
        most = 0
        for order, one in enumerate(self.instructions):
            used = set(registers(one.operands))
            loads = one.name.startswith("LDG") and not one.name.startswith(("LDGSTS", "LDGDEPBAR"))
            target = next(iter(registers(one.operands)), None) if loads else None
            # Loads complete in order: waiting for one means waiting for all before it.
            waited = max((pending[register][0] for register in used - {target} if register in pending), default=-1)
            pending = {register: load for register, load in pending.items() if load[0] > waited}
            if target is not None:
                size = access_bytes(one.name)
                for register in range(target, target + max(1, size // 4)):
                    pending[register] = (order, size)
            most = max(most, sum(size for _, size in {load[0]: load for load in pending.values()}.values()))
        return most


def _dominators(following: Sequence[Sequence[int]]) -> list[set[int]]:
    """Return the dominators of each block, itself included. A block without predecessors is an entry."""
    before: list[list[int]] = [[] for _ in following]
    for block, nexts in enumerate(following):
        for each in nexts:
            before[each].append(block)
    every = set(range(len(following)))
    above = [every if block and before[block] else {block} for block in range(len(following))]
    changed = True
    while changed:
        changed = False
        for block in range(1, len(following)):
            dominators = {block}.union(
                set.intersection(*(above[each] for each in before[block])) if before[block] else ()
            )
            changed = changed or dominators != above[block]
            above[block] = dominators
    return above


def _reaching(block: int, header: int, following: Sequence[Sequence[int]]) -> set[int]:
    """Return the blocks that reach a block without passing the header."""
    reached = {header}
    waiting = [block]
    while waiting:
        if (one := waiting.pop()) not in reached:
            reached.add(one)
            waiting += [each for each, nexts in enumerate(following) if one in nexts]
    return reached


def mix(instructions: Sequence[Instruction]) -> dict[str, int]:
    """Count the instructions of each class."""
    counted = Counter(one.kind for one in instructions)
    return {name: counted[name] for name in CLASSES if counted[name]}


def access_bytes(name: str) -> int:
    """Return the bytes that one thread moves by a load or store of this name."""
    for part in name.split(".")[1:]:
        if part in ("64", "128", "256"):
            return int(part) // 8
        if part in ("U8", "S8"):
            return 1
        if part in ("U16", "S16"):
            return 2
    return 4


def registers(operands: str) -> Iterator[int]:
    """Yield the numbers of the registers in operands, in order; both of a pair."""
    for number, pair in re.findall(r"\bR(\d+)(\.64)?\b", operands):
        yield int(number)
        if pair:
            yield int(number) + 1
