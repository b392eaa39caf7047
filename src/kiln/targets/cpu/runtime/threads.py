"""Threads that wait for each other: barriers, meetings of lanes, mbarriers, clusters.

Barriers count warps, as the hardware does: a warp has arrived when all its threads that have not exited have; that adds
32 to the count, however many there are. A barrier with count 0 waits for the warps that have threads left.

A meeting of lanes is a record of their warp, found by its mask and kind. A lane keeps the record from its arrival until
it has read what it wants, so 32 records are enough for any interleaving of masks.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....hardware.limits import MBARRIER_ARRIVALS
from ....native import Library, Ptr, i32, i64, inline, local, native, popcount, ref, u32, u64
from ...host.reports import fault, has_fault
from .records import BARRIERS, COMPLETE, FREE, OPEN, TMEM_SLOT, WARP, Barrier, BlockRecord, FrameHeader, Meeting, Warp

waiting: Library = Library("waiting", prefix="kiln_cpu_")

ALL = 0xFFFFFFFF
TMEM_LEAK = 15
HALF_RELINQUISHED = 16
"""Codes of faults: tensor memory is allocated when its block ends, or one CTA of a pair has given up the permit to allocate
(`tensor_memory.py`)."""
GO_ON = 0
SUSPEND = 1
COME_AGAIN = 2
"""What a thread does after it arrived at a barrier: continue, suspend, or suspend and call again."""


@inline
def wait(frame, place, mask, value, site):
    """Write a wait record: the thread is blocked while `*place & mask == value`."""
    frame.wait_address = place
    frame.wait_mask = mask
    frame.wait_value = value
    frame.site = site


# --- barriers --------------------------------------------------------------------------------------------------------


@native
def complete(barrier: Ptr[Barrier]) -> None:
    barrier.arrived = 0
    barrier.expected = 0
    barrier.phase += 1


@native
def complete_if_due(block: Ptr[BlockRecord], barrier: Ptr[Barrier]) -> bool:
    """Complete a barrier if it has the arrivals it needs, and return whether it was completed."""
    arrived = barrier.arrived
    needed = barrier.expected
    if needed == 0:
        needed = block.live_warps * WARP
    due = arrived > 0 and arrived >= needed
    if due:
        complete(barrier)
    return due


@inline
def come(frame, number, count, site, waits: bool) -> i32:
    block = frame.block
    barrier = block.barriers[number]
    thread = frame.thread
    lane = u32(1) << (thread & 31)
    arriving = ref(block.arriving[number])[thread >> 5]
    lanes = arriving[0]
    if lanes & lane != 0:
        # this thread came before and the rest of its warp has yet to: only then does its next arrival count
        wait(frame, arriving, lane, lane, site)
        return COME_AGAIN
    if lanes == 0:  # the first of its warp
        block.used |= u32(1) << (number & 31)
        barrier.expected = count
        barrier.site = site
    lanes |= lane
    live = frame.warp.live
    completed = False
    if lanes & live == live:
        arriving[0] = 0
        barrier.arrived += WARP
        completed = complete_if_due(block, barrier)
    else:
        arriving[0] = lanes
    if not waits:
        return GO_ON
    if completed:
        return GO_ON
    wait(frame, ref(barrier).phase, ALL, barrier.phase, site)
    return SUSPEND


@waiting.export
def sync(frame: Ptr[FrameHeader], number: u32, count: i32, site: i32) -> i32:
    """Arrive at a barrier and wait."""
    return come(frame, number, count, site, waits=True)


@waiting.export
def arrive(frame: Ptr[FrameHeader], number: u32, count: i32, site: i32) -> i32:
    """Arrive at a barrier without waiting."""
    return come(frame, number, count, site, waits=False)


@waiting.export
def exit(frame: Ptr[FrameHeader]) -> None:
    """Exit a thread: barriers and meetings no longer wait for it."""
    frame.done = 1
    wait(frame, ref(frame).done, ALL, 1, frame.site)  # blocked for good: nobody looks at it again
    block = frame.block
    warp = frame.warp
    thread = frame.thread
    leave_cluster(block.cluster)
    live = warp.live & ~(u32(1) << (thread & 31))
    warp.live = live
    if live == 0:
        block.live_warps -= 1
        if block.live_warps == 0 and not has_fault(block.context):
            check_allocations(block)
    used = block.used
    if used != 0:
        for number in range(BARRIERS):
            if used >> number & 1 != 0:
                leave_barrier(block, number, thread >> 5, live)
    if warp.opened != 0:
        for number in range(WARP):
            if warp.meetings[number].state == OPEN:
                complete_meeting(warp.meetings[number], warp)


@native
def check_allocations(block: Ptr[BlockRecord]) -> None:
    """Raise a fault if a block that ends has tensor memory, or if it and its peer, which has ended, disagree about the
    permit to allocate."""
    index = block.index
    why = local(i64, 1)
    permits = even_of(block).pair.relinquished
    why[0] = 0
    if block.tmem_used != 0:
        why[0] = i64(popcount(block.tmem_used)) * TMEM_SLOT << 8 | TMEM_LEAK
    elif permits == 1 or permits == 2:
        if peer_of(block).live_warps == 0:
            why[0] = HALF_RELINQUISHED
    if why[0] != 0:
        fault(block.context, block.tmem_site, index[0], index[1], index[2], -1, -1, -1, 1, why)


@native
def leave_barrier(block: Ptr[BlockRecord], number: u32, warp: u32, live: u32) -> None:
    """Complete a barrier that waited only for a thread that exits."""
    barrier = block.barriers[number]
    arriving = ref(block.arriving[number])[warp]
    lanes = arriving[0]
    if lanes != 0 and lanes & live == live:
        arriving[0] = 0
        barrier.arrived += WARP
    complete_if_due(block, barrier)


# --- meetings of lanes -----------------------------------------------------------------------------------------------


@native
def complete_meeting(meeting: Ptr[Meeting], warp: Ptr[Warp]) -> bool:
    """Complete an open meeting if all lanes have arrived, and return whether it is complete."""
    arrived = meeting.arrived
    expected = meeting.mask & warp.live
    here = arrived & expected == expected
    if here:
        meeting.state = COMPLETE
        meeting.readers = popcount(arrived)
        warp.opened -= 1
    return here


@inline
def matches(meeting, mask, kind):
    return (meeting.state == OPEN) & (meeting.mask == mask) & (meeting.kind == kind)


@native
def find_meeting(warp: Ptr[Warp], mask: u32, kind: i32) -> Ptr[Meeting]:
    """Return the open meeting of a mask and kind, or a free record opened for it."""
    chosen = Ptr[Meeting](None)
    for number in range(WARP):
        meeting = warp.meetings[number]
        if matches(meeting, mask, kind):
            chosen = meeting
            break
        if meeting.state == FREE and chosen == None:
            chosen = meeting
    if chosen.state == FREE:
        chosen.state = OPEN
        chosen.mask = mask
        chosen.kind = kind
        chosen.arrived = 0
        chosen.computed = 0
        warp.opened += 1
    warp.latest = chosen
    return chosen


@native
def come_to_meeting(frame: Ptr[FrameHeader], mask: u32, kind: i32) -> Ptr[Meeting]:
    """Add this lane to the meeting of a mask and kind, and return it."""
    meeting = frame.warp.latest
    if not matches(meeting, mask, kind):
        meeting = find_meeting(frame.warp, mask, kind)
    frame.meeting = meeting
    meeting.arrived |= u32(1) << (frame.thread & 31)
    return meeting


@native
def wait_for_lanes(frame: Ptr[FrameHeader], meeting: Ptr[Meeting], site: i32) -> i32:
    if complete_meeting(meeting, frame.warp):
        return GO_ON
    wait(frame, ref(meeting).state, ALL, OPEN, site)
    return SUSPEND


@waiting.export
def join(frame: Ptr[FrameHeader], mask: u32, kind: i32) -> Ptr:
    """Join a meeting of lanes, and return this lane's slot."""
    return come_to_meeting(frame, mask, kind).payload[frame.thread & 31]


@waiting.export
def meet(frame: Ptr[FrameHeader], site: i32) -> i32:
    """Return whether to suspend until all lanes have joined."""
    return wait_for_lanes(frame, frame.meeting, site)


@waiting.export
def meet_word(frame: Ptr[FrameHeader], mask: u32, kind: i32, site: i32, word: u32) -> i32:
    """Join a meeting with 32 bits, and return whether to suspend until all lanes have joined."""
    meeting = come_to_meeting(frame, mask, kind)
    Ptr[u32](meeting.payload[frame.thread & 31])[0] = word
    return wait_for_lanes(frame, meeting, site)


# --- mbarriers and clusters ------------------------------------------------------------------------------------------

COUNT_BITS = MBARRIER_ARRIVALS
BYTES_BITS = (1 << 23) - 1


@waiting.export
def mbarrier(word: Ptr[u64], arrivals: u32, bytes_: i32) -> None:
    """Take arrivals from those that the phase of an mbarrier waits for, and add bytes to it.

    Bits 0 to 19: arrivals missing; 20 to 39: arrivals of a phase; 40 to 62: bytes missing (signed); 63: parity.
    """
    state = word[0]
    pending = (state & COUNT_BITS) - arrivals & COUNT_BITS
    expected = state >> 20 & COUNT_BITS
    missing = (state >> 40 & BYTES_BITS) + bytes_ & BYTES_BITS
    parity = state >> 63
    if pending == 0 and missing == 0:
        pending = expected
        parity ^= 1
    word[0] = pending | expected << 20 | missing << 40 | parity << 63


@inline
def block_of_rank(block, rank):
    """Return the record of another block of a cluster."""
    return Ptr[BlockRecord](Ptr(block.cluster) + u64(rank) * block.chunk)


@inline
def peer_of(block):
    """Return the record of the other block of a pair."""
    return block_of_rank(block, block.rank ^ 1)


@inline
def even_of(block):
    """Return the even block of a pair, which keeps what the pair shares."""
    return peer_of(block) if block.rank & 1 != 0 else block


@waiting.export
def cluster_arrive(frame: Ptr[FrameHeader]) -> None:
    """Arrive at the cluster's barrier."""
    first = frame.block.cluster
    barrier = first.cluster_barrier
    frame.cluster_phase = barrier.phase
    barrier.arrived += 1
    if barrier.arrived >= first.cluster_live:
        complete(barrier)


@waiting.export
def cluster_wait(frame: Ptr[FrameHeader], site: i32) -> i32:
    """Return whether to suspend until the cluster's barrier completes."""
    barrier = frame.block.cluster.cluster_barrier
    if barrier.phase != frame.cluster_phase:
        return GO_ON
    wait(frame, ref(barrier).phase, ALL, frame.cluster_phase, site)
    return SUSPEND


@native
def leave_cluster(first: Ptr[BlockRecord]) -> None:
    """Remove a thread from its cluster's barrier."""
    barrier = first.cluster_barrier
    first.cluster_live -= 1
    if barrier.arrived > 0 and barrier.arrived >= first.cluster_live:
        complete(barrier)
