"""Barriers of blocks and clusters, and meetings of the lanes of a warp."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, inline, native, popcount, ref, size_of, u32, u64
from ...host.libc import memcpy, memset
from ..runtime.engine_table import TCGEN05_LD
from .clocks import acquire, clock_drop, clock_hold, clock_new, numbers, ordered, release, release_into
from .memory import lesser, raise_to
from .memory_order import arrives_fenced, fenced_barrier
from .reporting import about, report, report_alone
from .state import BARRIERS, CLUSTER, LEVELS, OVER, RULE, USES_LOADS, Arrival, BarrierSlot, Meeting, detector, state
from .store_buffer import settle_own

_NONE = 0xFFFF_FFFF


@detector.export
def barrier(at: u64, number: u32, phase: u32, count: u32, site: u32, mode: u32) -> None:
    """Arrive in a phase of the barrier whose record is at `at`.

    Mode 0 arrives, 1 waits too; 2 is the cluster's (3: relaxed).
    """
    st = state.place
    thread = st.current
    slot = comes(at, number, phase, count, site, mode)
    if mode < 2 and count != 0:
        check_phase(slot, number, count, site)
    settle_own()
    slot.arrived += 1
    arrives_fenced(slot.clock)
    if mode == 3:
        release_into(slot.clock, thread.fences[CLUSTER].base, ref(thread.fences[CLUSTER]).own)
        raise_to(ref(numbers(slot.clock))[st.tid], u32(1))  # it has started
    else:
        release(slot.clock)
    if mode == 1:
        clock_hold(slot.clock)
        thread.pending = slot.clock
    if mode >= 2:
        clock_hold(slot.clock)
        clock_drop(thread.pending_cluster)
        thread.pending_cluster = slot.clock


@native
def comes(at: u64, number: u32, phase: u32, count: u32, site: u32, mode: u32) -> Ptr[BarrierSlot]:
    """Check an arrival against others in the phase, as `barrier` has it; return the barrier."""
    st = state.place
    rank = u32((at - st.arena) // st.chunk)
    slot = st.slots[rank * BARRIERS + number]
    if slot.clock == None or slot.phase != phase:
        clock_drop(slot.clock)
        slot.clock = clock_new()
        slot.phase = phase
        slot.arrived = 0
        slot.count = count
        slot.site = site
        slot.who = st.tid
        memset(ref(slot).warp_site, 0, 4 * (32 + 32))  # and the lanes, which follow
        if slot.counted != 0:
            memcpy(ref(slot).before, ref(slot).now, 32 * size_of(Arrival))
            memset(ref(slot).now, 0, 32 * size_of(Arrival))
    if slot.count != count:
        report(RULE["count"], site, slot.site, st.group, st.tid, 0, 0, slot.count, count)
    if mode < 2:
        check_ways(slot, number, count, site, rank)
    return slot


@native
def check_ways(slot: Ptr[BarrierSlot], number: u32, count: u32, site: u32, rank: u32) -> None:
    """Check that the lanes of a warp arrive at a barrier at one place, and all threads at one that is for all."""
    st = state.place
    local = st.tid % st.per_block
    warp = local >> 5
    lane = u32(1) << (local & 31)
    if slot.warp_lanes[warp] & lane != 0:  # the warp comes once more
        slot.warp_lanes[warp] = 0
        slot.warp_site[warp] = 0
    slot.warp_lanes[warp] |= lane
    before = slot.warp_site[warp]
    slot.warp_site[warp] = site + 1
    if before != 0 and before != site + 1:
        report(RULE["divergent"], site, before - 1, st.group, st.tid, 0, 0, number)
    if count == 0:
        if before == 0 and slot.site != site:
            report(RULE["other-way"], site, slot.site, st.group, slot.who, 0, 0, number)
        if st.exits != 0:
            first = rank * st.per_block
            for i in range(st.per_block):
                if st.thread_array[first + i].exited != 0:
                    report(RULE["barrier-exited"], site, site, st.group, first + i, 0, 0, number)
                    break
    elif st.exits != 0:  # the warp comes with all its threads; who only arrives may have ended since
        first = st.tid - (local & 31)
        for i in range(32):
            if (warp << 5) + i < st.per_block and (slot.warp_lanes[warp] >> i) & 1 == 0:
                if st.thread_array[first + i].exited != 0:
                    report(RULE["barrier-exited"], site, site, st.group, first + i, 0, 0, number, count)
                    break


@native
def check_phase(slot: Ptr[BarrierSlot], number: u32, count: u32, site: u32) -> None:
    """Check that a warp arrives after the previous phase under any schedule: one of its lanes knows of every arrival
    there."""
    st = state.place
    warp = (st.tid % st.per_block) >> 5
    slot.counted = 1
    lanes = slot.warp_lanes[warp]
    if popcount(lanes) == 1:  # the first of its lanes
        late = u32(0)
        for other in range(u32(32)):
            if slot.before[other].who != 0 and other != warp:
                late |= u32(1) << other
        slot.late[warp] = late
    late = slot.late[warp]
    while late != 0:
        other = popcount((late & (u32(0) - late)) - 1)
        late &= late - 1
        came = slot.before[other]
        if ordered(st.group, came.who - 1, came.time, OVER):
            slot.late[warp] &= ~(u32(1) << other)
    left = st.per_block - (warp << 5)
    if slot.late[warp] != 0 and popcount(lanes) == lesser(left, u32(32)):
        late = slot.late[warp]
        came = slot.before[popcount((late & (u32(0) - late)) - 1)]
        report(RULE["barrier-early"], site, came.site, st.group, came.who - 1, 0, 0, number, count)
    came = slot.now[warp]
    if came.who == 0 or came.who > st.tid:
        came.who = st.tid + 1
        came.time = st.current.own[0]
        came.site = site


@detector.export
def passed() -> None:
    """The running thread has passed the barrier or meeting it waited at."""
    thread = state.place.current
    clock = thread.pending
    if clock != None:
        thread.pending = None
        acquire(clock)
        fenced_barrier(clock)
        clock_drop(clock)


@detector.export
def passed_cluster() -> None:
    thread = state.place.current
    clock = thread.pending_cluster
    if clock != None:
        thread.pending_cluster = None
        acquire(clock)
        clock_drop(clock)


@inline
def meetings_of_warp(st):
    """Return the records of the running thread's warp: 32, as many as there are lanes."""
    warps = (st.per_block + 31) >> 5
    warp = (st.tid % st.per_block) >> 5
    return ref(st.meetings)[((st.tid // st.per_block) * warps + warp) * 32]


@native
def find_meeting(mask: u32) -> Ptr[Meeting]:
    """Return an open meeting of a mask, else a free record."""
    meetings = meetings_of_warp(state.place)
    free = Ptr[Meeting](None)
    for i in range(32):
        meeting = meetings[i]
        if meeting.arrived != 0 and meeting.mask == mask:
            return meeting
        if meeting.arrived == 0 and free == None:
            free = meeting
    return free


@detector.export
def meet(mask: u32, site: u32, orders: u32) -> None:
    """A lane arrives at a meeting of the lanes of a mask; `orders`: the meeting orders memory.

    USES_LOADS is an election, whose mask is not the program's. Who is elected arrives at an mbarrier after all lanes
    came, and so after they have used what they loaded from tensor memory.
    """
    st = state.place
    thread = st.current
    local = st.tid % st.per_block
    lane = local & 31
    elects = orders == USES_LOADS
    if elects and st.thread_array[st.tid - lane].loaded == 0:
        return
    left = st.per_block - (local & ~u32(31))
    lanes = u32(_NONE) if left >= 32 else (u32(1) << left) - 1
    if mask & (u32(1) << lane) == 0 and not elects:
        report_alone("lanes-mask", site, 0, 0, mask, lane)
    alive = lanes
    if st.exits != 0:
        for i in range(u32(32)):
            if ((mask & lanes) >> i) & 1 != 0:
                other = st.tid - lane + i
                if st.thread_array[other].exited != 0:
                    alive &= ~(u32(1) << i)
                    if not elects:
                        report(RULE["lanes-exited"], site, site, st.group, other, 0, 0, mask, i)
    slot = find_meeting(mask)
    if slot.arrived == 0:
        slot.mask = mask
        slot.site = site
        slot.who = st.tid
        clock_drop(slot.clock)
        slot.clock = clock_new()
    elif slot.site != site and not elects:
        report(RULE["lanes-site"], site, slot.site, st.group, slot.who, 0, 0, mask)
    slot.arrived += 1
    if orders != 0:
        if elects:
            slot.clock.unfenced = LEVELS
            raise_to(ref(numbers(slot.clock))[TCGEN05_LD * st.threads + st.tid], thread.own[TCGEN05_LD])
        else:
            settle_own()
            arrives_fenced(slot.clock)
            release(slot.clock)
        clock_hold(slot.clock)
        thread.pending = slot.clock
    if slot.arrived >= popcount(mask & alive):
        slot.arrived = 0


@native
def leave_meetings() -> None:
    """Report barriers and meetings that wait for the running thread, which ends."""
    st = state.place
    me = st.tid
    block = me // st.per_block
    local = me % st.per_block
    lane = local & 31
    for i in range(u32(BARRIERS - 1)):
        slot = st.slots[block * BARRIERS + i]
        lanes = slot.warp_lanes[local >> 5]
        if slot.clock != None and (lanes >> lane) & 1 == 0:
            if slot.count == 0:
                about(slot.who, "barrier-exited", slot.site, slot.site, st.group, me, 0, 0, i)
            elif lanes != 0:  # others of the warp came
                first = me - lane + popcount((lanes & (u32(0) - lanes)) - 1)
                about(first, "barrier-exited", slot.site, slot.site, st.group, me, 0, 0, i, slot.count)
    meetings = meetings_of_warp(st)
    for i in range(32):
        meeting = meetings[i]
        if meeting.arrived != 0 and (meeting.mask >> lane) & 1 != 0:
            about(meeting.who, "lanes-exited", meeting.site, meeting.site, st.group, me, 0, 0, meeting.mask, lane)
            meeting.arrived = 0
