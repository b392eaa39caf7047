"""Programs on several devices: their launches run together, and share what the detector knows of global memory.

Each rank launches from a thread of its own. One of them runs at a time, and gives its turn to the next after each round
of its blocks; the detector's `State` is exchanged with it, but for what all share. A *lane* is a thread of the host. It
knows of launches that have ended before, its own and those of lanes that it has waited for, and of the parts of others
that its launches have acquired.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, address, inline, native, ref, u32, u64
from ...host.libc import memcpy, memset, pthread_cond_broadcast, pthread_cond_wait
from ...host.libc import pthread_mutex_lock as lock
from ...host.libc import pthread_mutex_unlock as unlock
from .clocks import clock_hold, clock_new, foreign_add, foreign_find, foreign_merge
from .memory import clear, copy, free_all, many, raise_to
from .state import (
    GROUPS_SHIFT,
    LANES,
    MOST_LAUNCHES,
    PAGE_SHIFT,
    Foreign,
    Lane,
    LaunchRecord,
    Point,
    State,
    detector,
    state,
    world,
)

PREFIX = State.findings.offset  # pyright: ignore[reportAttributeAccessIssue] - a field of ctypes
"""Bytes of the state that are exchanged: all but the findings."""
_SHARED = ("pages", "page_count", "locations", "memory", "allocated", "findings_count", "overflow", "global_shift")
"""Fields of the state that all launches share."""


ENOUGH = 1 << 28
"""Bytes of shadow memory from which on old launches are forgotten, where nothing can race with them any more."""


@native
def take_turn() -> None:
    w = world.place
    lock(ref(w).mutex)
    mine = w.tickets
    w.tickets += 1
    while w.turn != mine:
        pthread_cond_wait(ref(w).turned, ref(w).mutex)
    unlock(ref(w).mutex)


@native
def give_turn() -> None:
    w = world.place
    lock(ref(w).mutex)
    w.turn += 1
    pthread_cond_broadcast(ref(w).turned)
    unlock(ref(w).mutex)


@native
def exchange(mine: Ptr[State]) -> None:
    """Make the detector's state that of a call, which is kept at `mine` while others run."""
    w = world.place
    st = state.place
    if w.running == mine:
        return
    if w.running != None:
        memcpy(w.running, st, PREFIX)
    for name in _SHARED:
        setattr(mine, name, getattr(st, name))
    memcpy(st, mine, PREFIX)
    st.last_page = 0
    st.last_page_at = None
    w.running = mine


@detector.export
def enter(mine: Ptr[State], call: u32, device: u32, lane: u32) -> None:
    """Wait for the turn of a call from Python, whose state is zeros at `mine`."""
    take_turn()
    w = world.place
    full = state.place.allocated > ENOUGH or w.launches >= MOST_LAUNCHES - 1
    if w.calls == 0 and (w.records == None or (full and everyone_knows_everything())):
        forget_all()
    exchange(mine)
    st = state.place
    st.several = 1
    st.call = call
    st.device = device
    st.lane = lane
    w.lanes[lane].in_use = 1
    w.calls += 1


@detector.export
def leave() -> None:
    """End a call."""
    w = world.place
    w.calls -= 1
    state.place.active = 0
    w.running = None
    give_turn()


@detector.export
def pause() -> u64:
    """Between two rounds, give the turn away; return what gets it back."""
    mine = address(world.place.running)
    give_turn()
    return mine


@detector.export
def resume(mine: u64) -> None:
    take_turn()
    exchange(Ptr[State](mine))


# --- symmetric memory -------------------------------------------------------------------------------------------------


@native
def device_at(place: u64) -> u32:
    """Return the device in whose symmetric memory an address is, plus 1; 0 if it is in none."""
    w = world.place
    number = u32(0)
    for i in range(w.devices):
        if place >= w.low[i] and place < w.high[i]:
            number = u32(i) + 1
    return number


@inline
def is_multicast(place):
    return place >= world.place.multicast_low and place < world.place.multicast_high


# --- what threads of the host know -----------------------------------------------------------------------------------


@native
def everyone_knows_everything() -> bool:
    """Return whether each lane knows of all launches."""
    w = world.place
    same = True
    first = u32(LANES)
    for i in range(LANES):
        if w.lanes[i].in_use != 0:
            if first == LANES:
                first = u32(i)
            for k in range(LANES):
                same = same and w.lanes[i].ended[k] == w.lanes[first].ended[k]
    return same


@native
def forget_all() -> None:
    """Forget all launches, which come before all that follow."""
    w = world.place
    st = state.place
    free_all()
    for name in ("pages", "locations"):
        setattr(st, name, None)
    st.page_count = 0
    st.global_shift = PAGE_SHIFT
    w.records = None
    w.launches = 0
    w.forgotten += 1
    for i in range(LANES):
        lane = w.lanes[i]
        lane.foreign = None
        memset(ref(lane).ended, 0, 4 * LANES)
    for i in range(w.freed_count):
        w.freed[i].launch = 0


@detector.export
def host_point(lane: u32, point: Ptr[Point]) -> None:
    """Note what a thread of the host knows now, and not what it learns later."""
    take_turn()
    w = world.place
    mine = w.lanes[lane]
    memcpy(ref(point).ended, ref(mine).ended, 4 * LANES)
    point.foreign = mine.foreign
    point.forgotten = w.forgotten
    give_turn()


@detector.export
def host_follow(lane: u32, point: Ptr[Point]) -> None:
    """A thread of the host has waited for a point of another one. What was forgotten since comes before all."""
    take_turn()
    w = world.place
    w.lanes[lane].in_use = 1
    if point.forgotten == w.forgotten:
        learn(lane, ref(point).ended, point.foreign)
    give_turn()


@detector.export
def host_meet(lanes: Ptr[u32], count: u32) -> None:
    """Threads of the host have waited for each other."""
    take_turn()
    w = world.place
    for i in range(1, count):
        other = w.lanes[lanes[i]]
        learn(lanes[0], ref(other).ended, other.foreign)
    first = w.lanes[lanes[0]]
    for i in range(1, count):
        learn(lanes[i], ref(first).ended, first.foreign)
    give_turn()


@detector.export
def host_retire(lane: u32) -> None:
    """A thread of the host has ended. Another one with this lane knows no more than that its launches have."""
    take_turn()
    mine = world.place.lanes[lane]
    own = mine.ended[lane]
    clear(mine)
    mine.ended[lane] = own
    give_turn()


@native
def learn(lane: u32, ended: Ptr[u32], parts: Ptr[Foreign]) -> None:
    """Let a thread of the host know of launches that have ended, and of parts of others."""
    mine = world.place.lanes[lane]
    mine.in_use = 1
    for i in range(LANES):
        raise_to(ref(mine).ended + i, ended[i])
    learn_parts(lane, parts)


@native
def learn_parts(lane: u32, parts: Ptr[Foreign]) -> None:
    """Let a thread of the host know of parts of launches."""
    w = world.place
    mine = w.lanes[lane]
    while parts != None:
        if not knows_launch(mine, parts.group):
            mine.foreign = foreign_add(mine.foreign, parts.group, parts.clock)
        parts = parts.next
    prune(mine)


@native
def knows_launch(lane: Ptr[Lane], group: u32) -> bool:
    record = world.place.records[group >> GROUPS_SHIFT]
    return lane.ended[record.lane] >= record.time


@native
def prune(lane: Ptr[Lane]) -> None:
    """Drop the parts of launches that are known wholly, and those that a later entry contains."""
    kept = Ptr[Foreign](None)
    node = lane.foreign
    while node != None:
        if not knows_launch(lane, node.group) and foreign_find(kept, node.group) == None:
            kept = foreign_add(kept, node.group, node.clock)
        node = node.next
    lane.foreign = kept


# --- launches --------------------------------------------------------------------------------------------------------


@native
def begin_launch() -> None:
    """Number a launch, and record what its thread of the host knows."""
    w = world.place
    st = state.place
    if w.records == None:
        w.records = many(LaunchRecord, MOST_LAUNCHES)
    if w.launches < MOST_LAUNCHES - 1:
        w.launches += 1
    if w.launches == MOST_LAUNCHES - 1:  # the record of all launches that are too many
        w.left_out |= 1
        st.rules = 0
    lane = w.lanes[st.lane]
    record = w.records[w.launches]
    record.call = st.call
    record.device = st.device
    record.lane = st.lane
    record.kernel = st.kernel
    record.time = lane.ended[st.lane] + 1
    memcpy(ref(record).ended, ref(lane).ended, 4 * LANES)
    st.first_group = w.launches << GROUPS_SHIFT
    st.learned = lane.foreign
    st.learned_last = lane.foreign


@native
def begin_group() -> None:
    """Let the threads of a group know what the host knew of parts of other launches."""
    st = state.place
    lane = world.place.lanes[st.lane]
    record = world.place.records[st.group >> GROUPS_SHIFT]
    copy(record.sizes, st.sizes)
    if lane.foreign != None:
        base = clock_new()
        base.foreign = lane.foreign
        for i in range(st.threads):
            clock_hold(base)
            st.thread_array[i].base = base


@native
def keep_parts() -> None:
    """Keep what the running thread, which exits, knows of other launches."""
    st = state.place
    base = st.current.base
    if base != None and base.foreign != st.learned_last:
        st.learned_last = base.foreign
        st.learned = foreign_merge(st.learned, base.foreign)


@native
def end_launch() -> None:
    """A launch has ended: its thread of the host knows it, and what its threads knew of others."""
    st = state.place
    lane = world.place.lanes[st.lane]
    lane.ended[st.lane] += 1
    learn_parts(st.lane, st.learned)
