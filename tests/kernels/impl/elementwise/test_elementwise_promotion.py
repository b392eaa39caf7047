"""Result types of element-wise functions: PyTorch's of its tensors, numpy's of its arrays, and of each with Python numbers."""

from __future__ import annotations

import itertools
import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute, kernels
from kiln.kernels.dispatch.registry import collecting_problems

SCALARS = (True, 3, -1, 2.5)
NUMPY = [np.dtype(name) for name in (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64",
    ml_dtypes.bfloat16,
)]  # fmt: skip


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def result_type(function: Any, *inputs: Any) -> Any:
    """The type of the result, which is allocated and not computed."""
    with collecting_problems():
        return kernels.elementwise(function, *inputs).dtype


def test_torch_tensors():
    """All pairs of types, with and without dimensions, and all types with Python numbers."""
    torch = pytest.importorskip("torch")
    types = [getattr(torch, name) for name in (
        "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64",
    )]  # fmt: skip
    arrays = [torch.ones(shape, dtype=dtype) for dtype in types for shape in ((2,), ())]
    wrong = []
    for x, y in itertools.product(arrays, arrays):
        if result_type(operator.add, x, y) != torch.result_type(x, y):
            wrong.append((x.dtype, x.ndim, y.dtype, y.ndim))
        if x.ndim and y.ndim and result_type(operator.truediv, x, y) != (x / y).dtype:
            wrong.append(("/", x.dtype, y.dtype))
    for x, y in itertools.product(arrays[::2], SCALARS):
        if y == -1 and x.dtype in (torch.uint8, torch.bool):
            continue
        for got in (result_type(operator.add, x, y), result_type(lambda v, y=y: v + y, x)):
            if got != torch.result_type(x, y):
                wrong.append((x.dtype, y, got))
    assert wrong == []


def test_torch_values():
    """What is computed in the type of the result: overflow, rounding, functions of integers, choices."""
    torch = pytest.importorskip("torch")
    many, half = torch.arange(-4, 4, dtype=torch.int64) * (1 << 29), torch.full((8,), 3.0, dtype=torch.bfloat16)
    zero_dim = torch.tensor(1.0 / 3.0, dtype=torch.float64)
    for function, inputs in (
        (lambda a, b: a + b, (many.int(), half)),
        (lambda a, b: a * b + a, (many, half)),
        (lambda a, b: a / b, (many, many + 1)),
        (lambda a, b: a * b, (half.half(), zero_dim)),
        (lambda a, b: a * b, (many, zero_dim)),
        (lambda a: a / 7, (many.short(),)),
        (lambda a, b: a + b, (many > 0, many > -5)),
        (lambda a, b: a * b, (many > 0, many > -5)),
    ):
        wanted = function(*inputs)
        got = kernels.elementwise(function, *inputs)
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted)
    x = torch.tensor([1, 2, 300], dtype=torch.int32)
    got = kernels.elementwise(lambda v, w: cute.where(v > 1, v, w), x, torch.ones(3, dtype=torch.bfloat16))
    assert got.dtype == torch.bfloat16
    assert kernels.elementwise(lambda v: cute.math.exp(v), x[:2].long()).dtype == torch.float32


def test_numpy_arrays():
    """All pairs of types that numpy has a type for, and Python numbers that fit."""
    wrong = []
    for a, b in itertools.product(NUMPY, NUMPY):
        x, y = np.ones(2, a), np.ones((), b)
        try:
            wanted = np.result_type(x, y)
        except TypeError:  # bfloat16 with float16, and with integers of 16 bits and more
            wanted = np.dtype(np.float64 if "64" in a.name + b.name else np.float32)
        got = result_type(operator.add, x, y)
        if got != wanted:
            wrong.append((a, b, got, wanted))
    for a, b in itertools.product(NUMPY[1:-1], SCALARS):
        if b == -1 and a.kind == "u":
            continue
        got, wanted = result_type(operator.add, np.ones(2, a), b), (np.ones(2, a) + b).dtype
        if got != wanted:
            wrong.append((a, b, got, wanted))
    for a in NUMPY[1:]:
        got, wanted = (
            result_type(operator.truediv, np.ones(2, a), np.ones(2, a)),
            (np.ones(2, a) / np.ones(2, a)).dtype,
        )
        if got != wanted:
            wrong.append(("/", a, got, wanted))
    assert wrong == []


def test_an_integer_that_the_type_does_not_have_widens_it():
    for x in (np.ones(2, np.int8), pytest.importorskip("torch").ones(2, dtype=pytest.importorskip("torch").int8)):
        assert kernels.elementwise(lambda v: v + 300, x).tolist() == [301, 301]
