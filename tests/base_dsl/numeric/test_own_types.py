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


class Pair(Float32, metaclass=FloatMeta, width=64, mlir_type=T.f64):
    """Two numbers of 16 bits in one: the second counts in units of 65536."""

    def __init__(self, x, high=None, *, loc=None, ip=None):
        if high is not None:
            x = (x, high)
        if isinstance(x, tuple):
            x = x[0] + 65536.0 * x[1]
        elif isinstance(x, kiln.Numeric) and not isinstance(x, Pair):
            x = Float64(x) + 0.5  # other than a conversion of the base
        kiln.Numeric.__init__(self, x)


class Named(Pair):
    pass


@pytest.mark.parametrize("own", [Pair, Named])
def test_their_init_makes_the_value(own):
    assert (own((1.0, 2.0)).value, own(1.0, 2.0).value, own(x=3.0, high=1).value) == (131073.0, 131073.0, 65539.0)
    assert (own(own(1.0, 2.0)).value, own(Float32(1.0)).value) == (131073.0, 1.5)
    assert type(Float32(1.0).to(own)) is own and Float32(1.0).to(own).value == 1.5
    with pytest.raises(TypeError, match="positional argument"):
        Float32(1.0, 2.0)  # type: ignore[call-arg]


def test_what_is_stored_is_made_by_their_init():
    @cute.jit
    def store(x: cute.Tensor, y: Float32):
        x = cute.recast_tensor(x, Pair)
        x._dtype = Pair
        x[0] = (1.0, 2.0)
        x[1] = y
        x[2] = Pair(y + 1.0, 1.0)  # pyright: ignore[reportCallIssue]
        x[3] = x[0]
        with pytest.raises(kiln.base_dsl.diagnostics.DSLUserCodeTypeError, match="elements of a tensor are Pair"):
            x._dtype = Float64

    x = np.zeros(4)
    store(x, 4.0)
    assert x.tolist() == [131073.0, 4.5, 65541.0, 131073.0]


def test_code_for_tensors_of_them_takes_arrays_of_the_types_they_are_made_of():
    @cute.jit
    def double(x: cute.Tensor, y: Pair):
        assert x.element_type is Pair
        x[0] = Pair(Float64(x[0].ir_value()).ir_value()) + y

    x = np.array([3.0])
    made = cute.compile(
        double, cute.runtime.make_fake_tensor(Pair, (1,), (1,), memspace=cute.AddressSpace.generic), Pair(0.0)
    )
    made(x, Pair(1.0, 1.0))  # pyright: ignore[reportCallIssue]
    assert x[0] == 65540.0
