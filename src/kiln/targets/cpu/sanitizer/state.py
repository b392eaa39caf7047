"""The memory of the detector: structures that native code and Python share, and the numbers both know.

One launch runs at a time and on one OS thread, so there is one `State`. A *group* is what the scheduler runs together (a
block, a cluster, a cooperative grid); N is its number of threads. An *engine* works for a thread beside it (`ENGINES`), and an
*identity* is who makes an access: engine e of thread t is e N + t, and engine 0 is the thread itself. A clock is an array over the
identities of a group and, if an engine works through the async proxy, over what that proxy was told of the generic ones.
"""

from __future__ import annotations

from ....hardware import limits
from ....native import Array, Library, Ptr, i64, struct, u8, u32, u64
from ..runtime.engine_table import ENGINES, GENERIC
from ..runtime.records import Sizes

KINDS = ("race", "memory", "sync", "numeric")
DEFAULT_KINDS = ("race", "memory", "sync")


IN_SHARED, IN_GLOBAL, RELEASED_MAPS, MAPS = 1, 2, 4, 8
"""What fences tell of the generic proxy (`orders.view`), as bits: the async proxy, of shared and of global memory; who acquires tensor
maps; copies of the thread itself that read tensor maps."""
VIEWS = 2 * GENERIC + 1
SECTIONS = len(ENGINES) + VIEWS
"""Of a clock, at most: one for each engine, then one for each generic engine as the async proxy sees shared memory, the same of global
memory, then threads as their tensor maps were released."""


# accesses: bits of the flags
WRITE, ATOMIC = 1, 2
SPACE_SHIFT, ENGINE_SHIFT, NO_INIT, ALIGNMENT_SHIFT = 2, 5, 1 << 9, 10
"""Three bits for the space, four for the engine; what it reads need not have been written; six bits for the power of two that an
address must be a multiple of."""
OF_MAP = 1 << 16
"""The flag of a copy's read of its tensor map."""
SHARED, GLOBAL = 1 << SPACE_SHIFT, 2 << SPACE_SHIFT
SPACES = {SHARED: "shared", GLOBAL: "global"}
SPACE_MASK = 7 << SPACE_SHIFT

BARRIERS = limits.BARRIERS + 1
"""Barriers of a block, and the cluster's."""
MAX_FINDINGS = 64
MAX_OBJECTS = 64
MAX_LEAVES = 12
MAX_MODES = 8
RING = 64
"""How many groups of copies of a thread may be in flight."""
FLIGHTS = 16
"""How many register arrays of a thread, or parts of them, products may use that are not complete."""
DENSE = 0xFFFF_FFFF
LOOKED, PASSED, PENDING = 1, 2, 4
"""A thread that has seen a phase complete; one whose phase is complete, but has not looked yet; one that waits: plus the parity."""
PAGE_SHIFT = 12
MAX_PAGES = 1 << 20
"""Entries of the table of shadow pages for global memory (a power of two)."""
LOCATIONS = 1 << 14
"""Entries of the table of addresses that order memory: atomics and mbarriers (a power of two)."""
_RULES_OF_KIND = {
    "race": ("read-write", "write-read", "write-write", "atomic", "proxy", "map-proxy", "in-flight", "unfenced", "unfenced-read"),
    "memory": ("bounds", "alignment", "uninitialized", "read-only", "swizzle", "negative"),
    "sync": (
        "divergent", "other-way", "barrier-exited", "count", "barrier-early", "mbarrier-init", "mbarrier-twice", "mbarrier-overflow",
        "mbarrier-early", "mbarrier-bytes", "mbarrier-phase", "lanes-site", "lanes-mask", "lanes-exited", "block-exited", "block-started", "copy-unseen",
        "store-unseen",
    ),
    "numeric": ("not-finite", "index-overflow", "zero-division", "negative-shift"),
}  # fmt: skip
KIND_OF_RULE = {rule: kind for kind, rules in _RULES_OF_KIND.items() for rule in rules}
RULES = tuple(KIND_OF_RULE)
"""What a finding says: `Finding.rule` is the number."""
RULE = {name: number for number, name in enumerate(RULES)}
assert len(RULES) <= 64  # bits of a word
WARNINGS = ("store-unseen", "unfenced-read")
"""Rules that public programs break and that no GPU takes offence at (ptxas adds a missing fence): told, but no findings."""


@struct
class Clock:
    """Followed by the array. Unchanging once somebody may have taken it, but for the count of its holders."""

    holders: u32
    group: u32
    unfenced: u32  # of a barrier: whether somebody came without a fence before, see `orders.fence`
    lowest: u32  # the least of its numbers for threads, plus 1; 0: not known yet
    next: Ptr[Clock]  # in the list of free ones
    last: Ptr[Clock]  # the clock joined into this one most recently: joining it again changes nothing
    foreign: Ptr[Foreign]  # what is known about other groups


@struct
class Foreign:
    """What is known of another group; the first entry of a group counts."""

    next: Ptr[Foreign]
    group: u32
    clock: Ptr[Clock]


@struct
class Fence:
    """What a thread knew at a fence."""

    base: Ptr[Clock]
    own: Array[u32, SECTIONS]


@struct
class Registers:
    """Registers of a thread that a product uses, or that were written: an address range, empty where there are none."""

    low: u64
    high: u64
    site: u32
    group: u32  # of products, counted as in `Thread.groups`
    is_accumulator: u32  # whether a product writes them
    padding: u32


@struct
class Thread:
    """A thread's own time. What it knows of others is `base`, shared by all who know the same."""

    base: Ptr[Clock]
    own: Array[u32, SECTIONS]  # own[s]: section s of its clock at its own place
    pending: Ptr[Clock]  # the clock of the barrier it waits at
    pending_cluster: Ptr[Clock]
    carried: Ptr[
        Clock
    ]  # of the phase of an mbarrier that it saw complete last: what who gave copies of it knew; orders no memory
    fences: Array[Fence, 2]  # its last one of any scope, and of at least the scope of the GPU
    seen: Array[Ptr[Clock], 2]  # what relaxed reads saw released, within the group and by anyone: a fence acquires it
    acquired: Ptr[Clock]  # what it knew when it acquired tensor maps last, and which time of its own was released
    acquired_own: u32
    epoch: Array[u32, len(ENGINES)]  # of what it gives to each engine now; of itself: not used
    groups: Array[u32, len(ENGINES)]  # committed so far
    exited: u32
    depended: u32  # it has waited for the launches before
    stored: u32  # the time of its last store of a box, as SOURCE's
    stored_site: u32
    fenced: u32  # it has accessed nothing since a sequentially consistent fence of the GPU's scope
    ring: Array[u32, len(ENGINES) * RING]  # the epoch of each committed group
    flights: Array[Registers, FLIGHTS]  # that products use which are not complete
    touched: Array[Registers, FLIGHTS]  # since the last `wgmma_fence`; `is_accumulator` says that they were written
    next_flight: u32  # the place that is used again if all are taken
    next_touched: u32
    wgmma_fences: u32  # whether there was a `wgmma_fence`


@struct
class Access:
    """An access of an identity at a time of its own; a clock of 0 means none. An atomic one has the highest bit of
    `tid`."""

    clock: u32
    tid: u32
    site: u32
    group: u32


@struct
class Cell:
    """Who accessed a few bytes last.

    In shared memory `read.tid` DENSE means that `other` is a `Readers`: there were more than two.
    """

    write: Access
    atomic: Access  # an atomic write before it that was not ordered with it
    read: Access  # after the write
    other: Access  # another one


@struct
class Readers:
    """Many readers, in place of `Cell.other`."""

    array: Ptr[Reader]  # over all identities
    latest: u32  # clock in it; DENSE: an engine is among the readers


@struct
class Reader:
    """The last read of an identity; a clock of 0 means none."""

    clock: u32
    site: u32


@struct
class LoneCell:
    """Who accessed a few bytes in a kernel whose threads never meet, as the number of a thread in the launch plus 1.

    `w`: who wrote last; `r`: a reader, `o`: another one.
    """

    w_who: u32
    w_site: u32
    r_who: u32
    r_site: u32
    o_who: u32
    o_site: u32


@struct
class Arrival:
    """The arrival of the lowest lane of a warp in a phase of a barrier or mbarrier; `who` 0: none did."""

    who: u32  # the thread, plus 1
    time: u32
    site: u32


@struct
class BarrierSlot:
    """A barrier of a block in its current phase."""

    clock: Ptr[Clock]
    phase: u32
    arrived: u32
    count: u32
    site: u32  # of the first arrival
    who: u32  # made it
    warp_site: Array[u32, 32]  # where each warp arrived, plus 1
    warp_lanes: Array[u32, 32]  # its lanes that did
    counted: u32  # whether somebody came who named a number of threads: what follows is of use then
    late: Array[u32, 32]  # warps of the phase before of which no lane of the warp knows that they came, as bits
    now: Array[Arrival, 32]  # of each warp in this phase, where it is for a number of threads
    before: Array[Arrival, 32]  # and in the one before


@struct
class Meeting:
    """Lanes that meet."""

    clock: Ptr[Clock]
    arrived: u32
    mask: u32
    site: u32
    who: u32


@struct
class BulkSlot:
    """An mbarrier that copies bring bytes to."""

    thread: u32  # that gave the last one
    site: u32
    issued: u32  # the phase that it was issued in
    seen: u32  # the last complete phase that somebody waited for
    place: u64


@struct
class Location:
    """An address that orders memory."""

    key: u64
    local: Ptr[Clock]  # released by the block `local_block`; for an mbarrier: what arrivals released so far
    wide: Ptr[Clock]  # released to more than a block
    published: Array[Ptr[Clock], 2]  # of an mbarrier: the clock of the last complete phase of each parity
    local_block: u32
    mbarrier: u32  # whether it is one now
    site: u32
    who: u32
    parity: u32
    used: u32  # since it was made
    expected: u64  # bytes of this phase: announced and come
    got: u64
    bytes_site: u32
    waits: Ptr[u32]  # of an mbarrier, for each thread: `LOOKED`, `PASSED` or `PENDING`
    wait_site: u32
    arrive_site: u32
    born: u32  # an address in shared memory: the group it belongs to, plus 1; else 0
    slot: u32  # of an mbarrier that copies bring bytes to: its place in `State.bulk`, plus 1
    phases: u32  # of an mbarrier: complete ones so far, over all its initializations
    count: u32  # of arrivals in a phase, as it was initialized
    carried: Ptr[Clock]  # of an mbarrier: what the thread knew that gave the last copy of this phase
    carried_before: Array[Ptr[Clock], 2]  # of the last complete phase of each parity
    now: Ptr[Arrival]  # of each warp of its block in this phase
    before: Ptr[Arrival]  # and in the one before


@struct
class Object:
    """An argument of the kernel that points to memory."""

    base: u64  # where it points to
    low: u64  # the memory it belongs to
    high: u64
    readonly: u64
    written: u64  # by the kernel
    quiet: u64  # nobody writes its memory during the launch
    reach_low: u64  # its memory and that of all arguments that share some of it
    reach_high: u64
    bias: u64  # in a kernel whose threads never meet: where the cell of address 0 would be; 0: it has no cells
    leaves: Array[i64, MAX_LEAVES]


@struct
class Page:
    """The cells of some global memory."""

    key: u64
    cells: Ptr[Cell]


@struct
class Spare:
    """What lies before an array of readers."""

    before: Ptr[Spare]  # of all
    next: Ptr[Spare]  # that is free


@struct
class Write:
    """Bytes of global memory that were written: where, how many, and where in the log those are that were there."""

    address: u64
    size: u64
    at: u64


@struct
class Log:
    """The writes of a run of a launch, in order."""

    writes: Ptr[Write]
    count: u64
    room: u64
    bytes: Ptr[u8]
    used: u64
    space: u64
    full: u64  # some are missing


@struct
class Ending:
    """What the threads of a block knew when they ended, and how many did."""

    clock: Ptr[Clock]
    threads: u64


@struct
class Chunk:
    """What lies before allocated memory."""

    before: Ptr[Chunk]
    unused: u64  # so that what follows is aligned to 16 bytes


@struct
class Finding:
    """What was found, in numbers."""

    rule: u32
    site: u32  # the access or operation that was found out
    other_site: u32  # the one it collides with
    group: u32
    tid: u32
    other_group: u32
    other_tid: u32
    bytes: u32
    count: i64  # how often
    address: u64
    space: u32  # one of `SPACES`, or 0
    rank: u32  # of the block whose shared memory it is
    object: u32  # number of the argument, plus 1
    offset: i64  # from the start of the block's shared memory, or of the argument
    extra: Array[i64, 2]
    sizes: Sizes
    other_sizes: Sizes  # of the launch that the other side belongs to
    kernel: u32
    other_kernel: u32
    before: u32  # the other side is of the launch before
    schedule: u32  # under which it was found
    numbers: Array[i64, 2]  # the operands of an operation, as bits of doubles
    modes: u32  # of the tensor whose extents an access exceeds; 0: it is about something else
    place: Array[i64, MAX_MODES]  # the coordinate outside
    extents: Array[i64, MAX_MODES]
    known: Object


@struct
class State:
    """All of it."""

    # see `schedules.py`
    seed: Ptr[i64]  # the runtime's
    further: u32  # how many schedules a launch may be tried under besides the first
    tried: u32  # the most of a call so far, where there were several
    schedule: u32  # of the run now
    recording: u32  # the log that writes go to, plus 1
    findings_before: u32  # the launch
    begun: i64
    logs: Array[Log, 2]
    active: u32
    kinds: u32
    group: u32
    threads: u32  # N
    per_block: u32
    length: u32  # of a clock's array
    identities: u32
    shift: u32  # log2 of the bytes a cell stands for
    smem: u32  # bytes of shared memory of a block that the program may use
    cells_per_block: u32
    engines: u32  # that are in use: the first ones of `ENGINES`
    kernel: u32
    current: Ptr[Thread]  # the running thread
    tid: u32
    exits: u32  # threads of the group that are done
    arena: u64
    arena_end: u64
    chunk: u64
    thread_array: Ptr[Thread]
    cells: Ptr[Cell]
    cells_bytes: u64
    tiles: Ptr[
        u32
    ]  # for each cell of shared memory: where its bytes lie before the swizzle they were written through, plus 1
    slots: Ptr[BarrierSlot]
    meetings: Ptr[Meeting]
    pages: Ptr[Page]
    page_count: u64
    last_page: u64
    last_page_at: Ptr[Cell]
    locations: Ptr[Location]
    free_clocks: Ptr[Clock]
    free_arrays: Ptr[Spare]  # of readers
    arrays: Ptr[Spare]  # of readers, all of them
    memory: Ptr[Chunk]  # all that was allocated, as a list
    allocated: u64
    limit: u64
    remote: Ptr[Reader]  # of clusters: for each block and identity, its last access to that block's memory from another
    endings: Ptr[Ending]  # for each block
    bulk: Ptr[BulkSlot]  # one for each thread of the group
    bulk_count: u32
    bulk_slot: u32  # of the copy whose accesses come now
    bulk_phase: u32  # its time, plus 1
    memo: Array[Ptr[Clock], 3]
    view_memo: Array[Ptr[Clock], 2]
    view_of: u32
    wgmma_memo: Array[Ptr[Clock], 2]
    wgmma_memo_place: u32  # the number by which the second one knows more
    wgmma_memo_epoch: u32
    scratch: u64
    value: u64  # where the value that is written next lies, if it is known
    value_for: u64  # the address it is written to
    objects: Array[Object, MAX_OBJECTS]
    object_count: u32
    findings_count: u32
    extents_count: u32
    overflow: u32  # findings that found no place
    lone: u32  # whether the threads of the kernel never meet
    sequential: u32  # whether there was a sequentially consistent fence
    who: u32  # then: the number of the running thread in the launch, plus 1
    readonly: u32  # whether an argument of the launch may not be written
    sizes: Sizes
    # groups are counted on through launches that may run at the same time
    first_group: u32  # of this launch
    next_group: u32
    before_group: u32  # the first group of the launch before, if that may still run; else as `first_group`
    before_kernel: u32
    before_sizes: Sizes
    launches: u32  # of the call so far
    programmatic: u32  # this one may start before the one before it has ended
    stream: u64
    extent_low: Array[u64, MAX_OBJECTS]
    extent_high: Array[u64, MAX_OBJECTS]
    extent_readonly: Array[u32, MAX_OBJECTS]
    unplaced: Ptr[Finding]  # a finding that waits for the place its number goes to
    unplaced_tid: u32
    findings: Array[Finding, MAX_FINDINGS]


detector = Library("sanitizer", prefix="kiln_cpu_san_")
"""What instrumented code calls."""
state = detector.variable("state", State)
