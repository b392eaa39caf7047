"""Step 2: a product. The engine brings tiles of A and B, a warp group's tensor cores multiply them from shared memory.

Run it with `kiln run examples/hopper/step_2_product.py`.

Nothing overlaps yet: the block asks for tiles, waits for them, multiplies, waits, and asks for the next ones.
"""

import harness

import kiln.cute as cute
from kiln import Float16, Float32, Int32, Int64, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (128, 128, 64)
BYTES = (M + N) * K * 2
THREADS = 256  # two warp groups, each with 64 rows


@cute.kernel
def gemm_kernel(
    load_a: cute.CopyAtom, a: cute.Tensor, load_b: cute.CopyAtom, b: cute.Tensor, c: cute.Tensor,
    mma: cute.TiledMma, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout,
):  # fmt: skip
    thread, _, _ = cute.arch.thread_idx()
    m, n, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    tile_b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    full = smem.allocate_array(Int64)
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()

    # where tiles come from, and where they go: (one copy, k)
    tiles_a = cute.local_tile(a, (M, K), (m, None))
    tiles_b = cute.local_tile(b, (N, K), (n, None))
    alone = (0, cute.make_layout(1))
    to_a, of_a = cpasync.tma_partition(load_a, *alone, cute.group_modes(tile_a, 0, 2), cute.group_modes(tiles_a, 0, 2))
    to_b, of_b = cpasync.tma_partition(load_b, *alone, cute.group_modes(tile_b, 0, 2), cute.group_modes(tiles_b, 0, 2))

    # what a product reads: descriptors of shared memory; what it adds to: registers
    part = mma.get_slice(thread)
    left = mma.make_fragment_A(part.partition_A(tile_a))
    right = mma.make_fragment_B(part.partition_B(tile_b))
    place = part.partition_C(cute.local_tile(c, (M, N), (m, n)))
    sums = cute.make_rmem_tensor(place.shape, Float32)
    sums.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)  # products are added to the sums

    phase = Int32(0)
    for k in range(tiles_a.shape[2]):
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, BYTES)
            cute.copy(load_a, of_a[None, k], to_a[None, 0], tma_bar_ptr=full)
            cute.copy(load_b, of_b[None, k], to_b[None, 0], tma_bar_ptr=full)
        cute.arch.mbarrier_wait(full, phase)
        warpgroup.fence()
        cute.gemm(mma, sums, left[None, None, None, 0], right[None, None, None, 0], sums)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        cute.arch.sync_threads()  # all have read the tiles: they may be overwritten
        phase ^= 1

    rounded = cute.make_rmem_tensor_like(sums, Float16)
    rounded.store(sums.load().to(Float16))
    cute.autovec_copy(rounded, place)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T, whole tiles."""
    layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, TILE, Float16, 1)
    layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, TILE, Float16, 1)
    load = cpasync.CopyBulkTensorTileG2SOp()
    load_a, from_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    load_b, from_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layout_b, (None, None, 0)), (N, K))
    rows = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (2, 1, 1), (64, N))
    kernel = gemm_kernel(load_a, from_a, load_b, from_b, c, mma, layout_a, layout_b)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS)


if __name__ == "__main__":
    harness.run(gemm)
