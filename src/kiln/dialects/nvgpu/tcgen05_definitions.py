"""What `tcgen05.mma` computes, in plain Python: operands by descriptors and addresses, exact arithmetic, one rounding.

PTX leaves order and rounding open. The model is that of MMA-Sim (arXiv 2511.10909), which arXiv 2512.07004 found again
for f16, bf16, tf32 and 8-bit floats on a B200: all K terms of an element of D, and D itself, are added at once. Each is
cut off (towards zero) 25 bits below the largest exponent among them, then they are added exactly; the result is cut off
to f32, or rounded to the nearest f16. The exponent of a term is the sum of its factors' exponents, where a subnormal
number has that of the smallest normal one; terms that are zero do not count. Scale factors of mxf8f6f4 belong to each
term. mxf4 and mxf4nvf4 have one term for each 16 elements along K: their exact dot product times both scale factors,
with the exponents of the scale factors only, cut off 35 bits below the largest. Integers are exact, and wrap.

A result that is not a number is 0x7FFFFFFF (f16: 0x7FFF), and terms that add up to zero make a positive zero. A sparse
A has the terms of the elements that are there, with the elements of B that the metadata name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from . import tcgen05_descriptors, tensor_memory
from .tensor_memory import Cell

FORMATS = {
    "f32": (8, 23),
    "f16": (5, 10),
    "bf16": (8, 7),
    "tf32": (8, 10),
    "e4m3": (4, 3),
    "e5m2": (5, 2),
    "e3m2": (3, 2),
    "e2m3": (2, 3),
    "e2m1": (2, 1),
}
"""Bits of exponent and fraction; a sign comes first."""
_SPECIALS = {"f32", "f16", "bf16", "tf32", "e5m2"}
"""Types whose highest exponent means infinities and NaN. e4m3 has one NaN, the narrower types have none."""


class Number(NamedTuple):
    """A number and the exponent that it has in a sum; `value` is a float if it is infinite or NaN."""

    value: Fraction | float
    exponent: int

    @property
    def is_finite(self) -> bool:
        return isinstance(self.value, Fraction)


NAN = Number(math.nan, 0)


def decode_float(kind: str, bits: int) -> Number:
    """Return the number that the bits of a float are."""
    width, fraction = FORMATS[kind]
    field = bits >> fraction & (1 << width) - 1
    rest = bits & (1 << fraction) - 1
    sign = -1 if bits >> (width + fraction) & 1 else 1
    if kind in _SPECIALS and field == (1 << width) - 1:
        return NAN if rest else Number(sign * math.inf, 0)
    if kind == "e4m3" and bits & 127 == 127:
        return NAN
    exponent = max(field, 1) - ((1 << width - 1) - 1)
    return Number(sign * (rest + (1 << fraction) * (field > 0)) * Fraction(2) ** (exponent - fraction), exponent)


def decode_scale(kind: str, byte: int) -> Number:
    """Return a scale factor: ue8m0 is a power of two, 255 is NaN; ue4m3 is an e4m3 whose sign is ignored."""
    if kind == "ue8m0":
        return NAN if byte == 255 else Number(Fraction(2) ** (byte - 127), byte - 127)
    return decode_float("e4m3", byte & 127)


# --- arithmetic ------------------------------------------------------------------------------------------------------


def times(x: Number, y: Number) -> Number:
    """Multiply exactly: the exponent is the sum of both."""
    if x.is_finite and y.is_finite:
        return Number(x.value * y.value, x.exponent + y.exponent)
    return Number(float(x.value) * float(y.value) if x.value and y.value else math.nan, 0)


def add_terms(terms: Sequence[Number], bits: int) -> Fraction | float:
    """Add terms, each cut off so many bits below the largest exponent of those that are not zero."""
    special = [term.value for term in terms if not term.is_finite]
    if special:
        return sum(special, 0.0)
    counted = [(Fraction(term.value), term.exponent) for term in terms if term.value]
    step = Fraction(2) ** (max((exponent for _, exponent in counted), default=0) - bits)
    return sum((math.trunc(value / step) * step for value, _ in counted), Fraction(0))


def encode_f32(value: Fraction | float) -> int:
    """Return the bits of a number cut off to f32; from 2^128 on it is infinite."""
    if not isinstance(value, Fraction):
        return 0x7FFFFFFF if math.isnan(value) else 0x7F800000 | (value < 0) << 31
    exponent = max(_exponent(value), -126)
    units = math.trunc(abs(value) / Fraction(2) ** (exponent - 23))
    if value == 0:
        return 0
    bits = units if units < 1 << 23 else (exponent + 127 << 23) + units - (1 << 23)
    return (value < 0) << 31 | min(bits, 0x7F800000)


def encode_f16(value: Fraction | float) -> int:
    """Return the bits of a number rounded to the nearest f16, ties to even."""
    if not isinstance(value, Fraction):
        return 0x7FFF if math.isnan(value) else 0x7C00 | (value < 0) << 15
    exponent = max(_exponent(value), -14)
    units = round(abs(value) / Fraction(2) ** (exponent - 10))
    if value == 0:
        return 0
    bits = units if units < 1 << 10 else (exponent + 15 << 10) + units - (1 << 10)
    return (value < 0) << 15 | min(bits, 0x7C00)


def _exponent(value: Fraction) -> int:
    """Return e with 2^e <= |value| < 2^(e + 1)."""
    if value == 0:
        return -(1 << 20)
    e = value.numerator.bit_length() - value.denominator.bit_length() if value > 0 else _exponent(-value)
    return e if abs(value) >= Fraction(2) ** e else e - 1


def mma_floats(
    a: Sequence[Number],
    b: Sequence[Number],
    d: Number | None,
    accumulator: str,
    sfa: Number | None = None,
    sfb: Number | None = None,
) -> int:
    """Return the bits of an element of D, of the kinds f16, tf32, f8f6f4 and (with scale factors) mxf8f6f4."""
    terms = [times(x, y) for x, y in zip(a, b, strict=True)]
    if sfa is not None and sfb is not None:
        terms = [times(term, times(sfa, sfb)) for term in terms]
    total = add_terms([*terms, *([d] if d is not None else [])], 25)
    return encode_f16(total) if accumulator == "f16" else encode_f32(total)


def mma_fp4(
    a: Sequence[Number], b: Sequence[Number], d: Number | None, sfa: Sequence[Number], sfb: Sequence[Number], block: int
) -> int:
    """Return the bits of an element of D of the kinds mxf4 and mxf4nvf4, with a scale factor for `block` elements."""
    terms = [d] if d is not None else []
    for first in range(0, len(a), 16):
        pairs = zip(a[first : first + 16], b[first : first + 16], strict=True)
        dot = sum((Fraction(x.value) * Fraction(y.value) for x, y in pairs), Fraction(0))
        terms.append(times(Number(dot, 0), times(sfa[first // block], sfb[first // block])))
    return encode_f32(add_terms(terms, 35))


def mma_integers(a: Sequence[int], b: Sequence[int], d: int, saturate: bool) -> int:
    """Return the bits of an element of D of kind i8; `d` is a signed number, 0 where D is not added."""
    total = d + sum(x * y for x, y in zip(a, b, strict=True))
    if saturate:
        total = max(-(1 << 31), min((1 << 31) - 1, total))
    return total & 0xFFFFFFFF


# --- operands --------------------------------------------------------------------------------------------------------


class Memory(NamedTuple):
    """What an MMA reads and writes: of each CTA the shared memory, and the tensor memory by lane and column."""

    smem: Sequence[Sequence[int]]
    tmem: Sequence[Sequence[Sequence[int]]]


def operand_bits(kind: str, type_: str) -> int:
    """Return how many bits an element of A or B takes; narrow floats beside 8-bit ones take a byte."""
    if kind in ("mxf4", "mxf4nvf4"):
        return 4
    return {"f16": 16, "tf32": 32}.get(kind, 8)


def _narrow_bits(kind: str, type_: str) -> int:
    """Return the bits of an element that lies packed in its 16 bytes of shared memory, else 0."""
    packed = {"e2m1": 4, "e3m2": 6, "e2m3": 6}
    return packed.get(type_, 0) if kind in ("f8f6f4", "mxf8f6f4") else 0


def shared_element(memory: Sequence[int], descriptor: int, kind: str, type_: str, major: str, row: int, k: int) -> int:
    """Return the bits of an element of an operand in shared memory.

    16 elements of 4 or 6 bits of the kinds f8f6f4 and mxf8f6f4 take 16 bytes: they are packed, and padding follows.
    """
    bits = operand_bits(kind, type_)
    address = tcgen05_descriptors.operand_address(descriptor, major, bits, row, k)
    if narrow := _narrow_bits(kind, type_):
        chunk = int.from_bytes(bytes(memory[address & ~15 : (address & ~15) + 16]), "little")
        return chunk >> narrow * (address & 15) & (1 << narrow) - 1
    if bits == 4:
        return memory[address] >> 4 * (k % 2) & 15
    return int.from_bytes(bytes(memory[address : address + bits // 8]), "little")


def tensor_memory_element(cell: int, bit: int, kind: str, type_: str) -> int:
    """Return the bits of an element of A in a cell of tensor memory; e2m1 beside 8-bit floats is in bits 2 to 5."""
    bits = operand_bits(kind, type_)
    element = cell >> bit & (1 << bits) - 1
    return (
        element >> 2 & 15 if _narrow_bits(kind, type_) == 4 else element & 63 if _narrow_bits(kind, type_) else element
    )


def _split(address: int) -> tuple[int, int]:
    """Return lane and column of an address of tensor memory. The two highest bits are not part of it."""
    return address >> 16 & 0x3FFF, address & 0xFFFF


class _Mma(NamedTuple):
    """An MMA with all that says where its operands lie."""

    fields: tcgen05_descriptors.Instruction
    idesc: int
    memory: Memory
    d: int
    a: int
    b: int
    cta_group: int
    ws: bool
    a_in_tmem: bool
    block: int
    sfa: int
    sfb: int
    metadata: int | None = None
    """The address of the metadata of a sparse A."""

    @property
    def sparse(self) -> bool:
        return self.metadata is not None

    def places(self, row: int) -> list[int]:
        """Return which element along K each element of a row of A is."""
        fields = self.fields
        if self.metadata is None:
            return list(range(fields.k))
        lane, first = _split(self.metadata)
        places: list[int] = []
        size = 2 if fields.kind == "tf32" else 4
        selector = tcgen05_descriptors.SPARSE_ID.of(self.idesc)
        for chunk in range(fields.k // size):
            part = tensor_memory.metadata_part(row, chunk, fields.kind, fields.m, self.cta_group, selector)
            word = self.memory.tmem[part.cta][part.lane + lane][part.column + first]
            places += [size * chunk + place for place in chunk_places(fields.kind, word >> part.bit & 15)]
        return places

    def cell(self, row: int, column: int) -> Cell:
        """Return the cell of an element of D."""
        fields = self.fields
        lane, first = _split(self.d)
        place = tensor_memory.accumulator_cell(
            row, column, fields.m, fields.n, self.cta_group, ws=self.ws, sparse=self.sparse
        )
        return Cell(place.lane + lane, place.column + first, place.cta)

    def a_element(self, row: int, column: int, k: int) -> int:
        """Return the bits of A that element (row, column) of D is computed from: those in its lane, or those in shared
        memory. `k` counts the elements that are there."""
        fields = self.fields
        cta, own = divmod(row, fields.m // self.cta_group)
        if not self.a_in_tmem:
            return shared_element(self.memory.smem[cta], self.a, fields.kind, fields.a_type, fields.a_major, own, k)
        bits = operand_bits(fields.kind, fields.a_type)
        lane, first = _split(self.a)
        parts = tensor_memory.a_parts(row, k, bits, fields.m, self.cta_group, ws=self.ws, sparse=self.sparse)
        near = tensor_memory.accumulator_cell(
            row, column, fields.m, fields.n, self.cta_group, ws=self.ws, sparse=self.sparse
        ).lane
        part = next(part for part in parts if part.lane == near)
        word = self.memory.tmem[cta][part.lane + lane][part.column + first]
        return tensor_memory_element(word, part.bit, fields.kind, fields.a_type)

    def b_element(self, column: int, k: int) -> int:
        fields = self.fields
        cta, own = divmod(column, fields.n // self.cta_group)
        return shared_element(self.memory.smem[cta], self.b, fields.kind, fields.b_type, fields.b_major, own, k)

    def scale(self, of_a: bool, row: int, column: int, number: int) -> Number:
        """Return a scale factor of a row of A or column of B, from the copy in the warp whose lanes have the element.

        Where the scale factors of an instruction do not end in their 32-bit cell (K = 96), they go on in the cell of
        the next four scale factors: as many columns further on as all rows take, 128 at a time.
        """
        fields = self.fields
        cell = tensor_memory.accumulator_cell(row, column, fields.m, fields.n, self.cta_group)
        first = (tcgen05_descriptors.SFA_ID if of_a else tcgen05_descriptors.SFB_ID).of(self.idesc)
        if of_a:
            parts = tensor_memory.scale_parts(row % (fields.m // self.cta_group), number, first)
            rows = 128
        elif fields.m // self.cta_group == 64:
            parts = tensor_memory.sfb_parts_2x2(column, fields.n, number, first)
            rows = 128
        else:
            parts = tensor_memory.scale_parts(column, number, first)
            rows = -(-fields.n // 128) * 128
        part = next(part for part in parts if part.lane // 32 == cell.lane // 32)
        lane, start = _split(self.sfa if of_a else self.sfb)
        word = self.memory.tmem[cell.cta][lane + part.lane][start + part.column + part.bit // 32 * (rows // 32)]
        return decode_scale(fields.scale_type or "", word >> part.bit % 32 & 255)


def chunk_places(kind: str, index: int) -> tuple[int, ...]:
    """Return where the elements of a sparse A lie in their chunk, by its 4 bits of metadata.

    A chunk is 4 elements, of which the lower and the upper two bits number one each, or 2 elements of tf32, where 0b0100
    and 0b1110 number one together. The numbers differ, and the second may be the smaller one if it is 1.
    """
    if kind == "tf32" and index in (0b0100, 0b1110):
        return (index >> 3,)
    if kind != "tf32" and index in SPARSE_INDICES:
        return index & 3, index >> 2
    raise ValueError(f"the index of a chunk of a sparse A of kind::{kind} is {index:#06b}")


SPARSE_INDICES = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b0110, 0b1110)
"""The metadata that a chunk of 4 elements may have."""


def _signed(bits: int, width: int) -> int:
    return bits - (1 << width) * (bits >> width - 1)


def _negated(number: Number, negate: int) -> Number:
    return Number(-number.value, number.exponent) if negate else number


def _element(mma: _Mma, row: int, column: int, word: int | None, scale_input_d: int, zero_column: bool) -> int:
    """Return the new bits of an element of D whose cell has `word`, None if it is not added."""
    fields = mma.fields
    idesc = mma.idesc
    places = mma.places(row)
    a_bits = [mma.a_element(row, column, k) for k in range(len(places))]
    b_bits = [0 if zero_column else mma.b_element(column, k) for k in places]
    if fields.kind == "i8":
        a, b = (
            [_signed(x, 8) if type_ == "s8" else x for x in bits]
            for bits, type_ in ((a_bits, fields.a_type), (b_bits, fields.b_type))
        )
        start = 0 if word is None else math.trunc(Fraction(_signed(word, 32), 1 << scale_input_d))
        return mma_integers(a, b, start, bool(tcgen05_descriptors.SATURATE.of(idesc)))
    negate_a = tcgen05_descriptors.NEGATE_A.of(idesc)
    negate_b = tcgen05_descriptors.NEGATE_B.of(idesc)
    a = [_negated(decode_float(fields.a_type, x), negate_a) for x in _tf32(fields.a_type, a_bits)]
    b = [_negated(decode_float(fields.b_type, x), negate_b) for x in _tf32(fields.b_type, b_bits)]
    d = None
    if word is not None:
        narrow = fields.accumulator == "f16"
        d = decode_float(fields.accumulator, word & 0xFFFF if narrow else word)
        if d.is_finite:
            d = Number(d.value * Fraction(1, 1 << scale_input_d), d.exponent - scale_input_d)
    if fields.scale_type is None:
        return mma_floats(a, b, d, fields.accumulator)
    counts = range(fields.k // mma.block)
    sfa, sfb = ([mma.scale(of_a, row, column, number) for number in counts] for of_a in (True, False))
    if fields.kind == "mxf8f6f4":
        return mma_floats(a, b, d, "f32", sfa[0], sfb[0])
    return mma_fp4(a, b, d, sfa, sfb, mma.block)


def _tf32(type_: str, bits: Sequence[int]) -> Sequence[int]:
    """Return elements without the 13 bits of a tf32 that are ignored."""
    return [x >> 13 for x in bits] if type_ == "tf32" else bits


def _written(
    mma: _Mma,
    accumulate: bool,
    elements: Iterable[tuple[int, int]] | None,
    masks: Sequence[int] = (),
    scale_input_d: int = 0,
    zero_columns: Sequence[bool] = (),
) -> Iterator[tuple[Cell, int]]:
    fields = mma.fields
    if elements is None:
        elements = ((row, column) for row in range(fields.m) for column in range(fields.n))
    for row, column in elements:
        cell = mma.cell(row, column)
        if masks and masks[4 * cell.cta + cell.lane // 32] >> cell.lane % 32 & 1:
            continue
        old = mma.memory.tmem[cell.cta][cell.lane][cell.column]
        zero = bool(zero_columns) and zero_columns[column]
        new = _element(mma, row, column, old if accumulate else None, scale_input_d, zero)
        yield cell, old & 0xFFFF0000 | new if fields.accumulator == "f16" else new


def tcgen05_mma(
    kind: str,
    idesc: int,
    memory: Memory,
    d: int,
    a: int,
    b: int,
    accumulate: bool,
    *,
    cta_group: int = 1,
    a_in_tmem: bool = False,
    disable_output_lane: Sequence[int] = (),
    scale_input_d: int = 0,
    elements: Iterable[tuple[int, int]] | None = None,
) -> dict[Cell, int]:
    """Compute `tcgen05.mma` of the kinds f16, tf32, f8f6f4 and i8: the cells that it writes, and their new words.

    `d` and the `a` of an A in tensor memory are addresses, `b` and other `a` descriptors. A pair reads A and B from
    both CTAs with the same descriptors: of A the rows of that CTA's half of D, of B half of the columns. Bits of
    `disable_output_lane` are lanes, 128 for each CTA. D is multiplied by 2^-`scale_input_d` without rounding (integers
    are cut off). The upper half of a cell with an f16 is kept. `elements` are those of D to compute, else all.
    """
    fields = tcgen05_descriptors.decode(kind, idesc)
    mma = _Mma(fields, idesc, memory, d, a, b, cta_group, False, a_in_tmem, 0, 0, 0)
    return dict(_written(mma, accumulate, elements, disable_output_lane, scale_input_d))


def tcgen05_mma_sp(
    kind: str,
    idesc: int,
    memory: Memory,
    d: int,
    a: int,
    b: int,
    metadata: int,
    accumulate: bool,
    *,
    cta_group: int = 1,
    a_in_tmem: bool = False,
    disable_output_lane: Sequence[int] = (),
    scale_input_d: int = 0,
    elements: Iterable[tuple[int, int]] | None = None,
) -> dict[Cell, int]:
    """Compute `tcgen05.mma.sp`: `tcgen05_mma` with a sparse A, whose metadata are at an address."""
    fields = tcgen05_descriptors.decode(kind, idesc)
    mma = _Mma(fields, idesc, memory, d, a, b, cta_group, False, a_in_tmem, 0, 0, 0, metadata)
    return dict(_written(mma, accumulate, elements, disable_output_lane, scale_input_d))


def tcgen05_mma_ws(
    kind: str,
    idesc: int,
    memory: Memory,
    d: int,
    a: int,
    b: int,
    accumulate: bool,
    *,
    a_in_tmem: bool = False,
    zero_column_mask: int = 0,
    elements: Iterable[tuple[int, int]] | None = None,
) -> dict[Cell, int]:
    """Compute `tcgen05.mma.ws`: `tcgen05_mma` of one CTA with other layouts of D, and columns of B that are zero."""
    fields = tcgen05_descriptors.decode(kind, idesc)
    zero = tcgen05_descriptors.zero_columns(zero_column_mask, fields.m, fields.n)
    mma = _Mma(fields, idesc, memory, d, a, b, 1, True, a_in_tmem, 0, 0, 0)
    return dict(_written(mma, accumulate, elements, zero_columns=zero))


def tcgen05_mma_block_scale(
    kind: str,
    block: int,
    idesc: int,
    memory: Memory,
    d: int,
    a: int,
    b: int,
    sfa: int,
    sfb: int,
    accumulate: bool,
    *,
    cta_group: int = 1,
    a_in_tmem: bool = False,
    elements: Iterable[tuple[int, int]] | None = None,
) -> dict[Cell, int]:
    """Compute `tcgen05.mma` with scale factors for `block` elements of A and B, at addresses `sfa` and `sfb`."""
    fields = tcgen05_descriptors.decode(kind, idesc)
    mma = _Mma(fields, idesc, memory, d, a, b, cta_group, False, a_in_tmem, block, sfa, sfb)
    return dict(_written(mma, accumulate, elements))
