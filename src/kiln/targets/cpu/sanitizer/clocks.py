"""Clocks: what a thread knows of all others, handed on by releases and taken by acquires.

A clock that nobody else changes is shared by all threads that know the same: after a barrier of a block there is one.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .native import Code, Value, Variable
from .registry import CLOCK_HEADER, call, exported, maximum, state_of
from .state import STATE, Clock, Foreign, Thread


def clock_entry(c: Code, clock: Value, index: Value) -> Value:
    """The address of an element of a clock."""
    return clock + CLOCK_HEADER + index.wide() * 4


@exported([], 64)
def clock_new(c: Code) -> Variable:
    """A clock of this group that knows nothing, held once."""
    st = state_of(c)
    made = c.variable(st.free_clocks)
    with c.when(made.get() == 0):
        made.set(call(c, "alloc", st.length.wide() * 4 + CLOCK_HEADER))
    with c.otherwise():
        st.free_clocks = c.struct(made.get(), Clock).next
        c.call_c("memset", [(made.get() + CLOCK_HEADER,), c.i32(0), st.length.wide() * 4])
    clock = c.struct(made.get(), Clock)
    clock.holders = 1
    clock.lowest = 0
    clock.unfenced = 0
    clock.group = st.group
    clock.last = 0
    clock.foreign = 0
    return made


@exported([64], 32)
def clock_lowest(c: Code, clock: Value) -> Value:
    """The least of a clock's numbers for threads. Nobody changes the clock any more."""
    st, fields = state_of(c), c.struct(clock, Clock)
    with c.when(fields.lowest == 0):
        least = c.variable(0xFFFF_FFFE, 32)
        with c.loop(st.threads) as i:
            entry = c.load(clock_entry(c, clock, i), 32)
            least.set((entry < least.get()).choose(entry, least.get()))
        fields.lowest = least.get() + 1
    return fields.lowest - 1


@exported([64])
def clock_hold(c: Code, clock: Value) -> None:
    with c.when(clock != 0):
        fields = c.struct(clock, Clock)
        fields.holders = fields.holders + 1


@exported([64])
def clock_drop(c: Code, clock: Value) -> None:
    st = state_of(c)
    at = c.variable(clock)
    with c.repeat(lambda: at.get() != 0):
        fields = c.struct(at.get(), Clock)
        left = fields.holders - 1
        fields.holders = left
        following = c.variable(0)
        with c.when(left == 0):
            following.set(fields.last)
            fields.next = st.free_clocks
            st.free_clocks = at.get()
        at.set(following.get())


@exported([64, 64, 64], 64)
def foreign_add(c: Code, known: Value, group: Value, clock: Value) -> Variable:
    """A list of what is known of other groups, with what `clock` knows of `group`."""
    st = state_of(c)
    result = c.variable(known)
    at = c.variable(known)
    with c.repeat(lambda: (at.get() != 0) & (c.struct(or_state(c, at.get()), Foreign).group != group)):
        at.set(c.struct(at.get(), Foreign).next)
    old = c.variable(0)
    with c.when(at.get() != 0):
        old.set(c.struct(at.get(), Foreign).clock)
    with c.when(old.get() != clock):
        joined = c.variable(clock)
        with c.when(old.get() != 0):
            made = call(c, "clock_new")
            c.struct(made, Clock).group = group.narrow()
            call(c, "clock_max", made, old.get())
            call(c, "clock_max", made, clock)
            joined.set(made)
        with c.otherwise():
            call(c, "clock_hold", clock)
        node = call(c, "alloc", ctypes.sizeof(Foreign))
        fields = c.struct(node, Foreign)
        fields.next = known
        fields.group = group
        fields.clock = joined.get()
        result.set(node)
    del st
    return result


def or_state(c: Code, address: Value) -> Value:
    """An address that can be read: itself, or the state's where it is null."""
    return (address == 0).choose(c.symbol(STATE), address)


@exported([64, 64], 64)
def foreign_merge(c: Code, known: Value, other: Value) -> Variable:
    result = c.variable(known)
    at = c.variable(other)
    with c.when(known == 0):
        result.set(other)
        at.set(0)
    with c.when(known == other):
        at.set(0)
    with c.repeat(lambda: at.get() != 0):
        node = c.struct(at.get(), Foreign)
        result.set(call(c, "foreign_add", result.get(), node.group, node.clock))
        at.set(c.struct(at.get(), Foreign).next)
    return result


@exported([64, 64])
def clock_max(c: Code, into: Value, clock: Value) -> None:
    """Element by element."""
    with c.loop(state_of(c).length.wide()) as i:
        a, b = into + CLOCK_HEADER + i * 4, clock + CLOCK_HEADER + i * 4
        c.store(maximum(c.load(a, 32), c.load(b, 32)), a, 32)


@exported([64, 64])
def clock_join(c: Code, into: Value, clock: Value) -> None:
    """Let a clock that nobody else has taken know all that another one knows."""
    st, fields = state_of(c), c.struct(into, Clock)
    with c.when((clock != 0) & (clock != into) & (clock != fields.last)):
        other = c.struct(clock, Clock)
        foreign = call(c, "foreign_merge", fields.foreign, other.foreign)
        fields.foreign = foreign
        with c.when(other.group == st.group):
            call(c, "clock_max", into, clock)
        with c.otherwise():
            fields.foreign = call(c, "foreign_add", foreign, other.group.wide(), clock)
        call(c, "clock_hold", clock)
        call(c, "clock_drop", fields.last)
        fields.last = clock


@exported([64, 64, 64])
def release_into(c: Code, into: Value, base: Value, own: Value) -> None:
    """Add what the running thread knows, as (base, address of its own elements)."""
    st = state_of(c)
    call(c, "clock_join", into, base)
    sections = st.length // st.threads
    with c.loop(sections) as s:
        at = clock_entry(c, into, s * st.threads + st.tid)
        c.store(maximum(c.load(at, 32), c.load(own + s.wide() * 4, 32)), at, 32)


@exported([64, 64], 64)
def clock_union(c: Code, a: Value, b: Value) -> Variable:
    """A clock that knows what both know, held once for the caller; one of them, where possible."""
    st = state_of(c)
    result = c.variable(0)
    memo = [st.at("memo", i) for i in range(3)]
    hit = (memo[2] != 0) & (memo[0] == a) & (memo[1] == b)
    with c.when((b == 0) | (a == b)):
        result.set(a)
    with c.otherwise():
        with c.when(hit):
            result.set(memo[2])
        with c.otherwise():
            same_group = c.struct(b, Clock).group == st.group
            with c.when((a == 0) & same_group):
                result.set(b)
            with c.otherwise():
                a_more, b_more = c.variable(0, 32), c.variable(0, 32)
                with c.when((a != 0) & same_group):
                    with c.loop(st.length.wide()) as i:
                        x, y = c.load(a + CLOCK_HEADER + i * 4, 32), c.load(b + CLOCK_HEADER + i * 4, 32)
                        a_more.set(a_more.get() | (x > y).narrow())
                        b_more.set(b_more.get() | (y > x).narrow())
                    fa, fb = c.struct(a, Clock).foreign, c.struct(b, Clock).foreign
                    same = fa == fb
                    with c.when((a_more.get() == 0) & (same | (fa == 0))):
                        result.set(b)
                    with c.otherwise():
                        with c.when((b_more.get() == 0) & (same | (fb == 0))):
                            result.set(a)
                with c.when(result.get() == 0):
                    made = call(c, "clock_new")
                    call(c, "clock_join", made, a)
                    call(c, "clock_join", made, b)
                    c.struct(made, Clock).holders = 0
                    result.set(made)
                for clock in (a, b, result.get()):
                    call(c, "clock_hold", clock)
                for clock in memo:
                    call(c, "clock_drop", clock)
                for i, clock in enumerate((a, b, result.get())):
                    st.set_at("memo", i, clock)
    call(c, "clock_hold", result.get())
    return result


@exported([64])
def acquire(c: Code, clock: Value) -> None:
    """The running thread takes a clock."""
    with c.when(clock != 0):
        thread = c.struct(state_of(c).current, Thread)
        base = thread.base
        thread.base = call(c, "clock_union", base, clock)
        call(c, "clock_drop", base)


def tick(c: Code, thread: Any) -> None:
    """What the thread does from now on is not what it has just released."""
    thread.set_at("own", 0, thread.at("own", 0) + 1)


@exported([64])
def release(c: Code, into: Value) -> None:
    thread = c.struct(state_of(c).current, Thread)
    call(c, "release_into", into, thread.base, thread.place("own"))
    tick(c, thread)


@exported([32, 32, 32, 32], 32)
def ordered(c: Code, group: Value, tid: Value, clock: Value, proxy: Value) -> Variable:
    """Whether an access of another identity at `clock` happened before now, for the running thread.

    With `proxy`, for the async proxy of the running thread: what the generic proxy did counts if it was fenced.
    """
    st = state_of(c)
    thread = c.struct(st.current, Thread)
    result = c.variable(0, 32)
    base = thread.base
    n = st.threads
    with c.when(group == st.group):
        index = ((proxy != 0) & (tid < n * 2)).choose(tid + n * 3, tid)
        with c.when(base != 0):
            result.set((c.load(clock_entry(c, base, index), 32) >= clock).narrow())
        with c.when(result.get() == 0):
            with c.when(index % n == st.tid):
                result.set((thread.at("own", index // n) >= clock).narrow())
    with c.otherwise():
        with c.when(group < st.first_group):  # another launch: over, unless it is the one before
            over = (group < st.before_group) | ((st.programmatic != 0) & (thread.depended != 0))
            result.set(over.narrow())
        with c.otherwise():
            at = c.variable(0)
            with c.when(base != 0):
                at.set(c.struct(base, Clock).foreign)
            with c.repeat(lambda: (at.get() != 0) & (c.struct(or_state(c, at.get()), Foreign).group != group.wide())):
                at.set(c.struct(at.get(), Foreign).next)
            with c.when(at.get() != 0):
                known = c.struct(at.get(), Foreign).clock
                result.set((c.load(clock_entry(c, known, tid), 32) >= clock).narrow())
    return result
