"""Numeric types of a program's own: subclasses, also with the keywords of the metaclasses."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Float16, Float32, Float64, Int32, cute
from kiln.base_dsl.numeric import meta
from kiln.base_dsl.typing import FloatMeta, IntegerMeta, NumericMeta
from kiln.cutlass_dsl import T  # pyright: ignore[reportAttributeAccessIssue]


class Wide(Float32, metaclass=FloatMeta, width=64, mlir_type=T.f64):
    pass


class Count(Int32, metaclass=IntegerMeta, width=64, mlir_type=T.i64, signed=False, np_dtype_name="uint64"):
    pass


class Half(Float16):
    pass


class Index(Int32):
    pass


def test_they_know_what_they_are():
    assert (Wide.width, str(Wide.mlir_type), Wide.numpy_dtype, Wide.mantissa_width) == (64, "f64", np.float64, 52)
    assert (Count.width, Count.signed, Count.max, Count.numpy_dtype) == (64, False, (1 << 64) - 1, np.uint64)
    assert (Half.width, Half.max, Index.min, Index.bytes) == (16, 65504.0, -(1 << 31), 4)
    assert isinstance(Wide(1.5), Float32)
    assert Wide(1.5) + Wide(2) == 3.5


def test_they_do_not_take_the_place_of_others():
    assert NumericMeta.from_mlir_type(Float64.mlir_type) is Float64
    assert NumericMeta.from_mlir_type(Int32.mlir_type) is Int32
    assert meta.INTEGERS[64, False] is kiln.Uint64
    assert "Wide" not in meta.TYPES
    assert type(kiln.base_dsl.typing.as_numeric(3)) is Int32


def test_programs_compute_with_them():
    @cute.jit
    def main(a: Wide, b: Count, n: Index, h: Half):
        x = a + Wide(2)
        for _ in range(n):
            x = x + h
            b += 1
        if n > 2:
            x = Wide(0.5) + x
        kinds = [type(v) for v in (x, x * 2.0, b + 1, h * 2, n + 1, x.to(Float32))]
        assert kinds == [Wide, Wide, Count, Float32, Index, Float32]
        return x, b

    with kiln.target("cpu"):
        x, b = main(1 / 3, 1 << 40, 3, 0.25)
    assert (x, b) == (1 / 3 + 2 + 0.25 + 0.25 + 0.25 + 0.5, (1 << 40) + 3)


class Place(Index):
    pass


class Other(Int32):
    pass


class Size(Index, metaclass=IntegerMeta, signed=False):
    pass


class SmallHalf(Half):
    pass


@pytest.mark.parametrize(
    ("a", "b", "met"),
    [
        (Index, Int32, Index),
        (Index, kiln.Int8, Index),
        (Index, kiln.Uint32, kiln.Uint32),
        (Index, kiln.Int64, kiln.Int64),
        (Index, 1, Index),
        (Index, 1 << 40, kiln.Int64),
        (Index, 0.5, Float32),
        (Half, Float16, Half),
        (Half, kiln.Int8, Half),
        (Half, kiln.BFloat16, Float32),
        (Half, 1, Float32),
        (Half, True, Half),
        (Wide, Float32, Wide),
        (Wide, Count, Wide),
        (Wide, 2, Wide),
        (Count, kiln.Int64, Count),
        (Count, 0.5, Float64),
        (Place, Index, Place),  # one made from the other
        (Place, Int32, Place),
        (Index, Other, Int32),  # neither is
        (Size, Index, Size),  # as Uint32 beside Int32
        (Size, 1, Size),
        (SmallHalf, Half, SmallHalf),
        (SmallHalf, SmallHalf, SmallHalf),
    ],
)
def test_they_meet_others_as_the_types_they_are_made_of(a, b, met):
    x, y = (t(1) if isinstance(t, NumericMeta) else t for t in (a, b))
    assert (type(x + y), type(y + x)) == (met, met)


def test_what_they_are_made_of_is_no_type_of_a_program():
    assert (Place._model, Size._model, SmallHalf._model, Wide._model) == (Int32, kiln.Uint32, Float16, Float64)
    assert (Size.min, Size(-1), SmallHalf._compute) == (0, (1 << 32) - 1, SmallHalf)


def test_a_width_that_is_not_that_of_the_values_is_refused():
    with pytest.raises(TypeError, match="its values have 64 bits in the IR"):

        class Wrong(Float32, metaclass=FloatMeta, width=32, mlir_type=T.f64):
            pass
