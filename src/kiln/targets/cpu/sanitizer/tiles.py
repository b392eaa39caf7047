"""The detector's records of swizzled tiles: where bytes of shared memory lie without their swizzle.

`swizzles.py` explains the check.
"""

from __future__ import annotations

from ....native import Ptr, inline, native, ref, u8, u32, u64
from .memory import many
from .reporting import report
from .state import RULE, WHO, detector, state

BITS = 6
"""Bits that each of bits, base and shift of a swizzle takes in its code."""
UNKNOWN = 0xFFFF_FFFF
"""A code for bytes that are written through an unknown swizzle."""
_NEAR = 1024
"""The most bytes that a swizzle moves an element by."""


@inline
def mark_of(plain):
    """Return the mark of an address without its swizzle; never 0."""
    return (u32(plain) & 0x7FFF_FFFF) + 1


@native
def differ(a: u64, b: u64) -> bool:
    """Return whether the bytes of two cells differ."""
    first = Ptr[u8](a)
    second = Ptr[u8](b)
    for i in range(u64(1) << state.place.shift):
        if first[i] != second[i]:
            return True
    return False


@native
def brings_another(rank: u64, cell: u64, plain: u64) -> bool:
    """Return whether the element written as address `plain` lies elsewhere, with another value than a cell has."""
    st = state.place
    start = st.arena + rank * st.chunk
    cells = u64(st.cells_per_block)
    marks = ref(st.tiles)[rank * cells]
    other = False
    first = ((plain - start) >> st.shift) - (u64(_NEAR) >> st.shift)
    for i in range((u64(2 * _NEAR) >> st.shift) + 1):
        there = first + i
        if there < cells and marks[there] == mark_of(plain):  # unsigned: not before the first one, either
            if not differ(start + (there << st.shift), start + (cell << st.shift)):
                return False
            other = True
    return other


@detector.export
def tile(address: u64, size: u32, base: u64, code: u32, writes: u32, site: u32) -> None:
    """Record or check an access through a swizzle of addresses relative to `base`."""
    st = state.place
    if st.active == 0 or size == 0 or address < st.arena or address >= st.arena_end:
        return
    rank = (address - st.arena) // st.chunk
    offset = (address - st.arena) % st.chunk
    if offset + size > st.smem:
        return
    if st.tiles == None:
        st.tiles = many(u32, u64(st.cells_per_block) * st.sizes.group)
    bits = code & 63
    low = (code >> BITS) & 63
    shift = (code >> 2 * BITS) & 63
    mask = ((u64(1) << bits) - 1) << low
    for i in range(offset >> st.shift, ((offset + size - 1) >> st.shift) + 1):
        cell = rank * st.cells_per_block + i
        at = st.arena + rank * st.chunk + (i << st.shift) - base
        plain = base + (at ^ ((at >> shift) & mask))
        if writes != 0:
            st.tiles[cell] = u32(0) if code == UNKNOWN else mark_of(plain)
        else:
            before = st.tiles[cell]
            if before != 0 and before != mark_of(plain) and brings_another(rank, i, plain):
                writer = st.cells[cell].write
                report(RULE["swizzle"], site, writer.site, writer.group, writer.who & WHO, address, size)
