"""TMA: boxes of tensors between global and shared memory, as operations of the bulk queue.

Rows of a box are contiguous in shared memory; with a swizzle, rows are at least its span apart, and pieces of 16 or 32
bytes are permuted by address bits. A copy works row by row. It reads all memory, also its tensor map, when it is carried
out.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....hardware.limits import TENSOR_MAP_BOX
from ....native import Ptr, address, i16, i32, i64, inline, local, native, u8, u16, u32, u64
from ...host.libc import memcpy, memset
from .engine_table import BULK_QUEUE
from .engines import BYTES, GROUP, give
from .multicast import MOST_DEVICES, places_of
from .records import BlockRecord, FrameHeader, Operation
from .reductions import PACKED, REDUCED, TF32, TF32_FTZ, reduce_row
from .tensor_maps import MAGIC, MODES, TensorMap, accelerator

BITS = (8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6)
"""Bits of elements, by the driver's numbers of their types."""
GROUP_ELEMENTS = 16
GROUP_BYTES = 16
"""Elements of the types with padding (numbers above `PACKED`), and the bytes of shared memory that they take."""
ATOMS_OF_32 = 4
"""The number of the swizzle of 128 bytes in pieces of 32 bytes."""
TILE, PIXELS, GATHER4 = range(3)
"""Ways in which a copy takes rows of a tensor: a box of them, pixels (im2col), four rows by their numbers."""
GATHERED = -1
"""Stands in `Operation.reduction` for a copy of four rows."""
ROW = TENSOR_MAP_BOX * 8
"""Bytes of the longest row: elements of 8 bytes."""
NOT_A_MAP, RANK, ALIGNMENT, IM2COL, REDUCTION, ELEMENT, RECEIVER, START, ROOM, PADDED, ROWS = range(1, 12)
"""Codes for refused copies: the low byte of what `tma_load` and `tma_store` return, with further numbers above."""


@inline
def bits_of(map):
    """Return the bits of an element."""
    result = u32(0)
    for number, bits in tuple(enumerate(BITS)):
        result = u32(bits) if map.element == number else result
    return result


@inline
def shared_bits(map):
    """Return the bits of shared memory that an element takes."""
    return u32(8) if map.element > PACKED else bits_of(map)


@inline
def ceil_div(a, b):
    return (u32(a) + u32(b) - 1) // u32(b)


@native
def box_bytes(map: Ptr[TensorMap]) -> u32:
    """Return the bytes of a box in shared memory."""
    elements = u32(map.box[0])
    if map.im2col != 0:
        elements *= map.box[1]
    else:
        for mode in range(1, u32(map.rank)):
            elements *= ceil_div(map.box[mode], map.steps[mode])
    return elements * shared_bits(map) >> 3


@inline
def row_bytes(map):
    """Return the bytes of a row of a box in shared memory."""
    return u32(map.box[0]) * shared_bits(map) >> 3


@inline
def row_distance(map):
    """Return the bytes from a row of a box to the next in shared memory."""
    span = u64(128) if map.swizzle == ATOMS_OF_32 else u64(16) << map.swizzle
    return u64(row_bytes(map)) if map.swizzle == 0 else max(u64(row_bytes(map)), span)


# --- rows ------------------------------------------------------------------------------------------------------------


@inline
def swizzled(at, mask):
    """Return where a byte of shared memory lies: bits 4 on (or 5 on) of its address are changed by bits 7 on."""
    return at ^ ((at >> 7 & (mask & 15)) << (mask >> 4))


@inline
def move(target, source):
    """Copy 16 bytes."""
    first = Ptr[u64](source)[0]
    second = Ptr[u64](source)[1]
    Ptr[u64](target)[0] = first
    Ptr[u64](target)[1] = second


@native
def to_shared(target: u64, source: Ptr, bytes_: u32, mask: u64) -> None:
    """Copy a row to shared memory."""
    if mask == 0:
        memcpy(Ptr(target), source, bytes_)
    else:
        for piece in range(0, bytes_, 16):
            move(Ptr(swizzled(target + piece, mask)), source + piece)


@native
def from_shared(row: Ptr, source: u64, bytes_: u32, mask: u64) -> None:
    """Copy a row from shared memory."""
    for piece in range(0, bytes_, 16):
        move(row + piece, Ptr(swizzled(source + piece, mask)))


@native
def fill_row(row: Ptr, bytes_: u32, map: Ptr[TensorMap]) -> None:
    """Fill a row with the values outside a tensor: zeros or NaN."""
    memset(row, 0, bytes_)
    if map.fill != 0:
        for number in range(bytes_ >> 1):
            Ptr[u16](row)[number] = u16(0x7FF7)


@native
def round_row(row: Ptr[u32], count: u32) -> None:
    """Round f32 to tf32. Subnormals stay, also for "ftz" element types: an H200 keeps them."""
    for number in range(count):
        bits = row[number]
        if bits & 0x7F80_0000 != 0x7F80_0000:
            row[number] = bits + 0xFFF + (bits >> 13 & 1) & ~u32(0x1FFF)


@inline
def part_inside(start, count, size):
    """Return (elements of a row before the tensor, elements of it inside)."""
    first = max(i64(0), -i64(start))
    last = min(i64(count), i64(size) - start)
    return u32(min(first, i64(count))), u32(max(last - min(first, i64(count)), i64(0)))


@native
def load_padded_row(map: Ptr[TensorMap], source: u64, start: i32, inside: bool, target: u64, mask: u64) -> None:
    """Load a row of elements with padding: whole groups of 16, whose last bytes are zeros here."""
    whole = row_bytes(map)
    bits = bits_of(map)
    row = local(u8, ROW)
    memset(row, 0, whole)
    _, count = part_inside(start, map.box[0], map.sizes[0])
    if inside and count == map.box[0]:
        bytes_ = u32(GROUP_ELEMENTS) * bits >> 3
        for group in range(u32(map.box[0]) // GROUP_ELEMENTS):
            first = source + u64((i64(start) + i64(group * GROUP_ELEMENTS)) * bits >> 3)
            memcpy(row + group * GROUP_BYTES, Ptr(first), bytes_)
    to_shared(target, row, whole, mask)


@native
def load_row(map: Ptr[TensorMap], source: u64, start: i32, inside: bool, target: u64, mask: u64) -> None:
    """Load a row of a box: `source` is where the tensor's row begins, `start` the coordinate in it."""
    if map.element > PACKED:
        load_padded_row(map, source, start, inside, target, mask)
        return
    bits = bits_of(map)
    whole = u32(map.box[0]) * bits >> 3
    before, count = part_inside(start, map.box[0], map.sizes[0])
    if not inside:
        count = u32(0)
    first = source + u64(i64(start) * bits >> 3)
    rounds = map.element == TF32 or map.element == TF32_FTZ
    if count == map.box[0] and not rounds:
        to_shared(target, Ptr(first), whole, mask)
    else:
        row = local(u8, ROW)
        if count < map.box[0]:
            fill_row(row, whole, map)
        skipped = before * bits >> 3
        taken = count * bits >> 3
        memcpy(row + skipped, Ptr(first + skipped), taken)
        if rounds:
            round_row(Ptr[u32](row + skipped), count)
        to_shared(target, row, whole, mask)


@native
def store_row(
    map: Ptr[TensorMap], bits: u32, target: u64, start: i32, inside: bool, source: u64, mask: u64, reduction: i32
) -> None:
    """Store a row of a box; elements outside the tensor are not written."""
    before, count = part_inside(start, map.box[0], map.sizes[0])
    whole = u32(map.box[0]) * bits >> 3
    first = target + u64(i64(start) * bits >> 3)
    if not inside or count == 0:
        return
    if count == map.box[0] and reduction == 0:
        from_shared(Ptr(first), source, whole, mask)
        return
    row = local(u8, ROW)
    from_shared(row, source, whole, mask)
    skipped = before * bits >> 3
    if reduction == 0:
        memcpy(Ptr(first + skipped), row + skipped, count * bits >> 3)
    else:
        reduce_row(Ptr(first + skipped), row + skipped, count, u32(map.element), reduction)


# --- boxes -----------------------------------------------------------------------------------------------------------


@inline
def extent(map, mode):
    """Return the rows of a box in a mode."""
    return u32(1) if mode >= map.rank else ceil_div(map.box[mode], map.steps[mode])


@inline
def for_each_row(map, coordinates, shared, act):
    """Call `act` with (where the row begins in the tensor, whether it is inside, where it lies in shared memory)."""
    distance = row_distance(map)
    at = shared
    for l in range(extent(map, 4)):
        for k in range(extent(map, 3)):
            for j in range(extent(map, 2)):
                for i in range(extent(map, 1)):
                    place = map.base
                    inside = True
                    for mode, index in ((1, i), (2, j), (3, k), (4, l)):
                        if mode < map.rank:
                            coordinate = i64(coordinates[mode]) + index * map.steps[mode]
                            inside = inside and coordinate >= 0 and coordinate < map.sizes[mode]
                            place += u64(coordinate) * map.strides[mode - 1]
                    act(place, inside, at)
                    at += distance


@inline
def for_each_gathered_row(map, coordinates, shared, act):
    """Call `act` as `for_each_row` does for the four rows of a matrix that coordinates 1 to 4 name."""
    distance = row_distance(map)
    for number in range(1, MODES):
        row = i64(coordinates[number])
        inside = row >= 0 and row < map.sizes[1]
        act(map.base + u64(row) * map.strides[0], inside, shared + u64(number - 1) * distance)


@inline
def for_each_pixel(map, coordinates, offsets, shared, act):
    """Call `act` as `for_each_row` does for the pixels of an im2col box, row by row and image by image."""
    distance = row_distance(map)
    spatial = u32(map.rank) - 2
    at = shared
    place_of = local(i64, MODES)
    for mode in range(1, u32(map.rank)):
        place_of[mode] = coordinates[mode]
    for _ in range(u32(map.box[1])):
        place = map.base
        inside = True
        for mode in range(1, u32(map.rank)):
            coordinate = place_of[mode]
            if mode <= spatial:
                coordinate += offsets[mode - 1]
            inside = inside and coordinate >= 0 and coordinate < map.sizes[mode]
            place += u64(coordinate) * map.strides[mode - 1]
        act(place, inside, at)
        at += distance
        mode = u32(1)
        carries = True
        while carries and mode <= spatial:
            place_of[mode] += map.steps[mode]
            carries = place_of[mode] >= i64(map.sizes[mode]) + map.upper[mode - 1]
            if carries:
                place_of[mode] = map.lower[mode - 1]
                mode += 1
        if carries:
            place_of[mode] += 1


@inline
def mask_of(map):
    """Return a swizzle as `swizzled` takes it: the mask of address bits from 7 on, and the first bit they change."""
    plain = u64(0) if map.swizzle == 0 else (u64(1) << map.swizzle) - 1 | 4 << 4
    return u64(3 | 5 << 4) if map.swizzle == ATOMS_OF_32 else plain


@native
def load_box(operation: Ptr[Operation]) -> None:
    map = Ptr[TensorMap](operation.source)
    target = address(operation.target)
    start = operation.coordinates[0]
    if map.magic == MAGIC:
        mask = mask_of(map)
        act = lambda place, inside, at: load_row(map, place, start, inside, at, mask)
        if operation.reduction == GATHERED:
            for_each_gathered_row(map, operation.coordinates, target, act)
        elif map.im2col != 0:
            for_each_pixel(map, operation.coordinates, operation.offsets, target, act)
        else:
            for_each_row(map, operation.coordinates, target, act)


@native
def store_box(operation: Ptr[Operation]) -> None:
    map = Ptr[TensorMap](operation.target)
    source = address(operation.source)
    start = operation.coordinates[0]
    if map.magic == MAGIC:
        mask = mask_of(map)
        bits = bits_of(map)
        reduction = operation.reduction
        copies = local(u64, MOST_DEVICES)
        for number in range(places_of(map.base, copies)):
            there = copies[number] - map.base
            if reduction == GATHERED:
                act = lambda place, inside, at, there=there: store_row(
                    map, bits, place + there, start, inside, at, mask, 0
                )
                for_each_gathered_row(map, operation.coordinates, source, act)
            else:
                act = lambda place, inside, at, there=there: store_row(
                    map, bits, place + there, start, inside, at, mask, reduction
                )
                if map.im2col != 0:
                    for_each_pixel(map, operation.coordinates, operation.offsets, source, act)
                else:
                    for_each_row(map, operation.coordinates, source, act)


# --- what kernels call -----------------------------------------------------------------------------------------------


@native
def refused(block: Ptr[BlockRecord], map: Ptr[TensorMap], shared: Ptr, start: i32, rank: i32, way: i32) -> i64:
    """Return the code of a refused copy; 0 if it can be made."""
    if map.magic != MAGIC:
        return NOT_A_MAP
    if way == GATHER4:
        if map.rank != 2 or map.box[1] != 1 or map.im2col != 0:
            return ROWS | i64(map.rank) << 8 | i64(map.box[1]) << 32
    elif map.rank != rank:
        return RANK | i64(map.rank) << 8
    if address(shared) & 127 != 0:
        return ALIGNMENT | i64(address(shared) & 127) << 8
    if map.interleave != 0:
        return ELEMENT
    if way == PIXELS and map.im2col == 0:
        return IM2COL
    bits = bits_of(map)
    if map.element > PACKED and start & 127 != 0:
        return PADDED | i64(start) << 32
    if i64(start) * bits & 127 != 0:
        return START | i64(bits) << 8 | i64(start) << 32
    room = address(block) - address(shared)  # the record lies where shared memory ends
    space = u64(copied_bytes(map, way)) // row_bytes(map) * row_distance(map)
    if address(shared) >= address(block.smem) and address(shared) < address(block) and space > room:
        return ROOM | i64(space) << 8 | i64(room) << 32
    return 0


@inline
def copied_bytes(map, way):
    """Return the bytes of a copy in shared memory: those of a box, or of four rows."""
    return box_bytes(map) * (4 if way == GATHER4 else 1)


@inline
def counted_bytes(map, way):
    """Return the bytes of a copy that an mbarrier counts: without the padding of unpacked elements.

    No manual says so. Programs of NVIDIA expect the bytes that elements have in global memory (`size_in_bytes` of a
    4-bit type), as the collectives of CUTLASS do, whose unpacked types have 4 and 6 bits.
    """
    return copied_bytes(map, way) * bits_of(map) // shared_bits(map)


@inline
def set_coordinates(operation, coordinates, offsets, reduction):
    for mode in range(MODES):
        operation.coordinates[mode] = coordinates[mode]
    for mode in range(MODES - 2):
        operation.offsets[mode] = offsets[mode]
    operation.reduction = reduction


@inline
def mbarrier_distance(owner, mine, rank, cta_group):
    """Return how many blocks the mbarrier that block `rank` of a multicast signals lies behind the given one.

    `owner` is the block of the given mbarrier, `mine` the one that copies. The receiver's own mbarrier is signalled;
    with `cta_group` 2 that of the block of the receiver's pair whose rank is even or odd as the owner's.
    """
    of_pair = (i64(rank) & ~1 | i64(owner) & 1) - i64(owner)
    return of_pair if cta_group == 2 else i64(rank) - i64(mine)


@accelerator.export
def tma_load(
    frame: Ptr[FrameHeader],
    map: Ptr[TensorMap],
    target: Ptr,
    mbarrier: Ptr[u64],
    coordinates: Ptr[i32],
    offsets: Ptr[i16],
    rank: i32,
    way: i32,
    mask: i32,
    cta_group: i32,
) -> i64:
    """Issue a load to shared memory of this block, or of the blocks of a mask; return 0 or why not.

    With `cta_group` 2 the mbarrier may be that of the other block of a pair.
    """
    why = refused(frame.block, map, target, coordinates[0], rank, way)
    if why != 0:
        return why
    bytes_ = copied_bytes(map, way)
    counted = counted_bytes(map, way)
    block = frame.block
    more = lambda operation: set_coordinates(operation, coordinates, offsets, GATHERED if way == GATHER4 else 0)
    if mask < 0:
        give(frame, BULK_QUEUE, BYTES, load_box, target, map, counted, bytes_, mbarrier, more)
    else:
        blocks = block.cluster_x * block.cluster_y * block.cluster_z
        if u32(mask) >> blocks != 0:
            return RECEIVER | i64(blocks) << 8
        first = address(block.smem) - u64(block.rank) * block.chunk
        owner = (address(mbarrier) - first) // block.chunk
        for rank_there in range(blocks):
            if u32(mask) >> rank_there & 1 != 0:
                distance = (i64(rank_there) - block.rank) * block.chunk
                step = mbarrier_distance(owner, block.rank, rank_there, cta_group)
                there = Ptr[u64](Ptr(mbarrier) + step * block.chunk)
                give(frame, BULK_QUEUE, BYTES, load_box, target + distance, map, counted, bytes_, there, more)
    return 0


@accelerator.export
def tma_store(
    frame: Ptr[FrameHeader],
    map: Ptr[TensorMap],
    source: Ptr,
    coordinates: Ptr[i32],
    offsets: Ptr[i16],
    rank: i32,
    way: i32,
    reduction: i32,
) -> i64:
    """Issue a store to global memory, or a reduction into it; return 0 or why not."""
    why = refused(frame.block, map, source, coordinates[0], rank, way)
    if why != 0:
        return why
    if map.element > PACKED:
        return ELEMENT
    if reduction != 0:
        is_supported = False
        for kind, elements in tuple(REDUCED.items()):
            for element in elements:
                is_supported = is_supported or (reduction == kind and map.element == element)
        if not is_supported:
            return REDUCTION | i64(map.element) << 8
    bytes_ = copied_bytes(map, way)
    kind = i32(GATHERED) if way == GATHER4 else reduction
    more = lambda operation: set_coordinates(operation, coordinates, offsets, kind)
    give(frame, BULK_QUEUE, GROUP, store_box, map, source, bytes_, bytes_, None, more)
    return 0
