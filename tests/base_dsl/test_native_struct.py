"""Structures of numbers whose fields a program may change."""

from __future__ import annotations

import cutlass.cute as cute
import numpy as np
import pytest

import kiln
from kiln import Constexpr, Float32, Int32
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError


@cute.native_struct
class Accumulator:
    total: Int32
    count: Int32

    def add(self, value: Int32) -> None:
        self.total = self.total + value
        self.count += 1


@cute.native_struct(zero_init=False, packed=True)
class Both:
    inner: Accumulator
    factor: Constexpr
    scale: Float32


@cute.kernel
def sums(acc: Accumulator, values: cute.Tensor, n: Int32, out: cute.Tensor):
    both = Both(factor=3)
    for i in range(n):
        if values[i] > 2:
            acc.total = acc.total + values[i]
            acc.count = acc.count + Int32(1)
        both.inner.add(values[i])
        both.scale = both.scale + 0.5
    out[0], out[1] = acc.total, acc.count
    out[2], out[3] = both.inner.total * both.factor, both.inner.count
    out[4] = Int32(both.scale)


@cute.jit
def launch(acc: Accumulator, values: cute.Tensor, n: Int32, out: cute.Tensor):
    sums(acc, values, n, out).launch(grid=1, block=1)


def test_a_kernel_accumulates_into_fields():
    values, out = np.array([1, 2, 3, 4, 5], np.int32), np.zeros(5, np.int32)
    acc = Accumulator(100, count=Int32(7))
    with kiln.target("cpu"):
        launch(acc, values, 4, out)
        assert out.tolist() == [107, 9, 30, 4, 2]
        compiled = cute.compile(launch, acc, values, 4, out)
        compiled(Accumulator(), values, 5, out)
        assert out.tolist() == [12, 3, 45, 5, 2]
    assert (int(acc.total), int(acc.count)) == (100, 7)


def test_fields_are_converted():
    acc = Accumulator(2.0)
    assert type(acc.total) is Int32
    acc.count = True
    assert type(acc.count) is Int32
    assert repr(Both(factor="x").factor) == "'x'"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: Accumulator(1, 2, 3), "has 2 fields, and gets 3 values"),
        (lambda: Accumulator(1, total=2), "total has two values"),
        (lambda: Accumulator(sum=2), "sum is no field of Accumulator"),
        (lambda: Both(), "lacks a value of its Constexpr factor"),
        (lambda: Both(Accumulator(), 1).__setattr__("inner", 3), "the field inner is a Accumulator"),
        (lambda: Accumulator().__setattr__("sum", 3), "Accumulator has no field sum"),
        (lambda: cute.native_struct(type("Wrong", (), {"__annotations__": {"name": str}})), "the field name of the native_struct Wrong"),
        (lambda: cute.native_struct(3), "native_struct takes a class"),
    ],
)  # fmt: skip
def test_refused(wrong, says):
    with pytest.raises(DSLUserCodeTypeError, match=says):
        wrong()
