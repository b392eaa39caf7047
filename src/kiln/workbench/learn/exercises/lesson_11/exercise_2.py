"""Exercise 2 of lesson 11: the producer of a warp-specialised GEMM, C (M, N) = A (M, K) B (N, K)^T."""

import kiln
import kiln.cute as cute
from kiln import Float16, Float32, pipeline, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (64, 16, 64)
STAGES = 2
WARPGROUP = 128


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
    sA = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
    sB = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
    producer, consumer = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, WARPGROUP // 32),
        tx_count=(M + N) * K * 2,
    ).make_participants()
    tiles_a = cute.local_tile(a, (M, K), (m, None))
    tiles_b = cute.local_tile(b, (N, K), (n, None))
    alone = (0, cute.make_layout(1))
    smem_a, gmem_a = cpasync.tma_partition(load_a, *alone, cute.group_modes(sA, 0, 2), cute.group_modes(tiles_a, 0, 2))
    smem_b, gmem_b = cpasync.tma_partition(load_b, *alone, cute.group_modes(sB, 0, 2), cute.group_modes(tiles_b, 0, 2))
    steps = tiles_a.shape[2]
    if warp < WARPGROUP // 32:
        if warp == 0:
            # TODO: for each step wait for an empty stage and issue both loads; when all is done, producer.tail()
            # (gmem_a[None, k] is step k of A, smem_a[None, stage.index] its place, stage.barrier its mbarrier)
            for k in range(steps):
                stage = producer.acquire_and_advance()
                cute.copy(load_a, gmem_a[None, k], smem_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, gmem_b[None, k], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)
            producer.tail()
            # END
    else:
        part = mma.get_slice(thread - WARPGROUP)
        tCrA = mma.make_fragment_A(part.partition_A(sA))
        tCrB = mma.make_fragment_B(part.partition_B(sB))
        acc = mma.make_fragment_C(mma.partition_shape_C((M, N)))
        mma.set(warpgroup.Field.ACCUMULATE, False)
        for _ in range(steps):
            stage = consumer.wait_and_advance()
            warpgroup.fence()
            for k in kiln.range_constexpr(cute.size(tCrA, mode=[2])):
                cute.gemm(mma, acc, tCrA[None, None, k, stage.index], tCrB[None, None, k, stage.index], acc)
                mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            stage.release()
        cute.autovec_copy(acc, part.partition_C(cute.local_tile(c, (M, N), (m, n))))


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, TILE, Float16, STAGES)
    layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, TILE, Float16, STAGES)
    load = cpasync.CopyBulkTensorTileG2SOp()
    load_a, tma_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    load_b, tma_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layout_b, (None, None, 0)), (N, K))
    rows = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (1, 1, 1), (64, N))
    grid = (c.shape[0] // M, c.shape[1] // N, 1)
    gemm_kernel(load_a, tma_a, load_b, tma_b, c, mma, layout_a, layout_b).launch(grid=grid, block=2 * WARPGROUP)
