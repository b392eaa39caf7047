"""The rules in words: what happened, what is missing, and what to say at the other place."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ....dialects import cute
from ..runtime import engine_table
from . import state as native

if TYPE_CHECKING:
    from .program_memory import SanitizedSite

Triple = tuple[int, int, int]


class Words(NamedTuple):
    """The texts of a finding."""

    what: str
    """What happened."""
    hint: str
    """What to do about it."""
    note: str = ""
    """What to say at the other place."""


@dataclasses.dataclass(frozen=True)
class Case:
    """What is known about a finding. `other_*` is the other side, where there is one."""

    rule: str
    extra: tuple[int, int]
    """Numbers that the rule is about."""
    site: SanitizedSite
    other_site: SanitizedSite
    me: str
    other: str
    block: Triple
    thread: Triple
    other_block: Triple
    other_thread: Triple
    engine: int
    """Whose access the other side's is: a thread's (0), or that of one of its `state.ENGINES`."""
    before: bool
    """The other side is of the launch before."""
    space: str
    tensor: str
    memory: str
    """The memory it is about: tensor and coordinate."""
    record: native.Finding
    reach: int = 0
    """The bytes from the start of the allocation that a tensor in it reaches, if that is known."""

    @property
    def size(self) -> float:
        """Bytes of an element."""
        return self.site.element_bits / 8 or 1

    @property
    def action(self) -> str:
        """What this side does to the memory."""
        return _phrase(self.site.what, self.memory)

    @property
    def mask(self) -> str:
        return f"{self.extra[0] & 0xFFFFFFFF:#010x}"

    @property
    def peer(self) -> str:
        """The block of the other side."""
        return triple(self.other_block)

    @property
    def signed(self) -> int:
        """The second number, which is signed."""
        return self.extra[1] - (self.extra[1] >> 63 << 64)


def triple(value: Triple) -> str:
    """Return (5, 0, 0) as 5, and so on: what is zero at the end is left out."""
    if not value[1] and not value[2]:
        return str(value[0])
    return str(value if value[2] else value[:2])


def explain(case: Case) -> Words:
    """Return a finding in words."""
    rule = _RULES[case.rule]
    return Words(*(text.format(c=case) for text in rule)) if isinstance(rule, Words) else rule(case)


# --- races -----------------------------------------------------------------------------------------------------------

_VERBS = {
    "read": "reads",
    "write": "writes",
    "atomic update": "updates (atomically)",
    "atomic read": "reads (atomically)",
    "atomic write": "writes (atomically)",
    "initialization of an mbarrier": "initializes an mbarrier in",
    "arrival at an mbarrier": "arrives at the mbarrier in",
    "wait for an mbarrier": "waits for the mbarrier in",
    "asynchronous copy to": "copies (asynchronously) to",
    "asynchronous copy from": "copies (asynchronously) from",
    "bulk copy to": "copies (in bulk) to",
    "asynchronous store to": "stores (asynchronously) to",
    "bulk copy from": "copies (in bulk) from",
    "wgmma": "executes a wgmma that reads",
    "answer to": "requests an answer of launch control to",
    "address of tensor memory": "writes the address of tensor memory to",
    "tcgen05.ld": "loads",
    "tcgen05.st": "stores to",
    "tcgen05.cp": "copies (tcgen05.cp) to",
    "source of a tcgen05.cp": "copies (tcgen05.cp) from",
    "tcgen05.shift": "shifts",
    "tcgen05.dealloc": "frees",
    "D of a tcgen05.mma": "issues a tcgen05.mma whose D is",
    "A of a tcgen05.mma": "issues a tcgen05.mma whose A is",
    "B of a tcgen05.mma": "issues a tcgen05.mma whose B is",
    "scales of a tcgen05.mma": "issues a tcgen05.mma whose scale factors are",
    "metadata of a tcgen05.mma": "issues a tcgen05.mma.sp whose metadata are",
    "box to": "loads a box to",
    "box from": "stores a box from",
    "box of": "loads a box of",
    "box in": "stores a box in",
    "box into": "combines a box with",
    "tensor map": "copies by the tensor map in",
    "edit of a tensor map": "edits the tensor map in",
    "non-coherent load": "loads (ld.global.nc)",
}
_NONCOHERENT = "non-coherent load"
_OF_BOXES = ("box to", "box from")
"""Accesses of boxes to shared memory."""
_DONE = {"read-write": "read", "write-read": "wrote", "write-write": "wrote"}


def _phrase(what: str, memory: str) -> str:
    return f"{_VERBS.get(what, what)} {memory}"


def _race(case: Case) -> Words:
    same = case.block == case.other_block and case.thread == case.other_thread and not case.before
    other = case.other
    if same and case.engine == engine_table.BULK_LOAD:  # known by its mbarrier, of which `other` is the last user
        other = "another bulk copy that the same mbarrier counts"
    elif same and case.engine:
        other = other.replace(f"of thread {triple(case.thread)}", "of its own")
    done = _DONE.get(case.rule, "accessed")
    text = f"{case.me} {case.action}; {other} {done} it, and nothing orders the two"
    return Words(text, _what_is_missing(case), f"{'written' if done == 'wrote' else done} here by {other.rstrip(',')}")


def _scope(case: Case) -> Words:
    """Return the words for two atomic accesses whose scopes do not include both threads."""
    mine, theirs = (native.SCOPES[number] for number in case.extra)
    wider = '"cluster" or "gpu"' if _share_cluster(case) else '"gpu"'
    return Words(
        f'{case.me} {case.action} with scope "{mine}", {case.other} accessed it with scope "{theirs}", and two atomic '
        "accesses race unless the scope of each includes the thread of the other",
        f"give both the scope {wider}",
        f"accessed here by {case.other}",
    )


def _noncoherent(case: Case) -> Words:
    """Return the words for memory that a kernel writes, and loads as memory that nobody writes."""
    rule = "which is for memory that no thread writes while the kernel runs"
    if case.site.what == _NONCOHERENT:
        text = f"{case.me} {case.action}, {rule}, and {case.other} wrote it"
        done = "written"
    else:
        text = f"{case.me} {case.action}, and {case.other} loaded it by ld.global.nc, {rule}"
        done = "loaded"
    return Words(text, "load it without invariant=True, nc or ldu", f"{done} here by {case.other}")


def _share_cluster(case: Case) -> bool:
    """Return whether the blocks of both sides are of one cluster."""
    sizes = case.record.sizes.cluster
    return not case.before and all(
        mine // size == other // size for mine, other, size in zip(case.block, case.other_block, sizes, strict=True)
    )


_WAITS = {
    engine_table.COPY: "wait for the copy first: cp_async_wait_group and a barrier, or the mbarrier it arrives at",
    engine_table.BULK_LOAD: "wait for the copy first: the mbarrier that it brings its bytes to",
    engine_table.BULK_STORE: "the thread that stores commits its group and waits for it, cp_async_bulk_wait_group(0), and a barrier follows",
    engine_table.BULK_SOURCE: "the thread that stores commits its group and waits until it is read, cp_async_bulk_wait_group(0, read=True), and a barrier follows",
    engine_table.WGMMA: "wait for the WGMMA first: warpgroup.wait_group(n) that covers its group, then the barrier or mbarrier that frees the memory",
    engine_table.TCGEN05: "the thread that issued it calls tcgen05.commit(mbarrier); wait for that mbarrier first",
    engine_table.TCGEN05_CP: "the thread that issued it calls tcgen05.commit(mbarrier); wait for that mbarrier first",
    engine_table.TCGEN05_LD: "the warp that loads waits for its loads, fence_view_async_tmem_load(), and a barrier or mbarrier follows",
    engine_table.TCGEN05_ST: "the warp that stores waits for its stores, fence_view_async_tmem_store(), and a barrier or mbarrier follows",
}
"""What completes the operations of each engine."""


def _what_is_missing(case: Case) -> str:
    if case.before and case.record.rule == native.RULE["read-write"]:
        return (
            "let this kernel call griddepcontrol_wait() before it writes, or launch both on one stream without use_pdl"
        )
    if case.before:
        return "let this kernel call griddepcontrol_wait() first, or launch both on one stream without use_pdl"
    if case.engine == engine_table.COPY and case.extra[0]:
        return (
            "call cp_async_commit_group() after the copy: cp_async_wait_group covers copies that belong to a group. Then a "
            "barrier follows the wait"
        )
    if case.engine:
        return _WAITS[case.engine]
    if case.site.uniform and case.other_site.uniform and _one_line(case):
        return (
            "several threads update one element: use cute.arch.atomic_add or another atomic, or a reduction, or let one "
            "thread do it"
        )
    if case.record.narrow:
        return (
            'give the arrival at the mbarrier scope="cluster": with scope "cta" it orders memory for its own block only'
        )
    if case.space == "global" and case.block != case.other_block:
        return "blocks of a launch are not ordered: use atomics with release and acquire, or a second launch"
    if case.block != case.other_block:
        return "put cluster_arrive() and cluster_wait() between the two"
    if case.tensor == cute.REDUCTION_BUFFER:
        return "put sync_threads() before the call: its buffer is used again"
    if not case.record.across_warps:
        return "put sync_warp() between the two, or sync_threads() if other warps take part"
    return "put sync_threads(), or a barrier or mbarrier that both take part in, between the two"


def _one_line(case: Case) -> bool:
    """Return whether both accesses are on one source line."""
    mine = case.site.span
    theirs = case.other_site.span
    return mine is not None and theirs is not None and (mine.filename, mine.line) == (theirs.filename, theirs.line)


def _unwaited(case: Case) -> Words:
    """Return the words for a load or store of tensor memory that nobody waited for."""
    loads = case.engine == engine_table.TCGEN05_LD
    done, call = ("load", "fence_view_async_tmem_load()") if loads else ("store", "fence_view_async_tmem_store()")
    text = f"{case.me} {case.action} after {case.other}, whose warp has not waited until the {done} is complete"
    return Words(
        text, f"call {call} in the warp, before the barrier or mbarrier that follows its {done}s", f"{done} here"
    )


def _in_flight(case: Case) -> Words:
    """Return the words for registers that are accessed while a WGMMA in flight uses them."""
    role = "adds to" if case.extra[1] else "reads"
    if case.site.what == "wgmma":
        text = f"{case.me} executes a wgmma with registers that another one in flight {role}"
        uncommitted = 0
    else:
        offset = case.extra[0] & 0xFFFFFFFF
        uncommitted = case.extra[0] >> 32
        element = f"element {int(offset // case.size)} of {case.site.memory or 'a register tensor'}"
        text = f"{case.me} {_phrase(case.site.what, element)} while a wgmma in flight {role} it"
    hint = "wait for the WGMMA first: warpgroup.wait_group(n) with n groups at most after its own"
    if uncommitted:
        hint = "call warpgroup.commit_group() after the WGMMA: a wait covers WGMMAs that belong to a group"
    return Words(text, hint, "the WGMMA is issued here")


def _unfenced(case: Case) -> Words:
    if case.extra[1] == 2:
        return Words(
            f"{case.me} executes its first wgmma without a fence", "call warpgroup.fence() before the first WGMMA"
        )
    registers = "accumulator" if case.extra[0] else "A in registers"
    done = "written" if case.extra[1] else "read"
    return Words(
        f"{case.me} executes a wgmma whose {registers} it {'wrote' if case.extra[1] else 'read'}, and no fence "
        "orders the two",
        f"call warpgroup.fence() after the registers are {done} and before the WGMMA",
        f"{done} here",
    )


# --- memory ----------------------------------------------------------------------------------------------------------

_GUARD = "guard the access with a comparison against the tensor's shape"
_BELOW = f"{_GUARD}; indices below 0 do not count from the end, as Python's do: the last element is x[cute.size(x) - 1]"


def _outside(element: int) -> str:
    """Return the help for an access to an element that is not there."""
    return _BELOW if element < 0 else _GUARD


def _too_small(case: Case) -> str:
    """Return the help for an access behind the end of an allocation; empty for other accesses."""
    low, high = case.extra
    if case.reach > high - low:
        elements = int(case.reach // case.size)
        has = int((high - low) // case.size)
        return (
            f"the layout of the tensor reaches {elements} elements, allocate as many, cute.cosize(layout): it has {has}"
        )
    if case.record.offset < high:
        return ""
    return "allocate as many elements as the layout of the tensor reaches, cute.cosize(layout), or guard the access"


def _bounds(case: Case) -> Words:
    low, high = case.extra
    site = case.site
    size = case.size
    record = case.record
    if record.modes:
        shape = ", ".join(map(str, record.extents[: record.modes]))
        return Words(f"{case.me} {case.action}, and its shape is ({shape})", _GUARD)
    if record.space == 0:
        # of many elements at once, the first that is outside: they may begin inside
        at = int((low if low < 0 else max(low, high)) // size)
        count = int(high // size)
        return Words(
            f"{case.me} {_phrase(site.what, 'element')} {at} of a register array of {count} {site.element}",
            _outside(at),
        )
    if record.space == native.SHARED:
        offset = record.offset - low
        what = f"element {int(offset // size)}" if offset >= 0 else f"{-offset} bytes before the start"
        return Words(
            f"{case.me} {_phrase(site.what, what)} of {site.memory or 'shared memory'}, which has {int((high - low) // size)} "
            f"of {site.element}",
            _too_small(case) or _outside(offset),
        )
    if record.object:
        where = (record.address - low) & (1 << 64) - 1
        where = where - (1 << 64) if where >> 63 else where
        total = int((high - low) // size)
        text = (
            f"element {int(where // size)} of {site.memory or case.tensor}, whose memory has {total} of {site.element}"
        )
        if "[" in case.memory:
            text = f"{case.memory}, {text}"
        return Words(f"{case.me} {_phrase(site.what, text)}", _outside(where))
    return Words(f"{case.me} {case.action}, which is no memory of the program", _GUARD)


def _box_outside(case: Case) -> Words:
    record = case.record
    modes = case.extra[0]
    place, extents = (f"({', '.join(map(str, numbers[:modes]))})" for numbers in (record.place, record.extents))
    return Words(
        f"{case.me} loads a box at {place} that lies wholly outside its tensor of {extents}, as most boxes of this loop "
        "do: it gives zeros",
        "compare the modes of the tensor with the tiles that the kernel takes of it, such as (N, K) for the B of a "
        "GEMM; here the innermost mode comes first",
    )


def _uninitialized(case: Case) -> Words:
    if case.extra[1]:
        return _unset(case)
    if case.space == "tensor":
        what = "adds to its D in" if case.site.what == "D of a tcgen05.mma" else ""
        return Words(
            f"{case.me} issues a tcgen05.mma that {what} {case.memory}, which nobody has written since it was allocated"
            if what
            else f"{case.me} {case.action}, which nobody has written since it was allocated",
            "the first MMA into an accumulator does not accumulate; write other operands, in the lanes of all warps, first",
        )
    return Words(
        f"{case.me} reads {case.memory}, which nobody has written",
        "write it first, and let the reader wait for that: sync_threads() between the two, or an mbarrier",
    )


def _unset(case: Case) -> Words:
    """Return the words for a value that nobody set and that a write, an address or a branch depends on."""
    doing = {
        "write": f"writes {case.memory} with",
        "address": "accesses memory at an address that depends on",
        "branch": "takes a branch that depends on",
        "accumulator of a wgmma": "executes a wgmma that adds to",
        "A of a wgmma": "executes a wgmma whose A is",
    }[case.site.what]
    if case.other_site.what == "register tensor":
        name = case.other_site.memory
        element = case.extra[0]
        part = f"element {element} of" if element < 1 << 31 else "an element of"
        return Words(
            f"{case.me} {doing} {part} {name or 'a register tensor'}, which nobody has written",
            f"set it first, as {name or 'tensor'}.fill(0) does, or guard this as its writes are guarded",
            f"{name or 'the tensor'} is made here, and holds nothing",
        )
    return Words(f"{case.me} {doing} a variable that was not assigned on this path", "assign it before the branch")


def _seen_through(site: SanitizedSite) -> str:
    return "the swizzle of its tensor map" if site.what in _OF_BOXES else site.swizzle or "no swizzle"


def _swizzle(case: Case) -> Words:
    mine, theirs = (_seen_through(site) for site in (case.site, case.other_site))
    tiles = f"through {mine}" if mine != theirs else f"through {mine} of a tile that starts elsewhere"
    return Words(
        f"{case.me} reads {case.memory} {tiles}; {case.other} wrote it through {theirs}, as the element of another "
        "place",
        "see a tile through one layout wherever it is written and read: the swizzle is part of it, and of where it "
        "starts",
        f"written here by {case.other}",
    )


# --- synchronization -------------------------------------------------------------------------------------------------


def _barrier_exited(case: Case) -> Words:
    if case.extra[1]:
        return Words(
            f"{case.me} arrives at barrier {case.extra[0]} for {case.extra[1]} threads, and {case.other} of the same "
            "warp ended "
            "without arriving at it",
            "warps arrive at a barrier with all their threads: guard the work, not the barrier, or guard it for "
            "whole warps",
        )
    return Words(
        f"{case.me} waits at barrier {case.extra[0]} for all threads of the block, and {case.other} ended without "
        "arriving at it",
        "let every thread reach the barrier (guard the work, not the barrier), or use a named barrier with a count "
        "of threads",
    )


def _count(case: Case) -> Words:
    others, mine = (number or "all" for number in case.extra)
    return Words(
        f"{case.me} arrives at a barrier for {mine} threads; others of the same phase said {others}",
        "every arrival at a barrier names the same number of threads",
        "the others arrived here",
    )


def _mbarrier_twice(case: Case) -> Words:
    used = "in use" if case.extra[0] else "initialized"
    return Words(
        f"{case.me} initializes an mbarrier that is {used} already: {case.memory}",
        "let one thread initialize it, once; mbarrier_inval ends its use",
        "initialized here",
    )


def _mbarrier_overflow(case: Case) -> Words:
    missing, came = case.extra
    return Words(
        f"{case.me} arrives {came} time{'s' * (came != 1)} at an mbarrier whose phase misses {missing} arrival{'s' * (missing != 1)}: "
        f"{case.memory}",
        "the count of mbarrier_init is the number of arrivals of a phase",
        "initialized here",
    )


def _mbarrier_bytes(case: Case) -> Words:
    expected, came = case.extra
    what = "waits for bytes that do not come" if came < expected else "gets more bytes than it expects"
    return Words(
        f"the mbarrier {case.memory} {what}: {expected} were expected and {came} arrived",
        "expect exactly the bytes that the copies of a phase bring",
        "initialized here",
    )


def _lanes_exited(case: Case) -> Words:
    return Words(
        f"{case.me} executes a {case.site.what} for the lanes of mask {case.mask}, and lane {case.extra[1]} has exited",
        "all 32 lanes execute it together"
        if case.site.what in ("mma_sync", "ldmatrix", "stmatrix", "movmatrix")
        else "name only lanes that come here in the mask",
    )


# --- numbers ---------------------------------------------------------------------------------------------------------

_OPERATORS = {"addf": "+", "subf": "-", "mulf": "*", "divf": "/", "remf": "%"}


def _not_finite(case: Case) -> Words:
    record = case.record
    bits = [case.extra[1], *record.numbers]
    result, left, right = (struct.unpack("<d", struct.pack("<Q", b & (1 << 64) - 1))[0] for b in bits)
    numbers = [f"{value:.6g}" for value in (left, right)[: record.operands]]
    sign = _OPERATORS.get(case.site.what)
    if sign is not None and len(numbers) == 2:
        text = f"{numbers[0]} {sign} {numbers[1]}"
    else:
        text = f"{case.site.what}({', '.join(numbers) if numbers else '...'})"
    index = case.extra[0] & 0xFFFFFFFF
    count = case.extra[0] >> 32
    where = f", element {index} of {count}" if count > 1 else ""
    goes = f"; it is stored in {case.memory}" if case.space else ""
    return Words(
        f"{case.me} computes {text} = {result:g}{where}, not finite although its operands are{goes}",
        "guard the operation, or compute in a wider type",
    )


def _index_overflow(case: Case) -> Words:
    sign = {"<<": "shifted left by"}.get(case.site.what, case.site.what)
    return Words(
        f"{case.me} computes {case.extra[0]} {sign} {case.extra[1]} for an address, which does not fit in 32 bits",
        "compute the index in 64 bits: Int64(...)",
    )


# --- all rules --------------------------------------------------------------------------------------------------------

_WRITTEN = "written here by {c.other}"
_RULES: dict[str, Words | Callable[[Case], Words]] = {
    "read-write": _race,
    "write-read": _race,
    "write-write": _race,
    "atomic": _race,
    "scope": _scope,
    "non-coherent": _noncoherent,
    "proxy": Words(
        "{c.me} {c.action} in the async proxy; {c.other} wrote it, and no fence tells the async proxy so",
        "the writer calls fence_proxy(...) for the async proxy before the barrier that precedes the copy or WGMMA",
        _WRITTEN,
    ),
    "map-proxy": Words(
        "{c.me} copies by the tensor map in {c.memory}; {c.other} wrote it, and no release and acquire of tensor "
        "maps lie between",
        "after the write: cp_fence_tma_desc_release or fence_tma_desc_release; then, in every warp that copies, "
        "fence_tma_desc_acquire",
        _WRITTEN,
    ),
    "tmem-unwaited": _unwaited,
    "tmem-unwaited-load": _unwaited,
    "tmem-format": Words(
        "{c.me} {c.action}; {c.other} wrote an accumulator there, whose cells have one element of 32 bits",
        "load the accumulator, convert it, and store it as the operand: packed elements of A, or scale factors",
        _WRITTEN,
    ),
    "tmem-scales": Words(
        "{c.me} {c.action}; {c.other} wrote something else there than the scale factors of the operand's rows",
        "a column has the scale factors of 32 rows, in all four quarters of the lanes: look at the address of the scale "
        "factors, and at what overwrites a part of them",
        _WRITTEN,
    ),
    "in-flight": _in_flight,
    "unfenced": _unfenced,
    "unfenced-read": _unfenced,
    "bounds": _bounds,
    "alignment": Words(
        "{c.site.what} of {c.record.bytes} bytes by {c.me} at an address that is no multiple of {c.extra[0]}: "
        "{c.memory}",
        "make the address a multiple of the access's size, or access fewer elements at a time",
    ),
    "uninitialized": _uninitialized,
    "read-only": Words("{c.me} writes {c.memory}, which is read-only", "pass an array that may be written"),
    "swizzle": _swizzle,
    "negative": Words(
        "{c.me} stores a box at coordinate {c.signed} of mode {c.extra[0]}",
        "a store must start inside the tensor; what exceeds its end is left out. Only loads may start before it",
    ),
    "outside": _box_outside,
    "divergent": Words(
        "{c.me} arrives at barrier {c.extra[0]} here while other threads of its warp are at another one",
        "all threads of a warp must reach the same barrier: move it out of the branch",
        "the others arrived here",
    ),
    "other-way": Words(
        "{c.me} arrives at barrier {c.extra[0]}, which all threads of the block take part in, while {c.other} took "
        "another path",
        "a barrier for all threads must stand where all of them pass: move it out of the branch, or use a named "
        "barrier with a count of threads",
        "{c.other} arrived here",
    ),
    "barrier-exited": _barrier_exited,
    "count": _count,
    "barrier-early": Words(
        "{c.me} arrives at barrier {c.extra[0]} for {c.extra[1]} threads after the phase that {c.other} arrived in, "
        "and nothing orders the two: "
        "under another schedule that phase counts this arrival and completes without a thread that it is meant for",
        "give each set of warps a barrier of its own, or let threads wait until a phase is complete before they "
        "arrive for the next",
        "{c.other} arrived here",
    ),
    "mbarrier-early": Words(
        "{c.me} arrives at the mbarrier {c.memory} after the phase that {c.other} arrived in, and nothing orders the "
        "two: "
        "under another schedule that phase counts this arrival and completes without another",
        "the count of mbarrier_init is {c.extra[0]}, which must be all arrivals of a phase; a thread must wait for a "
        "phase before it arrives "
        "for the next",
        "{c.other} arrived here",
    ),
    "mbarrier-init": Words(
        "{c.me} uses {c.memory} as an mbarrier, and it was not initialized", "call mbarrier_init first"
    ),
    "mbarrier-twice": _mbarrier_twice,
    "mbarrier-overflow": _mbarrier_overflow,
    "mbarrier-bytes": _mbarrier_bytes,
    "mbarrier-phase": Words(
        "{c.me} waits for phase {c.extra[0]} of the mbarrier {c.memory}, and the phase after it completed before the "
        "thread looked: "
        "it now waits for another one",
        "let threads arrive only after the previous phase has been seen, by a second mbarrier or a barrier; check "
        "the arrival count",
        "{c.other} arrived here",
    ),
    "lanes-site": Words(
        "{c.me} is at a {c.site.what} while {c.other}, a lane of its mask, is at another place",
        "all lanes of the mask must execute the same operation: move it out of the branch, or name fewer lanes",
        "the other lane is here",
    ),
    "lanes-mask": Words(
        "{c.me} is not in the mask {c.mask} of the {c.site.what} it executes",
        "a lane that executes it must be in its mask",
    ),
    "lanes-exited": _lanes_exited,
    "block-exited": Words(
        "{c.me} accesses the shared memory of block {c.peer} of its cluster, which may have ended by then",
        "let the blocks of the cluster wait for each other before they end: cluster_arrive() and cluster_wait()",
    ),
    "block-started": Words(
        "{c.me} accesses the shared memory of block {c.peer} of its cluster, which may not have started",
        "let the blocks of the cluster wait for each other first: cluster_arrive_relaxed() and cluster_wait()",
    ),
    "copy-unseen": Words(
        "{c.me} issues a copy to shared memory whose bytes {c.memory} counts, and its block ends before any thread "
        "waits for them",
        "wait for every copy: the memory belongs to another block when this one ends",
    ),
    "store-unseen": Words(
        "{c.me} ends while a bulk store that it issued may still read shared memory",
        "commit the store and wait for it before the end: cp_async_bulk_commit_group(), cp_async_bulk_wait_group(0, "
        "read=True)",
    ),
    "pair-issuer": Words(
        "{c.me}, of the odd CTA of a pair, issues a tcgen05.mma of both: the even one, whose rank in the cluster is "
        "even, issues them",
        "issue it under block_idx_in_cluster() % 2 == 0, and let the commit arrive at the mbarriers of both CTAs",
    ),
    "not-finite": _not_finite,
    "index-overflow": _index_overflow,
    "zero-division": Words(
        "{c.me} divides an integer by zero, or takes the remainder: a GPU goes on, with all bits of the result set",
        "guard it: the divisor if it is not 0, else 1",
    ),
    "negative-shift": Words(
        "{c.me} shifts an integer by a negative number, which Python refuses: all its bits are lost",
        "guard it: the amount if it is not negative, else 0",
    ),
}
