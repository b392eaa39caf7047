"""The documented promotion table is what happens, outside a trace and inside."""

from __future__ import annotations

import operator
from pathlib import Path
from typing import Any

import pytest
from numeric_testing import argument

from kiln.base_dsl.numeric.meta import TYPES
from kiln.base_dsl.typing import (
    BFloat16,
    Boolean,
    Float8E4M3FN,
    Float16,
    Float32,
    Float64,
    Int8,
    Int16,
    Int32,
    Int64,
    Int128,
    Numeric,
    Uint8,
    Uint16,
    Uint32,
    Uint64,
    common_type,
    dtype,
    join,
    maximum,
    minimum,
    select,
)

DOCUMENT = Path(__file__).parents[3] / "docs" / "numeric-types.md"


def documented() -> list[tuple[Any, Any, Any]]:
    rows = [line.strip("| \n").split("|") for line in DOCUMENT.read_text().splitlines() if line.startswith("| **")]
    names = [row[0].strip(" *") for row in rows]
    return [
        (dtype(name), dtype(column), dtype(cell.strip()))
        for name, row in zip(names, rows)
        for column, cell in zip(names, row[1:], strict=True)
    ]


def test_the_document_has_the_table() -> None:
    assert len(documented()) >= 14**2


@pytest.mark.parametrize(("a", "b", "expected"), documented(), ids=str)
def test_table(a: Any, b: Any, expected: Any) -> None:
    assert common_type(a, b) is expected is common_type(b, a)
    if expected is Boolean:
        expected = Int32
    assert type(a(1) + b(1)) is expected
    assert type(a(1) * b(1)) is expected


def test_table_inside_a_trace(tracing: Any) -> None:
    for a, b, expected in documented():
        expected = Int32 if expected is Boolean else expected
        result = argument(a) + argument(b)
        assert type(result) is expected
        assert result.ir_value().type == expected.mlir_type


def test_every_pair_has_a_common_type() -> None:
    computable: list[Any] = [t for name, t in TYPES.items() if not name.endswith(("x2", "x4"))]
    for a in computable:
        assert common_type(a, a) is a
        for b in computable:
            assert common_type(a, b) is common_type(b, a)


BESIDE_PYTHON = [
    (Float16, 2, Float32),
    (Float16, 2.5, Float32),
    (Float16, True, Float16),
    (Float16, 10**12, Float32),
    (BFloat16, 1e30, Float32),
    (BFloat16, 2, Float32),
    (Float64, 2, Float64),
    (Float8E4M3FN, 2.5, Float32),
    (Int32, 2.0, Float32),
    (Int8, 2.0, Float32),
    (Int64, 2.0, Float64),
    (Boolean, 2.0, Float32),
    (Boolean, 3, Int32),
    (Boolean, True, Int32),
    (Int32, True, Int32),
    (Int8, True, Int8),
    (Int8, 2, Int32),
    (Uint16, 2, Int32),
    (Uint32, 2, Uint32),
    (Int32, 2**31 - 1, Int32),
    (Int32, 2**31, Int64),
    (Int32, 2**40, Int64),
    (Int32, 2**63, Int128),
    (Int8, -129, Int32),
    (Uint8, 300, Int32),
    (Uint8, -1, Int32),
    (Uint8, 2**40, Int64),
    (Uint32, -1, Int64),
    (Uint32, 2**32 - 1, Uint32),
    (Uint32, 2**32, Uint64),
    (Uint64, -1, Int128),
]


@pytest.mark.parametrize(("t", "scalar", "expected"), BESIDE_PYTHON, ids=str)
def test_python_scalars_count_as_32_bits(t: Any, scalar: Any, expected: Any) -> None:
    assert type(t(1) + scalar) is expected
    assert type(scalar + t(1)) is expected


def test_python_scalars_inside_a_trace(tracing: Any) -> None:
    for t, scalar, expected in BESIDE_PYTHON:
        for result in (argument(t) + scalar, scalar * argument(t)):
            assert type(result) is expected
            assert result.ir_value().type == expected.mlir_type


def test_widening_loses_no_bit() -> None:
    mask = ~(1 << 31)
    result = Uint32(0xFFFFFFFF) & mask
    assert result.value == 0x7FFFFFFF == 0xFFFFFFFF & mask
    assert (Int32(-1) & 0xFFFFFFFF).value == 0xFFFFFFFF


def test_true_division_is_a_float() -> None:
    assert type(Int32(10) / Int32(3)) is Float32
    assert (Int32(10) / Int32(3)).value == pytest.approx(10 / 3, rel=1e-7)
    assert type(Int64(10) / 3) is Float64
    assert type(7 / Uint8(2)) is Float32
    assert type(Float16(1) / Int32(3)) is Float32


def test_shifts_have_the_common_type() -> None:
    assert type(Int8(1) << Int64(3)) is Int64
    assert type(1 << Uint16(3)) is Int32
    assert (Uint8(255) << 2).value == 1020
    assert type(Uint32(1) >> 2) is Uint32
    assert type(Int8(1) << Int8(3)) is Int8


def test_choices_keep_the_type() -> None:
    """The smaller, the larger, the chosen: a Python scalar takes the type of the other, where that keeps it."""
    for choose in (minimum, maximum, lambda a, b: select(Boolean(True), a, b)):
        assert type(choose(Float16(1), 2.5)) is Float16
        assert type(choose(3, Int8(1))) is Int8
        assert type(choose(Int8(1), 300)) is Int16


def test_comparisons_with_python_scalars() -> None:
    assert (Float16(0.1) == 0.1).value is False  # as Float32, where they differ
    assert (Uint32(0) > -1).value is True
    assert (Int8(5) < 300).value is True


def test_from_python() -> None:
    kinds = {True: Boolean, 5: Int32, 2**31: Int64, -(2**63): Int64, 2**100: Int128, 1.5: Float32}
    for value, t in kinds.items():
        assert Numeric.from_python(value) is t
    with pytest.raises(TypeError):
        Numeric.from_python("5")
    with pytest.raises(OverflowError):
        Numeric.from_python(1 << 200)


JOINS = [
    (Float32(1), 0.0, Float32),
    (Float32(1), 0, Float32),
    (0.0, Float16(1), Float16),
    (Int32(1), 0, Int32),
    (Int32(1), 2**40, None),
    (Int32(1), 0.5, None),
    (Int32(1), Float32(1), None),
    (Int32(1), Int32(2), Int32),
    (Int32(1), True, None),
    (Boolean(True), False, Boolean),
    (Boolean(True), 1, None),
    (Float32(1), True, None),
    (1, 2, Int32),
    (1, 2**40, Int64),
    (1.0, 2.0, Float32),
    (1, 2.0, Float32),
    (True, False, Boolean),
    (True, 1, None),
    (1, "a", None),
    (None, Int32(1), None),
]


@pytest.mark.parametrize(("a", "b", "expected"), JOINS, ids=repr)
def test_join(a: Any, b: Any, expected: Any) -> None:
    assert join(a, b) is expected
    assert join(b, a) is expected


def test_not_a_number_is_left_to_python() -> None:
    assert (Int32(1) == "a") is False
    assert (Int32(1) != None) is True  # noqa: E711
    for op in (operator.add, operator.lt, operator.and_):
        with pytest.raises(TypeError):
            op(Int32(1), "a")
    with pytest.raises(TypeError):
        Int32(1) & Float32(1)
    with pytest.raises(TypeError):
        Float32(1) & 1  # type: ignore[operator]
