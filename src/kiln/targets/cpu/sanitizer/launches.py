"""Events of a call: arguments, launches, groups of blocks, threads that start and exit."""

from __future__ import annotations

from ....native import Ptr, address, i64, native, ref, size_of, u8, u32, u64
from ..runtime.engine_table import BULK_LOAD, ENGINES
from ..runtime.records import TMEM_COLUMNS, Sizes
from .barriers import leave_meetings
from .clocks import clock_drop, clock_new, identity, knows_over, numbers, release, sections
from .default_checks import ACCESSES
from .devices import begin_group, begin_launch, end_launch, keep_parts
from .mbarriers import unseen_copies, unseen_stores
from .memory import allocate, clear, copy, free_all, greater, lesser, many
from .pages import refine
from .reporting import about, report
from .state import (
    BARRIERS,
    GPU,
    GROUPS_SHIFT,
    LEVELS,
    MAX_OBJECTS,
    RULE,
    SCRATCH,
    STORING,
    SYSTEM,
    TENSOR_ROWS,
    BarrierSlot,
    Cell,
    Clock,
    Ending,
    LastAccess,
    Meeting,
    Thread,
    detector,
    state,
    world,
)
from .store_buffer import forget_shared, settle_all

_MOST_REMOTE = 1 << 26
"""The most bytes for records of accesses to other blocks' shared memory."""

_CLEARED_POINTERS = (
    "locations",
    "free_clocks",
    "free_arrays",
    "arrays",
    "thread_array",
    "cells",
    "written",
    "tiles",
    "tensor_cells",
    "tensor_written",
    "tensor_tags",
    "tensor_slots",
    "slots",
    "meetings",
    "remote",
    "endings",
    "unplaced",
    "bulk",
    "walks",
    "delayed",
)
_CLEARED_NUMBERS = (
    "threads",
    "object_count",
    "arena",
    "arena_end",
    "readonly",
    "lone",
    "sequential",
    "bulk_count",
    "delayed_count",
    "stores",
    "unseen_store",
    "unseen_load",
)
"""Fields of the state that a launch clears."""


EMPTY = (1 << 64) - 1
"""In place of the bytes of an array: it has no elements."""


@detector.export
def begin() -> None:
    """A call from Python begins."""
    st = state.place
    st.extents_count = 0
    st.launches = 0


@detector.export
def extent(low: u64, size: u64, readonly: u32) -> None:
    """Record the memory of an argument of the call."""
    st = state.place
    count = st.extents_count
    if count < MAX_OBJECTS and low != 0:
        st.extent_low[count] = low
        st.extent_high[count] = low if size == EMPTY else low + size
        st.extent_readonly[count] = readonly
        st.extents_count = count + 1


@detector.export
def launch(
    rules: u64,
    by_default: u32,
    kernel: u32,
    shift: u32,
    engines: u32,
    relaxes: u32,
    smem: u32,
    stream: u64,
    programmatic: u32,
) -> None:
    """Begin a launch that is checked for some `rules`, as bits, with so many engines in use.

    A `programmatic` one may overlap the previous launch.
    """
    st = state.place
    # the default stream, 0, comes after all others
    other = stream != st.stream and stream != 0 and st.stream != 0
    if st.several != 0:
        st.last_page = 0
        st.last_page_at = None
        if shift < st.global_shift:
            refine(shift)
    elif st.launches != 0 and (programmatic != 0 or other):
        st.before_group = st.first_group
        st.before_kernel = st.kernel
        copy(st.before_sizes, st.sizes)
        st.first_group = st.next_group
    else:
        free_all()
        st.pages = None
        st.page_count = 0
        st.last_page = 0
        st.last_page_at = None
        st.first_group = 0
        st.next_group = 0
        st.before_group = 0
    st.launches += 1
    st.stream = stream
    st.programmatic = programmatic
    locations = st.locations
    for name in _CLEARED_POINTERS:
        setattr(st, name, None)
    if st.several != 0:
        st.locations = locations
    for name in _CLEARED_NUMBERS:
        setattr(st, name, 0)
    clear(ref(st).memo, 3)
    clear(ref(st).view_memo, 2)
    clear(ref(st).wgmma_memo, 2)
    st.rules = rules
    st.by_default = by_default
    st.left = ACCESSES
    st.kernel = kernel
    st.shift = shift
    if st.several == 0:
        st.global_shift = shift
    st.engines = engines
    st.relaxes = relaxes
    st.smem = smem
    st.limit = 3 << 30
    st.widest = SYSTEM if st.several != 0 else GPU
    st.active = 1
    if st.several != 0:
        begin_launch()
    st.scratch = address(allocate(2 * SCRATCH))
    clear(ref(st).objects, MAX_OBJECTS)


@detector.export
def object_(number: u32, base: u64, size: u64, written: u32) -> None:
    """Record an argument of the kernel: its memory is the call's argument that it points into, else its layout's."""
    st = state.place
    o = st.objects[number]
    o.base = base
    o.written = written
    o.low = base
    o.high = u64(0) if size == 0 else base if size == EMPTY else base + size
    # of several arrays that share memory it may be any
    lowest = base
    highest = u64(0)
    readonly = u32(1)
    for i in range(st.extents_count):
        low = st.extent_low[i]
        high = st.extent_high[i]
        if base >= low and base < high:
            lowest = lesser(low, lowest)
            highest = greater(high, highest)
            readonly &= st.extent_readonly[i]
    if highest != 0:
        o.low = lowest
        o.high = highest
        o.readonly = readonly
        st.readonly |= readonly
    st.object_count = number + 1


@detector.export
def leaf(number: u32, index: u32, value: i64) -> None:
    """Record a dynamic leaf of an argument's layout."""
    state.place.objects[number].leaves[index] = value


@detector.export
def launched(keep: u32) -> None:
    """End a launch; with `keep` its accesses may race with those of the next one."""
    st = state.place
    forget_shared()
    settle_all()
    st.active = 0
    if st.several != 0:
        end_launch()
    elif keep == 0:
        free_all()
        st.launches = 0


@detector.export
def depends() -> None:
    """The running thread has waited for the launches before."""
    state.place.current.depended = 1


@detector.export
def group(arena: u64, sizes: Ptr[Sizes], number: u32) -> None:
    """The scheduler starts a group."""
    st = state.place
    copy(st.sizes, sizes)
    per_block = sizes.block[0] * sizes.block[1] * sizes.block[2]
    blocks = sizes.group
    n = per_block * blocks
    st.group = st.first_group + (lesser(number, u32((1 << GROUPS_SHIFT) - 1)) if st.several != 0 else number)
    if st.several != 0 and number >= (1 << GROUPS_SHIFT) - 1:
        world.place.left_out |= 2
    if st.next_group <= st.group:
        st.next_group = st.group + 1
    st.exits = 0
    forget_shared()
    st.arena = arena
    st.chunk = sizes.chunk
    st.arena_end = arena + st.chunk * blocks
    warps = ((per_block + 31) >> 5) * blocks
    plain = st.by_default != 0
    if st.threads != n:
        st.threads = n
        st.per_block = per_block
        clustered = sizes.cluster[0] * sizes.cluster[1] * sizes.cluster[2] > 1
        over = clustered or st.relaxes != 0
        st.over_section = sections(st.engines) if over else u32(0)
        all_sections = sections(st.engines) + (lesser(st.engines, u32(STORING)) if over else u32(0))
        st.length = u32(0) if plain else n * all_sections
        st.identities = n * st.engines
        st.cells_per_block = (sizes.smem >> st.shift) + 1
        st.thread_array = many(Thread, n)
        if plain:
            st.written = many(u8, u64(st.cells_per_block) * blocks)
        else:
            st.cells = many(Cell, u64(st.cells_per_block) * blocks)
        st.tiles = None
        if sizes.tmem != 0:
            if plain:
                st.tensor_written = many(u8, TENSOR_ROWS * TMEM_COLUMNS * blocks)
            else:
                st.tensor_cells = many(Cell, TENSOR_ROWS * TMEM_COLUMNS * blocks)
            st.tensor_tags = many(u32, TENSOR_ROWS * TMEM_COLUMNS * blocks)
            st.tensor_slots = many(u32, blocks)
        st.bulk = None
        st.bulk_count = 0
        st.slots = many(BarrierSlot, blocks * BARRIERS)
        st.meetings = many(Meeting, warps * 32)
        remote = u64(blocks) * st.identities * 2
        if clustered and not plain and remote * size_of(LastAccess) < _MOST_REMOTE:
            st.remote = many(LastAccess, remote)
            st.endings = many(Ending, blocks)
    else:
        forget(blocks, warps)
    for i in range(n):
        thread = st.thread_array[i]
        thread.own[0] = 2  # who knows of 1 knows that it has started
        for engine in range(1, len(ENGINES)):
            thread.epoch[engine] = 1
    if st.several != 0:
        begin_group()


@native
def forget(blocks: u32, warps: u32) -> None:
    """Clear the state of the previous group."""
    st = state.place
    for i in range(st.threads):
        thread = st.thread_array[i]
        for clock in (thread.base, thread.pending, thread.pending_cluster, thread.acquired, thread.carried):
            clock_drop(clock)
        for level in range(LEVELS):
            clock_drop(thread.fences[level].base)
            clock_drop(thread.seen[level])
    for i in range(blocks * BARRIERS):
        clock_drop(st.slots[i].clock)
    for i in range(warps * 32):
        clock_drop(st.meetings[i].clock)
    clear(st.thread_array, st.threads)
    if st.cells != None:
        clear(st.cells, u64(st.cells_per_block) * blocks)
    if st.written != None:
        clear(st.written, u64(st.cells_per_block) * blocks)
    clear(st.slots, blocks * BARRIERS)
    clear(st.meetings, warps * 32)
    if st.tiles != None:
        clear(st.tiles, u64(st.cells_per_block) * blocks)
    if st.tensor_cells != None:
        clear(st.tensor_cells, TENSOR_ROWS * TMEM_COLUMNS * blocks)
    if st.tensor_written != None:
        clear(st.tensor_written, TENSOR_ROWS * TMEM_COLUMNS * blocks)
    if st.tensor_slots != None:
        clear(st.tensor_tags, TENSOR_ROWS * TMEM_COLUMNS * blocks)
        clear(st.tensor_slots, blocks)
    if st.remote != None:
        clear(st.remote, u64(blocks) * st.identities * 2)
        for i in range(blocks):
            clock_drop(st.endings[i].clock)
        clear(st.endings, blocks)
    # memoized clocks are of the last group
    for i in range(3):
        clock_drop(st.memo[i])
    for i in range(2):
        clock_drop(st.view_memo[i])
        clock_drop(st.wgmma_memo[i])
    clear(ref(st).memo, 3)
    clear(ref(st).wgmma_memo, 2)
    clear(ref(st).view_memo, 2)
    if st.bulk != None:
        clear(st.bulk, st.threads)
    st.bulk_count = 0
    st.free_arrays = st.arrays
    array = st.arrays
    while array != None:
        array.next = array.before
        array = array.before


@detector.export
def switch(rank: u32, thread: u32) -> None:
    """The scheduler resumes a thread."""
    st = state.place
    st.tid = rank * st.per_block + thread
    st.current = ref(st.thread_array)[st.tid]


@detector.export
def exit_() -> None:
    """The running thread exits."""
    st = state.place
    st.current.exited = 1
    st.exits += 1
    leave_meetings()
    unseen_stores()
    if st.several != 0:
        keep_parts()
    if st.exits == st.threads:
        unseen_copies()
    if st.remote != None:
        rank = st.tid // st.per_block
        ending = st.endings[rank]
        if ending.clock == None:
            ending.clock = clock_new()
        release(ending.clock)
        ending.threads += 1
        if ending.threads == st.per_block:
            check_remote_accesses(rank, ending.clock)


@native
def check_remote_accesses(rank: u32, clock: Ptr[Clock]) -> None:
    """Check, when a block has ended, that its threads know of every access of other blocks to its shared memory."""
    st = state.place
    for k in range(st.identities * 2):
        access = st.remote[rank * st.identities * 2 + k]
        i = k % st.identities
        has_seen = numbers(clock)[i] >= access.clock
        if k < st.identities and i < st.threads:  # of a read or an arrival it is enough that it is over
            has_seen = knows_over(clock, i, access.clock)
        if access.clock != 0 and not has_seen:
            who = st.bulk[i - BULK_LOAD * st.threads].thread if i // st.threads == BULK_LOAD else i % st.threads
            about(who, "block-exited", access.site, access.site, st.group, st.tid, 0, 0, rank)


@native
def remote_access(rank: u32, engine: u32, site: u32, writes: u32) -> None:
    """The running thread accesses the shared memory of another block of its cluster."""
    st = state.place
    me, clock = identity(engine)
    access = st.remote[(rank * 2 + writes) * st.identities + me]
    access.clock = clock
    access.site = site
    must_have_started(rank, site)
    if st.endings[rank].threads == st.per_block:
        report(RULE["block-exited"], site, site, st.group, rank * st.per_block, 0, 0, rank, 1)


@native
def must_have_started(rank: u32, site: u32) -> None:
    """Check that the running thread knows that another block of its cluster has started."""
    st = state.place
    first = rank * st.per_block
    base = st.current.base
    started = False
    if base != None:
        for i in range(st.per_block):
            if knows_over(base, first + i, u32(1)):
                started = True
    if not started:
        report(RULE["block-started"], site, site, st.group, first, 0, 0, rank)
