"""Exercise 2 of lesson 13: issue MMAs over several steps of K, commit, and wait."""

import kiln.cute as cute
from kiln import Float16, Float32, Int32, Int64, pipeline, utils
from kiln.cute.nvgpu import OperandMajorMode, tcgen05
from kiln.utils import sm100

M = 128
N = 32
K = 64
THREADS = 128


@cute.kernel
def gemm_kernel(mma: cute.TiledMma, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (128, 32) = A (128, K) B (32, K)^T; threads bring 64 elements of K at a time into shared memory."""
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    layout_a = sm100.make_smem_layout_a(mma, (M, N, K), Float16, 1)
    layout_b = sm100.make_smem_layout_b(mma, (M, N, K), Float16, 1)
    sA = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    sB = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    done = smem.allocate_array(Int64)
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(done, 1)
        cute.arch.mbarrier_init_fence()
    tmem = utils.TmemAllocator(smem.allocate_array(Int32), pipeline.NamedBarrier(1, THREADS))
    tmem.allocate(N)
    tmem.wait_for_alloc()
    acc_ptr = tmem.retrieve_ptr(Float32)
    cta = mma.get_slice(0)
    part_c = cta.partition_C(cute.local_tile(c, (M, N), (0, 0)))
    acc = cute.make_tensor(acc_ptr, mma.make_fragment_C(part_c.shape).layout)
    tCrA = mma.make_fragment_A(sA)
    tCrB = mma.make_fragment_B(sB)
    mma.set(tcgen05.Field.ACCUMULATE, False)
    for step in range(a.shape[1] // K):
        part_a = cta.partition_A(cute.local_tile(a, (M, K), (0, step)))
        part_b = cta.partition_B(cute.local_tile(b, (N, K), (0, step)))
        for i in range(thread, M * K, THREADS):
            sA[i] = part_a[i]
        for i in range(thread, N * K, THREADS):
            sB[i] = part_b[i]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        # TODO: warp 0 issues the MMA and commits it to `done` (one elected lane); all threads wait, phases alternate
        # (from the second step on the MMA adds: mma.set(tcgen05.Field.ACCUMULATE, True) after the first)
        if warp == 0:
            cute.gemm(mma, acc, tCrA[None, None, None, 0], tCrB[None, None, None, 0], acc)
            with cute.arch.elect_one():
                tcgen05.commit(done)
        mma.set(tcgen05.Field.ACCUMULATE, True)
        cute.arch.mbarrier_wait(done, step % 2)
        # END

    load = tcgen05.make_tmem_copy(cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32), acc)
    loader = load.get_slice(thread)
    row = loader.partition_D(part_c)
    values = cute.make_rmem_tensor(row.shape, Float32)
    cute.copy(load, loader.partition_S(acc), values)
    cute.arch.fence_view_async_tmem_load()
    cute.autovec_copy(values, row)
    cute.arch.sync_threads()
    tmem.relinquish_alloc_permit()
    tmem.free(acc_ptr)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    k_major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, tcgen05.CtaGroup.ONE, (M, N))
    gemm_kernel(mma, a, b, c).launch(grid=1, block=THREADS)
