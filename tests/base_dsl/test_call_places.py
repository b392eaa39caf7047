"""Which place an argument has in calls of a compiled function: Constexpr ones have none, one that was None keeps its own."""

from __future__ import annotations

from typing import Optional

import numpy as np
import pytest

import kiln
from kiln import Constexpr, Float32, Int32, cute
from kiln.cute.host.runtime import FakeStream
from kiln.cute.runtime import make_fake_stream

X = np.ones(4, np.float32)
_CALLS = 12
"""So many that native code takes the last ones."""


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


@cute.kernel
def _add(x: cute.Tensor, bias, y: cute.Tensor):
    t = cute.arch.thread_idx()[0]
    v = x[t] + 1.0
    if kiln.const_expr(bias is not None):
        v = v + bias[t]
    y[t] = v


@cute.jit
def plain(x: cute.Tensor, bias: Optional[cute.Tensor], y: cute.Tensor):  # noqa: UP045
    _add(x, bias, y).launch(grid=1, block=4)


@cute.jit
def constexpr_after(x: cute.Tensor, bias: Optional[cute.Tensor], y: cute.Tensor, n: Constexpr[int]):  # noqa: UP045
    _add(x, bias, y).launch(grid=1, block=n)


@cute.jit
def constexpr_before(n: Constexpr, bias, x: cute.Tensor, y: cute.Tensor):
    _add(x, bias, y).launch(grid=1, block=n)


@cute.jit
def constexpr_none(x: cute.Tensor, way: Constexpr, bias, y: cute.Tensor):
    assert way is None
    _add(x, bias, y).launch(grid=1, block=4)


@cute.jit
def stream_after(x: cute.Tensor, bias, y: cute.Tensor, stream: FakeStream):
    _add(x, bias, y).launch(grid=1, block=4, stream=stream)


@cute.jit
def stream_between(x: cute.Tensor, stream: FakeStream, bias, y: cute.Tensor):
    _add(x, bias, y).launch(grid=1, block=4, stream=stream)


class Operation:
    @cute.jit
    def __call__(self, x: cute.Tensor, bias, y: cute.Tensor):
        _add(x, bias, y).launch(grid=1, block=4)


def _environment():
    return make_fake_stream(use_tvm_ffi_env_stream=True)


CASES = {
    "plain": (lambda y: (plain, X, None, y), lambda y: (X, None, y)),
    "constexpr after": (lambda y: (constexpr_after, X, None, y, 4), lambda y: (X, None, y)),
    "constexpr before": (lambda y: (constexpr_before, 4, None, X, y), lambda y: (None, X, y)),
    "constexpr that is None": (lambda y: (constexpr_none, X, None, None, y), lambda y: (X, None, y)),
    "stream after": (lambda y: (stream_after, X, None, y, _environment()), lambda y: (X, None, y)),
    "stream between": (lambda y: (stream_between, X, _environment(), None, y), lambda y: (X, None, y)),
    "self": (lambda y: (Operation(), X, None, y), lambda y: (X, None, y)),
}


@pytest.mark.parametrize("name", CASES)
def test_none_keeps_its_place(name):
    example, call = CASES[name]
    compiled = cute.compile(*example(np.zeros(4, np.float32)))
    for _ in range(_CALLS):
        y = np.zeros(4, np.float32)
        compiled(*call(y))
        np.testing.assert_array_equal(y, X + 1)


def test_by_name_it_may_be_left_out():
    y = np.zeros(4, np.float32)
    compiled = cute.compile(plain, X, None, y)
    for _ in range(_CALLS):
        y[:] = 0
        compiled(X, y=y)
        np.testing.assert_array_equal(y, X + 1)


@pytest.mark.parametrize("arguments", [(X, X, X.copy()), (X, X.copy())], ids=["given", "shifted"])
def test_something_else_in_its_place_is_refused(arguments):
    compiled = cute.compile(plain, X, None, X.copy())
    for _ in range(_CALLS):
        with pytest.raises(TypeError, match=r"'bias' of plain was None when it was compiled, and is a ndarray now"):
            compiled(*arguments)


def test_another_value_where_a_constexpr_was_compiled_in_is_refused():
    @cute.jit
    def scaled(x: Int32, factor: Constexpr):
        return x * factor

    compiled = cute.compile(scaled, 1, 3)
    assert compiled(5) == compiled(5, 3) == 15
    with pytest.raises(TypeError, match=r"'factor' of scaled was 3 when it was compiled, and is 4 now"):
        compiled(5, 4)


def test_an_optional_number_keeps_its_place():
    @cute.jit
    def total(x: Optional[Float32], n: Int32):  # noqa: UP045
        return n if kiln.const_expr(x is None) else n + Int32(x)

    assert cute.compile(total, None, 1)(None, 5) == 5
    assert cute.compile(total, 2.0, 1)(2.0, 5) == 7
