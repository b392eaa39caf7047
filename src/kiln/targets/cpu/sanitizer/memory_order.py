"""Synchronization through memory: atomics, ordered loads and stores, fences."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, inline, native, ref, u32, u64
from ..runtime.engine_table import GENERIC
from .clocks import acquire, clock_drop, clock_hold, clock_join, clock_new, clock_union, numbers, tick
from .locations import blocks_of, has_fenced, location, publish, released
from .memory import lesser, raise_to
from .state import (
    CTA,
    GPU,
    IN_GLOBAL,
    IN_SHARED,
    LEVELS,
    MAPS,
    RELEASED_MAPS,
    SECTIONS,
    Clock,
    Location,
    Thread,
    detector,
    state,
)
from .store_buffer import load_from, settle_at, settle_own


@detector.export
def atomic_load(address: u64, size: u32, order: u32, scope: u32, site: u32) -> u64:
    """Order an atomic load, and return the address to read from. `order`: 1 acquires.

    A release and an acquire are ordered if the scope of each includes the other's thread. So a release counts at its
    scope and at narrower ones, and an acquire looks at those: what was released there by its block, or its cluster.
    """
    st = state.place
    if st.active == 0:
        return address
    if st.delayed_count != 0:
        place = load_from(address, size, site)
        if place != address:  # what the thread itself has stored
            return place
    entry = location(address, False)
    if entry != None:
        for level in range(u32(LEVELS)):
            if is_seen(entry, level, scope):
                learn(entry, level, order)
    return address


@native
def is_seen(entry: Ptr[Location], level: u32, scope: u32) -> bool:
    """Return whether the running thread sees what was released at an address at a level, by an access of a scope.

    Accesses of two devices whose scope is that of a device are reported as such (`shadow.check_scopes`), and count then.
    """
    st = state.place
    if level <= lesser(scope, st.widest) and entry.of[level] == blocks_of(level, st.group, st.tid):
        return True
    return st.several != 0 and level >= GPU and scope >= GPU and lesser(scope, entry.scope) == GPU


@inline
def learn(entry, level, order):
    """Acquire what was released at an address; a relaxed access does so with the next fence."""
    if order & 1 != 0:
        acquire(entry.released[level])
    else:
        see(ref(state.place.current).seen + level, entry.released[level])


@detector.export
def atomic(address: u64, size: u32, order: u32, scope: u32) -> None:
    """Order an atomic update, which continues what was released before. `order`: 1 acquires, 2 releases."""
    st = state.place
    if st.active == 0:
        return
    settle_own()
    settle_at(address, size)
    explicit = order & 2 != 0
    widest = lesser(scope, st.widest)
    entry = location(address, explicit or has_fenced(st.current, CTA))
    if entry != None:
        for level in range(u32(LEVELS)):
            mine = blocks_of(level, st.group, st.tid)
            here = is_seen(entry, level, scope)
            if here:
                learn(entry, level, order)
            clock_ = released(level, widest, explicit)
            if here and entry.released[level] != None:
                if clock_ == None:
                    clock_ = clock_new()
                clock_join(clock_, entry.released[level])
            publish(entry, level, clock_, mine)
        entry.scope = scope
    if explicit:
        tick(st.current)


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
    if sequential != 0:
        settle_own()
    widest = lesser(scope, st.widest)
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
    settle_own()
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
            joined = clock_new()
            clock_join(joined, base)
            see_more(numbers(joined), u64(st.threads), whose)
            clock_hold(base)
            clock_drop(st.view_memo[0])
            clock_drop(st.view_memo[1])
            st.view_memo[0] = base
            st.view_memo[1] = joined
            st.view_of = whose
        clock_hold(st.view_memo[1])
        clock_drop(base)
        thread.base = st.view_memo[1]
    tick(thread)


@native
def see_more(times: Ptr[u32], n: u64, whose: u32) -> None:
    """Copy sections of a clock, each of `n` numbers, to those of the views."""
    first = n * state.place.engines
    maps = first + 2 * GENERIC * n
    for bit, source, target, count in (
        (IN_SHARED, u64(0), first, n * GENERIC),
        (IN_GLOBAL, u64(0), first + n * GENERIC, n * GENERIC),
        (RELEASED_MAPS, u64(0), maps, n),
    ):
        if whose & bit != 0:
            for i in range(count):
                raise_to(ref(times)[target + i], times[source + i])
