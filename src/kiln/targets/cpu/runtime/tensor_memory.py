"""Tensor memory: its allocation, and the tcgen05 operations on it.

A block's tensor memory is `BlockRecord.tmem`: 128 lanes of 512 cells of 32 bits. An address has the lane in bits 16 to
31 and the column in the others. `dialects/nvgpu/tensor_memory.py` says which cells an operation accesses.

Operations of a warp (alloc, dealloc, ld, st) return 0, a code for why they are refused, or AGAIN: suspend, and call
again. Freed columns keep what they hold until they are allocated again, and may be accessed as on a GPU: FREED.
"""
# pyright: reportReturnType=false, reportArgumentType=false

from __future__ import annotations

from ....hardware.limits import TMEM_LANES
from ....native import Ptr, address, i32, i64, inline, local, native, popcount, ref, size_of, u8, u32, u64
from ...host.libc import memcpy, memset
from .engine_table import TCGEN05_QUEUE, TCGEN05_ST_QUEUE
from .engines import ARRIVAL, GROUP, give, nothing
from .records import TMEM_COLUMNS, TMEM_SLOT, WARP, BlockRecord, FrameHeader, Mma, Operation
from .threads import ALL, HALF_RELINQUISHED, TMEM_LEAK, even_of, peer_of, wait
from .umma import A_COLUMNS, IN_FREED, multiply, refused, shift_lanes, tcgen05

SLOTS = TMEM_COLUMNS // TMEM_SLOT
POISON = 0xFF
"""The byte that memory has after an allocation: cells are NaN in every float type."""
AGAIN = 1
FREED = 2
"""Suspend, and call again; columns that the CTA has freed: the operation is carried out, and worth a warning."""
(
    MISSING,
    DIFFERENT,
    SIZE,
    GROWS,
    RELINQUISHED,
    PAIR_SIZE,
    NOT_ALLOCATED,
    COLUMNS,
    OWNER,
    LANE,
    OUTSIDE,
    RECEIVER,
    LEAK,
    HALF,
) = range(3, 17)
"""Codes for refused operations: a byte, with further numbers in bits 8 to 31 and from bit 32 on (`ops/tcgen05.py`)."""
assert (LEAK, HALF) == (TMEM_LEAK, HALF_RELINQUISHED)


@inline
def code(why, first=0, second=0):
    return i64(why) | i64(u32(first) & 0xFFFFFF) << 8 | i64(second) << 32


@inline
def is_refused(why):
    """Return whether a code says that an operation is not carried out."""
    return why & 255 > FREED


# --- allocation ------------------------------------------------------------------------------------------------------


@inline
def slots_mask(start, count):
    return (u32(1) << count) - 1 << start


@native
def free_slot(used: u32, count: u32) -> u32:
    """Return the first of an aligned run of free slots; SLOTS if there is none."""
    start = u32(0)
    while start < SLOTS and used & slots_mask(start, count) != 0:
        start += count
    return min(start, u32(SLOTS))


@tcgen05.export
def tcgen05_together(frame: Ptr[FrameHeader], word: u32) -> i64:
    """Return why an operation of a warp whose lanes have met is refused: some are missing, or brought another word; 0
    if not."""
    meeting = frame.meeting
    if meeting.arrived != ALL:
        return code(MISSING, popcount(meeting.arrived))
    for lane in range(u32(WARP)):
        if Ptr[u32](meeting.payload[lane])[0] != word:
            return code(DIFFERENT)
    return 0


@inline
def is_size(columns):
    return columns >= TMEM_SLOT and columns <= TMEM_COLUMNS and popcount(columns) == 1


@native
def take(block: Ptr[BlockRecord], start: u32, count: u32, site: i32) -> None:
    """Allocate slots of a block; their contents are arbitrary."""
    block.tmem_used |= slots_mask(start, count)
    block.tmem_freed &= ~slots_mask(start, count)
    block.tmem_starts |= u32(1) << start
    block.tmem_least = count
    block.tmem_site = site
    for lane in range(u32(TMEM_LANES)):
        memset(block.tmem + (lane * TMEM_COLUMNS + start * TMEM_SLOT), POISON, u64(count) * TMEM_SLOT * 4)


@tcgen05.export
def tcgen05_alloc(
    frame: Ptr[FrameHeader], holder: Ptr[u32], columns: u32, cta_group: u32, site: i32, fault_site: i32
) -> i64:
    """Allocate columns for a warp whose lanes have met, and write their address to `holder`."""
    block = frame.block
    meeting = frame.meeting
    if meeting.computed != DONE_MEETING:
        together = tcgen05_together(frame, columns)
        if together != 0:
            return together
        if not is_size(columns):
            return code(SIZE, columns)
        if block.tmem_relinquished != 0:
            return code(RELINQUISHED)
        count = columns // TMEM_SLOT
        if block.tmem_least != 0 and count > block.tmem_least:
            return code(GROWS, columns, block.tmem_least * TMEM_SLOT)
        if cta_group == 1:
            start = free_slot(block.tmem_used, count)
            if start == SLOTS:
                wait(frame, ref(block).tmem_used, ALL, block.tmem_used, site)
                return AGAIN
            take(block, start, count, fault_site)
            meeting.result = start * TMEM_SLOT
            meeting.computed = DONE_MEETING
        else:
            why = allocate_for_pair(frame, columns, site, fault_site)
            if why != 0:
                return why
    holder[0] = u32(meeting.result)
    return 0


CAME = 1
DONE_MEETING = 2
"""States of a warp's meeting for an allocation, in `Meeting.computed`: it waits for the peer's; it is over."""


@native
def allocate_for_pair(frame: Ptr[FrameHeader], columns: u32, site: i32, fault_site: i32) -> i64:
    """Allocate the same columns of both blocks of a pair, when a warp of each has come."""
    block = frame.block
    meeting = frame.meeting
    peer = peer_of(block)
    pair = even_of(block).pair
    mine = block.rank & 1
    if meeting.computed == 0:
        if pair.waiting[mine] != None:  # another warp of this block is before it
            wait(frame, ref(pair).turn, ALL, pair.turn, site)
            return AGAIN
        pair.waiting[mine] = meeting
        pair.columns[mine] = columns
        meeting.computed = CAME
    other = pair.waiting[mine ^ 1]
    if other == None:
        wait(frame, Ptr[u32](ref(meeting).computed), ALL, CAME, site)
        return AGAIN
    if pair.columns[mine ^ 1] != columns:
        return code(PAIR_SIZE, columns, pair.columns[mine ^ 1])
    count = columns // TMEM_SLOT
    start = free_slot(block.tmem_used | peer.tmem_used, count)
    if start == SLOTS:
        wait(frame, ref(pair).turn, ALL, pair.turn, site)
        return AGAIN
    take(block, start, count, fault_site)
    take(peer, start, count, fault_site)
    for each in (meeting, other):
        each.result = start * TMEM_SLOT
        each.computed = DONE_MEETING
    pair.waiting[0] = None
    pair.waiting[1] = None
    pair.turn += 1
    return 0


@tcgen05.export
def tcgen05_dealloc(frame: Ptr[FrameHeader], place: u32, columns: u32, cta_group: u32, keeps: u32) -> i64:
    """Free columns of the block of a warp whose lanes have met; the blocks of a pair each free their own.

    Without `keeps`, later accesses to them are refused.
    """
    block = frame.block
    meeting = frame.meeting
    if meeting.computed != 0:
        return 0
    together = tcgen05_together(frame, place)
    if together != 0:
        return together
    if not is_size(columns):
        return code(SIZE, columns)
    start = place // TMEM_SLOT
    count = columns // TMEM_SLOT
    if place % TMEM_SLOT != 0 or start + count > SLOTS:
        return code(NOT_ALLOCATED, columns, place)
    mask = slots_mask(start, count)
    after = u32(1) << start + count
    whole = block.tmem_used & mask == mask and block.tmem_starts & mask == u32(1) << start
    if not whole or block.tmem_used & ~block.tmem_starts & after != 0:
        return code(NOT_ALLOCATED, columns, place)
    block.tmem_used &= ~mask
    block.tmem_starts &= ~mask
    if keeps != 0:
        block.tmem_freed |= mask
    if cta_group == 2:
        even_of(block).pair.turn += 1
    meeting.computed = 1
    return 0


@tcgen05.export
def tcgen05_relinquish(frame: Ptr[FrameHeader], cta_group: u32) -> None:
    """Let the block allocate no more."""
    block = frame.block
    block.tmem_relinquished = 1
    if cta_group == 2:
        even_of(block).pair.relinquished |= u32(1) << (block.rank & 1)


# --- registers -------------------------------------------------------------------------------------------------------

SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
"""Shapes of loads and stores; bits 0 to 3 of a form are the number of one."""
PACKS = 1 << 4
REPEAT_SHIFT = 8
SPLIT_SHIFT = 16
"""Fields of a form: whether registers have the lower halves of two cells; repetitions; columns between halves."""
WIDTHS = (1, 2, 4, 8, 1)
REGISTERS = (1, 1, 2, 4, 1)
"""Columns and registers of a repetition of each shape."""


def form_of(shape: str, repeat: int, split: int, packs: bool) -> int:
    """Return the number that describes a load or store."""
    return SHAPES.index(shape) | PACKS * packs | repeat << REPEAT_SHIFT | split << SPLIT_SHIFT


@inline
def chosen(table, shape):
    """Return the entry of a table of Python numbers."""
    result = u32(table[0])
    for number, value in tuple(enumerate(table)):
        result = u32(value) if shape == number else result
    return result


@inline
def repeats(form):
    return form >> REPEAT_SHIFT & 255


@inline
def columns_of(form):
    """Return how many columns are accessed, in each half for 16x32bx2."""
    packed = u32(1) if form & PACKS != 0 else u32(0)
    return chosen(WIDTHS, form & 15) * repeats(form) << packed


@inline
def wrong_columns(block, column, count):
    """Return COLUMNS if some of the columns were never allocated, FREED if some are freed, else 0."""
    first = column // TMEM_SLOT
    last = (column + count - 1) // TMEM_SLOT
    mask = slots_mask(first, last - first + 1)
    why = i64(0)
    if column + count > TMEM_COLUMNS or (block.tmem_used | block.tmem_freed) & mask != mask:
        why = code(COLUMNS, column, count)
    elif block.tmem_used & mask != mask:
        why = code(FREED)
    return why


@native
def refused_access(frame: Ptr[FrameHeader], place: u32, form: u32) -> i64:
    """Return why a warp cannot, or should not, access tensor memory; 0 if it can."""
    block = frame.block
    shape = form & 15
    column = place & 0xFFFF
    lane = place >> 16
    count = columns_of(form)
    warp = frame.thread // WARP
    high = u32(32) if shape == 0 else u32(16)
    if lane // 32 != warp % 4:
        return code(OWNER, lane, warp)
    if lane % high != 0:
        return code(LANE, lane, high)
    why = wrong_columns(block, column, count)
    if shape == 4 and not is_refused(why):
        other = wrong_columns(block, column + (form >> SPLIT_SHIFT), count)
        why = other if other != 0 else why
    return why


@inline
def for_each_register(place, form, thread, act):
    """Call `act(register, lane, column)` for the registers of a thread; packed registers have two columns, from
    `column` on."""
    lane = place >> 16
    column = place & 0xFFFF
    shape = form & 15
    group = thread // 4
    inside = thread % 4
    count = chosen(REGISTERS, shape) * repeats(form)
    packed = u32(1) if form & PACKS != 0 else u32(0)
    if shape == 0:
        for register in range(count):
            act(register, lane + thread, column + (register << packed))
    elif shape == 1:
        for register in range(count):
            act(register, lane + group + 8 * (inside % 2), column + (2 * register + inside // 2 << packed))
    elif shape == 2:
        for register in range(count):
            act(register, lane + group + 8 * (register % 2), column + (4 * (register // 2) + inside << packed))
    elif shape == 3:
        for register in range(count):
            there = 8 * (register // 4) + 2 * inside + register % 2
            act(register, lane + group + 8 * (register // 2 % 2), column + (there << packed))
    else:
        half = (form >> SPLIT_SHIFT) * (thread // 16)
        for register in range(count):
            act(register, lane + thread % 16, column + half + (register << packed))


@inline
def cell(block, lane, column):
    return block.tmem + (lane * TMEM_COLUMNS + column)


@tcgen05.export
def tcgen05_ld(frame: Ptr[FrameHeader], place: u32, form: u32, registers: Ptr[u32]) -> i64:
    """Load the registers of a thread; return 0 or why not."""
    why = refused_access(frame, place, form)
    if is_refused(why):
        return why
    block = frame.block
    thread = frame.thread % WARP

    def plain(register, lane, column):
        registers[register] = cell(block, lane, column)[0]

    def packed(register, lane, column):
        both = cell(block, lane, column)
        registers[register] = both[0] & 0xFFFF | both[1] << 16

    if form & 15 == 0 and form & PACKS == 0:
        memcpy(registers, cell(block, (place >> 16) + thread, place & 0xFFFF), u64(repeats(form)) * 4)
    elif form & PACKS == 0:
        for_each_register(place, form, thread, plain)
    else:
        for_each_register(place, form, thread, packed)
    return why


OF_F32, OF_U32, OF_S32 = range(3)
MAXIMUM = 4
ABSOLUTE = 8
NAN = 16
"""Bits of a reduction besides the type of cells."""


def reduction_of(kind: str, type_: str, absolute: bool, nan: bool) -> int:
    """Return the number that describes the reduction of a `tcgen05.ld.red`."""
    return ("f32", "u32", "s32").index(type_) | MAXIMUM * (kind == "max") | ABSOLUTE * absolute | NAN * nan


@inline
def less(a, b, type_):
    """Return whether a is less than b, as bits of f32 (-0 is less than 0), u32 or s32."""
    if type_ == OF_U32:
        return a < b
    if type_ == OF_S32:
        return i32(a) < i32(b)
    # magnitudes of negative numbers are turned round, so that bits are in the order of the numbers
    left = i32(a) ^ (i32(a) >> 31 & 0x7FFFFFFF)
    right = i32(b) ^ (i32(b) >> 31 & 0x7FFFFFFF)
    return left < right


@tcgen05.export
def tcgen05_ld_red(frame: Ptr[FrameHeader], place: u32, form: u32, reduction: u32, registers: Ptr[u32]) -> i64:
    """Load the registers of a thread, and then the reduction of its columns; return 0 or why not."""
    why = tcgen05_ld(frame, place, form, registers)
    if not is_refused(why):
        count = repeats(form)
        type_ = reduction & 3
        best = u32(0)
        has = False
        special = False
        for number in range(count):
            word = registers[number]
            if reduction & ABSOLUTE != 0:
                word &= 0x7FFFFFFF
            if type_ == OF_F32 and word & 0x7FFFFFFF > 0x7F800000:
                special = True
            else:
                better = less(best, word, type_) if reduction & MAXIMUM != 0 else less(word, best, type_)
                best = word if not has or better else best
                has = True
        if not has or (special and reduction & NAN != 0):
            best = u32(0x7FFFFFFF)
        registers[count] = best
    return why


@native
def store_registers(operation: Ptr[Operation]) -> None:
    block = operation.block
    thread = operation.bytes
    registers = Ptr[u32](operation.extra)
    place = operation.tmem_address
    form = operation.form

    def plain(register, lane, column):
        cell(block, lane, column)[0] = registers[register]

    def unpacked(register, lane, column):
        both = cell(block, lane, column)
        both[0] = both[0] & 0xFFFF0000 | registers[register] & 0xFFFF
        both[1] = both[1] & 0xFFFF0000 | registers[register] >> 16

    if form & 15 == 0 and form & PACKS == 0:
        memcpy(cell(block, (place >> 16) + thread, place & 0xFFFF), registers, u64(repeats(form)) * 4)
    elif form & PACKS == 0:
        for_each_register(place, form, thread, plain)
    else:
        for_each_register(place, form, thread, unpacked)


@tcgen05.export
def tcgen05_st(frame: Ptr[FrameHeader], place: u32, form: u32, registers: Ptr[u32]) -> i64:
    """Issue a store of the registers of a thread; return 0 or why not."""
    why = refused_access(frame, place, form)
    if not is_refused(why):
        bytes_ = u64(chosen(REGISTERS, form & 15) * repeats(form)) * 4

        def more(operation):
            operation.tmem_address = place
            operation.form = form

        give(
            frame,
            TCGEN05_ST_QUEUE,
            GROUP,
            store_registers,
            bytes_=frame.thread % WARP,
            more=more,
            extra=Ptr(registers),
            extra_bytes=bytes_,
        )
    return why


# --- copy, shift, MMA, commit ----------------------------------------------------------------------------------------

COPIES = ("128x256b", "128x128b", "4x256b", "64x128b.warpx2::02_13", "64x128b.warpx2::01_23", "32x128b.warpx4")
"""Shapes of copies; bits 0 to 3 of a form are the number of one."""
ROWS = (128, 128, 4, 64, 64, 32)
PIECES = (2, 1, 2, 1, 1, 1)
"""Rows of each shape, and 16-byte pieces of a row."""
FORMATS = (None, "b4x16_p64", "b6x16_p32")
FORMAT_SHIFT = 4
GROUP_SHIFT = 8
"""Fields of a copy's form: the number of the format, and the CTA group."""


def copy_form(shape: str, format_: str | None, cta_group: int) -> int:
    """Return the number that describes a copy to tensor memory."""
    return COPIES.index(shape) | FORMATS.index(format_) << FORMAT_SHIFT | cta_group << GROUP_SHIFT


@inline
def row_piece(descriptor, row, piece):
    """Return the offset in shared memory of 16 bytes of a row of a K-major operand, by an sm_100 descriptor."""
    start, leading, stride = ((u32(descriptor >> at) & 0x3FFF) << 4 for at in (0, 16, 32))
    swizzle = u32(descriptor >> 61)
    width = u32(128) if swizzle <= 2 else u32(64) if swizzle == 4 else u32(32)
    width = u32(16) if swizzle == 0 else width
    along = leading if swizzle == 0 else u32(16)
    address_ = start + row % 8 * width + row // 8 * stride + piece * along
    atoms = (address_ >> 7 & 3) << 5
    pieces = (address_ >> 7 & (width // 16 - 1)) << 4
    return address_ ^ (atoms if swizzle == 1 else pieces)


@native
def widen(target: Ptr[u8], source: Ptr[u8], format_: u32) -> None:
    """Copy 16 bytes, or make them of 16 elements of 4 or 6 bits: those of 4 are moved up by 2 bits."""
    if format_ == 0:
        memcpy(target, source, 16)
    else:
        bits = u32(4) if format_ == 1 else u32(6)
        up = u32(2) if format_ == 1 else u32(0)
        for element in range(u32(16)):
            at = element * bits
            both = u32(source[at // 8]) | u32(source[at // 8 + 1]) << 8
            target[element] = u8((both >> at % 8 & (u32(1) << bits) - 1) << up)


@native
def copy_to(block: Ptr[BlockRecord], descriptor: u64, place: u32, form: u32) -> None:
    """Copy rows of a block's shared memory to its tensor memory."""
    shape = form & 15
    format_ = form >> FORMAT_SHIFT & 15
    lane = place >> 16
    column = place & 0xFFFF
    pieces = chosen(PIECES, shape)
    bytes_ = local(u8, 16)
    for row in range(chosen(ROWS, shape)):
        for piece in range(pieces):
            widen(bytes_, Ptr[u8](block.smem + row_piece(descriptor, row, piece)), format_)
            copies = u32(1)
            step = u32(0)
            first = row
            if shape == 2:
                first = 32 * row
            elif shape == 3:
                copies = u32(2)
                step = u32(64)
            elif shape == 4:
                copies = u32(2)
                step = u32(32)
                first = row % 32 + 64 * (row // 32)
            elif shape == 5:
                copies = u32(4)
                step = u32(32)
            for copy in range(copies):
                memcpy(cell(block, lane + first + copy * step, column + 4 * piece), bytes_, 16)


@native
def copy_rows(operation: Ptr[Operation]) -> None:
    block = operation.block
    copy_to(block, operation.descriptor, operation.tmem_address, operation.form)
    if operation.form >> GROUP_SHIFT == 2:
        copy_to(peer_of(block), operation.descriptor, operation.tmem_address, operation.form)


@inline
def refused_columns(block, place, count, cta_group):
    """Return why an operation of one or two blocks cannot, or should not, access columns of all lanes; 0 if it can."""
    why = wrong_columns(block, place & 0xFFFF, count)
    if place >> 16 != 0:
        why = code(LANE, place >> 16, 128)
    elif cta_group == 2 and not is_refused(why):  # a launch refuses clusters that are no pairs
        other = wrong_columns(peer_of(block), place & 0xFFFF, count)
        why = other if other != 0 else why
    return why


@tcgen05.export
def tcgen05_cp(frame: Ptr[FrameHeader], place: u32, descriptor: u64, form: u32) -> i64:
    """Issue a copy of rows of shared memory; return 0 or why not."""
    block = frame.block
    shape = form & 15
    why = refused_columns(block, place, 4 * chosen(PIECES, shape), form >> GROUP_SHIFT)
    if not is_refused(why):
        size = u32(address(block) - address(block.smem))
        last = u32(0)
        for row in range(chosen(ROWS, shape)):
            for piece in range(chosen(PIECES, shape)):
                last = max(last, row_piece(descriptor, row, piece) + 16)
        if last > size:
            return code(OUTSIDE, size, last)

        def more(operation):
            operation.tmem_address = place
            operation.descriptor = descriptor
            operation.form = form

        give(frame, TCGEN05_QUEUE, GROUP, copy_rows, more=more)
    return why


@native
def shift_rows(operation: Ptr[Operation]) -> None:
    """Shift the rows of a warp's lanes, in both CTAs for a pair."""
    lane = operation.tmem_address >> 16
    column = operation.tmem_address & 0xFFFF
    shift_lanes(operation.block, lane, column)
    if operation.form == 2:
        shift_lanes(peer_of(operation.block), lane, column)


@tcgen05.export
def tcgen05_shift(frame: Ptr[FrameHeader], place: u32, cta_group: u32) -> i64:
    """Issue a shift of 8 columns of 32 lanes down by one lane; return 0 or why not."""
    lane = place >> 16
    why = refused_columns(frame.block, place & 0xFFFF, u32(A_COLUMNS), cta_group)
    if lane % 32 != 0 or lane >= TMEM_LANES:
        why = code(LANE, lane, 32)
    if not is_refused(why):

        def more(operation):
            operation.tmem_address = place
            operation.form = cta_group

        give(frame, TCGEN05_QUEUE, GROUP, shift_rows, more=more)
    return why


@tcgen05.export
def tcgen05_mma(frame: Ptr[FrameHeader], mma: Ptr[Mma]) -> i64:
    """Issue an MMA; return 0 or why not."""
    why = refused(frame.block, mma)
    if why == 0:
        give(frame, TCGEN05_QUEUE, GROUP, multiply, extra=Ptr(mma), extra_bytes=size_of(Mma))
        if mma.flags & IN_FREED != 0:
            why = code(FREED)
    return why


@tcgen05.export
def tcgen05_commit(frame: Ptr[FrameHeader], mbarrier: Ptr[u64], mask: i32) -> i64:
    """Issue an arrival after what this thread has issued; return 0 or why not.

    A `mask` that is not negative names blocks: it arrives at the mbarriers there.
    """
    block = frame.block
    cluster = block.cluster_x * block.cluster_y * block.cluster_z
    if mask >= 0 and u32(mask) >> cluster != 0:
        return code(RECEIVER, cluster)
    if mask == 0:
        return 0

    def more(operation):
        operation.blocks = u32(0) if mask < 0 else u32(mask)

    give(frame, TCGEN05_QUEUE, ARRIVAL, nothing, mbarrier=mbarrier, more=more)
    return 0
