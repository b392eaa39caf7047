"""The epilogue that stores by TMA takes any accumulator, in subtiles, and says when it may be written again."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

from kiln import Float16, Float32, Int32, cute, pipeline, range_constexpr, utils
from kiln.cute import arch
from kiln.cute.nvgpu import CopyUniversalOp, cpasync, warpgroup
from kiln.kernels.parts.accumulator import Accumulator, RegisterAccumulator
from kiln.kernels.parts.tma_store_epilogue import TileResults, TmaStore, TmaStoreEpilogue
from kiln.utils import LayoutEnum, sm90

ROWS = 64
COLUMNS = 64
STEP = 16
THREADS = 128
_K = warpgroup.OperandMajorMode.K


def wgmma(columns: int) -> cute.TiledMma:
    return sm90.make_trivial_tiled_mma(Float16, Float16, _K, _K, Float32, (1, 1, 1), (ROWS, columns))


class GmemAccumulator(NamedTuple):
    """Accumulators in global memory, whose subtiles are loaded one by one."""

    tile: cute.Tensor
    thread: Int32
    released: cute.Tensor

    @property
    def num_subtiles(self) -> int:
        return COLUMNS // STEP

    @property
    def subtile_shape(self) -> cute.Shape:
        return ((2, 2, STEP // 8), 1, 1)

    def subtile(self, number: Int32 | int) -> cute.Tensor:
        source = cute.local_tile(self.tile, (ROWS, STEP), (0, number))
        values = wgmma(STEP).get_slice(self.thread).partition_C(source)
        fragment = cute.make_fragment_like(values)
        cute.autovec_copy(values, fragment)
        return fragment

    def coord(self, coords: cute.Tensor, number: Int32 | int, element: int) -> tuple[Int32, Int32]:
        raise NotImplementedError

    def partition(self, tile: cute.Tensor) -> cute.Tensor:
        raise NotImplementedError

    def release(self) -> None:
        self.released[self.thread] = Int32(1)


class Doubled(TileResults):
    """Twice the accumulators, in tiles of some columns."""

    def __init__(self, store: TmaStore) -> None:
        self.stores = [store]

    def combine(self, number: Int32 | int, values: cute.Tensor) -> list[cute.TensorSSA]:
        return [values.load() * 2.0]

    def coord(self, number: Int32 | int) -> tuple[Int32 | int, ...]:
        return 0, number


class Copy:
    """A kernel that stores accumulators of one tile, which lie in registers or in global memory."""

    def __init__(self, in_registers: bool, stages: int, subtiles_per_stage: int, unrolled: bool) -> None:
        self.in_registers = in_registers
        self.stages = stages
        self.subtiles_per_stage = subtiles_per_stage
        self.unrolled = unrolled
        self.columns = STEP * subtiles_per_stage

    @cute.jit
    def __call__(self, x: cute.Tensor, out: cute.Tensor, released: cute.Tensor):
        layout = sm90.make_smem_layout_epi(Float16, LayoutEnum.ROW_MAJOR, (ROWS, self.columns), self.stages)
        one = cute.slice_(layout, (None, None, 0))
        op = cpasync.CopyBulkTensorTileS2GOp()
        atom, coords = cpasync.make_tiled_tma_atom(op, out, one, (ROWS, self.columns))
        self.kernel(x, atom, coords, released, layout).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))

    @cute.kernel
    def kernel(self, x: cute.Tensor, atom: cute.CopyAtom, coords: cute.Tensor, released: cute.Tensor, layout):
        thread = arch.thread_idx()[0]
        x = cute.make_tensor(x.iterator, cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1)))
        sD = utils.SmemAllocator().allocate_tensor(Float16, layout.outer, 1024, layout.inner)
        gD = cute.local_tile(coords, (ROWS, self.columns), (None, None))
        r2s = cute.make_copy_atom(CopyUniversalOp(), Float16, num_bits_per_copy=32)
        store = TmaStore.make(cute.make_tiled_copy_C(r2s, wgmma(STEP)), thread, sD, atom, gD)
        acc: Accumulator = GmemAccumulator(x, thread, released)
        if self.in_registers:
            thr_mma = wgmma(COLUMNS).get_slice(thread)
            values = thr_mma.partition_C(x)
            fragment = cute.make_fragment_like(values)
            cute.autovec_copy(values, fragment)
            acc = RegisterAccumulator(fragment, thr_mma, STEP)
        barrier = pipeline.NamedBarrier(1, THREADS)
        is_leader = lambda: arch.make_warp_uniform(arch.warp_idx()) == 0
        epilogue = TmaStoreEpilogue(barrier, is_leader, Int32(0), self.stages, self.subtiles_per_stage)
        epilogue.write(acc, Doubled(store), self.unrolled)
        arch.cp_async_bulk_wait_group(0, read=True)


@pytest.mark.parametrize("in_registers", [True, False])
@pytest.mark.parametrize(
    ("stages", "subtiles_per_stage", "unrolled"), [(2, 1, True), (2, 2, False), (3, 1, True), (1, 1, True)]
)
def test_subtiles_of_any_accumulator_are_stored(in_registers, stages, subtiles_per_stage, unrolled):
    x = np.random.default_rng(1).integers(-8, 9, (ROWS, COLUMNS)).astype(np.float32)
    out = np.zeros((ROWS, COLUMNS), np.float16)
    released = np.zeros(THREADS, np.int32)
    Copy(in_registers, stages, subtiles_per_stage, unrolled)(x, out, released)
    np.testing.assert_array_equal(out, 2 * x)
    assert released.all() != in_registers


@cute.kernel
def _write_coordinates(out: cute.Tensor):
    """Write the numbers of its subtile and of its element into each place of a tile."""
    thr_mma = wgmma(COLUMNS).get_slice(arch.thread_idx()[0])
    coords = thr_mma.partition_C(cute.make_identity_tensor((ROWS, COLUMNS)))
    acc = RegisterAccumulator(cute.make_rmem_tensor(coords.shape, Float32), thr_mma, STEP)
    for number in range(acc.num_subtiles):
        for element in range_constexpr(STEP // 2):
            row, column = acc.coord(coords, number, element)
            out[row, column] = number * 100 + element


@cute.jit
def _coordinates(out: cute.Tensor):
    _write_coordinates(out).launch(grid=(1, 1, 1), block=(THREADS, 1, 1))


def test_elements_of_subtiles_are_neighbours_in_pairs():
    out = np.full((ROWS, COLUMNS), -1, np.int32)
    _coordinates(out)
    columns = np.arange(COLUMNS)
    np.testing.assert_array_equal(out // 100, np.broadcast_to(columns // STEP, out.shape))
    pair = columns % STEP // 8 * 2
    for row in range(ROWS):
        np.testing.assert_array_equal(out[row] % 100, 2 * (pair + row // 8 % 2) + columns % 2)
