"""Symmetric memory of several devices: addresses that stand for several, and memory that a device has given back."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import native, u32, u64
from .devices import is_multicast
from .reporting import report, report_alone
from .state import GROUPS_SHIFT, RULE, state, world


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
