"""Bounds: whether an access is aligned, in its allocation or argument, and allowed to write there."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import inline, native, u32, u64
from .memory import lesser
from .reporting import attribute, report_alone
from .state import ALIGNMENT_SHIFT, SCRATCH, WRITE, state


@inline
def scratch_for(flags):
    """Return the address to use in place of one that is invalid: what is read there remains zero."""
    return state.place.scratch + (u64(SCRATCH) if flags & WRITE != 0 else u64(0))


@native
def is_aligned(address: u64, size: u32, flags: u32, site: u32) -> bool:
    """Return whether an access is at a multiple of its alignment, and report it if not."""
    mask = (u64(1) << ((flags >> ALIGNMENT_SHIFT) & 63)) - 1
    if address & mask != 0:
        report_alone("alignment", site, address, size, mask + 1)
        return False
    return True


@inline
def in_arena(address):
    """Return whether an address is in the shared memory of the running blocks."""
    return address >= state.place.arena and address < state.place.arena_end


@inline
def place_in_shared(address):
    """Return the rank of the block in whose shared memory an address is, and its offset there."""
    st = state.place
    offset = address - st.arena
    rank = u64(0) if offset < st.chunk else offset // st.chunk
    return rank, offset - rank * st.chunk


@native
def is_inside(address: u64, offset: u64, size: u32, site: u32, low: u32, high: u32) -> bool:
    """Return whether an access to shared memory is in its allocation, from offset `low` to `high`; report it if not."""
    limit = lesser(high, state.place.smem)
    if offset < low or offset + size > limit:
        report_alone("bounds", site, address, size, low, limit)
        return False
    return True


@native
def is_inside_argument(address: u64, size: u32, flags: u32, site: u32, number: u32, fine: bool) -> bool:
    """Return whether a `fine` access to global memory is in that of argument `number` - 1 and, if it writes, may write.

    A `number` of 0 says that the argument is not known. Report the access if not.
    """
    st = state.place
    if number != 0 and number <= st.object_count:
        o = st.objects[number - 1]
        if o.high != 0 and (address < o.low or address + size > o.high):
            finding = report_alone("bounds", site, address, size, o.low, o.high)
            if finding != None:
                attribute(finding, o, number - 1, address)
            fine = False
    if st.readonly != 0 and flags & WRITE != 0 and fine:
        constant = False
        writable = False
        for i in range(st.object_count):
            o = st.objects[i]
            if (number == 0 or number == i + 1) and address >= o.low and address < o.high:
                constant = constant or o.readonly != 0
                writable = writable or o.readonly == 0
        if constant and not writable:
            report_alone("read-only", site, address, size)
            fine = False
    return fine
