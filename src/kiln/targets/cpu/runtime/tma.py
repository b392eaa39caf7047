"""TMA: boxes of tensors between global and shared memory, as operations of the bulk queue.

Rows of a box are contiguous in shared memory; with a swizzle, rows are at least its span apart, and pieces of 16 bytes
are permuted by address bits. A copy works row by row. It reads all memory, also its tensor map, when it is carried out.
"""
# pyright: reportReturnType=false

from __future__ import annotations

from ....hardware.limits import TENSOR_MAP_BOX
from ....native import Ptr, address, i16, i32, i64, inline, local, native, u8, u16, u32, u64
from ...host.libc import memcpy, memset
from .engine_table import BULK_QUEUE
from .engines import BYTES, GROUP, give
from .records import BlockRecord, FrameHeader, Operation
from .reductions import PACKED, REDUCED, TF32, TF32_FTZ, reduce_row
from .tensor_maps import MAGIC, MODES, TensorMap, accelerator

BITS = (8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6)
"""Bits of elements, by the driver's numbers of their types."""
ROW = TENSOR_MAP_BOX * 8
"""Bytes of the longest row: elements of 8 bytes."""
NOT_A_MAP, RANK, ALIGNMENT, IM2COL, REDUCTION, ELEMENT, RECEIVER, START, ROOM = range(1, 10)
"""Codes for refused copies: the low byte of what `tma_load` and `tma_store` return, with further numbers above."""


@inline
def bits_of(map):
    """Return the bits of an element."""
    found = u32(0)
    for number, bits in tuple(enumerate(BITS)):
        found = u32(bits) if map.element == number else found
    return found


@inline
def ceil_div(a, b):
    return (u32(a) + u32(b) - 1) // u32(b)


@native
def box_bytes(map: Ptr[TensorMap]) -> u32:
    """Return the bytes of a box, which an mbarrier counts."""
    elements = u32(map.box[0])
    if map.im2col != 0:
        elements *= map.box[1]
    else:
        for mode in range(1, u32(map.rank)):
            elements *= ceil_div(map.box[mode], map.steps[mode])
    return elements * bits_of(map) >> 3


@inline
def shared_bits(map):
    """Return the bits of an element in shared memory: those that are unpacked lie 16 to 16 bytes."""
    return u32(8) if map.element > PACKED else bits_of(map)


@inline
def row_bytes(map):
    """Return the bytes of a row of a box in shared memory."""
    return u32(map.box[0]) * shared_bits(map) >> 3


@inline
def row_distance(map):
    """Return the bytes from a row of a box to the next in shared memory."""
    row = row_bytes(map)
    return u64(row) if map.swizzle == 0 else max(u64(row), u64(16) << map.swizzle)


# --- rows ------------------------------------------------------------------------------------------------------------


@inline
def swizzled(at, mask):
    """Return where a byte of shared memory lies: bits 4 on of its address are changed by bits 7 on."""
    return at ^ ((at >> 7 & mask) << 4)


@inline
def move(target, source):
    """Copy 16 bytes."""
    first, second = Ptr[u64](source)[0], Ptr[u64](source)[1]
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
def unpack_row(row: Ptr, packed: Ptr, count: u32, bits: u32) -> None:
    """Spread elements so that each 16 of them lie in 16 bytes, without gaps, and zeros follow."""
    bytes_ = bits * 2
    for group in range(count >> 4):
        target = row + group * 16
        memcpy(target, packed + group * bytes_, bytes_)
        memset(target + bytes_, 0, 16 - bytes_)


@native
def load_row(map: Ptr[TensorMap], bits: u32, source: u64, start: i32, inside: bool, target: u64, mask: u64) -> None:
    """Load a row of a box: `source` is where the tensor's row begins, `start` the coordinate in it."""
    whole = u32(map.box[0]) * bits >> 3
    before, count = part_inside(start, map.box[0], map.sizes[0])
    if not inside:
        count = u32(0)
    first = source + u64(i64(start) * bits >> 3)
    rounds, unpacks = map.element == TF32 or map.element == TF32_FTZ, map.element > PACKED
    if count == map.box[0] and not rounds and not unpacks:
        to_shared(target, Ptr(first), whole, mask)
    else:
        row = local(u8, ROW)
        if count < map.box[0]:
            fill_row(row, whole, map)
        skipped, taken = before * bits >> 3, count * bits >> 3
        memcpy(row + skipped, Ptr(first + skipped), taken)
        if rounds:
            round_row(Ptr[u32](row + skipped), count)
        if unpacks:
            spread = local(u8, ROW)
            unpack_row(spread, row, u32(map.box[0]), bits)
            to_shared(target, spread, row_bytes(map), mask)
        else:
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
def for_each_row(map, bits, coordinates, shared, act):
    """Call `act` with (where the row begins in the tensor, whether it is inside, where it lies in shared memory)."""
    distance = row_distance(map)
    at = shared
    for l in range(extent(map, 4)):
        for k in range(extent(map, 3)):
            for j in range(extent(map, 2)):
                for i in range(extent(map, 1)):
                    place, inside = map.base, True
                    for mode, index in ((1, i), (2, j), (3, k), (4, l)):
                        if mode < map.rank:
                            coordinate = i64(coordinates[mode]) + index * map.steps[mode]
                            inside = inside and coordinate >= 0 and coordinate < map.sizes[mode]
                            place += u64(coordinate) * map.strides[mode - 1]
                    act(place, inside, at)
                    at += distance


@inline
def for_each_pixel(map, bits, coordinates, offsets, shared, act):
    """Call `act` as `for_each_row` does for the pixels of an im2col box, row by row and image by image."""
    distance = row_distance(map)
    spatial = u32(map.rank) - 2
    at, place_of = shared, local(i64, MODES)
    for mode in range(1, u32(map.rank)):
        place_of[mode] = coordinates[mode]
    for _ in range(u32(map.box[1])):
        place, inside = map.base, True
        for mode in range(1, u32(map.rank)):
            coordinate = place_of[mode]
            if mode <= spatial:
                coordinate += offsets[mode - 1]
            inside = inside and coordinate >= 0 and coordinate < map.sizes[mode]
            place += u64(coordinate) * map.strides[mode - 1]
        act(place, inside, at)
        at += distance
        mode, carries = u32(1), True
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
    """Return the mask of address bits that a swizzle uses."""
    return (u64(1) << map.swizzle) - 1


@native
def load_box(operation: Ptr[Operation]) -> None:
    map, target, start = Ptr[TensorMap](operation.source), address(operation.target), operation.coordinates[0]
    if map.magic == MAGIC:
        mask, bits = mask_of(map), bits_of(map)
        act = lambda place, inside, at: load_row(map, bits, place, start, inside, at, mask)
        if map.im2col != 0:
            for_each_pixel(map, bits, operation.coordinates, operation.offsets, target, act)
        else:
            for_each_row(map, bits, operation.coordinates, target, act)


@native
def store_box(operation: Ptr[Operation]) -> None:
    map, source, start = Ptr[TensorMap](operation.target), address(operation.source), operation.coordinates[0]
    if map.magic == MAGIC:
        mask, bits, reduction = mask_of(map), bits_of(map), operation.reduction
        act = lambda place, inside, at: store_row(map, bits, place, start, inside, at, mask, reduction)
        if map.im2col != 0:
            for_each_pixel(map, bits, operation.coordinates, operation.offsets, source, act)
        else:
            for_each_row(map, bits, operation.coordinates, source, act)


# --- what kernels call -----------------------------------------------------------------------------------------------


@native
def refused(block: Ptr[BlockRecord], map: Ptr[TensorMap], shared: Ptr, start: i32, rank: i32, im2col: i32) -> i64:
    """Return the code of a refused copy; 0 if it can be made."""
    if map.magic != MAGIC:
        return NOT_A_MAP
    if map.rank != rank:
        return RANK | i64(map.rank) << 8
    if address(shared) & 127 != 0:
        return ALIGNMENT | i64(address(shared) & 127) << 8
    if map.interleave != 0:
        return ELEMENT
    if im2col != 0 and map.im2col == 0:
        return IM2COL
    bits = bits_of(map)
    if i64(start) * bits & 127 != 0:
        return START | i64(bits) << 8 | i64(start) << 32
    room = address(block) - address(shared)  # the record lies where shared memory ends
    space = u64(box_bytes(map)) // (u32(map.box[0]) * bits >> 3) * row_distance(map)
    if address(shared) >= address(block.smem) and address(shared) < address(block) and space > room:
        return ROOM | i64(space) << 8 | i64(room) << 32
    return 0


@inline
def set_coordinates(operation, coordinates, offsets, reduction):
    for mode in range(MODES):
        operation.coordinates[mode] = coordinates[mode]
    for mode in range(MODES - 2):
        operation.offsets[mode] = offsets[mode]
    operation.reduction = reduction


@accelerator.export
def tma_load(
    frame: Ptr[FrameHeader], map: Ptr[TensorMap], target: Ptr, mbarrier: Ptr[u64], coordinates: Ptr[i32], offsets: Ptr[i16],
    rank: i32, im2col: i32, mask: i32,
) -> i64:  # fmt: skip
    """Issue a load of a box to shared memory of this block, or of the blocks of a mask; return 0 or why not."""
    why = refused(frame.block, map, target, coordinates[0], rank, im2col)
    if why != 0:
        return why
    bytes_ = box_bytes(map)
    block = frame.block
    more = lambda operation: set_coordinates(operation, coordinates, offsets, 0)
    if mask < 0:
        give(frame, BULK_QUEUE, BYTES, load_box, target, map, bytes_, bytes_, mbarrier, more)
    else:
        blocks = block.cluster_x * block.cluster_y * block.cluster_z
        if u32(mask) >> blocks != 0:
            return RECEIVER | i64(blocks) << 8
        for rank_there in range(blocks):
            if u32(mask) >> rank_there & 1 != 0:
                distance = (i64(rank_there) - block.rank) * block.chunk
                there = Ptr[u64](Ptr(mbarrier) + distance)
                give(frame, BULK_QUEUE, BYTES, load_box, target + distance, map, bytes_, bytes_, there, more)
    return 0


@accelerator.export
def tma_store(
    frame: Ptr[FrameHeader], map: Ptr[TensorMap], source: Ptr, coordinates: Ptr[i32], offsets: Ptr[i16], rank: i32, im2col: i32,
    reduction: i32,
) -> i64:  # fmt: skip
    """Issue a store of a box to global memory, or a reduction into it; return 0 or why not."""
    why = refused(frame.block, map, source, coordinates[0], rank, im2col)
    if why == 0 and map.element > PACKED:
        why = i64(ELEMENT)  # elements are unpacked by loads only
    if why != 0:
        return why
    if reduction != 0:
        known = False
        for kind, elements in tuple(REDUCED.items()):
            for element in elements:
                known = known or (reduction == kind and map.element == element)
        if not known:
            return REDUCTION | i64(map.element) << 8
    bytes_ = box_bytes(map)
    more = lambda operation: set_coordinates(operation, coordinates, offsets, reduction)
    give(frame, BULK_QUEUE, GROUP, store_box, map, source, bytes_, bytes_, None, more)
    return 0
