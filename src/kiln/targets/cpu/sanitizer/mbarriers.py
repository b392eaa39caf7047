"""Mbarriers, and groups of asynchronous copies."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....hardware.limits import MBARRIER_ARRIVALS
from ....native import Ptr, inline, native, ref, u32, u64
from ..runtime.engine_table import BULK_LOAD, BULK_SOURCE
from .clocks import (
    acquire,
    acquire_over,
    clock_drop,
    clock_hold,
    clock_join,
    clock_new,
    knows_over,
    numbers,
    ordered,
    release,
    release_into,
    release_over,
)
from .locations import location
from .memory import clear, lesser, many, raise_to
from .memory_order import see
from .reporting import about, report, report_alone
from .state import (
    CLUSTER,
    CTA,
    LOCATIONS,
    LOOKED,
    OVER,
    PASSED,
    PENDING,
    RING,
    RULE,
    Arrival,
    BulkSlot,
    Location,
    detector,
    state,
)
from .store_buffer import settle_own


@detector.export
def mbarrier_init(address: u64, count: u32, site: u32) -> None:
    st = state.place
    entry = location(address, True)
    if entry == None:
        return
    if entry.mbarrier != 0:
        report(RULE["mbarrier-twice"], site, entry.site, st.group, entry.who, address, 8, entry.used, count)
    for clock in (entry.published[0], entry.published[1], entry.local):
        clock_drop(clock)
    for clock in (entry.carried_before[0], entry.carried_before[1], entry.carried):
        clock_drop(clock)
    for parity in (0, 1):
        entry.published[parity] = None
        entry.carried_before[parity] = None
    entry.local = None
    entry.carried = None
    entry.mbarrier = 1
    entry.site = site
    entry.who = st.tid
    entry.bytes_site = site
    entry.parity = 0
    entry.used = 0
    entry.expected = 0
    entry.got = 0
    entry.phases += 1
    entry.count = count
    entry.narrow = 0
    if entry.waits == None:
        entry.waits = many(u32, st.threads)
        entry.now = many(Arrival, 32)
        entry.before = many(Arrival, 32)
    clear(entry.waits, st.threads)
    clear(entry.now, 32)
    clear(entry.before, 32)


@inline
def block_at(address):
    """Return the rank of the block in whose shared memory an address is."""
    return u32((address - state.place.arena) // state.place.chunk)


@native
def check_phase(entry: Ptr[Location], address: u64, site: u32) -> None:
    """Check that the running thread arrives after the previous phase under any schedule.

    A lane of its warp must know of every arrival there.

    Or it knows from the bytes of a copy what the copy's issuer knew, which orders no memory. Only threads of the
    mbarrier's block are checked: bytes for other blocks may come from several.
    """
    st = state.place
    me = st.tid
    if entry.born == 0 or me // st.per_block != block_at(address):
        return
    mine = (me % st.per_block) >> 5
    for other in range((st.per_block + 31) >> 5):
        came = entry.before[other]
        if came.who != 0 and other != mine and not ordered(st.group, came.who - 1, came.time, OVER):
            if not seen_by_warp(came):
                report(RULE["mbarrier-early"], site, came.site, st.group, came.who - 1, address, 8, entry.count)
    came = entry.now[mine]
    if came.who == 0 or came.who > me:
        came.who = me + 1
        came.time = st.current.own[0]
        came.site = site


@native
def seen_by_warp(came: Ptr[Arrival]) -> bool:
    """Return whether any lane of the running thread's warp knows of an arrival."""
    st = state.place
    me = st.tid
    thread = st.current
    local = me % st.per_block
    first = me - (local & 31)
    is_ordered = False
    for lane in range(lesser(st.per_block - (local & ~u32(31)), u32(32))):
        st.tid = first + lane
        st.current = ref(st.thread_array)[st.tid]
        if ordered(st.group, came.who - 1, came.time, OVER):
            is_ordered = True
        carried = st.current.carried
        if carried != None:
            if carried.group == st.group and knows_over(carried, came.who - 1, came.time):
                is_ordered = True
    st.tid = me
    st.current = thread
    return is_ordered


@native
def mbarrier_at(address: u64, site: u32) -> Ptr[Location]:
    """Return the record of an mbarrier in use; None, with a report, if the address is no mbarrier."""
    mbarrier_after(address)  # a copy may have landed meanwhile
    entry = location(address, True)
    if entry != None:
        if entry.mbarrier == 0:
            report_alone("mbarrier-init", site, address, 8)
            return None
        entry.used = 1
    return entry


@detector.export
def mbarrier_inval(address: u64) -> None:
    entry = location(address, False)
    if entry != None:
        entry.mbarrier = 0


@detector.export
def mbarrier_arrive(address: u64, arrivals: u32, size: u32, site: u32, how: u32, scope: u32) -> None:
    """Before an arrival. `how`: 0 releases, 1 is relaxed, 1 + e follows the operations issued to engine e.

    Threads of the mbarrier's block wait for it: if the `scope` of the arrival does not include them, they learn that
    accesses are over, but need not see what was written.
    """
    st = state.place
    thread = st.current
    settle_own()
    entry = mbarrier_at(address, site)
    if entry == None:
        return
    missing = u32(Ptr[u64](address)[0]) & MBARRIER_ARRIVALS
    if missing < arrivals:
        report(RULE["mbarrier-overflow"], site, entry.site, st.group, entry.who, address, 8, missing, arrivals)
    if how == 0 and arrivals != 0:
        check_phase(entry, address, site)
    if entry.local == None:  # all that was released in this phase so far
        entry.local = clock_new()
        clock_join(entry.local, entry.published[entry.parity ^ 1])
    if arrivals != 0:
        entry.arrive_site = site
    if size != 0:
        if how == 1 + BULK_LOAD:
            entry.got += size
            clock_hold(thread.base)
            clock_drop(entry.carried)
            entry.carried = thread.base
            raise_to(ref(numbers(entry.local))[BULK_LOAD * st.threads + st.bulk_slot], st.bulk_phase)
        else:
            entry.expected += size
            entry.bytes_site = site
    needed = u32(CTA) if st.tid // st.per_block == block_at(address) else u32(CLUSTER)
    if how <= 1 and scope < needed:
        entry.narrow = site + 1
        if how == 0 and arrivals != 0:
            release_over(entry.local)
    elif how == 0 and arrivals != 0:
        release(entry.local)
    elif how == 1:
        release_into(entry.local, thread.fences[needed].base, ref(thread.fences[needed]).own)
    if how >= 2 and how != 1 + BULK_LOAD:
        engine = how - 1
        if engine < st.engines:
            epoch = thread.epoch[engine]
            raise_to(ref(numbers(entry.local))[engine * st.threads + st.tid], epoch)
            thread.epoch[engine] = epoch + 1


@detector.export
def mbarrier_after(address: u64) -> None:
    """After an mbarrier changed: publish its clock if that completed the phase."""
    entry = location(address, False)
    if entry == None:
        return
    parity = u32(Ptr[u64](address)[0] >> 63)
    if entry.mbarrier != 0 and parity != entry.parity:
        phase_ends(entry, address)
        clock_drop(entry.published[entry.parity])
        entry.published[entry.parity] = entry.local
        entry.local = None
        clock_drop(entry.carried_before[entry.parity])
        entry.carried_before[entry.parity] = entry.carried
        entry.carried = None
        entry.parity = parity
        entry.phases += 1
        entry.now, entry.before = entry.before, entry.now
        clear(entry.now, 32)
        entry.expected = 0
        entry.got = 0


@detector.export
def bulk(address: u64, site: u32) -> None:
    """The next accesses are those of a copy whose bytes an mbarrier counts."""
    st = state.place
    entry = mbarrier_at(address, site)
    st.bulk_slot = 0
    st.bulk_phase = 1
    if st.bulk == None:
        st.bulk = many(BulkSlot, st.threads)
    if entry == None:
        return
    if entry.slot == 0:  # with more mbarriers than threads some share one
        st.bulk_count += 1
        entry.slot = (st.bulk_count - 1) % st.threads + 1
    st.bulk_slot = entry.slot - 1
    st.bulk_phase = entry.phases + 1
    slot = st.bulk[st.bulk_slot]
    slot.thread = st.tid
    slot.site = site
    slot.issued = st.bulk_phase
    slot.place = address


@native
def unseen_copies() -> None:
    """Check, when the threads of a group have ended, that every copy to shared memory was awaited."""
    st = state.place
    for i in range(lesser(st.bulk_count, st.threads)):
        slot = st.bulk[i]
        if slot.issued > slot.seen:
            about(slot.thread, "copy-unseen", slot.site, slot.site, st.group, slot.thread, slot.place, 8)


@native
def phase_ends(entry: Ptr[Location], address: u64) -> None:
    """Report threads that wait for the phase before the one that ends now: they missed it, its parity is the next
    one's.

    The lanes of a warp count as one: if one of them has seen the phase, so have the others.
    """
    st = state.place
    warps = (st.per_block + 31) >> 5
    for w in range((st.threads // st.per_block) * warps):
        first = (w // warps) * st.per_block + (w % warps << 5)
        left = st.per_block - (w % warps << 5)
        looked = False
        late = u32(0)
        for lane in range(lesser(left, u32(32))):
            waits = entry.waits[first + lane]
            if waits == LOOKED:
                looked = True
                entry.waits[first + lane] = 0
            elif waits == PASSED:
                late = first + lane + 1
                entry.waits[first + lane] = 0
            elif waits == entry.parity | PENDING:
                entry.waits[first + lane] = PASSED
        if late != 0 and not looked:
            other = entry.parity ^ 1
            about(late - 1, "mbarrier-phase", entry.wait_site, entry.arrive_site, st.group, st.tid, address, 8, other)


@detector.export
def mbarrier_waits(address: u64, phase: u32, site: u32) -> None:
    """Before a wait for the phase of a parity."""
    entry = mbarrier_at(address, site)
    if entry != None:
        entry.wait_site = site
        entry.waits[state.place.tid] = (phase & 1) | PENDING


@detector.export
def mbarrier_waited(address: u64, phase: u32, done: u32, relaxed: u32) -> None:
    """After a wait for the phase of a parity; `done`: it was complete. After a `relaxed` one a fence acquires."""
    mbarrier_after(address)
    entry = location(address, False)
    if entry == None:
        return
    if entry.waits != None:
        entry.waits[state.place.tid] = u32(LOOKED) if done != 0 else u32(0)
    if done != 0:
        thread = state.place.current
        if relaxed == 0:
            acquire(entry.published[phase & 1])
        else:
            acquire_over(entry.published[phase & 1])
            see(ref(thread).seen + CTA, entry.published[phase & 1])
        thread.narrow = entry.narrow
        clock_hold(entry.carried_before[phase & 1])
        clock_drop(thread.carried)
        thread.carried = entry.carried_before[phase & 1]
        if entry.slot != 0 and phase & 1 != entry.parity:
            raise_to(ref(state.place.bulk[entry.slot - 1]).seen, entry.phases)


@detector.export
def stuck() -> None:
    """Report mbarriers that wait for bytes, when no thread can make progress: bytes expected and bytes arrived."""
    st = state.place
    if st.locations == None:
        return
    for i in range(LOCATIONS):
        entry = st.locations[i]
        if entry.mbarrier != 0 and entry.born == st.group + 1 and entry.expected != entry.got:
            report(
                RULE["mbarrier-bytes"],
                entry.bytes_site,
                entry.site,
                st.group,
                entry.who,
                entry.key,
                8,
                entry.expected,
                entry.got,
            )


# --- asynchronous copies ---------------------------------------------------------------------------------------------


@detector.export
def commit(engine: u32) -> None:
    """Commit the operations that the running thread issued to an engine as a group."""
    thread = state.place.current
    count = thread.groups[engine]
    epoch = thread.epoch[engine]
    thread.ring[engine * RING + (count & (RING - 1))] = epoch
    thread.groups[engine] = count + 1
    thread.epoch[engine] = epoch + 1


@detector.export
def waited(engine: u32, left: u32) -> None:
    """The running thread has waited until at most `left` groups of an engine are incomplete."""
    thread = state.place.current
    count = thread.groups[engine]
    if count > left:
        raise_to(ref(thread).own + engine, thread.ring[engine * RING + ((count - left - 1) & (RING - 1))])


@detector.export
def stored_in_bulk(site: u32) -> None:
    """The running thread issues a bulk store, whose source must be there until it is read."""
    thread = state.place.current
    thread.stored = thread.epoch[BULK_SOURCE]
    thread.stored_site = site


@native
def unseen_stores() -> None:
    """Check, when the running thread ends, that it waited until its stores had read their sources."""
    thread = state.place.current
    if thread.stored > thread.own[BULK_SOURCE]:
        report_alone("store-unseen", thread.stored_site)
