"""Arguments of functions called in a trace: None for what is switched off, members of an IntEnum, divisors that are 0."""

from __future__ import annotations

import enum
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Int32, const_expr, cute
from kiln.cute.runtime import from_dlpack


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


class Program:
    clusters = 1

    @cute.jit
    def arrive(self, thread: Int32, barrier: cute.Pointer):
        if const_expr(self.clusters > 1):
            cute.arch.mbarrier_init(barrier + thread, 1)

    @cute.kernel
    def kernel(self, out: cute.Tensor, layout: cute.ComposedLayout):
        thread = cute.arch.thread_idx()[0]
        self.arrive(thread, None)
        out[thread] = thread

    @cute.jit
    def __call__(self, out: cute.Tensor):
        self.kernel(out, None).launch(grid=1, block=4)


def test_none_is_taken_in_a_trace_whatever_the_annotation_says():
    out = np.zeros(4, np.int32)
    Program()(from_dlpack(out))
    assert out.tolist() == [0, 1, 2, 3]


def test_what_a_person_passes_is_judged():
    @cute.jit
    def f(x: cute.Tensor): ...

    with pytest.raises(kiln.DSLUserCodeTypeError, match="'x' of f takes Tensor and got None"):
        f(None)


class Order(enum.IntEnum):
    M = 0
    N = 1


def run(kernel: Any, out: np.ndarray, *numbers: int) -> list[int]:
    @cute.jit
    def f(out: cute.Tensor, m: Int32, n: Int32):
        kernel(out, m, n).launch(grid=1, block=1)

    f(from_dlpack(out), *numbers)
    return out.tolist()


@pytest.mark.parametrize(("m", "n", "expected"), [(3, 5, [1, 0, 0]), (5, 3, [0, 1, 1])])
def test_members_of_an_int_enum_are_numbers_where_paths_meet(m, n, expected):
    @cute.kernel
    def kernel(out: cute.Tensor, m: Int32, n: Int32):
        order = Order.M if n > m else Order.N
        out[0] = 1 if order == Order.M else 0
        chosen = Order.N
        if n > m:
            chosen = Order.M
        out[1] = Int32(chosen)
        kept = Order.N
        for _ in range(n):
            kept = Order.N if n < m else Order.M
        out[2] = Int32(kept)

    assert run(kernel, np.zeros(3, np.int32), m, n) == expected


def test_a_kernel_may_divide_by_a_constant_zero():
    """The quotient may be one that nobody reads: a GPU goes on. Host functions refuse it."""

    @cute.kernel
    def kernel(out: cute.Tensor, m: Int32, n: Int32):
        _, _ = (n + 1) % 0, (n + 1) // 0
        out[0] = n

    with pytest.warns(kiln.DSLWarning, match="by zero"):
        assert run(kernel, np.zeros(1, np.int32), 0, 7) == [7]

    @cute.jit
    def host(n: Int32):
        _ = n // 0

    with pytest.raises(kiln.DSLBaseError, match="integer division by zero"):
        host(3)


class Part:
    owner: Any


class Circular:
    """A part of the object knows the object."""

    def __init__(self) -> None:
        self.part, self.factor = Part(), 3
        self.part.owner = self

    @cute.kernel
    def kernel(self, out: cute.Tensor, uses: kiln.Constexpr):
        out[0] = self.part.owner.factor
        if const_expr(uses):
            out[0] = self.n

    @cute.jit
    def __call__(self, out: cute.Tensor, n: Int32, uses: kiln.Constexpr):
        self.n = n + 1
        self.kernel(out, uses).launch(grid=1, block=1)


def test_an_object_that_contains_itself_is_passed_by_reference():
    out = np.zeros(1, np.int32)
    Circular()(from_dlpack(out), 5, False)
    assert out[0] == 3
    with pytest.raises(kiln.DSLBaseError, match="is compiled by itself|is used in"):
        Circular()(from_dlpack(out), 5, True)


def test_none_is_taken_by_compile():
    """A program compiles a function without an argument that the function tests for None."""

    @cute.jit
    def f(out: cute.Tensor, more: cute.Tensor):
        if kiln.const_expr(more is None):
            out[0] = 7
        else:
            out[0] = more[0]

    out = np.zeros(4, np.int32)
    compiled = cute.compile(f, from_dlpack(out), None)
    compiled(from_dlpack(out), None)
    assert out[0] == 7


def test_shapes_in_a_trace_may_be_deeper_than_annotations():
    @cute.kernel
    def kernel(out: cute.Tensor, shape: tuple[Int32, tuple[Int32, Int32]]):
        out[0] = cute.size(shape[1][0])

    @cute.jit
    def f(out: cute.Tensor, n: Int32):
        kernel(out, (n, ((n, 3), n))).launch(grid=1, block=1)

    out = np.zeros(4, np.int32)
    f(from_dlpack(out), 5)
    assert out[0] == 15


def test_a_symbolic_integer_stands_for_numbers():
    @cute.jit
    def f(out: cute.Tensor, n):
        out[0] = Int32(n) + 1

    out = np.zeros(4, np.int32)
    for width, largest in ((32, 2**31 - 1), (64, 2**63 - 1)):
        compiled = cute.compile(f, from_dlpack(out), cute.sym_int(width))
        compiled(from_dlpack(out), 6)
        assert out[0] == 7
        with pytest.raises(kiln.DSLUserCodeTypeError, match="goes from|passed as Int32 or Int64"):
            compiled(from_dlpack(out), largest + 1)
        with pytest.raises(kiln.DSLUserCodeTypeError):
            compiled(from_dlpack(out), 1.5)
