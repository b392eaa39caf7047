"""Step 2: a GEMM. TMA loads tiles of A and B, and two warpgroups multiply them from shared memory with WGMMA.

Run it with `kiln run examples/hopper/step_2_gemm.py`.

Nothing overlaps yet: the CTA loads tiles, waits for them, multiplies, waits, and loads the next ones.
"""

import harness

import kiln.cute as cute
from kiln import Float16, Float32, Int32, Int64, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (128, 128, 64)
BYTES = (M + N) * K * 2
THREADS = 256  # two warpgroups with 64 rows each


@cute.kernel
def gemm_kernel(
    load_a: cute.CopyAtom,
    a: cute.Tensor,
    load_b: cute.CopyAtom,
    b: cute.Tensor,
    c: cute.Tensor,
    mma: cute.TiledMma,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
):
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

    # source and target of the TMA loads: (one tile, k)
    tiles_a = cute.local_tile(a, (M, K), (m, None))
    tiles_b = cute.local_tile(b, (N, K), (n, None))
    no_multicast = (0, cute.make_layout(1))
    smem_a, gmem_a = cpasync.tma_partition(
        load_a, *no_multicast, cute.group_modes(tile_a, 0, 2), cute.group_modes(tiles_a, 0, 2)
    )
    smem_b, gmem_b = cpasync.tma_partition(
        load_b, *no_multicast, cute.group_modes(tile_b, 0, 2), cute.group_modes(tiles_b, 0, 2)
    )

    # operands of the MMA are descriptors of shared memory, accumulators are registers
    thr_mma = mma.get_slice(thread)
    frag_a = mma.make_fragment_A(thr_mma.partition_A(tile_a))
    frag_b = mma.make_fragment_B(thr_mma.partition_B(tile_b))
    thr_c = thr_mma.partition_C(cute.local_tile(c, (M, N), (m, n)))
    acc = cute.make_rmem_tensor(thr_c.shape, Float32)
    acc.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)  # the first MMA adds to zeros, too

    phase = Int32(0)
    for k in range(tiles_a.shape[2]):
        if warp == 0:
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, BYTES)
            cute.copy(load_a, gmem_a[None, k], smem_a[None, 0], tma_bar_ptr=full)
            cute.copy(load_b, gmem_b[None, k], smem_b[None, 0], tma_bar_ptr=full)
        cute.arch.mbarrier_wait(full, phase)
        warpgroup.fence()
        cute.gemm(mma, acc, frag_a[None, None, None, 0], frag_b[None, None, None, 0], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        cute.arch.sync_threads()  # all MMAs have read the tiles: they may be overwritten
        phase ^= 1

    rounded = cute.make_rmem_tensor_like(acc, Float16)
    rounded.store(acc.load().to(Float16))
    cute.autovec_copy(rounded, thr_c)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T, whole tiles."""
    layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, TILE, Float16, 1)
    layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, TILE, Float16, 1)
    load = cpasync.CopyBulkTensorTileG2SOp()
    load_a, tma_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    load_b, tma_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layout_b, (None, None, 0)), (N, K))
    rows = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (2, 1, 1), (64, N))
    kernel = gemm_kernel(load_a, tma_a, load_b, tma_b, c, mma, layout_a, layout_b)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS)


if __name__ == "__main__":
    harness.run(gemm)
