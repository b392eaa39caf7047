"""The memory of the detector: structures that native code and Python share, and the numbers both know.

One launch runs at a time and on one OS thread, so there is one `State`. A *group* is what the scheduler runs together (a
block, a cluster, a cooperative grid); N is its number of threads. An *identity* is who makes an access: thread t is t,
the engine of its non-bulk asynchronous copies N + t, that of its bulk copies 2N + t. A clock is an array over the identities
of a group (and, if the kernel has bulk copies, over what the async proxy was told of the first 2N: sections 3 and 4).
"""

from __future__ import annotations

import ctypes

u32, i64 = ctypes.c_uint32, ctypes.c_int64

KINDS = ("race", "memory", "sync", "numeric")
DEFAULT_KINDS = ("race", "memory", "sync")
RACE, MEMORY, SYNC, NUMERIC = 1, 2, 4, 8
"""Bits of the kinds."""

# accesses: bits of the flags
WRITE, ATOMIC, SHARED, GLOBAL = 1, 2, 4, 8
ENGINE_SHIFT = 4
"""Bits 4 and 5: 0 a thread, 1 its non-bulk asynchronous copies, 2 its bulk copies."""
ALIGNMENT_SHIFT = 8
"""Bits 8 to 15: the power of two an address must be a multiple of."""

SECTIONS = 5
BARRIERS = 17
"""Barriers of a block, and the cluster's."""
MAX_FINDINGS = 64
MAX_OBJECTS = 64
MAX_LEAVES = 12
MAX_MODES = 8
RING = 64
"""How many groups of copies of a thread may be in flight."""
DENSE = 0xFFFF_FFFF
LOOKED, PASSED, PENDING = 1, 2, 4
"""A thread that has seen a phase complete; one whose phase is complete, but has not looked yet; one that waits: plus the parity."""
PAGE_SHIFT = 12
MAX_PAGES = 1 << 20
"""Entries of the table of shadow pages for global memory (a power of two)."""
LOCATIONS = 1 << 14
"""Entries of the table of addresses that order memory: atomics and mbarriers (a power of two)."""

# what a finding says: `Finding.rule`
RULES = (
    "read-write", "write-read", "write-write", "atomic", "proxy",
    "bounds", "alignment", "uninitialized", "read-only", "swizzle",
    "divergent", "other-way", "barrier-exited", "count", "mbarrier-init", "mbarrier-twice", "mbarrier-overflow", "mbarrier-bytes", "mbarrier-phase",
    "lanes-site", "lanes-mask", "lanes-exited", "block-exited", "block-started",
    "not-finite", "index-overflow",
)  # fmt: skip
RULE = {name: number for number, name in enumerate(RULES)}
KIND_OF_RULE = {
    **dict.fromkeys(RULES[:5], "race"),
    **dict.fromkeys(RULES[5:10], "memory"),
    **dict.fromkeys(RULES[10:24], "sync"),
    **dict.fromkeys(RULES[24:], "numeric"),
}


class Clock(ctypes.Structure):
    """Followed by the array. Unchanging once somebody may have taken it, but for the count of its holders."""

    _fields_ = [
        ("holders", u32),
        ("group", u32),
        ("unfenced", u32),  # of a barrier: whether somebody came without a fence before, see `orders.fence`
        ("lowest", u32),  # the least of its numbers for threads, plus 1; 0: not known yet
        ("next", i64),  # in the list of free ones
        ("last", i64),  # the clock joined into this one most recently: joining it again changes nothing
        ("foreign", i64),  # what is known about other groups: a list of `Foreign`
    ]


class Foreign(ctypes.Structure):
    """What is known of another group; the first entry of a group counts."""

    _fields_ = [("next", i64), ("group", i64), ("clock", i64)]


class Thread(ctypes.Structure):
    """A thread's own time. What it knows of others is `base`, shared by all who know the same."""

    _fields_ = [
        ("base", i64),
        ("own", u32 * 6),  # own[s]: section s of its clock at its own place
        ("pending", i64),  # the clock of the barrier it waits at
        ("pending_cluster", i64),
        ("fence_base", i64 * 2),  # at its last fence of any scope, and of at least the scope of the GPU
        ("fence_own", u32 * 12),
        ("seen", i64 * 2),  # what relaxed reads saw released, within the group and by anyone: a fence acquires it
        ("epoch", u32 * 2),  # of the copies it issues now: non-bulk, bulk
        ("groups", u32 * 2),  # committed so far
        ("exited", u32),
        ("depended", u32),  # it has waited for the launches before
        ("waits_phase", u32),
        ("fenced", u32),  # it has accessed nothing since a sequentially consistent fence of the GPU's scope
        ("ring", u32 * (2 * RING)),  # the epoch of each committed group
    ]


class Cell(ctypes.Structure):
    """Who accessed a few bytes last. A clock of 0 means nobody.

    `w`: the last write; `a`: an atomic write before it that was not ordered with it; `r`: a read after it; `o`: another
    one. In shared memory `r_tid` DENSE means that `o` holds the address of an array over all identities, and `o_site` the
    latest clock in it, or DENSE if an asynchronous copy is among the readers.
    """

    _fields_ = [(f"{who}_{what}", u32) for who in "waro" for what in ("clock", "tid", "site", "group")]


class LoneCell(ctypes.Structure):
    """Who accessed a few bytes in a kernel whose threads never meet, as the number of a thread in the launch plus 1.

    `w`: who wrote last; `r`: a reader, `o`: another one.
    """

    _fields_ = [(f"{who}_{what}", u32) for who in "wro" for what in ("who", "site")]


class BarrierSlot(ctypes.Structure):
    """A barrier of a block in its current phase."""

    _fields_ = [
        ("clock", i64),
        ("phase", u32),
        ("arrived", u32),
        ("count", u32),
        ("site", u32),  # of the first arrival
        ("who", u32),  # made it
        ("warp_site", u32 * 32),  # where each warp arrived, plus 1
        ("warp_lanes", u32 * 32),  # its lanes that did
    ]


class Meeting(ctypes.Structure):
    """Lanes that meet."""

    _fields_ = [("clock", i64), ("arrived", u32), ("mask", u32), ("site", u32), ("who", u32)]


class Location(ctypes.Structure):
    """An address that orders memory."""

    _fields_ = [
        ("key", i64),
        ("local", i64),  # released by the block `local_block`; for an mbarrier: what arrivals released so far
        ("wide", i64),  # released to more than a block
        ("published", i64 * 2),  # of an mbarrier: the clock of the last complete phase of each parity
        ("local_block", u32),
        ("mbarrier", u32),  # whether it is one now
        ("site", u32),
        ("who", u32),
        ("parity", u32),
        ("used", u32),  # since it was made
        ("expected", i64),  # bytes of this phase: announced and come
        ("got", i64),
        ("bytes_site", u32),
        (
            "waits",
            i64,
        ),  # of an mbarrier, for each thread: `LOOKED`, `PASSED` or `PENDING`
        ("wait_site", u32),
        ("arrive_site", u32),
        ("born", u32),  # an address in shared memory: the group it belongs to, plus 1; else 0
    ]


class Object(ctypes.Structure):
    """An argument of the kernel that points to memory."""

    _fields_ = [
        ("base", i64),  # where it points to
        ("low", i64),  # the memory it belongs to
        ("high", i64),
        ("readonly", i64),
        ("written", i64),  # by the kernel
        ("quiet", i64),  # nobody writes its memory during the launch
        ("reach_low", i64),  # its memory and that of all arguments that share some of it
        ("reach_high", i64),
        ("bias", i64),  # in a kernel whose threads never meet: where the cell of address 0 would be; 0: it has no cells
        ("leaves", i64 * MAX_LEAVES),
    ]


class Finding(ctypes.Structure):
    _fields_ = [
        ("rule", u32),
        ("site", u32),  # the access or operation that was found out
        ("other_site", u32),  # the one it collides with
        ("group", u32),
        ("tid", u32),
        ("other_group", u32),
        ("other_tid", u32),
        ("bytes", u32),
        ("count", i64),  # how often
        ("address", i64),
        ("space", u32),  # SHARED, GLOBAL or 0
        ("flags", u32),
        ("rank", u32),  # of the block whose shared memory it is
        ("object", u32),  # number of the argument, plus 1
        ("offset", i64),  # from the start of the block's shared memory, or of the argument
        ("extra", i64 * 2),
        ("sizes", u32 * 13),
        ("other_sizes", u32 * 13),  # of the launch that the other side belongs to
        ("kernel", u32),
        ("other_kernel", u32),
        ("before", u32),  # the other side is of the launch before
        ("numbers", i64 * 2),  # the operands of an operation, as bits of doubles
        ("modes", u32),  # of the tensor whose extents an access exceeds; 0: it is about something else
        ("place", i64 * MAX_MODES),  # the coordinate outside
        ("extents", i64 * MAX_MODES),
        ("known", Object),
    ]


class State(ctypes.Structure):
    _fields_ = [
        ("active", u32),
        ("kinds", u32),
        ("group", u32),
        ("threads", u32),  # N
        ("per_block", u32),
        ("length", u32),  # of a clock's array
        ("identities", u32),
        ("shift", u32),  # log2 of the bytes a cell stands for
        ("smem", u32),  # bytes of shared memory of a block that the program may use
        ("cells_per_block", u32),
        ("level", u32),  # 0: no asynchronous copies, 1: non-bulk ones, 2: bulk ones too
        ("kernel", u32),
        ("current", i64),  # the running thread
        ("tid", u32),
        ("exits", u32),  # threads of the group that are done
        ("arena", i64),
        ("arena_end", i64),
        ("chunk", i64),
        ("thread_array", i64),
        ("cells", i64),
        ("cells_bytes", i64),
        (
            "tiles",
            i64,
        ),  # for each cell of shared memory: where its bytes lie before the swizzle they were written through, plus 1
        ("slots", i64),
        ("meetings", i64),
        ("pages", i64),  # pairs of key and address
        ("page_count", i64),
        ("last_page", i64),
        ("last_page_at", i64),
        ("locations", i64),
        ("free_clocks", i64),
        ("free_arrays", i64),
        ("dense", i64),
        ("memory", i64),  # all that was allocated, as a list
        ("allocated", i64),
        ("limit", i64),
        (
            "remote",
            i64,
        ),  # of clusters: for each block and identity, its last access to that block's memory from another: clock, site
        ("endings", i64),  # for each block: what its threads knew when they ended, and how many did
        ("memo", i64 * 3),
        ("proxy_memo", i64 * 2),
        ("scratch", i64),
        ("value", i64),  # where the value that is written next lies, if it is known
        ("value_for", i64),  # the address it is written to
        ("objects", Object * MAX_OBJECTS),
        ("object_count", u32),
        ("findings_count", u32),
        ("extents_count", u32),
        ("overflow", u32),  # findings that found no place
        ("lone", u32),  # whether the threads of the kernel never meet
        ("sequential", u32),  # whether there was a sequentially consistent fence
        ("who", u32),  # then: the number of the running thread in the launch, plus 1
        ("readonly", u32),  # whether an argument of the launch may not be written
        ("sizes", u32 * 14),
        # groups are counted on through launches that may run at the same time
        ("first_group", u32),  # of this launch
        ("next_group", u32),
        ("before_group", u32),  # the first group of the launch before, if that may still run; else as `first_group`
        ("before_kernel", u32),
        ("before_sizes", u32 * 14),
        ("launches", u32),  # of the call so far
        ("programmatic", u32),  # this one may start before the one before it has ended
        ("stream", i64),
        ("extent_low", i64 * MAX_OBJECTS),
        ("extent_high", i64 * MAX_OBJECTS),
        ("extent_readonly", u32 * MAX_OBJECTS),
        ("unplaced", i64),  # a finding that waits for the place its number goes to
        ("unplaced_tid", i64),
        ("findings", Finding * MAX_FINDINGS),
    ]


STATE = "kiln_cpu_san_state"
