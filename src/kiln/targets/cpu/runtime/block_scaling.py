"""MMAs of a warp with block scales: the sums of `dialects/nvgpu/block_scaling.py`, bit for bit.

Lanes leave A, B, C and their scale factors in slots, as `mma.sync` distributes them. An element is stored as its
exponent and its significand with a sign; a scale factor has both, too. Terms are whole numbers of the smallest step that
counts, which 64 bits hold.
"""
# pyright: reportReturnType=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from ....native import Library, Ptr, i32, i64, inline, local, native, u32, u64
from .records import PAYLOAD
from .tensor_core import NONE, SPECIAL, to_f32

warp_mmas: Library = Library("warp_mma", prefix="kiln_cpu_")

TYPES = {"e4m3": (4, 3), "e5m2": (5, 2), "e3m2": (3, 2), "e2m3": (2, 3), "e2m1": (2, 1)}
"""Bits of exponent and fraction of the elements of A and B; their places are bits of `kind`."""
A_AT, SCALE_A_AT, SCALE_B_AT, B_AT, C_AT = 0, 16, 20, 64, 96
"""Where operands lie in a lane's slot."""
B_SHIFT, BYTE_A_SHIFT, THREAD_A_SHIFT, BYTE_B_SHIFT, THREAD_B_SHIFT = 3, 8, 10, 12, 14
FP4, UE4M3, BY_16 = 1 << 16, 1 << 17, 1 << 18
"""Bits of `kind`: kinds of 4-bit floats with K = 64, scale factors in ue4m3, one for 16 elements (else for 32)."""
ROWS, COLUMNS, K, SCALES = 16, 8, 64, 4
"""Rows of A, columns of B, most elements along K and most scale factors of a row."""


def kind_of(
    kind: str, a: str, b: str, scale: str, vector: int, byte_a: int, thread_a: int, byte_b: int, thread_b: int
) -> int:
    """Return the number that `mma_block_scale` takes."""
    types = list(TYPES)
    flags = FP4 * (kind != "mxf8f6f4") | UE4M3 * (scale == "ue4m3") | BY_16 * (vector == 16)
    chosen = byte_a << BYTE_A_SHIFT | thread_a << THREAD_A_SHIFT | byte_b << BYTE_B_SHIFT | thread_b << THREAD_B_SHIFT
    return types.index(a) | types.index(b) << B_SHIFT | chosen | flags


@inline
def split(code, exponent_bits, fraction, exponents, significands, at):
    """Store exponent and significand of a narrow float; return whether it is not finite."""
    top = (u32(1) << (exponent_bits & 31)) - 1
    field, rest = (code >> (fraction & 31)) & top, code & ((u32(1) << (fraction & 31)) - 1)
    significand = i32(rest | (u32(field != 0) << (fraction & 31)))
    full = rest == (u32(1) << (fraction & 31)) - 1
    special = (field == top) & ((exponent_bits == 5) | ((exponent_bits == 4) & full))
    nan = (exponent_bits == 4) | (rest != 0)
    exponent = i32(NONE) if significand == 0 else i32(max(field, u32(1))) - i32(top >> 1)
    exponents[at] = i32(SPECIAL) if special else exponent
    significand = i32(nan) if special else significand
    negative = (code >> ((exponent_bits + fraction) & 31)) & 1 != 0
    significands[at] = (-1 - significand if special else -significand) if negative else significand
    return u32(special)


@inline
def read(slots, at, registers, rows, per, type_, exponents, significands, halves):
    """Read A (`halves` is 2) or B (1), a row of K elements for each row of A or column of B; return 1 if an element
    is not finite. A register has `per` elements."""
    exponent_bits = u32(5) if type_ == 1 else u32(4) if type_ == 0 else u32(3) if type_ == 2 else u32(2)
    fraction = u32(3) if (type_ == 0) | (type_ == 3) else u32(1) if type_ == 4 else u32(2)
    found = u32(0)
    for lane in range(u32(32)):
        for register in registers:
            word = Ptr[u32](slots + lane * PAYLOAD + at)[register]
            row = (lane >> 2) + u32(register % halves * 8)
            first = row * K + (lane & 3) * per + u32(register // halves * 4) * per
            for i in range(per):
                code = (word >> (i * (u32(32) // per))) & 255
                if type_ == 4:
                    code = (code if per == 8 else code >> 2) & 15
                found |= split(code, exponent_bits, fraction, exponents, significands, first + i)
    return found


@inline
def read_scale(word, byte, count, is_ue4m3, exponents, significands, at):
    """Split the scale factors of a row; return 1 if one is NaN. The significand of ue4m3 has three bits of fraction."""
    found = u32(0)
    for i in range(count):
        code = (word >> ((byte + i) * 8)) & 255
        if is_ue4m3:
            field, rest = (code >> 3) & 15, code & 7
            exponents[at + i] = i32(max(field, u32(1))) - 7
            significands[at + i] = i32(rest | (u32(field != 0) << 3))
            found |= u32((code & 127) == 127)
        else:
            exponents[at + i] = i32(code) - 127
            significands[at + i] = 1
            found |= u32(code == 255)
    return found


@inline
def shifted(size, by):
    """Return a signed number times 2^by, cut off towards zero; `by` is at most 39."""
    up, down = u64(max(by, i32(0))), u64(min(max(-by, i32(0)), i32(63)))
    return (size << up) >> down if size >= 0 else -((-size << up) >> down)


@native
def special_class(
    k: u32, vector: u32, ea: Ptr[i32], sa: Ptr[i32], eb: Ptr[i32], sb: Ptr[i32], nan: u32, ec: i32, sc: u32, negative: u32
) -> u32:  # fmt: skip
    """Return the class of a sum: 1 or 2 for positive or negative infinity, 3 for NaN, 0 if all terms are finite."""
    found = u32(3) if nan != 0 else u32(0)
    if ec == SPECIAL:
        found |= u32(3) if sc != 0 else u32(1) + negative
    for i in range(k):
        if ea[i] == SPECIAL or eb[i] == SPECIAL:
            a_nan = ea[i] == SPECIAL and sa[i] != 0 and sa[i] != -1
            b_nan = eb[i] == SPECIAL and sb[i] != 0 and sb[i] != -1
            zero = ea[i] == NONE or eb[i] == NONE
            sign = u32(sa[i] < 0) ^ u32(sb[i] < 0)
            found |= u32(3) if a_nan or b_nan or zero else u32(1) + sign
    return found


@native
def accumulated_terms(
    fraction: i32, ea: Ptr[i32], sa: Ptr[i32], eb: Ptr[i32], sb: Ptr[i32], scale: i32, ec: i32, c: i64
) -> u32:
    """Return a sum of kind mxf8f6f4; `fraction` counts the bits of fraction of a product, `scale` is the exponent of
    both scale factors together."""
    largest = ec
    for i in range(u32(32)):
        exponent = ea[i] + eb[i]
        largest = max(largest, exponent + scale if exponent > NONE // 2 else i32(NONE))
    total = shifted(c, ec - largest + 2)
    for i in range(u32(32)):
        total += shifted(i64(sa[i] * sb[i]), ea[i] + eb[i] + scale - largest + 25 - fraction)
    return to_f32(total, largest - 25, u32(23))


@native
def accumulated_blocks(
    a: Ptr[i32], b: Ptr[i32], vector: u32, fraction: i32, pa: Ptr[i32], qa: Ptr[i32], pb: Ptr[i32], qb: Ptr[i32], ec: i32,
    c: i64,
) -> u32:  # fmt: skip
    """Return a sum of kind mxf4 or mxf4nvf4. Elements are twice their value; `p` are exponents and `q` significands of
    scale factors, whose product has `fraction` bits of fraction."""
    terms, exponents = local(i64, SCALES), local(i32, SCALES)
    largest = ec
    for block in range(u32(SCALES)):
        exact = i32(0)
        for i in range(u32(16)):
            exact += a[block * 16 + i] * b[block * 16 + i]
        n = block * 16 // vector
        terms[block] = i64(exact * qa[n] * qb[n])
        exponents[block] = pa[n] + pb[n]
        largest = max(largest, exponents[block] if terms[block] != 0 else i32(NONE))
    total = shifted(c, ec - largest + 12)
    for block in range(u32(SCALES)):
        total += shifted(terms[block], exponents[block] - largest + 33 - fraction)
    return to_f32(total, largest - 35, u32(23))


@inline
def as_halves(exponents, significands, count):
    """Replace significands of 4-bit floats, which have a bit of fraction, by twice the number."""
    for i in range(count):
        significands[i] = significands[i] << u32(max(exponents[i], i32(0)) & 3)


@warp_mmas.export
def mma_block_scale(slots: Ptr, kind: u32) -> None:
    """Multiply for all lanes of a warp, and store D in place of C."""
    fp4, is_ue4m3, a_type, b_type = kind & FP4 != 0, kind & UE4M3 != 0, kind & 7, (kind >> B_SHIFT) & 7
    per = u32(8) if fp4 else u32(4)
    k, vector = per * 8, u32(16) if kind & BY_16 != 0 else u32(32)
    scales = k // vector
    ea, sa, eb, sb = local(i32, ROWS * K), local(i32, ROWS * K), local(i32, COLUMNS * K), local(i32, COLUMNS * K)
    pa, qa, pb, qb = (local(i32, 64), local(i32, 64), local(i32, 64), local(i32, 64))
    special = read(slots, A_AT, (0, 1, 2, 3), ROWS, per, a_type, ea, sa, 2)
    special |= read(slots, B_AT, (0, 1), COLUMNS, per, b_type, eb, sb, 1)
    a_nan, b_nan = local(u32, ROWS), local(u32, COLUMNS)
    for row in range(u32(ROWS)):
        lane = (row & 7) * 4 + ((kind >> THREAD_A_SHIFT) & 1) * 2 + (row >> 3)
        word = Ptr[u32](slots + lane * PAYLOAD + SCALE_A_AT)[0]
        a_nan[row] = read_scale(word, (kind >> BYTE_A_SHIFT) & 3, scales, is_ue4m3, pa, qa, row * SCALES)
        special |= a_nan[row]
    for column in range(u32(COLUMNS)):
        lane = column * 4 + ((kind >> THREAD_B_SHIFT) & 3)
        word = Ptr[u32](slots + lane * PAYLOAD + SCALE_B_AT)[0]
        b_nan[column] = read_scale(word, (kind >> BYTE_B_SHIFT) & 3, scales, is_ue4m3, pb, qb, column * SCALES)
        special |= b_nan[column]
    if fp4:
        as_halves(ea, sa, ROWS * K)
        as_halves(eb, sb, COLUMNS * K)
    a_fraction = u32(3) if (a_type == 0) | (a_type == 3) else u32(1) if a_type == 4 else u32(2)
    b_fraction = u32(3) if (b_type == 0) | (b_type == 3) else u32(1) if b_type == 4 else u32(2)
    for row in range(u32(ROWS)):
        for column in range(u32(COLUMNS)):
            lane = (row & 7) * 4 + (column >> 1)
            place = Ptr[u32](slots + lane * PAYLOAD + C_AT) + (row >> 3) * 2 + (column & 1)
            bits = place[0]
            field, rest = (bits >> 23) & 255, bits & 0x7FFFFF
            size = i64(rest | (u32(field != 0) << 23))
            c = -size if bits >> 31 != 0 else size
            ec = i32(NONE) if size == 0 else i32(SPECIAL) if field == 255 else i32(max(field, u32(1))) - 127
            a_row, b_column = (ea + row * K, sa + row * K), (eb + column * K, sb + column * K)
            p, q = pa + row * SCALES, pb + column * SCALES
            found = u32(0)
            if special != 0 or ec == SPECIAL:
                nan = a_nan[row] | b_nan[column]
                found = special_class(k, vector, *a_row, *b_column, nan, ec, rest, bits >> 31)
            if found != 0:
                place[0] = u32(0x7FFFFFFF) if found == 3 else u32(0x7F800000) | (u32(found == 2) << 31)
            elif fp4:
                scale_fraction = i32(6) if is_ue4m3 else i32(0)
                blocks = (sa + row * K, sb + column * K, vector, scale_fraction, p, qa + row * SCALES)
                place[0] = accumulated_blocks(*blocks, q, qb + column * SCALES, ec, c)
            else:
                fraction = i32(a_fraction + b_fraction)
                place[0] = accumulated_terms(fraction, *a_row, *b_column, p[0] + q[0], ec, c)
