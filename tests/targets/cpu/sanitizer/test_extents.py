"""Coordinates outside a tensor whose addresses are inside its memory, or inside some other part of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Boolean, Constexpr, Float16, Float32, Int32, cute
from kiln.cute.runtime import from_dlpack


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


def found(main: Any, *arguments: Any) -> list[Any]:
    with kiln.sanitize("memory", raises=False) as report:
        main(*arguments)
    return report.findings


def zeros(*sizes: Any, kind: Any = np.float32) -> list[np.ndarray]:
    return [np.zeros(size, kind) for size in sizes]


def outside(findings: list[Any], tensor: str, coordinate: tuple[int, ...]) -> bool:
    (finding,) = findings
    return (finding.kind, finding.rule, finding.tensor, finding.coordinate) == ("memory", "bounds", tensor, coordinate)


# --- global memory ---------------------------------------------------------------------------------------------------


@cute.kernel
def column(x: cute.Tensor, y: cute.Tensor, c: Int32):
    t, _, _ = cute.arch.thread_idx()
    y[t] = x[t, c]


@cute.jit
def run_column(x: cute.Tensor, y: cute.Tensor, c: Int32):
    column(x, y, c).launch(grid=1, block=8)


def test_a_view_ends_where_its_columns_end() -> None:
    x, y = zeros((16, 16), 8)
    assert found(run_column, x[:, :8], y, 7) == []
    assert found(run_column, x, y, 9) == []
    assert outside(found(run_column, x[:, :8], y, 9), "x", (0, 9))
    assert outside(found(run_column, from_dlpack(x[:, :8]), y, 9), "x", (0, 9))
    assert outside(found(run_column, x[:, 4:8], y, -1), "x", (0, -1))


def test_the_column_after_the_last_is_not_the_next_row() -> None:
    x, y = zeros((16, 12), 8)
    assert outside(found(run_column, x, y, 12), "x", (0, 12))


def test_strides_of_zero_repeat_elements() -> None:
    x, y = zeros(12, 8)
    assert found(run_column, np.broadcast_to(x, (8, 12)), y, 11) == []
    assert outside(found(run_column, np.broadcast_to(x, (8, 12)), y, 12), "x", (0, 12))


@cute.kernel
def remade(x: cute.Tensor, y: cute.Tensor, columns: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    whole = cute.make_tensor(x.iterator, cute.make_layout((8, columns), stride=(16, 1)))
    y[t] = whole[t // 2, 9]


@cute.jit
def run_remade(x: cute.Tensor, y: cute.Tensor, columns: Constexpr):
    remade(x, y, columns).launch(grid=1, block=8)


def test_a_tensor_made_of_a_pointer_has_its_own_extents() -> None:
    x, y = zeros((16, 16), 8)
    assert found(run_remade, x[:, :8], y, 16) == []
    assert outside(found(run_remade, x[:, :8], y, 8), "x", (0, 9))


@cute.kernel
def tiles(tiled: cute.Tensor, places: cute.Tensor, y: cute.Tensor, rows: Int32, columns: Int32, masked: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    threads = cute.make_layout((2, 4))
    part = cute.local_partition(tiled[((None, None), b)], threads, t)
    where = cute.local_partition(places[((None, None), b)], threads, t)
    values = cute.make_rmem_tensor(part.shape, Float32)
    inside = cute.make_rmem_tensor(part.shape, Boolean)
    for i in cutlass_range(cute.size(part)):
        inside[i] = cute.elem_less(where[i], (rows, columns))
    values.fill(0.0)
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), Float32)
    if kiln.const_expr(masked == "predicate"):
        cute.copy(atom, part, values, pred=inside)
    elif kiln.const_expr(masked == "branch"):
        for i in cutlass_range(cute.size(part)):
            if inside[i]:
                values[i] = part[i]
    else:
        cute.copy(atom, part, values)
    y[b * 8 + t] = values[0]


def cutlass_range(n: int) -> Any:
    return kiln.range_constexpr(n)


@cute.jit
def run_tiles(x: cute.Tensor, y: cute.Tensor, masked: Constexpr):
    tiled = cute.zipped_divide(x, (4, 8))
    places = cute.zipped_divide(cute.make_identity_tensor(x.shape), (4, 8))
    tiles(tiled, places, y, x.shape[0], x.shape[1], masked).launch(grid=cute.size(tiled, mode=[1]), block=8)


@pytest.mark.parametrize("masked", ["predicate", "branch"])
def test_tiles_that_stick_out_may_be_masked(masked: str) -> None:
    x, y = zeros((10, 12), 64)
    assert found(run_tiles, x, y, masked) == []
    assert found(run_tiles, zeros((8, 16))[0], y, masked) == []


def test_tiles_that_stick_out_are_found() -> None:
    x, y = zeros((8, 12), 64)
    (finding,) = found(run_tiles, x, y, "")
    assert finding.rule == "bounds"
    assert finding.coordinate is not None and finding.coordinate[1] >= 12
    assert "of the tensor that tiled is cut from, and its shape is (8, 12)" in finding.message
    assert found(run_tiles, zeros((8, 16))[0], y, "") == []


@cute.kernel
def shifted(x: cute.Tensor, y: cute.Tensor, n: Int32):
    t, _, _ = cute.arch.thread_idx()
    row = x[t, None]
    total = Float32(0.0)
    for i in range(n):  # the tensor is carried
        total += row[0]
        row = cute.domain_offset((1,), row)
    y[t] = total


@cute.jit
def run_shifted(x: cute.Tensor, y: cute.Tensor, n: Int32):
    shifted(x, y, n).launch(grid=1, block=8)


def test_a_tensor_that_a_loop_moves_keeps_its_end() -> None:
    x, y = zeros((8, 6), 8)
    assert found(run_shifted, x, y, 6) == []
    assert outside(found(run_shifted, x, y, 7), "x", (0, 6))


@cute.kernel
def walked(x: cute.Tensor, z: cute.Tensor, y: cute.Tensor, n: Int32, swap: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    here, there = x.iterator, z.iterator
    total = Float32(0.0)
    for _ in range(n):  # pointers are carried
        total += cute.make_tensor(here, cute.make_layout(1))[0]
        here += 1
        if kiln.const_expr(swap):
            here, there = there, here
    y[t] = total


@cute.jit
def run_walked(x: cute.Tensor, z: cute.Tensor, y: cute.Tensor, n: Int32, swap: Constexpr):
    walked(x, z, y, n, swap).launch(grid=1, block=8)


def test_a_pointer_that_a_loop_moves_keeps_to_its_memory() -> None:
    x, z, y = zeros(64, 64, 8)
    assert found(run_walked, x[:6], z[:6], y, 6, False) == []
    (finding,) = found(run_walked, x[:6], z[:6], y, 7, False)
    assert (finding.rule, finding.tensor, finding.coordinate) == ("bounds", "x", (6,))
    assert found(run_walked, x[:6], z[:6], y, 12, True) == []  # it may point into either


@cute.kernel
def either(x: cute.Tensor, z: cute.Tensor, y: cute.Tensor, second: Int32, c: Int32):
    t, _, _ = cute.arch.thread_idx()
    chosen = x
    if second == 1:
        chosen = z
    y[t] = chosen[t, c]


@cute.jit
def run_either(x: cute.Tensor, z: cute.Tensor, y: cute.Tensor, second: Int32, c: Int32):
    either(x, z, y, second, c).launch(grid=1, block=8)


def test_each_of_two_tensors_has_its_end() -> None:
    x, z, y = zeros((8, 6), (8, 10), 8)
    assert found(run_either, x, z, y, 1, 9) == []
    (finding,) = found(run_either, x, z, y, 0, 6)
    assert (finding.rule, finding.coordinate) == ("bounds", (0, 6))
    assert "(8, 6)" in finding.message


# --- shared memory and registers -------------------------------------------------------------------------------------


@cute.kernel
def statistics(y: cute.Tensor, row: Int32, column: Int32, columns: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float32, 64)
    values = cute.make_tensor(memory, cute.make_layout((32, columns), stride=(1, 0)))
    for i in range(8):
        memory[8 * t + i] = Float32(1)
    cute.arch.sync_threads()
    y[t] = values[t + row, column]


@cute.jit
def run_statistics(y: cute.Tensor, row: Int32, column: Int32, columns: Constexpr):
    statistics(y, row, column, columns).launch(grid=1, block=8)


def test_a_repeated_column_has_no_end_and_one_column_has() -> None:
    (y,) = zeros(8)
    assert found(run_statistics, y, 0, 40, 16) == [] and y.all()
    assert outside(found(run_statistics, y, 32, 0, 16), "memory", (32, 0))
    assert outside(found(run_statistics, y, 0, 2, 1), "memory", (0, 2))


@cute.kernel
def padded(y: cute.Tensor, c: Int32):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float32, 8 * 9)
    whole = cute.make_tensor(memory, cute.make_layout((8, 9), stride=(9, 1)))
    tile = cute.make_tensor(memory, cute.make_layout((8, 8), stride=(9, 1)))
    for i in range(9):
        whole[t, i] = Float32(i)
    cute.arch.sync_threads()
    y[t] = tile[t, c]


@cute.jit
def run_padded(y: cute.Tensor, c: Int32):
    padded(y, c).launch(grid=1, block=8)


def test_padding_of_shared_memory_is_no_column() -> None:
    (y,) = zeros(8)
    assert found(run_padded, y, 7) == []
    assert outside(found(run_padded, y, 8), "memory", (0, 8))


@cute.kernel
def registers(y: cute.Tensor, n: Int32):
    t, _, _ = cute.arch.thread_idx()
    values = cute.make_rmem_tensor(cute.make_layout((4, 4), stride=(4, 1)), Float32)
    values.fill(1.0)
    total = Float32(0.0)
    for i in range(n):
        total += values[0, i]
    y[t] = total


@cute.jit
def run_registers(y: cute.Tensor, n: Int32):
    registers(y, n).launch(grid=1, block=8)


def test_the_end_of_a_row_of_registers() -> None:
    (y,) = zeros(8)
    assert found(run_registers, y, 4) == []
    assert outside(found(run_registers, y, 5), "values", (0, 4))


# --- copies of the hardware ------------------------------------------------------------------------------------------


@cute.kernel
def asynchronous(x: cute.Tensor, y: cute.Tensor, rows: Int32, how: Constexpr):
    t, _, _ = cute.arch.thread_idx()
    b, _, _ = cute.arch.block_idx()
    tile = cute.make_tensor(cute.arch.alloc_smem(Float32, 64, alignment=16), cute.make_layout((8, 8), stride=(8, 1)))
    op = cute.nvgpu.cpasync.CopyG2SOp()
    atom = cute.make_copy_atom(op, Float32, num_bits_per_copy=128)
    copy = cute.make_tiled_copy_tv(atom, cute.make_layout((8, 2), stride=(2, 1)), cute.make_layout((1, 4)))
    part = copy.get_slice(t)
    source = part.partition_S(cute.local_tile(x, (8, 8), (b, 0)))
    inside = cute.make_rmem_tensor(cute.make_layout((1, 1, 1)), Boolean)
    inside.fill(b * 8 + t // 2 < rows)
    if kiln.const_expr(how == "all"):
        cute.copy(copy, source, part.partition_D(tile))
    else:
        cute.copy(copy, source, part.partition_D(tile), pred=inside)
    cute.arch.cp_async_commit_group()
    cute.arch.cp_async_wait_group(0)
    cute.arch.sync_threads()
    if b * 8 + t // 2 < rows:
        y[t] = tile[t // 2, t % 2]


@cute.jit
def run_asynchronous(x: cute.Tensor, y: cute.Tensor, how: Constexpr):
    asynchronous(x, y, x.shape[0], how).launch(grid=2, block=16)


def test_asynchronous_copies_have_extents() -> None:
    memory, y = np.zeros((16, 8), np.float32), np.zeros(16, np.float32)
    x = from_dlpack(memory[:10], assumed_align=16)
    assert found(run_asynchronous, x, y, "some") == []
    assert outside(found(run_asynchronous, x, y, "all"), "x", (10, 3))
    assert found(run_asynchronous, from_dlpack(memory, assumed_align=16), y, "all") == []


@cute.kernel
def matrices(y: cute.Tensor, stage: Int32):
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float16, 4 * 64, alignment=16)
    whole = cute.make_tensor(memory, cute.make_layout(256))
    for i in range(8):
        whole[t * 8 + i] = Float16(i)
    cute.arch.sync_threads()
    stages = cute.make_tensor(memory, cute.make_layout((8, 8, 2), stride=(8, 1, 64)))
    atom = cute.make_copy_atom(cute.nvgpu.warp.LdMatrix8x8x16bOp(), Float16)
    copy = cute.make_tiled_copy(atom, cute.make_layout(((4, 8), 2), stride=((16, 1), 8)), (8, 8))
    part = copy.get_slice(t)
    values = cute.make_rmem_tensor(cute.make_layout((2, 1, 1)), Float16)
    cute.copy(copy, part.partition_S(stages[None, None, stage]), values)
    y[t] = Float32(values[0])


@cute.jit
def run_matrices(y: cute.Tensor, stage: Int32):
    matrices(y, stage).launch(grid=1, block=32)


def test_matrices_of_a_stage_that_is_not_there() -> None:
    (y,) = zeros(32)
    assert found(run_matrices, y, 1) == []
    (finding,) = found(run_matrices, y, 2)
    assert finding.rule == "bounds"
    assert finding.coordinate is not None and finding.coordinate[2] == 2
    assert "its shape is (8, 8, 2)" in finding.message
