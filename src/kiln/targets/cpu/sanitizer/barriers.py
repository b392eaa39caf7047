"""Barriers of blocks and clusters, and meetings of the lanes of a warp."""

from __future__ import annotations

import ctypes
from typing import Any

from .clocks import clock_entry
from .native import Code, Value, Variable
from .registry import call, exported, maximum, state_of
from .state import BARRIERS, RULE, BarrierSlot, Clock, Meeting, Thread


@exported([64, 32, 32, 32, 32, 32])
def barrier(c: Code, at: Value, number: Value, phase: Value, count: Value, site: Value, mode: Value) -> None:
    """Arrive in a phase of the barrier whose record is at `at`.

    Mode 0 arrives, 1 waits too; 2 is the cluster's (3: relaxed).
    """
    st = state_of(c)
    thread = c.struct(st.current, Thread)
    rank = (at - st.arena) // st.chunk
    slot = c.struct(st.slots + (rank * BARRIERS + number.wide()) * ctypes.sizeof(BarrierSlot), BarrierSlot)
    with c.when((slot.clock == 0) | (slot.phase != phase)):
        call(c, "clock_drop", slot.clock)
        slot.clock = call(c, "clock_new")
        slot.phase = phase
        slot.arrived = 0
        slot.count = count
        slot.site = site
        slot.who = st.tid
        c.call_c("memset", [(slot.place("warp_site"),), c.i32(0), c.i64(256)])
    with c.when(slot.count != count):
        call(c, "report", RULE["count"], site, slot.site, st.group, st.tid, 0, 0, slot.count.wide(), count.wide())
    warp = (st.tid % st.per_block) >> 5
    lane = c.i32(1) << (st.tid % st.per_block & 31)
    with c.when((slot.at("warp_lanes", warp) & lane) != 0):  # the warp comes once more
        slot.set_at("warp_lanes", warp, 0)
        slot.set_at("warp_site", warp, 0)
    slot.set_at("warp_lanes", warp, slot.at("warp_lanes", warp) | lane)
    before = slot.at("warp_site", warp)
    with c.when((mode < 2) & (before != 0) & (before != site + 1)):
        call(c, "report", RULE["divergent"], site, before - 1, st.group, st.tid, 0, 0, number.wide(), 0)
    with c.when((mode < 2) & (count == 0)):  # a barrier for all threads of the block
        with c.when((before == 0) & (slot.site != site)):
            call(c, "report", RULE["other-way"], site, slot.site, st.group, slot.who, 0, 0, number.wide(), 0)
        with c.when(st.exits != 0):
            first, gone = rank.narrow() * st.per_block, c.variable(-1, 32)
            with c.loop(st.per_block) as i:
                other = c.struct(st.thread_array + (first + i).wide() * ctypes.sizeof(Thread), Thread)
                with c.when((other.exited != 0) & (gone.get() == -1)):
                    gone.set(first + i)
            with c.when(gone.get() != -1):
                call(c, "report", RULE["barrier-exited"], site, site, st.group, gone.get(), 0, 0, number.wide(), 0)
    slot.set_at("warp_site", warp, site + 1)
    slot.arrived = slot.arrived + 1
    with c.when((st.sequential == 0) | (thread.fenced == 0)):
        c.struct(slot.clock, Clock).unfenced = 1
    with c.when(mode == 3):
        call(c, "release_into", slot.clock, thread.at("fence_base", 0), thread.place("fence_own"))
        started = clock_entry(c, slot.clock, st.tid)
        c.store(maximum(c.load(started, 32), c.i32(1)), started, 32)
    with c.otherwise():
        call(c, "release", slot.clock)
    clock = slot.clock
    with c.when(mode == 1):
        call(c, "clock_hold", clock)
        thread.pending = clock
    with c.when(mode >= 2):
        call(c, "clock_hold", clock)
        call(c, "clock_drop", thread.pending_cluster)
        thread.pending_cluster = clock


@exported([])
def passed(c: Code) -> None:
    """The running thread has passed what it waited for."""
    thread = c.struct(state_of(c).current, Thread)
    clock = thread.pending
    with c.when(clock != 0):
        thread.pending = 0
        call(c, "acquire", clock)
        call(c, "fenced_barrier", clock)
        call(c, "clock_drop", clock)


@exported([])
def passed_cluster(c: Code) -> None:
    thread = c.struct(state_of(c).current, Thread)
    clock = thread.pending_cluster
    with c.when(clock != 0):
        thread.pending_cluster = 0
        call(c, "acquire", clock)
        call(c, "clock_drop", clock)


@exported([32, 32, 32])
def meet(c: Code, mask: Value, site: Value, orders: Value) -> None:
    """A lane comes to a meeting of the lanes of a mask; `orders`: it orders memory."""
    st = state_of(c)
    thread = c.struct(st.current, Thread)
    local = st.tid % st.per_block
    lane, warp = local & 31, local >> 5
    left = st.per_block - (warp << 5)
    lanes = (left >= 32).choose(c.i32(-1), (c.i32(1) << (left & 31)) - 1)
    warps = (st.per_block + 31) >> 5
    first = ((st.tid // st.per_block) * warps + warp) * 32
    # an open meeting of the same mask, else a free record: lanes of a warp need no more than 32
    chosen = c.variable(first, 32)
    found = c.variable(0, 32)
    with c.loop(c.i32(32)) as i:
        record = c.struct(st.meetings + (first + i).wide() * ctypes.sizeof(Meeting), Meeting)
        is_open = (record.arrived != 0) & (record.mask == mask)
        usable = is_open | ((found.get() == 0) & (record.arrived == 0))
        with c.when(usable & (found.get() != 2)):
            chosen.set(first + i)
            found.set(is_open.choose(c.i32(2), c.i32(1)))
    slot = c.struct(st.meetings + chosen.get().wide() * ctypes.sizeof(Meeting), Meeting)
    mine = c.i32(1) << lane
    alive = c.variable(lanes, 32)
    with c.when((mask & mine) == 0):
        call(c, "report", RULE["lanes-mask"], site, site, st.group, st.tid, 0, 0, mask.wide(), lane.wide())
    with c.when(st.exits != 0):
        with c.loop(c.i32(32)) as i:
            there = ((mask & lanes) >> i) & 1
            with c.when(there != 0):
                other = st.tid - lane + i
                peer = c.struct(st.thread_array + other.wide() * ctypes.sizeof(Thread), Thread)
                with c.when(peer.exited != 0):
                    alive.set(alive.get() & ((c.i32(1) << i) ^ -1))
                    call(c, "report", RULE["lanes-exited"], site, site, st.group, other, 0, 0, mask.wide(), i.wide())
    with c.when(slot.arrived == 0):
        slot.mask = mask
        slot.site = site
        slot.who = st.tid
        call(c, "clock_drop", slot.clock)
        slot.clock = call(c, "clock_new")
    with c.otherwise():
        with c.when(slot.site != site):
            call(c, "report", RULE["lanes-site"], site, slot.site, st.group, slot.who, 0, 0, mask.wide(), 0)
    slot.arrived = slot.arrived + 1
    with c.when(orders != 0):
        clock = slot.clock
        with c.when((st.sequential == 0) | (thread.fenced == 0)):
            c.struct(clock, Clock).unfenced = 1
        call(c, "release", clock)
        call(c, "clock_hold", clock)
        thread.pending = clock
    with c.when(slot.arrived >= (mask & alive.get()).population()):
        slot.arrived = 0


def thread_exits(c: Code, st: Any) -> None:
    """The running thread ends: barriers and meetings that wait for it say so."""
    me = c.variable(st.tid, 32)
    block, local = st.tid // st.per_block, st.tid % st.per_block
    with c.loop(c.i32(BARRIERS - 1)) as i:
        slot = c.struct(st.slots + (block * BARRIERS + i).wide() * ctypes.sizeof(BarrierSlot), BarrierSlot)
        came = (slot.at("warp_lanes", local >> 5) >> (local & 31)) & 1
        with c.when((slot.clock != 0) & (slot.count == 0) & (came == 0)):
            st.tid = slot.who  # the finding is about who waits
            call(c, "report", RULE["barrier-exited"], slot.site, slot.site, st.group, me.get(), 0, 0, i.wide(), 0)
            st.tid = me.get()
    _lane_exits(c, st, me)


def _lane_exits(c: Code, st: Any, me: Variable) -> None:
    local = st.tid % st.per_block
    lane, warp = local & 31, local >> 5
    first = ((st.tid // st.per_block) * ((st.per_block + 31) >> 5) + warp) * 32
    with c.loop(c.i32(32)) as i:
        slot = c.struct(st.meetings + (first + i).wide() * ctypes.sizeof(Meeting), Meeting)
        with c.when((slot.arrived != 0) & (((slot.mask >> lane) & 1) != 0)):
            st.tid = slot.who  # the finding is about who waits
            call(
                c, "report", RULE["lanes-exited"], slot.site, slot.site, st.group, me.get(), 0, 0, slot.mask.wide(),
                lane.wide(),
            )  # fmt: skip
            st.tid = me.get()
            slot.arrived = 0
