"""The arithmetic of WGMMA and tcgen05.mma: D = A B + C, bit for bit as in a model of the hardware.

PTX leaves order and rounding open. The model (`dialects/nvgpu/definitions.py`; MMA-Sim, arXiv 2511.10909) adds C and
all terms of an element of D at once: each is truncated (towards zero) F bits below the largest exponent among them. The
exponent of a term is the sum of its factors', where subnormal factors have that of the smallest normal number. The truncated terms are added exactly, and the sum is truncated to f32, or rounded to the nearest f16. F is 25;
with 8-bit floats of WGMMA it is 13, and f32 keeps that many bits of its fraction. Integers wrap.

`Planes` have the elements of an operand, each field in an array of its own. A has up to 64 rows of k, B a row of
`COLUMNS` for each k, so that loops over columns run on vectors. A term is two significands multiplied, and shifted
right. If no exponent of an operand is beyond `NEAR`, terms are computed in f32 instead, which is faster and gives the
same result: a term of two elements is exact there, also times a power of two unless that is far below 1. A sum in 32
bits has room for 16 terms, so that those of k from 16 on have a sum of their own.

Callers give an `exchange`, which loads a row of C and stores one of D: from registers here for WGMMA, from tensor
memory in `tcgen05_mma.py`.
"""
# pyright: reportReturnType=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ....native import Ptr, f32, f64, i32, i64, inline, leading_zeros, local, native, truncated, u8, u16, u32, u64
from .records import Wgmma

ROWS = 64
COLUMNS = 256
K = 32
"""Rows of A and D; most columns of B and D; most elements of A and B along K."""
FLOATS = {
    "f16": (5, 10),
    "bf16": (8, 7),
    "tf32": (8, 10),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
    "e3m2": (3, 2),
    "e2m3": (2, 3),
    "e2m1": (2, 1),
}
"""Bits of exponent and fraction."""
INPUTS = (*FLOATS, "s8", "u8")
"""Element types of A and B; numbers of them are bits of `Wgmma.kind`."""
F16, BF16, TF32, E4M3, E5M2, E3M2, E2M3, E2M1, S8, U8 = range(len(INPUTS))
EXPONENT_BITS, FRACTION_BITS = (sum(row[i] << 4 * n for n, row in enumerate(FLOATS.values())) for i in range(2))
"""Bits of exponent and fraction of all types, 4 bits for each."""
INFINITE, ONE_NAN, FINITE = range(3)
"""What the highest exponent means: infinities and NaN; NaN with a fraction of ones, else numbers; numbers."""
ACCUMULATORS = ("f32", "f16", "i32")
IN_F32, IN_F16, IN_I32 = range(len(ACCUMULATORS))
A_SHIFT = 0
B_SHIFT = 4
D_SHIFT = 8
N_SHIFT = 12
A_IN_REGISTERS = 1 << 24
A_ALONG_M = 1 << 25
B_ALONG_N = 1 << 26
"""Bits of `Wgmma.kind`: types of A, B and the accumulator, n, whether A is in registers, and the major modes."""
NONE = -(1 << 20)
SPECIAL = 1 << 20
"""Exponents of zeros, and of what is not finite: infinity if its significand is 0, else NaN."""
NEAR = 50
"""The largest absolute exponent of operands for which f32 can represent all terms."""
TOGETHER = tuple(range(8))
"""Terms that are added in one iteration of a loop."""


def kind_of(a: str, b: str, accumulator: str, n: int, a_in_registers: bool, a_major: str, b_major: str) -> int:
    """Return the number that `Wgmma.kind` has."""
    types = INPUTS.index(a) << A_SHIFT | INPUTS.index(b) << B_SHIFT | ACCUMULATORS.index(accumulator) << D_SHIFT
    majors = A_ALONG_M * (a_major == "mn") | B_ALONG_N * (b_major == "mn")
    return types | n << N_SHIFT | A_IN_REGISTERS * a_in_registers | majors


# --- operands --------------------------------------------------------------------------------------------------------


@inline
def bytes_of(type_):
    return u32(4) if type_ == TF32 else u32(2) if type_ <= BF16 else u32(1)


@inline
def fraction_of(type_):
    return u32(FRACTION_BITS >> (type_ * 4)) & 15


@inline
def exponent_bits_of(type_):
    return u32(EXPONENT_BITS >> (type_ * 4)) & 15


@inline
def highest_of(type_):
    return u32(INFINITE) if type_ <= TF32 or type_ == E5M2 else u32(ONE_NAN) if type_ == E4M3 else u32(FINITE)


class Planes(NamedTuple):
    """Elements of an operand, in five arrays: the value of a finite one is significand * 2^exponent * (1 + 2 sign).

    A significand counts units of its last bit, and may be shifted left. A sign is 0 or -1. Exponents of zeros are `NONE`,
    of what is not finite `SPECIAL`, with a significand of 0 for infinities. Values are there if no exponent is far.
    """

    raw: Ptr[u32]
    """The bits of elements; later a scratch array."""
    exponent: Ptr[i32]
    significand: Ptr[u32]
    sign: Ptr[i32]
    value: Ptr[f32]

    def at(self, offset):
        """Return the elements from one on."""
        return Planes(*(field + offset for field in self))


@inline
def planes(count: int):
    """Return room for so many elements."""
    return Planes(local(u32, count), local(i32, count), local(u32, count), local(i32, count), local(f32, count))


class Split(NamedTuple):
    """How elements of a type become planes."""

    type: u32
    raised: u32
    """Bits that significands are shifted left by."""
    negate: u32
    """1 if signs are to be the other ones."""


@inline
def split(bits, exponent_bits, fraction, highest, how, into, at):
    """Store exponent, significand and sign of a float; return whether it is not finite.

    `highest` says what the highest exponent means.
    """
    field_mask = (u32(1) << (exponent_bits & 31)) - 1
    field = (bits >> (fraction & 31)) & field_mask
    rest = bits & ((u32(1) << (fraction & 31)) - 1)
    bias = i32(field_mask >> 1)
    significand = rest | (u32(field != 0) << (fraction & 31))
    exponent = max(i32(field), i32(1)) - bias
    exponent = exponent if significand != 0 else i32(NONE)
    full = rest == (u32(1) << (fraction & 31)) - 1
    special = (field == field_mask) & ((full & (highest == ONE_NAN)) | (highest == INFINITE))
    into.exponent[at] = i32(SPECIAL) if special else exponent
    into.significand[at] = u32(rest != 0) if special else significand << (how.raised & 31)
    into.sign[at] = -i32(((bits >> ((fraction + exponent_bits) & 31)) & 1) ^ how.negate)
    return special


@inline
def split_operand(x, how, lines, width, stride):
    """Split `lines` times `width` elements that start `stride` apart; return 1 if one is not finite, and if one is far.

    The exponent of one that is far is beyond `NEAR`; exponents of zeros are not.
    """
    exponent_bits = exponent_bits_of(how.type)
    fraction = fraction_of(how.type)
    highest = highest_of(how.type)
    special = u32(0)
    far = u32(0)
    for line in range(lines):
        first = line * stride
        for i in range(first, first + width):
            special |= u32(split(x.raw[i], exponent_bits, fraction, highest, how, x, i))
        for i in range(first, first + width):
            far |= u32(x.exponent[i] > NEAR) | (u32(x.exponent[i] < -NEAR) & u32(x.exponent[i] != NONE))
    return special, far


@inline
def convert_operand(x, how, lines, width, stride):
    """Convert elements that `split_operand` split to f32, which represents them exactly if none is far."""
    fraction = fraction_of(how.type)
    for line in range(lines):
        first = line * stride
        for i in range(first, first + width):
            x.raw[i] = u32(max(x.exponent[i], i32(-NEAR)) - i32(fraction) + 127) << 23
        for i in range(first, first + width):
            size = i32(x.significand[i] >> (how.raised & 31))
            x.value[i] = f32((size ^ x.sign[i]) - x.sign[i]) * Ptr[f32](x.raw)[i]


@inline
def take(place, size, at, step, raw):
    """Read the bits of the elements of 16 bytes. The lowest 13 bits of a tf32 are ignored."""
    if size == 2:
        for i in tuple(range(8)):
            raw[at + i * step] = Ptr[u16](place)[i]
    elif size == 4:
        for i in tuple(range(4)):
            raw[at + i * step] = Ptr[u32](place)[i] >> 13
    else:
        for i in tuple(range(16)):
            raw[at + i * step] = Ptr[u8](place)[i]


@inline
def field(descriptor, first):
    """Return 14 bits of a descriptor, which count 16 bytes."""
    return u32((descriptor >> first) & 0x3FFF) << 4


@inline
def repeats_of(descriptor):
    """Return how many times 16 bytes the pattern of a swizzle is wide."""
    swizzle = u32(descriptor >> 62)
    return u32(1) if swizzle == 0 else u32(16) >> swizzle


@native
def piece(descriptor: u64, along_mn: bool, major: u32, minor: u32) -> u32:
    """Return where 16 bytes of an operand lie, from the start of shared memory.

    They are number `major` along the contiguous mode, in row `minor` of the other one.
    """
    start = field(descriptor, 0)
    leading = field(descriptor, 16)
    stride = field(descriptor, 32)
    wide = repeats_of(descriptor)
    eight = minor >> 3
    within = minor & 7
    where = start
    if along_mn:
        if wide == 1:
            where = start + major * stride + within * 16 + eight * leading
        else:
            where = start + major % wide * 16 + major // wide * leading + within * wide * 16 + eight * stride
    elif wide == 1:
        where = start + major * leading + within * 16 + eight * stride
    else:
        where = start + major * 16 + within * wide * 16 + eight * stride
    return where ^ (((where >> 7) & (wide - 1)) << 4)


class Form(NamedTuple):
    """How elements lie in 16 bytes of an operand."""

    per: u32
    """How many there are."""
    take: Callable[..., None]
    """`take(place, at, step, raw)` reads their bits."""


@inline
def read(smem, bytes_, piece, descriptor, form, along_mn, first, rows, k, raw, row_step, k_step):
    """Read `rows` rows from row `first` on of an operand, and return whether a part of it is not in shared memory.

    `piece` says where 16 bytes of it lie.
    """
    outside = u32(0)
    per = form.per
    if along_mn:  # steps are known in each loop, so that one along them has no gaps
        for minor in range(k):
            for major in range(rows // per):
                where = piece(descriptor, True, first // per + major, minor)
                outside |= u32(where + 16 > bytes_)
                place = smem + (where if where + 16 <= bytes_ else u32(0))
                form.take(place, major * per * row_step + minor * k_step, row_step, raw)
    else:
        for minor in range(rows):
            for major in range(k // per):
                where = piece(descriptor, False, major, first + minor)
                outside |= u32(where + 16 > bytes_)
                place = smem + (where if where + 16 <= bytes_ else u32(0))
                form.take(place, minor * row_step + major * per * k_step, k_step, raw)
    return outside


@inline
def read_registers(wgmma, type_, k, raw):
    """Read A as threads hold it: thread 4 g + t of a warp has pairs of 32 bits of rows g and g + 8."""
    size = bytes_of(type_)
    for thread in range(u32(128)):
        for register in (u32(0), u32(1), u32(2), u32(3)):
            held = wgmma.a[thread] + register * 4
            row = (thread >> 5) * 16 + ((thread >> 2) & 7) + register % 2 * 8
            first = row * k + ((thread & 3) + register // 2 * 4) * (u32(4) // size)
            if size == 4:
                raw[first] = Ptr[u32](held)[0] >> 13
            elif size == 2:
                for i in (0, 1):
                    raw[first + i] = Ptr[u16](held)[i]
            else:
                for i in (0, 1, 2, 3):
                    raw[first + i] = Ptr[u8](held)[i]


@inline
def integers(raw, first, count, type_):
    for i in range(first, first + count):
        bits = raw[i]
        raw[i] = bits - ((bits & 128) << 1) if type_ == S8 else bits


# --- accumulation ------------------------------------------------------------------------------------------------------------


@native
def to_f32(total: i64, exponent: i32, kept: u32) -> u32:
    """Return total * 2^exponent as an f32 truncated to so many bits of fraction."""
    size = u64(-total if total < 0 else total)
    if size == 0:
        return 0
    top = i32(63) - i32(leading_zeros(size))
    significand = size >> u64(top - 23) if top >= 23 else size << u64(23 - top)
    power = exponent + top
    if power > 127:
        significand = u64(1) << 23
        power = i32(128)
    elif power < -126:
        significand = significand >> u64(-126 - power)
        power = i32(-127)
    significand = significand & ~((u64(1) << (23 - kept)) - 1)
    return (u32(total < 0) << 31) | (u32(power + 127) << 23) | (u32(significand) & 0x7FFFFF)


@native
def to_f16(total: i64, exponent: i32) -> u32:
    """Return total * 2^exponent as the nearest f16, ties to even."""
    size = u64(-total if total < 0 else total)
    if size == 0:
        return 0
    power = max(exponent + i32(63) - i32(leading_zeros(size)), i32(-14))
    if power > 15:
        return (u32(total < 0) << 15) | 0x7C00
    down = power - 10 - exponent
    rounded = size << u64(min(-down, 63)) if down <= 0 else u64(0)
    if down > 0 and down < 63:
        rounded = (size + (u64(1) << u64(down - 1)) - 1 + ((size >> u64(down)) & 1)) >> u64(down)
    bits = (u64(power + 14) << 10) + rounded
    return (u32(total < 0) << 15) | min(u32(bits), u32(0x7C00))


@inline
def row_of_b(i, places):
    """Return the row of B that element i of a row of A is multiplied by: of a dense A the same one, else `places[i]`."""
    return i if places is None else places[i]


@inline
def special_sum(k, a, b, stride: int, c, places):
    """Return the class of a sum: 1 or 2 for positive or negative infinity, 3 for NaN, 0 if all terms are finite.

    Its terms are elements of A, those of B, which lie `stride` apart, and the first of C.
    """
    kind = u32(0)
    if c.exponent[0] == SPECIAL:
        kind = u32(3) if c.significand[0] != 0 else u32(1) - u32(c.sign[0])
    for i in range(k):
        at = row_of_b(i, places) * stride
        a_special = a.exponent[i] == SPECIAL
        b_special = b.exponent[at] == SPECIAL
        if a_special or b_special:
            nan = (a_special and a.significand[i] != 0) or (b_special and b.significand[at] != 0)
            zero = a.exponent[i] == NONE or b.exponent[at] == NONE
            kind |= u32(3) if nan or zero else u32(1) - u32(a.sign[i] ^ b.sign[at])
    return kind


@inline
def load_c(exchange, d, accumulate, row, wide, n, c):
    """Load a row of C and split its elements; return 1 if one is not finite."""
    size = u32(4) if wide else u32(2)
    for column in range(n):
        c.raw[column] = 0
    if accumulate != 0:
        exchange(d, row, size, n, c.raw, out=False)
    special = u32(0)
    plain = Split(u32(0), u32(0), u32(0))
    if wide:  # where bits are is known while this is compiled
        for column in range(n):
            special |= u32(split(c.raw[column], u32(8), u32(23), u32(INFINITE), plain, c, column))
    else:
        for column in range(n):
            special |= u32(split(c.raw[column], u32(5), u32(10), u32(INFINITE), plain, c, column))
    return special


@inline
def largest_exponents(k, n, a, b, stride: int, c, largest, places):
    """Find the largest exponent among the terms of each sum of a row."""
    for column in range(n):
        largest[column] = c.exponent[column]
    for first in range(u32(0), k, len(TOGETHER)):
        rows = tuple(row_of_b(first + i, places) * stride for i in TOGETHER)
        for column in range(n):
            most = largest[column]
            for i in TOGETHER:
                most = max(most, a.exponent[first + i] + b.exponent[rows[i] + column])
            largest[column] = most


@inline
def add_near(k, n, fraction, a, b, stride: int, largest, total, power, places):
    """Add the terms of a row in f32, which is exact there."""
    for column in range(n):
        power[column] = u32(max(min(fraction - largest[column], i32(127)), i32(-126)) + 127) << 23
    for first in range(u32(0), k, len(TOGETHER)):
        into = total + (first >> 4) * stride
        rows = tuple(row_of_b(first + i, places) * stride for i in TOGETHER)
        for column in range(n):
            sum_ = into[column]
            to_point = Ptr[f32](power)[column]
            for i in TOGETHER:
                sum_ += truncated(a.value[first + i] * b.value[rows[i] + column] * to_point)
            into[column] = sum_


@inline
def add_far(k, n, a, b, stride: int, largest, total, places):
    """Add the terms of a row as significands that are shifted right."""
    for first in range(u32(0), k, len(TOGETHER)):
        into = total + (first >> 4) * stride
        rows = tuple(row_of_b(first + i, places) * stride for i in TOGETHER)
        for column in range(n):
            sum_ = into[column]
            most = largest[column]
            for i in TOGETHER:
                at = rows[i] + column
                lower = u32(min(most - a.exponent[first + i] - b.exponent[at], i32(31)))
                sign = a.sign[first + i] ^ b.sign[at]
                term = i32((a.significand[first + i] * b.significand[at]) >> (lower & 31))
                sum_ += (term ^ sign) - sign
            into[column] = sum_


@inline
def c_term(column, largest, c, up, down):
    """Return the term of C in a sum."""
    lower = u32(min(largest[column] - c.exponent[column] + down, i32(31)))
    term = i32((c.significand[column] << (u32(up) & 31)) >> (lower & 31))
    return (term ^ c.sign[column]) - c.sign[column]


@inline
def round_to_f32(n, exact, kept, exponent, scale, value, line):
    """Truncate the accumulators of a row to f32; `exact(column, type)` is one in units of 2^`exponent[column]`."""
    mask = ~((u64(1) << (52 - u64(kept))) - 1)
    small = u32(0)
    for column in range(n):
        scale[column] = u64(i64(max(exponent[column], i32(-900)) + 1023)) << 52
    for column in range(n):
        value[column] = exact(column, f64) * Ptr[f64](scale)[column]
    for column in range(n):
        bits = Ptr[u64](value)[column]
        small |= u32((bits << 1 != 0) & (bits << 1 >> 53 < 1023 - 126))
        scale[column] = bits & mask
    for column in range(n):
        Ptr[f32](line)[column] = f32(Ptr[f64](scale)[column])
    if small != 0:
        for column in range(n):
            line[column] = to_f32(exact(column, i64), exponent[column], kept)


@inline
def add_scales(n, row_scale, column_scales, c, scale):
    """Store the exponents of the scale factors of a row's accumulators, and count exponents of C from there; return 1 if a
    scale factor is NaN."""
    nan = u32(0)
    for column in range(n):
        both = row_scale + column_scales[column]
        nan |= u32(both >= SPECIAL - (1 << 10))
        scale[column] = both
        exponent = c.exponent[column]
        c.exponent[column] = exponent - both if exponent != SPECIAL else exponent
    return nan


class Accumulation(NamedTuple):
    """How the terms of an element of D are added."""

    fraction: i32
    """Bits of a term below the largest exponent that count."""
    wide: bool
    """Whether D is f32, else f16."""
    special: u32
    """Whether an element of A or B is not finite."""
    near: bool
    """Whether A and B have their values as f32."""


@inline
def multiply_rows(
    exchange,
    d,
    accumulate,
    rows,
    n,
    k,
    accumulation,
    a,
    b,
    down=None,
    scale_factors=None,
    stride: int = COLUMNS,
    places=None,
):
    """Compute `rows` rows of D, of `n` columns.

    `a` and `b` are planes; B has rows of `stride`. `exchange(d, row, size, n, line, out=)` loads and stores a row. C is
    divided by 2^`down`. `scale_factors` are (rows, columns): exponents of those of rows, and `columns(d, row)` for
    those of columns; SPECIAL is one that is NaN. `places` has a row of B for each element of a sparse A.
    """
    fraction, wide, special, near = accumulation
    point, width = (u32(23), u32(8)) if wide else (u32(10), u32(5))
    up = max(fraction - i32(point), i32(0))
    lower = max(i32(point) - fraction, i32(0))
    kept = u32(min(fraction, i32(23)))
    c = planes(stride)
    line = c.raw
    largest = local(i32, stride)
    total = local(i32, 2 * stride)
    scale = local(u64, stride)
    value = local(f64, stride)
    power = local(u32, stride)
    scales = local(i32, stride)
    exponent = local(i32, stride)
    for column in range(n):
        total[stride + column] = 0
    for row in range(rows):
        own = a.at(row * k)
        there = None if places is None else places + row * k
        c_special = load_c(exchange, d, accumulate, row, wide, n, c)
        if down is not None:
            for column in range(n):
                kept_exponent = c.exponent[column]
                c.exponent[column] = kept_exponent - down if kept_exponent != SPECIAL else kept_exponent
        if scale_factors is not None:
            of_rows, of_columns = scale_factors
            c_special |= add_scales(n, of_rows[row], of_columns(d, row), c, scales)
        largest_exponents(k, n, own, b, stride, c, largest, there)
        for column in range(n):
            total[column] = 0
        if k > 16:
            for column in range(n):
                total[stride + column] = 0
        if near:
            add_near(k, n, fraction, own, b, stride, largest, total, power, there)
        else:
            add_far(k, n, own, b, stride, largest, total, there)
        for column in range(n):
            exponent[column] = largest[column] - fraction
            if scale_factors is not None:
                exponent[column] = largest[column] - fraction + scales[column]

        def exact(column, type_):
            both = type_(total[column]) + type_(total[stride + column])
            return both + type_(c_term(column, largest, c, up, lower))

        if wide:
            round_to_f32(n, exact, kept, exponent, scale, value, line)
        else:
            for column in range(n):
                line[column] = to_f16(exact(column, i64), exponent[column])
        if (special | c_special) != 0:
            for column in range(n):
                kind = special_sum(k, own, b.at(column), stride, c.at(column), there)
                if scale_factors is not None:
                    kind = u32(3) if scales[column] >= SPECIAL - (1 << 10) else kind
                if kind != 0:
                    infinite = ((u32(1) << width) - 1) << point
                    sign = u32(kind == 2) << (point + width)
                    line[column] = (u32(1) << (point + width)) - 1 if kind == 3 else infinite | sign
        exchange(d, row, u32(4) if wide else u32(2), n, line, out=True)


@inline
def multiply_integer_rows(exchange, d, accumulate, rows, n, k, a, b, add, places=None):
    """Compute `rows` rows of D of integers, of `n` columns; `add(old, sum)` returns the bits of an element.

    `places` are those of `multiply_rows`.
    """
    line = local(u32, COLUMNS)
    total = local(i32, COLUMNS)
    for row in range(rows):
        for column in range(n):
            total[column] = 0
            line[column] = 0
        for i in range(k):
            left = i32(a[row * k + i])
            right = b + (i if places is None else places[row * k + i]) * COLUMNS
            for column in range(n):
                total[column] += left * i32(right[column])
        if accumulate != 0:
            exchange(d, row, u32(4), n, line, out=False)
        for column in range(n):
            line[column] = add(i32(line[column]), total[column])
        exchange(d, row, u32(4), n, line, out=True)


# --- WGMMA -----------------------------------------------------------------------------------------------------------


@inline
def exchange(wgmma, row, size, n, line, out: bool):
    """Load a row of C from registers, or store one of D.

    Thread 4 g + t of a warp has columns 2 t and 2 t + 1 of each eight.
    """
    half = ((row >> 3) & 1) * 2
    for t in (u32(0), u32(1), u32(2), u32(3)):
        held = wgmma.d[(row >> 4) * 32 + (row & 7) * 4 + t]
        for j in range(n >> 3):
            column = j * 8 + t * 2
            at = j * 4 + half
            if size == 4:
                pair = Ptr[u64](Ptr[u32](held) + at)
                here = Ptr[u64](line + column)
                if out:
                    pair[0] = here[0]
                else:
                    here[0] = pair[0]
            else:
                for c in (0, 1):
                    if out:
                        Ptr[u16](held)[at + c] = u16(line[column + c])
                    else:
                        line[column + c] = u32(Ptr[u16](held)[at + c])


@native
def multiply(wgmma: Ptr[Wgmma], smem: Ptr, bytes_: u32) -> u32:
    """Execute a WGMMA of a block with so many bytes of shared memory; return 1 if an operand is not in it, else 0."""
    kind = wgmma.kind
    a_type = (kind >> A_SHIFT) & 15
    b_type = (kind >> B_SHIFT) & 15
    n = (kind >> N_SHIFT) & 511
    size = bytes_of(a_type)
    k = u32(32) // size
    a = planes(ROWS * K)
    b = planes(COLUMNS * K)
    outside = u32(0)

    def take_here(place, at, step, raw):
        take(place, size, at, step, raw)

    def read_shared(descriptor, along_mn, rows, raw, row_step, k_step):
        form = Form(u32(16) // size, take_here)
        return read(smem, bytes_, piece, descriptor, form, along_mn, u32(0), rows, k, raw, row_step, k_step)

    if kind & A_IN_REGISTERS != 0:
        read_registers(wgmma, a_type, k, a.raw)
    else:
        outside = read_shared(wgmma.a_descriptor, kind & A_ALONG_M != 0, u32(ROWS), a.raw, k, 1)
    outside |= read_shared(wgmma.b_descriptor, kind & B_ALONG_N != 0, n, b.raw, 1, COLUMNS)
    if outside != 0:
        return 1
    if a_type >= S8:
        integers(a.raw, u32(0), ROWS * k, a_type)
        for row in range(k):
            integers(b.raw, row * COLUMNS, n, b_type)

        def add(old, sum_):
            return u32(old + sum_)

        multiply_integer_rows(exchange, wgmma, wgmma.accumulate, u32(ROWS), n, u32(K), a.raw, b.raw, add)
        return 0
    fraction = u32(25) if a_type <= TF32 else u32(13)
    a_split = Split(a_type, u32(0), u32(0))
    b_split = Split(b_type, fraction - fraction_of(a_type) - fraction_of(b_type), u32(0))
    a_special, a_far = split_operand(a, a_split, u32(1), ROWS * k, 0)
    b_special, b_far = split_operand(b, b_split, k, n, COLUMNS)
    near = a_far | b_far == 0
    if near:
        convert_operand(a, a_split, u32(1), ROWS * k, 0)
        convert_operand(b, b_split, k, n, COLUMNS)
    wide = (kind >> D_SHIFT) & 15 == IN_F32
    accumulation = Accumulation(i32(fraction), wide, a_special | b_special, near)
    multiply_rows(exchange, wgmma, wgmma.accumulate, u32(ROWS), n, k, accumulation, a, b)
    return 0
