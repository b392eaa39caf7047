"""Tiles as libraries describe them: swizzled addresses, layouts of coordinates, copies partitioned where they are issued."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import BFloat16, Float32, cute
from kiln.cute import arch
from kiln.cute.layout.composed_layout import ComposedLayout
from kiln.cute.layout.layout import Layout
from kiln.cute.layout.swizzle import Swizzle
from kiln.cute.nvgpu import cpasync, warp, warpgroup
from kiln.cute.runtime import from_dlpack

ROWS, COLS = 64, 64


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def aligned(*shape: int) -> np.ndarray:
    memory = np.zeros(int(np.prod(shape)) + 32, np.float32)
    return memory[(-memory.ctypes.data // 4) % 32 :][: int(np.prod(shape))].reshape(shape)


def swizzled_address(ptr):
    kind = ptr.type.swizzle_type
    address = ptr.toint()
    moved = address ^ ((address & (((1 << kind.num_bits) - 1) << (kind.num_base + kind.num_shift))) >> kind.num_shift)
    return cute.make_ptr(ptr.dtype, moved, ptr.memspace, assumed_align=ptr.alignment)


def with_swizzle_in_layout(tensor):
    width, kind = tensor.element_type.width, tensor.iterator.type.swizzle_type
    swizzle = cute.make_swizzle(kind.num_bits, kind.num_base, kind.num_shift)
    bytes_ = cute.make_composed_layout(swizzle, 0, cute.recast_layout(8, width, tensor.layout))
    return cute.make_tensor(
        cute.recast_ptr(tensor.iterator, dtype=tensor.element_type), cute.recast_layout(width, 8, bytes_)
    )


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("independent", [False, True])
def test_the_swizzle_is_applied_once_to_a_threads_address(independent, transpose):
    @cute.kernel
    def kernel(out: cute.Tensor):
        thread = arch.thread_idx()[0]
        kind = warpgroup.SmemLayoutAtomKind.MN_SW128 if transpose else warpgroup.SmemLayoutAtomKind.K_SW128
        layout = cute.tile_to_shape(warpgroup.make_smem_layout_atom(kind, BFloat16), (ROWS, COLS), order=(0, 1))
        tile = kiln.utils.SmemAllocator().allocate_tensor(BFloat16, layout.outer, 1024, layout.inner)
        k_major = warpgroup.OperandMajorMode.K
        mma = cute.make_tiled_mma(
            warpgroup.MmaF16BF16Op(BFloat16, Float32, (64, COLS, 16), warpgroup.OperandSource.SMEM, k_major, k_major)
        )
        store = cute.make_copy_atom(warp.StMatrix8x8x16bOp(transpose, 4), BFloat16)
        copy = cute.make_tiled_copy_C(store, mma).get_slice(thread)
        acc = cute.make_rmem_tensor(mma.partition_shape_C((ROWS, COLS)), Float32)
        coords = mma.get_slice(thread).partition_C(cute.make_identity_tensor((ROWS, COLS)))
        for i in kiln.range_constexpr(cute.size(acc)):
            acc[i] = Float32(coords[i][0]) * 4.0 + Float32(coords[i][1] % 4)
        values = cute.make_rmem_tensor_like(acc, BFloat16)
        values.store(acc.load().to(BFloat16))
        target = copy.partition_D(tile)
        if kiln.const_expr(independent):
            plain = copy.partition_D(with_swizzle_in_layout(tile)).layout
            assert isinstance(plain, Layout)
            target = cute.make_tensor(swizzled_address(target.iterator), plain)
        cute.copy(copy, copy.retile(values), target)
        arch.sync_threads()
        for i in range(thread, ROWS * COLS, 128):
            out[i // COLS, i % COLS] = tile[i // COLS, i % COLS].to(Float32)

    @cute.jit
    def f(out: cute.Tensor):
        kernel(out).launch(grid=1, block=128)

    out = aligned(ROWS, COLS)
    f(from_dlpack(out))
    np.testing.assert_array_equal(out, np.arange(ROWS)[:, None] * 4 + np.arange(COLS)[None, :] % 4)


def test_slices_that_stay_swizzled():
    """Two bits that the swizzle combines vary, modes share a bit, or the coordinate is known."""
    swizzle = Swizzle(3, 3, 3)
    for outer, coord in (
        (Layout((8, 64), (64, 1)), (None, 0)),
        (Layout((6, 8), (8, 64)), (None, 1)),
        (Layout((8, 16), (4, 8)), (None, 1)),
    ):
        assert ComposedLayout(swizzle, 0, outer)._linear_slice(coord) is None


TILE = (64, 32)


@pytest.mark.parametrize("how", ["shape", "layout", "block_copy"])
def test_a_tile_stored_by_tma(how):
    @cute.kernel
    def kernel(atom: cute.CopyAtom, places: cute.Tensor, layout: cute.Layout):
        thread = arch.thread_idx()[0]
        tile = kiln.utils.SmemAllocator().allocate_tensor(Float32, layout, 128)
        for i in range(thread, TILE[0] * TILE[1], 32):
            tile[i // TILE[1], i % TILE[1]] = Float32(i)
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        part = cute.local_tile(places, TILE, (1, 1))
        if kiln.const_expr(how == "block_copy"):
            kiln.utils.block_copy(atom, tile, part)
        else:
            s, g = cpasync.tma_partition(
                atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(part, 0, 2)
            )
            cute.copy(atom, s, g)
        arch.cp_async_bulk_commit_group()
        arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def f(x: cute.Tensor):
        layout = cute.make_layout(TILE, stride=(TILE[1], 1))
        tile = cute.composition(cute.make_identity_layout(x.shape), TILE) if kiln.const_expr(how == "layout") else TILE
        atom, places = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), x, layout, tile)
        kernel(atom, places, layout).launch(grid=1, block=32)

    x = aligned(128, 64)
    f(from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1))
    expected = np.zeros((128, 64), np.float32)
    expected[64:, 32:] = np.arange(64 * 32).reshape(64, 32)
    np.testing.assert_array_equal(x, expected)


def test_block_copy_loads_the_tiles_of_a_cluster_by_multicast():
    """CTAs along N share a tile of A, those along M one of B; each loads its part of both for all that share them."""
    shape, tile = (2, 2), (16, 32)

    @cute.kernel
    def kernel(load_a: cute.CopyAtom, a: cute.Tensor, load_b: cute.CopyAtom, b: cute.Tensor, out: cute.Tensor):
        thread, (m, n, _) = arch.thread_idx()[0], arch.block_idx()
        smem = kiln.utils.SmemAllocator()
        full = smem.allocate_array(kiln.Int64, 1)
        shared = smem.allocate_tensor(
            Float32, cute.make_layout((*tile, 2), stride=(tile[1], 1, tile[0] * tile[1])), 128
        )
        if thread == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
            arch.mbarrier_arrive_and_expect_tx(full, 2 * 4 * tile[0] * tile[1])
        arch.cluster_arrive()
        arch.cluster_wait()
        if arch.warp_idx() == 0:
            for i, (load, x, at, dim) in enumerate(((load_a, a, m, "M"), (load_b, b, n, "N"))):
                kiln.utils.block_copy(
                    load, cute.local_tile(x, tile, (at, 0)), shared[None, None, i], tma_bar_ptr=full,
                    tma_multicast={"cluster_shape": shape, "multicast_dim": dim},
                )  # fmt: skip
        arch.mbarrier_wait(full, 0)
        for i in range(thread, tile[0] * tile[1], 32):
            at = i // tile[1], i % tile[1]
            out[m, n, i] = shared[at[0], at[1], 0] - shared[at[0], at[1], 1]
        arch.cluster_arrive()
        arch.cluster_wait()

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
        op, layout = cpasync.CopyBulkTensorTileG2SMulticastOp(), cute.make_layout(tile, stride=(tile[1], 1))
        made = [cpasync.make_tiled_tma_atom(op, x, layout, tile, 2) for x in (a, b)]
        kernel(*made[0], *made[1], out).launch(grid=(2, 2, 1), block=32, cluster=(*shape, 1))

    a, b, out = aligned(32, 32), aligned(32, 32), np.zeros((2, 2, 512), np.float32)
    rng = np.random.default_rng(0)
    a[:], b[:] = rng.integers(0, 99, (2, 32, 32))
    with kiln.sanitize():
        f(*(from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1) for x in (a, b)), from_dlpack(out))
    for m, n in np.ndindex(2, 2):
        expected = a[16 * m : 16 * m + 16] - b[16 * n : 16 * n + 16]
        np.testing.assert_array_equal(out[m, n], expected.ravel(), f"CTA {m}, {n}")
    with pytest.raises(kiln.DSLBaseError, match="multicast_dim is 'K'"):
        _multicast_along("K")


def _multicast_along(dim: str) -> None:
    @cute.kernel
    def kernel(load: cute.CopyAtom, x: cute.Tensor):
        shared = kiln.utils.SmemAllocator().allocate_tensor(Float32, cute.make_layout((16, 32), stride=(32, 1)), 128)
        kiln.utils.block_copy(
            load, cute.local_tile(x, (16, 32), (0, 0)), shared, tma_bar_ptr=arch.alloc_smem(kiln.Int64, 1, 8),
            tma_multicast={"cluster_shape": (2, 1), "multicast_dim": dim},
        )  # fmt: skip

    @cute.jit
    def f(x: cute.Tensor):
        op, layout = cpasync.CopyBulkTensorTileG2SMulticastOp(), cute.make_layout((16, 32), stride=(32, 1))
        kernel(*cpasync.make_tiled_tma_atom(op, x, layout, (16, 32), 2)).launch(
            grid=(2, 1, 1), block=32, cluster=(2, 1, 1)
        )

    f(from_dlpack(aligned(32, 32), assumed_align=16).mark_layout_dynamic(leading_dim=1))
