"""Accesses of the host to symmetric memory, where a program runs on several devices.

Each is a launch of one thread, which has ended when the next one begins.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, local, native, u32, u64
from ..runtime.records import Sizes
from .clocks import ordered
from .launches import group, launch, launched, switch
from .memory import clear, copy, lesser
from .pages import page_there
from .reporting import report
from .shadow import check_access
from .state import GLOBAL, MOST_FREED, OVER, PAGE_SHIFT, RULE, WHO, WRITE, Access, detector, state, world

_MOST = 1 << 30
"""The most bytes of an access."""


@native
def begin_access(rules: u64, shift: u32) -> None:
    """Begin the launch that stands for an access."""
    launch(rules, 0, 0, shift, 1, 0, 0, 0, 0)
    sizes = local(Sizes)
    clear(sizes)
    for part in (sizes.grid, sizes.block, sizes.cluster):
        for axis in range(3):
            part[axis] = 1
    sizes.group = 1
    group(0, sizes, 0)
    switch(0, 0)


@detector.export
def host_access(rules: u64, places: Ptr[u64], count: u64, size: u64, write: u32) -> None:
    """The host reads or writes some bytes at each of some places."""
    unaligned = size
    for i in range(count):
        unaligned |= places[i]
    begin_access(rules, u32(2) if unaligned & 3 == 0 else u32(1) if unaligned & 1 == 0 else u32(0))
    for i in range(count):
        done = u64(0)
        while done < size:
            part = lesser(size - done, u64(_MOST))
            check_access(places[i] + done, u32(part), u32(GLOBAL) | (u32(WRITE) if write != 0 else u32(0)), 0, 0, 0)
            done += part
    launched(0)


@native
def is_over(access: Ptr[Access], place: u64, size: u32) -> None:
    """Report an access to memory that is given back, unless it has come before."""
    if access.clock != 0 and not ordered(access.group, access.who & WHO, access.clock, OVER):
        report(RULE["freed"], 0, access.site, access.group, access.who & WHO, place, size, 1)


@detector.export
def host_frees(rules: u64, low: u64, high: u64, ends: u32) -> None:
    """The host gives memory back. Nobody may access it until it is taken again.

    If its rank `ends`, nobody may access it now: else what was launched before has kept it.
    """
    st = state.place
    begin_access(rules, st.global_shift if st.global_shift < 2 else u32(2))
    w = world.place
    shift = st.global_shift
    for page in range(low >> PAGE_SHIFT, (high - 1 >> PAGE_SHIFT) + 1):
        cells = page_there(page + 1)
        if cells != None:
            for i in range(u64(1 << PAGE_SHIFT) >> shift):
                place = (page << PAGE_SHIFT) + (i << shift)
                if place >= low and place < high:
                    cell = cells[i]
                    if ends != 0:
                        for access in (cell.write, cell.atomic, cell.read, cell.other):
                            is_over(access, place, u32(1) << shift)
                    clear(cell)
    if w.freed_count < MOST_FREED:
        freed = w.freed[w.freed_count]
        freed.low = low
        freed.high = high
        freed.launch = w.launches
        w.freed_count += 1
    else:
        w.left_out |= 4
    launched(0)


@detector.export
def host_takes(rules: u64, low: u64, high: u64) -> None:
    """The host takes memory that was given back, and clears it."""
    w = world.place
    kept = u64(0)
    for i in range(w.freed_count):
        if w.freed[i].low >= high or low >= w.freed[i].high:
            if kept != i:
                copy(w.freed[kept], w.freed[i])
            kept += 1
    w.freed_count = kept
    place = local(u64)
    place[0] = low
    host_access(rules, place, 1, high - low, 1)
