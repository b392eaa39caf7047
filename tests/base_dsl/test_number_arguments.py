"""Numbers as arguments: those that their type does not have are refused."""

# pyright: reportInvalidTypeForm=false

# annotations are values here: they name parameters of the tests
import math
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.base_dsl.numeric import host
from kiln.base_dsl.typing import (
    BFloat16,
    Float4E2M1FN,
    Float6E2M3FN,
    Float6E3M2FN,
    Float8E4M3,
    Float8E4M3B11FNUZ,
    Float8E4M3FN,
    Float8E5M2,
    Float8E8M0FNU,
    Float16,
    Float32,
    Int32,
    TFloat32,
)

FLOATS = [
    Float16,
    BFloat16,
    TFloat32,
    Float8E4M3FN,
    Float8E4M3,
    Float8E5M2,
    Float8E4M3B11FNUZ,
    Float8E8M0FNU,
    Float6E3M2FN,
    Float6E2M3FN,
    Float4E2M1FN,
]


@pytest.mark.parametrize("t", FLOATS)
def test_numbers_beyond_the_range_are_refused_as_arguments(t: Any) -> None:
    """At every door, and exactly those that would become an infinity or the largest number."""

    @cute.kernel
    def writes(out: cute.Tensor, x: t):
        out[0] = x.to(Float32)

    @cute.jit
    def launches(out: cute.Tensor):
        writes(out, number).launch(grid=1, block=1)

    @cute.jit
    def given(x: t):
        return x.to(Float32)

    @cute.jit
    def in_a_pair(x: tuple[t, Int32]):
        return x[0].to(Float32)

    compiled = cute.compile(given, 1.0)
    largest, beyond = t._format.max, t._format.least_beyond
    within = math.nextafter(float(beyond), 0.0)
    assert compiled(within) == given(within) == in_a_pair((within, 1)) == largest
    for number in (float(beyond), 1e300, 10**400, *([] if t is Float8E8M0FNU else [-1e300])):
        calls = [lambda: given(number), lambda: compiled(number), lambda: in_a_pair((number, 1))]
        for call in [*calls, lambda: launches(np.zeros(1, np.float32))]:
            with pytest.raises(kiln.DSLBaseError, match=f"takes {t.__name__} and got .*outside its range"):
                call()
        with pytest.raises(kiln.DSLBaseError, match="is no value of"):
            cute.jit(lambda x, n: number if n > 0 else x.to(t))(1.0, 1)
    if t._format.has_inf and not t._format.saturates:
        assert given(math.inf) == math.inf
    else:
        with pytest.raises(kiln.DSLBaseError, match="got inf, which lies outside its range"):
            given(math.inf)
    assert given(t(1e300)) == t(1e300).value  # converted on purpose


def test_integers_beyond_bfloat16() -> None:
    """They go through Float32, and the last below the limit are rounded up to it there."""
    limit = (1 << 128) - (1 << 119)
    for number in (limit, limit - (1 << 103), limit - (1 << 103) - 1, -limit):
        assert host.in_range(BFloat16, number) == math.isfinite(host.cast(BFloat16, number))
