"""Calls of library functions on arrays of numpy that are recorded and repeated: with `test_kernel_calls.py`, which needs torch."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from kiln import kernels
from kiln.base_dsl import target as targets
from kiln.interop.arguments import loading

RNG = np.random.default_rng(11)
ENOUGH = 6
"""Calls after which native code has taken over."""


pytestmark = pytest.mark.usefixtures("taker")


@pytest.fixture(autouse=True)
def _cpu(monkeypatch):
    """The process's target, for native code does not look into `with kiln.target(...)`."""
    monkeypatch.setattr(targets, "_process_choice", "cpu")


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def misaligned(*shape: int) -> np.ndarray:
    return normal(int(np.prod(shape)) + 1)[1:].reshape(shape)


def python_calls(function: Any) -> int:
    """Calls that Python repeated."""
    return sum(p.calls for p in function._programs.values() if p is not None)


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, tuple):
        for g, w in zip(got, wanted, strict=True):
            same(g, w)
    elif wanted is not None:
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


CLASSES = np.array([1, 0, 3, 2])
CALLS: dict[str, tuple[Any, Any]] = {
    "softmax": (kernels.softmax, lambda: ((normal(4, 8),), {})),
    "softmax, not aligned": (kernels.softmax, lambda: ((misaligned(4, 8),), {})),
    "softmax into columns": (kernels.softmax, lambda: ((normal(8, 4).T,), {"out": np.empty((8, 4), np.float32).T})),
    "layer_norm": (kernels.layer_norm, lambda: ((normal(4, 8), normal(8)), {"bias": normal(8)})),
    "rms_norm_backward": (kernels.rms_norm_backward, lambda: ((normal(4, 8), normal(4, 8), normal(8)), {})),
    "sum": (kernels.sum, lambda: ((normal(4, 8), 1), {})),
    "argmax": (kernels.argmax, lambda: ((normal(2, 3, 4)[:, ::2], 2), {})),
    "elementwise": (kernels.elementwise, lambda: ((lambda a, b: a * 2.0 + b, normal(4, 8), normal(8)), {})),
    "cross_entropy": (kernels.cross_entropy, lambda: ((normal(4, 8), CLASSES), {"return_lse": True})),
    "gemm": (kernels.gemm, lambda: ((normal(8, 16), normal(16, 8)), {"bias": normal(8), "alpha": 0.5})),
    "flash_attention": (
        kernels.flash_attention,
        lambda: (tuple(normal(1, 16, 1, 8).astype(np.float16) for _ in range(3)), {"causal": True}),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_repeated_call_does_what_the_first_did_on_other_arrays(name):
    function, make = CALLS[name]
    before = 0
    for number in range(ENOUGH):
        given, options = make()
        wanted = function._function(*given, **{k: v for k, v in options.items() if k != "out"})
        same(function(*given, **options), wanted)
        if "out" in options:
            same(options["out"], wanted)
        if number == ENOUGH - 2:
            before = python_calls(function)
    assert loading.engine() is None or python_calls(function) == before, "Python took the last call"


def test_calls_that_differ_are_told_apart():
    x, square = normal(4, 8), normal(8, 8)
    readonly = normal(4)
    readonly.flags.writeable = False
    for _ in range(ENOUGH):
        same(kernels.sum(x, 1), kernels.sum._function(x, 1))
        for other in (square, square.T, square[:4], misaligned(4, 8), x.astype(np.float16)):
            same(kernels.sum(other, 1), kernels.sum._function(other, 1))
        same(kernels.sum(x, 0), kernels.sum._function(x, 0))
        with pytest.raises(Exception, match="read-only"):
            kernels.sum(x, 1, out=readonly)


def test_what_a_function_closes_over_is_not_kept():
    x = normal(4, 8)
    for factor in (2.0, 3.0, 2.0, 4.0):
        for _ in range(ENOUGH):
            same(kernels.elementwise(lambda a: a * factor, x), x * np.float32(factor))  # noqa: B023


def _scaled(by, x, zero=0.0):
    return x * by


def _with_attribute(by):
    def inner(x):
        return x

    inner.by = by
    return lambda x, f=inner: f(x) * f.by


class _Scale:
    def __init__(self, by):
        self.by = by

    def __call__(self, x):
        return x * self.by


FUNCTIONS = {
    "partial": lambda by: functools.partial(_scaled, by),
    "nested partial": lambda by: functools.partial(functools.partial(_scaled, by), zero=1.0),
    "object": _Scale,
    "bound method": lambda by: _Scale(by).__call__,
    "attribute": _with_attribute,
    "default": lambda by: lambda x, by=by: x * by,
    "default by name": lambda by: lambda x, *, by=by: x * by,
    "subclass of float": lambda by: functools.partial(_scaled, type("Number", (float,), {})(by)),
}


@pytest.mark.quick(6)
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_functions_that_differ_are_told_apart(kind):
    make, x, eye = FUNCTIONS[kind], normal(4, 8), np.eye(8, dtype=np.float32)
    for by in (2.0, 3.0, 2.0):
        for _ in range(ENOUGH):
            same(kernels.elementwise(make(by), x), x * np.float32(by))
        if kind == "partial":
            same(kernels.gemm(x, eye, epilogue=make(by)), x * np.float32(by))


def test_zeros_of_either_sign_among_numbers_are_told_apart():
    x = np.ones(4, np.float32)
    for number in (0.0, -0.0):
        assert (np.signbit(kernels.elementwise(lambda a, b: a * b, x, number)) == np.signbit(number)).all()


FACTOR = 2.0


def _by_factor(x):
    return x * FACTOR


def _by_factor_of(_, x):
    return x * FACTOR


@pytest.mark.quick(1)
def test_what_functions_read_is_looked_at_again(monkeypatch):
    x, eye = normal(4, 8), np.eye(8, dtype=np.float32)
    for function in (_by_factor, functools.partial(_by_factor_of, 0), {"key": _by_factor}["key"]):
        for factor in (2.0, 5.0):
            monkeypatch.setitem(globals(), "FACTOR", factor)
            for _ in range(ENOUGH):
                same(kernels.elementwise(function, x), x * np.float32(factor))
            if function is _by_factor:
                same(kernels.gemm(x, eye, epilogue=function), x * np.float32(factor))
