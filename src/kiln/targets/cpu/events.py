"""Recording what warps do, native code: `event_recorder.py` says what is recorded, and adds the calls.

The lanes of a warp come one after another here. The k-th time that a lane is at a place, it shares an event with the other lanes that are
there for the k-th time with the same first value. An event knows which events its lanes had next: sorted by that, the events of a warp are in the order in which
each of its lanes had them (`event_recorder.sequence`).
"""

# pyright: reportReturnType=false

from __future__ import annotations

from ...native import Array, Library, Ptr, atomic, native, ref, size_of, struct, u8, u16, u32, u64
from ..host.libc import memset, realloc
from .runtime.launches import sampled
from .runtime.tensor_maps import MODES, TensorMap
from .runtime.tma import bits_of

NEXT = 4
"""How many different next events an event remembers."""
BUCKETS = 1 << 18
PATIENCE = 500
"""Rounds in which memory that a thread looks at may stay the same until others are assumed to have added to it."""
MOST_ADDITIONS = 1 << 16
"""The most that is assumed to have been added to memory for a thread that looks at it; after that the launch fails."""
KEEPS, ADDS, SWAPS = range(3)
"""What is assumed that others do to memory that a thread looks at: nothing, add 1, or store what a compare-and-swap expects."""
MIX = 0x9E37_79B9_7F4A_7C15
VALUES = 9


@struct
class Event:
    """What lanes of a warp did at a place."""

    site: u32
    time: u32  # how often lanes of the warp were there before
    warp: u32
    mask: u32  # lanes that did it
    in_bucket: u32  # the next event of its bucket; 0: none
    unused: u32
    following: Array[u32, NEXT]  # what lanes did next; 0: none
    values: Array[u64, VALUES]  # of the first lane


@struct
class Warp:
    """A warp whose events are recorded."""

    launch: u32
    block: u32
    number: u32  # in its block
    last: Array[u32, 32]  # the last event of each lane; 0: none


@struct
class HandedOut:
    """The numbers that a block got of a counter."""

    counter: Ptr[u32]
    block: u32
    thread: u32  # that asked for them
    count: u32
    first: u32  # what the counter was


@struct
class Look:
    """What a thread looks at in a loop."""

    pointer: Ptr
    value: u64
    rounds: u32  # that it stayed the same
    added: u32  # rounds in which others were assumed to have added


@struct
class Added:
    """Memory to which others were assumed to have added."""

    pointer: Ptr
    value: u64  # after the last addition
    count: u64
    bytes: u64


@struct
class State:
    """The recorder's memory; zero at the start."""

    events: Ptr[Event]  # number 0 is not used
    room: u32
    used: u32
    warps: Ptr[Warp]
    warp_room: u32
    warps_used: u32
    times: Ptr[u32]  # how often each lane of each warp of this launch was at each site
    times_room: u64
    sites: u32  # of the module
    launches: u32
    base: u32  # the first warp of this launch
    warps_of_block: u32
    slots: Ptr[u32]  # of each block of this launch: its number among those that are recorded, and 1
    slots_room: u64
    slots_used: u32
    handed_out: Ptr[HandedOut]  # of this launch
    handed_out_room: u32
    handed_out_used: u32
    looks: Ptr[Look]  # of each thread of each recorded block of this launch
    looks_room: u64
    added: Ptr[Added]  # of this launch
    added_room: u32
    added_used: u32
    clusters: u32
    cluster: u32  # blocks of each
    buckets: Array[u32, BUCKETS]


recorder: Library = Library("events", prefix="kiln_cpu_events_")
state = recorder.variable("state", State)


@recorder.export
def launch(blocks: u64, threads: u32, cluster: u64) -> None:
    """Before a launch."""
    st = state.place
    st.cluster = u32(max(cluster, u64(1)))
    st.clusters = u32(blocks) // st.cluster
    st.handed_out_used = 0
    st.added_used = 0
    st.launches += 1
    st.base = st.warps_used
    st.warps_of_block = (threads + 31) // 32
    if blocks > st.slots_room:
        st.slots_room = blocks
        st.slots = Ptr[u32](realloc(st.slots, blocks * 4))
    memset(st.slots, 0, blocks * 4)
    st.slots_used = 0


@native
def record_block(block: u32) -> u32:
    """Begin to record a block; return its slot."""
    st = state.place
    st.slots_used += 1
    st.slots[block] = st.slots_used
    first = st.warps_used
    st.warps_used += st.warps_of_block
    if st.warps_used > st.warp_room:
        st.warp_room = st.warps_used * 2
        st.warps = Ptr[Warp](realloc(st.warps, u64(st.warp_room) * size_of(Warp)))
    memset(st.warps + first, 0, u64(st.warps_of_block) * size_of(Warp))
    for number in range(st.warps_of_block):
        warp = st.warps[first + number]
        warp.launch = st.launches - 1
        warp.block = block
        warp.number = number
    lanes = u64(st.warps_of_block) * u64(st.sites) * 32
    needed = lanes * u64(st.slots_used)
    if needed > st.times_room:
        st.times_room = needed * 2
        st.times = Ptr[u32](realloc(st.times, st.times_room * 4))
    memset(st.times + (needed - lanes), 0, lanes * 4)
    threads = u64(st.warps_of_block) * 32
    needed = threads * u64(st.slots_used)
    if needed > st.looks_room:
        st.looks_room = needed * 2
        st.looks = Ptr[Look](realloc(st.looks, st.looks_room * size_of(Look)))
    memset(st.looks + (needed - threads), 0, threads * size_of(Look))
    return st.slots_used


@native
def shared(index: u32, site: u32, time: u32, address: u64) -> u32:
    """Return the event of a warp at a site for the `time`-th time and an address; a new one without lanes if there is none."""
    st = state.place
    key = (u64(index) << 40 ^ u64(site) << 24 ^ u64(time)) * u64(MIX)
    bucket = u32(key >> 46)
    number = st.buckets[bucket]
    while number != 0:
        one = st.events[number]
        if one.site == site and one.time == time and one.warp == index and one.values[0] == address:
            return number
        number = one.in_bucket
    if st.used == 0:
        st.used = 1  # number 0 means none
    if st.used >= st.room:
        st.room = st.room * 2 + 4096
        st.events = Ptr[Event](realloc(st.events, u64(st.room) * size_of(Event)))
    number = st.used
    st.used += 1
    memset(st.events + number, 0, size_of(Event))
    fresh = st.events[number]
    fresh.site = site
    fresh.time = time
    fresh.warp = index
    fresh.values[0] = address
    fresh.in_bucket = st.buckets[bucket]
    st.buckets[bucket] = number
    return number


@recorder.export
def event(site: u32, block: u32, thread: u32, values: Ptr[u64]) -> None:
    """One lane's part of an event."""
    st = state.place
    slot = st.slots[block]
    if slot == 0:
        slot = record_block(block)
    local = (slot - 1) * st.warps_of_block + thread // 32
    index = st.base + local
    lane = thread & 31
    times = st.times + ((u64(local) * u64(st.sites) + u64(site)) * 32 + u64(lane))
    number = shared(index, site, times[0], values[0])
    times[0] += 1
    one = st.events[number]
    if one.mask == 0:
        for place in range(VALUES):
            one.values[place] = values[place]
    one.mask |= u32(1) << lane
    before = st.warps[index].last[lane]
    st.warps[index].last[lane] = number
    if before != 0:
        earlier = st.events[before]
        for place in range(NEXT):
            if earlier.following[place] == number:
                return
            if earlier.following[place] == 0:
                earlier.following[place] = number
                return


@recorder.export
def handed_out(block: u32, thread: u32, counter: Ptr[u32], value: u32) -> u32:
    """Return the number that a block gets of a counter which hands out tiles.

    The first one is the counter's. After that all blocks of the launch take turns, if some of them run.
    """
    st = state.place
    if sampled.value == 0:
        return atomic("add", counter, value)
    number = u32(0)
    first = counter[0]
    while number < st.handed_out_used:
        if st.handed_out[number].counter == counter:
            first = st.handed_out[number].first
            if st.handed_out[number].block == block:
                break
        number += 1
    if number == st.handed_out_used:
        if number == st.handed_out_room:
            st.handed_out_room = number * 2 + 64
            st.handed_out = Ptr[HandedOut](realloc(st.handed_out, u64(st.handed_out_room) * size_of(HandedOut)))
        st.handed_out_used += 1
        fresh = st.handed_out[number]
        fresh.counter = counter
        fresh.block = block
        fresh.thread = thread
        fresh.count = 0
        fresh.first = first
    entry = st.handed_out[number]
    if entry.count == 0 or entry.thread != thread:
        old = counter[0]
        counter[0] = old + value
        entry.count += 1
        return old
    turn = entry.count
    entry.count += 1
    return entry.first + value * (turn * st.clusters + block // st.cluster)


@native
def loaded(pointer: Ptr, bytes_: u32) -> u64:
    """Return a number of 1, 2, 4 or 8 bytes."""
    if bytes_ == 1:
        return u64(Ptr[u8](pointer)[0])
    if bytes_ == 2:
        return u64(Ptr[u16](pointer)[0])
    if bytes_ == 4:
        return u64(Ptr[u32](pointer)[0])
    return Ptr[u64](pointer)[0]


@native
def put(pointer: Ptr, bytes_: u32, value: u64) -> None:
    """Store a number of 1, 2, 4 or 8 bytes."""
    if bytes_ == 1:
        Ptr[u8](pointer)[0] = u8(value)
    elif bytes_ == 2:
        Ptr[u16](pointer)[0] = u16(value)
    elif bytes_ == 4:
        Ptr[u32](pointer)[0] = u32(value)
    else:
        Ptr[u64](pointer)[0] = value


@native
def note_addition(pointer: Ptr, bytes_: u32, value: u64) -> None:
    """Remember that 1 was added to memory, which is now a number."""
    st = state.place
    number = u32(0)
    while number < st.added_used and st.added[number].pointer != pointer:
        number += 1
    if number == st.added_used:
        if number == st.added_room:
            st.added_room = number * 2 + 64
            st.added = Ptr[Added](realloc(st.added, u64(st.added_room) * size_of(Added)))
        st.added_used += 1
        st.added[number].pointer = pointer
        st.added[number].bytes = u64(bytes_)
        st.added[number].count = 0
    st.added[number].value = value
    st.added[number].count += 1


@recorder.export
def looked(block: u32, thread: u32, pointer: Ptr, bytes_: u32, how: u32, compare: u64) -> u32:
    """Before a thread looks at memory in a loop that waits; return 1 if it has waited for too long.

    Where some CTAs of a launch run, it may wait for others. If nothing changes for long, they are assumed to have come one further.
    """
    st = state.place
    if sampled.value == 0:
        return 0
    slot = st.slots[block]
    if slot == 0:
        slot = record_block(block)
    look = st.looks[u64(slot - 1) * u64(st.warps_of_block) * 32 + u64(thread)]
    now = loaded(pointer, bytes_)
    if (look.pointer != pointer) | (look.value != now):
        if look.pointer != pointer:
            look.added = 0
        look.pointer = pointer
        look.value = now
        look.rounds = 0
        return 0
    look.rounds += 1
    if look.rounds < PATIENCE:
        return 0
    look.added += 1
    if look.added > MOST_ADDITIONS:
        return 1
    if how == ADDS:
        put(pointer, bytes_, now + 1)
        look.value = loaded(pointer, bytes_)
        note_addition(pointer, bytes_, look.value)
    elif how == SWAPS:
        put(pointer, bytes_, compare)
        look.value = loaded(pointer, bytes_)
    return 0


@recorder.export
def launched() -> None:
    """After a launch: take back what others were assumed to have added, where memory was not set to something less since."""
    st = state.place
    for number in range(st.added_used):
        one = st.added[number]
        bytes_ = u32(one.bytes)
        now = loaded(one.pointer, bytes_)
        if (now - one.value) << (64 - 8 * one.bytes) >> 63 == 0:
            put(one.pointer, bytes_, now - one.count)
    st.added_used = 0


@recorder.export
def box_bytes(map: Ptr[TensorMap]) -> u64:
    """Return the bytes of a tensor map's box in shared memory."""
    count = u64(1)
    for mode in range(MODES):
        if mode < map.rank:
            count *= u64(map.box[mode])
    return (count * u64(bits_of(map)) + 7) // 8


@recorder.export
def tensor_bytes(map: Ptr[TensorMap]) -> u64:
    """Return the bytes of the tensor that a tensor map describes."""
    count = u64(1)
    for mode in range(MODES):
        if mode < map.rank:
            count *= map.sizes[mode]
    return (count * u64(bits_of(map)) + 7) // 8


@recorder.export
def clear() -> None:
    """Forget everything."""
    st = state.place
    st.used = 0
    st.warps_used = 0
    st.launches = 0
    memset(ref(st).buckets, 0, 4 * BUCKETS)
