"""Vector clocks: what a thread knows of all others; releases publish them, acquires join them.

An immutable clock is shared by all threads that know the same: after a barrier of a block there is one.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, inline, native, ref, size_of, u32, u64
from ..runtime.engine_table import BULK_LOAD, GENERIC
from .memory import allocate, clear, greater, lesser, many, raise_to
from .state import GROUPS_SHIFT, MAPS, OVER, STORING, VIEWS, Clock, Foreign, state, world


@inline
def numbers(clock):
    """Return a clock's array, by identity."""
    return Ptr[u32](clock + 1)


@native
def clock_new() -> Ptr[Clock]:
    """Return an empty clock of this group, with one holder."""
    return clock_of_length(state.place.length)


@native
def clock_of_length(length: u32) -> Ptr[Clock]:
    """Return an empty clock, with one holder."""
    st = state.place
    clock = st.free_clocks
    if clock == None or length != st.length:
        clock = Ptr[Clock](allocate(u64(length) * 4 + size_of(Clock)))
        clock.length = length
    else:
        st.free_clocks = clock.next
        clear(numbers(clock), length)
    clock.holders = 1
    clock.lowest = 0
    clock.unfenced = 0
    clock.group = st.group
    clock.last = None
    clock.foreign = None
    return clock


@native
def clock_lowest(clock: Ptr[Clock]) -> u32:
    """Return the minimum of a clock over threads. The clock must no longer change."""
    if clock.lowest == 0:
        times = numbers(clock)
        least = u32(0xFFFF_FFFE)
        for i in range(state.place.threads):
            least = lesser(times[i], least)
        clock.lowest = least + 1
    return clock.lowest - 1


@native
def clock_hold(clock: Ptr[Clock]) -> None:
    if clock != None:
        clock.holders += 1


@native
def clock_drop(clock: Ptr[Clock]) -> None:
    st = state.place
    while clock != None:
        left = clock.holders - 1
        clock.holders = left
        following = Ptr[Clock](None)
        if left == 0:
            following = clock.last
            if clock.length == st.length:  # others are of another launch, and end with the detector's memory
                clock.next = st.free_clocks
                st.free_clocks = clock
        clock = following


@native
def foreign_find(list_: Ptr[Foreign], group: u32) -> Ptr[Clock]:
    """Return the clock of a group in a list; None if there is none."""
    while list_ != None:
        if list_.group == group:
            return list_.clock
        list_ = list_.next
    return None


@native
def foreign_add(list_: Ptr[Foreign], group: u32, clock: Ptr[Clock]) -> Ptr[Foreign]:
    """Return a list of clocks of other groups, joined with `clock` for `group`."""
    old = foreign_find(list_, group)
    if old == clock:
        return list_
    joined = clock
    if old != None:
        joined = clock_of_length(clock.length)
        joined.group = group
        clock_max(joined, old)
        clock_max(joined, clock)
    else:
        clock_hold(clock)
    node = many(Foreign, 1)
    node.next = list_
    node.group = group
    node.clock = joined
    return node


@native
def foreign_merge(list_: Ptr[Foreign], other: Ptr[Foreign]) -> Ptr[Foreign]:
    if list_ == None:
        return other
    if list_ != other:
        while other != None:
            list_ = foreign_add(list_, other.group, other.clock)
            other = other.next
    return list_


@native
def clock_max(into: Ptr[Clock], clock: Ptr[Clock]) -> None:
    """Take the maximum element by element."""
    mine = numbers(into)
    others = numbers(clock)
    for i in range(u64(into.length)):
        mine[i] = greater(mine[i], others[i])


@native
def clock_join(into: Ptr[Clock], clock: Ptr[Clock]) -> None:
    """Join another clock into one that nobody else has taken."""
    if clock == None or clock == into or clock == into.last:
        return
    into.foreign = foreign_merge(into.foreign, clock.foreign)
    if clock.group == state.place.group:
        clock_max(into, clock)
    else:
        into.foreign = foreign_add(into.foreign, clock.group, clock)
    clock_hold(clock)
    clock_drop(into.last)
    into.last = clock


@native
def release_into(into: Ptr[Clock], base: Ptr[Clock], own: Ptr[u32]) -> None:
    """Join the clock of the running thread, given as base and own elements."""
    st = state.place
    clock_join(into, base)
    times = numbers(into)
    for section in range(st.length // st.threads):
        raise_to(ref(times)[section * st.threads + st.tid], own[section])


@native
def clock_union(a: Ptr[Clock], b: Ptr[Clock]) -> Ptr[Clock]:
    """Return the join of two clocks, held once for the caller; one of them where possible."""
    st = state.place
    result = a
    if b != None and a != b:
        if st.memo[2] != None and st.memo[0] == a and st.memo[1] == b:
            result = st.memo[2]
        elif a == None and b.group == st.group:
            result = b
        elif a != None and a.last == b:
            result = a
        else:
            result = which_knows_all(a, b)
            if result == None:
                result = clock_new()
                clock_join(result, a)
                clock_join(result, b)
                result.holders = 0
            for clock in (a, b, result):
                clock_hold(clock)
            for i in (0, 1, 2):
                clock_drop(st.memo[i])
            st.memo[0] = a
            st.memo[1] = b
            st.memo[2] = result
    clock_hold(result)
    return result


@native
def which_knows_all(a: Ptr[Clock], b: Ptr[Clock]) -> Ptr[Clock]:
    """Return the one of two clocks that includes the other; None if neither does."""
    st = state.place
    if a == None or b.group != st.group:
        return None
    a_more = u32(0)
    b_more = u32(0)
    mine = numbers(a)
    others = numbers(b)
    for i in range(u64(st.length)):
        a_more |= u32(mine[i] > others[i])
        b_more |= u32(others[i] > mine[i])
    same = a.foreign == b.foreign
    if a_more == 0 and (same or a.foreign == None):
        return b
    if b_more == 0 and (same or b.foreign == None):
        return a
    return None


@native
def acquire(clock: Ptr[Clock]) -> None:
    """Join a clock into that of the running thread."""
    if clock != None:
        thread = state.place.current
        base = thread.base
        thread.base = clock_union(base, clock)
        clock_drop(base)


@inline
def tick(thread):
    """Advance a thread's time: its further accesses are not part of what it has just released."""
    thread.own[0] += 1


@native
def release(into: Ptr[Clock]) -> None:
    thread = state.place.current
    release_into(into, thread.base, ref(thread).own)
    tick(thread)


@native
def release_over(into: Ptr[Clock]) -> None:
    """Release that accesses are over, but not what they wrote: it need not be visible.

    So does an arrival at an mbarrier of another block whose scope does not include that block.
    """
    st = state.place
    thread = st.current
    join_over(into, thread.base)
    for section in range(st.length // st.threads):
        if is_over(section):
            raise_to(ref(numbers(into))[section_over(section) * st.threads + st.tid], thread.own[section])
    tick(thread)


@native
def acquire_over(clock: Ptr[Clock]) -> None:
    """Learn what is over, but not what was written: after a relaxed wait it need not be visible."""
    if clock != None:
        thread = state.place.current
        joined = clock_new()
        clock_join(joined, thread.base)
        join_over(joined, clock)
        clock_drop(thread.base)
        thread.base = joined


@inline
def section_over(section):
    """Return the section that says of the accesses of another one that they are over."""
    st = state.place
    return section + st.over_section if section < lesser(st.engines, u32(STORING)) else section


@inline
def is_over(section):
    """Return whether a section is about accesses that are over, not about what proxies see of them."""
    st = state.place
    return section < st.engines or section >= st.over_section


@native
def join_over(into: Ptr[Clock], clock: Ptr[Clock]) -> None:
    """Join what another clock of the group knows, as what is over."""
    n = u64(state.place.threads)
    if clock != None:
        for section in range(u32(state.place.length // state.place.threads)):
            target = section_over(section)
            if is_over(section):
                for i in range(n):
                    raise_to(ref(numbers(into))[target * n + i], numbers(clock)[section * n + i])


@inline
def knows_over(base, who, time):
    """Return whether a clock knows that what a thread did at a time is over."""
    st = state.place
    return numbers(base)[who] >= time or (
        st.over_section != 0 and numbers(base)[st.over_section * st.threads + who] >= time
    )


@native
def ordered_elsewhere(group: u32, tid: u32, clock: u32) -> bool:
    """Return whether an access of another group, of any device, happened before, for the running thread.

    A launch is known wholly where the host knew of its end, or where a part of a launch is known whose host did.
    """
    st = state.place
    records = world.place.records
    launch = records[group >> GROUPS_SHIFT]
    another = group >> GROUPS_SHIFT != st.group >> GROUPS_SHIFT
    if another and records[st.group >> GROUPS_SHIFT].ended[launch.lane] >= launch.time:
        return True
    if st.current.base == None:
        return False
    is_latest = True
    node = st.current.base.foreign
    while node != None:
        if node.group == group:
            if is_latest and numbers(node.clock)[tid] >= clock:
                return True
            is_latest = False
        elif another and records[node.group >> GROUPS_SHIFT].ended[launch.lane] >= launch.time:
            return True
        node = node.next
    return False


@native
def ordered(group: u32, tid: u32, clock: u32, view: u32) -> bool:
    """Return whether an access of another identity at `clock` happened before, for the running thread.

    With a `view`, for an engine that works for it through another proxy: accesses of the generic proxy need a fence.
    With `OVER`, and for accesses through that proxy, it is enough that the access is over.
    """
    st = state.place
    thread = st.current
    base = thread.base
    n = st.threads
    if group == st.group:
        index = tid
        if view == OVER or (view != 0 and tid >= n * GENERIC):
            if base != None and tid < n * lesser(st.engines, u32(STORING)):
                if knows_over(base, tid, clock):
                    return True
        elif view != 0:
            if view == MAPS:
                if thread.acquired != None:
                    if numbers(thread.acquired)[tid % n + n * (st.engines + 2 * GENERIC)] >= clock:
                        return True
                return tid % n == st.tid and thread.acquired_own >= clock
            index = tid + n * (st.engines + (view - 1) * GENERIC)
        if base != None:
            if numbers(base)[index] >= clock:
                return True
        return index % n == st.tid and thread.own[index // n] >= clock
    if st.several != 0:
        return ordered_elsewhere(group, tid, clock)
    if group < st.first_group:  # another launch: over, unless it is the one before
        return group < st.before_group or (st.programmatic != 0 and thread.depended != 0)
    if base == None:
        return False
    other = foreign_find(base.foreign, group)
    if other == None:
        return False
    return numbers(other)[tid] >= clock


@inline
def sections(engines):
    """Return the number of sections of a clock when so many engines are in use, without those of `State.over_section`."""
    return engines + VIEWS if engines > GENERIC else engines


@inline
def identity(engine):
    """Return the identity of an access, the running thread's or an engine's, and its time."""
    st = state.place
    me = engine * st.threads + st.tid
    clock = st.current.own[0]
    if engine == BULK_LOAD:
        me = BULK_LOAD * st.threads + st.bulk_slot
        clock = st.bulk_phase
    elif engine != 0:
        clock = st.current.epoch[engine]
    return me, clock
