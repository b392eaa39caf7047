"""Addresses that order memory: atomics, ordered loads and stores; and fences."""

from __future__ import annotations

import ctypes
from typing import Any

from .clocks import tick
from .native import Code, Value, Variable
from .registry import CLOCK_HEADER, call, exported, maximum, state_of
from .state import LOCATIONS, Clock, Location, Thread


@exported([64, 32], 64)
def location(c: Code, address: Value, create: Value) -> Variable:
    """The record of an address, or 0: it has none and `create` is 0, or there is no place."""
    st = state_of(c)
    size = ctypes.sizeof(Location)
    result = c.variable(0)
    with c.when(st.locations == 0):
        st.locations = call(c, "alloc", size * LOCATIONS)
    slot = c.variable((address * -0x61C8864680B583EB) >> (64 - LOCATIONS.bit_length() + 1))
    tries = c.variable(0)

    def probing() -> Value:
        key = c.load(st.locations + slot.get() * size)
        return (key != 0) & (key != address) & (tries.get() < LOCATIONS - 1)

    with c.repeat(probing):
        slot.set((slot.get() + 1) & (LOCATIONS - 1))
        tries.set(tries.get() + 1)
    at = st.locations + slot.get() * size
    loc = c.struct(at, Location)
    with c.when(loc.key == address):
        result.set(at)
        # an address in shared memory is another thing in another group
        with c.when((loc.born != 0) & (loc.born != st.group + 1)):
            with c.when(create != 0):
                for name in ("local", "wide"):
                    call(c, "clock_drop", getattr(loc, name))
                for i in range(2):
                    call(c, "clock_drop", loc.at("published", i))
                waits = loc.waits
                c.call_c("memset", [(at,), c.i32(0), c.i64(size)])
                loc.waits = waits
                loc.key = address
                loc.born = st.group + 1
            with c.otherwise():
                result.set(0)
    with c.otherwise():
        with c.when((create != 0) & (loc.key == 0)):
            loc.key = address
            in_arena = (address >= st.arena) & (address < st.arena_end)
            loc.born = in_arena.choose(st.group + 1, 0)
            result.set(at)
    return result


@exported([64, 64, 32, 64, 64], 64)
def chained(c: Code, old: Value, chain: Value, released: Value, base: Value, own: Value) -> Variable:
    """The clock of an address after a write: what was released there before, if the write continues it (`chain`), and
    what the writer releases now."""
    made = c.variable(0)
    with c.when((released != 0) | ((chain != 0) & (old != 0))):
        made.set(call(c, "clock_new"))
        with c.when(chain != 0):
            call(c, "clock_join", made.get(), old)
        with c.when(released != 0):
            call(c, "release_into", made.get(), base, own)
    call(c, "clock_drop", old)
    return made


@exported([64, 32, 32, 32])
def atomic(c: Code, address: Value, order: Value, scope: Value, how: Value) -> None:
    """An atomic access. `order`: 1 acquires, 2 releases; `scope`: 0 the block, 1 more; `how`: 0 load, 1 store, 2 both."""
    st = state_of(c)
    with c.when(st.active != 0):
        thread = c.struct(st.current, Thread)
        fenced = thread.at("fence_own", 0) != 0
        releases = (how != 0) & (((order & 2) != 0) | fenced)
        at = call(c, "location", address, releases.narrow())
        with c.when(at != 0):
            loc = c.struct(at, Location)
            block = st.group * st.at("sizes", 11) + st.tid // st.per_block
            here = (loc.local_block == block) & (loc.local != 0)
            with c.when(how != 1):
                with c.when((order & 1) != 0):
                    with c.when(here):
                        call(c, "acquire", loc.local)
                    with c.when(scope != 0):
                        call(c, "acquire", loc.wide)
                with c.otherwise():
                    with c.when(here):
                        _see(c, thread, 0, loc.local)
                    with c.when(scope != 0):
                        _see(c, thread, 1, loc.wide)
            with c.when(how != 0):
                explicit = (order & 2) != 0
                own = [explicit.choose(thread.place("own"), thread.place("fence_own", 6 * i)) for i in range(2)]
                base = [explicit.choose(thread.base, thread.at("fence_base", i)) for i in range(2)]
                is_rmw = (how == 2).narrow()
                chain = c.variable(is_rmw, 32)
                with c.when(loc.local_block != block):
                    chain.set(0)
                released = (explicit | fenced).narrow()
                loc.local = call(c, "chained", loc.local, chain.get().wide(), released, base[0], own[0])
                loc.local_block = block
                with c.when(scope != 0):
                    wide_fence = thread.at("fence_own", 6) != 0
                    released = (explicit | wide_fence).narrow()
                    loc.wide = call(c, "chained", loc.wide, is_rmw.wide(), released, base[1], own[1])
        with c.when((order & 2) != 0):
            tick(c, thread)


def _see(c: Code, thread: Any, which: int, clock: Value) -> None:
    with c.when(clock != 0):
        before = thread.at("seen", which)
        thread.set_at("seen", which, call(c, "clock_union", before, clock))
        call(c, "clock_drop", before)


@exported([32, 32])
def fence(c: Code, scope: Value, sequential: Value) -> None:
    """What relaxed reads saw is acquired; what relaxed writes write from now on is released as of now.

    Sequentially consistent fences are in one order with all others of their kind, so that a barrier may come between the fence and
    the write: if all who come to it have made one, what a thread writes after it is released as of the barrier.
    """
    st = state_of(c)
    with c.when(st.active != 0):
        thread = c.struct(st.current, Thread)
        for i in range(2):
            with c.when((scope != 0) | (c.i32(i) == 0)):
                call(c, "acquire", thread.at("seen", i))
        _fenced(c, thread, scope)
        with c.when((scope != 0) & (sequential != 0)):
            st.sequential = 1
            thread.fenced = 1
        tick(c, thread)


def _fenced(c: Code, thread: Any, scope: Any) -> None:
    """What the thread knows now is what its relaxed writes release."""
    for i in range(2):
        with c.when((scope != 0) | (c.i32(i) == 0)):
            call(c, "clock_hold", thread.base)
            call(c, "clock_drop", thread.at("fence_base", i))
            thread.set_at("fence_base", i, thread.base)
            for s in range(6):
                thread.set_at("fence_own", 6 * i + s, thread.at("own", s))


@exported([64])
def fenced_barrier(c: Code, clock: Value) -> None:
    """The running thread has passed a barrier to which all came fenced."""
    st = state_of(c)
    with c.when((st.sequential != 0) & (c.struct(clock, Clock).unfenced == 0)):
        thread = c.struct(st.current, Thread)
        _fenced(c, thread, c.i32(1))
        thread.fenced = 1
        tick(c, thread)


@exported([])
def proxy_fence(c: Code) -> None:
    """The async proxy of this thread learns what the thread knows."""
    st = state_of(c)
    with c.when((st.active != 0) & (st.level == 2)):
        thread = c.struct(st.current, Thread)
        thread.set_at("own", 3, thread.at("own", 0))
        thread.set_at("own", 4, thread.at("own", 1))
        base = thread.base
        with c.when(base != 0):
            with c.when(st.at("proxy_memo", 0) != base):
                made = call(c, "clock_new")
                call(c, "clock_join", made, base)
                n = st.threads.wide()
                with c.loop(n * 2) as i:
                    told = made + CLOCK_HEADER + (i + n * 3) * 4
                    c.store(maximum(c.load(told, 32), c.load(made + CLOCK_HEADER + i * 4, 32)), told, 32)
                call(c, "clock_hold", base)
                for i in range(2):
                    call(c, "clock_drop", st.at("proxy_memo", i))
                st.set_at("proxy_memo", 0, base)
                st.set_at("proxy_memo", 1, made)
            made = st.at("proxy_memo", 1)
            call(c, "clock_hold", made)
            call(c, "clock_drop", base)
            thread.base = made
        tick(c, thread)
