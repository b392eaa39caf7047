"""Element-wise functions against numpy on the CPU target: broadcasting, strides, types, ends; bad input."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute, kernels

RNG = np.random.default_rng(0)
SMALL = kernels.ElementwiseConfig(32, 4)
scale = 2.0


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def normal(*shape: int, dtype=np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("n", [1, 3, 4, 130, 1003])
def test_lengths(n):
    x, y = normal(n), normal(n)
    np.testing.assert_array_equal(kernels.elementwise(lambda a, b: a * b + 1, x, y, config=SMALL), x * y + 1)


def test_broadcasting():
    a, b, c = normal(5, 7, 16), normal(7, 1), normal(16, dtype=np.float16)
    made = kernels.elementwise(lambda x, y, z: x * y + z, a, b, c)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, a * b + c, rtol=1e-6)
    np.testing.assert_array_equal(
        kernels.elementwise(lambda x, y: x - y, b, normal(1)[0] * 0 + a[0, 0, 0]), b - a[0, 0, 0]
    )


def test_strides_of_inputs_and_out():
    x = normal(6, 10, 12)
    view = x[::2, 1:, 3:].transpose(2, 0, 1)
    np.testing.assert_array_equal(kernels.elementwise(lambda v: v * 3, view), view * 3)
    out = np.zeros((12, 10, 6), np.float32).T
    assert kernels.elementwise(lambda v: -v, x, out=out) is out
    np.testing.assert_array_equal(out, -x)
    # what lies alike is walked as one mode, whichever order it has
    turned = np.asfortranarray(x)
    np.testing.assert_array_equal(kernels.elementwise(lambda a, b: a + b, turned, turned, out=out), x + x)


@pytest.mark.parametrize(
    "function", [lambda v: v / 2, lambda v: v / 2 if v > 0 else v / 2], ids=["vectors", "elements"]
)
def test_division_of_integers_is_a_float(function):
    """As numpy's, in either form of a function; in a kernel `/` of vectors of integers gives integers."""
    made = kernels.elementwise(function, np.array([7, -7, 1], np.int32))
    assert made.dtype == np.float64
    assert made.tolist() == [3.5, -3.5, 0.5]


@pytest.mark.quick(4)
@pytest.mark.parametrize(
    "dtype",
    [
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        np.float64,
        np.int8,
        np.int32,
        np.int64,
    ],
)
def test_types(dtype):
    x = (RNG.standard_normal(37) * 4).astype(dtype)
    made = kernels.elementwise(lambda v: v * 2, x)
    assert made.dtype == dtype
    np.testing.assert_array_equal(made.astype(np.float64), (x.astype(np.float64) * 2).astype(dtype).astype(np.float64))


def test_results_have_the_type_the_function_gives():
    x = normal(9)
    assert kernels.elementwise(lambda v: v > 0, x).dtype == np.bool_
    assert kernels.elementwise(lambda v: v, x, out_dtype=np.float16).dtype == np.float16
    made = kernels.elementwise(lambda v: cute.where(v > 0, v, 0.0), x)
    np.testing.assert_array_equal(made, np.maximum(x, 0))


def test_the_function_sees_only_elements_that_exist():
    """Past the end there is no zero to divide by."""
    x, y = np.arange(1, 8, dtype=np.int32), np.full(7, 3, np.int32)
    np.testing.assert_array_equal(kernels.elementwise(lambda a, b: a // b, x, y, config=SMALL), x // 3)


def test_numbers_and_what_the_function_reads():
    global scale
    x = normal(5)
    for factor in (2.0, 3.0):
        np.testing.assert_array_equal(kernels.elementwise(lambda a, b: a * b, x, factor), x * np.float32(factor))
        np.testing.assert_array_equal(
            kernels.elementwise(lambda a, factor=factor: a * factor, x), x * np.float32(factor)
        )
        scale = factor
        np.testing.assert_array_equal(kernels.elementwise(lambda a: a * scale, x), x * np.float32(factor))


def test_torch_and_empty():
    torch = pytest.importorskip("torch")
    x = torch.randn(4, 6, dtype=torch.bfloat16)
    made = kernels.elementwise(lambda a, b: a + b, x.T, torch.ones(4, dtype=torch.bfloat16))
    assert made.dtype == torch.bfloat16
    torch.testing.assert_close(made, x.T + 1)
    assert kernels.elementwise(lambda a: a, np.zeros((0, 3), np.float32)).shape == (0, 3)


def test_arrays_of_other_libraries():
    class Foreign:
        """An array that only knows DLPack."""

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    x = normal(8)
    np.testing.assert_array_equal(np.from_dlpack(kernels.elementwise(lambda a: a + 1, Foreign(x))), x + 1)
    np.testing.assert_allclose(np.from_dlpack(kernels.sum(Foreign(x))), x.sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: kernels.elementwise(lambda a, b: a + b, np.zeros((2, 4)), np.zeros(3)), "3 meets 4"),
        (
            lambda: kernels.elementwise(lambda a: a, np.zeros(4), out=np.zeros(5)),
            r"\(4,\) into an array of shape \(5,\)",
        ),
        (lambda: kernels.elementwise(lambda a: a, np.zeros(4), config=kernels.ElementwiseConfig(48)), "32 to 1024"),
        (
            lambda: kernels.elementwise(lambda a: a, np.zeros(4), config=kernels.ElementwiseConfig(64, 3)),
            "elements is 3",
        ),
        (lambda: kernels.elementwise(lambda: 1), "without an array"),
        (lambda: kernels.elementwise(3, np.zeros(4)), "is a function"),
        (lambda: kernels.elementwise(lambda a: a, object()), "is not an array"),
        (lambda: kernels.elementwise(lambda a: a, np.zeros(1), out=np.broadcast_to(np.zeros(1), (1,))), "read-only"),
    ],
)
def test_refused(call, says):
    with pytest.raises(TypeError, match=says):
        call()


def test_clean_under_the_sanitizer():
    a, b, c = normal(3, 5, 13), normal(5, 1), normal(16, dtype=np.float16)
    with kiln.sanitize():
        made = kernels.elementwise(lambda x, y, z: x * y + z, a, b, c[3:], config=SMALL)
    np.testing.assert_allclose(made, a * b + c[3:], rtol=1e-6)
