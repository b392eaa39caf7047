"""Kernels whose threads never meet are checked without clocks; what is found is the same as with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sanitizer_testing import found

import kiln
from kiln import Constexpr, Float32, Int32, cute


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


@cute.kernel
def moves(x: cute.Tensor, y: cute.Tensor, how: Constexpr, meets: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    i = b * 32 + t
    if kiln.const_expr(how == "copies"):
        y[i] = x[i]
    if kiln.const_expr(how == "in place"):
        x[i] = x[i] + 1
        x[i] = x[i] * 2
    if kiln.const_expr(how == "neighbour"):
        y[i] = x[i + 1]
    if kiln.const_expr(how == "neighbour in place"):
        x[i] = x[i + 1]
    if kiln.const_expr(how == "read by two"):
        if i > 0:
            y[i] = x[0] + x[i]
        if i == 40:
            x[0] = 1
    if kiln.const_expr(how == "one value"):
        y[0] = 1
    if kiln.const_expr(how == "many values"):
        y[i // 2] = i
    if kiln.const_expr(how == "vectors"):
        source, target = cute.local_tile(x, (4,), (i // 2,)), cute.local_tile(y, (4,), (i,))
        target.store(source.load())
    if kiln.const_expr(how == "overlapping vectors"):
        whole = cute.make_tensor(y.iterator + 2 * i, cute.make_layout(4))
        for k in kiln.range_constexpr(4):
            whole[k] = i
    if kiln.const_expr(meets):
        cute.arch.sync_threads()


@cute.jit
def run_moves(x: cute.Tensor, y: cute.Tensor, how: Constexpr, meets: Constexpr):
    moves(x, y, how, meets).launch(grid=2, block=32)


CASES = {
    "copies": set(),
    "in place": set(),
    "neighbour": set(),
    "neighbour in place": {"read-write", "write-read"},
    "read by two": {"read-write", "write-read"},
    "one value": set(),
    "many values": {"write-write"},
    "vectors": set(),
    "overlapping vectors": {"write-write"},
}


@pytest.mark.parametrize("how", CASES)
def test_the_same_findings_as_with_clocks(how: str) -> None:
    seen: list[set[Any]] = []
    for meets in (False, True):
        x, y = np.arange(260, dtype=np.int32), np.zeros(260, np.int32)
        findings = found(run_moves, x, y, how, meets)
        assert {f.rule for f in findings} <= CASES[how]
        assert bool(findings) == bool(CASES[how])
        assert {f.tensor for f in findings} <= {"x", "y"}
        seen.append({(f.span.line, f.other_span.line, f.tensor, f.space) for f in findings})
    assert seen[0] == seen[1]


@pytest.mark.parametrize("meets", [False, True])
def test_arguments_that_share_memory(meets: bool) -> None:
    memory = np.arange(96, dtype=np.int32)
    assert found(run_moves, memory[:64], memory[:64], "copies", meets) == []
    assert found(run_moves, memory[:65], memory[32:], "neighbour", meets)
    assert found(run_moves, memory[:65], memory[:64], "neighbour", meets)


@cute.kernel
def far(x: cute.Tensor, y: cute.Tensor, i: Int32):
    t, _, _ = cute.arch.thread_idx()
    y[t] = x[t + i]


@cute.jit
def run_far(x: cute.Tensor, y: cute.Tensor, i: Int32):
    far(x, y, i).launch(grid=1, block=4)


def test_bounds() -> None:
    x, y = np.zeros(8, np.float32), np.ones(4, np.float32)
    for offset in (-1, 5, 1 << 30):
        (finding,) = found(run_far, x, y, offset)
        assert (finding.rule, finding.tensor, finding.kernel) == ("bounds", "x", "far")
    assert found(run_far, x, y, 4) == []


@cute.kernel
def shaped(y: cute.Tensor):
    tx, ty, tz = cute.arch.thread_idx()
    bx, by, _ = cute.arch.block_idx()
    if tx == 1 and ty == 2 and bx == 1 and by == 2:
        y[100 + tz] = Float32(1.0)


@cute.jit
def run_shaped(y: cute.Tensor):
    shaped(y).launch(grid=(2, 3), block=(2, 3, 2))


def test_who_it_was() -> None:
    (finding,) = found(run_shaped, np.zeros(4, np.float32))
    assert (finding.block, finding.thread) == ((1, 2, 0), (1, 2, 0))
