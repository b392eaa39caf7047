"""Step 4: warp specialisation. One producer warp loads tiles, two consumer warpgroups multiply them.

Run it with `kiln run examples/hopper/step_4_roles.py`.

The producer's warpgroup gives registers to the consumers, which hold 128 accumulators a thread for a tile of 128 x 256.
"""

import harness

import kiln.cute as cute
from kiln import Float16, Float32, pipeline, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (128, 256, 64)
BYTES = (M + N) * K * 2
WARPGROUP = 128
THREADS = 3 * WARPGROUP  # one producer warpgroup, two consumers
STAGES = 4


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
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * WARPGROUP // 32),
        tx_count=BYTES,
    )
    tiles_a = cute.local_tile(a, (M, K), (m, None))
    tiles_b = cute.local_tile(b, (N, K), (n, None))
    no_multicast = (0, cute.make_layout(1))
    smem_a, gmem_a = cpasync.tma_partition(
        load_a, *no_multicast, cute.group_modes(tile_a, 0, 2), cute.group_modes(tiles_a, 0, 2)
    )
    smem_b, gmem_b = cpasync.tma_partition(
        load_b, *no_multicast, cute.group_modes(tile_b, 0, 2), cute.group_modes(tiles_b, 0, 2)
    )
    count = tiles_a.shape[2]
    producer, consumer = pipe.make_participants()

    if warp < WARPGROUP // 32:
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            for k in range(count):
                stage = producer.acquire_and_advance()
                cute.copy(load_a, gmem_a[None, k], smem_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, gmem_b[None, k], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)
    else:
        cute.arch.setmaxregister_increase(232)
        thr_mma = mma.get_slice(thread - WARPGROUP)
        frag_a = mma.make_fragment_A(thr_mma.partition_A(tile_a))
        frag_b = mma.make_fragment_B(thr_mma.partition_B(tile_b))
        thr_c = thr_mma.partition_C(cute.local_tile(c, (M, N), (m, n)))
        acc = cute.make_rmem_tensor(thr_c.shape, Float32)
        acc.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)  # the first MMA adds to zeros, too
        before = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for k in range(count):
            full = consumer.wait_and_advance()
            warpgroup.fence()
            cute.gemm(mma, acc, frag_a[None, None, None, full.index], frag_b[None, None, None, full.index], acc)
            warpgroup.commit_group()
            warpgroup.wait_group(1)  # the MMA before this one is complete
            if k > 0:
                pipe.consumer_release(before)
                before.advance()
        warpgroup.wait_group(0)
        rounded = cute.make_rmem_tensor_like(acc, Float16)
        rounded.store(acc.load().to(Float16))
        cute.autovec_copy(rounded, thr_c)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T, whole tiles."""
    layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, TILE, Float16, STAGES)
    layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, TILE, Float16, STAGES)
    load = cpasync.CopyBulkTensorTileG2SOp()
    load_a, tma_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    load_b, tma_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layout_b, (None, None, 0)), (N, K))
    rows = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (2, 1, 1), (64, N))
    kernel = gemm_kernel(load_a, tma_a, load_b, tma_b, c, mma, layout_a, layout_b)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS, min_blocks_per_mp=1)


if __name__ == "__main__":
    harness.run(gemm)
