"""Sums of a warpgroup on their way to shared memory, as epilogues of public programs take them there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute, utils
from kiln.cute.nvgpu import OperandMajorMode, warp
from kiln.cute.runtime import from_dlpack
from kiln.utils import LayoutEnum, sm90

K = OperandMajorMode.K
ROW, COLUMN = LayoutEnum.ROW_MAJOR, LayoutEnum.COL_MAJOR
TILE, THREADS = (128, 64), 256


def epilogue(dtype: Any, order: Any, epi_tile: Any) -> Any:
    """A function that stores sums m * 5 + n * 11 mod 64 to a matrix, by way of shared memory."""
    ab, sums = (kiln.Int8, kiln.Int32) if dtype in (kiln.Int8, kiln.Int32) else (kiln.Float16, kiln.Float32)

    @cute.kernel
    def kernel(mma: cute.TiledMma, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        thr = mma.get_slice(thread)
        acc = thr.make_fragment_C(thr.partition_shape_C(TILE))
        places = thr.partition_C(cute.make_identity_tensor(TILE))
        for i in kiln.range_constexpr(cute.size(acc)):
            m, n = places[i]
            acc[i] = ((m * 5 + n * 11) % 64).to(sums)
        layout = sm90.make_smem_layout_epi(dtype, order, epi_tile, 2)
        sC = utils.SmemAllocator().allocate_tensor(dtype, layout.outer, 1024, layout.inner)
        by_matrices = cute.make_copy_atom(warp.StMatrix8x8x16bOp(order.is_m_major_c(), 4), dtype)
        store = cute.make_tiled_copy_S(
            sm90.sm90_get_smem_store_op(order, elem_ty_d=dtype, elem_ty_acc=sums),
            cute.make_tiled_copy_C_atom(by_matrices, mma),
        )
        thr_store = store.get_slice(thread)
        tRS_sD, tRS_rAcc = thr_store.partition_D(sC), store.retile(acc)
        part = cute.make_rmem_tensor(cute.make_layout(cute.shape(thr_store.partition_S(sC))[:3]).shape, sums)
        made = cute.make_rmem_tensor(part.shape, dtype)
        count = cute.size(part)
        tiles = cute.zipped_divide(out, epi_tile)
        for tile in kiln.range_constexpr(cute.size(tiles, mode=[1])):
            for v in kiln.range_constexpr(count):
                part[v] = tRS_rAcc[tile * count + v]
            made.store(part.load().to(dtype))
            cute.copy(store, made, tRS_sD[None, None, None, tile % 2])
            cute.arch.sync_threads()
            place = cute.make_layout(tiles.shape[1], stride=(tiles.shape[1][1], 1)).get_hier_coord(tile)
            target, source = tiles[None, place], sC[None, None, tile % 2]
            for i in range(thread, cute.size(target), THREADS):
                target[i] = source[i]
            cute.arch.sync_threads()

    @cute.jit
    def launch(out: cute.Tensor):
        mma = sm90.make_trivial_tiled_mma(ab, ab, K, K, sums, (2, 1, 1), (64, TILE[1]))
        kernel(mma, out).launch(grid=1, block=THREADS)

    return launch


@pytest.mark.parametrize("order", [ROW, COLUMN], ids=lambda order: order.name)
@pytest.mark.parametrize(
    ("dtype", "host", "epi_tile"),
    [(kiln.Float16, np.float16, (128, 32)), (kiln.Float32, np.float32, (128, 32)), (kiln.Int32, np.int32, (128, 32)),
     (kiln.Int8, np.int8, (128, 64))],
)  # fmt: skip
def test_what_lies_where(dtype: Any, host: Any, order: Any, epi_tile: Any) -> None:
    out = np.zeros(TILE, host)
    with kiln.target("cpu"):
        epilogue(dtype, order, epi_tile)(from_dlpack(out))
    m, n = np.indices(TILE)
    np.testing.assert_array_equal(out, ((m * 5 + n * 11) % 64).astype(host))


def test_atoms_for_their_layout_alone_copy_nothing() -> None:
    @cute.kernel
    def kernel():
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(True, 4), kiln.Float32)
        cute.copy(
            atom, cute.make_rmem_tensor(8, kiln.Float32), utils.SmemAllocator().allocate_tensor(kiln.Float32, 8, 16)
        )

    @cute.jit
    def launch():
        kernel().launch(grid=1, block=32)

    with kiln.target("cpu"), pytest.raises(TypeError, match="a transposing copy of matrices of Float32"):
        launch()
