"""Step 2: a loop over K. TMA fills the stages of a pipeline while the tensor cores work on others.

Run it with `kiln run examples/blackwell/step_2_pipeline.py`.

A stage is empty when the MMAs that read it are complete. The tensor cores say so themselves: `consumer_release` of
`PipelineTmaUmma` is a `tcgen05.commit`, so the warp issues the next MMAs without waiting for the last ones. A second
pipeline of one stage, `PipelineUmmaAsync`, hands the accumulator to the threads that store it.
"""

import blackwell_harness as harness
from step_1_mma import store_rows

import kiln
import kiln.cute as cute
from kiln import Float16, Float32, Int32, pipeline, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import sm100

M, N, K = TILE = (128, 256, 64)
BYTES = (M + N) * K * 2
THREADS = 128
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
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    tiles = pipeline.PipelineTmaUmma.create(num_stages=STAGES, producer_group=one, consumer_group=one, tx_count=BYTES)
    accs = pipeline.PipelineUmmaAsync.create(
        num_stages=1, producer_group=one, consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, THREADS)
    )
    tmem = utils.TmemAllocator(smem.allocate_array(Int32), pipeline.NamedBarrier(1, THREADS))
    tmem.allocate(N)
    tmem.wait_for_alloc()
    acc_ptr = tmem.retrieve_ptr(Float32)

    cta_mma = mma.get_slice(0)
    part_a = cta_mma.partition_A(cute.local_tile(a, (M, K), (m, None)))  # ((128, 16), 1, K / 16, k tiles)
    part_b = cta_mma.partition_B(cute.local_tile(b, (N, K), (n, None)))
    part_c = cta_mma.partition_C(cute.local_tile(c, (M, N), (m, n)))
    frag_a, frag_b = mma.make_fragment_A(tile_a), mma.make_fragment_B(tile_b)
    acc = cute.make_tensor(acc_ptr, mma.make_fragment_C(part_c.shape).layout)
    no_multicast = (0, cute.make_layout(1))
    smem_a, gmem_a = cpasync.tma_partition(
        load_a, *no_multicast, cute.group_modes(tile_a, 0, 3), cute.group_modes(part_a, 0, 3)
    )
    smem_b, gmem_b = cpasync.tma_partition(
        load_b, *no_multicast, cute.group_modes(tile_b, 0, 3), cute.group_modes(part_b, 0, 3)
    )

    acc_producer, acc_consumer = accs.make_participants()
    if warp == 0:
        producer, consumer = tiles.make_participants()
        count = part_a.shape[3]
        for k in range(kiln.min(count, STAGES - 1)):
            stage = producer.acquire_and_advance()
            cute.copy(load_a, gmem_a[None, k], smem_a[None, stage.index], tma_bar_ptr=stage.barrier)
            cute.copy(load_b, gmem_b[None, k], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)
        done = acc_producer.acquire_and_advance()
        for k in range(count):
            if k + STAGES - 1 < count:
                stage = producer.acquire_and_advance()  # waits for the MMAs that were issued a round before
                following = k + STAGES - 1
                cute.copy(load_a, gmem_a[None, following], smem_a[None, stage.index], tma_bar_ptr=stage.barrier)
                cute.copy(load_b, gmem_b[None, following], smem_b[None, stage.index], tma_bar_ptr=stage.barrier)
            full = consumer.wait_and_advance()
            mma.set(tcgen05.Field.ACCUMULATE, k != 0)  # the first k tile overwrites the accumulator
            cute.gemm(mma, acc, frag_a[None, None, None, full.index], frag_b[None, None, None, full.index], acc)
            full.release()  # when the MMAs are complete
        done.commit()  # when all of them are

    acc_full = acc_consumer.wait_and_advance()
    store_rows(acc, part_c, thread)
    acc_full.release()
    cute.arch.sync_threads()
    tmem.relinquish_alloc_permit()
    tmem.free(acc_ptr)


@cute.jit
def gemm(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    """C (M, N) = A (M, K) B (N, K)^T, whole tiles."""
    k_major = OperandMajorMode.K
    mma = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, tcgen05.CtaGroup.ONE, (M, N))
    layout_a = sm100.make_smem_layout_a(mma, TILE, Float16, STAGES)
    layout_b = sm100.make_smem_layout_b(mma, TILE, Float16, STAGES)
    load = cpasync.CopyBulkTensorTileG2SOp(tcgen05.CtaGroup.ONE)
    stage = (None, None, None, 0)
    load_a, tma_a = cute.nvgpu.make_tiled_tma_atom_A(load, a, cute.slice_(layout_a, stage), TILE, mma)
    load_b, tma_b = cute.nvgpu.make_tiled_tma_atom_B(load, b, cute.slice_(layout_b, stage), TILE, mma)
    kernel = gemm_kernel(load_a, tma_a, load_b, tma_b, c, mma, layout_a, layout_b)
    kernel.launch(grid=(*cute.ceil_div(c.shape, (M, N)), 1), block=THREADS)


if __name__ == "__main__":
    harness.run(gemm, (256, 256, 384))
