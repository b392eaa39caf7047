"""What a finding says: both places, who, which element; and how findings are raised, collected and written."""

from __future__ import annotations

import json
import operator
import re
from typing import Any

import numpy as np
import pytest
from sanitizer_testing import shared

import kiln
from kiln import Constexpr, Float16, Float32, Int32, Int64, const_expr, cute, utils
from kiln.sanitize import SanitizerError

N = 64


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def found(main: Any, *arguments: Any, kinds: str = "default") -> list[Any]:
    """The findings of a call."""
    with kiln.sanitize(kinds, raises=False) as report:
        main(*arguments)
    return report.findings


def line_of(text: str) -> int:
    """The line of this file that ends with a comment."""
    with open(__file__) as file:
        return next(number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


@cute.kernel
def shift(x: cute.Tensor, y: cute.Tensor, waits: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    staged = cute.make_tensor(cute.arch.alloc_smem(Float32, N), cute.make_layout(N))
    staged[t] = x[t]  # the write
    if kiln.const_expr(waits):
        cute.arch.sync_threads()
    y[t] = staged[(t + 40) % N]  # the read


@cute.jit
def run_shift(x: cute.Tensor, y: cute.Tensor, waits: Constexpr):
    shift(x, y, waits).launch(grid=1, block=N)


def arrays(*sizes: int, kind: Any = np.float32) -> list[np.ndarray]:
    return [np.arange(size, dtype=kind) for size in sizes]


def test_a_race_names_both_sides() -> None:
    x, y = arrays(N, N)
    finding = next(f for f in found(run_shift, x, y, False) if f.rule == "write-read")
    assert finding.kind == "race"
    assert finding.kernel == "shift"
    assert finding.span.line == line_of("the read")
    assert finding.other_span.line == line_of("the write")
    assert (finding.space, finding.tensor) == ("shared", "staged")
    assert finding.block == finding.other_block == (0, 0, 0)
    assert (finding.thread[0] + 40) % N == finding.other_thread[0] == finding.offset // 4
    assert finding.coordinate == finding.other_thread[:1]
    assert "sync_threads" in finding.hint


@cute.kernel
def subtract_first(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    first = cute.make_tensor(cute.arch.alloc_smem(Float32, 1), 1)
    if t == 0:
        first[0] = x[0]
    y[t] = x[t] - first[0]


@cute.jit
def run_subtract_first(x: cute.Tensor, y: cute.Tensor, threads: Constexpr):
    subtract_first(x, y).launch(grid=1, block=threads)


@pytest.mark.parametrize(("threads", "first"), [(N, "put sync_threads()"), (32, "put sync_warp()")])
def test_the_help_fits_all_pairs_of_a_race_and_not_only_the_one_that_is_named(threads: int, first: str) -> None:
    (finding,) = found(run_subtract_first, *arrays(N, N), threads)
    assert finding.thread[0] // 32 == finding.other_thread[0] // 32 and finding.count == threads - 1
    assert finding.hint.startswith(first)


block_sum = utils.reduce_in_block  # the buffer has its name by whatever name the function is called


@cute.kernel
def sums(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    for row in range(2):
        total = block_sum(x[row * N + t], operator.add, N, N)
        y[row * N + t] = total


@cute.jit
def run_sums(x: cute.Tensor, y: cute.Tensor):
    sums(x, y).launch(grid=1, block=N)


def test_the_buffer_of_a_reduction_has_not_the_name_of_the_result() -> None:
    (finding,) = found(run_sums, *arrays(2 * N, 2 * N))
    assert finding.tensor == "reduce_in_block's buffer" and "reduce_in_block's buffer[0]" in finding.message
    assert finding.hint == "put sync_threads() before the call: its buffer is used again"


@cute.kernel
def tree_sum(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, N), cute.make_layout(N))
    tile[t] = x[t]
    cute.arch.sync_threads()
    half = Int32(N // 2)
    while half > 0:
        if t < half:
            tile[t] += tile[t + half]
        if half != 16:  # the second iteration does not synchronize
            cute.arch.sync_threads()
        half = half // 2
    for row in range(1, 7, 2):
        y[row * N + t] = tile[0]


@cute.jit
def run_tree_sum(x: cute.Tensor, y: cute.Tensor):
    tree_sum(x, y).launch(grid=1, block=N)


def test_a_finding_in_a_loop_names_the_iteration() -> None:
    findings = {finding.rule: finding for finding in found(run_tree_sum, *arrays(N, 5 * N))}
    assert {rule: finding.iteration for rule, finding in findings.items()} == {"read-write": 1, "bounds": 2}
    (_, (loop, text)) = findings["read-write"].notes
    assert text == "thread 8 of block 0 is in iteration 1 of this loop, counted from 0"
    assert loop.snippet().splitlines()[0].strip() == "while half > 0:"
    assert findings["bounds"].to_dict()["iteration"] == 2
    assert all(finding.iteration is None for finding in found(run_shift, *arrays(N, N), False))


@cute.kernel
def dynamic(y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    cute.arch.alloc_smem(Float32, 5)
    base = cute.arch.get_dyn_smem(Float32)
    first = cute.make_tensor(base, cute.make_layout((4, 8), stride=(8, 1)))
    second = cute.make_tensor(base + 32, cute.make_layout((8, 4), stride=(4, 1)))
    first[t // 8, t % 8] = Float32(1.0)
    second[t // 4, t % 4] = Float32(2.0)
    y[t] = first[0, 0] + second[7, 2]


@cute.jit
def run_dynamic(y: cute.Tensor):
    dynamic(y).launch(grid=1, block=32, smem=256)


def test_coordinates_in_dynamic_shared_memory() -> None:
    (y,) = arrays(32)
    named = {(f.tensor, f.coordinate) for f in found(run_dynamic, y) if f.rule == "write-read"}
    assert named == {("first", (0, 0)), ("second", (7, 2))}


@cute.kernel
def swizzled(how: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    plain = cute.make_layout((8, 64, 2), stride=(64, 1, 512))
    if kiln.const_expr(how == "layout"):
        tile = cute.make_tensor(
            cute.arch.alloc_smem(Float16, 1024, 1024), cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, plain)
        )
    else:
        tile = utils.SmemAllocator().allocate_tensor(Float16, plain, 1024, swizzle=cute.make_swizzle(3, 4, 3))
    tile[5, 33, 1] = Float16(t)


@cute.jit
def run_swizzled(how: Constexpr):
    swizzled(how).launch(grid=1, block=32)


@pytest.mark.parametrize("how", ["layout", "pointer"])
def test_coordinates_in_swizzled_shared_memory(how: str) -> None:
    (finding,) = found(run_swizzled, how)
    assert (finding.rule, finding.tensor, finding.coordinate) == ("write-write", "tile", (5, 33, 1))


def test_silent_with_the_barrier() -> None:
    x, y = arrays(N, N)
    assert found(run_shift, x, y, True) == []
    assert np.array_equal(y, np.roll(x, -40))


def test_the_first_finding_raises_by_default() -> None:
    x, y = arrays(N, N)
    with pytest.raises(SanitizerError, match="race in kernel shift") as caught, kiln.sanitize("race"):
        run_shift(x, y, False)
    assert len(caught.value.findings) == 2


def test_only_the_kinds_asked_for() -> None:
    x, y = arrays(N, N)
    assert {f.kind for f in found(run_shift, x, y, False, kinds="memory")} <= {"memory"}


def test_reports() -> None:
    x, y = arrays(N, N)
    before = len(kiln.sanitize.report())
    with kiln.sanitize("race", raises=False) as report:
        run_shift(x, y, False)
    assert len(kiln.sanitize.report()) == before + len(report)
    assert "note: written here" in str(report)
    entry = json.loads(report.json())[0]
    assert entry["kind"] == "race"
    assert entry["span"]["file"] == __file__
    with kiln.sanitize():
        run_shift(x, y, True)
    assert str(kiln.sanitize("race")) == "the sanitizer found nothing"


def test_code_is_compiled_anew_under_the_sanitizer() -> None:
    x, y = arrays(N, N)
    run_shift(x, y, False)
    assert found(run_shift, x, y, False)
    run_shift(x, y, False)


def test_normal_code_contains_nothing_of_it() -> None:
    x, y = arrays(N, N)
    assert "kiln_cpu_san" not in (cute.compile(run_shift, x, y, True).__llvm__ or "")
    with kiln.sanitize():
        assert "kiln_cpu_san" in (cute.compile(run_shift, x, y, True).__llvm__ or "")


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(kiln.DSLRuntimeError, match="unknown: rice"):
        kiln.sanitize("rice")


# --- global memory ---------------------------------------------------------------------------------------------------


@cute.kernel
def neighbours(x: cute.Tensor, in_place: Constexpr, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    i = b * 32 + t
    if kiln.const_expr(in_place):
        x[i, 0] = x[(i + 1) % 64, 0]
    else:
        y[i, 0] = x[(i + 1) % 64, 0]


@cute.jit
def run_neighbours(x: cute.Tensor, in_place: Constexpr, y: cute.Tensor):
    neighbours(x, in_place, y).launch(grid=2, block=32)


def test_blocks_of_a_launch_race_in_global_memory() -> None:
    x, y = (np.zeros((64, 2), np.float32) for _ in range(2))
    assert found(run_neighbours, x, False, y) == []
    findings = found(run_neighbours, x, True, y)
    assert {f.kind for f in findings} == {"race"}
    assert {f.tensor for f in findings} == {"x"}
    across = [f for f in findings if f.block != f.other_block]
    assert all(f.coordinate is not None and f.coordinate[1] == 0 for f in findings)
    assert findings[0].space == "global"
    assert not across or "second launch" in across[0].hint


@cute.jit
def run_twice(x: cute.Tensor, y: cute.Tensor):
    neighbours(x, False, y).launch(grid=2, block=32)
    neighbours(y, False, x).launch(grid=2, block=32)


def test_launches_are_ordered() -> None:
    x, y = (np.zeros((64, 2), np.float32) for _ in range(2))
    assert found(run_twice, x, y) == []


@cute.kernel
def count(y: cute.Tensor, atomic: Constexpr):
    if kiln.const_expr(atomic):
        cute.arch.atomic_add(y.iterator, Int32(1))
    else:
        y[0] = y[0] + 1


@cute.jit
def run_count(y: cute.Tensor, atomic: Constexpr):
    count(y, atomic).launch(grid=3, block=32)


def test_atomics_do_not_race_with_each_other() -> None:
    y = np.zeros(1, np.int32)
    assert found(run_count, y, True) == []
    assert y[0] == 96
    assert any(f.rule == "write-write" for f in found(run_count, y, False))


# --- elements smaller than a word ------------------------------------------------------------------------------------


@cute.kernel
def halves(x: cute.Tensor, y: cute.Tensor, distance: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    staged = cute.make_tensor(cute.arch.alloc_smem(Float16, N), cute.make_layout(N))
    staged[t] = x[t]
    y[t] = staged[t ^ distance]


@cute.jit
def run_halves(x: cute.Tensor, y: cute.Tensor, distance: Constexpr):
    halves(x, y, distance).launch(grid=1, block=N)


def test_neighbours_in_a_word_do_not_race() -> None:
    x, y = arrays(N, N, kind=np.float16)
    assert found(run_halves, x, y, 0) == []
    assert found(run_halves, x, y, 1)


# --- memory ----------------------------------------------------------------------------------------------------------


@cute.kernel
def beyond(x: cute.Tensor, y: cute.Tensor, reach: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    y[t] = x[t + reach]


@cute.jit
def run_beyond(x: cute.Tensor, y: cute.Tensor, reach: Constexpr):
    beyond(x, y, reach).launch(grid=1, block=32)


def test_reads_beyond_the_end_of_an_argument() -> None:
    x, y = arrays(40, 32)
    assert found(run_beyond, x, y, 8) == []
    (finding,) = found(run_beyond, x, y, 9)
    assert (finding.kind, finding.rule, finding.tensor) == ("memory", "bounds", "x")
    assert "reads x[40], and its shape is (40)" in finding.message
    (finding,) = found(run_beyond, x, y, 1 << 28)
    assert finding.rule == "bounds"
    assert finding.count == 32


def test_an_argument_that_is_part_of_a_larger_array_may_not_leave_it() -> None:
    x, y = arrays(64, 32)
    (finding,) = found(run_beyond, x[:40], y, 24)
    assert finding.rule == "bounds"


@cute.kernel
def tiled(tiles: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    tiles[t, cute.arch.block_idx()[0]] = Float32(1.0)


@cute.jit
def run_tiled(x: cute.Tensor, tile: Constexpr):
    tiles = cute.zipped_divide(x, (tile,))
    tiled(tiles).launch(grid=cute.size(tiles, mode=[1]), block=tile)


def test_a_tile_that_is_larger_than_its_array_has_the_array_s_bounds() -> None:
    from kiln.cute.runtime import from_dlpack

    for size in (64, 40):
        memory = np.zeros(64, np.float32)  # what lies behind the array may be written without harm
        for x in (from_dlpack(memory[:size]), memory[:size]):
            findings = found(run_tiled, x, 32)
            assert [f.rule for f in findings] == ([] if size == 64 else ["bounds"])
    assert "writes [40] of the tensor that tiles is cut from, and its shape is (40)" in findings[0].message


@cute.kernel
def shared_beyond(y: cute.Tensor, size: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    first = cute.make_tensor(cute.arch.alloc_smem(Float32, size), cute.make_layout(size))
    second = cute.make_tensor(cute.arch.alloc_smem(Float32, 32), cute.make_layout(32))
    first[t] = Float32(1.0)
    second[t] = Float32(2.0)
    y[t] = first[t] + second[t]


@cute.jit
def run_shared_beyond(y: cute.Tensor, size: Constexpr):
    shared_beyond(y, size).launch(grid=1, block=32)


def test_shared_memory_has_the_bounds_of_its_allocation() -> None:
    (y,) = arrays(32)
    assert found(run_shared_beyond, y, 32) == []
    findings = found(run_shared_beyond, y, 30)
    assert {f.rule for f in findings} == {"bounds"}
    assert {f.tensor for f in findings} == {"first"}


@cute.kernel
def private_beyond(y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    values = cute.make_rmem_tensor(cute.make_layout(4), Float32)
    values.fill(1.0)
    y[t] = values[t]


@cute.jit
def run_private_beyond(y: cute.Tensor, threads: Constexpr):
    private_beyond(y).launch(grid=1, block=threads)


def test_register_arrays_have_bounds() -> None:
    (y,) = arrays(32)
    assert found(run_private_beyond, y, 4) == []
    (finding,) = found(run_private_beyond, y, 6)
    assert "reads values[4], and its shape is (4)" in finding.message


@cute.kernel
def rows_beyond(y: cute.Tensor, first: Constexpr, count: Constexpr, writes: Constexpr):
    held = cute.make_rmem_tensor(32, Float32)
    held.fill(1.0)
    row = cute.make_tensor(held.iterator + first, cute.make_layout(count))
    if const_expr(writes):
        row.store(cute.full((count,), 2.0, Float32))
    else:
        y[0] = row.load()[0]
    y[1] = held[0]


@cute.jit
def run_rows_beyond(y: cute.Tensor, first: Constexpr, count: Constexpr, writes: Constexpr):
    rows_beyond(y, first, count, writes).launch(grid=1, block=1)


@pytest.mark.parametrize("writes", [False, True])
def test_the_first_element_outside_is_named(writes) -> None:
    """Long rows of registers are one access, which may begin inside."""
    (y,) = arrays(32)
    assert found(run_rows_beyond, y, 0, 32, writes) == []
    for first, count, outside in ((0, 64, 32), (4, 32, 32), (32, 32, 32), (36, 32, 36), (-4, 32, -4), (28, 8, 32)):
        (finding,) = found(run_rows_beyond, y, first, count, writes)
        assert f"{'writes' if writes else 'reads'} element {outside} of a register array of 32 f32" in finding.message


@cute.kernel
def unwritten(y: cute.Tensor, writers: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    staged = cute.make_tensor(cute.arch.alloc_smem(Float32, 32), cute.make_layout(32))
    if t < writers:
        staged[t] = Float32(1.0)
    cute.arch.sync_threads()
    y[t] = staged[t]


@cute.jit
def run_unwritten(y: cute.Tensor, writers: Constexpr):
    unwritten(y, writers).launch(grid=2, block=32)


def test_shared_memory_that_nobody_wrote() -> None:
    (y,) = arrays(32)
    assert found(run_unwritten, y, 32, kinds="memory") == []
    (finding,) = found(run_unwritten, y, 31, kinds="memory")
    assert (finding.rule, finding.thread) == ("uninitialized", (31, 0, 0))
    assert finding.count == 2


@cute.kernel
def misaligned(x: cute.Tensor, y: cute.Tensor, offset: Constexpr):
    pointer = cute.recast_ptr(x.iterator + offset, dtype=Float32).with_alignment(16)
    wide = cute.make_tensor(pointer, cute.make_layout(4))
    cute.make_tensor(y.iterator, cute.make_layout(4)).store(wide.load())


@cute.jit
def run_misaligned(x: cute.Tensor, y: cute.Tensor, offset: Constexpr):
    misaligned(x, y, offset).launch(grid=1, block=1)


def test_vectors_must_be_aligned() -> None:
    memory = np.zeros(32, np.float32)
    x = memory[(-memory.ctypes.data // 4) % 4 :][:16]
    y = np.zeros(4, np.float32)
    assert found(run_misaligned, x, y, 4) == []
    assert [f.rule for f in found(run_misaligned, x, y, 1)] == ["alignment"]


# --- synchronization -------------------------------------------------------------------------------------------------


@cute.kernel
def divergent(y: cute.Tensor, border: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if t < border:
        cute.arch.sync_threads()
    else:
        cute.arch.sync_threads()
    y[t] = Float32(1.0)


@cute.jit
def run_divergent(y: cute.Tensor, border: Constexpr):
    divergent(y, border).launch(grid=1, block=64)


def test_all_threads_reach_one_barrier() -> None:
    (y,) = arrays(64)
    assert found(run_divergent, y, 64) == []
    assert "divergent" in {f.rule for f in found(run_divergent, y, 40)}
    (finding,) = found(run_divergent, y, 32)  # whole warps, but not the whole block
    assert finding.rule == "other-way"
    assert "thread 32 of block 0 arrives at barrier 0" in finding.message
    assert "thread 0 took another path" in finding.message
    assert finding.span.line == finding.other_span.line + 2


@cute.kernel
def ends_early(y: cute.Tensor, limit: Constexpr, named: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if t >= limit:
        return
    if kiln.const_expr(named):
        cute.arch.barrier(barrier_id=1, number_of_threads=limit)
    else:
        cute.arch.sync_threads()
    y[t] = Float32(1.0)


@cute.jit
def run_ends_early(y: cute.Tensor, limit: Constexpr, named: Constexpr):
    ends_early(y, limit, named).launch(grid=2, block=64)


@pytest.mark.parametrize("limit", [50, 32, 63, 1])
def test_a_barrier_for_all_threads_is_reached_by_all(limit: int) -> None:
    (y,) = arrays(64)
    (finding,) = found(run_ends_early, y, limit, False)
    assert (finding.kind, finding.rule) == ("sync", "barrier-exited")
    assert f"thread 0 of block 0 waits at barrier 0 for all threads of the block, and thread {limit}" in finding.message


@pytest.mark.parametrize("early", [True, False])
def test_a_warp_comes_to_a_named_barrier_with_all_its_threads(early: bool) -> None:
    (y,) = arrays(64)
    (finding,) = found(run_part_of_a_warp, y, 50, early)
    assert (finding.kind, finding.rule) == ("sync", "barrier-exited")
    assert re.search(
        r"thread (3[2-9]|4\d) of block 0 arrives at barrier 1 for 64 threads, and thread 5\d", finding.message
    )
    assert found(run_part_of_a_warp, y, 64, early) == []


@cute.kernel
def part_of_a_warp(y: cute.Tensor, limit: Constexpr, early: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if kiln.const_expr(early):
        if t >= limit:
            return
    if t < limit:
        cute.arch.barrier(barrier_id=1, number_of_threads=64)
    y[t] = Float32(1.0)


@cute.jit
def run_part_of_a_warp(y: cute.Tensor, limit: Constexpr, early: Constexpr):
    part_of_a_warp(y, limit, early).launch(grid=1, block=64)


def test_threads_that_a_barrier_does_not_count_may_end() -> None:
    (y,) = arrays(64)
    assert found(run_ends_early, y, 64, False) == []
    assert found(run_ends_early, y, 32, True) == []


@cute.kernel
def turns(y: cute.Tensor, more: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    warp = t // 32
    for _ in kiln.range(2 + warp * more):
        cute.arch.sync_threads()
    y[t] = Float32(1.0)


@cute.jit
def run_turns(y: cute.Tensor, more: Constexpr):
    turns(y, more).launch(grid=1, block=64)


def test_warps_go_through_a_barrier_equally_often() -> None:
    (y,) = arrays(64)
    assert found(run_turns, y, 0) == []
    (finding,) = found(run_turns, y, 1)  # the other warp has ended by then, or ends while this one waits
    assert finding.rule == "barrier-exited"
    assert "thread 32 of block 0 waits" in finding.message


@cute.kernel
def lanes(y: cute.Tensor, mask: Constexpr, border: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    if t < border:
        y[t] = cute.arch.shuffle_sync(Float32(1.0), offset=0, mask=mask)


@cute.jit
def run_lanes(y: cute.Tensor, mask: Constexpr, border: Constexpr):
    lanes(y, mask, border).launch(grid=1, block=32)


def test_lanes_of_a_mask_take_part() -> None:
    (y,) = arrays(32)
    assert found(run_lanes, y, 0xFFFFFFFF, 32) == []
    assert found(run_lanes, y, 0xFFFF, 16) == []
    assert "lanes-mask" in {f.rule for f in found(run_lanes, y, 0xFFFF, 17)}


@cute.kernel
def initialized_twice(y: cute.Tensor, once: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    barrier = cute.arch.alloc_smem(Int64, 1)
    if t < once:
        cute.arch.mbarrier_init(barrier, 32)
    cute.arch.sync_threads()
    cute.arch.mbarrier_arrive(barrier)
    cute.arch.mbarrier_wait(barrier, 0)
    y[t] = Float32(1.0)


@cute.jit
def run_initialized_twice(y: cute.Tensor, once: Constexpr):
    initialized_twice(y, once).launch(grid=1, block=32)


def test_an_mbarrier_is_initialized_once() -> None:
    (y,) = arrays(32)
    assert found(run_initialized_twice, y, 1) == []
    assert "mbarrier-twice" in {f.rule for f in found(run_initialized_twice, y, 2)}


@cute.kernel
def overflow(y: cute.Tensor, expected: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    barrier = cute.arch.alloc_smem(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(barrier, expected)
    cute.arch.sync_threads()
    if t == 0:
        cute.arch.mbarrier_arrive(barrier, arrive_count=3)
    y[t] = Float32(1.0)


@cute.jit
def run_overflow(y: cute.Tensor, expected: Constexpr):
    overflow(y, expected).launch(grid=1, block=32)


def test_more_arrivals_than_an_mbarrier_expects() -> None:
    (y,) = arrays(32)
    assert found(run_overflow, y, 3) == []
    (finding,) = found(run_overflow, y, 2)
    assert finding.rule == "mbarrier-overflow"
    assert "arrives 3 times" in finding.message


@cute.kernel
def overstated(x: cute.Tensor, y: cute.Tensor):
    pointer = cute.recast_ptr(x.iterator, dtype=Float32).with_alignment(64)
    cute.make_tensor(y.iterator, cute.make_layout(4)).store(cute.make_tensor(pointer, cute.make_layout(4)).load())


@cute.jit
def run_overstated(x: cute.Tensor, y: cute.Tensor):
    overstated(x, y).launch(grid=1, block=1)


def test_an_access_needs_no_more_than_its_size() -> None:
    memory = np.zeros(64, np.float32)
    start = (-memory.ctypes.data // 4) % 16  # a multiple of 64 bytes
    y = np.zeros(4, np.float32)
    assert found(run_overstated, memory[start + 4 :][:8], y) == []
    assert [f.rule for f in found(run_overstated, memory[start + 1 :][:8], y)] == ["alignment"]


# --- cures ------------------------------------------------------------------------------------------------------------


def help_of(kernel, threads: int = 64) -> list[str]:
    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=1, block=threads)

    with kiln.target("cpu"), kiln.sanitize(raises=False) as report:
        main(np.zeros(128, np.float32))
    return [finding.hint for finding in report]


@pytest.mark.parametrize("space", ["global", "shared"])
def test_threads_that_update_one_element_are_told_of_atomics(space: str) -> None:
    @cute.kernel
    def kernel(x: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        count = shared(Float32, 1) if space == "shared" else x
        if t == 0:
            count[0] = 0.0
        cute.arch.sync_threads()
        count[0] = count[0] + x[64 + t]

    found = help_of(kernel)
    assert found and all("cute.arch.atomic_add" in text for text in found)


def test_threads_that_move_elements_on_one_line_are_told_of_barriers() -> None:
    @cute.kernel
    def kernel(x: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        staged = shared(Float32, 65)
        staged[t] = x[t]
        if t == 0:
            staged[64] = 0.0
        cute.arch.sync_threads()
        staged[t] = staged[t + 1]

    found = help_of(kernel)
    assert found and all("sync_" in text for text in found)


@pytest.mark.parametrize("commits", [False, True])
def test_a_wait_for_copies_that_nobody_committed(commits: bool) -> None:
    @cute.kernel
    def kernel(x: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        staged = shared(Float32, 64)
        atom = cute.make_copy_atom(cute.nvgpu.cpasync.CopyG2SOp(), Float32, num_bits_per_copy=32)
        one = cute.make_layout(1)
        cute.copy(atom, cute.make_tensor(x.iterator + t, one), cute.make_tensor(staged.iterator + t, one))
        if kiln.const_expr(commits):
            cute.arch.cp_async_commit_group()
        else:
            cute.arch.cp_async_wait_group(0)
        cute.arch.sync_threads()
        x[64 + t] = staged[63 - t]

    (text,) = help_of(kernel)
    assert text.startswith(
        "wait for the copy first: cp_async_wait_group" if commits else "call cp_async_commit_group()"
    )


def test_a_tensor_that_reaches_behind_its_allocation() -> None:
    """Padded rows need cute.cosize(layout) elements."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        memory = cute.arch.alloc_smem(Float32, 64)
        padded = cute.make_tensor(memory, cute.make_layout((8, 8), stride=(9, 1)))
        padded[t // 8, t % 8] = x[t]

    (text,) = help_of(kernel)
    assert text == "the layout of the tensor reaches 71 elements, allocate as many, cute.cosize(layout): it has 64"


def test_waits_of_a_loop_that_name_one_phase_every_time() -> None:
    @cute.kernel
    def kernel(x: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        barrier = cute.arch.alloc_smem(kiln.Int64, 1)
        if t == 0:
            cute.arch.mbarrier_init(barrier, 64)
        cute.arch.sync_threads()
        for _ in range(cute.Int32(3)):
            cute.arch.mbarrier_arrive(barrier)
            cute.arch.mbarrier_wait(barrier, 0)

    deadlock = [text for text in help_of(kernel) if "every thread that a barrier counts" in text]
    assert deadlock and deadlock[0].startswith("phases alternate: the wait in step k of a loop names phase k % 2; ")
