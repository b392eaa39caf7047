"""Step 3: a pipeline. While the tensor cores work on one stage, TMA fills the others.

Run it with `kiln run examples/hopper/step_3_pipeline.py`.

A pipeline has two mbarriers for each stage: one says that its tiles have come (full), the other that nobody reads them
any more (empty). One MMA group stays in flight while the next is issued; its stage is released when it is complete.
"""

import harness

import kiln
import kiln.cute as cute
from kiln import Float16, Float32, pipeline, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, K = TILE = (128, 128, 64)
BYTES = (M + N) * K * 2
THREADS = 256
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
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS // 32),  # a warp arrives once
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
    thr_mma = mma.get_slice(thread)
    frag_a = mma.make_fragment_A(thr_mma.partition_A(tile_a))
    frag_b = mma.make_fragment_B(thr_mma.partition_B(tile_b))
    thr_c = thr_mma.partition_C(cute.local_tile(c, (M, N), (m, n)))
    acc = cute.make_rmem_tensor(thr_c.shape, Float32)
    acc.fill(0.0)
    mma.set(warpgroup.Field.ACCUMULATE, True)  # the first MMA adds to zeros, too

    fill = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, STAGES)
    read = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
    free = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, STAGES)
    count = tiles_a.shape[2]
    if warp == 0:
        for k in range(kiln.min(count, STAGES - 1)):
            pipe.producer_acquire(fill)
            full = pipe.producer_get_barrier(fill)
            cute.copy(load_a, gmem_a[None, k], smem_a[None, fill.index], tma_bar_ptr=full)
            cute.copy(load_b, gmem_b[None, k], smem_b[None, fill.index], tma_bar_ptr=full)
            fill.advance()

    for k in range(count):
        pipe.consumer_wait(read)
        warpgroup.fence()
        cute.gemm(mma, acc, frag_a[None, None, None, read.index], frag_b[None, None, None, read.index], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(1)  # the MMA before this one is complete
        if k > 0:
            pipe.consumer_release(free)
            free.advance()
        if warp == 0 and k + STAGES - 1 < count:
            pipe.producer_acquire(fill)
            full = pipe.producer_get_barrier(fill)
            cute.copy(load_a, gmem_a[None, k + STAGES - 1], smem_a[None, fill.index], tma_bar_ptr=full)
            cute.copy(load_b, gmem_b[None, k + STAGES - 1], smem_b[None, fill.index], tma_bar_ptr=full)
            fill.advance()
        read.advance()
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
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS)


if __name__ == "__main__":
    harness.run(gemm)
