"""Delayed stores: what other threads do not see yet, under the last schedule of a launch.

A GPU may carry out an atomic store after later loads of its thread, unless a sequentially consistent fence lies between
them. So may the detector: the store waits in a buffer of the thread until another thread has loaded the word without
seeing it, or until the thread releases, fences, or updates. Two threads that each set a flag and then look at the
other's may both see none (Dekker's algorithm), and what they do then races as on a GPU.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, address, inline, native, u8, u32, u64
from ...host.libc import memcpy
from .clocks import clock_drop, tick
from .locations import blocks_of, has_fenced, location, publish, released
from .memory import copy, lesser, many
from .state import CTA, DELAYED, DELAYING, LEVELS, WIDEST_DELAYED, Delayed, detector, state


@inline
def is_mine(delayed):
    st = state.place
    return delayed.group == st.group and delayed.tid == st.tid


@inline
def overlaps(delayed, place, size):
    return delayed.address < place + size and place < delayed.address + delayed.size


@native
def write_out(delayed: Ptr[Delayed]) -> None:
    """Make a delayed store visible to all threads."""
    memcpy(Ptr[u8](delayed.address), Ptr[u8](delayed), delayed.size)
    any_released = False
    for level in range(LEVELS):
        any_released = any_released or delayed.released[level] != None
    entry = location(delayed.address, any_released)
    for level in range(LEVELS):
        if entry != None:
            publish(entry, u32(level), delayed.released[level], delayed.of[level])
        else:
            clock_drop(delayed.released[level])


@native
def settle(group: u32, tid: u32, last: u32) -> None:
    """Write out the delayed stores of a thread in order, up to entry `last` of the buffer."""
    st = state.place
    kept = u32(0)
    for i in range(st.delayed_count):
        delayed = st.delayed[i]
        if delayed.group == group and delayed.tid == tid and i <= last:
            write_out(delayed)
        else:
            if kept != i:
                copy(st.delayed[kept], delayed)
            kept += 1
    st.delayed_count = kept


@native
def settle_own() -> None:
    """Write out the stores of the running thread, before it does something that they come before."""
    st = state.place
    if st.delayed_count != 0:
        settle(st.group, st.tid, u32(DELAYED))


@native
def settle_all() -> None:
    st = state.place
    for i in range(st.delayed_count):
        write_out(st.delayed[i])
    st.delayed_count = 0


@native
def settle_at(place: u64, size: u32) -> None:
    """Write out the stores to some bytes, and those of the same threads before them."""
    st = state.place
    for _ in range(st.delayed_count):
        first = st.delayed_count
        for i in range(st.delayed_count):
            if overlaps(st.delayed[i], place, size):
                first = lesser(first, i)
        if first < st.delayed_count:
            settle(st.delayed[first].group, st.delayed[first].tid, first)


@native
def forget_shared() -> None:
    """Drop the stores to the shared memory of a group that is over."""
    st = state.place
    kept = u32(0)
    for i in range(st.delayed_count):
        delayed = st.delayed[i]
        if delayed.address >= st.arena and delayed.address < st.arena_end:
            for level in range(LEVELS):
                clock_drop(delayed.released[level])
        else:
            if kept != i:
                copy(st.delayed[kept], delayed)
            kept += 1
    st.delayed_count = kept


@detector.export
def atomic_store(place: u64, size: u32, order: u32, scope: u32, site: u32) -> u64:
    """Order an atomic store, and return the address to write to. `order`: 1 acquires, 2 releases."""
    st = state.place
    if st.active == 0:
        return place
    thread = st.current
    explicit = order & 2 != 0
    st.stores = 1
    widest = lesser(scope, st.widest)
    if st.several == 0 and st.seed[0] >= DELAYING and size <= WIDEST_DELAYED and order & 1 == 0:
        if st.delayed == None:
            st.delayed = many(Delayed, DELAYED)
        if st.delayed_count == DELAYED:
            settle_all()
        delayed = st.delayed[st.delayed_count]
        st.delayed_count += 1
        delayed.address = place
        delayed.size = size
        delayed.group = st.group
        delayed.tid = st.tid
        delayed.site = site
        delayed.unseen = 0
        for level in range(u32(LEVELS)):
            delayed.released[level] = released(level, widest, explicit)
            delayed.of[level] = blocks_of(level, st.group, st.tid)
        place = address(delayed)
    else:
        settle_own()
        settle_at(place, size)
        entry = location(place, explicit or has_fenced(thread, CTA))
        if entry != None:
            for level in range(u32(LEVELS)):
                publish(entry, level, released(level, widest, explicit), blocks_of(level, st.group, st.tid))
            entry.scope = scope
    if explicit:
        tick(thread)
    return place


@native
def load_from(place: u64, size: u32, site: u32) -> u64:
    """Return where an atomic load of the running thread finds its value.

    Its own last store is seen. That of another thread is seen if one load has missed it already: so who waits for it
    goes on.
    """
    st = state.place
    own = Ptr[Delayed](None)
    parts = False
    late = False
    for i in range(st.delayed_count):
        delayed = st.delayed[i]
        if overlaps(delayed, place, size):
            if is_mine(delayed):
                own = delayed
                parts = parts or delayed.address != place or delayed.size != size
            else:
                late = late or delayed.unseen != 0
    if own != None and not parts:
        return address(own)
    if parts or late:
        settle_at(place, size)
        return place
    for i in range(st.delayed_count):
        delayed = st.delayed[i]
        if overlaps(delayed, place, size):
            delayed.unseen = 1
            st.unseen_store = delayed.site + 1
            st.unseen_load = site
    return place
