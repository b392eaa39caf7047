"""Addresses that synchronize: what was released there, and to whom.

One table has atomic words and mbarriers.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, inline, native, ref, u32, u64
from .clocks import clock_drop, clock_new, release_into
from .memory import clear, many
from .state import CLUSTER, GPU, GROUPS_SHIFT, LEVELS, LOCATIONS, Clock, Location, state, world

_MIX = 0x9E37_79B9_7F4A_7C15
_APART = 0x9E37_79B1


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
    entry = st.locations[slot]
    if entry.key == address:
        # an address in shared memory is another thing in another group
        if entry.born != 0 and entry.born != st.group + 1:
            if not create:
                return None
            for level in range(LEVELS):
                clock_drop(entry.released[level])
            for parity in range(2):
                clock_drop(entry.published[parity])
                clock_drop(entry.carried_before[parity])
            clock_drop(entry.local)
            clock_drop(entry.carried)
            waits = entry.waits
            now = entry.now
            before = entry.before
            clear(entry)
            entry.waits = waits
            entry.now = now
            entry.before = before
            entry.key = address
            entry.born = st.group + 1
        return entry
    if not create or entry.key != 0:
        return None
    entry.key = address
    if address >= st.arena and address < st.arena_end:
        entry.born = st.group + 1
    return entry


@native
def blocks_of(level: u32, group: u32, tid: u32) -> u32:
    """Return the number of the block, cluster or device of a thread; 0 for scopes that have all threads there are."""
    st = state.place
    first = u32(0)
    if st.several != 0:  # launches are far from each other
        first = (group >> GROUPS_SHIFT) * u32(_APART)
        group &= (1 << GROUPS_SHIFT) - 1
    number = group * st.sizes.group + tid % st.threads // st.per_block
    if level == CLUSTER:
        number = number // (st.sizes.cluster[0] * st.sizes.cluster[1] * st.sizes.cluster[2])
    if level < GPU:
        return first + number
    return st.device + 1 if level == GPU and st.several != 0 else u32(0)


@native
def in_scope(scope: u32, group: u32, tid: u32) -> bool:
    """Return whether a scope of the running thread includes another thread, which may be of another launch."""
    st = state.place
    if scope >= GPU:
        return scope > GPU or st.several == 0 or world.place.records[group >> GROUPS_SHIFT].device == st.device
    if st.several != 0 and group >> GROUPS_SHIFT != st.group >> GROUPS_SHIFT:
        return False
    return group >= st.first_group and blocks_of(scope, group, tid) == blocks_of(scope, st.group, st.tid)


@inline
def has_fenced(thread, level):
    """Return whether a thread has executed a fence of a scope: the time of a clock is never 0."""
    return thread.fences[level].own[0] != 0


@native
def released(level: u32, scope: u32, explicit: bool) -> Ptr[Clock]:
    """Return what an atomic write of the running thread releases at a level, in a new clock; None if nothing.

    That is what the thread knows or, if the write itself does not release (`explicit`), what its last fence knew.
    """
    thread = state.place.current
    clock = Ptr[Clock](None)
    if level <= scope and (explicit or has_fenced(thread, level)):
        clock = clock_new()
        if explicit:
            release_into(clock, thread.base, ref(thread).own)
        else:
            release_into(clock, thread.fences[level].base, ref(thread.fences[level]).own)
    return clock


@native
def publish(entry: Ptr[Location], level: u32, clock: Ptr[Clock], mine: u32) -> None:
    """Replace what was released at an address by a clock, which belongs to it now."""
    clock_drop(entry.released[level])
    entry.released[level] = clock
    entry.of[level] = mine
