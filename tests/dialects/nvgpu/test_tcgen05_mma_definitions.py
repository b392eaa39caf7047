"""Facts of `tcgen05.mma` that its definition in plain Python has to show: cut-off, rounding, special numbers, masks."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from kiln.dialects.nvgpu import tcgen05_definitions as definitions
from kiln.dialects.nvgpu import tcgen05_descriptors as descriptors
from kiln.dialects.nvgpu import tensor_memory as tmem
from kiln.dialects.nvgpu.tcgen05_definitions import Number, decode_float, decode_scale, encode_f16, encode_f32

ONE = Number(Fraction(1), 0)
ZERO = Number(Fraction(0), -126)


def power(exponent: int, sign: int = 1) -> Number:
    return Number(sign * Fraction(2) ** exponent, exponent)


def dot(a: list[Number], b: list[Number], d: Number | None = None) -> Fraction | float:
    return decode_float("f32", definitions.mma_floats(a, b, d, "f32")).value


def test_terms_are_cut_off_25_bits_below_the_largest_exponent():
    assert dot([ONE, power(0, -1), power(-26)], [ONE] * 3) == 0
    assert dot([ONE, power(0, -1), power(-25)], [ONE] * 3) == Fraction(2) ** -25
    assert dot([ONE] * 32, [ONE] * 32, power(24)) == (1 << 24) + 32
    assert dot([power(-25, -1)], [ONE], ONE) == 1 - Fraction(2) ** -24  # one unit below 1, towards zero
    # a product of 1.5 and 1.5 has the exponent 0, although it is more than 2
    assert dot([Number(Fraction(3, 2), 0), power(-25)], [Number(Fraction(3, 2), 0), ONE], power(1, -1)) == Fraction(
        1, 4
    )


def test_zeros_have_no_exponent():
    assert dot([ZERO, power(-30)], [power(127), ONE]) == Fraction(2) ** -30
    assert (
        definitions.mma_fp4([ZERO] * 16 + [ONE] * 16, [ONE] * 32, None, [power(100), power(0)], [ONE] * 2, 16)
        == 0x41800000
    )
    assert dot([ZERO], [ONE], ZERO) == 0 and definitions.mma_floats([ZERO], [power(0, -1)], None, "f32") == 0


def test_results_that_are_too_large_or_not_finite():
    largest = (2 - Fraction(2) ** -23) * Fraction(2) ** 127
    assert dot([power(103)], [ONE], Number(largest, 127)) == largest
    assert dot([power(104)], [ONE], Number(largest, 127)) == math.inf
    infinite, nan = Number(math.inf, 0), 0x7FFFFFFF
    assert definitions.mma_floats([infinite], [ZERO], None, "f32") == nan
    assert definitions.mma_floats([infinite], [ONE], Number(-math.inf, 0), "f32") == nan
    assert definitions.mma_floats([infinite], [power(0, -1)], ONE, "f32") == 0xFF800000
    assert definitions.mma_floats([definitions.NAN], [ONE], None, "f16") == 0x7FFF
    assert definitions.mma_floats([ZERO], [ZERO], None, "f32", decode_scale("ue8m0", 255), ONE) == nan


def test_rounding():
    assert encode_f16(Fraction(65519)) == 0x7BFF and encode_f16(Fraction(65520)) == 0x7C00
    assert encode_f16(Fraction(2049, 2048)) == 0x3C00 and encode_f16(Fraction(2051, 2048)) == 0x3C02  # ties to even
    assert encode_f16(Fraction(3) * Fraction(2) ** -25) == 2 and encode_f16(-(Fraction(2) ** -25)) == 0x8000
    assert encode_f32(Fraction(2) ** -149) == 1 and encode_f32(-(Fraction(2) ** -150)) == 0x80000000
    for word in (0x00000001, 0x007FFFFF, 0x00800000, 0x3F800001, 0x7F7FFFFF, 0xC0490FDB):
        assert encode_f32(decode_float("f32", word).value) == word
    for half in (1, 0x3FF, 0x400, 0x3C01, 0x7BFF, 0xC248):
        assert encode_f16(decode_float("f16", half).value) == half


def test_scale_factors():
    assert decode_scale("ue8m0", 0) == power(-127) and decode_scale("ue8m0", 254) == power(127)
    assert decode_scale("ue4m3", 0x01) == Number(Fraction(1, 512), -6) and decode_scale(
        "ue4m3", 0xBC
    ).value == Fraction(3, 2)
    assert math.isnan(decode_scale("ue4m3", 0xFF).value)
    ones = [ONE] * 64
    assert definitions.mma_fp4(ones, ones, ONE, [ONE] * 4, [ONE] * 4, 16) == 0x42820000  # 65
    # the exponent of a term is that of its scales: a product of 16 x 36 is 2^9 times larger
    six = [Number(Fraction(6), 2)] * 16
    assert definitions.mma_fp4(six, six, power(-36), [ONE], [ONE], 16) == encode_f32(Fraction(576))
    assert definitions.mma_fp4(six, [Number(Fraction(-6), 2)] * 16, Number(Fraction(576), 9), [ONE], [ONE], 16) == 0


@pytest.mark.parametrize(("type_", "codes"), [("e2m1", 16), ("e2m3", 64), ("e3m2", 64)])
def test_narrow_floats(type_, codes):
    numbers = [decode_float(type_, code).value for code in range(codes)]
    assert numbers[: codes // 2] == sorted(numbers[: codes // 2]) and len(set(numbers)) == codes - 1  # two zeros
    assert max(numbers) == {"e2m1": 6, "e2m3": Fraction(15, 2), "e3m2": 28}[type_]
    assert [-x for x in numbers[: codes // 2]] == numbers[codes // 2 :]


def test_columns_that_count_as_zero_are_those_of_the_manual():
    """Spans of 3 zero and 4 used columns."""
    span = 2 << 40 | 3 << 48 | 1 << 39

    def bits(mask: int, m: int, n: int) -> str:
        return "".join("01"[zero] for zero in descriptors.zero_columns(mask, m, n))

    assert bits(span, 128, 64).startswith("00001110000111")
    assert bits(span | 1 << 32, 64, 64).startswith("11100001110000111")
    assert bits(span | 1 << 32, 64, 64)[32:].startswith("00001110000111")
    four = span | 1 << 8 | 2 << 16 | 1 << 24 | 0b0011 << 32
    parts = [bits(four, 32, 128)[32 * i :][:12] for i in range(4)]
    assert parts == ["111000011100", "110000111000", "001110000111", "000111000011"]
    assert not any(descriptors.zero_columns(span & ~(1 << 39), 32, 64))


def test_a_row_of_48_bytes_goes_on_in_the_next_buffer():
    descriptor = descriptors.tcgen05_matrix_descriptor(96, 0x8000, 1024, "128b", absolute_leading=True)
    row = [descriptors.operand_address(descriptor, "k", 4, 8, k) for k in (0, 32, 64, 95)]
    assert row == [1024 + 96, 1024 + 112, 0x8000 + 1024, 0x8000 + 1024 + 15]


def test_a_of_stationary_mmas_lies_where_rows_of_d_do():
    assert [part.lane for part in tmem.a_parts(5, 0, 16, 64, ws=True)] == [5, 69]
    assert [part.lane for part in tmem.a_parts(5, 0, 16, 32, ws=True)] == [5, 37, 69, 101]
    assert [part.lane for part in tmem.a_parts(20, 0, 16, 64)] == [36]
