"""Attention: scores of the next keys are computed while those before are multiplied with their values, out of registers."""

import numpy as np
from hopper_tiles import GROUP, ROWS, loads, multiplies, parts

from kiln import Float16, Float32, Int32, Int64, cute, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import warpgroup
from kiln.utils import LayoutEnum, sm90

ROWS_Q, KEYS, DEPTH = 64, 16, 32
STAGES = 2
BLOCKS = 5


@cute.jit
def of_row(values, row, pick):
    """The largest, or the sum, of a row's values: two of each eight columns are this thread's, the others those of three more lanes."""
    result = values[2 * row]
    for i in range_constexpr(cute.size(values)):
        if i // 2 % 2 == row and i != 2 * row:
            result = pick(result, values[i])
    for lanes in (1, 2):
        result = pick(result, cute.arch.shuffle_sync_bfly(result, offset=lanes))
    return result


@cute.jit
def softmax(scores, largest, total):
    """Scores become their exponentials; by what older sums are to be multiplied."""
    factors = cute.make_rmem_tensor(2, Float32)
    for row in range_constexpr(2):
        new = cute.arch.fmax(largest[row], of_row(scores, row, cute.arch.fmax))
        factors[row] = cute.arch.exp(largest[row] - new)
        largest[row] = new
    for i in range_constexpr(cute.size(scores)):
        scores[i] = cute.arch.exp(scores[i] - largest[i // 2 % 2])
    for row in range_constexpr(2):
        total[row] = total[row] * factors[row] + of_row(scores, row, lambda x, y: x + y)
    return factors


@cute.jit
def start(mma, scores, left, right):
    """Have scores computed, in a group of their own."""
    warpgroup.fence()
    mma.set(warpgroup.Field.ACCUMULATE, False)
    for block in range_constexpr(cute.size(left, mode=[2])):
        cute.gemm(mma, scores, left[None, None, block], right[None, None, block], scores)
        mma.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()


@cute.kernel
def attention(
    load_q, q: cute.Tensor, load_k, k: cute.Tensor, load_v, v: cute.Tensor, out: cute.Tensor,
    mma_s: cute.TiledMma, mma_o: cute.TiledMma, layout_q, layout_k, layout_v,
):  # fmt: skip
    thread = cute.arch.thread_idx()[0]
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_q = smem.allocate_tensor(Float16, layout_q.outer, 1024, layout_q.inner)
    tile_k = smem.allocate_tensor(Float16, layout_k.outer, 1024, layout_k.inner)
    tile_v = smem.allocate_tensor(Float16, layout_v.outer, 1024, layout_v.inner)
    full_q = smem.allocate_array(Int64, 1)
    barriers_k = smem.allocate_array(Int64, 2 * STAGES)
    barriers_v = smem.allocate_array(Int64, 2 * STAGES)
    filling = pipeline.CooperativeGroup(pipeline.Agent.Thread, 1)
    reading = pipeline.CooperativeGroup(pipeline.Agent.Thread, GROUP // 32)
    pipe_k = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES, producer_group=filling, consumer_group=reading, tx_count=KEYS * DEPTH * 2,
        barrier_storage=barriers_k,
    )  # fmt: skip
    pipe_v = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES, producer_group=filling, consumer_group=reading, tx_count=KEYS * DEPTH * 2,
        barrier_storage=barriers_v,
    )  # fmt: skip
    if thread == 0:
        cute.arch.mbarrier_init(full_q, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    to_q, of_q = parts(load_q, tile_q, cute.local_tile(q, (ROWS_Q, DEPTH), (0, None)))
    to_k, of_k = parts(load_k, tile_k, cute.local_tile(k, (KEYS, DEPTH), (None, 0)))
    to_v, of_v = parts(load_v, tile_v, cute.local_tile(v, (DEPTH, KEYS), (0, None)))
    producer_k, consumer_k = pipe_k.make_participants()
    producer_v, consumer_v = pipe_v.make_participants()
    if warp == 4:
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full_q, ROWS_Q * DEPTH * 2)
        cute.copy(load_q, of_q[None, 0], to_q[None, 0], tma_bar_ptr=full_q)
        for i in range(Int32(BLOCKS)):
            keys = producer_k.acquire_and_advance()
            cute.copy(load_k, of_k[None, i], to_k[None, keys.index], tma_bar_ptr=keys.barrier)
            values = producer_v.acquire_and_advance()
            cute.copy(load_v, of_v[None, i], to_v[None, values.index], tma_bar_ptr=values.barrier)
        producer_k.tail()
        producer_v.tail()
    else:
        part_s, part_o = mma_s.get_slice(thread), mma_o.get_slice(thread)
        left = mma_s.make_fragment_A(part_s.partition_A(tile_q))
        right_k = mma_s.make_fragment_B(part_s.partition_B(tile_k))
        right_v = mma_o.make_fragment_B(part_o.partition_B(tile_v))
        place = part_o.partition_C(cute.local_tile(out, (ROWS_Q, DEPTH), (0, 0)))
        scores = cute.make_rmem_tensor(mma_s.partition_shape_C((ROWS_Q, KEYS)), Float32)
        weights = mma_o.make_fragment_A(mma_o.partition_shape_A((ROWS_Q, KEYS)))
        sums = cute.make_rmem_tensor(place.shape, Float32)
        largest, total = cute.make_rmem_tensor(2, Float32), cute.make_rmem_tensor(2, Float32)
        largest.fill(-Float32.inf)
        total.fill(0.0)
        sums.fill(0.0)
        mma_o.set(warpgroup.Field.ACCUMULATE, True)
        cute.arch.mbarrier_wait(full_q, 0)

        keys = consumer_k.wait_and_advance()
        start(mma_s, scores, left[None, None, None, 0], right_k[None, None, None, keys.index])
        warpgroup.wait_group(0)
        keys.release()
        softmax(scores, largest, total)
        for i in range_constexpr(cute.size(scores)):
            weights[i] = scores[i].to(Float16)

        for step in range(Int32(BLOCKS - 1)):
            keys = consumer_k.wait_and_advance()
            start(mma_s, scores, left[None, None, None, 0], right_k[None, None, None, keys.index])
            values = consumer_v.wait_and_advance()
            cute.gemm(mma_o, sums, weights, right_v[None, None, None, values.index], sums)
            warpgroup.commit_group()
            warpgroup.wait_group(1)  # the scores are there
            keys.release()
            factors = softmax(scores, largest, total)
            warpgroup.wait_group(0)
            values.release()
            for i in range_constexpr(cute.size(sums)):
                sums[i] = sums[i] * factors[i // 2 % 2]
            for i in range_constexpr(cute.size(scores)):
                weights[i] = scores[i].to(Float16)

        values = consumer_v.wait_and_advance()
        warpgroup.fence()
        cute.gemm(mma_o, sums, weights, right_v[None, None, None, values.index], sums)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        values.release()
        for i in range_constexpr(cute.size(sums)):
            place[i] = sums[i] / total[i // 2 % 2]


@cute.jit
def main(q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor):
    along_keys, along_depth = warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN
    layout_q = sm90.make_smem_layout_a(ROWS, (ROWS_Q, KEYS, DEPTH), Float16, 1)
    layout_k = sm90.make_smem_layout_b(ROWS, (ROWS_Q, KEYS, DEPTH), Float16, STAGES)
    layout_v = sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, (ROWS_Q, DEPTH, KEYS), Float16, STAGES)
    transposed = cute.make_tensor(v.iterator, cute.make_layout((DEPTH, BLOCKS * KEYS), stride=(1, DEPTH)))
    copies = loads(q, layout_q, (ROWS_Q, DEPTH)), loads(k, layout_k, (KEYS, DEPTH))
    load_v = loads(transposed, layout_v, (DEPTH, KEYS))
    mma_o = sm90.make_trivial_tiled_mma(
        Float16, Float16, along_keys, along_depth, Float32, (1, 1, 1), (64, DEPTH), warpgroup.OperandSource.RMEM
    )
    kernel = attention(*copies[0], *copies[1], *load_v, out, multiplies(KEYS), mma_o, layout_q, layout_k, layout_v)
    kernel.launch(grid=1, block=GROUP + 32)


def run():
    random = np.random.default_rng(3)
    q, k, v = (
        random.standard_normal((rows, DEPTH)).astype(np.float16) for rows in (ROWS_Q, BLOCKS * KEYS, BLOCKS * KEYS)
    )
    out = np.zeros((ROWS_Q, DEPTH), np.float32)
    main(q, k, v, out)
    weights = np.exp(q.astype(np.float64) @ k.astype(np.float64).T)
    return np.allclose(out, weights / weights.sum(1, keepdims=True) @ v.astype(np.float64), atol=5e-3)
