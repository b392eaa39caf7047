"""Step 4: roles. One warp only asks for tiles, two warp groups only multiply; nobody waits for what is not his own work.

Run it with `kiln run examples/hopper/step_4_roles.py`.

Warp groups of one role give registers to those of the other: the ones that multiply hold 128 sums a thread, for a tile of 128 x 256.
"""

import harness

import kiln.cute as cute
from kiln import Float16, Float32, pipeline, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (128, 256, 64)
BYTES = (M + N) * K * 2
GROUP = 128
THREADS = 3 * GROUP  # one warp group that loads, two that multiply
STAGES = 4


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
    ring = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 2 * GROUP // 32),
        tx_count=BYTES,
    )
    tiles_a = cute.local_tile(a, (M, K), (m, None))
    tiles_b = cute.local_tile(b, (N, K), (n, None))
    alone = (0, cute.make_layout(1))
    to_a, of_a = cpasync.tma_partition(load_a, *alone, cute.group_modes(tile_a, 0, 2), cute.group_modes(tiles_a, 0, 2))
    to_b, of_b = cpasync.tma_partition(load_b, *alone, cute.group_modes(tile_b, 0, 2), cute.group_modes(tiles_b, 0, 2))
    count = tiles_a.shape[2]
    producer, consumer = ring.make_participants()

    if warp < GROUP // 32:
        cute.arch.setmaxregister_decrease(40)
        if warp == 0:
            for k in range(count):
                stage = producer.acquire_and_advance()
                cute.copy(load_a, of_a[None, k], to_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, of_b[None, k], to_b[None, stage.index], tma_bar_ptr=stage.barrier)
    else:
        cute.arch.setmaxregister_increase(232)
        part = mma.get_slice(thread - GROUP)
        left = mma.make_fragment_A(part.partition_A(tile_a))
        right = mma.make_fragment_B(part.partition_B(tile_b))
        place = part.partition_C(cute.local_tile(c, (M, N), (m, n)))
        sums = cute.make_rmem_tensor(place.shape, Float32)
        sums.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)  # products are added to the sums
        before = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
        for k in range(count):
            stage = consumer.wait_and_advance()
            warpgroup.fence()
            cute.gemm(mma, sums, left[None, None, None, stage.index], right[None, None, None, stage.index], sums)
            warpgroup.commit_group()
            warpgroup.wait_group(1)  # the product before this one is complete
            if k > 0:
                ring.consumer_release(before)
                before.advance()
        warpgroup.wait_group(0)
        rounded = cute.make_rmem_tensor_like(sums, Float16)
        rounded.store(sums.load().to(Float16))
        cute.autovec_copy(rounded, place)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T, whole tiles."""
    layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, TILE, Float16, STAGES)
    layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, TILE, Float16, STAGES)
    load = cpasync.CopyBulkTensorTileG2SOp()
    load_a, from_a = cpasync.make_tiled_tma_atom(load, a, cute.slice_(layout_a, (None, None, 0)), (M, K))
    load_b, from_b = cpasync.make_tiled_tma_atom(load, b, cute.slice_(layout_b, (None, None, 0)), (N, K))
    rows = warpgroup.OperandMajorMode.K
    mma = sm90.make_trivial_tiled_mma(Float16, Float16, rows, rows, Float32, (2, 1, 1), (64, N))
    kernel = gemm_kernel(load_a, from_a, load_b, from_b, c, mma, layout_a, layout_b)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS, min_blocks_per_mp=1)


if __name__ == "__main__":
    harness.run(gemm)
