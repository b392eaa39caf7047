"""Requests to trace kernels: what compilers mark in them, and where the marks go.

While a request is open, code is compiled for it and for nobody else: `target_key()` has the request's number, and the
disk cache is not used. Whoever opens one also provides memory (`cute/kernel_trace.py`). A target makes a `TracedKernel`
of each kernel that it compiles, and code that fills its region of memory:

    region  REGION bytes: on the CPU target, a counter of marks (u64), which is its clock; then the warps of each chosen
            CTA, `warp_bytes` each
    warp    HEADER bytes: `Header`; then chunks of `chunk_bytes`
    chunk   entries of ENTRY bytes: the low word of the clock, and a code (`code_of`); one whose code is 0 ends the chunk
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import TYPE_CHECKING

from . import sanitizing
from .diagnostics import DSLRuntimeError

if TYPE_CHECKING:
    from .diagnostics import Span

LEVELS = ("ranges", "waits", "all")
"""What is marked: what the program marks; besides, what threads wait for; besides, arrivals, copies and MMAs."""
REGION = 64
HEADER = 64
ENTRY = 8
OPERAND_BITS = 18
"""The low bits of a code: an address in shared memory, or the number of a barrier. A site's number is above them."""
SITES = 1 << (32 - OPERAND_BITS)
"""Sites that a kernel can have; 0 is none."""
UNFINISHED = 0xFFFF_FFFF
"""The bytes in the header of a warp that has begun and not ended."""


class Header(ctypes.LittleEndianStructure):
    """What is known of a warp; `begin` and `end` are clocks of its SM, `began` and `ended` the GPU's, in nanoseconds."""

    _fields_ = (
        ("begin", ctypes.c_uint64),
        ("began", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
        ("ended", ctypes.c_uint64),
        ("sm", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),  # of its chunks
        ("lost", ctypes.c_uint32),  # bytes of entries for which there was no room
        ("grid", ctypes.c_uint32 * 3),
        ("launches", ctypes.c_uint32),
        ("block", ctypes.c_uint32),
    )


assert ctypes.sizeof(Header) == HEADER


@dataclasses.dataclass(frozen=True)
class Site:
    """A place that makes entries, and what they say."""

    name: str
    kind: str
    """A kind of events of `measure.trace_format`."""
    phase: str
    """`begin` or `end` of an event, or a `moment`; `payload`: the entry's clock is a word of the event before."""
    span: Span | None = None
    operand: str = ""
    """What the low bits of the code are: `mbarrier` or `barrier`; of a payload, its type."""
    engine: str = ""
    """The engine that carries the operation out; of a wait, the engine that it waits for."""
    count: int = 1
    """How many operations the event stands for."""
    left: int | None = None
    """How many groups of asynchronous operations may still be under way after a wait for an engine."""
    token: bool = False
    """Whether the range may end after others that began later."""


@dataclasses.dataclass
class Layout:
    """Where the entries of a kernel go."""

    address: int
    """The region's address."""
    warps: int
    """Warps of a CTA."""
    warp_bytes: int
    chunk_bytes: int
    """Bytes that are moved to the region at a time."""
    in_shared_memory: bool
    """Whether entries are collected in shared memory first."""
    entries: int = 0
    """Entries in shared memory after which they are moved. A chunk has room for those that may follow before."""
    shared_bytes: int = 0
    """Bytes of shared memory of the CTA that this takes."""


@dataclasses.dataclass
class TracedKernel:
    """A kernel that was compiled for a request."""

    name: str
    layout: Layout
    blocks: tuple[int, ...]
    """The numbers of the CTAs whose warps are recorded."""
    sites: list[Site] = dataclasses.field(default_factory=list)
    """By number, the first unused."""
    block: tuple[int, int, int] = (1, 1, 1)
    cluster: tuple[int, int, int] = (1, 1, 1)
    arch: str = ""
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Request:
    """What to trace, how much of it, and the kernels that were compiled for it."""

    level: str = "waits"
    """One of `LEVELS`."""
    blocks: tuple[int, ...] = tuple(range(8))
    marks: int = 4096
    """The most entries of a warp; more are counted, not kept."""
    lane: int | None = None
    """The lane of each warp that makes entries. None: the one that the hardware elects."""
    shared_bytes: int = 2048
    """The most bytes of shared memory for a warp's entries."""
    kernels: list[TracedKernel] = dataclasses.field(default_factory=list)
    number: int = 0

    def allocate(self, size: int) -> int:
        """Return the address of cleared memory that kernels can write."""
        raise NotImplementedError

    def check(self) -> None:
        """Refuse what cannot be traced."""
        if self.level not in LEVELS:
            raise DSLRuntimeError(f"a trace of {self.level!r}: choose {', '.join(LEVELS)}")
        if not self.blocks or min(self.blocks) < 0 or len(set(self.blocks)) < len(self.blocks):
            raise DSLRuntimeError(f"a trace of the CTAs {list(self.blocks)}: name some, each once, from 0 on")
        if self.marks < 8:
            raise DSLRuntimeError(f"a trace of {self.marks} marks a warp: at least 8")
        if self.lane is not None and not 0 <= self.lane < 32:
            raise DSLRuntimeError(f"a trace of lane {self.lane}: a warp has the lanes 0 to 31")


_open: Request | None = None
_numbers = 0


def request() -> Request | None:
    """Return the request that is open."""
    return _open


def key() -> str:
    """Return what tells code for the open request from other code."""
    return "" if _open is None else f"trace{_open.number}"


def open_(opened: Request) -> None:
    """Open a request: what is compiled from now on is compiled for it."""
    global _open, _numbers
    opened.check()
    if _open is not None:
        raise DSLRuntimeError("a trace is open already")
    _numbers += 1
    opened.number = _numbers
    _open = opened
    sanitizing.open_requests.add(1)  # calls look at the target's key then


def close() -> None:
    """Close the request."""
    global _open
    _open = None
    sanitizing.open_requests.add(-1)


def code_of(site: int) -> int:
    """Return the code of a site's entries, without an operand."""
    return site << OPERAND_BITS
