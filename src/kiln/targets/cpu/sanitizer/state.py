"""State of the detector: structures that native code and Python share, and their constants.

One launch runs at a time and on one OS thread, so there is one `State`. A *group* is what the scheduler runs together
(a block, a cluster, a cooperative grid); N is its number of threads. An *engine* works asynchronously for a thread
(`ENGINES`). An *identity* makes an access: engine e of thread t is e N + t, and engine 0 is the thread itself. A clock
is an array over the identities of a group and, if an engine uses the async proxy, over the times of generic identities
that a proxy fence has made visible to it.
"""

from __future__ import annotations

from ....hardware import limits
from ....native import Array, Library, Ptr, i64, struct, u8, u32, u64
from ..runtime.engine_table import BULK_SOURCE, ENGINES, GENERIC
from ..runtime.records import Sizes

SCRATCH = 1 << 18
"""Bytes that are read in place of those of an access that must not be made, and as many that are written: more than any
shared memory has."""
FURTHER = 3
"""Schedules of a launch besides the first, with the seeds 1, 2, ..."""
ONCE = ("it had a finding or a fault", "it took more than 20 ms", "it wrote more than 64 MB")
"""Why a launch is not repeated under further schedules."""


DELAYING = FURTHER + 1
"""The schedules from this one on delay atomic stores (`store_buffer.py`)."""
MOST_SCHEDULES = DELAYING + 3
"""The schedules of a launch with atomic stores: who comes first of two threads or blocks differs among the last three."""
DELAYED = 64
"""The most stores that are delayed at once."""
WIDEST_DELAYED = 16
"""The most bytes of one."""
USES_LOADS = 2
"""An election, as a meeting of lanes that orders something (`barriers.meet`); 0 and 1 are those that do not, and do."""
IN_SHARED = 1
IN_GLOBAL = 2
RELEASED_MAPS = 4
MAPS = 8
"""Bits of a proxy fence (`memory_order.view`): which accesses see those of the generic proxy.

The async proxy in shared memory, in global memory; threads that acquire tensor maps; this thread's own TMA copies.
"""
OVER = 16
"""In place of such bits, to `clocks.ordered`: the access must be over, though a write need not be visible."""
VIEWS = 2 * GENERIC + 1
STORING = BULK_SOURCE
"""The engines before this one write shared or global memory."""
SECTIONS = len(ENGINES) + VIEWS + STORING
"""The most sections of a clock.

One for each engine, one for each generic engine as the async proxy sees it in shared memory, the same for global
memory, and one for the threads' releases of tensor maps. In clusters one more for each engine of STORING: its accesses
that are over, without those writes being visible (`clocks.release_over`).
"""


# accesses: bits of the flags
WRITE = 1
ATOMIC = 2
SPACE_SHIFT = 2
ENGINE_SHIFT = 5
NO_INIT = 1 << 9
ALIGNMENT_SHIFT = 10
"""Fields of the flags: three bits for the space, four for the engine, one if reads of unset memory are fine, six for
log2 of the alignment. Of an atomic write, NO_INIT says that it does not read what it replaces."""
OF_MAP = 1 << 16
"""Flag: a TMA copy reads its tensor map."""
SCOPE_SHIFT = 17
"""Two bits of the flags: by how many of `SCOPES` that of an atomic access is narrower than the widest."""
NONCOHERENT = 1 << 19
"""Flag: a load that may miss every write of the kernel (`ld.global.nc`)."""
SHARED = 1 << SPACE_SHIFT
GLOBAL = 2 << SPACE_SHIFT
TENSOR = 3 << SPACE_SHIFT
SPACES = {SHARED: "shared", GLOBAL: "global", TENSOR: "tensor"}
SPACE_OF = {"smem": SHARED, "dsmem": SHARED, "gmem": GLOBAL}
"""The spaces that the detector tracks, by the dialect's memory spaces."""
SPACE_MASK = 7 << SPACE_SHIFT

SCOPES = ("cta", "cluster", "gpu", "sys")
"""The scopes of atomic accesses and fences, from the narrowest to the widest."""
CTA, CLUSTER, GPU, SYSTEM = range(len(SCOPES))
LEVELS = len(SCOPES)
"""Scopes that the detector tells apart. Where a program has one GPU, what is released to it is released to the system."""
LANES = 64
"""The most threads of the host that launch kernels on several devices."""
MOST_LAUNCHES = 1 << 15
"""The most launches on several devices until none runs and all ranks know of all."""
GROUPS_SHIFT = 16
"""On several devices, a group's number is that of its launch, shifted by this, plus its number in the launch."""
MOST_DEVICES = 16
MOST_FREED = 1 << 12
LEFT_OUT: tuple[str, ...] = (
    f"more than {MOST_LAUNCHES - 2} launches and accesses of the host since all ranks had met and none ran",
    f"more than {(1 << GROUPS_SHIFT) - 1} blocks or clusters in a launch",
    f"more than {MOST_FREED} pieces of symmetric memory that were given back",
)
"""Why something is not checked on several devices."""
ATOMIC_BIT = 1 << 31
SCOPE_AT = 29
NONCOHERENT_BIT = 1 << 28
WHO = NONCOHERENT_BIT - 1
"""Of `Access.who`: a bit for atomic accesses, the place of their scope, a bit for NONCOHERENT, the bits of the identity."""

LONE_NONCOHERENT = 1 << 31
"""Of `LoneCell.reader`."""

TENSOR_LANES = 16
"""Lanes of tensor memory that a cell stands for, in one column."""
TENSOR_ROWS = limits.TMEM_LANES // TENSOR_LANES
"""Cells of a column."""
MBARRIER_ARRIVALS = limits.MBARRIER_ARRIVALS
BARRIERS = limits.BARRIERS + 1
"""Barriers of a block, and that of its cluster."""
MAX_FINDINGS = 64
MAX_OBJECTS = 64
MAX_LEAVES = 12
MAX_MODES = 8
RING = 64
"""The most groups of copies of a thread in flight."""
FLIGHTS = 16
"""The most register arrays of a thread, or parts of them, that incomplete WGMMAs use."""
DENSE = 0xFFFF_FFFF
LOOKED = 1
PASSED = 2
PENDING = 4
"""States of a thread at an mbarrier: it has seen the phase complete, the phase is complete, it waits (plus the
parity)."""
PAGE_SHIFT = 12
MAX_PAGES = 1 << 20
"""Entries of the table of shadow pages for global memory (a power of two)."""
LOCATIONS = 1 << 14
"""Entries of the table of synchronizing addresses, atomics and mbarriers (a power of two)."""
_RULES_OF_KIND = {
    "race": (
        "read-write",
        "write-read",
        "write-write",
        "atomic",
        "scope",
        "device-scope",
        "non-coherent",
        "proxy",
        "map-proxy",
        "in-flight",
        "unfenced",
        "unfenced-read",
        "tmem-unwaited",
        "tmem-unwaited-load",
    ),
    "memory": (
        "bounds",
        "alignment",
        "uninitialized",
        "read-only",
        "swizzle",
        "negative",
        "outside",
        "multicast",
        "freed",
        "overwritten",
        "tmem-format",
        "tmem-scales",
    ),
    "sync": (
        "divergent",
        "other-way",
        "barrier-exited",
        "count",
        "barrier-early",
        "mbarrier-init",
        "mbarrier-twice",
        "mbarrier-overflow",
        "mbarrier-early",
        "mbarrier-bytes",
        "mbarrier-phase",
        "lanes-site",
        "lanes-mask",
        "lanes-exited",
        "block-exited",
        "block-started",
        "copy-unseen",
        "store-unseen",
        "pair-issuer",
    ),
    "numeric": ("not-finite", "index-overflow", "zero-division", "negative-shift"),
}
KIND_OF_RULE: dict[str, str] = {rule: kind for kind, rules in _RULES_OF_KIND.items() for rule in rules}
RULES: tuple[str, ...] = tuple(KIND_OF_RULE)
"""All rules; `Finding.rule` is an index."""
RULE: dict[str, int] = {name: number for number, name in enumerate(RULES)}
assert len(RULES) <= 64  # bits of a word
WARNINGS = ("store-unseen", "unfenced-read", "tmem-unwaited-load", "outside", "device-scope", "overwritten")
"""Rules that are warnings, not findings: public programs break them, and GPUs tolerate it (ptxas adds a missing
fence; a thread that uses what it loads from tensor memory waits for it; flags of scope gpu reach other GPUs)."""
WALKS = 1 << 10
"""Entries of the table of loops that load boxes (a power of two)."""


@struct
class Clock:
    """A vector clock, followed by its array. It is immutable once taken, but for the count of holders."""

    holders: u32
    group: u32
    unfenced: u32  # of a barrier: how many scopes the fence of some thread lacks (`memory_order.fence`)
    lowest: u32  # the least of its numbers for threads, plus 1; 0: not known yet
    length: u32  # of its array
    unused: u32
    next: Ptr[Clock]  # in the list of free ones
    last: Ptr[Clock]  # the clock joined into this one most recently: joining it again changes nothing
    foreign: Ptr[Foreign]  # what is known about other groups


@struct
class Foreign:
    """A clock of another group, in a list; the first entry of a group counts."""

    next: Ptr[Foreign]
    group: u32
    clock: Ptr[Clock]


@struct
class Fence:
    """The clock of a thread at a fence."""

    base: Ptr[Clock]
    own: Array[u32, SECTIONS]


@struct
class Registers:
    """Registers of a thread that a WGMMA uses, or that were accessed: an address range, empty if unused."""

    low: u64
    high: u64
    site: u32
    group: u32  # of WGMMAs, counted as in `Thread.groups`
    written: u32  # whether the WGMMA, or the access, writes them
    padding: u32


@struct
class Thread:
    """The state of a thread. Its clock is `base`, shared by threads that know the same, and its own elements."""

    base: Ptr[Clock]
    own: Array[u32, SECTIONS]  # own[s]: section s of its clock at its own place
    pending: Ptr[Clock]  # the clock of the barrier it waits at
    pending_cluster: Ptr[Clock]
    carried: Ptr[Clock]  # of the issuers of copies, in the mbarrier phase that it saw complete last; orders no memory
    fences: Array[Fence, LEVELS]  # for each scope, its last one of that scope or a wider one
    seen: Array[Ptr[Clock], LEVELS]  # clocks released at each scope that relaxed reads saw; a fence acquires them
    acquired: Ptr[Clock]  # its clock and own time when it last acquired tensor maps
    acquired_own: u32
    epoch: Array[u32, len(ENGINES)]  # of the operations it issues to each engine now; unused for itself
    groups: Array[u32, len(ENGINES)]  # committed so far
    exited: u32
    depended: u32  # it has waited for earlier launches
    stored: u32  # the time of its last TMA store, of engine BULK_SOURCE
    stored_site: u32
    fenced: u32  # it has accessed nothing since a sequentially consistent fence: its scope, plus 1
    ring: Array[u32, len(ENGINES) * RING]  # the epoch of each committed group
    flights: Array[Registers, FLIGHTS]  # that incomplete WGMMAs use
    touched: Array[Registers, FLIGHTS]  # accessed since the last `wgmma_fence`
    next_flight: u32  # the entry to reuse if all are taken
    next_touched: u32
    wgmma_fences: u32  # whether there was a `wgmma_fence`
    narrow: u32  # of the mbarrier that it last waited for, `Location.narrow`
    loaded: u32  # the time of the last load of its warp from tensor memory, of the first lane


@struct
class Access:
    """An access: its time, who made it, and where. A clock of 0 means none."""

    clock: u32
    who: u32  # the identity, and bits above it (`WHO`)
    site: u32
    group: u32


@struct
class Cell:
    """The last accesses to a few bytes.

    In shared memory, `read.who` DENSE means that there are more than two reads: a `Readers` is in place of `other`. While
    there is no such atomic write, a `CopySource` is in place of `atomic`.
    """

    write: Access
    atomic: Access  # an atomic write before it that was not ordered with it
    read: Access  # after the write
    other: Access  # another one


@struct
class CopySource:
    """What the last `cp.async` to a cell has copied there; it counts if that is the last write."""

    no_clock: u32  # 0, as a clock of `Cell.atomic`
    known: u32  # whether all bytes of the cell come from one address, or are all zeros
    address: u64  # 0: zeros


@struct
class Readers:
    """The reads of a cell with more than two."""

    array: Ptr[LastAccess]  # over all identities
    latest: u32  # clock in it; DENSE: an engine is among the readers


@struct
class LastAccess:
    """When and where an identity made its last access of a kind; a clock of 0 means none."""

    clock: u32
    site: u32


@struct
class LoneCell:
    """The accessors of a few bytes in a kernel whose threads never synchronize, as `State.lone_thread` numbers them.

    They are the last writer, a reader, and another reader. LONE_NONCOHERENT is a bit of a reader whose load was NONCOHERENT.
    """

    writer: u32
    writer_site: u32
    reader: u32
    reader_site: u32
    other: u32
    other_site: u32


@struct
class Arrival:
    """The arrival of the lowest lane of a warp in a phase of a barrier or mbarrier; `who` is 0 if there is none."""

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
    who: u32  # the thread of that arrival
    warp_site: Array[u32, 32]  # where each warp arrived, plus 1
    warp_lanes: Array[u32, 32]  # the lanes of each warp that arrived
    counted: u32  # whether an arrival named a number of threads; the fields below are used then
    late: Array[u32, 32]  # for each warp, as bits: warps whose arrival in the previous phase no lane of it knows
    now: Array[Arrival, 32]  # of each warp in this phase
    before: Array[Arrival, 32]  # and in the previous one


@struct
class Meeting:
    """A meeting of lanes."""

    clock: Ptr[Clock]
    arrived: u32
    mask: u32
    site: u32
    who: u32


@struct
class BulkSlot:
    """An mbarrier that counts bytes of copies."""

    thread: u32  # that issued the last one
    site: u32
    issued: u32  # the phase that it was issued in
    seen: u32  # the last complete phase that somebody waited for
    place: u64


@struct
class Location:
    """A synchronizing address: an atomic or an mbarrier."""

    key: u64
    released: Array[Ptr[Clock], LEVELS]  # by atomic writes, at each scope
    of: Array[u32, LEVELS]  # the block, the cluster, the device that released it
    scope: u32  # of the last atomic write
    unused: u32
    local: Ptr[Clock]  # of an mbarrier: what arrivals released in this phase so far
    published: Array[Ptr[Clock], 2]  # of an mbarrier: the clock of the last complete phase of each parity
    mbarrier: u32  # whether it is an mbarrier now
    site: u32
    who: u32
    parity: u32
    used: u32  # since its initialization
    expected: u64  # bytes of this phase, and bytes that arrived
    got: u64
    bytes_site: u32
    waits: Ptr[u32]  # of an mbarrier, for each thread: `LOOKED`, `PASSED` or `PENDING`
    wait_site: u32
    arrive_site: u32
    born: u32  # an address in shared memory: the group it belongs to, plus 1; else 0
    slot: u32  # of an mbarrier that copies bring bytes to: its place in `State.bulk`, plus 1
    phases: u32  # of an mbarrier: complete ones so far, over all its initializations
    count: u32  # of arrivals in a phase
    narrow: u32  # the site of an arrival whose scope does not include those who wait, plus 1
    carried: Ptr[Clock]  # of an mbarrier: the clock of the issuer of the last copy in this phase
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
    quiet: u64  # no thread writes its memory during the launch
    reach_low: u64  # its memory and that of all arguments that share some of it
    reach_high: u64
    bias: u64  # without synchronization: where the cell of address 0 would be; 0 if it has no cells
    leaves: Array[i64, MAX_LEAVES]


@struct
class Page:
    """The cells of some global memory."""

    key: u64
    cells: Ptr[Cell]


@struct
class Spare:
    """The header of an array of readers."""

    before: Ptr[Spare]  # of all
    next: Ptr[Spare]  # that is free


@struct
class Write:
    """A write to global memory: address, size, and the position of the old bytes in the log."""

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
class Delayed:
    """An atomic store that other threads do not see yet. Its size is a multiple of 16, for the value."""

    value: Array[u8, WIDEST_DELAYED]
    address: u64
    size: u32
    group: u32
    tid: u32
    site: u32
    unseen: u32  # whether a load of another thread did not see it
    of: Array[u32, LEVELS]  # what it releases, as `Location` has it
    released: Array[Ptr[Clock], LEVELS]


@struct
class Ending:
    """The joined clock of the threads of a block that have ended, and their number."""

    clock: Ptr[Clock]
    threads: u64


@struct
class Chunk:
    """The header of allocated memory."""

    before: Ptr[Chunk]
    unused: u64  # so that what follows is aligned to 16 bytes


@struct
class Finding:
    """A finding, in numbers."""

    rule: u32
    site: u32  # of the reported access or operation
    other_site: u32  # of the one that it conflicts with
    group: u32
    tid: u32
    other_group: u32
    other_tid: u32
    bytes: u32
    count: i64  # how often
    across_warps: u32  # whether two warps took part in any of them
    narrow: u32  # the site of an arrival that would order the two if its scope were wider, plus 1
    unseen_store: u32  # as in `State`
    unseen_load: u32
    iteration: i64  # of the innermost loop around the reported access
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
    before: u32  # whether the other side belongs to another launch, which came before or is of another device
    call: u32  # on several devices: the number of the call, and of that of the other side, plus 1
    other_call: u32
    device: u32  # whose memory it is, plus 1
    other_device: u32  # of the other side
    schedule: u32  # under which it was found
    operands: u32  # of an operation with a number that is not finite
    numbers: Array[i64, 2]  # these, as bits of doubles
    modes: u32  # of the tensor whose extents an access exceeds; 0 for other findings
    place: Array[i64, MAX_MODES]  # the coordinate outside
    extents: Array[i64, MAX_MODES]
    known: Object


@struct
class Walk:
    """The boxes that a block has loaded by a tensor map, one after the other along a mode of the tensor."""

    block: u64  # plus 1; 0: not in use
    map: u64  # its address
    phase: u64  # of the mbarrier that counted the last one
    last: Array[i64, MAX_MODES]  # its coordinates
    inside: u32
    outside: u32


@struct
class LaunchRecord:
    """A launch, or an access of the host, of a program on several devices."""

    call: u32
    device: u32
    lane: u32  # the thread of the host
    time: u32  # of that thread: how many launches it has begun
    kernel: u32
    unused: u32
    sizes: Sizes
    ended: Array[u32, LANES]  # launches of each thread of the host that had ended when it began, and were known there


@struct
class Freed:
    """Memory that a device has given back."""

    low: u64
    high: u64
    launch: u32  # the number of the record of who gave it back
    unused: u32


@struct
class Lane:
    """What a thread of the host knows, and so what it launches."""

    ended: Array[u32, LANES]  # as in `LaunchRecord`
    foreign: Ptr[Foreign]  # parts of launches that have not ended, or are not known wholly
    in_use: u64


@struct
class Point:
    """What a thread of the host knew once."""

    ended: Array[u32, LANES]
    foreign: Ptr[Foreign]
    forgotten: u64  # as in `World`, then


@struct
class LastWrite:
    """Who wrote an address last."""

    is_there: u32
    call: u32
    kernel: u32
    device: u32
    site: u32
    group: u32
    tid: u32
    unused: u32
    sizes: Sizes


@struct
class World:
    """What launches of several devices share besides the memory of `State` (`devices.py`)."""

    mutex: Array[u64, 8]
    turned: Array[u64, 8]  # a condition of pthreads
    tickets: u64  # handed out, and the one whose turn it is
    turn: u64
    running: Ptr[State]  # what the detector's state belongs to now
    calls: u64  # that run
    records: Ptr[LaunchRecord]
    launches: u32
    devices: u32
    lanes: Array[Lane, LANES]
    low: Array[u64, MOST_DEVICES]  # the symmetric memory of each device
    high: Array[u64, MOST_DEVICES]
    multicast_low: u64
    multicast_high: u64
    freed: Ptr[Freed]
    freed_count: u64
    forgotten: u64  # how often all launches were forgotten
    left_out: u32  # what was not checked: bits of `LEFT_OUT`
    unused: u32


@struct
class State:
    """The whole state of the detector."""

    # see `schedules.py`
    seed: Ptr[i64]  # the runtime's
    further: u32  # schedules of a launch besides the first
    tried: u32  # the most schedules of a launch of the call so far
    once: u32  # why launches were not repeated: bits of `ONCE`
    schedule: u32  # of the run now
    recording: u32  # the log that writes go to, plus 1
    findings_before: u32  # findings before the launch
    begun: i64
    logs: Array[Log, 2]
    active: u32
    rules: u64  # the rules whose findings are looked for, as bits
    by_default: u32  # whether this is a launch that is checked by default (`default_checks.py`)
    left: u64  # then: accesses that are still looked at for unset memory
    group: u32
    threads: u32  # N
    per_block: u32
    length: u32  # of a clock's array
    identities: u32
    shift: u32  # log2 of the bytes a cell stands for
    smem: u32  # bytes of shared memory of a block that the program may use
    cells_per_block: u32
    engines: u32  # in use: the first ones of `ENGINES`
    relaxes: u32  # whether waits for mbarriers may be relaxed
    over_section: u32  # the first section of a clock for accesses that are over; 0: there is none
    kernel: u32
    current: Ptr[Thread]  # the running thread
    tid: u32
    exits: u32  # threads of the group that have exited
    arena: u64
    arena_end: u64
    chunk: u64
    thread_array: Ptr[Thread]
    cells: Ptr[Cell]
    cells_bytes: u64
    written: Ptr[u8]  # of a launch checked by default, in place of `cells`: whether there was a write
    tensor_cells: Ptr[Cell]  # of tensor memory, for each block: cells of 16 lanes by column
    tensor_written: Ptr[u8]  # of a launch checked by default, in place of these: whether there was a write
    tensor_tags: Ptr[u32]  # what wrote each of them last (`tensor_memory.py`)
    tensor_slots: Ptr[u32]  # of each block: slots that are allocated, as bits; null if there is no tensor memory
    tiles: Ptr[u32]  # for each cell of shared memory: where its bytes lie without their swizzle, plus 1
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
    walks: Ptr[Walk]
    memory: Ptr[Chunk]  # the list of all allocations
    allocated: u64
    limit: u64
    remote: Ptr[
        LastAccess
    ]  # of clusters: for each block and identity, its last access to that block's memory from another, and its last write
    endings: Ptr[Ending]  # for each block
    bulk: Ptr[BulkSlot]  # one for each thread of the group
    bulk_count: u32
    bulk_slot: u32  # of the current copy
    bulk_phase: u32  # its time, plus 1
    memo: Array[Ptr[Clock], 3]
    view_memo: Array[Ptr[Clock], 2]
    view_of: u32
    wgmma_memo: Array[Ptr[Clock], 2]
    wgmma_memo_place: u32  # the identity by which the second clock exceeds the first
    wgmma_memo_epoch: u32
    scratch: u64
    iteration: i64  # of the innermost loop around the next access, if there is one
    value: u64  # address of the value of the next write, if known
    value_for: u64  # the address it is written to
    source: u64  # what the next `cp.async` reads, how many bytes, and where it writes them
    source_bytes: u32
    source_for: u64
    objects: Array[Object, MAX_OBJECTS]
    object_count: u32
    findings_count: u32
    extents_count: u32
    overflow: u32  # findings that were dropped
    delayed: Ptr[Delayed]  # in the order of the program, of each thread
    delayed_count: u32
    stores: u32  # whether the launch has atomic stores
    unseen_store: u32  # the site of a store that was delayed, plus 1, and of a load that did not see it
    unseen_load: u32
    lone: u32  # whether the threads of the kernel never synchronize
    lone_thread: u32  # then: the number of the running thread in the launch, plus 1
    sequential: u32  # whether there was a sequentially consistent fence
    readonly: u32  # whether an argument of the launch may not be written
    sizes: Sizes
    # groups are counted on through launches that may run at the same time
    several: u32  # whether the program runs on several devices
    call: u32  # then: the number of this call, the device and the thread of the host of its launches
    device: u32
    lane: u32
    learned: Ptr[Foreign]  # parts of other launches that threads knew when they exited, and those of the last one
    learned_last: Ptr[Foreign]
    widest: u32  # the widest of `SCOPES` that is told apart from others
    global_shift: u32  # `shift` for global memory
    first_group: u32  # of this launch
    next_group: u32
    before_group: u32  # the first group of the launch before, if that may still run; else as `first_group`
    before_kernel: u32
    before_sizes: Sizes
    launches: u32  # of the call so far
    programmatic: u32  # whether this launch may overlap the previous one
    stream: u64
    extent_low: Array[u64, MAX_OBJECTS]
    extent_high: Array[u64, MAX_OBJECTS]
    extent_readonly: Array[u32, MAX_OBJECTS]
    unplaced: Ptr[Finding]  # a "not-finite" finding whose store has not been seen
    unplaced_tid: u32
    findings: Array[Finding, MAX_FINDINGS]


detector: Library = Library("sanitizer", prefix="kiln_cpu_san_")
"""The library of functions that instrumented code calls."""
state = detector.variable("state", State)
world = detector.variable("world", World)
