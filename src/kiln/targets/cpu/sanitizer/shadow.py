"""Accesses: who read and wrote each few bytes last, and whether a new access comes after that."""

from __future__ import annotations

from typing import Any

from .independent_threads import LONE_CELL
from .native import Code, Value, Variable
from .registry import CELL, CLOCK_HEADER, call, exported, maximum, state_of
from .reporting import attribute, placed
from .state import (
    ALIGNMENT_SHIFT,
    ATOMIC,
    DENSE,
    ENGINE_SHIFT,
    GLOBAL,
    MAX_PAGES,
    PAGE_SHIFT,
    RULE,
    SHARED,
    WRITE,
    Cell,
    Finding,
    Object,
    Thread,
)

NO_INIT = 1 << 6
"""Flag of an access: what it reads need not have been written."""
_ATOMIC_BIT = 1 << 31


@exported([64], 64)
def global_cell(c: Code, address: Value) -> Variable:
    """The cell of a global address, or 0 where there is no memory for it."""
    st = state_of(c)
    key = (address >> PAGE_SHIFT) + 1
    page = c.variable(0)
    with c.when(st.last_page == key):
        page.set(st.last_page_at)
    with c.otherwise():
        with c.when(st.pages == 0):
            st.pages = call(c, "alloc", 16 * MAX_PAGES)
        slot = c.variable((key * -0x61C8864680B583EB) >> (64 - MAX_PAGES.bit_length() + 1))

        def probing() -> Value:
            at = c.load(st.pages + slot.get() * 16)
            return (at != 0) & (at != key)

        with c.repeat(probing):
            slot.set((slot.get() + 1) & (MAX_PAGES - 1))
        entry = st.pages + slot.get() * 16
        with c.when(c.load(entry) == key):
            page.set(c.load(entry + 8))
        with c.otherwise():
            cells = c.i64(1 << PAGE_SHIFT) >> st.shift.wide()
            with c.when((st.allocated < st.limit) & (st.page_count < MAX_PAGES // 2)):
                page.set(call(c, "alloc", cells * CELL))
                c.store(key, entry)
                c.store(page.get(), entry + 8)
                st.page_count = st.page_count + 1
        st.last_page = key
        st.last_page_at = page.get()
    result = c.variable(0)
    with c.when(page.get() != 0):
        result.set(page.get() + ((address & ((1 << PAGE_SHIFT) - 1)) >> st.shift.wide()) * CELL)
    return result


@exported([], 64)
def dense_new(c: Code) -> Variable:
    """An array of (clock, site) over all identities, or 0 where there is no memory for it."""
    st = state_of(c)
    size = st.identities.wide() * 8
    made = c.variable(st.free_arrays)
    with c.when(made.get() == 0):
        with c.when(st.allocated < st.limit):
            # the word before it links all of them, so that a new group gets them back
            block = call(c, "alloc", size + 8)
            c.store(st.dense, block)
            st.dense = block
            made.set(block + 8)
    with c.otherwise():
        st.free_arrays = c.load(made.get())
        c.call_c("memset", [(made.get(),), c.i32(0), size])
    return made


_REPORT_ORDER = ("site", "group", "tid")


def _collide(c: Code, rule: Any, site: Value, cell: Any, who: str, address: Value, bytes_: Value) -> None:
    other = [getattr(cell, f"{who}_{name}") for name in _REPORT_ORDER]
    other[2] = other[2] & (_ATOMIC_BIT - 1)
    rule = c.i32(RULE[rule]) if isinstance(rule, str) else rule
    call(c, "report", rule, site, other[0], other[1], other[2], address, bytes_, 0, 0)


@exported([64, 32, 32, 64, 32])
def touch(c: Code, at: Value, flags: Value, site: Value, address: Value, bytes_: Value) -> None:
    """One access to the bytes of one cell, by the running thread or one of its engines."""
    st = state_of(c)
    thread = c.struct(st.current, Thread)
    cell = c.struct(at, Cell)
    group = st.group
    engine = (flags >> ENGINE_SHIFT) & 3
    me = engine * st.threads + st.tid
    now = c.variable(thread.at("own", 0), 32)
    with c.when(engine != 0):
        now.set(thread.at("epoch", engine - 1))
    clock = now.get()
    writes, atomic = (flags & WRITE) != 0, (flags & ATOMIC) != 0
    shared = (flags & SHARED) != 0
    again_r = (~writes) & (cell.r_clock == clock) & (cell.r_tid == me) & (cell.r_group == group)
    again_w = writes & (~atomic) & (cell.w_clock == clock) & (cell.w_tid == me) & (cell.w_group == group)
    again_w = again_w & (cell.r_clock == 0) & (cell.a_clock == 0)
    again = (again_r | again_w) & (engine == 0)
    with c.when(~again):
        proxy = (engine == 2).narrow()
        other = cell.w_tid & (_ATOMIC_BIT - 1)
        other_atomic = (cell.w_tid & _ATOMIC_BIT) != 0
        unordered = c.variable(0, 32)
        with c.when((cell.w_clock != 0) & ~((other == me) & (cell.w_group == group) & (engine == 0))):
            unordered.set(call(c, "ordered", cell.w_group, other, cell.w_clock, proxy) ^ 1)
        same = c.variable(0, 32)
        with c.when((unordered.get() != 0) & writes & (st.value != 0) & (cell.w_site == site)):
            same.set(1)
            with c.loop(c.i64(1) << st.shift.wide()) as i:
                new = c.load(st.value + (address - st.value_for) + i, 8)
                with c.when(new != c.load(address + i, 8)):
                    same.set(0)
        with c.when((unordered.get() != 0) & (same.get() == 0) & ~(atomic & other_atomic)):
            rule = writes.choose(c.i32(RULE["write-write"]), c.i32(RULE["write-read"]))
            rule = other_atomic.choose(c.i32(RULE["atomic"]), rule)
            only_proxy = (proxy != 0) & (other < st.threads * 2)
            with c.when(only_proxy):
                in_order = call(c, "ordered", cell.w_group, other, cell.w_clock, 0)
                _collide(c, (in_order != 0).choose(c.i32(RULE["proxy"]), rule), site, cell, "w", address, bytes_)
            with c.otherwise():
                _collide(c, rule, site, cell, "w", address, bytes_)
        with c.when((cell.a_clock != 0) & (~atomic)):
            before = cell.a_tid & (_ATOMIC_BIT - 1)
            fine = call(c, "ordered", cell.a_group, before, cell.a_clock, proxy)
            with c.when((fine == 0) & ~((before == me) & (cell.a_group == group))):
                _collide(c, "atomic", site, cell, "a", address, bytes_)
        with c.when(writes):
            _check_readers(c, st, cell, me, engine, group, site, shared, address, bytes_)
            with c.when(atomic & other_atomic & (unordered.get() != 0)):
                for name in ("clock", "tid", "site", "group"):
                    setattr(cell, f"a_{name}", getattr(cell, f"w_{name}"))
            with c.when(~atomic):
                cell.a_clock = 0
            cell.w_clock = clock
            cell.w_tid = me | (atomic.narrow() << 31)
            cell.w_site = site
            cell.w_group = group
            cell.r_clock = 0
            cell.o_clock = 0
        with c.otherwise():
            with c.when(shared & (cell.w_clock == 0) & ((flags & NO_INIT) == 0)):
                call(c, "report", RULE["uninitialized"], site, site, group, me, address, bytes_, 0, 0)
            with c.when(~atomic):
                _record_read(c, st, cell, me, clock, site, group, shared)


def _check_readers(
    c: Code, st: Any, cell: Any, me: Value, engine: Value, group: Value, site: Value, shared: Value, address: Value,
    bytes_: Value,
) -> None:  # fmt: skip
    dense = shared & (cell.r_clock != 0) & (cell.r_tid == DENSE)
    with c.when(dense):
        array = c.load(cell.place("o_clock"))
        # most often all readers are ordered: without branches that is quick to see
        late = c.variable(1, 32)
        base = c.struct(st.current, Thread).base
        with c.when((base != 0) & (engine == 0)):
            # a barrier of all threads: what any of them did before is known without looking at each
            late.set((cell.o_site > call(c, "clock_lowest", base)).narrow())
        with c.when((base != 0) & (late.get() != 0)):
            late.set(0)
            with c.loop(st.identities.wide()) as i:
                behind = c.load(array + i * 8, 32) > c.load(base + CLOCK_HEADER + i * 4, 32)
                late.set(late.get() | (behind & (i != me.wide())).narrow())
        with c.when((late.get() == 0) & (engine != 0)):  # an engine is not ordered with itself
            late.set(1)
        last = (late.get() != 0).choose(st.identities, 0)
        with c.loop(last) as i:
            clock = c.load(array + i.wide() * 8, 32)
            with c.when((clock != 0) & ~((i == me) & (engine == 0))):
                with c.when(call(c, "ordered", group, i, clock, 0) == 0):
                    where = c.load(array + i.wide() * 8 + 4, 32)
                    call(c, "report", RULE["read-write"], site, where, group, i, address, bytes_, 0, 0)
        c.store(st.free_arrays, array)
        st.free_arrays = array
    with c.otherwise():
        for who in "ro":
            tid = getattr(cell, f"{who}_tid")
            known = (tid == me) & (getattr(cell, f"{who}_group") == group) & (engine == 0)
            present = (getattr(cell, f"{who}_clock") != 0) & ~known
            if who == "o":
                present = present & ~shared
            with c.when(present):
                fine = call(c, "ordered", getattr(cell, f"{who}_group"), tid, getattr(cell, f"{who}_clock"), 0)
                with c.when(fine == 0):
                    _collide(c, "read-write", site, cell, who, address, bytes_)


def _record_read(
    c: Code, st: Any, cell: Any, me: Value, clock: Value, site: Value, group: Value, shared: Value
) -> None:
    alone = c.variable((cell.r_clock == 0).narrow(), 32)
    dense = shared & (cell.r_clock != 0) & (cell.r_tid == DENSE)
    with c.when(dense):
        array = c.load(cell.place("o_clock"))
        c.store(clock, array + me.wide() * 8, 32)
        c.store(site, array + me.wide() * 8 + 4, 32)
        cell.o_site = maximum(cell.o_site, (me < st.threads).choose(clock, c.i32(-1)))
    with c.otherwise():
        with c.when(alone.get() == 0):
            mine = (cell.r_tid == me) & (cell.r_group == group)
            with c.when(mine):
                alone.set(1)
            with c.otherwise():
                alone.set(call(c, "ordered", cell.r_group, cell.r_tid, cell.r_clock, 0))
        with c.when((alone.get() == 0) & shared):
            array = call(c, "dense_new")
            with c.when(array == 0):
                alone.set(1)
            with c.otherwise():
                for who, when, where in ((cell.r_tid, cell.r_clock, cell.r_site), (me, clock, site)):
                    c.store(when, array + who.wide() * 8, 32)
                    c.store(where, array + who.wide() * 8 + 4, 32)
                engines = (me >= st.threads) | (cell.r_tid >= st.threads)
                cell.o_site = engines.choose(c.i32(-1), maximum(clock, cell.r_clock))
                cell.r_tid = DENSE
                c.store(array, cell.place("o_clock"))
        with c.when((alone.get() == 0) & ~shared):
            for name in ("clock", "tid", "site", "group"):
                setattr(cell, f"o_{name}", getattr(cell, f"r_{name}"))
            alone.set(1)
        with c.when(alone.get() != 0):
            cell.r_clock = clock
            cell.r_tid = me
            cell.r_site = site
            cell.r_group = group


@exported([64, 32, 32, 32, 32, 32], 64)
def access(c: Code, address: Value, bytes_: Value, flags: Value, site: Value, low: Value, high: Value) -> Variable:
    """Check an access; the address to use instead: elsewhere if it must not be made.

    In shared memory `low` and `high` bound the allocation, as offsets; in global memory `low` is the number of the
    argument plus 1, 0 if that is not known.
    """
    st = state_of(c)
    result = c.variable(address)
    with c.when((st.active != 0) & (bytes_ != 0)):
        bad = c.variable(0, 32)
        with c.when(st.sequential != 0):
            c.struct(st.current, Thread).fenced = 0
        alignment = (flags >> ALIGNMENT_SHIFT) & 63
        mask = (c.i64(1) << alignment.wide()) - 1
        with c.when((address & mask) != 0):
            call(c, "report", RULE["alignment"], site, site, st.group, st.tid, address, bytes_, mask + 1, 0)
            bad.set(1)
        in_arena = (address >= st.arena) & (address < st.arena_end)
        said_shared = (flags & SHARED) != 0
        with c.when(in_arena):
            inside = address - st.arena
            in_block, at = c.variable(0), c.variable(inside)
            with c.when(inside >= st.chunk):
                in_block.set(inside // st.chunk)
                at.set(inside % st.chunk)
            rank, offset = in_block.get(), at.get()
            with c.when((st.remote != 0) & (rank != (st.tid // st.per_block).wide())):
                call(c, "remote_access", rank.narrow(), (flags >> ENGINE_SHIFT) & 3, site)
            end = offset + bytes_.wide()
            limit = (high < st.smem).choose(high, st.smem).wide()
            outside = said_shared & ((offset < low.wide()) | (end > limit))
            with c.when(outside):
                call(c, "report", RULE["bounds"], site, site, st.group, st.tid, address, bytes_, low.wide(), limit)
                bad.set(1)
            with c.otherwise():
                # frames of threads lie in the arena too, past the shared memory
                with c.when(end <= st.smem.wide()):
                    first = offset >> st.shift.wide()
                    last = (end - 1) >> st.shift.wide()
                    start = st.cells + rank * (st.cells_per_block.wide() * CELL)
                    with c.loop(last + 1, first) as i:
                        where = address + (i - first) * (c.i64(1) << st.shift.wide())
                        call(c, "touch", start + i * CELL, flags | SHARED, site, where, bytes_)
        with c.otherwise():
            with c.when(said_shared):
                call(c, "report", RULE["bounds"], site, site, st.group, st.tid, address, bytes_, 0, 0)
                bad.set(1)
            with c.otherwise():
                _global_access(c, st, address, bytes_, flags, site, low, bad)
        with c.when(bad.get() != 0):
            result.set(st.scratch)
    st.value = 0
    return result


@exported([64, 64])
def writes(c: Code, address: Value, value: Value) -> None:
    """The next access writes the bytes at `value`."""
    st = state_of(c)
    st.value = value
    st.value_for = address


def _global_access(
    c: Code, st: Any, address: Value, bytes_: Value, flags: Value, site: Value, number: Value, bad: Variable
) -> None:
    end = address + bytes_.wide()
    known = c.variable(((flags & GLOBAL) != 0).narrow(), 32)
    with c.when((number != 0) & (number <= st.object_count)):
        o = c.struct(st.place("objects", number - 1), Object)
        outside = (o.high != 0) & ((address < o.low) | (end > o.high))
        with c.when(outside):
            made = call(c, "report", RULE["bounds"], site, site, st.group, st.tid, address, bytes_, o.low, o.high)
            with c.when(made != 0):
                attribute(c, c.struct(made, Finding), o, number - 1, address)
            bad.set(1)
    with c.when(known.get() == 0):
        with c.loop(st.object_count) as i:
            o = c.struct(st.place("objects", i), Object)
            with c.when((address >= o.low) & (end <= o.high)):
                known.set(1)
    with c.when((st.readonly != 0) & ((flags & WRITE) != 0)):
        constant, writable = c.variable(0), c.variable(0)
        with c.loop(st.object_count) as i:
            o = c.struct(st.place("objects", i), Object)
            mine = (number == 0) | (number == i + 1)
            with c.when(mine & (address >= o.low) & (address < o.high)):
                constant.set(constant.get() | o.readonly)
                writable.set(writable.get() | (o.readonly ^ 1))
        with c.when((constant.get() != 0) & (writable.get() == 0) & (bad.get() == 0)):
            call(c, "report", RULE["read-only"], site, site, st.group, st.tid, address, bytes_, 0, 0)
            bad.set(1)
    quiet = c.variable(0)
    with c.when(number != 0):
        quiet.set(c.struct(st.place("objects", number - 1), Object).quiet)
    with c.when((bad.get() == 0) & (known.get() != 0) & (quiet.get() == 0)):
        step = c.i64(1) << st.shift.wide()
        first, last = address >> st.shift.wide(), (end - 1) >> st.shift.wide()
        with c.loop(last + 1, first) as i:
            where = i * step
            at = (where < address).choose(address, where)
            with c.when(st.lone != 0):
                bias = c.variable(0)
                with c.loop(st.object_count) as k:
                    o = c.struct(st.place("objects", k), Object)
                    with c.when((at >= o.low) & (at < o.high) & (o.bias != 0)):
                        bias.set(o.bias)
                with c.when(bias.get() != 0):
                    call(c, "lone_touch", bias.get() + i * LONE_CELL, flags, site, at, bytes_)
            with c.otherwise():
                cell = call(c, "global_cell", where)
                with c.when(cell != 0):
                    call(c, "touch", cell, flags, site, at, bytes_)


@exported([64, 64, 32, 32, 32], 64)
def private(c: Code, address: Value, base: Value, size: Value, bytes_: Value, site: Value) -> Variable:
    """Check an access to a register array of `size` bytes at `base`."""
    st = state_of(c)
    result = c.variable(address)
    offset = address - base
    with c.when((st.active != 0) & ((offset + bytes_.wide() > size.wide()) | (address < base))):
        call(c, "report", RULE["bounds"], site, site, st.group, st.tid, 0, bytes_, offset, size.wide())
        result.set(st.scratch)
    return result


@exported([32, 32, 32, 64])
def outside(c: Code, site: Value, space: Value, modes: Value, numbers: Value) -> None:
    """An access at coordinates outside a tensor; `numbers`: for each mode the lowest, then the highest, then the extents."""
    st = state_of(c)
    with c.when(st.active != 0):
        made = call(c, "report", RULE["bounds"], site, site, st.group, st.tid, 0, 0, 0, 0)
        with c.when(made != 0):
            f = c.struct(made, Finding)
            f.modes = modes
            f.space = space
            with c.loop(modes) as i:
                at = numbers + i.wide() * 8
                low, high = c.load(at), c.load(at + modes.wide() * 8)
                size = c.load(at + modes.wide() * 16)
                f.set_at("place", i, ((low >> 63) != 0).choose(low, high))
                f.set_at("extents", i, size)


@exported([64, 32, 32, 32, 32])
def undefined(c: Code, address: Value, bytes_: Value, site: Value, source: Value, element: Value) -> None:
    """A value that nobody set decides something: it is written to `address`, or that is 0."""
    st = state_of(c)
    with c.when(st.active != 0):
        call(
            c, "report", RULE["uninitialized"], site, source, st.group, st.tid, address, bytes_, element.wide(), 1
        )  # fmt: skip


@exported([32, 32, 32, 32, 64, 64, 64])
def number(
    c: Code, site: Value, index: Value, count: Value, operands: Value, result: Value, left: Value, right: Value
) -> None:
    """A result that is not finite, of operands that are: element `index` of `count`; numbers are the bits of doubles."""
    st = state_of(c)
    with c.when(st.active != 0):
        packed = index.wide() | (count.wide() << 32)
        made = call(c, "report", RULE["not-finite"], site, site, st.group, st.tid, 0, operands, packed, result)
        with c.when(made != 0):
            f = c.struct(made, Finding)
            f.set_at("numbers", 0, left)
            f.set_at("numbers", 1, right)
            st.unplaced = made
            st.unplaced_tid = st.tid.wide()


@exported([64])
def stored(c: Code, address: Value) -> None:
    """A number that is not finite is stored: that is where the running thread's last one of which this is not known went."""
    st = state_of(c)
    with c.when((st.unplaced != 0) & (st.unplaced_tid == st.tid.wide())):
        f = c.struct(st.unplaced, Finding)
        f.address = address
        placed(c, st, f, address)
        st.unplaced = 0


@exported([32, 64, 64])
def overflowed(c: Code, site: Value, left: Value, right: Value) -> None:
    """A 32-bit sum, difference or product of which an address is made does not fit."""
    st = state_of(c)
    with c.when(st.active != 0):
        call(c, "report", RULE["index-overflow"], site, site, st.group, st.tid, 0, 0, left, right)
