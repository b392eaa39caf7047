"""TMA copies: checks of the memory that boxes are copied from and to, row by row. Also answers of launch control."""

# pyright: reportReturnType=false, reportArgumentType=false
# native code: None is null where a pointer is declared, and a Python number becomes one of the type

from __future__ import annotations

from ....native import Ptr, address, i16, i32, i64, inline, local, native, u8, u32, u64
from ..runtime.engine_table import BULK_LOAD, BULK_SOURCE, BULK_STORE
from ..runtime.launch_control import ANSWER
from ..runtime.multicast import MOST_DEVICES as MOST_COPIES
from ..runtime.multicast import multicast_copies
from ..runtime.tensor_maps import BYTES, MAGIC, TensorMap
from ..runtime.tma import (
    ATOMS_OF_32,
    GATHER4,
    ROW,
    TILE,
    bits_of,
    copied_bytes,
    counted_bytes,
    for_each_gathered_row,
    for_each_pixel,
    for_each_row,
    from_shared,
    mask_of,
    mbarrier_distance,
    part_inside,
    row_bytes,
    row_distance,
    swizzled,
)
from .bounds import in_arena
from .devices import is_multicast
from .locations import hashed
from .mbarriers import bulk, mbarrier_arrive, stored_in_bulk
from .memory import many
from .reporting import report_alone
from .shadow import global_access, shared_access
from .state import ATOMIC, ENGINE_SHIFT, GLOBAL, NO_INIT, OF_MAP, SHARED, SYSTEM, WALKS, WRITE, Walk, detector, state
from .tiles import BITS, tile

LOADS, STORES, REDUCES = range(3)
"""Kinds of copies."""


@native
def row_access(first: u64, bytes_: u32, flags: u32, site: u32, limit: u64) -> None:
    """Check a row in global memory, without the cells that it shares with a neighbour."""
    st = state.place
    part = (u64(1) << st.global_shift) - 1
    start = first + part & ~part
    end = first + bytes_ & ~part
    if st.several != 0 and is_multicast(first):
        copies = local(u64, MOST_COPIES)
        for number in range(multicast_copies(first, u64(bytes_), copies)):
            row_access(copies[number], bytes_, flags, site, 0)
    elif limit != 0 and first + bytes_ > limit:
        report_alone("bounds", site, first, bytes_, first, limit)
    elif end > start:
        global_access(start, u32(end - start), flags, site, 0, True)
    st.value = 0


@inline
def memory_end(base):
    """Return the end of the array in which a tensor starts; 0 if it is not known."""
    st = state.place
    end = u64(0)
    for i in range(st.extents_count):
        if base >= st.extent_low[i] and base < st.extent_high[i]:
            end = max(end, st.extent_high[i])
    return end


@native
def rows(
    map: Ptr[TensorMap], coordinates: Ptr[i32], offsets: Ptr[i16], shared: u64, way: i32, flags: u32, site: u32
) -> None:
    """Check the rows of a copy in global memory."""
    st = state.place
    bits = bits_of(map)
    mask = mask_of(map)
    start = coordinates[0]
    before, count = part_inside(start, map.box[0], map.sizes[0])
    skipped = before * bits >> 3
    bytes_ = count * bits >> 3
    first = u64(i64(start) * bits >> 3) + skipped
    limit = memory_end(map.base)
    row = local(u8, ROW)

    def act(place, inside, at):
        if inside and bytes_ != 0:
            if flags & (WRITE | ATOMIC) == WRITE:  # threads that store the same do not race
                from_shared(row, at, u32(map.box[0]) * bits >> 3, mask)
                st.value = address(row + skipped)
                st.value_for = place + first
            row_access(place + first, bytes_, flags, site, limit)

    if way == GATHER4:
        for_each_gathered_row(map, coordinates, shared, act)
    elif map.im2col != 0:
        for_each_pixel(map, coordinates, offsets, shared, act)
    else:
        for_each_row(map, coordinates, shared, act)


@inline
def swizzle_code(map):
    """Return the swizzle of a map as `tiles.tile` takes it: it applies to absolute addresses."""
    plain = u32(map.swizzle) | u32(4 << BITS | 3 << 2 * BITS)
    return u32(2 | 5 << BITS | 2 << 2 * BITS) if map.swizzle == ATOMS_OF_32 else plain


@native
def part_in_shared(
    map: Ptr[TensorMap], at: u64, bytes_: u32, flags: u32, site: u32, low: u32, high: u32, swizzles: u32
) -> bool:
    """Check bytes of a box in shared memory, and return whether they are inside their allocation."""
    if swizzles != 0 and flags & WRITE == 0:
        tile(at, bytes_, 0, swizzle_code(map), 0, site)
    inside = shared_access(at, bytes_, flags, site, low, high, True)
    if swizzles != 0 and flags & WRITE != 0:
        tile(at, bytes_, 0, swizzle_code(map), 1, site)
    return inside


@native
def in_shared(
    map: Ptr[TensorMap], shared: u64, way: i32, flags: u32, site: u32, low: u32, high: u32, swizzles: u32
) -> None:
    """Check a copy in shared memory: all of it, or the pieces of rows that are shorter than the swizzle's span."""
    bytes_ = copied_bytes(map, way)
    mask = mask_of(map)
    row = row_bytes(map)
    distance = row_distance(map)
    if distance == row:
        part_in_shared(map, shared, bytes_, flags, site, low, high, swizzles)
    else:
        for number in range(bytes_ // row):
            for piece in range(0, row, 16):
                at = swizzled(shared + number * distance + piece, mask)
                if not part_in_shared(map, at, 16, flags, site, low, high, swizzles):
                    return  # one finding says enough


@native
def walk_outside(map: Ptr[TensorMap], coordinates: Ptr[i32], mbarrier: u64, site: u32) -> None:
    """Report boxes that a loop loads wholly outside their tensor, if it loads more of them than inside.

    Tiles past the end have such boxes, too; but there a loop begins outside, as all its boxes are. The boxes that one
    phase of an mbarrier counts are of one step.
    """
    st = state.place
    if st.schedule != 0:  # the same boxes once more
        return
    if st.walks == None:
        st.walks = many(Walk, WALKS)
    block = (u64(st.group) << 32) + st.tid // st.per_block + 1
    phase = mbarrier << 1 | Ptr[u64](mbarrier)[0] >> 63
    walk = st.walks[hashed(block * 128 + address(map), WALKS)]
    same_walk = walk.block == block and walk.map == address(map)
    if same_walk and walk.phase == phase:
        return
    moved = i64(0)
    changed = u32(0)
    outside = u32(0)
    for mode in range(u32(map.rank)):
        start = i64(coordinates[mode])
        if start >= i64(map.sizes[mode]) or start + i64(map.box[mode]) <= 0:
            outside = 1
        if start != walk.last[mode]:
            changed += 1
            moved = start - walk.last[mode] - map.box[mode]
        walk.last[mode] = start
    if not same_walk or changed != 1 or moved != 0:
        walk.inside = 0
        walk.outside = 0
    walk.block = block
    walk.map = address(map)
    walk.phase = phase
    walk.inside += 1 - outside
    walk.outside += outside
    if walk.inside != 0 and walk.outside > walk.inside:
        record = report_alone("outside", site, 0, 0, u64(map.rank))
        if record != None:
            for mode in range(u32(map.rank)):
                record.place[mode] = walk.last[mode]
                record.extents[mode] = i64(map.sizes[mode])


@native
def counts(mbarrier: u64, site: u32) -> None:
    """The next accesses are those of a copy whose bytes an mbarrier counts."""
    if state.place.by_default == 0:
        bulk(mbarrier, site)


@native
def has_counted(mbarrier: u64, bytes_: u32, site: u32) -> None:
    """The bytes of the copy arrive at the mbarrier."""
    flags = u32(BULK_LOAD << ENGINE_SHIFT | SHARED | ATOMIC | NO_INIT)
    shared_access(mbarrier, 8, flags, site, 0, u32(0x7FFF_FFFF), True)
    if state.place.by_default == 0:
        mbarrier_arrive(mbarrier, 0, bytes_, site, 1 + BULK_LOAD, SYSTEM)


@detector.export
def box(
    map: Ptr[TensorMap],
    shared: u64,
    mbarrier: u64,
    coordinates: Ptr[i32],
    offsets: Ptr[i16],
    count: u32,
    what: u32,
    mask: i32,
    low: u32,
    high: u32,
    shared_site: u32,
    global_site: u32,
    map_site: u32,
    mbarrier_site: u32,
    swizzles: u32,
    cta_group: u32,
) -> None:
    """Check a copy before it is issued.

    `mask` names the blocks of the cluster that a load is for; negative for this one. `low` and `high` bound the
    allocation.
    """
    st = state.place
    way = i32(GATHER4) if map.rank == 2 and count == 5 else i32(TILE)
    if st.active == 0 or map.magic != MAGIC or (map.rank != count and way == TILE):
        return
    bytes_ = copied_bytes(map, way)
    if what == LOADS and way == TILE and map.im2col == 0 and in_arena(mbarrier):
        walk_outside(map, coordinates, mbarrier, global_site)
    if shared & 127 != 0:
        report_alone("alignment", shared_site, shared, bytes_, 128)
    elif what == LOADS:
        cluster = st.sizes.cluster[0] * st.sizes.cluster[1] * st.sizes.cluster[2]
        mine = st.tid // st.per_block % cluster
        first = True
        for rank in range(cluster):
            if (mask < 0 and rank == mine) or (mask >= 0 and u32(mask) >> rank & 1 != 0):
                distance = u64(i64(rank) - mine) * st.chunk
                owner = (mbarrier - st.arena) // st.chunk
                step = i64(0) if mask < 0 else mbarrier_distance(owner, mine, rank, cta_group)
                there = mbarrier + u64(step) * st.chunk
                counts(there, mbarrier_site)
                engine = u32(BULK_LOAD << ENGINE_SHIFT)
                if first:
                    rows(map, coordinates, offsets, shared, way, engine | GLOBAL, global_site)
                    global_access(address(map), BYTES, engine | GLOBAL | OF_MAP, map_site, 0, True)
                first = False
                in_shared(map, shared + distance, way, engine | u32(SHARED | WRITE), shared_site, low, high, swizzles)
                has_counted(there, counted_bytes(map, way), mbarrier_site)
    else:
        for mode in range(count):
            if coordinates[mode] < 0:
                report_alone("negative", shared_site, 0, 0, mode, u64(i64(coordinates[mode])))
        reads = u32(BULK_SOURCE << ENGINE_SHIFT)
        in_shared(map, shared, way, reads | SHARED, shared_site, low, high, swizzles)
        global_access(address(map), BYTES, reads | GLOBAL | OF_MAP, map_site, 0, True)
        writes = u32(BULK_STORE << ENGINE_SHIFT | WRITE | GLOBAL) | (u32(ATOMIC) if what == REDUCES else u32(0))
        rows(map, coordinates, offsets, shared, way, writes, global_site)
        stored_in_bulk(shared_site)


@detector.export
def request(response: u64, mbarrier: u64, multicast: u32, low: u32, high: u32, site: u32, mbarrier_site: u32) -> None:
    """Check a request of launch control, whose answer comes to this block or to all of its cluster."""
    st = state.place
    if st.active == 0:
        return
    cluster = st.sizes.cluster[0] * st.sizes.cluster[1] * st.sizes.cluster[2]
    mine = st.tid // st.per_block % cluster
    engine = u32(BULK_LOAD << ENGINE_SHIFT)
    for rank in range(cluster):
        if multicast != 0 or rank == mine:
            distance = u64(i64(rank) - mine) * st.chunk
            counts(mbarrier + distance, mbarrier_site)
            shared_access(response + distance, ANSWER, engine | u32(SHARED | WRITE), site, low, high, True)
            has_counted(mbarrier + distance, ANSWER, mbarrier_site)
