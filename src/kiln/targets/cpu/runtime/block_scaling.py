"""Block scales: scale factors, the accumulation of 4-bit floats that have some, and the MMAs of a warp with block scales.

The accumulators are those of `dialects/nvgpu/block_scaling.py`, bit for bit; wider elements are added by `tensor_core.py`.
For `mma.sync`, lanes leave A, B, C and their scale factors in slots, as the instruction distributes them.
"""
# pyright: reportReturnType=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from ....native import Library, Ptr, f64, i16, i32, i64, inline, local, u32, u64
from .records import PAYLOAD
from .tensor_core import (
    E2M1,
    E4M3,
    INPUTS,
    NONE,
    SPECIAL,
    Accumulation,
    Split,
    convert_operand,
    fraction_of,
    load_c,
    multiply_rows,
    planes,
    round_to_f32,
    split_operand,
)

warp_mmas: Library = Library("warp_mma", prefix="kiln_cpu_")

TYPES = INPUTS[E4M3 : E2M1 + 1]
"""Types of the elements of A and B; their places are bits of `kind`."""
A_AT = 0
SCALE_A_AT = 16
SCALE_B_AT = 20
B_AT = 64
C_AT = 96
"""Where operands lie in a lane's slot."""
B_SHIFT = 3
BYTE_A_SHIFT = 8
THREAD_A_SHIFT = 10
BYTE_B_SHIFT = 12
THREAD_B_SHIFT = 14
FP4 = 1 << 16
UE4M3 = 1 << 17
BY_16 = 1 << 18
"""Bits of `kind`: kinds of 4-bit floats with K = 64, scale factors in ue4m3, one for 16 elements (else for 32)."""
ROWS = 16
COLUMNS = 8
K = 64
SCALES = 4
"""Rows of A, columns of B, most elements along K and most scale factors of a row."""


def kind_of(
    kind: str, a: str, b: str, scale: str, vector: int, byte_a: int, thread_a: int, byte_b: int, thread_b: int
) -> int:
    """Return the number that `mma_block_scale` takes."""
    flags = FP4 * (kind != "mxf8f6f4") | UE4M3 * (scale == "ue4m3") | BY_16 * (vector == 16)
    chosen = byte_a << BYTE_A_SHIFT | thread_a << THREAD_A_SHIFT | byte_b << BYTE_B_SHIFT | thread_b << THREAD_B_SHIFT
    return TYPES.index(a) | TYPES.index(b) << B_SHIFT | chosen | flags


# --- scale factors and 4-bit floats ------------------------------------------------------------------------------------

TERMS = 6
"""Most terms of a sum of 4-bit floats: one for 16 elements along K."""


@inline
def scale_exponent(byte, exact):
    """Return the exponent of a scale factor: of ue4m3 (`exact`), or of ue8m0; SPECIAL for NaN, NONE for zero."""
    number = byte & 127
    field_ = number >> 3
    narrow = i32(max(field_, u32(1))) - 7
    narrow = i32(SPECIAL) if number == 127 else i32(NONE) if number == 0 else narrow
    wide = i32(SPECIAL) if byte == 255 else i32(byte) - 127
    return narrow if exact else wide


@inline
def scale_significand(byte, exact):
    """Return the significand of a scale factor, with three bits behind the point."""
    return i32((byte & 7) | (u32(byte & 0x78 != 0) << 3)) if exact else i32(8)


@inline
def twice(bits, negate):
    """Return an e2m1 times 2: 0, 1, 2, 3, 4, 6, 8 or 12, or minus that."""
    size = (u64(0xC8643210) >> u64((bits & 7) * 4)) & 15
    return i16(-i32(size) if (bits >> 3 & 1) ^ negate != 0 else i32(size))


@inline
def shifted(size, lower, sign):
    """Return a size shifted right, negative where `sign` is -1."""
    lowered = size >> i64(min(max(lower, i32(0)), i32(63)))
    return (lowered ^ i64(sign)) - i64(sign)


@inline
def multiply_fp4_rows(exchange, d, accumulate, rows, n, k, share, a, b, of_row, of_columns, stride: int):
    """Compute `rows` rows of D, of `n` columns; elements of A and B are i16, twice their value.

    A term is an exact dot product of 16 elements times two scale factors, with the exponents of these. In units of 2^-35 of
    the largest exponent it has less than 47 bits: 12 of the dot product, 8 of the scale factors. `share` terms have the same
    scale factors: `of_row(row, number)` returns exponent and significand of one of a row, `of_columns(row)` arrays of
    those of columns. These and B have rows of `stride`.
    """
    c = planes(stride)
    line = c.raw
    largest = local(i32, stride)
    total = local(i64, stride)
    scale = local(u64, stride)
    value = local(f64, stride)
    nan = local(u32, stride)
    term = local(i32, TERMS * stride)
    at_term = local(i32, TERMS * stride)
    for row in range(rows):
        special = load_c(exchange, d, accumulate, row, True, n, c)
        for column in range(n):
            largest[column] = c.exponent[column]
            nan[column] = 0
        exponents, significands = of_columns(row)
        for number in range(k // 16):
            own = row * k + number * 16
            at = number // share * stride
            x, x_size = of_row(row, number // share)
            first = b + number * 16 * stride
            for column in range(n):
                dot = i16(0)
                for i in tuple(range(16)):
                    dot = i16(dot + a[own + i] * first[i * stride + column])
                y = exponents[at + column]
                size = i32(dot) * (x_size * significands[at + column])
                term[number * stride + column] = size
                at_term[number * stride + column] = x + y
                largest[column] = max(largest[column], x + y if size != 0 else i32(NONE))
                nan[column] |= u32((x == SPECIAL) | (y == SPECIAL))
        for column in range(n):
            sum_ = shifted(i64(u64(c.significand[column]) << 12), largest[column] - c.exponent[column], c.sign[column])
            for number in range(k // 16):
                size = term[number * stride + column]
                sign = size >> 31
                raised = i64((size ^ sign) - sign) << 27
                sum_ += shifted(raised, largest[column] - at_term[number * stride + column], sign)
            total[column] = sum_
            largest[column] = largest[column] - 35
            special |= nan[column]

        def exact_sum(column, type_):
            return type_(total[column])

        round_to_f32(n, exact_sum, u32(23), largest, scale, value, line)
        if special != 0:
            for column in range(n):
                if nan[column] != 0 or (c.exponent[column] == SPECIAL and c.significand[column] != 0):
                    line[column] = 0x7FFFFFFF
                elif c.exponent[column] == SPECIAL:
                    line[column] = 0x7F800000 | (u32(c.sign[column]) & 0x80000000)
        exchange(d, row, u32(4), n, line, out=True)


# --- MMAs of a warp ----------------------------------------------------------------------------------------------------


@inline
def read(slots, at, registers, halves, per, type_, raw, row_step, k_step):
    """Read the bits of A (`halves` is 2) or B (1). A register has `per` elements."""
    for lane in range(u32(32)):
        for register in registers:
            word = Ptr[u32](slots + lane * PAYLOAD + at)[register]
            row = (lane >> 2) + u32(register % halves * 8)
            first = (lane & 3) * per + u32(register // halves * 4) * per
            for i in range(per):
                code = (word >> (i * (u32(32) // per))) & 255
                if type_ == E2M1:
                    code = (code if per == 8 else code >> 2) & 15
                raw[row * row_step + (first + i) * k_step] = code


@inline
def read_scales(word, first, count, exact, exponents, significands, at, step):
    """Split scale factors, bytes of a word from `first` on."""
    for i in range(count):
        byte = (word >> ((first + i) * 8)) & 255
        exponents[at + i * step] = scale_exponent(byte, exact)
        significands[at + i * step] = scale_significand(byte, exact)


@inline
def exchange(slots, row, size, n, line, out: bool):
    """Load a row of C from the lanes' slots, or store one of D."""
    for column in range(n):
        lane = (row & 7) * 4 + (column >> 1)
        place = Ptr[u32](slots + lane * PAYLOAD + C_AT) + (row >> 3) * 2 + (column & 1)
        if out:
            place[0] = line[column]
        else:
            line[column] = place[0]


@warp_mmas.export
def mma_block_scale(slots: Ptr, kind: u32) -> None:
    """Multiply for all lanes of a warp, and store D in place of C."""
    fp4 = kind & FP4 != 0
    exact = kind & UE4M3 != 0
    a_type = (kind & 7) + E4M3
    b_type = (kind >> B_SHIFT & 7) + E4M3
    per = u32(8) if fp4 else u32(4)
    k = per * 8
    vector = u32(16) if kind & BY_16 != 0 else u32(32)
    a = planes(ROWS * K)
    b = planes(COLUMNS * K)
    read(slots, A_AT, (0, 1, 2, 3), 2, per, a_type, a.raw, k, u32(1))
    read(slots, B_AT, (0, 1), 1, per, b_type, b.raw, u32(1), u32(COLUMNS))
    pa, qa, pb, qb = (local(i32, size * SCALES) for size in (ROWS, ROWS, COLUMNS, COLUMNS))
    for row in range(u32(ROWS)):
        lane = (row & 7) * 4 + ((kind >> THREAD_A_SHIFT) & 1) * 2 + (row >> 3)
        word = Ptr[u32](slots + lane * PAYLOAD + SCALE_A_AT)[0]
        read_scales(word, (kind >> BYTE_A_SHIFT) & 3, k // vector, exact, pa, qa, row, u32(ROWS))
    for column in range(u32(COLUMNS)):
        lane = column * 4 + ((kind >> THREAD_B_SHIFT) & 3)
        word = Ptr[u32](slots + lane * PAYLOAD + SCALE_B_AT)[0]
        read_scales(word, (kind >> BYTE_B_SHIFT) & 3, k // vector, exact, pb, qb, column, u32(COLUMNS))
    rows = u32(ROWS)
    columns = u32(COLUMNS)
    if fp4:
        twice_a = local(i16, ROWS * K)
        twice_b = local(i16, COLUMNS * K)
        for i in range(u32(ROWS * K)):
            twice_a[i] = twice(a.raw[i], u32(0))
        for i in range(u32(COLUMNS * K)):
            twice_b[i] = twice(b.raw[i], u32(0))

        def of_row(row, number):
            return pa[number * ROWS + row], qa[number * ROWS + row]

        def of_columns(row):
            return pb, qb

        share = vector // 16
        operands = (twice_a, twice_b, of_row, of_columns, COLUMNS)
        multiply_fp4_rows(exchange, slots, u32(1), rows, columns, k, share, *operands)
    else:
        a_split = Split(a_type, u32(0), u32(0))
        b_split = Split(b_type, u32(25) - fraction_of(a_type) - fraction_of(b_type), u32(0))
        a_special, a_far = split_operand(a, a_split, u32(1), rows * k, 0)
        b_special, b_far = split_operand(b, b_split, u32(1), columns * k, 0)
        near = a_far | b_far == 0
        if near:
            convert_operand(a, a_split, u32(1), rows * k, 0)
            convert_operand(b, b_split, u32(1), columns * k, 0)
        accumulation = Accumulation(i32(25), True, a_special | b_special, near)
        scale_factors = (pa, lambda d, row: pb)
        multiply_rows(
            exchange, slots, u32(1), rows, columns, k, accumulation, a, b, scale_factors=scale_factors, stride=COLUMNS
        )
