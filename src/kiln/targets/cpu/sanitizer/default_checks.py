"""The detector of launches that are checked by default: accesses out of bounds, and memory that nobody has written.

It has no clocks: one byte says whether a cell of shared memory was written. Engines check their accesses as in the other
detector (`boxes.py`, `wgmma.py`, `tensor_memory.py`), whose `shared_access` and `global_access` end here.
"""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import native, ref, u32, u64
from ...host.libc import memset
from .barriers import comes
from .bounds import in_arena, is_aligned, is_inside, is_inside_argument, place_in_shared, scratch_for
from .reporting import report, report_alone
from .state import NO_INIT, RULE, SHARED, SPACE_MASK, WRITE, detector, state

ACCESSES = 1 << 26
"""How many accesses of a launch are looked at for unset memory; those that kernel code checks itself do not count."""


@detector.export
def check_access_by_default(address: u64, size: u32, flags: u32, site: u32, low: u32, high: u32) -> u64:
    """Check an access as `shadow.check_access` does, without order."""
    st = state.place
    st.left -= u64(st.left != 0)
    if st.active == 0 or size == 0:
        return address
    fine = is_aligned(address, size, flags, site)
    said_shared = flags & SPACE_MASK == SHARED
    if in_arena(address):
        fine = shared_access_by_default(address, size, flags, site, low, high, said_shared) and fine
    elif said_shared:
        report_alone("bounds", site, address, size)
        fine = False
    else:
        fine = is_inside_argument(address, size, flags, site, low, fine)
    return address if fine else scratch_for(flags)


@native
def shared_access_by_default(
    address: u64, size: u32, flags: u32, site: u32, low: u32, high: u32, said_shared: bool
) -> bool:
    """Check an access to shared memory, or to the frames behind it, and return whether it is valid."""
    st = state.place
    rank, offset = place_in_shared(address)
    if said_shared and not is_inside(address, offset, size, site, low, high):
        return False
    if offset + size <= st.smem and st.left != 0:  # else writes are not recorded any more
        first = offset >> st.shift
        count = ((offset + size - 1) >> st.shift) + 1 - first
        written = ref(st.written)[rank * st.cells_per_block + first]
        if flags & WRITE != 0:
            memset(written, 1, count)
        elif flags & NO_INIT == 0:
            unset = u32(0)
            for i in range(count):
                unset |= u32(written[i] == 0)
            if unset != 0:
                for i in range(count):
                    if written[i] == 0:
                        report(RULE["uninitialized"], site, site, st.group, st.tid, address + (i << st.shift), size)
    return True


@detector.export
def barrier_by_default(at: u64, number: u32, phase: u32, count: u32, site: u32, mode: u32) -> None:
    """Arrive at a barrier as in `barriers.barrier`: threads that ended before it are found."""
    comes(at, number, phase, count, site, mode)
