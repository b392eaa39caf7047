"""Step 1: one tile, one MMA after the other, and the accumulator in tensor memory.

Run it with `kiln run examples/blackwell/step_1_mma.py`.

A CTA computes 128 x 128 elements of C from one tile of K. TMA loads A and B, one thread issues the MMAs, and
`tcgen05.commit` arrives at an mbarrier when they are complete. The accumulator is in tensor memory: row m in lane m,
column n in column n. Each of the four warps loads the 32 lanes that it may access, so a thread has one row of C.
"""

import blackwell_harness as harness

import kiln.cute as cute
from kiln import Float16, Float32, Int32, Int64, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import sm100

M, N, K = TILE = (128, 128, 64)
BYTES = (M + N) * K * 2
THREADS = 128


@cute.jit
def store_rows(acc, part_c, thread):
    """Round an accumulator ((128, N), 1, 1) to f16 and store it, each of 128 threads one row of it."""
    load_acc = tcgen05.make_tmem_copy(cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32), acc)
    loader = load_acc.get_slice(thread)
    thr_acc, thr_c = loader.partition_S(acc), loader.partition_D(part_c)  # ((32, 1), N / 32, 1, 1)
    values = cute.make_rmem_tensor(thr_c[None, 0, 0, 0].shape, Float32)
    rounded = cute.make_rmem_tensor_like(values, Float16)
    for i in range_constexpr(cute.size(thr_c, mode=[1])):
        cute.copy(load_acc, thr_acc[None, i, 0, 0], values)
        cute.arch.fence_view_async_tmem_load()
        rounded.store(values.load().to(Float16))
        cute.autovec_copy(rounded, thr_c[None, i, 0, 0])


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
    loaded, multiplied = smem.allocate_array(Int64), smem.allocate_array(Int64)
    holder = smem.allocate_array(Int32)  # where `tcgen05.alloc` writes the address
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(loaded, 1)
            cute.arch.mbarrier_init(multiplied, 1)
        cute.arch.mbarrier_init_fence()
    tmem = utils.TmemAllocator(holder, pipeline.NamedBarrier(1, THREADS))
    tmem.allocate(N)  # warp 0 does: one column for each column of C
    tmem.wait_for_alloc()  # the barrier also shows the mbarriers to all threads
    acc_ptr = tmem.retrieve_ptr(Float32)

    # the "thread" of a tcgen05 MMA is a CTA: this one is number 0 of one
    cta_mma = mma.get_slice(0)
    part_a = cta_mma.partition_A(cute.local_tile(a, (M, K), (m, 0)))  # ((128, 16), 1, K / 16)
    part_b = cta_mma.partition_B(cute.local_tile(b, (N, K), (n, 0)))
    part_c = cta_mma.partition_C(cute.local_tile(c, (M, N), (m, n)))  # ((128, 128), 1, 1)
    frag_a, frag_b = mma.make_fragment_A(tile_a), mma.make_fragment_B(tile_b)  # descriptors of shared memory
    acc = cute.make_tensor(acc_ptr, mma.make_fragment_C(part_c.shape).layout)

    no_multicast = (0, cute.make_layout(1))
    smem_a, gmem_a = cpasync.tma_partition(
        load_a, *no_multicast, cute.group_modes(tile_a, 0, 3), cute.group_modes(part_a, 0, 3)
    )
    smem_b, gmem_b = cpasync.tma_partition(
        load_b, *no_multicast, cute.group_modes(tile_b, 0, 3), cute.group_modes(part_b, 0, 3)
    )
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(loaded, BYTES)
        cute.copy(load_a, gmem_a, smem_a[None, 0], tma_bar_ptr=loaded)
        cute.copy(load_b, gmem_b, smem_b[None, 0], tma_bar_ptr=loaded)
        cute.arch.mbarrier_wait(loaded, 0)
        # a new MMA overwrites the accumulator, and adds to it from the second k block on; one lane issues all four
        cute.gemm(mma, acc, frag_a[None, None, None, 0], frag_b[None, None, None, 0], acc)
        with cute.arch.elect_one():
            tcgen05.commit(multiplied)
    cute.arch.mbarrier_wait(multiplied, 0)
    store_rows(acc, part_c, thread)
    cute.arch.sync_threads()  # all warps have loaded the accumulator
    tmem.relinquish_alloc_permit()
    tmem.free(acc_ptr)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T: whole tiles of M and N, one tile of K."""
    k_major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, tcgen05.CtaGroup.ONE, (M, N))
    layout_a = sm100.make_smem_layout_a(mma, TILE, Float16, 1)  # ((128, 16), 1, 4, stages)
    layout_b = sm100.make_smem_layout_b(mma, TILE, Float16, 1)
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    stage = (None, None, None, 0)
    load_a, tma_a = cute.nvgpu.make_tiled_tma_atom_A(load, a, cute.slice_(layout_a, stage), TILE, mma)
    load_b, tma_b = cute.nvgpu.make_tiled_tma_atom_B(load, b, cute.slice_(layout_b, stage), TILE, mma)
    kernel = gemm_kernel(load_a, tma_a, load_b, tma_b, c, mma, layout_a, layout_b)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS)


if __name__ == "__main__":
    harness.run(gemm, (256, 128, K))
