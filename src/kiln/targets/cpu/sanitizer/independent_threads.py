"""Kernels whose threads never meet: no barrier, no atomic, no shared memory. Any two of them that access the same bytes, one
writing, race: it needs no clocks to see that, only who came before. An argument that nobody writes needs not even that.

The cells of an argument are an array over its memory, so that the code of the kernel can look itself (`inline.py`) and calls the
detector only where something is not as it should be.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .native import Code, Value
from .registry import call, exported, state_of
from .state import RULE, WRITE, LoneCell, Object

LONE_CELL = ctypes.sizeof(LoneCell)


@exported([32, 32])
def prepare(c: Code, lone: Value, unknown: Value) -> None:
    """The arguments of a launch are known: which of them nobody writes, and cells for the others.

    `lone`: the kernel's threads never meet. `unknown`: memory that may be anybody's is written, by it or by a kernel beside it.
    """
    st = state_of(c)
    st.lone = lone
    with c.loop(st.object_count) as i:
        o = c.struct(st.place("objects", i), Object)
        clash = c.variable(o.written | unknown.wide())
        o.reach_low = o.low
        o.reach_high = o.high
        with c.loop(st.object_count) as j:
            p = c.struct(st.place("objects", j), Object)
            with c.when((p.written != 0) & (p.low < o.high) & (o.low < p.high)):
                clash.set(1)
        o.quiet = ((clash.get() == 0) & (o.high != 0)).choose(c.i64(1), c.i64(0))
    sizes = [st.at("sizes", i).wide() for i in range(6)]
    threads = sizes[0] * sizes[1] * sizes[2] * sizes[3] * sizes[4] * sizes[5]
    with c.when((lone != 0) & (threads < 0xFFFF_FFFF)):
        _share(c, st)
        with c.loop(st.object_count) as i:
            _cells(c, st, i)


def _share(c: Code, st: Any) -> None:
    """Arguments that share memory share cells."""
    with c.loop(st.object_count), c.loop(st.object_count) as i, c.loop(st.object_count) as j:
        o = c.struct(st.place("objects", i), Object)
        p = c.struct(st.place("objects", j), Object)
        with c.when((p.reach_low < o.reach_high) & (o.reach_low < p.reach_high)):
            o.reach_low = (p.reach_low < o.reach_low).choose(p.reach_low, o.reach_low)
            o.reach_high = (p.reach_high > o.reach_high).choose(p.reach_high, o.reach_high)


def _cells(c: Code, st: Any, i: Value) -> None:
    o = c.struct(st.place("objects", i), Object)
    with c.when((o.high != 0) & (o.quiet == 0)):
        with c.loop(i) as j:
            p = c.struct(st.place("objects", j), Object)
            with c.when((p.reach_low == o.reach_low) & (p.reach_high == o.reach_high)):
                o.bias = p.bias
        shift = st.shift.wide()
        first = o.reach_low >> shift
        size = (((o.reach_high - 1) >> shift) - first + 1) * LONE_CELL
        with c.when((o.bias == 0) & (st.allocated + size < st.limit)):
            o.bias = call(c, "alloc", size) - first * LONE_CELL


@exported([32, 32, 32, 32, 32, 32])
def lone_sizes(c: Code, gx: Value, gy: Value, gz: Value, bx: Value, by: Value, bz: Value) -> None:
    """The sizes of a launch that no scheduler runs."""
    st = state_of(c)
    for i, value in enumerate((gx, gy, gz, bx, by, bz)):
        st.set_at("sizes", i, value)
    for i in (6, 7, 8, 11):
        st.set_at("sizes", i, 1)
    st.per_block = bx * by * bz


@exported([64, 32, 32, 64, 32])
def lone_touch(c: Code, at: Value, flags: Value, site: Value, address: Value, bytes_: Value) -> None:
    """One access to the bytes of one cell."""
    st = state_of(c)
    cell = c.struct(at, LoneCell)
    me = st.who

    def collide(rule: str, who: str) -> None:
        other = getattr(cell, f"{who}_who") - 1
        place = (other // st.per_block, other % st.per_block)
        call(c, "report", RULE[rule], site, getattr(cell, f"{who}_site"), *place, address, bytes_, 0, 0)

    with c.when((flags & WRITE) != 0):
        with c.when((cell.w_who != 0) & (cell.w_who != me)):
            same = c.variable(0, 32)
            with c.when((st.value != 0) & (cell.w_site == site)):
                same.set(1)
                with c.loop(c.i64(1) << st.shift.wide()) as i:
                    new = c.load(st.value + (address - st.value_for) + i, 8)
                    with c.when(new != c.load(address + i, 8)):
                        same.set(0)
            with c.when(same.get() == 0):
                collide("write-write", "w")
        with c.when((cell.r_who != 0) & (cell.r_who != me)):
            collide("read-write", "r")
        with c.otherwise():
            with c.when((cell.o_who != 0) & (cell.o_who != me)):
                collide("read-write", "o")
        cell.w_who = me
        cell.w_site = site
    with c.otherwise():
        with c.when((cell.w_who != 0) & (cell.w_who != me)):
            collide("write-read", "w")
        for who in "ro":
            mine = (getattr(cell, f"{who}_who") == 0) | (getattr(cell, f"{who}_who") == me)
            if who == "o":
                mine = mine & (cell.r_who != me)
            with c.when(mine):
                setattr(cell, f"{who}_who", me)
                setattr(cell, f"{who}_site", site)
