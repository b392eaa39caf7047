"""Kernels whose threads never synchronize: no barrier, no atomic, no shared memory.

Any two threads that access the same bytes, one of them writing, race: that needs no clocks, only the previous accessor.
An argument that no thread writes needs not even that.

The cells of an argument are an array over its memory, so that kernel code checks them itself (`inline.py`) and calls
the detector only where something may be wrong.
"""

from __future__ import annotations

from ....native import Ptr, address, inline, native, size_of, u32, u64
from .devices import device_at
from .memory import allocate, greater, lesser
from .reporting import report, writes_what_is_there
from .state import LONE_NONCOHERENT, NONCOHERENT, RULE, WRITE, LoneCell, detector, state


@detector.export
def prepare(lone: u32, unknown: u32) -> None:
    """Find the arguments of a launch that no thread writes, and make cells for the others.

    `lone`: the kernel's threads never synchronize. `unknown`: it, or a concurrent kernel, writes memory of unknown
    origin.
    """
    st = state.place
    st.lone = lone
    for i in range(st.object_count):
        o = st.objects[i]
        o.reach_low = o.low
        o.reach_high = o.high
        clash = o.written != 0 or unknown != 0 or (st.several != 0 and device_at(o.low) != 0)
        for j in range(st.object_count):
            p = st.objects[j]
            if p.written != 0 and p.low < o.high and o.low < p.high:
                clash = True
        o.quiet = u64(not clash and o.high != 0)
    sizes = st.sizes
    threads = u64(1)
    for part in (sizes.grid, sizes.block):
        for i in range(3):
            threads *= part[i]
    if lone != 0 and threads < LONE_NONCOHERENT - 1 and st.by_default == 0:
        share_cells()
        for i in range(st.object_count):
            make_cells(i)


@native
def share_cells() -> None:
    """Let arguments that share memory share cells."""
    st = state.place
    for _ in range(st.object_count):
        for i in range(st.object_count):
            for j in range(st.object_count):
                o = st.objects[i]
                p = st.objects[j]
                if p.reach_low < o.reach_high and o.reach_low < p.reach_high:
                    o.reach_low = lesser(p.reach_low, o.reach_low)
                    o.reach_high = greater(p.reach_high, o.reach_high)


@native
def make_cells(number: u32) -> None:
    st = state.place
    o = st.objects[number]
    if o.high == 0 or o.quiet != 0:
        return
    for j in range(number):
        p = st.objects[j]
        if p.reach_low == o.reach_low and p.reach_high == o.reach_high:
            o.bias = p.bias
    first = o.reach_low >> st.shift
    size = (((o.reach_high - 1) >> st.shift) - first + 1) * size_of(LoneCell)
    if o.bias == 0 and st.allocated + size < st.limit:
        o.bias = address(allocate(size)) - first * size_of(LoneCell)


@detector.export
def lone_sizes(gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32) -> None:
    """Set the sizes of a launch that no scheduler runs."""
    st = state.place
    sizes = st.sizes
    for i, size in ((0, gx), (1, gy), (2, gz)):
        sizes.grid[i] = size
    for i, size in ((0, bx), (1, by), (2, bz)):
        sizes.block[i] = size
    for i in range(3):
        sizes.cluster[i] = 1
    sizes.group = 1
    st.per_block = bx * by * bz


@native
def lone_touch(cell: Ptr[LoneCell], flags: u32, site: u32, place: u64, size: u32) -> None:
    """Check one access to the bytes of one cell."""
    me = state.place.lone_thread
    if flags & WRITE != 0:
        if cell.writer != 0 and cell.writer != me:
            if not (cell.writer_site == site and writes_what_is_there(place)):
                collide("write-write", cell.writer, cell.writer_site, site, place, size)
        if cell.reader & LONE_NONCOHERENT != 0:
            collide("non-coherent", cell.reader & ~u32(LONE_NONCOHERENT), cell.reader_site, site, place, size)
        elif cell.reader != 0 and cell.reader != me:
            collide("read-write", cell.reader, cell.reader_site, site, place, size)
        elif cell.other != 0 and cell.other != me:
            collide("read-write", cell.other, cell.other_site, site, place, size)
        cell.writer = me
        cell.writer_site = site
    elif flags & NONCOHERENT != 0:
        if cell.writer != 0:
            collide("non-coherent", cell.writer, cell.writer_site, site, place, size)
        cell.reader = me | LONE_NONCOHERENT
        cell.reader_site = site
    else:
        if cell.writer != 0 and cell.writer != me:
            collide("write-read", cell.writer, cell.writer_site, site, place, size)
        if cell.reader & LONE_NONCOHERENT != 0:  # which says more
            return
        if cell.reader == 0 or cell.reader == me:
            cell.reader = me
            cell.reader_site = site
        if (cell.other == 0 or cell.other == me) and cell.reader != me:
            cell.other = me
            cell.other_site = site


@inline
def collide(rule, other, other_site, site, place, size):
    st = state.place
    number = other - 1
    report(RULE[rule], site, other_site, number // st.per_block, number % st.per_block, place, size)
