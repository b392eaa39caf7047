"""Values of tensors: arithmetic, comparison, broadcasting, reduction, against numpy (float64 where floats)."""

from __future__ import annotations

import operator

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from tensor_testing import DTYPES, bits, sample

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack

KILN_TYPES = {np.dtype(n): k for k, n in DTYPES.items()}


def run(function, *arrays, out):
    """Apply a function of vectors to arrays; `out` is written."""

    @cute.jit
    def f(out: cute.Tensor, arrays):
        out.store(function(*[a.load() for a in arrays]))

    f(from_dlpack(out), [from_dlpack(a) for a in arrays])
    return out


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul], ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64], ids=str)
def test_integer_arithmetic_wraps(op, dtype):
    info = np.iinfo(dtype)
    a = np.array([info.min, info.max, 5, 100], dtype)
    b = np.array([3, 7, info.max, 100], dtype)
    with np.errstate(over="ignore"):
        want = op(a, b)
    assert (run(op, a, b, out=np.zeros_like(a)) == want).all()


@pytest.mark.parametrize("op", [operator.floordiv, operator.mod], ids=lambda f: f.__name__)
def test_integer_division_rounds_down(op):
    a = np.array([7, -7, 7, -7, 6, -6], np.int32)
    b = np.array([2, 2, -2, -2, 3, 3], np.int32)
    assert (run(op, a, b, out=np.zeros_like(a)) == op(a, b)).all()
    for divisor in (2, 3, -3, 1):
        assert (run(lambda x, d=divisor: op(x, d), a, out=np.zeros_like(a)) == op(a, np.int32(divisor))).all()


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift])
def test_bits(op):
    a = np.array([0b1100, -5, 123456], np.int32)
    b = np.array([0b1010, 3, 7], np.int32)
    assert (run(op, a, b, out=np.zeros_like(a)) == op(a, b)).all()


@pytest.mark.parametrize(
    "dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn], ids=str
)
@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv], ids=lambda f: f.__name__)
def test_float_arithmetic_is_correctly_rounded(op, dtype):
    a, b = sample(dtype, 16, 1), sample(dtype, 16, 2)
    exact = op(a.astype(np.float64), b.astype(np.float64))
    if dtype is not np.float64:
        exact = exact.astype(np.float32)  # innocuous: 24 bits are more than 2 * 11 + 2
    got = run(op, a, b, out=np.zeros_like(a))
    assert (bits(got) == bits(exact.astype(dtype))).all()


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32], ids=str)
def test_python_numbers_count_as_32_bits(dtype):
    a = sample(dtype, 8)
    wide = a.astype(np.float32)
    got = run(lambda x: 2 * x + 0.1 - x * True, a, out=np.zeros(8, np.float32))
    assert (got == 2 * wide + np.float32(0.1) - wide).all()
    chosen = run(lambda x: cute.where(x > 0, x, 0.5), a, out=np.zeros_like(a))
    assert (bits(chosen) == bits(np.where(a > 0, a, dtype(0.5)))).all()


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.uint32, np.int64], ids=str)
def test_division_of_integers_rounds_toward_zero(dtype):
    a, b = sample(dtype, 16, 1), sample(dtype, 16, 2)
    b[b == 0] = 3
    a[:2], b[:2] = 7, np.array([-2, 2]).astype(dtype)
    quotient = np.array([abs(int(x)) // abs(int(y)) * (1 if (x < 0) == (y < 0) else -1) for x, y in zip(a, b)])
    assert (run(operator.truediv, a, b, out=np.zeros_like(a)) == quotient.astype(dtype)).all()
    by = np.array([int(x) // 4 if x >= 0 else -(-int(x) // 4) for x in a]).astype(np.promote_types(dtype, np.int32))
    if dtype == np.uint32:
        by = by.astype(np.uint32)
    assert (run(lambda x: x / 4, a, out=np.zeros_like(by)) == by).all()


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8], ids=str)
def test_comparisons(name, dtype):
    op = getattr(operator, name)
    a, b = sample(dtype, 12, 1), sample(dtype, 12, 2)
    b[:4] = a[:4]
    assert (run(op, a, b, out=np.zeros(12, np.bool_)) == op(a, b)).all()
    assert (run(lambda x: op(x, 1), a, out=np.zeros(12, np.bool_)) == op(a, dtype(1))).all()


def test_nan_compares_as_python_says():
    a = np.array([np.nan, 1.0], np.float32)
    assert run(lambda x: x == x, a, out=np.zeros(2, np.bool_)).tolist() == [False, True]
    assert run(lambda x: x != x, a, out=np.zeros(2, np.bool_)).tolist() == [True, False]


def test_comparison_of_mixed_signs():
    a, b = np.array([-1, 1], np.int32), np.array([1, 1], np.uint32)
    assert run(operator.lt, a, b, out=np.zeros(2, np.bool_)).tolist() == [True, False]


def test_unary():
    a = np.array([1, -2, 3], np.int32)
    assert run(operator.neg, a, out=np.zeros_like(a)).tolist() == [-1, 2, -3]
    assert run(abs, a, out=np.zeros_like(a)).tolist() == [1, 2, 3]
    assert run(operator.invert, a, out=np.zeros_like(a)).tolist() == [-2, 1, -4]
    assert run(lambda x: x**3, a, out=np.zeros_like(a)).tolist() == [1, -8, 27]
    f = np.array([1.5, -0.0], np.float32)
    assert str(run(operator.neg, f, out=np.zeros_like(f))) == str(-f)
    assert run(lambda x: ~(x > 1), f, out=np.zeros(2, np.bool_)).tolist() == [False, True]


CONVERSIONS = [np.int8, np.uint8, np.int32, np.int64, np.float16, ml_dtypes.bfloat16, np.float32, np.float64]


@pytest.mark.quick(32)
@pytest.mark.parametrize("source", CONVERSIONS, ids=str)
@pytest.mark.parametrize("target", CONVERSIONS, ids=str)
def test_conversions(source, target):
    a = sample(source, 8)
    got = run(lambda x: x.to(KILN_TYPES[np.dtype(target)]), a, out=np.zeros(8, target))
    wide = a.astype(np.float64) if np.dtype(source).kind not in "iu" else a
    want = np.trunc(wide) if np.dtype(target).kind in "iu" else wide
    if target is np.uint8 and np.dtype(source).kind not in "iu":
        want = np.maximum(want, 0)  # saturates
    assert (got == want.astype(target)).all()


@pytest.mark.parametrize("dtype", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2], ids=str)
def test_narrow_floats_round_to_nearest_even(dtype):
    a = np.linspace(-20, 20, 64).astype(np.float32)
    got = run(lambda x: x.to(KILN_TYPES[np.dtype(dtype)]), a, out=np.zeros(64, dtype))
    assert (bits(got) == bits(a.astype(dtype))).all()
    back = run(lambda x: x.to(kiln.Float32), got, out=np.zeros(64, np.float32))
    assert (back == got.astype(np.float32)).all()


def test_bitcast():
    a = sample(np.float32, 4)
    assert (run(lambda x: x.bitcast(kiln.Uint32), a, out=np.zeros(4, np.uint32)) == a.view(np.uint32)).all()
    assert (run(lambda x: x.bitcast(kiln.Uint8), a, out=np.zeros(16, np.uint8)) == a.view(np.uint8)).all()


shapes = st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=3)


@settings(max_examples=20, deadline=None)
@given(shapes, st.lists(st.booleans(), min_size=3, max_size=3), st.lists(st.booleans(), min_size=3, max_size=3))
def test_broadcasting_is_numpys(shape, first, second):
    a = sample(np.int32, [1 if flag else s for s, flag in zip(shape, first, strict=False)], 1)
    b = sample(np.int32, [1 if flag else s for s, flag in zip(shape, second, strict=False)], 2)
    want = a + b
    assert (run(operator.add, a, b, out=np.zeros_like(want)) == want).all()
    assert (
        run(lambda x: x.broadcast_to(want.shape), a, out=np.zeros_like(want)) == np.broadcast_to(a, want.shape)
    ).all()


def test_missing_modes_are_added_at_the_end():
    a, b = sample(np.int32, (3, 3), 1), sample(np.int32, 3, 2)
    assert (run(operator.add, a, b, out=np.zeros_like(a)) == a + b[:, None]).all()


@pytest.mark.quick(32)
@pytest.mark.parametrize("profile", [0, (None, 0), (1, None), (0, 0)])
@pytest.mark.parametrize("op", ["ADD", "MUL", "MAX", "MIN"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32, np.float16], ids=str)
def test_reductions(profile, op, dtype):
    a = sample(dtype, (3, 4)) if np.dtype(dtype).kind == "f" else (sample(dtype, (3, 4)) % 3).astype(dtype)
    axes = (0, 1) if not isinstance(profile, tuple) else tuple(i for i, p in enumerate(profile) if p is not None)
    reduce = {"ADD": np.add, "MUL": np.multiply, "MAX": np.maximum, "MIN": np.minimum}[op].reduce
    want = reduce(a.astype(np.float64), axis=axes)
    start = {"ADD": 0, "MUL": 1, "MAX": 0, "MIN": 2}[op]
    want = {"ADD": want, "MUL": want, "MAX": np.maximum(want, 0), "MIN": np.minimum(want, 2)}[op]
    out = np.zeros(np.shape(want) or (1,), dtype)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        got = a.load().reduce(cute.ReductionOp[op], start, reduction_profile=profile)
        if cute.rank(out.shape) == 1 and not isinstance(got, cute.TensorSSA):
            out[0] = got
        else:
            out.store(got)

    f(from_dlpack(a), from_dlpack(out))
    assert np.allclose(out.astype(np.float64), want, rtol=1e-2 if dtype is np.float16 else 1e-5)


def test_reduction_of_nested_modes():
    out = np.zeros(2, np.int32)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        t = cute.make_tensor(a.iterator, cute.make_layout(((2, 2), 3)))
        out.store(t.load().reduce(cute.ReductionOp.ADD, 0, reduction_profile=((None, 1), 1)))

    a = np.arange(12, dtype=np.int32)
    f(from_dlpack(a), from_dlpack(out))
    assert out.tolist() == [a[0::2].sum(), a[1::2].sum()]


def test_choices_and_constants():
    a = np.array([-1.0, 2.0, -3.0], np.float32)
    assert run(lambda x: cute.where(x > 0, x, 0), a, out=np.zeros_like(a)).tolist() == [0, 2, 0]
    assert run(lambda x: cute.where(x > 0, 1, cute.full_like(x, 5)), a, out=np.zeros_like(a)).tolist() == [5, 1, 5]
    assert run(lambda x: cute.where(x > 0, 1.0, 2.0), a, out=np.zeros_like(a)).tolist() == [2, 1, 2]
    assert run(lambda x: cute.zeros_like(x) + cute.ones_like(x), a, out=np.zeros_like(a)).tolist() == [1, 1, 1]
    assert run(lambda x: cute.full((3,), 7, kiln.Float32), a, out=np.zeros_like(a)).tolist() == [7, 7, 7]
    assert run(lambda x: cute.full((3,), x[1], kiln.Float32), a, out=np.zeros_like(a)).tolist() == [2, 2, 2]


def test_where_of_numbers():
    @cute.kernel
    def choose(x: cute.Tensor):
        i = cute.arch.thread_idx()[0]
        v = x[i]
        x[i] = (
            cute.where(v < 0.0, 0.0, v)
            + cute.where(i > 2, 1, kiln.Int32(2)).to(kiln.Float32)
            + cute.where(True, 0.5, 2)
        )

    @cute.jit
    def main(x: cute.Tensor):
        choose(x).launch(grid=1, block=8)

    x = np.arange(-4, 4).astype(np.float32)
    expected = np.where(x < 0, 0, x) + np.where(np.arange(8) > 2, 1, 2) + 0.5
    with kiln.target("cpu"):
        main(x)
    np.testing.assert_array_equal(x, expected)


def test_any_and_all():
    out = np.zeros(4, np.bool_)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor):
        v = a.load()
        out[0] = cute.any_(v > 2)
        out[1] = cute.all_(v > 2)
        out[2] = cute.any_(v > 9)
        out[3] = cute.all_(v > 0)

    f(from_dlpack(np.array([1, 2, 3], np.int32)), from_dlpack(out))
    assert out.tolist() == [True, False, False, True]


def test_parts():
    a = np.arange(24, dtype=np.int32).reshape(4, 2, 3)
    assert (run(lambda x: x[None, 1, None], a, out=np.zeros((4, 3), np.int32)) == a[:, 1, :]).all()
    assert (run(lambda x: x[2, None, None], a, out=np.zeros((2, 3), np.int32)) == a[2]).all()
    assert (run(lambda x: x.reshape((8, 3)), a, out=np.zeros((8, 3), np.int32)) == a.reshape(8, 3, order="F")).all()
    out = np.zeros(3, np.int32)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor, i: cute.Int32):
        v = a.load()
        out[0] = v[10]
        out[1] = v[1, 1, 2]
        out[2] = v[i]

    f(from_dlpack(a), from_dlpack(out), 7)
    assert out.tolist() == [a.flatten("F")[10], a[1, 1, 2], a.flatten("F")[7]]


def test_values_cross_branches_and_loops():
    a = np.arange(4, dtype=np.float32)
    out = np.zeros_like(a)

    @cute.jit
    def f(a: cute.Tensor, out: cute.Tensor, n: cute.Int32):
        v = a.load()
        total = cute.zeros_like(v)
        for i in range(n):
            if i % 2 == 0:
                total = total + v
            else:
                total = total * 2.0
        out.store(total)

    f(from_dlpack(a), from_dlpack(out), 5)
    assert out.tolist() == [0, 7, 14, 21]


def test_how_it_prints(capsys):
    @cute.jit
    def f(a: cute.Tensor):
        print(a.load())
        cute.printf("{}", a.load() + 1)

    f(from_dlpack(np.zeros((3, 4), np.float32)))
    assert capsys.readouterr().out.splitlines() == ["vector<12xf32> o (3, 4)", "[" + ", ".join(["1.000000"] * 12) + "]"]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.reshape((5,)), "reshape"),
        (lambda x: x.broadcast_to((2, 5)), "broadcast"),
        (lambda x: x + cute.full((3,), 1, kiln.Float32), "do not go together"),
        (lambda x: x.reduce("add", 0), "ReductionOp"),
        (lambda x: x.reduce(cute.ReductionOp.ADD, 0, reduction_profile=(0, None, None)), "reduction profile"),
        (lambda x: x.to(float), "numeric type"),
        (lambda x: ~x, "integers"),
        (lambda x: cute.where(True, x, x), "Booleans"),
        (lambda x: cute.where(x, x, x), "Booleans"),
        (lambda x: x // x if x else x, "truth of a vector"),
        (lambda x: x[1:2], "slice"),
        (lambda x: np.asarray(x), "no array of numpy"),
    ],
)
def test_refused(function, message):
    with pytest.raises((kiln.DSLUserCodeError, kiln.DSLRuntimeError), match=message):
        run(function, np.zeros((2, 2), np.float32), out=np.zeros((2, 2), np.float32))


def test_numbers_of_numpy():
    x = np.arange(4, dtype=np.float32)
    out = np.zeros(4, np.float32)
    run(lambda v: np.float32(2) * v + np.float32(1), x, out=out)
    np.testing.assert_array_equal(out, 2 * x + 1)
    with pytest.raises(TypeError, match="does not support ufuncs"):
        run(lambda v: np.exp(v), x, out=out)


def test_elements_cannot_be_assigned():
    @cute.jit
    def f(a: cute.Tensor):
        v = a.load()
        v[0] = 1.0

    with pytest.raises(kiln.DSLUserCodeError, match="cannot be assigned"):
        f(from_dlpack(np.zeros(2, np.float32)))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda: cute.make_rmem_tensor((256, 256), kiln.Float32).fill(1.0), r"fill\(\) of 65536 elements: a value has at most 8192"),
        (lambda: cute.make_rmem_tensor(8193, kiln.Int8).load(), r"load\(\) of 8193 elements"),
        (lambda: cute.full((100, 100), 1, kiln.Float32), "a value of 10000 elements"),
        (lambda: cute.make_rmem_tensor((512, 257), kiln.Float32), "131584 elements has 526336 bytes; a thread has 524288"),
    ],
)  # fmt: skip
def test_more_than_a_thread_holds_is_refused(what, message):
    """LLVM ends the process for 65,536 elements; arrays of 10 MB are past the end of a stack."""

    @cute.kernel
    def k():
        what()

    @cute.jit
    def f():
        k().launch(grid=1, block=32)

    with pytest.raises(kiln.DSLUserCodeError, match=message):
        f()
