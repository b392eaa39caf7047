"""Mbarriers, and groups of asynchronous copies."""

from __future__ import annotations

import ctypes
from typing import Any

from .clocks import clock_entry
from .native import Code, Value, Variable
from .registry import call, exported, maximum, state_of
from .state import LOCATIONS, RING, RULE, Location, Thread


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
            call(c, "clock_drop", loc.at("published", loc.parity))
            loc.set_at("published", loc.parity, loc.local)
            loc.local = 0
            loc.parity = parity
            loc.expected = 0
            loc.got = 0


@exported([64, 32, 32])
def mbarrier_waited(c: Code, address: Value, phase: Value, done: Value) -> None:
    """After a wait for the phase of a parity; `done`: it was complete."""
    call(c, "mbarrier_after", address)
    at = call(c, "location", address, 0)
    with c.when((at != 0) & (done != 0)):
        call(c, "acquire", c.struct(at, Location).at("published", phase & 1))


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
