"""Reports about a kernel that is deadlocked or was stopped: which threads wait where, and for what."""

from __future__ import annotations

import dataclasses
import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from ....base_dsl.diagnostics import DSLUserCodeRuntimeError, Span
from ...lowering.sites import Site
from .device_group import causes
from .groups import DETAILS_BLOCK, DETAILS_HEADER, DETAILS_THREAD, EXITED, READY

_WGMMAS = "wgmma wait"
"""The message of sites where threads wait for WGMMAs."""
ALWAYS = ", always for phase "
"""In the message of sites in loops that wait for the same phase of an mbarrier every time."""
PLACES = 12
"""The most places that a report names."""


class DeadlockFault(DSLUserCodeRuntimeError):
    """Threads that wait for each other, or for something that never comes."""


class TimeoutFault(DSLUserCodeRuntimeError, TimeoutError):
    """A kernel that did not end in its time."""


@dataclasses.dataclass(frozen=True)
class Thread:
    """The state of a thread when the report was made."""

    block: tuple[int, int, int]
    number: int
    state: int
    site: int
    word: int
    """The eight bytes at the address it waits for."""


@dataclasses.dataclass(frozen=True)
class Group:
    """The blocks that were resident together."""

    threads: list[Thread]
    barriers: dict[tuple[int, int, int], list[tuple[int, int]]]
    """The threads of each block that have arrived at each barrier, and how many it expects (0: all)."""


def read(details: bytes) -> Group:
    """Read what native code recorded (`groups.py`)."""
    numbers = struct.unpack(f"<{len(details) // 4}i", details)
    _, blocks, per_block = numbers[:3]
    group = Group([], {})
    size = DETAILS_BLOCK + per_block * DETAILS_THREAD
    for rank in range(blocks):
        about = numbers[DETAILS_HEADER + rank * size :][:size]
        index = (about[0], about[1], about[2])
        group.barriers[index] = list(zip(about[3:DETAILS_BLOCK:2], about[4:DETAILS_BLOCK:2], strict=True))
        for thread in range(per_block):
            state, site, low, high = about[DETAILS_BLOCK + thread * DETAILS_THREAD :][:DETAILS_THREAD]
            word = (low & 0xFFFFFFFF) | (high & 0xFFFFFFFF) << 32
            group.threads.append(Thread(index, thread, state, site, word))
    return group


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers as ranges: `0-31, 64, 96-127`."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _who(threads: Sequence[Thread]) -> str:
    """Return threads by block, as ranges; blocks with the same threads are named together."""
    by_block: dict[tuple[int, int, int], list[int]] = {}
    for thread in threads:
        by_block.setdefault(thread.block, []).append(thread.number)
    same: dict[str, list[tuple[int, int, int]]] = {}
    for block, numbers in by_block.items():
        same.setdefault(ranges(numbers), []).append(block)
    parts: list[str] = []
    for numbers, blocks in same.items():
        where = f"block {blocks[0]}" if len(blocks) == 1 else f"{len(blocks)} blocks from {blocks[0]} to {blocks[-1]}"
        warps = sorted({n // 32 for n in by_block[blocks[0]]})
        parts.append(
            f"thread{'s' * (len(by_block[blocks[0]]) > 1)} {numbers} (warp{'s' * (len(warps) > 1)} {ranges(warps)}) "
            f"of {where}"
        )
    return "; ".join(parts)


def _article(what: str) -> str:
    return f"an {what}" if what.startswith(("a", "e", "mb", "mma")) else f"a {what}"


def _missing(site: Site, threads: Sequence[Thread], group: Group) -> str:
    """Return what the threads at a place wait for."""
    if site.message.startswith("mbarrier"):
        states: list[str] = []
        for word in sorted({t.word for t in threads})[:2]:
            arrivals = word & 0xFFFFF
            expected = word >> 20 & 0xFFFFF
            missing = word >> 40 & 0x7FFFFF
            parity = word >> 63
            missing -= (missing >> 22) << 23
            if arrivals > expected:  # they count down past zero
                bytes_ = f" and misses {missing} bytes" if missing else ""
                surplus = (1 << 20) - arrivals
                plural = "s" * (expected != 1)
                states.append(f"phase {parity} got {surplus} more than its {expected} arrival{plural}{bytes_}")
                continue
            what = [f"{arrivals} arrival{'s' * (arrivals != 1)}"] if arrivals else []
            what += [f"{missing} bytes"] if missing else []
            states.append(f"phase {parity} misses {' and '.join(what) or 'nothing'}")
        return f" ({'; '.join(states)})"
    if site.message == _WGMMAS:
        # the second word: warps of the group that have not come to its next MMA
        warps = {t.number // 128 * 4 + w for t in threads for w in range(4) if t.word >> 32 + w & 1}
        return f" (wgmma is not executed by the whole warpgroup: warp{'s' * (len(warps) > 1)} {ranges(warps)} did not come)"
    if site.kind == "registers":
        if site.message == "setmaxnreg":
            return " (it is not executed by the whole warpgroup)"
        registers = threads[0].word >> 32  # as in `BlockRecord.register_eighths`
        return f" (the block needs {8 * (registers >> 16)} registers, its pool has {8 * (registers & 0xFFFF)})"
    if site.message == "barrier":
        counts = {
            (arrived, expected)
            for block in {t.block for t in threads}
            for arrived, expected in group.barriers[block]
            if arrived or expected
        }
        texts = [f"{arrived} of {expected or 'all'} threads are there" for arrived, expected in sorted(counts)]
        return f" ({'; '.join(texts[:2])})" if texts else ""
    return ""


def _lines(group: Group, sites: Sequence[Site]) -> list[tuple[Site | None, str]]:
    """Return a line for each place, those with threads that wait first."""
    places: dict[tuple[int, int], list[Thread]] = {}
    for thread in group.threads:
        if thread.state != EXITED:
            places.setdefault((thread.site, thread.state), []).append(thread)
    lines: list[tuple[Site | None, str]] = []

    def rank(place: tuple[tuple[int, int], list[Thread]]) -> tuple[bool, int, int]:
        """Return a key that sorts causes first: threads that wait for registers or their warpgroup keep others
        waiting."""
        (number, state), threads = place
        site = sites[number] if 0 <= number < len(sites) else None
        cause = 2 if site is None else 0 if site.kind == "registers" else 1 if site.message == _WGMMAS else 2
        return state == READY, cause, -len(threads)

    for (number, state), threads in sorted(places.items(), key=rank):
        site = sites[number] if 0 <= number < len(sites) else None
        verb = "wait" if len(threads) > 1 else "waits"
        if site is None:
            lines.append((None, f"{_who(threads)}: not yet at a place where threads wait"))
        elif state == READY:
            lines.append((site, f"{_who(threads)}: last seen at {_article(site.message)}"))
        else:
            lines.append((site, f"{_who(threads)} {verb} at {_article(site.message)}{_missing(site, threads, group)}"))
    exited = [t for t in group.threads if t.state == EXITED]
    if exited:
        lines.append((None, f"{_who(exited)}: exited"))
    return lines


def _notes(lines: Sequence[tuple[Site | None, str]]) -> tuple[tuple[Span, str], ...]:
    return tuple((site.span, text) for site, text in lines[:PLACES] if site is not None and site.span is not None)


def _rest(lines: Sequence[tuple[Site | None, str]]) -> str:
    """Return the lines without a place in the source."""
    return "".join(f"\n  {text}" for site, text in lines if site is None or site.span is None)


def deadlock(sites: Sequence[Site], details: bytes) -> DeadlockFault:
    """Return the fault of a group in which no thread can make progress."""
    lines = _lines(read(details), sites)
    site, text = lines[0]
    assert site is not None
    always = any(site is not None and ALWAYS in site.message for site, _ in lines)
    alternate = "phases alternate: the wait in step k of a loop names phase k % 2; "
    return DeadlockFault(
        f"deadlock in kernel {site.kernel}: {text}, and no thread can go on{_rest(lines[1:])}",
        hint=f"{alternate if always else ''}every thread that a barrier counts must reach it; a wait needs the arrivals or bytes it waits for, at an initialized mbarrier",
        span=site.span,
        calls=site.calls,
        notes=_notes(lines[1:]),
    )


def across_devices(site: Site, sites: Sequence[Site], details: bytes) -> DeadlockFault:
    """Return the fault of a launch that waits for other devices, or hosts, which wait as well."""
    lines = _lines(read(details), sites) if details else []
    first = next((s for s, _ in lines if s is not None), site)
    return DeadlockFault(
        f"deadlock of several devices: {causes.pop(threading.get_ident(), '')}{_rest(lines)}",
        hint="a flag that one rank waits for must be raised by another one, in memory that the first one reads; every rank "
        "launches the kernels that wait for each other. With --sanitize this says who wrote the word last",
        span=first.span,
        calls=first.calls,
        notes=_notes(lines),
    )


def timeout(
    site: Site, sites: Sequence[Site], details: bytes, alone: tuple[Any, Any] | None = None, steps: bool = False
) -> TimeoutFault:
    """Return the fault of a launch that exceeded its time or number of steps.

    `alone` are the block and thread that ran, if no thread waits.
    """
    lines = _lines(read(details), sites) if details else []
    first = next((s for s, _ in lines if s is not None), site)
    if alone is not None and not lines:
        lines = [(site, f"thread {alone[1]} of block {alone[0]}: last seen at {_article(site.message)}")]
    what, limit = (
        ("in its number of steps", "KILN_CPU_MAX_STEPS is the number of steps that a launch may take")
        if steps
        else ("in its time", "KILN_CPU_TIMEOUT is the time in seconds that a launch has")
    )
    return TimeoutFault(
        f"kernel {first.kernel} did not end {what} and was stopped{_rest(lines)}",
        hint=limit,
        span=first.span,
        calls=first.calls,
        notes=_notes(lines),
    )
