"""The course of a call: its arguments, launches, groups of blocks, threads that come and go."""

from __future__ import annotations

import ctypes
from typing import Any

from .barriers import thread_exits
from .clocks import clock_entry
from .native import Code, Value
from .registry import CELL, call, exported, maximum, state_of
from .state import BARRIERS, MAX_OBJECTS, RULE, BarrierSlot, Meeting, Object, Thread

_MOST_REMOTE = 1 << 26
"""Bytes that may be spent on the accesses of blocks to each other's memory."""


@exported([])
def begin(c: Code) -> None:
    """A call from Python begins."""
    st = state_of(c)
    st.extents_count = 0
    st.launches = 0


@exported([64, 64, 32])
def extent(c: Code, low: Value, bytes_: Value, readonly: Value) -> None:
    """An argument of the call is memory of so many bytes."""
    st = state_of(c)
    count = st.extents_count
    with c.when((count < MAX_OBJECTS) & (low != 0)):
        st.set_at("extent_low", count, low)
        st.set_at("extent_high", count, low + bytes_)
        st.set_at("extent_readonly", count, readonly)
        st.extents_count = count + 1


@exported([32, 32, 32, 32, 32, 64, 32])
def launch(
    c: Code, kinds: Value, kernel: Value, shift: Value, level: Value, smem: Value, stream: Value, programmatic: Value
) -> None:
    """A launch begins. `programmatic`: it may start before the one before it has ended."""
    st = state_of(c)
    # the default stream, 0, comes after all others
    other = (stream != st.stream) & (stream != 0) & (st.stream != 0)
    together = (st.launches != 0) & ((programmatic != 0) | other)
    with c.when(together):
        st.before_group = st.first_group
        st.before_kernel = st.kernel
        for i in range(13):
            st.set_at("before_sizes", i, st.at("sizes", i))
        st.first_group = st.next_group
    with c.otherwise():
        call(c, "free_all")
        for name in ("pages", "page_count", "last_page", "last_page_at", "first_group", "next_group", "before_group"):
            setattr(st, name, 0)
    st.launches = st.launches + 1
    st.stream = stream
    st.programmatic = programmatic
    for name in (
        "threads", "locations", "free_clocks", "free_arrays", "dense",
        "thread_array", "cells", "tiles", "slots", "meetings", "object_count", "arena", "arena_end", "unplaced", "readonly", "lone", "remote", "endings",
        "sequential",
    ):  # fmt: skip
        setattr(st, name, 0)
    for i in range(3):
        st.set_at("memo", i, 0)
    for i in range(2):
        st.set_at("proxy_memo", i, 0)
    st.kinds = kinds
    st.kernel = kernel
    st.shift = shift
    st.level = level
    st.smem = smem
    st.limit = 3 << 30
    st.active = 1
    st.scratch = call(c, "alloc", 1 << 16)
    c.call_c("memset", [(st.place("objects"),), c.i32(0), c.i64(ctypes.sizeof(Object) * MAX_OBJECTS)])


@exported([32, 64, 64, 32])
def object_(c: Code, number: Value, base: Value, bytes_: Value, written: Value) -> None:
    """An argument of the kernel. Its memory is that of the call's argument it points into, else what its layout says."""
    st = state_of(c)
    o = c.struct(st.place("objects", number), Object)
    o.base = base
    o.written = written.wide()
    o.low = base
    o.high = (bytes_ == 0).choose(0, base + bytes_)
    # of several arrays that share memory it may be any
    lowest, highest, readonly = c.variable(base), c.variable(0), c.variable(1)
    with c.loop(st.extents_count) as i:
        low, high = st.at("extent_low", i), st.at("extent_high", i)
        with c.when((base >= low) & (base < high)):
            lowest.set((low < lowest.get()).choose(low, lowest.get()))
            highest.set(maximum(high, highest.get()))
            readonly.set(readonly.get() & st.at("extent_readonly", i).wide())
    with c.when(highest.get() != 0):
        o.low = lowest.get()
        o.high = highest.get()
        o.readonly = readonly.get()
        st.readonly = st.readonly | readonly.get().narrow()
    st.object_count = number + 1


@exported([32, 32, 64])
def leaf(c: Code, number: Value, index: Value, value: Value) -> None:
    """A dynamic leaf of an argument's layout."""
    st = state_of(c)
    c.struct(st.place("objects", number), Object).set_at("leaves", index, value)


@exported([32])
def launched(c: Code, keep: Value) -> None:
    """A launch is over. `keep`: what was seen of it may matter to the next one."""
    state_of(c).active = 0
    with c.when(keep == 0):
        call(c, "free_all")
        state_of(c).launches = 0


@exported([])
def depends(c: Code) -> None:
    """The running thread has waited for the launches before."""
    c.struct(state_of(c).current, Thread).depended = 1


@exported([64, 64, 32])
def group(c: Code, arena: Value, sizes: Value, number: Value) -> None:
    """The scheduler starts a group; `sizes` are its numbers (`runtime.records.Sizes`)."""
    st = state_of(c)
    for i in range(13):
        st.set_at("sizes", i, c.load(sizes + 4 * i, 32))
    size = [st.at("sizes", i) for i in range(13)]
    per_block = size[3] * size[4] * size[5]
    blocks = size[11]
    n = per_block * blocks
    st.group = st.first_group + number
    with c.when(st.next_group <= st.group):
        st.next_group = st.group + 1
    st.exits = 0
    st.arena = arena
    st.chunk = size[10].wide()
    st.arena_end = arena + size[10].wide() * blocks.wide()
    with c.when(st.threads != n):
        st.threads = n
        st.per_block = per_block
        sections = (st.level == 2).choose(c.i32(5), st.level + 1)
        st.length = n * sections
        st.identities = n * (st.level + 1)
        st.cells_per_block = (size[9] >> st.shift) + 1
        st.thread_array = call(c, "alloc", n.wide() * ctypes.sizeof(Thread))
        st.cells_bytes = st.cells_per_block.wide() * blocks.wide() * CELL
        st.cells = call(c, "alloc", st.cells_bytes)
        st.tiles = c.i64(0)
        st.slots = call(c, "alloc", blocks.wide() * (BARRIERS * ctypes.sizeof(BarrierSlot)))
        warps = ((per_block + 31) >> 5).wide() * blocks.wide()
        st.meetings = call(c, "alloc", warps * (32 * ctypes.sizeof(Meeting)))
        remote = blocks.wide() * st.identities.wide() * 8
        with c.when((size[6] * size[7] * size[8] > 1) & (remote < _MOST_REMOTE)):
            st.remote = call(c, "alloc", remote)
            st.endings = call(c, "alloc", blocks.wide() * 16)
    with c.otherwise():
        with c.loop(n) as i:
            thread = c.struct(st.thread_array + i.wide() * ctypes.sizeof(Thread), Thread)
            for name in ("base", "pending", "pending_cluster"):
                call(c, "clock_drop", getattr(thread, name))
            for name in ("fence_base", "seen"):
                for k in range(2):
                    call(c, "clock_drop", thread.at(name, k))
        with c.loop(blocks * BARRIERS) as i:
            call(c, "clock_drop", c.struct(st.slots + i.wide() * ctypes.sizeof(BarrierSlot), BarrierSlot).clock)
        warps = ((per_block + 31) >> 5) * blocks
        with c.loop(warps * 32) as i:
            call(c, "clock_drop", c.struct(st.meetings + i.wide() * ctypes.sizeof(Meeting), Meeting).clock)
        for place, bytes_ in (
            (st.thread_array, n.wide() * ctypes.sizeof(Thread)),
            (st.cells, st.cells_bytes),
            (st.slots, blocks.wide() * (BARRIERS * ctypes.sizeof(BarrierSlot))),
            (st.meetings, warps.wide() * (32 * ctypes.sizeof(Meeting))),
        ):
            c.call_c("memset", [(place,), c.i32(0), bytes_])
        with c.when(st.tiles != 0):
            c.call_c("memset", [(st.tiles,), c.i32(0), st.cells_per_block.wide() * blocks.wide() * 4])
        with c.when(st.remote != 0):
            c.call_c("memset", [(st.remote,), c.i32(0), blocks.wide() * st.identities.wide() * 8])
            with c.loop(blocks) as i:
                call(c, "clock_drop", c.load(st.endings + i.wide() * 16))
            c.call_c("memset", [(st.endings,), c.i32(0), blocks.wide() * 16])
        # memoized clocks are of the last group
        for i in range(3):
            call(c, "clock_drop", st.at("memo", i))
            st.set_at("memo", i, 0)
        for i in range(2):
            call(c, "clock_drop", st.at("proxy_memo", i))
            st.set_at("proxy_memo", i, 0)
        at = c.variable(st.dense)
        st.free_arrays = 0
        with c.repeat(lambda: at.get() != 0):
            array = at.get() + 8
            c.store(st.free_arrays, array)
            st.free_arrays = array
            at.set(c.load(at.get()))
    with c.loop(n) as i:
        thread = c.struct(st.thread_array + i.wide() * ctypes.sizeof(Thread), Thread)
        thread.set_at("own", 0, 2)  # who knows of 1 knows that it has started
        thread.set_at("epoch", 0, 1)
        thread.set_at("epoch", 1, 1)


@exported([32, 32])
def switch(c: Code, rank: Value, thread: Value) -> None:
    """The scheduler resumes a thread."""
    st = state_of(c)
    tid = rank * st.per_block + thread
    st.tid = tid
    st.current = st.thread_array + tid.wide() * ctypes.sizeof(Thread)


@exported([])
def exit_(c: Code) -> None:
    """The running thread is done."""
    st = state_of(c)
    c.struct(st.current, Thread).exited = 1
    st.exits = st.exits + 1
    thread_exits(c, st)
    with c.when(st.remote != 0):
        rank = st.tid // st.per_block
        ending = st.endings + rank.wide() * 16
        with c.when(c.load(ending) == 0):
            c.store(call(c, "clock_new"), ending)
        call(c, "release", c.load(ending))
        ended = c.load(ending + 8) + 1
        c.store(ended, ending + 8)
        with c.when(ended == st.per_block.wide()):
            _all_known(c, st, rank, c.load(ending))


def _all_known(c: Code, st: Any, rank: Value, clock: Value) -> None:
    """A block has ended: do its threads know of every access of other blocks to its shared memory?"""
    me = c.variable(st.tid, 32)
    with c.loop(st.identities) as i:
        record = st.remote + (rank * st.identities + i).wide() * 8
        when = c.load(record, 32)
        with c.when((when != 0) & (c.load(clock_entry(c, clock, i), 32) < when)):
            st.tid = i % st.threads  # the finding is about who made the access
            where = c.load(record + 4, 32)
            call(c, "report", RULE["block-exited"], where, where, st.group, me.get(), 0, 0, rank.wide(), 0)
            st.tid = me.get()


@exported([32, 32, 32])
def remote_access(c: Code, rank: Value, engine: Value, site: Value) -> None:
    """The running thread accesses the shared memory of another block of its cluster."""
    st = state_of(c)
    thread = c.struct(st.current, Thread)
    now = c.variable(thread.at("own", 0), 32)
    with c.when(engine != 0):
        now.set(thread.at("epoch", engine - 1))
    record = st.remote + (rank * st.identities + engine * st.threads + st.tid).wide() * 8
    c.store(now.get(), record, 32)
    c.store(site, record + 4, 32)
    started = c.variable(0, 32)
    with c.when(thread.base != 0):
        with c.loop(st.per_block) as i:
            known = c.load(clock_entry(c, thread.base, rank * st.per_block + i), 32)
            started.set(started.get() | (known != 0).narrow())
    with c.when(started.get() == 0):
        call(c, "report", RULE["block-started"], site, site, st.group, rank * st.per_block, 0, 0, rank.wide(), 0)
    with c.when(c.load(st.endings + rank.wide() * 16 + 8) == st.per_block.wide()):
        call(c, "report", RULE["block-exited"], site, site, st.group, rank * st.per_block, 0, 0, rank.wide(), 1)
