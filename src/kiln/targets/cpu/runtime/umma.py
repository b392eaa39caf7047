"""`tcgen05.mma`: its operands in shared and tensor memory, and its arithmetic.

`tensor_memory.py` issues MMAs. `refused` sees one when it is issued, `multiply` carries it out, later under a schedule
seed. Tensor memory of a block is `block.tmem`, and `threads.peer_of(block)` is the other block of a pair.

D lies in blocks of up to 64 lanes, one after the other: a block has rows of D in its lanes, and all columns or, in the
layouts B, E and G, a part of them. An A in tensor memory, and scale factors, are read from the lanes of the warp that
D's row is in. `dialects/nvgpu/tcgen05_definitions.py` defines all of it in plain Python; `tensor_core.py` has the
accumulators of floats, `block_scaling.py` those of fp4 with scale factors, this file those of integers.
"""
# pyright: reportReturnType=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from typing import NamedTuple

from ....dialects.nvgpu import tcgen05_definitions
from ....dialects.nvgpu import tcgen05_descriptors as fields
from ....dialects.nvgpu.tensor_memory import METADATA_COLUMNS
from ....hardware import mma_shapes
from ....hardware.limits import TMEM_LANES
from ....native import Library, Ptr, address, i16, i32, i64, inline, local, native, u8, u32, u64
from ...host.reports import fault
from .block_scaling import TERMS, multiply_fp4_rows, scale_exponent, scale_significand, twice
from .records import TMEM_COLUMNS, TMEM_SLOT, BlockRecord, Mma, Operation
from .tensor_core import (
    COLUMNS,
    E2M1,
    E3M2,
    INPUTS,
    Accumulation,
    Form,
    K,
    Split,
    bytes_of,
    convert_operand,
    field,
    fraction_of,
    integers,
    multiply_integer_rows,
    multiply_rows,
    planes,
    read,
    split_operand,
    take,
)
from .threads import block_of_rank

KINDS = fields.ALL_KINDS
"""Kinds of MMAs; `Mma.kind` is a number of one."""
OF_F16, OF_TF32, OF_F8, OF_I8, OF_MXF8, OF_MXF4, OF_NVF4 = range(len(KINDS))
ACCUMULATE, A_IN_TENSOR_MEMORY, WS, SHIFTS_A, SPARSE_A, IN_FREED = (1 << bit for bit in range(6))
"""Bits of `Mma.flags`. `refused` sets the last one, if an operand is in columns that were freed."""
FIRST_CODE = 64
"""The first code for a refused MMA, of a byte: the bytes above it are numbers for the message (`ops/umma.py`)."""
INDEX, SHIFTED, INSTRUCTION, NO_PAIR, OPERAND, CROSSES, LANE, COLUMN, OUTSIDE = range(FIRST_CODE, FIRST_CODE + 9)
"""Codes: metadata that mean nothing; .ashift where A has no 128 lanes of tensor memory; an instruction descriptor
that `tcgen05_descriptors.wrong_instruction` refuses; a pair without a second CTA; a wrong matrix descriptor; a row of an
operand that leaves the line of its swizzle; an address with a wrong lane, or columns that are not allocated; an operand that is not in shared memory."""
KIND_AT = 8
PAIR_AT = 11
WS_AT = 12
BLOCK_AT = 13
SPARSE_AT = 15
OPERAND_AT = 16
COUNT_AT = 20
VALUE_AT = 32
"""Where the numbers of a message are: kind, whether a pair or .ws, elements for a scale factor divided by 16, whether
.sp, the operand (`OPERANDS`), its columns, and a descriptor, an address, or what `read_metadata` returns."""
OPERANDS = ("D", "A", "B", "SFA", "SFB", "the metadata of A")
D_OPERAND, A_OPERAND, B_OPERAND, SFA_OPERAND, SFB_OPERAND, METADATA_OPERAND = range(len(OPERANDS))

tcgen05: Library = Library("tcgen05", prefix="kiln_cpu_")
"""Native code that kernels with tcgen05 operations call."""

NO_TYPE = 15


def _type_numbers(kind: str) -> int:
    """Return the types of A and B by their codes in instruction descriptors, 4 bits for each."""
    names = {code: INPUTS.index(name) for name, code in fields.ELEMENT_CODES[kind].items()}
    return sum(names.get(code, NO_TYPE) << 4 * code for code in range(8))


class Rule(NamedTuple):
    """A row of `mma_shapes.TCGEN05_ROWS` for fields of a descriptor: each number that one may have is a bit."""

    selector: int
    """What `selector_of` returns for its instructions."""
    types: int
    accumulators: int
    m: int
    n: int
    mn_step: int


def _rule(row: mma_shapes.MmaRow) -> Rule:
    assert row.kind is not None
    codes = fields.ELEMENT_CODES[row.kind]
    scale = fields.SCALE_CODES[row.scale_type] if row.scale_type else 0
    k96 = row.shapes[0][2] == 96
    return Rule(
        _selector(
            KINDS.index(row.kind),
            row.instruction == "tcgen05.ws",
            row.cta_group,
            row.scale_vector or 0,
            scale,
            k96,
            row.sparse,
        ),
        sum(1 << codes[name] for name in row.inputs),
        0xF if row.scale_type else sum(1 << fields.ACCUMULATOR_CODES[name] for name in row.accumulators),
        sum(1 << m // 16 for m in {m for m, _, _ in row.shapes}),
        sum(1 << n // 8 for n in {n for _, n, _ in row.shapes}),
        row.mn_step,
    )


def _selector(kind, ws, cta_group, vector, scale, k96, sparse):
    """Return what selects rows, as one number; also of numbers of the program."""
    return kind | ws << 3 | (cta_group - 1) << 4 | vector << 1 | scale << 7 | k96 << 8 | sparse << 9


RULES = tuple(map(_rule, mma_shapes.TCGEN05_ROWS))
SCALE_IDS = sum(1 << number << 4 * count for count in range(1, 7) for number in fields.scale_ids(count))
"""The scale factor ids that instructions with 1 to 6 scale factors have, 4 bits for each count."""
BLOCK = 64
"""Most rows of D in a block of lanes."""
SPARSE_K = 2 * K
"""Most elements of B along K."""
SPARSE_INDICES = sum(1 << index for index in tcgen05_definitions.SPARSE_INDICES)
"""The metadata that a chunk of a sparse A may have, as bits; those of tf32 are 4 and 14."""
FP4_K = 96
FP4_SCALES = TERMS
A_COLUMNS = 8
"""Columns of an A in tensor memory, of all kinds with an .ashift, and of a `tcgen05.shift`: 32 bytes."""


# --- descriptors -----------------------------------------------------------------------------------------------------


@inline
def by_kind(mma, values):
    """Return the value for the kind of an MMA."""
    chosen = u32(values[0])
    for kind in tuple(range(1, len(KINDS))):
        chosen = u32(values[kind]) if mma.kind == kind else chosen
    return chosen


@inline
def rows_of(mma):
    """Return M of an instruction, of both CTAs of a pair."""
    return fields.M.of(mma.idesc)


@inline
def columns_of(mma):
    return fields.N.of(mma.idesc)


@inline
def type_of(mma, field):
    """Return the number of the element type that a field of the instruction descriptor names."""
    return (by_kind(mma, tuple(map(_type_numbers, KINDS))) >> (field.of(mma.idesc) * 4)) & 15


@inline
def stored_of(mma):
    """Return how many elements a row of A has: K of the instruction, or half of it."""
    k96 = (mma.kind >= OF_MXF8) & (fields.K96.of(mma.idesc) != 0)
    return u32(96) if k96 else by_kind(mma, tuple(fields.DEPTHS[kind] for kind in KINDS))


@inline
def depth_of(mma):
    """Return K of an instruction."""
    return stored_of(mma) << u32(mma.flags & SPARSE_A != 0)


@inline
def parts_of(mma):
    """Return how many parts of N lie below each other in the lanes: layouts B and E have 2, G has 4."""
    own = rows_of(mma) // mma.cta_group
    divided = (mma.flags & WS != 0) | ((mma.cta_group == 2) & (mma.flags & SPARSE_A == 0))
    return u32(128) // own if divided else u32(1)


@inline
def half_lanes_of(mma):
    """Return 16 if D takes 16 of each 32 lanes, from 0 or 16 on (layouts C and F), else 0."""
    return u32(16) if (rows_of(mma) // mma.cta_group == 64) & (parts_of(mma) == 1) else u32(0)


@inline
def scales_of(mma):
    """Return how many scale factors a row of A or column of B has; 0 for kinds without."""
    return depth_of(mma) // mma.vector if mma.vector != 0 else u32(0)


@native
def exists(mma: Ptr[Mma]) -> bool:
    """Return whether there is an instruction with this descriptor, as `tcgen05_descriptors.wrong_instruction` does."""
    idesc = mma.idesc
    scaled = mma.kind >= OF_MXF8
    scale = fields.SCALE_TYPE.of(idesc) if scaled else u32(0)
    k96 = fields.K96.of(idesc) if scaled else u32(0)
    sparse = u32(mma.flags & SPARSE_A != 0)
    selector = _selector(mma.kind, u32(mma.flags & WS != 0), mma.cta_group, mma.vector, scale, k96, sparse)
    n = columns_of(mma)
    a_mn = fields.A_MAJOR.of(idesc) != 0
    b_mn = fields.B_MAJOR.of(idesc) != 0
    fits = u32(0)
    for rule in RULES:
        if selector == rule.selector:
            types = u32(rule.types) >> fields.A_TYPE.of(idesc) & u32(rule.types) >> fields.B_TYPE.of(idesc)
            accumulator = u32(rule.accumulators) >> fields.ACCUMULATOR.of(idesc)
            shape = u32(rule.m) >> rows_of(mma) // 16 & u32(u64(rule.n) >> u64(n // 8))
            majors = (n % rule.mn_step == 0) | (not b_mn) if rule.mn_step else not (a_mn | b_mn)
            fits |= types & accumulator & shape & u32(majors) & 1
    reserved = by_kind(mma, tuple(map(fields.reserved_bits, KINDS)))
    if mma.flags & WS != 0:
        reserved = by_kind(mma, tuple(fields.reserved_bits(kind, ws=True) for kind in KINDS))
    fits &= u32(fields.SPARSE.of(idesc) == sparse)
    if sparse != 0:
        reserved = by_kind(mma, tuple(fields.reserved_bits(kind, sparse=True) for kind in KINDS))
        fits &= u32(fields.SPARSE_ID.of(idesc) < by_kind(mma, tuple(len(fields.sparse_ids(kind)) for kind in KINDS)))
    if scaled:
        ids = u32(SCALE_IDS) >> scales_of(mma) * 4
        fits &= ids >> fields.SFA_ID.of(idesc) & ids >> fields.SFB_ID.of(idesc)
    return (fits != 0) & (idesc & reserved == 0)


@inline
def about(mma, code, operand, value):
    """Return a code with the numbers for its message."""
    facts = (mma.kind << KIND_AT) | ((mma.cta_group - 1) << PAIR_AT) | (u32(mma.flags & WS != 0) << WS_AT)
    facts |= ((mma.vector >> 4) << BLOCK_AT) | (u32(operand) << OPERAND_AT)
    facts |= u32(mma.flags & SPARSE_A != 0) << SPARSE_AT
    return i64(u64(facts | code) | (u64(u32(value)) << VALUE_AT))


@native
def wrong_descriptor(descriptor: u64) -> bool:
    """Return whether the fixed bits of a matrix descriptor, its base offset or its swizzle are not those of sm_100."""
    swizzle = u32(descriptor >> 61)
    odd = (swizzle == 3) | (swizzle == 5) | (swizzle == 7)
    absolute = descriptor >> 52 & 1 != 0
    return odd | (descriptor >> 46 & 7 != 1) | (descriptor >> 49 & 7 != 0) | (absolute & (swizzle != 2))


@native
def crosses(mma: Ptr[Mma], descriptor: u64, along_mn: bool, bytes_: u32) -> bool:
    """Return whether a row of a swizzled K-major operand leaves its line of 32, 64 or 128 bytes, as a wrong start does.

    Rows have so many bytes. With K = 96 they go on in the next line, where the descriptor says.
    """
    swizzle = u32(descriptor >> 61)
    line = u32(128) if swizzle <= 2 else u32(64) if swizzle == 4 else u32(32)
    start = field(descriptor, 0)
    return (not along_mn) & (swizzle != 0) & (depth_of(mma) != 96) & (start % line + bytes_ > line)


@native
def wrong_place(block: Ptr[BlockRecord], mma: Ptr[Mma], operand: u32, place: u32, columns: u32, lanes: u32) -> i64:
    """Return 0, or the code of an address in tensor memory: its lane is not in `lanes`, or columns were not allocated
    in all CTAs."""
    lane = place >> 16 & 0x3FFF
    column = place & 0xFFFF
    if lane & ~lanes != 0:
        return about(mma, LANE, operand, place)
    allocated = column + columns <= TMEM_COLUMNS
    first = column // TMEM_SLOT
    last = (column + columns - 1) // TMEM_SLOT
    slots = ((u32(1) << (last - first + 1)) - 1) << first
    for cta in range(mma.cta_group):
        there = cta_of(block, mma, cta)
        allocated &= (there.tmem_used | there.tmem_freed) & slots == slots
        if there.tmem_used & slots != slots:
            mma.flags |= IN_FREED
    return i64(0) if allocated else about(mma, COLUMN, operand, place) | i64(columns) << COUNT_AT


@native
def refused(block: Ptr[BlockRecord], mma: Ptr[Mma]) -> i64:
    """Return 0, or a code for why an MMA that a thread of `block` issues cannot be carried out."""
    idesc = mma.idesc
    scaled = mma.kind >= OF_MXF8
    in_all_lanes = (mma.flags & A_IN_TENSOR_MEMORY != 0) & (rows_of(mma) == 128 * mma.cta_group)
    if mma.flags & SHIFTS_A != 0 and not in_all_lanes:
        return about(mma, SHIFTED, 0, idesc)
    if not exists(mma):
        return about(mma, INSTRUCTION, 0, idesc)
    if mma.cta_group == 2 and block.cluster_x * block.cluster_y * block.cluster_z % 2 != 0:
        return about(mma, NO_PAIR, 0, idesc)
    if wrong_descriptor(mma.b):
        return about(mma, OPERAND, B_OPERAND, mma.b >> 32)
    if crosses(mma, mma.b, fields.B_MAJOR.of(idesc) != 0, u32(32) << u32(mma.flags & SPARSE_A != 0)):
        return about(mma, CROSSES, B_OPERAND, mma.b >> 32)
    half = half_lanes_of(mma)
    why = wrong_place(block, mma, u32(D_OPERAND), mma.d, columns_of(mma) // parts_of(mma), half)
    if why == 0:
        if mma.flags & A_IN_TENSOR_MEMORY == 0:
            if wrong_descriptor(mma.a):
                why = about(mma, OPERAND, A_OPERAND, mma.a >> 32)
            elif crosses(mma, mma.a, fields.A_MAJOR.of(idesc) != 0, u32(32)):
                why = about(mma, CROSSES, A_OPERAND, mma.a >> 32)
        else:
            why = wrong_place(
                block, mma, u32(A_OPERAND), u32(mma.a), u32(12) if depth_of(mma) == 96 else u32(A_COLUMNS), half
            )
    if why == 0 and mma.flags & SPARSE_A != 0:
        # D, A and metadata that take half of the lanes take the same ones
        columns = u32(METADATA_COLUMNS)
        why = wrong_place(block, mma, u32(METADATA_OPERAND), mma.metadata, columns, mma.d >> 16 & half)
        if why == 0 and (mma.metadata & 1 != 0 or (mma.metadata ^ mma.d) >> 16 & half != 0):
            why = about(mma, LANE, METADATA_OPERAND, mma.metadata)
        if why == 0 and mma.flags & A_IN_TENSOR_MEMORY != 0 and (u32(mma.a) ^ mma.d) >> 16 & half != 0:
            why = about(mma, LANE, A_OPERAND, mma.a)
    if why == 0 and scaled:
        count = scales_of(mma)
        n = columns_of(mma)
        further = u32(4) if fields.SFA_ID.of(idesc) + count > 4 else u32(0)
        why = wrong_place(block, mma, u32(SFA_OPERAND), mma.sfa, further + rows_of(mma) // mma.cta_group // 32, u32(0))
        if why == 0:
            further = (n + 127) // 128 * 4 if fields.SFB_ID.of(idesc) + count > 4 else u32(0)
            why = wrong_place(block, mma, u32(SFB_OPERAND), mma.sfb, further + (n // parts_of(mma) + 31) // 32, u32(0))
    return why


# --- operands --------------------------------------------------------------------------------------------------------


@native
def piece(descriptor: u64, along_mn: bool, major: u32, minor: u32) -> u32:
    """Return where 16 bytes of an operand lie, from the start of shared memory, by a descriptor of sm_100.

    They are number `major` along the contiguous mode, in row `minor` of the other one.
    """
    start = field(descriptor, 0)
    leading = field(descriptor, 16)
    stride = field(descriptor, 32)
    swizzle = u32(descriptor >> 61)
    wide = u32(1) if swizzle == 0 else u32(8) if swizzle <= 2 else u32(4) if swizzle == 4 else u32(2)
    where = start
    if along_mn:
        deep = u32(2) if swizzle == 1 else u32(3)
        within = minor & ((u32(1) << deep) - 1)
        above = minor >> deep
        if wide == 1:
            where = start + major * stride + within * 16 + above * leading
        else:
            where = start + major % wide * 16 + major // wide * leading + within * wide * 16 + above * stride
    else:
        column = major * (leading if wide == 1 else u32(16))
        if descriptor >> 52 & 1 != 0 and (start & 127) + column >= 128:  # the row goes on in another buffer
            column = (start & 127) + column - 128
            start = leading
        where = start + column + (minor & 7) * wide * 16 + (minor >> 3) * stride
    if swizzle == 1:
        return where ^ (((where >> 7) & 3) << 5)
    return where ^ (((where >> 7) & (wide - 1)) << 4)


@inline
def take_packed(place, bits: int, count: int, at, step, raw):
    """Read elements of so many bits that lie in 16 bytes without gaps."""
    for i in tuple(range(count)):
        first = i * bits // 8
        shift = i * bits % 8
        low = u32(Ptr[u8](place)[first])
        if shift + bits > 8:
            low |= u32(Ptr[u8](place)[first + 1]) << 8
        raw[at + i * step] = (low >> shift) & ((1 << bits) - 1)


@inline
def form_of(type_):
    """Return how elements of a kind of 8 bits or more lie in 16 bytes of shared memory; of 4 and 6 bits there are 16,
    and padding."""

    def take_here(place, at, step, raw):
        if type_ == E2M1:
            take_packed(place, 4, 16, at, step, raw)
        elif (type_ > E2M1 - 3) & (type_ < E2M1):
            take_packed(place, 6, 16, at, step, raw)
        else:
            take(place, bytes_of(type_), at, step, raw)

    return Form(u32(16) // bytes_of(type_), take_here)


@inline
def tensor_form_of(type_):
    """Return how these elements lie in 16 bytes of tensor memory: e2m1 is in bits 2 to 5 of a byte, others of 6 bits
    in 0 to 5."""

    def take_here(place, at, step, raw):
        take(place, bytes_of(type_), at, step, raw)
        if type_ >= E3M2:
            for i in tuple(range(16)):
                raw[at + i] = raw[at + i] >> 2 & 15 if type_ == E2M1 else raw[at + i] & 63

    return Form(u32(16) // bytes_of(type_), take_here)


@inline
def take_fp4(place, at, step, raw):
    take_packed(place, 4, 32, at, step, raw)


@inline
def take_bytes(place, at, step, raw):
    take(place, u32(1), at, step, raw)


@inline
def lane_at(d, row):
    """Return the lane of a row of a block of lanes; `d` is what `exchange` gets."""
    _, lane, gap, _, _ = d
    return lane + row + (row >> 4) * gap


@inline
def exchange(d, row, size, n, line, out: bool):
    """Load a row of C from tensor memory, or store one of D. Elements of 16 bits are the lower halves of cells."""
    tmem, _, _, masks, column = d
    lane = lane_at(d, row)
    cells = tmem + (lane * TMEM_COLUMNS + column)
    if out:
        if (masks[lane >> 5] >> (lane & 31)) & 1 == 0:
            if size == 4:
                for i in range(n):
                    cells[i] = line[i]
            else:
                for i in range(n):
                    cells[i] = (cells[i] & 0xFFFF0000) | line[i]
    elif size == 4:
        for i in range(n):
            line[i] = cells[i]
    else:
        for i in range(n):
            line[i] = cells[i] & 0xFFFF


@inline
def read_shared(mma, block, of_b: bool, cta, first, rows, k, form, raw, row_step, k_step):
    """Read rows of A or B of a CTA from its shared memory; return whether some lie outside. `block` issued the MMA."""
    of = cta_of(block, mma, cta)
    descriptor = mma.b if of_b else mma.a
    along_mn = (fields.B_MAJOR if of_b else fields.A_MAJOR).of(mma.idesc) != 0
    size = u32(address(of) - address(of.smem))
    return read(of.smem, size, piece, descriptor, form, along_mn, first, rows, k, raw, row_step, k_step)


@inline
def read_a(mma, block, cta, d, first, rows, k, form, tensor_form, raw):
    """Read rows of A, from row `first` of a CTA on, or from the lanes of `d`; return whether some lie outside."""
    if mma.flags & A_IN_TENSOR_MEMORY == 0:
        return read_shared(mma, block, False, cta, first, rows, k, form, raw, k, 1)
    start = d[0] + (u32(mma.a) >> 16 & 0x3FFF) * TMEM_COLUMNS + (u32(mma.a) & 0xFFFF)
    for row in range(rows):
        _, lane, gap, _, _ = d
        held = start + (row + (row >> 4) * gap + (lane & ~u32(16))) * TMEM_COLUMNS
        for part in range(k // tensor_form.per):
            tensor_form.take(Ptr(held) + part * 16, row * k + part * tensor_form.per, 1, raw)
    return u32(0)


@inline
def read_b(mma, block, k, form, raw):
    """Read B of all CTAs, a row of `COLUMNS` for each k; return whether some of it lies outside."""
    outside = u32(0)
    own = columns_of(mma) // mma.cta_group
    for cta in range(mma.cta_group):
        outside |= read_shared(mma, block, True, cta, u32(0), own, k, form, raw + cta * own, 1, COLUMNS)
    return outside


@inline
def clear_columns(mma, k, raw):
    """Clear the columns of B that a zero-column mask names (`tcgen05_descriptors.zero_columns`)."""
    mask = mma.zero_columns
    if mask >> 39 & 1 != 0:
        n = columns_of(mma)
        own = columns_of(mma) // parts_of(mma)
        skip = u32(mask >> 40 & 255) + 1
        use = u32(mask >> 48 & 255) + 1
        for column in range(n):
            part = column // own
            at = (column % own + u32(mask >> u64(part * 8) & 255)) % (skip + use)
            zeros_first = mask >> u64(part + 32) & 1 != 0
            if (at < skip) if zeros_first else (at >= use):
                for row in range(k):
                    raw[row * COLUMNS + column] = 0


@inline
def cta_of(block, mma, cta):
    """Return the record of a CTA of an MMA."""
    return block_of_rank(block, (block.rank & ~u32(1)) + cta if mma.cta_group == 2 else block.rank)


@inline
def for_each_block(mma, block, work):
    """Call `work(of, cta, d, n, first_row, first_column, rows)` for each block of lanes that D has."""
    own = rows_of(mma) // mma.cta_group
    parts = parts_of(mma)
    rows = min(own, u32(BLOCK))
    gap = half_lanes_of(mma)
    count = u32(1) if gap != 0 else u32(128) // rows
    n = columns_of(mma) // parts
    for cta in range(mma.cta_group):
        of = cta_of(block, mma, cta)
        for number in range(count):
            lane = number * rows + (mma.d >> 16 & 16)
            d = (of.tmem, lane, gap, mma.masks + cta * 4, mma.d & 0xFFFF)
            work(of, cta, d, n, u32(0) if parts > 1 else number * rows, number * n if parts > 1 else u32(0), rows)


@native
def shift_lanes(block: Ptr[BlockRecord], lane: u32, column: u32) -> None:
    """Copy 8 columns of each of 32 lanes to the lane before it; the last lane keeps its own.

    PTX says "down by one row, except the last" of .ashift and `tcgen05.shift` alike. A public program states that a B200
    gives lane i the contents of lane i + 1.
    """
    cells = block.tmem + (lane * TMEM_COLUMNS + column)
    for row in range(u32(31)):
        for each in range(u32(A_COLUMNS)):
            cells[row * TMEM_COLUMNS + each] = cells[(row + 1) * TMEM_COLUMNS + each]


@native
def shift_a(mma: Ptr[Mma], block: Ptr[BlockRecord]) -> None:
    """Shift the rows of A in the lanes of all four warps, after an MMA with .ashift."""
    for cta in range(mma.cta_group):
        for warp in range(u32(TMEM_LANES // 32)):
            shift_lanes(cta_of(block, mma, cta), warp * 32, u32(mma.a) & 0xFFFF)


# --- scale factors ---------------------------------------------------------------------------------------------------


@inline
def scale_byte(mma, of, place, lane_group, row, number, rows):
    """Return a scale factor of a row of A (column of B), of the copy in a warp's lanes."""
    lane = (place >> 16 & 0x3FFF) + lane_group * 32 + (row & 31)
    column = (place & 0xFFFF) + (row >> 5)
    word = of.tmem[lane * TMEM_COLUMNS + column + (number >> 2) * ((rows + 127) // 128 * 4)]
    return (word >> ((number & 3) * 8)) & 255


# --- a sparse A ------------------------------------------------------------------------------------------------------


@native
def read_metadata(mma: Ptr[Mma], tmem: Ptr[u32], lane: u32, first_row: u32, rows: u32, places: Ptr[u32]) -> u32:
    """Store which element along K each element of rows of a sparse A is; return 0, or what is wrong with an index.

    The rows lie from a lane on, in 16 of each 32 lanes if D does (`tensor_memory.metadata_part`).
    """
    stored = stored_of(mma)
    in_pairs = mma.kind <= OF_TF32
    column = (mma.metadata & 0xFFFF) + (fields.SPARSE_ID.of(mma.idesc) if in_pairs else u32(0))
    wrong = u32(0)
    for row in range(rows):
        for chunk in range(u32(8) if in_pairs else u32(16)):
            at = (row & ~u32(8)) + (chunk >> 2) * 8 if in_pairs else row
            shift = (row >> 3 & 1) * 16 + (chunk & 3) * 4 if in_pairs else (chunk & 7) * 4
            cell = (lane + at + (at >> 4) * half_lanes_of(mma)) * TMEM_COLUMNS + column
            index = tmem[cell if in_pairs else cell + (chunk >> 3)] >> shift & 15
            meaningful = u32(SPARSE_INDICES)
            if mma.kind == OF_TF32:
                places[row * stored + chunk] = chunk * 2 + (index >> 3)
                meaningful = u32(1 << 4 | 1 << 14)
            else:
                places[row * stored + chunk * 2] = chunk * 4 + (index & 3)
                places[row * stored + chunk * 2 + 1] = chunk * 4 + (index >> 2)
            if meaningful >> index & 1 == 0:
                wrong = index | chunk << 4 | (first_row + row) << 8 | u32(1 << 31)
    return wrong


# --- floats ----------------------------------------------------------------------------------------------------------


@native
def multiply_floats(mma: Ptr[Mma], block: Ptr[BlockRecord]) -> u32:
    """Carry out an MMA of the kinds f16, tf32, f8f6f4 or mxf8f6f4; return 1 if an operand is not in shared memory."""
    return float_mma(mma, block, False)


@native
def multiply_sparse_floats(mma: Ptr[Mma], block: Ptr[BlockRecord]) -> u32:
    """Carry out an MMA with a sparse A of the kinds f16, tf32 or f8f6f4; return also what `read_metadata` does."""
    return float_mma(mma, block, True)


@inline
def float_mma(mma, block, sparse: bool):
    a_type = type_of(mma, fields.A_TYPE)
    b_type = type_of(mma, fields.B_TYPE)
    stored = stored_of(mma)
    k = stored * 2 if sparse else stored
    n = columns_of(mma)
    a = planes(BLOCK * K)
    b = planes(COLUMNS * (SPARSE_K if sparse else K))
    places = local(u32, BLOCK * K if sparse else 1)
    sfa = local(i32, BLOCK)
    sfb = local(i32, 4 * COLUMNS)
    outside = local(u32, 1)
    outside[0] = read_b(mma, block, k, form_of(b_type), b.raw)
    clear_columns(mma, k, b.raw)
    raised = u32(25) - fraction_of(a_type) - fraction_of(b_type)
    a_split = Split(a_type, u32(0), fields.NEGATE_A.of(mma.idesc))
    b_split = Split(b_type, raised, fields.NEGATE_B.of(mma.idesc))
    b_special, b_far = split_operand(b, b_split, k, n, COLUMNS)
    if b_far == 0:
        convert_operand(b, b_split, k, n, COLUMNS)
    wide = (fields.ACCUMULATOR.of(mma.idesc) == 1) | (mma.kind == OF_MXF8)
    exact = fields.SCALE_TYPE.of(mma.idesc) == 0

    def of_block(of, cta, d, columns, first_row, first_column, rows):
        beyond = read_a(mma, block, cta, d, first_row, rows, stored, form_of(a_type), tensor_form_of(a_type), a.raw)
        if sparse:
            beyond = max(beyond, read_metadata(mma, of.tmem, d[1], first_row, rows, places))
        outside[0] = max(outside[0], beyond)
        if beyond == 0:
            a_special, a_far = split_operand(a, a_split, u32(1), rows * stored, 0)
            near = a_far | b_far == 0
            if near:
                convert_operand(a, a_split, u32(1), rows * stored, 0)
            accumulation = Accumulation(i32(25), wide, a_special | b_special, near)
            common = (exchange, d, mma.flags & ACCUMULATE, rows, columns, stored, accumulation, a, b.at(first_column))
            if sparse:
                multiply_rows(*common, down=i32(mma.scale_input_d), places=places)
            elif mma.kind == OF_MXF8:
                load_scales(of, d, columns, first_row, rows)
                multiply_rows(*common, scale_factors=(sfa, scales_of_columns))
            else:
                multiply_rows(*common, down=i32(mma.scale_input_d))

    def load_scales(of, d, columns, first_row, rows):
        for row in range(rows):
            number = fields.SFA_ID.of(mma.idesc)
            byte = scale_byte(mma, of, mma.sfa, lane_at(d, row) >> 5, first_row + row, number, u32(128))
            sfa[row] = scale_exponent(byte, exact)
        for group in range(u32(4)):
            for column in range(columns):
                byte = scale_byte(mma, of, mma.sfb, group, column, fields.SFB_ID.of(mma.idesc), n)
                sfb[group * COLUMNS + column] = scale_exponent(byte, exact)

    def scales_of_columns(d, row):
        return sfb + (lane_at(d, row) >> 5) * COLUMNS

    if outside[0] == 0:
        for_each_block(mma, block, of_block)
    return outside[0]


@native
def multiply_fp4(mma: Ptr[Mma], block: Ptr[BlockRecord]) -> u32:
    """Carry out an MMA of the kinds mxf4 or mxf4nvf4; return 1 if an operand is not in shared memory."""
    k = depth_of(mma)
    n = columns_of(mma)
    scales = scales_of(mma)
    share = mma.vector // 16  # terms that have the same scale factor
    raw = local(u32, COLUMNS * FP4_K)
    b = local(i16, COLUMNS * FP4_K)
    a = local(i16, BLOCK * FP4_K)
    exponents = local(i32, 4 * FP4_SCALES * COLUMNS)
    significands = local(i32, 4 * FP4_SCALES * COLUMNS)
    outside = local(u32, 1)
    exact = fields.SCALE_TYPE.of(mma.idesc) == 0
    form = Form(u32(32), take_fp4)
    outside[0] = read_b(mma, block, k, form, raw)
    for row in range(k):
        for column in range(n):
            b[row * COLUMNS + column] = twice(raw[row * COLUMNS + column], fields.NEGATE_B.of(mma.idesc))

    def of_block(of, cta, d, columns, first_row, first_column, rows):
        outside[0] |= read_a(mma, block, cta, d, first_row, rows, k, form, form, raw)
        for i in range(rows * k):
            a[i] = twice(raw[i], fields.NEGATE_A.of(mma.idesc))
        for group in range(u32(4)):
            for number in range(scales):
                for column in range(columns):
                    byte = scale_byte(mma, of, mma.sfb, group, column, fields.SFB_ID.of(mma.idesc) + number, n)
                    at = (group * FP4_SCALES + number) * COLUMNS + column
                    exponents[at] = scale_exponent(byte, exact)
                    significands[at] = scale_significand(byte, exact)

        def of_row(row, number):
            number += fields.SFA_ID.of(mma.idesc)
            byte = scale_byte(mma, of, mma.sfa, lane_at(d, row) >> 5, first_row + row, number, u32(128))
            return scale_exponent(byte, exact), scale_significand(byte, exact)

        def of_columns(row):
            at = (lane_at(d, row) >> 5) * FP4_SCALES * COLUMNS
            return exponents + at, significands + at

        adds = mma.flags & ACCUMULATE
        right = b + first_column
        multiply_fp4_rows(exchange, d, adds, rows, columns, k, share, a, right, of_row, of_columns, COLUMNS)

    if outside[0] == 0:
        for_each_block(mma, block, of_block)
    return outside[0]


# --- integers --------------------------------------------------------------------------------------------------------


@native
def multiply_integers(mma: Ptr[Mma], block: Ptr[BlockRecord]) -> u32:
    """Carry out an MMA of kind i8; return 1 if an operand is not in shared memory."""
    return integer_mma(mma, block, False)


@native
def multiply_sparse_integers(mma: Ptr[Mma], block: Ptr[BlockRecord]) -> u32:
    """Carry out an MMA with a sparse A of kind i8; return also what `read_metadata` does."""
    return integer_mma(mma, block, True)


@inline
def integer_mma(mma, block, sparse: bool):
    stored = u32(K)
    k = u32(SPARSE_K if sparse else K)
    n = columns_of(mma)
    a = local(u32, BLOCK * K)
    b = local(u32, COLUMNS * (SPARSE_K if sparse else K))
    places = local(u32, BLOCK * K if sparse else 1)
    outside = local(u32, 1)
    form = Form(u32(16), take_bytes)
    outside[0] = read_b(mma, block, k, form, b)
    clear_columns(mma, k, b)
    for row in range(k):
        integers(b, row * COLUMNS, n, type_of(mma, fields.B_TYPE))

    def add(old, sum_):
        old = i64(old)
        sign = old >> 63
        scaled = ((old ^ sign) - sign) >> i64(mma.scale_input_d & 31)
        whole = (scaled ^ sign) - sign + sum_
        if fields.SATURATE.of(mma.idesc) != 0:
            whole = max(min(whole, i64((1 << 31) - 1)), i64(-(1 << 31)))
        return u32(whole)

    def of_block(of, cta, d, columns, first_row, first_column, rows):
        outside[0] |= read_a(mma, block, cta, d, first_row, rows, stored, form, form, a)
        integers(a, u32(0), rows * stored, type_of(mma, fields.A_TYPE))
        common = (exchange, d, mma.flags & ACCUMULATE, rows, columns, stored, a, b + first_column, add)
        if sparse:
            wrong = read_metadata(mma, of.tmem, d[1], first_row, rows, places)
            outside[0] = max(outside[0], wrong)
            if wrong == 0:
                multiply_integer_rows(*common, places=places)
        else:
            multiply_integer_rows(*common)

    if outside[0] == 0:
        for_each_block(mma, block, of_block)
    return outside[0]


# --- the operation ---------------------------------------------------------------------------------------------------


@native
def multiply(operation: Ptr[Operation]) -> None:
    """Carry out the MMA `operation.extra`, which a thread of `operation.block` issued."""
    mma = Ptr[Mma](operation.extra)
    block = operation.block
    outside = u32(0)
    sparse = mma.flags & SPARSE_A != 0
    if mma.kind == OF_I8 and sparse:
        outside = multiply_sparse_integers(mma, block)
    elif mma.kind == OF_I8:
        outside = multiply_integers(mma, block)
    elif mma.kind >= OF_MXF4:
        outside = multiply_fp4(mma, block)
    elif sparse:
        outside = multiply_sparse_floats(mma, block)
    else:
        outside = multiply_floats(mma, block)
    if mma.flags & SHIFTS_A != 0:
        shift_a(mma, block)
    if outside != 0:
        index = block.index
        size = block.block_dim
        thread = operation.thread
        why = local(i64, 1)
        why[0] = about(mma, OUTSIDE, 0, mma.idesc)
        if outside >> 31 != 0:
            why[0] = about(mma, INDEX, 0, outside & 0x7FFFFFFF)
        x = thread % size[0]
        rest = thread // size[0]
        site = mma.site
        fault(block.context, site, index[0], index[1], index[2], x, rest % size[1], rest // size[1], 1, why)
