"""Values: those that nobody set, numbers that are not finite, indices that overflow, divisions by zero, memory that may not be written."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Boolean, Constexpr, Float16, Float32, Int32, Int64, cute
from kiln.base_dsl.diagnostics import DSLWarning
from kiln.cute.runtime import from_dlpack

N = 32


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def found(main: Any, *arguments: Any, kinds: str = "default") -> list[Any]:
    with kiln.sanitize(kinds, raises=False) as report:
        main(*arguments)
    return report.findings


def line_of(text: str) -> int:
    """The line of this file that ends with a comment."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


def zeros(*sizes: int, kind: Any = np.float32) -> list[np.ndarray]:
    return [np.zeros(size, kind) for size in sizes]


# --- registers that nobody wrote -------------------------------------------------------------------------------------


@cute.kernel
def fragment(x: cute.Tensor, y: cute.Tensor, n: Int32, how: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    values = cute.make_rmem_tensor(cute.make_layout(4), Float32)  # the tensor
    if kiln.const_expr(how == "filled"):
        values.fill(0.0)
    if t < n:
        values[0] = x[t]
        values[1] = x[t] + 1.0
    loaded = values.load()
    total = loaded[0] * 2.0
    for _ in range(n):
        total = total + loaded[1]
    if kiln.const_expr(how == "guarded"):
        if t < n:
            y[t] = total
    elif kiln.const_expr(how == "selected"):
        y[t] = cute.where(cute.full(1, t < n, Boolean), cute.full(1, total, Float32), cute.full(1, 0.0, Float32))[0]
    else:
        y[t] = total  # the use


@cute.jit
def run_fragment(x: cute.Tensor, y: cute.Tensor, n: Int32, how: Constexpr):
    fragment(x, y, n, how).launch(grid=1, block=N)


@pytest.mark.parametrize("how", ["filled", "guarded", "selected"])
def test_values_that_are_not_used_may_be_unset(how: str) -> None:
    x, y = zeros(N, N)
    assert found(run_fragment, x, y, 20, how) == []


def test_an_unset_value_is_found_where_it_is_used() -> None:
    x, y = zeros(N, N)
    (finding,) = found(run_fragment, x, y, 20, "plain")
    assert (finding.kind, finding.rule) == ("memory", "uninitialized")
    assert (finding.span.line, finding.other_span.line) == (line_of("the use"), line_of("the tensor"))
    assert (finding.tensor, finding.coordinate, finding.thread) == ("y", (20,), (20, 0, 0))
    assert finding.count == 12
    assert "an element of values" in finding.message
    assert found(run_fragment, x, y, 32, "plain") == []


@cute.kernel
def element(y: cute.Tensor, which: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    values = cute.make_rmem_tensor(cute.make_layout((2, 2)), Float16)
    values[0, 1] = Float16(1.0)
    values[1, 1] = Float16(2.0)
    y[t] = values[0, which]


@cute.jit
def run_element(y: cute.Tensor, which: Constexpr):
    element(y, which).launch(grid=1, block=N)


def test_elements_are_told_apart() -> None:
    (y,) = zeros(N, kind=np.float16)
    assert found(run_element, y, 1) == []
    (finding,) = found(run_element, y, 0)
    assert "with element 0 of values, which nobody has written" in finding.message
    assert finding.page == ""  # it lacks a value, not a barrier
    assert found(run_element, y, 0, kinds="race,sync") == []


@cute.kernel
def rounds(y: cute.Tensor, n: Int32, start: Constexpr):
    """A register tensor that is made anew in every round, and one that is carried through memory and branches."""
    t, _, _ = cute.arch.thread_idx()
    kept = cute.make_rmem_tensor(cute.make_layout(2), Float32)
    if kiln.const_expr(start):
        kept[0] = Float32(0.0)
    for i in range(n):
        fresh = cute.make_rmem_tensor(cute.make_layout(1), Float32)
        if i == 0 or kiln.const_expr(start):
            fresh[0] = Float32(1.0)
        kept[0] = kept[0] + fresh[0]
    sent = Float32(0.0)
    if t > 3:
        sent = kept[0]
    count = 0
    while count < 2:
        sent = sent + 1.0
        count += 1
    y[t] = sent


@cute.jit
def run_rounds(y: cute.Tensor, n: Int32, start: Constexpr):
    rounds(y, n, start).launch(grid=1, block=N)


def test_unset_values_go_through_loops_branches_and_memory() -> None:
    (y,) = zeros(N)
    assert found(run_rounds, y, 3, True) == []
    assert y.tolist() == [2.0] * 4 + [5.0] * 28
    (finding,) = found(run_rounds, y, 1, False)
    assert (finding.thread, finding.count) == ((4, 0, 0), 28)


@cute.kernel
def decides(x: cute.Tensor, y: cute.Tensor, how: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    staged = cute.make_tensor(cute.arch.alloc_smem(Float32, N), cute.make_layout(N))
    values = cute.make_rmem_tensor(cute.make_layout(1), Int32)
    if kiln.const_expr(how == "address"):
        y[t] = x[values[0]]
    if kiln.const_expr(how == "branch"):
        if values[0] > 1:
            y[t] = Float32(1.0)
    if kiln.const_expr(how == "loop"):
        while values[0] > 100:
            values[0] = 0
    if kiln.const_expr(how == "shared"):
        staged[t] = values[0].to(Float32)
    if kiln.const_expr(how == "atomic"):
        cute.arch.atomic_add(y.iterator, values[0].to(Float32))
    if kiln.const_expr(how == "and"):
        if t > 100 and values[0] > 1:
            y[t] = Float32(1.0)


@cute.jit
def run_decides(x: cute.Tensor, y: cute.Tensor, how: Constexpr):
    decides(x, y, how).launch(grid=1, block=N)


@pytest.mark.parametrize("how", ["address", "branch", "loop", "shared", "atomic"])
def test_what_an_unset_value_decides(how: str) -> None:
    x, y = zeros(N, N)
    (finding,) = (f for f in found(run_decides, x, y, how) if f.rule == "uninitialized")
    assert {"address": "address", "branch": "branch", "loop": "branch"}.get(how, "writes") in finding.message


def test_what_a_false_condition_hides_decides_nothing() -> None:
    x, y = zeros(N, N)
    assert found(run_decides, x, y, "and") == []


@cute.kernel
def accumulates(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, clears: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    atom = cute.nvgpu.warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16))
    mma = cute.make_tiled_mma(atom).get_slice(t)
    a, b, c = mma.partition_A(x), mma.partition_B(w), mma.partition_C(y)
    fa, fb = mma.make_fragment_A(a), mma.make_fragment_B(b)
    fc = mma.make_fragment_C(c)
    cute.autovec_copy(a, fa)
    cute.autovec_copy(b, fb)
    if kiln.const_expr(clears):
        fc.fill(0.0)
    cute.gemm(cute.make_tiled_mma(atom), fc, fa, fb, fc)
    cute.autovec_copy(fc, c)


@cute.jit
def run_accumulates(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, clears: Constexpr):
    accumulates(x, w, y, clears).launch(grid=1, block=32)


def test_accumulators_that_are_not_cleared() -> None:
    x, y = np.ones((16, 16), np.float16), np.zeros((16, 8), np.float32)
    arguments = (from_dlpack(x), from_dlpack(x[:8]), from_dlpack(y))
    assert found(run_accumulates, *arguments, True) == []
    assert np.array_equal(y, np.full((16, 8), 16.0))
    (finding,) = found(run_accumulates, *arguments, False)
    assert "of fc, which nobody has written" in finding.message


# --- numbers ---------------------------------------------------------------------------------------------------------


@cute.kernel
def divides(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    quotient = 1.0 / x[t, 0]  # the division
    y[t, 1] = quotient * 2.0


@cute.jit
def run_divides(x: cute.Tensor, y: cute.Tensor):
    divides(x, y).launch(grid=1, block=8)


def test_the_first_number_that_is_not_finite() -> None:
    x, y = np.ones((8, 2), np.float32), np.zeros((8, 2), np.float32)
    x[5, 0] = 0.0
    assert found(run_divides, x, y) == []
    (finding,) = found(run_divides, x, y, kinds="numeric")
    assert (finding.kind, finding.thread, finding.span.line) == ("numeric", (5, 0, 0), line_of("the division"))
    assert "1 / 0 = inf" in finding.message
    assert (finding.tensor, finding.coordinate) == ("y", (5, 1))
    assert found(run_divides, x + 1, y, kinds="numeric") == []
    assert found(run_divides, x + np.float32(np.inf), y, kinds="numeric") == []


@cute.kernel
def exponentials(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    source, target = cute.local_tile(x, (4,), (t,)), cute.local_tile(y, (4,), (t,))
    target.store(cute.math.exp(source.load() * 50.0))


@cute.jit
def run_exponentials(x: cute.Tensor, y: cute.Tensor):
    exponentials(x, y).launch(grid=1, block=8)


def test_elements_of_vectors_that_are_not_finite() -> None:
    x, y = zeros(32, 32)
    x[11] = 3.0
    (finding,) = found(run_exponentials, x, y, kinds="numeric")
    assert "exp(150) = inf, element 3 of 4" in finding.message
    assert finding.coordinate == (11,)


@cute.kernel
def squares(y: cute.Tensor, n: Int32, wide: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    i = (Int64(t) if wide else t) * n * n
    if i < 100:
        y[i] = Float32(1.0)


@cute.kernel
def shares(y: cute.Tensor, n: Int32):
    t, _, _ = cute.arch.thread_idx()
    y[t] = Float32(t % n)


@cute.jit
def run_shares(y: cute.Tensor, n: Int32):
    shares(y, n).launch(grid=1, block=4)


def test_divisions_by_zero() -> None:
    (y,) = zeros(4)
    (finding,) = found(run_shares, y, 0, kinds="all")
    assert (finding.kind, finding.rule, finding.thread) == ("numeric", "zero-division", (0, 0, 0))
    assert finding.span.snippet().split()[0] == "y[t]"
    assert (y == -1).all()
    with pytest.warns(DSLWarning, match=r"by zero \(kernel shares, block \(0, 0, 0\), thread \(0, 0, 0\)\)"):
        assert found(run_shares, y, 0) == []
    assert found(run_shares, y, 3, kinds="all") == []


@cute.kernel
def shifts(y: cute.Tensor, n: Int32):
    t, _, _ = cute.arch.thread_idx()
    y[t] = Float32((1 << (t - n)) + (t >> (t - n)))  # shifted


@cute.jit
def run_shifts(y: cute.Tensor, n: Int32):
    shifts(y, n).launch(grid=1, block=4)


def test_shifts_by_negative_numbers() -> None:
    (y,) = zeros(4)
    left, right = found(run_shifts, y, 1, kinds="all")
    for finding in (left, right):
        assert (finding.kind, finding.rule, finding.thread) == ("numeric", "negative-shift", (0, 0, 0))
        assert finding.span.line == line_of("shifted")
    assert y.tolist() == [0, 2, 3, 4]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found(run_shifts, y, 1) == []  # the number is the same on all targets
    assert found(run_shifts, y, 0, kinds="all") == []


@cute.jit
def run_squares(y: cute.Tensor, n: Int32, wide: Constexpr):
    squares(y, n, wide).launch(grid=1, block=4)


def test_indices_that_overflow() -> None:
    (y,) = zeros(100)
    first = found(run_squares, y, 40000, False, kinds="all")[0]
    assert (first.kind, first.rule) == ("numeric", "index-overflow")
    assert "80000 * 40000" in first.message
    assert found(run_squares, y, 40000, True, kinds="all") == []
    assert found(run_squares, y, 10, False, kinds="all") == []


def test_an_index_that_overflows_into_bounds_is_another_element() -> None:
    """t * 65536 * 65536 is 0 in 32 bits: an access within bounds, and to an element that nobody means."""
    (y,) = zeros(100)
    for kinds in ("default", "memory"):
        (finding,) = found(run_squares, y, 65536, False, kinds=kinds)
        assert (finding.rule, finding.thread) == ("index-overflow", (1, 0, 0))
        assert "computes 65536 * 65536 for an address, which does not fit in 32 bits" in finding.message
    assert found(run_squares, y, 65536, True) == []
    assert found(run_squares, y, 5, False) == []


# --- memory that may not be written ----------------------------------------------------------------------------------


@cute.kernel
def writes(y: cute.Tensor, how: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if kiln.const_expr(how == "atomic"):
        cute.arch.atomic_add(y.iterator + t, Float32(1.0))
    else:
        cute.arch.store(y.iterator + t, Float32(1.0), sem="relaxed", scope="gpu")


@cute.jit
def run_writes(y: cute.Tensor, how: Constexpr):
    writes(y, how).launch(grid=1, block=4)


@pytest.mark.parametrize("how", ["atomic", "store"])
@pytest.mark.parametrize("wrap", [lambda y: y, from_dlpack], ids=["array", "dlpack"])
def test_read_only_arrays(wrap: Any, how: str) -> None:
    (y,) = zeros(4)
    assert found(run_writes, wrap(y), how) == []
    assert y.tolist() == [1.0] * 4
    y.flags.writeable = False
    (finding,) = found(run_writes, wrap(y), how)
    assert (finding.rule, finding.tensor, finding.coordinate) == ("read-only", "y", (0,))
    assert y.tolist() == [1.0] * 4
