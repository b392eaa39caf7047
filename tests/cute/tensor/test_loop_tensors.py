"""Tensors that a loop binds anew: of alignment and divisibility the weaker is kept."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Float16, Float32, Int32, cute
from kiln.cute.runtime import from_dlpack


def aligned(count: int) -> np.ndarray:
    """Numbers 0, 1, 2, ... in memory that is aligned to 16 bytes."""
    memory = np.zeros(count + 4, np.float32)
    x = memory[-memory.ctypes.data // 4 % 4 :][:count]
    x[:] = np.arange(count)
    return x


def last(program, n: int) -> float:
    """What a program leaves in its output after `n` iterations."""
    y = np.zeros(4, np.float32)
    program(from_dlpack(aligned(64), assumed_align=16), y, n)
    return float(y[0])


@cute.jit
def in_a_variable(x: cute.Tensor, y: cute.Tensor, n: Int32):
    t = cute.make_tensor(x.iterator, cute.make_layout(4))
    for _ in range(n):
        y[0] = t[0]
        t = cute.make_tensor(t.iterator + 1, cute.make_layout(4))
    y[0] = t[0]


@cute.jit
def in_a_while(x: cute.Tensor, y: cute.Tensor, n: Int32):
    t, k = cute.make_tensor(x.iterator, cute.make_layout(4)), Int32(0)
    while k < n:
        t = cute.make_tensor(t.iterator + 1, cute.make_layout(4))
        k += 1
    y[0] = t[0]


@cute.jit
def a_pointer(x: cute.Tensor, y: cute.Tensor, n: Int32):
    p = x.iterator
    for _ in range(n):
        p = p + 1
    y[0] = cute.make_tensor(p, cute.make_layout(1))[0]


@cute.jit
def in_a_tuple(x: cute.Tensor, y: cute.Tensor, n: Int32):
    state = (Int32(0), cute.make_tensor(x.iterator, cute.make_layout(4)))
    for _ in range(n):
        state = (state[0] + 1, cute.make_tensor(state[1].iterator + 1, cute.make_layout(4)))
    y[0] = state[1][0]


class Holder:
    """Has a tensor."""


@cute.jit
def in_an_attribute(x: cute.Tensor, y: cute.Tensor, n: Int32):
    holder = Holder()
    holder.t = cute.make_tensor(x.iterator, cute.make_layout(4))
    for _ in range(n):
        holder.t = cute.make_tensor(holder.t.iterator + 1, cute.make_layout(4))
    y[0] = holder.t[0]


@cute.jit
def in_two_steps(x: cute.Tensor, y: cute.Tensor, n: Int32):
    t = cute.make_tensor(x.iterator, cute.make_layout(4))
    u = cute.make_tensor(x.iterator, cute.make_layout(4))
    for _ in range(n):
        t = cute.make_tensor(u.iterator + 1, cute.make_layout(4))
        u = cute.make_tensor(u.iterator + 2, cute.make_layout(4))
    y[0] = t[0] + u[0]


@cute.jit
def in_nested_loops(x: cute.Tensor, y: cute.Tensor, n: Int32):
    t = cute.make_tensor(x.iterator, cute.make_layout(4))
    for _ in range(n):
        for _ in range(2):
            t = cute.make_tensor(t.iterator + 1, cute.make_layout(4))
    y[0] = t[0]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (in_a_variable, [0, 1, 3]), (in_a_while, [0, 1, 3]), (a_pointer, [0, 1, 3]), (in_a_tuple, [0, 1, 3]), (in_an_attribute, [0, 1, 3]),
        (in_two_steps, [0, 1 + 2, 5 + 6]), (in_nested_loops, [0, 2, 6]),
    ],
    ids=lambda x: getattr(x, "name", ""),
)  # fmt: skip
def test_a_weaker_alignment_is_kept(program, expected):
    assert [last(program, n) for n in (0, 1, 3)] == expected


def test_other_tensors_are_refused_by_name():
    @cute.jit
    def other_type(x: cute.Tensor, y: cute.Tensor, n: Int32):
        t = cute.make_rmem_tensor(4, Float32)
        for _ in range(n):
            y[1] = t[0].to(Float32)
            t = cute.make_rmem_tensor(4, Float16)
        y[0] = t[0].to(Float32)

    with pytest.raises(
        kiln.DSLBaseError, match="'?t'? is .*f32.* when the loop .* begins and .*f16.* after an iteration"
    ):
        last(other_type, 1)
