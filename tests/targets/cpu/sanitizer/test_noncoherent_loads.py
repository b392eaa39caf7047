"""Loads of memory that the kernel itself writes by `ld.global.nc`, which need not see what it writes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sanitizer_testing import found

from kiln import Constexpr, Float32, Int32, cute
from kiln.cute.nvgpu import CopyUniversalOp, cpasync
from kiln.cute.runtime import from_dlpack

N = 64


def rules(findings: list[Any]) -> list[str]:
    return [finding.rule for finding in findings]


def numbers() -> np.ndarray:
    return np.arange(N, dtype=np.float32)


def loaded(x: cute.Tensor, index: Any, invariant: bool) -> Any:
    """Load an element by a copy."""
    value = cute.make_rmem_tensor(1, Float32)
    atom = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32, invariant=invariant)
    cute.copy(atom, cute.local_tile(x, (1,), (index,)), value)
    return value[0]


# --- in one CTA: the threads are ordered by a barrier -----------------------------------------------------------------


@cute.kernel
def reversed_in_place(x: cute.Tensor, y: cute.Tensor, first: Constexpr, invariant: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if first == "load":
        y[t] = loaded(x, N - 1 - t, invariant)
        cute.arch.sync_threads()
    x[t] = Float32(2.0) * t
    if first == "write":
        cute.arch.sync_threads()
        y[t] = loaded(x, N - 1 - t, invariant)


@cute.jit
def run_reversed_in_place(x: cute.Tensor, y: cute.Tensor, first: Constexpr, invariant: Constexpr):
    reversed_in_place(x, y, first, invariant).launch(grid=1, block=N)


@pytest.mark.parametrize("first", ["load", "write"])
@pytest.mark.parametrize("bridge", [False, True])
def test_what_a_kernel_writes_is_not_loaded_as_if_nobody_did(first: str, bridge: bool) -> None:
    given = from_dlpack if bridge else np.asarray
    assert rules(found(run_reversed_in_place, given(numbers()), given(numbers()), first, False)) == []
    (finding,) = found(run_reversed_in_place, given(numbers()), given(numbers()), first, True)
    assert (finding.kind, finding.rule, finding.tensor) == ("race", "non-coherent", "x")
    assert finding.thread[0] + finding.other_thread[0] == N - 1
    places = [finding.span.snippet(), finding.notes[0][0].snippet()]
    assert "cute.copy" in places[first == "load"] and "x[t] = " in places[first == "write"]
    assert "invariant=True" in finding.hint


# --- threads that never meet -------------------------------------------------------------------------------------------


@cute.kernel
def doubled(x: cute.Tensor, y: cute.Tensor, invariant: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    i = b * 32 + t
    y[i] = 2 * loaded(x, i, invariant)


@cute.jit
def run_doubled(x: cute.Tensor, y: cute.Tensor, invariant: Constexpr):
    doubled(x, y, invariant).launch(grid=N // 32, block=32)


def test_arguments_that_share_memory_are_one_array() -> None:
    x, y = numbers(), numbers()
    assert rules(found(run_doubled, x, y, True)) == []
    assert rules(found(run_doubled, x, x, False)) == []
    assert rules(found(run_doubled, x, x, True)) == ["non-coherent"]


@cute.kernel
def moved(x: cute.Tensor, by: Int32, invariant: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    i = b * 16 + t
    x[N // 2 + i] = loaded(x, i + by, invariant)


@cute.jit
def run_moved(x: cute.Tensor, by: Int32, invariant: Constexpr):
    moved(x, by, invariant).launch(grid=2, block=16)


def test_parts_of_an_array_that_nobody_writes_may_be_loaded_so() -> None:
    assert rules(found(run_moved, numbers(), 0, True)) == []
    assert rules(found(run_moved, numbers(), N // 2, False)) == []  # each thread what it writes itself
    assert rules(found(run_moved, numbers(), N // 2, True)) == ["non-coherent"]
    assert "non-coherent" in rules(found(run_moved, numbers(), 16, True))


# --- several CTAs, ordered by a flag; launches ------------------------------------------------------------------------


@cute.kernel
def passed_on(flag: cute.Tensor, x: cute.Tensor, y: cute.Tensor, invariant: Constexpr):
    b, _, _ = cute.arch.block_idx()
    if b == 0:
        x[0] = Float32(3.0)
        cute.arch.store(flag.iterator, Int32(1), sem="release", scope="gpu")
    else:
        seen = Int32(0)
        while seen == 0:
            seen = cute.arch.load(flag.iterator, Int32, sem="acquire", scope="gpu")
        y[0] = loaded(x, 0, invariant)


@cute.jit
def run_passed_on(flag: cute.Tensor, x: cute.Tensor, y: cute.Tensor, invariant: Constexpr):
    passed_on(flag, x, y, invariant).launch(grid=2, block=1)


def test_an_acquire_does_not_help() -> None:
    for invariant, expected in ((False, []), (True, ["non-coherent"])):
        y = numbers()
        assert rules(found(run_passed_on, np.zeros(1, np.int32), numbers(), y, invariant)) == expected
        assert y[0] == 3


@cute.jit
def run_twice(x: cute.Tensor, y: cute.Tensor):
    doubled(x, y, True).launch(grid=N // 32, block=32)
    doubled(y, x, True).launch(grid=N // 32, block=32)


def test_what_an_earlier_launch_wrote_may_be_loaded_so() -> None:
    x = numbers()
    assert rules(found(run_twice, x, numbers())) == []
    np.testing.assert_array_equal(x, 4 * numbers())


# --- other loads and writes -------------------------------------------------------------------------------------------


@cute.kernel
def by_ptx(x: cute.Tensor, y: cute.Tensor, instruction: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    x[t] = Float32(2.0) * t
    cute.arch.sync_threads()
    y[t] = cute.arch.inline_ptx(
        instruction + " $0, [$1];", write_only_types=[Float32], read_only_args=[(x.iterator + (t ^ 1)).toint()]
    )


@cute.jit
def run_by_ptx(x: cute.Tensor, y: cute.Tensor, instruction: Constexpr):
    by_ptx(x, y, instruction).launch(grid=1, block=N)


@pytest.mark.parametrize(
    ("instruction", "right"),
    [
        ("ld.global.f32", True), ("ld.global.L1::no_allocate.f32", True), ("ld.relaxed.gpu.global.L1::no_allocate.f32", True),
        ("ld.global.nc.f32", False), ("ld.global.nc.L1::no_allocate.f32", False), ("ldu.global.f32", False),
    ],
)  # fmt: skip
def test_inline_ptx(instruction: str, right: bool) -> None:
    assert rules(found(run_by_ptx, numbers(), numbers(), instruction)) == ([] if right else ["non-coherent"])


@cute.kernel
def stored_in_bulk(x: cute.Tensor, y: cute.Tensor, invariant: Constexpr):
    """A bulk store writes what threads have loaded before."""
    t, _, _ = cute.arch.thread_idx()
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, N, alignment=128), N)
    tile[t] = Float32(1.0)
    y[t] = loaded(x, t, invariant)
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.sync_threads()
    if t == 0:
        cute.copy(cute.make_copy_atom(cpasync.CopyBulkS2GOp(), Float32), tile, x)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)


@cute.jit
def run_stored_in_bulk(x: cute.Tensor, y: cute.Tensor, invariant: Constexpr):
    stored_in_bulk(x, y, invariant).launch(grid=1, block=N)


def test_a_bulk_store_writes_too() -> None:
    for invariant, expected in ((False, []), (True, ["non-coherent"])):
        x, y = from_dlpack(numbers(), assumed_align=16), numbers()
        assert rules(found(run_stored_in_bulk, x, y, invariant)) == expected
