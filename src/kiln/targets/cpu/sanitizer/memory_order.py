"""Synchronization through memory: atomics, ordered loads and stores, fences."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, inline, native, ref, u32, u64
from ..runtime.engine_table import GENERIC
from .clocks import acquire, clock_drop, clock_hold, clock_join, clock_new, clock_union, numbers, release_into, tick
from .memory import clear, lesser, many, raise_to
from .state import (
    CLUSTER,
    GPU,
    IN_GLOBAL,
    IN_SHARED,
    LEVELS,
    LOCATIONS,
    MAPS,
    RELEASED_MAPS,
    SECTIONS,
    Clock,
    Location,
    Thread,
    detector,
    state,
)

_MIX = 0x9E37_79B9_7F4A_7C15


@inline
def hashed(key, entries):
    """Return the hash of a key in a table with a power of two of entries."""
    return (key * u64(_MIX)) >> (64 - entries.bit_length() + 1)


@native
def location(address: u64, create: bool) -> Ptr[Location]:
    """Return the record of an address; None if it has none and `create` is false, or the table is full."""
    st = state.place
    if st.locations == None:
        st.locations = many(Location, LOCATIONS)
    slot = hashed(address, LOCATIONS)
    tries = u64(0)
    while st.locations[slot].key != 0 and st.locations[slot].key != address and tries < LOCATIONS - 1:
        slot = (slot + 1) & (LOCATIONS - 1)
        tries += 1
    found = st.locations[slot]
    if found.key == address:
        # an address in shared memory is another thing in another group
        if found.born != 0 and found.born != st.group + 1:
            if not create:
                return None
            for level in range(LEVELS):
                clock_drop(found.released[level])
            for parity in range(2):
                clock_drop(found.published[parity])
                clock_drop(found.carried_before[parity])
            clock_drop(found.local)
            clock_drop(found.carried)
            waits, now, before = found.waits, found.now, found.before
            clear(found)
            found.waits, found.now, found.before = waits, now, before
            found.key = address
            found.born = st.group + 1
        return found
    if not create or found.key != 0:
        return None
    found.key = address
    if address >= st.arena and address < st.arena_end:
        found.born = st.group + 1
    return found


@native
def chained(old: Ptr[Clock], chain: bool, released: bool, base: Ptr[Clock], own: Ptr[u32]) -> Ptr[Clock]:
    """Return the clock of an address after a write: the previous release, if the write continues it (`chain`), and its
    own."""
    made = Ptr[Clock](None)
    if released or (chain and old != None):
        made = clock_new()
        if chain:
            clock_join(made, old)
        if released:
            release_into(made, base, own)
    clock_drop(old)
    return made


@native
def blocks_of(level: u32, group: u32, tid: u32) -> u32:
    """Return the number of the block or cluster of a thread; 0 for wider scopes, which have all threads of the GPU."""
    st = state.place
    number = group * st.sizes.group + tid % st.threads // st.per_block
    if level == CLUSTER:
        number = number // (st.sizes.cluster[0] * st.sizes.cluster[1] * st.sizes.cluster[2])
    return number if level < GPU else u32(0)


@native
def in_scope(scope: u32, group: u32, tid: u32) -> bool:
    """Return whether a scope of the running thread includes another thread, which may be of another launch."""
    st = state.place
    if scope >= GPU:
        return True
    return group >= st.first_group and blocks_of(scope, group, tid) == blocks_of(scope, st.group, st.tid)


@detector.export
def atomic(address: u64, order: u32, scope: u32, how: u32) -> None:
    """Order an atomic access. `order`: 1 acquires, 2 releases; `how`: 0 load, 1 store, 2 both.

    A release and an acquire are ordered if the scope of each includes the other's thread. So a release counts at its
    scope and at narrower ones, and an acquire looks at those: what was released there by its block, or its cluster.
    """
    st = state.place
    if st.active == 0:
        return
    thread = st.current
    explicit = order & 2 != 0
    fenced = thread.fences[0].own[0] != 0
    widest = lesser(scope, u32(GPU))
    found = location(address, how != 0 and (explicit or fenced))
    if found != None:
        for level in range(u32(LEVELS)):
            mine = blocks_of(level, st.group, st.tid)
            here = found.of[level] == mine and level <= widest
            if how != 1 and here:
                if order & 1 != 0:
                    acquire(found.released[level])
                else:
                    see(ref(thread).seen + level, found.released[level])
            if how != 0:
                released = level <= widest and (explicit or thread.fences[level].own[0] != 0)
                base, own = thread.base, ref(thread).own
                if not explicit:
                    base, own = thread.fences[level].base, ref(thread.fences[level]).own
                found.released[level] = chained(found.released[level], how == 2 and here, released, base, own)
                found.of[level] = mine
    if explicit:
        tick(thread)


@native
def see(place: Ptr[Ptr[Clock]], clock: Ptr[Clock]) -> None:
    if clock != None:
        before = place[0]
        place[0] = clock_union(before, clock)
        clock_drop(before)


@detector.export
def fence(scope: u32, sequential: u32) -> None:
    """Acquire what relaxed reads saw; later relaxed writes release what the thread knows now.

    Sequentially consistent fences are totally ordered, so a barrier may stand between the fence and the write: if all
    threads that arrive at it have executed one, writes after it release as of the barrier.
    """
    st = state.place
    if st.active == 0:
        return
    thread = st.current
    widest = lesser(scope, u32(GPU))
    for level in range(widest + 1):
        acquire(thread.seen[level])
    remember(thread, widest)
    if sequential != 0:
        st.sequential = 1
        raise_to(ref(thread).fenced, widest + 1)
    tick(thread)


@native
def remember(thread: Ptr[Thread], widest: u32) -> None:
    """Let the thread's relaxed writes of a scope and of narrower ones release what it knows now."""
    for level in range(widest + 1):
        fence = thread.fences[level]
        clock_hold(thread.base)
        clock_drop(fence.base)
        fence.base = thread.base
        for section in range(SECTIONS):
            fence.own[section] = thread.own[section]


@inline
def arrives_fenced(clock):
    """Note at which scope the running thread, which arrives at a barrier, has fenced."""
    raise_to(ref(clock).unfenced, LEVELS - state.place.current.fenced)


@native
def fenced_barrier(clock: Ptr[Clock]) -> None:
    """Treat a barrier as a fence of the scope at which all threads arrived at it fenced, if any."""
    st = state.place
    if st.sequential != 0 and clock.unfenced < LEVELS:
        thread = st.current
        fenced = LEVELS - clock.unfenced
        remember(thread, fenced - 1)
        thread.fenced = fenced
        tick(thread)


@detector.export
def view(whose: u32) -> None:
    """Order accesses of the generic proxy before those of others: some of IN_SHARED, IN_GLOBAL, RELEASED_MAPS, MAPS."""
    st = state.place
    if st.active == 0 or st.engines <= GENERIC:
        return
    thread = st.current
    base = thread.base
    if whose & MAPS != 0:  # its own copies only: nobody else learns that
        clock_hold(base)
        clock_drop(thread.acquired)
        thread.acquired = base
        thread.acquired_own = thread.own[st.engines + 2 * GENERIC]
        return
    see_more(ref(thread).own, u64(1), whose)
    if base != None:
        if st.view_memo[0] != base or st.view_of != whose:
            made = clock_new()
            clock_join(made, base)
            see_more(numbers(made), u64(st.threads), whose)
            clock_hold(base)
            clock_drop(st.view_memo[0])
            clock_drop(st.view_memo[1])
            st.view_memo[0] = base
            st.view_memo[1] = made
            st.view_of = whose
        clock_hold(st.view_memo[1])
        clock_drop(base)
        thread.base = st.view_memo[1]
    tick(thread)


@native
def see_more(known: Ptr[u32], n: u64, whose: u32) -> None:
    """Copy sections of a clock, each of `n` numbers, to those of the views."""
    first = n * state.place.engines
    maps = first + 2 * GENERIC * n
    for bit, source, target, count in (
        (IN_SHARED, u64(0), first, n * GENERIC), (IN_GLOBAL, u64(0), first + n * GENERIC, n * GENERIC),
        (RELEASED_MAPS, u64(0), maps, n),
    ):  # fmt: skip
        if whose & bit != 0:
            for i in range(count):
                raise_to(ref(known)[target + i], known[source + i])
