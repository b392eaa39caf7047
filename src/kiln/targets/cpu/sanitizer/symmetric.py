"""Symmetric memory of several devices: addresses that stand for several, and memory that a device has given back."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, native, u32, u64
from .devices import device_at, give_turn, is_multicast, take_turn
from .memory import copy
from .pages import page_there
from .reporting import report, report_alone
from .state import GROUPS_SHIFT, PAGE_SHIFT, RULE, WHO, Access, LastWrite, detector, state, world


@native
def is_there(address: u64, size: u32, site: u32) -> bool:
    """Return whether an access is to memory: report multicast addresses, and what a device has given back."""
    if is_multicast(address):
        report_alone("multicast", site, address, size)
        return False
    w = world.place
    for i in range(w.freed_count):
        freed = w.freed[i]
        if address < freed.high and freed.low < address + size:
            st = state.place
            group = freed.launch << GROUPS_SHIFT if freed.launch != 0 else st.group
            report(RULE["freed"], site, site if freed.launch == 0 else u32(0), group, 0, address, size)
    return True


@native
def replaces_unread(write: Ptr[Access], site: u32, address: u64, size: u32) -> None:
    """Report an atomic store that replaces what another device has stored there, which nobody has read."""
    owner = device_at(address)
    if write.clock != 0 and owner != 0 and owner != world.place.records[write.group >> GROUPS_SHIFT].device + 1:
        report(RULE["overwritten"], site, write.site, write.group, write.who & WHO, address, size)


@detector.export
def last_write(place: u64, out: Ptr[LastWrite]) -> None:
    """Say who wrote an address last; `is_there` stays 0 if nobody did."""
    take_turn()
    st = state.place
    cells = page_there((place >> PAGE_SHIFT) + 1)
    if cells != None:
        write = cells[(place & ((1 << PAGE_SHIFT) - 1)) >> st.global_shift].write
        if write.clock != 0:
            record = world.place.records[write.group >> GROUPS_SHIFT]
            out.is_there = 1
            out.call = record.call
            out.kernel = record.kernel
            out.device = record.device
            out.site = write.site
            out.group = write.group & ((1 << GROUPS_SHIFT) - 1)
            out.tid = write.who & WHO
            copy(out.sizes, record.sizes)
    give_turn()
