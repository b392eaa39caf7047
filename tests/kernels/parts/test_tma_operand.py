"""A TMA operand loads what its CTA needs, and counts the bytes of all CTAs that share a barrier."""

from __future__ import annotations

import numpy as np

import kiln
from kiln import Float16, Float32, cute, pipeline, utils
from kiln.cute import arch
from kiln.cute.nvgpu import OperandMajorMode, tcgen05
from kiln.cute.runtime import from_dlpack
from kiln.kernels.parts.tma_operand import TmaOperand, tma_pipe
from kiln.utils import LayoutEnum, sm90, sm100

M, N, K = TILE = (256, 64, 64)


@cute.kernel
def load_pair(a: TmaOperand, b: TmaOperand, mma: cute.TiledMma, out: tuple[cute.Tensor, cute.Tensor]):
    smem = utils.SmemAllocator()
    stages = [x.allocate(smem) for x in (a, b)]
    ctas = cute.tiled_divide(cute.make_layout((2, 1, 1)), (mma.thr_id.shape,))
    rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    pipe = pipeline.PipelineTmaUmma.create(
        num_stages=1,
        producer_group=one,
        consumer_group=one,
        tx_count=a.stage_bytes(mma) + b.stage_bytes(mma),
        cta_layout_vmnk=ctas,
        defer_sync=True,
    )
    pipeline.pipeline_init_arrive(cluster_shape_mn=(2, 1))
    pipeline.pipeline_init_wait(cluster_shape_mn=(2, 1))
    producer, consumer = pipe.make_participants()
    thr_mma = mma.get_slice(rank)
    tiles = thr_mma.partition_A(a.tiles((0, None))), thr_mma.partition_B(b.tiles((0, None)))
    if arch.warp_idx() == 0:
        stage = producer.acquire_and_advance()
        for x, to, part in zip((a, b), stages, tiles):
            target, source = x.partition(to, part)
            cute.copy(x.atom, source[None, 0], target[None, stage.index], tma_bar_ptr=stage.barrier)
        if rank == 0:
            consumer.wait()
    arch.cluster_arrive()
    arch.cluster_wait()
    for rows, to, x in zip((M // 2, N // 2), stages, out):
        for i in range(arch.thread_idx()[0], rows * K, 32):
            row, k = i % rows, i // rows
            x[rank, row, k] = to[(row, k % 16), 0, k // 16, 0]


def test_the_ctas_of_a_pair_load_half_of_each_operand() -> None:
    @cute.jit
    def run(a: cute.Tensor, b: cute.Tensor, out: tuple[cute.Tensor, cute.Tensor]):
        k_major = OperandMajorMode.K
        mma = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, tcgen05.CtaGroup.TWO, (M, N))
        operand_a = TmaOperand.of_mma("A", a, sm100.make_smem_layout_a(mma, TILE, Float16, 1), TILE, mma, (2, 1, 1))
        operand_b = TmaOperand.of_mma("B", b, sm100.make_smem_layout_b(mma, TILE, Float16, 1), TILE, mma, (2, 1, 1))
        assert operand_a.stage_bytes() == M // 2 * K * 2
        assert operand_a.stage_bytes(mma) == M * K * 2
        load_pair(operand_a, operand_b, mma, out).launch(grid=(2, 1, 1), block=32, cluster=(2, 1, 1))

    a, b = (np.arange(rows * K).reshape(rows, K).astype(np.float16) for rows in (M, N))
    out = np.zeros((2, M // 2, K), np.float16), np.zeros((2, N // 2, K), np.float16)
    with kiln.target("cpu"):
        run(*(from_dlpack(x) for x in (a, b)), tuple(from_dlpack(x) for x in out))
    assert (out[0].reshape(M, K) == a).all()
    assert (out[1].reshape(N, K) == b).all()


@cute.kernel
def load_boxes(x: TmaOperand, out: cute.Tensor):
    stages = x.allocate(utils.SmemAllocator())
    pipe = tma_pipe(1, 1, x.stage_bytes())
    pipeline.pipeline_init_arrive()
    pipeline.pipeline_init_wait()
    producer, consumer = pipe.make_participants()
    if arch.warp_idx() == 0:
        boxes = cute.local_tile(stages, x.tile.shape, (None, 0, None))
        target, source = x.partition(boxes, x.at((16, 0)).tiles((None, 0)))
        stage = producer.acquire_and_advance()
        for i in range(2):
            cute.copy(x.atom, source[None, i], target[None, i, stage.index], tma_bar_ptr=stage.barrier)
        consumer.wait()
        for i in range(arch.lane_idx(), 64 * 64, 32):
            out[i // 64, i % 64] = stages[i // 64, i % 64, 0]


def test_boxes_fill_a_stage() -> None:
    @cute.jit
    def run(x: cute.Tensor, out: cute.Tensor):
        layout, box = (sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (64, n, 64), Float16, 1) for n in (64, 32))
        operand = TmaOperand.load(x, layout, (32, 64), box=box)
        assert operand.stage_bytes() == 64 * 64 * 2
        load_boxes(operand, out).launch(grid=(1, 1, 1), block=32)

    x = np.arange(96 * 64).reshape(96, 64).astype(np.float16)
    out = np.zeros((64, 64), np.float16)
    with kiln.target("cpu"):
        run(from_dlpack(x), from_dlpack(out))
    assert (out == x[16:80]).all()
