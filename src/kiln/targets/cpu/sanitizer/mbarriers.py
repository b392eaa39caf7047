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
    found = location(address, True)
    if found == None:
        return
    if found.mbarrier != 0:
        report(RULE["mbarrier-twice"], site, found.site, st.group, found.who, address, 8, found.used, count)
    for clock in (found.published[0], found.published[1], found.local):
        clock_drop(clock)
    for clock in (found.carried_before[0], found.carried_before[1], found.carried):
        clock_drop(clock)
    for parity in (0, 1):
        found.published[parity] = None
        found.carried_before[parity] = None
    found.local = None
    found.carried = None
    found.mbarrier = 1
    found.site = site
    found.who = st.tid
    found.bytes_site = site
    found.parity = 0
    found.used = 0
    found.expected = 0
    found.got = 0
    found.phases += 1
    found.count = count
    found.narrow = 0
    if found.waits == None:
        found.waits = many(u32, st.threads)
        found.now = many(Arrival, 32)
        found.before = many(Arrival, 32)
    clear(found.waits, st.threads)
    clear(found.now, 32)
    clear(found.before, 32)


@inline
def block_at(address):
    """Return the rank of the block in whose shared memory an address is."""
    return u32((address - state.place.arena) // state.place.chunk)


@native
def check_phase(found: Ptr[Location], address: u64, site: u32) -> None:
    """Check that the running thread arrives after the previous phase under any schedule.

    A lane of its warp must know of every arrival there.

    Or it knows from the bytes of a copy what the copy's issuer knew, which orders no memory. Only threads of the
    mbarrier's block are checked: bytes for other blocks may come from several.
    """
    st = state.place
    me = st.tid
    if found.born == 0 or me // st.per_block != block_at(address):
        return
    mine = (me % st.per_block) >> 5
    for other in range((st.per_block + 31) >> 5):
        came = found.before[other]
        if came.who != 0 and other != mine and not ordered(st.group, came.who - 1, came.time, OVER):
            if not known_to_warp(came):
                report(RULE["mbarrier-early"], site, came.site, st.group, came.who - 1, address, 8, found.count)
    came = found.now[mine]
    if came.who == 0 or came.who > me:
        came.who = me + 1
        came.time = st.current.own[0]
        came.site = site


@native
def known_to_warp(came: Ptr[Arrival]) -> bool:
    """Return whether any lane of the running thread's warp knows of an arrival."""
    st = state.place
    me = st.tid
    thread = st.current
    local = me % st.per_block
    first = me - (local & 31)
    known = False
    for lane in range(lesser(st.per_block - (local & ~u32(31)), u32(32))):
        st.tid = first + lane
        st.current = ref(st.thread_array)[st.tid]
        if ordered(st.group, came.who - 1, came.time, OVER):
            known = True
        carried = st.current.carried
        if carried != None:
            if carried.group == st.group and knows_over(carried, came.who - 1, came.time):
                known = True
    st.tid = me
    st.current = thread
    return known


@native
def mbarrier_at(address: u64, site: u32) -> Ptr[Location]:
    """Return the record of an mbarrier in use; None, with a report, if the address is no mbarrier."""
    mbarrier_after(address)  # a copy may have landed meanwhile
    found = location(address, True)
    if found != None:
        if found.mbarrier == 0:
            report_alone("mbarrier-init", site, address, 8)
            return None
        found.used = 1
    return found


@detector.export
def mbarrier_inval(address: u64) -> None:
    found = location(address, False)
    if found != None:
        found.mbarrier = 0


@detector.export
def mbarrier_arrive(address: u64, arrivals: u32, size: u32, site: u32, how: u32, scope: u32) -> None:
    """Before an arrival. `how`: 0 releases, 1 is relaxed, 1 + e follows the operations issued to engine e.

    Threads of the mbarrier's block wait for it: if the `scope` of the arrival does not include them, they learn that
    accesses are over, but need not see what was written.
    """
    st = state.place
    thread = st.current
    settle_own()
    found = mbarrier_at(address, site)
    if found == None:
        return
    missing = u32(Ptr[u64](address)[0]) & MBARRIER_ARRIVALS
    if missing < arrivals:
        report(RULE["mbarrier-overflow"], site, found.site, st.group, found.who, address, 8, missing, arrivals)
    if how == 0 and arrivals != 0:
        check_phase(found, address, site)
    if found.local == None:  # all that was released in this phase so far
        found.local = clock_new()
        clock_join(found.local, found.published[found.parity ^ 1])
    if arrivals != 0:
        found.arrive_site = site
    if size != 0:
        if how == 1 + BULK_LOAD:
            found.got += size
            clock_hold(thread.base)
            clock_drop(found.carried)
            found.carried = thread.base
            raise_to(ref(numbers(found.local))[BULK_LOAD * st.threads + st.bulk_slot], st.bulk_phase)
        else:
            found.expected += size
            found.bytes_site = site
    needed = u32(CTA) if st.tid // st.per_block == block_at(address) else u32(CLUSTER)
    if how <= 1 and scope < needed:
        found.narrow = site + 1
        if how == 0 and arrivals != 0:
            release_over(found.local)
    elif how == 0 and arrivals != 0:
        release(found.local)
    elif how == 1:
        release_into(found.local, thread.fences[needed].base, ref(thread.fences[needed]).own)
    if how >= 2 and how != 1 + BULK_LOAD:
        engine = how - 1
        if engine < st.engines:
            epoch = thread.epoch[engine]
            raise_to(ref(numbers(found.local))[engine * st.threads + st.tid], epoch)
            thread.epoch[engine] = epoch + 1


@detector.export
def mbarrier_after(address: u64) -> None:
    """After an mbarrier changed: publish its clock if that completed the phase."""
    found = location(address, False)
    if found == None:
        return
    parity = u32(Ptr[u64](address)[0] >> 63)
    if found.mbarrier != 0 and parity != found.parity:
        phase_ends(found, address)
        clock_drop(found.published[found.parity])
        found.published[found.parity] = found.local
        found.local = None
        clock_drop(found.carried_before[found.parity])
        found.carried_before[found.parity] = found.carried
        found.carried = None
        found.parity = parity
        found.phases += 1
        found.now, found.before = found.before, found.now
        clear(found.now, 32)
        found.expected = 0
        found.got = 0


@detector.export
def bulk(address: u64, site: u32) -> None:
    """The next accesses are those of a copy whose bytes an mbarrier counts."""
    st = state.place
    found = mbarrier_at(address, site)
    st.bulk_slot = 0
    st.bulk_phase = 1
    if st.bulk == None:
        st.bulk = many(BulkSlot, st.threads)
    if found == None:
        return
    if found.slot == 0:  # with more mbarriers than threads some share one
        st.bulk_count += 1
        found.slot = (st.bulk_count - 1) % st.threads + 1
    st.bulk_slot = found.slot - 1
    st.bulk_phase = found.phases + 1
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
def phase_ends(found: Ptr[Location], address: u64) -> None:
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
            waits = found.waits[first + lane]
            if waits == LOOKED:
                looked = True
                found.waits[first + lane] = 0
            elif waits == PASSED:
                late = first + lane + 1
                found.waits[first + lane] = 0
            elif waits == found.parity | PENDING:
                found.waits[first + lane] = PASSED
        if late != 0 and not looked:
            other = found.parity ^ 1
            about(late - 1, "mbarrier-phase", found.wait_site, found.arrive_site, st.group, st.tid, address, 8, other)


@detector.export
def mbarrier_waits(address: u64, phase: u32, site: u32) -> None:
    """Before a wait for the phase of a parity."""
    found = mbarrier_at(address, site)
    if found != None:
        found.wait_site = site
        found.waits[state.place.tid] = (phase & 1) | PENDING


@detector.export
def mbarrier_waited(address: u64, phase: u32, done: u32, relaxed: u32) -> None:
    """After a wait for the phase of a parity; `done`: it was complete. After a `relaxed` one a fence acquires."""
    mbarrier_after(address)
    found = location(address, False)
    if found == None:
        return
    if found.waits != None:
        found.waits[state.place.tid] = u32(LOOKED) if done != 0 else u32(0)
    if done != 0:
        thread = state.place.current
        if relaxed == 0:
            acquire(found.published[phase & 1])
        else:
            acquire_over(found.published[phase & 1])
            see(ref(thread).seen + CTA, found.published[phase & 1])
        thread.narrow = found.narrow
        clock_hold(found.carried_before[phase & 1])
        clock_drop(thread.carried)
        thread.carried = found.carried_before[phase & 1]
        if found.slot != 0 and phase & 1 != found.parity:
            raise_to(ref(state.place.bulk[found.slot - 1]).seen, found.phases)


@detector.export
def stuck() -> None:
    """Report mbarriers that wait for bytes, when no thread can make progress: bytes expected and bytes arrived."""
    st = state.place
    if st.locations == None:
        return
    for i in range(LOCATIONS):
        found = st.locations[i]
        if found.mbarrier != 0 and found.born == st.group + 1 and found.expected != found.got:
            report(
                RULE["mbarrier-bytes"],
                found.bytes_site,
                found.site,
                st.group,
                found.who,
                found.key,
                8,
                found.expected,
                found.got,
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
