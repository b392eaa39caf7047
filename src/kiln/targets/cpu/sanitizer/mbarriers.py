"""Mbarriers, and groups of asynchronous copies."""

from __future__ import annotations

import ctypes
from typing import Any

from .clocks import clock_entry
from .native import Code, Value, Variable
from .registry import call, exported, maximum, state_of
from .state import LOCATIONS, LOOKED, PASSED, PENDING, RING, RULE, Location, Thread


@exported([64, 32, 32])
def mbarrier_init(c: Code, address: Value, count: Value, site: Value) -> None:
    st = state_of(c)
    at = call(c, "location", address, 1)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        with c.when(loc.mbarrier != 0):
            call(
                c, "report", RULE["mbarrier-twice"], site, loc.site, st.group, loc.who, address, 8,
                loc.used.wide(), count.wide(),
            )  # fmt: skip
        for i in range(2):
            call(c, "clock_drop", loc.at("published", i))
            loc.set_at("published", i, 0)
        call(c, "clock_drop", loc.local)
        loc.local = 0
        loc.mbarrier = 1
        loc.site = site
        loc.who = st.tid
        loc.parity = 0
        loc.used = 0
        loc.expected = 0
        loc.got = 0
        with c.when(loc.waits == 0):
            loc.waits = call(c, "alloc", st.threads.wide() * 4)
        c.call_c("memset", [(loc.waits,), c.i32(0), st.threads.wide() * 4])


@exported([64, 32], 64)
def mbarrier_at(c: Code, address: Value, site: Value) -> Variable:
    """The record of an mbarrier that is used, or 0: it is none, which is reported."""
    st = state_of(c)
    result = c.variable(0)
    call(c, "mbarrier_after", address)  # a copy may have landed meanwhile
    at = call(c, "location", address, 1)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        with c.when(loc.mbarrier == 0):
            call(c, "report", RULE["mbarrier-init"], site, site, st.group, st.tid, address, 8, 0, 0)
        with c.otherwise():
            loc.used = 1
            result.set(at)
    return result


@exported([64])
def mbarrier_inval(c: Code, address: Value) -> None:
    at = call(c, "location", address, 0)
    with c.when(at != 0):
        c.struct(at, Location).mbarrier = 0


def _accumulator(c: Code, loc: Any) -> None:
    """The clock of the phase that is going on: all that was released here so far."""
    with c.when(loc.local == 0):
        made = call(c, "clock_new")
        call(c, "clock_join", made, loc.at("published", (loc.parity ^ 1) & 1))
        loc.local = made


@exported([64, 32, 32, 32, 32])
def mbarrier_arrive(c: Code, address: Value, arrivals: Value, bytes_: Value, site: Value, how: Value) -> None:
    """Before an arrival. `how`: 0 releases, 1 is relaxed, 2 is that of the thread's copies, 3 of its bulk copies."""
    st = state_of(c)
    thread = c.struct(st.current, Thread)
    at = call(c, "mbarrier_at", address, site)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        missing = c.load(address).narrow() & ((1 << 20) - 1)
        with c.when(missing < arrivals):
            call(
                c, "report", RULE["mbarrier-overflow"], site, loc.site, st.group, loc.who, address, 8, missing.wide(),
                arrivals.wide(),
            )  # fmt: skip
        _accumulator(c, loc)
        with c.when(arrivals != 0):
            loc.arrive_site = site
        clock = loc.local
        with c.when(bytes_ != 0):
            with c.when(how == 3):
                loc.got = loc.got + bytes_.wide()
            with c.otherwise():
                loc.expected = loc.expected + bytes_.wide()
                loc.bytes_site = site
        with c.when((how == 0) & (arrivals != 0)):
            call(c, "release", clock)
        with c.when(how == 1):
            call(c, "release_into", clock, thread.at("fence_base", 0), thread.place("fence_own"))
        with c.when(how >= 2):
            engine = how - 1
            with c.when(st.length > st.threads * engine):
                place = clock_entry(c, clock, engine * st.threads + st.tid)
                epoch = thread.at("epoch", engine - 1)
                c.store(maximum(c.load(place, 32), epoch), place, 32)
                thread.set_at("epoch", engine - 1, epoch + 1)


@exported([64])
def mbarrier_after(c: Code, address: Value) -> None:
    """After an mbarrier changed: if that completed its phase, publish the clock."""
    at = call(c, "location", address, 0)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        parity = (c.load(address) >> 63).narrow()
        with c.when((loc.mbarrier != 0) & (parity != loc.parity)):
            _phase_ends(c, loc, address)
            call(c, "clock_drop", loc.at("published", loc.parity))
            loc.set_at("published", loc.parity, loc.local)
            loc.local = 0
            loc.parity = parity
            loc.expected = 0
            loc.got = 0


def _phase_ends(c: Code, loc: Any, address: Value) -> None:
    """Who waited for the phase before this one, and has not looked since, has missed it: its parity is that of the next one.

    The lanes of a warp count as one: where one of them has looked, the others are taken to be there, too.
    """
    st = state_of(c)
    warps = (st.per_block + 31) >> 5
    with c.loop((st.threads // st.per_block) * warps) as w:
        first = (w // warps) * st.per_block + (w % warps << 5)
        left = st.per_block - (w % warps << 5)
        looked, late = c.variable(0, 32), c.variable(0, 32)
        with c.loop((left < 32).choose(left, c.i32(32))) as lane:
            place = loc.waits + (first + lane).wide() * 4
            state = c.load(place, 32)
            with c.when(state == LOOKED):
                looked.set(1)
            with c.when(state == PASSED):
                late.set(first + lane + 1)
            with c.when((state == LOOKED) | (state == PASSED)):
                c.store(0, place, 32)
            with c.when(state == (loc.parity | PENDING)):
                c.store(c.i32(PASSED), place, 32)
        with c.when((late.get() != 0) & (looked.get() == 0)):
            me = c.variable(st.tid, 32)
            st.tid = late.get() - 1  # the finding is about who waits
            call(
                c, "report", RULE["mbarrier-phase"], loc.wait_site, loc.arrive_site, st.group, me.get(), address, 8,
                (loc.parity ^ 1).wide(), 0,
            )  # fmt: skip
            st.tid = me.get()


@exported([64, 32, 32])
def mbarrier_waits(c: Code, address: Value, phase: Value, site: Value) -> None:
    """Before a wait for the phase of a parity."""
    st = state_of(c)
    at = call(c, "mbarrier_at", address, site)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        loc.wait_site = site
        c.store((phase & 1) | PENDING, loc.waits + st.tid.wide() * 4, 32)


@exported([64, 32, 32])
def mbarrier_waited(c: Code, address: Value, phase: Value, done: Value) -> None:
    """After a wait for the phase of a parity; `done`: it was complete."""
    call(c, "mbarrier_after", address)
    at = call(c, "location", address, 0)
    st = state_of(c)
    with c.when(at != 0):
        loc = c.struct(at, Location)
        with c.when(loc.waits != 0):
            c.store((done != 0).choose(c.i32(LOOKED), 0), loc.waits + st.tid.wide() * 4, 32)
        with c.when(done != 0):
            call(c, "acquire", loc.at("published", phase & 1))


@exported([])
def stuck(c: Code) -> None:
    """No thread can go on: mbarriers that wait for bytes say how many were announced and how many came."""
    st = state_of(c)
    with c.when(st.locations != 0):
        with c.loop(c.i64(LOCATIONS)) as i:
            loc = c.struct(st.locations + i * ctypes.sizeof(Location), Location)
            here = (loc.mbarrier != 0) & (loc.born == st.group + 1)
            with c.when(here & (loc.expected != loc.got)):
                call(
                    c, "report", RULE["mbarrier-bytes"], loc.bytes_site, loc.site, st.group, loc.who, loc.key, 8,
                    loc.expected, loc.got,
                )  # fmt: skip


# --- asynchronous copies ---------------------------------------------------------------------------------------------


@exported([32])
def commit(c: Code, engine: Value) -> None:
    st = state_of(c)
    thread = c.struct(st.current, Thread)
    count, epoch = thread.at("groups", engine), thread.at("epoch", engine)
    thread.set_at("ring", engine * RING + (count & (RING - 1)), epoch)
    thread.set_at("groups", engine, count + 1)
    thread.set_at("epoch", engine, epoch + 1)


@exported([32, 32])
def waited(c: Code, engine: Value, left: Value) -> None:
    st = state_of(c)
    thread = c.struct(st.current, Thread)
    count = thread.at("groups", engine)
    with c.when(count > left):
        epoch = thread.at("ring", engine * RING + ((count - left - 1) & (RING - 1)))
        thread.set_at("own", engine + 1, maximum(thread.at("own", engine + 1), epoch))
