"""Finds patterns in machine code that cost time: waits for all MMAs, narrow accesses, precise divisions, operands loaded singly."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...hardware import sass

if TYPE_CHECKING:
    from ...hardware.sass import Code, Instruction

WGMMA_WAIT = "wgmma-wait"
COPY_WAIT = "copy-wait"
DIVISION = "division"
ROOT = "root"
NEIGHBOURS = "neighbours"
NARROW_STORE = "narrow-store"
SINGLE_OPERANDS = "single-operands"
THROUGH_REGISTERS = "through-registers"
SPILL = "spill"

_SLOW_DIVISION = re.compile(r"__cuda_sm\w*_(div|rcp|dblrcp|dsqrt|sqrt|drsqrt)_\w+")
_ADDRESS = re.compile(r"\[(?:desc\[\w+\]\[)?(R\w+(?:\.\w+)*)(?:\+(-?0x[0-9a-f]+))?\]?")
_MOST_ARITHMETIC = 2
"""Floating-point instructions per WGMMA up to which a loop does nothing but multiply."""


@dataclasses.dataclass(frozen=True)
class Pattern:
    """A pattern at a line of a program, and the instructions that make it."""

    name: str
    file: str
    line: int
    count: int
    bytes: int = 0
    """Of accesses: the bytes that a thread moves at a time."""
    stores: bool = False


def patterns(code: Code) -> tuple[Pattern, ...]:
    """Return the patterns of a kernel, each line once."""
    counted: Counter[tuple[str, tuple[str, int], int, bool]] = Counter()
    for name, one, size, stores in _each(code):
        counted[name, one.place, size, stores] += 1
    ordered = sorted(counted.items(), key=lambda item: (item[0][0], item[0][1], item[0][2]))
    return tuple(
        Pattern(name, *place, count, size, stores) for (name, place, size, stores), count in ordered if place[0]
    )


_Hit = tuple[str, "Instruction", int, bool]


def _each(code: Code) -> Iterator[_Hit]:
    loops = [loop.instructions for loop in code.loops() if loop.mmas and not loop.only_waits]
    innermost = [body for body in loops if not any(set(other) < set(body) for other in loops)]
    yield from _wgmma_waits(code.instructions, loops, innermost)
    for body in innermost:
        yield from _loop(body)
    for body in code.loops():
        yield from _copy_waits(body.instructions)
    for one in code.instructions:
        if slow := _SLOW_DIVISION.search(one.operands) if one.name.startswith("CALL") else None:
            yield ROOT if "sqrt" in slow.group(1) else DIVISION, one, 0, False
        if one.name.startswith("STG") and sass.access_bytes(one.name) <= 4:
            yield NARROW_STORE, one, sass.access_bytes(one.name), True
        if one.name.startswith(("STL", "LDL")):
            yield SPILL, one, sass.access_bytes(one.name), one.name.startswith("STL")
    yield from _neighbours(code.instructions)


def _wgmma_waits(
    instructions: Sequence[Instruction],
    loops: Sequence[Sequence[Instruction]],
    innermost: Sequence[Sequence[Instruction]],
) -> Iterator[_Hit]:
    """Yield the waits for all WGMMAs after which the same warps issue others without having used the accumulators."""
    multiplies = [at for at, one in enumerate(instructions) if _is_wgmma(one)]
    for at, one in enumerate(instructions):
        if not (one.name.startswith("WARPGROUP.DEPBAR") and one.operands.rstrip().endswith("0x0")):
            continue
        around = min((body for body in loops if one in body), key=len, default=None)
        if around is not None and around not in innermost:
            continue  # it ends a tile of a persistent kernel
        if around is None:  # a loop that is unrolled: up to the next MMA
            after = next((place for place in multiplies if place > at), None)
            before = next((place for place in reversed(multiplies) if place < at), None)
            if after is None or before is None:
                continue
            around = instructions[before:after]
        arithmetic = sum(each.kind == "fp" for each in around)
        if arithmetic <= _MOST_ARITHMETIC * max(1, sum(map(_is_wgmma, around))):
            yield WGMMA_WAIT, one, 0, False


def _is_wgmma(one: Instruction) -> bool:
    return bool(re.match(r"[HQIB]GMMA\b", one.name))


def _copy_waits(body: Sequence[Instruction]) -> Iterator[_Hit]:
    """Yield the waits of a loop for cp.async copies that were committed just before, with no work between."""
    if not any(one.name.startswith("LDGSTS") for one in body):
        return
    for at, one in enumerate(body):
        if not (one.name.startswith("DEPBAR") and one.operands.rstrip().endswith("0x0")):
            continue
        for before in (*reversed(body[:at]), *reversed(body[at:])):
            if before.kind in ("tensor", "shared") or before.name.startswith("FFMA"):
                break
            if before.name.startswith("LDGDEPBAR"):
                yield COPY_WAIT, one, 0, False
                break


def _loop(body: Sequence[Instruction]) -> Iterator[_Hit]:
    """Yield the loads of a loop with mma.sync that go through registers, or bring operands one by one."""
    if not any(one.name.startswith(("HMMA", "IMMA", "QMMA", "DMMA")) for one in body):
        return
    mmas = sum(one.kind == "tensor" for one in body)
    single = [one for one in body if one.name.startswith("LDS") and not one.name.startswith("LDSM")]
    if len(single) > max(mmas, sum(one.name.startswith("LDSM") for one in body)):
        for one in single:
            yield SINGLE_OPERANDS, one, sass.access_bytes(one.name), False
    if any(one.name.startswith("STS") for one in body):
        for one in body:
            if one.name.startswith("LDG") and not one.name.startswith(("LDGSTS", "LDGDEPBAR")):
                yield THROUGH_REGISTERS, one, sass.access_bytes(one.name), False


def _neighbours(instructions: Iterable[Instruction]) -> Iterator[_Hit]:
    """Yield the accesses of global memory that could be one: the same line, type and register, one after the other."""
    by_register: dict[tuple[object, ...], dict[int, Instruction]] = defaultdict(dict)
    for one in instructions:
        at = _ADDRESS.search(one.operands) if re.match(r"(LDG|STG)\b", one.name) else None
        size = sass.access_bytes(one.name)
        if at is not None and size < 16:
            by_register[one.place, one.name, at.group(1)][int(at.group(2) or "0", 16)] = one
    for (_, name, _), accesses in by_register.items():
        size = sass.access_bytes(str(name))
        for offset, one in accesses.items():
            if offset + size in accesses or offset - size in accesses:
                yield NEIGHBOURS, one, size, one.name.startswith("STG")
