"""Attention forward: softmax warps, correction warps, and P in tensor memory.

Run it with `kiln run examples/blackwell/attention.py`.

A CTA has 128 queries of a head, and goes over the keys in tiles of 128:

    warps 0-3  softmax     load a row of S each, and write the row of P = exp(S - maximum) as f16 to tensor memory
    warps 4-7  correction  multiply O by exp(old - new maximum) before the next MMA adds to it, and store it at the end
    warp 8     MMA         S = Q K^T and O += P V; P is operand A from tensor memory and never is in shared memory
    warp 9     load        Q, K and V by TMA

A thread has a whole row, so its maximum and total need no shuffles. S has two stages: the tensor cores compute the next one
while the softmax warps work. S, P and O take 2 * 128 + 2 * 64 + 64 of the 512 columns.
"""

import math
import sys
from typing import Any

import blackwell_harness as harness
import numpy as np

import kiln.cute as cute
from kiln import Float16, Float32, Int32, pipeline, range_constexpr, utils
from kiln.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from kiln.utils import sm100

QUERIES, KEYS, D = 128, 128, 64
TILE_S, TILE_O = (QUERIES, KEYS, D), (QUERIES, D, KEYS)
CORRECTION_WARP, MMA_WARP, LOAD_WARP = 4, 8, 9
GROUP = 128  # threads of the softmax, and of the correction
THREADS = 32 * 10
STAGES = 2
P_COLUMN, O_COLUMN = STAGES * KEYS, STAGES * KEYS + STAGES * KEYS // 2


@cute.jit
def load_row(tensor, values, copy, thread):
    """Load the row of a thread from a tensor (128, columns) in tensor memory."""
    cute.copy(copy, copy.get_slice(thread).partition_S(tensor), values)
    cute.arch.fence_view_async_tmem_load()


@cute.kernel
def attention_kernel(
    loads: list,
    tensors: list,
    o: cute.Tensor,
    mma_s: cute.TiledMma,
    mma_o: cute.TiledMma,
    layouts: list,
    scale: Float32,
):
    thread, _, _ = cute.arch.thread_idx()
    m, head, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    smem = utils.SmemAllocator()
    tile_q, tile_k, tile_v = (smem.allocate_tensor(Float16, x.outer, 1024, x.inner) for x in layouts)
    factors = smem.allocate_tensor(Float32, cute.make_layout((GROUP, STAGES)), 16)
    one = pipeline.CooperativeGroup(pipeline.Agent.Thread)
    group = pipeline.CooperativeGroup(pipeline.Agent.Thread, GROUP)
    bytes_of = [cute.size_in_bytes(Float16, cute.slice_(x, (None, None, None, 0))) for x in layouts]
    q_pipe, k_pipe, v_pipe = (
        pipeline.PipelineTmaUmma.create(num_stages=stages, producer_group=one, consumer_group=one, tx_count=size)
        for stages, size in zip((1, STAGES, STAGES), bytes_of, strict=True)
    )
    s_pipe = pipeline.PipelineUmmaAsync.create(num_stages=STAGES, producer_group=one, consumer_group=group)
    p_pipe = pipeline.PipelineAsyncUmma.create(num_stages=STAGES, producer_group=group, consumer_group=one)
    o_pipe = pipeline.PipelineUmmaAsync.create(num_stages=1, producer_group=one, consumer_group=group)
    factor_pipe = pipeline.PipelineAsync.create(num_stages=STAGES, producer_group=group, consumer_group=group)
    tmem = utils.TmemAllocator(
        smem.allocate_array(Int32), pipeline.NamedBarrier(1, 2 * GROUP + 32), allocator_warp_id=CORRECTION_WARP
    )
    q, k, v = tensors
    part_q = mma_s.get_slice(0).partition_A(cute.local_tile(q, (QUERIES, D), (m, 0, head)))
    part_k = mma_s.get_slice(0).partition_B(cute.local_tile(k, (KEYS, D), (None, 0, head)))
    part_v = mma_o.get_slice(0).partition_B(cute.local_tile(v, (D, KEYS), (0, None, head)))
    count = part_k.shape[3]
    s_layout = mma_s.make_fragment_C(cute.append(mma_s.partition_shape_C((QUERIES, KEYS)), STAGES)).layout
    o_layout = mma_o.make_fragment_C(mma_o.partition_shape_C((QUERIES, D))).layout
    p_layout = mma_o.make_fragment_A(cute.append(mma_o.partition_shape_A((QUERIES, KEYS)), STAGES)).layout

    if warp == LOAD_WARP:
        targets, sources = [], []
        for load, tile, part in zip(loads, (tile_q, tile_k, tile_v), (part_q, part_k, part_v), strict=True):
            target, source = cpasync.tma_partition(
                load, 0, cute.make_layout(1), cute.group_modes(tile, 0, 3), cute.group_modes(part, 0, 3)
            )
            targets.append(target)
            sources.append(source)
        q_producer, k_producer, v_producer = q_pipe.make_producer(), k_pipe.make_producer(), v_pipe.make_producer()
        stage = q_producer.acquire_and_advance()
        cute.copy(loads[0], sources[0], targets[0][None, 0], tma_bar_ptr=stage.barrier)
        for j in range(count):
            stage = k_producer.acquire_and_advance()
            cute.copy(loads[1], sources[1][None, j], targets[1][None, stage.index], tma_bar_ptr=stage.barrier)
            stage = v_producer.acquire_and_advance()
            cute.copy(loads[2], sources[2][None, j], targets[2][None, stage.index], tma_bar_ptr=stage.barrier)
        k_producer.tail()
        v_producer.tail()
    if warp == MMA_WARP:
        tmem.wait_for_alloc()
        ptr = tmem.retrieve_ptr(Float32)
        s = cute.make_tensor(ptr, s_layout)
        p = cute.make_tensor(cute.recast_ptr(ptr + P_COLUMN, dtype=Float16), p_layout)
        acc = cute.make_tensor(ptr + O_COLUMN, o_layout)
        frag_q, frag_k = mma_s.make_fragment_A(tile_q), mma_s.make_fragment_B(tile_k)
        frag_v = mma_o.make_fragment_B(tile_v)
        k_consumer, v_consumer, p_consumer = k_pipe.make_consumer(), v_pipe.make_consumer(), p_pipe.make_consumer()
        s_producer, o_producer = s_pipe.make_producer(), o_pipe.make_producer()
        q_pipe.make_consumer().wait_and_advance()
        for j in range(count + 1):
            if j < count:  # S of tile j, while the softmax works on the one before
                keys, free = k_consumer.wait_and_advance(), s_producer.acquire_and_advance()
                mma_s.set(tcgen05.Field.ACCUMULATE, False)
                tile = s[None, None, None, free.index]
                cute.gemm(mma_s, tile, frag_q[None, None, None, 0], frag_k[None, None, None, keys.index], tile)
                keys.release()
                free.commit()
            if j > 0:  # O of tile j - 1
                values, weights = v_consumer.wait_and_advance(), p_consumer.wait_and_advance()
                corrected = o_producer.acquire_and_advance()
                mma_o.set(tcgen05.Field.ACCUMULATE, j != 1)
                cute.gemm(mma_o, acc, p[None, None, None, weights.index], frag_v[None, None, None, values.index], acc)
                values.release()
                weights.release()
                corrected.commit()
    if warp < CORRECTION_WARP:
        tmem.wait_for_alloc()
        ptr = tmem.retrieve_ptr(Float32)
        s = cute.make_tensor(ptr, s_layout)
        p = cute.make_tensor(
            cute.recast_ptr(ptr + P_COLUMN, dtype=Float16),
            cute.make_layout((QUERIES, KEYS, STAGES), stride=(p_layout.stride[0][0], 1, KEYS)),
        )
        load_s = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32), s[(None, None), 0, 0, 0]
        )
        store_p = tcgen05.make_tmem_copy(
            cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition.x16), Float16), p[None, None, 0]
        )
        places = cute.make_identity_tensor((QUERIES, KEYS))
        row = cute.make_rmem_tensor(load_s.get_slice(thread).partition_D(places).shape, Float32)
        storer = store_p.get_slice(thread)
        part = cute.make_rmem_tensor(storer.partition_S(places)[None, 0, 0].shape, Float16)  # 32 keys
        s_consumer, p_producer, factor_producer = (
            s_pipe.make_consumer(),
            p_pipe.make_producer(),
            factor_pipe.make_producer(),
        )
        biggest, total = -Float32.inf, Float32(0)
        for _ in range(count):
            full = s_consumer.wait_and_advance()
            load_row(s[(None, None), 0, 0, full.index], row, load_s, thread)
            full.release()
            newest = biggest
            for i in range_constexpr(KEYS):
                newest = cute.arch.fmax(newest, row[i])
            factor = cute.arch.exp2((biggest - newest) * scale)
            slot = factor_producer.acquire_and_advance()
            factors[thread, slot.index] = factor
            slot.commit()
            total = total * factor
            free = p_producer.acquire_and_advance()  # the MMA with the P before the last is complete
            target = storer.partition_D(p[None, None, free.index])
            for piece in range_constexpr(KEYS // cute.size(part)):
                for i in range_constexpr(cute.size(part)):
                    weight = cute.arch.exp2(row[piece * cute.size(part) + i] * scale - newest * scale)
                    total += weight
                    part[i] = weight.to(Float16)
                cute.copy(store_p, part, target[None, 0, piece])
            cute.arch.fence_view_async_tmem_store()
            free.commit()
            biggest = newest
        slot = factor_producer.acquire_and_advance()
        factors[thread, slot.index] = 1 / total
        slot.commit()
    if warp >= CORRECTION_WARP and warp < MMA_WARP:
        tmem.allocate(512)
        tmem.wait_for_alloc()
        tmem.relinquish_alloc_permit()
        ptr = tmem.retrieve_ptr(Float32)
        acc = cute.make_tensor(ptr + O_COLUMN, o_layout)[(None, None), 0, 0]
        lane = thread % GROUP
        load_o = tcgen05.make_tmem_copy(cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x32), Float32), acc)
        store_o = tcgen05.make_tmem_copy(cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition.x32), Float32), acc)
        rows_o = load_o.get_slice(lane).partition_D(cute.local_tile(o, (QUERIES, D), (m, 0, head)))
        row = cute.make_rmem_tensor(rows_o.shape, Float32)
        o_consumer, factor_consumer = o_pipe.make_consumer(), factor_pipe.make_consumer()
        factor_consumer.wait_and_advance().release()  # of the first tile: there is no O yet
        for _ in range(count - 1):
            given = factor_consumer.wait_and_advance()
            factor = factors[lane, given.index]
            given.release()
            full = o_consumer.wait_and_advance()
            load_row(acc, row, load_o, lane)
            row.store(row.load() * factor)
            cute.copy(store_o, row, store_o.get_slice(lane).partition_D(acc))
            cute.arch.fence_view_async_tmem_store()
            full.release()
        given = factor_consumer.wait_and_advance()
        factor = factors[lane, given.index]  # 1 / sum
        o_consumer.wait_and_advance()
        load_row(acc, row, load_o, lane)
        result = cute.make_rmem_tensor_like(row, Float16)
        result.store((row.load() * factor).to(Float16))
        cute.autovec_copy(result, rows_o)
        pipeline.NamedBarrier(2, GROUP).arrive_and_wait()
        tmem.free(ptr)


@cute.jit
def attention(q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor):
    """O = softmax(Q K^T / sqrt(D)) V for (heads, tokens, D), whole tiles of queries and keys."""
    q, k, o = (cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 2, 0])) for x in (q, k, o))
    v = cute.make_tensor(v.iterator, cute.select(v.layout, mode=[2, 1, 0]))  # (D, keys, heads), contiguous along D
    one, k_major, n_major = tcgen05.CtaGroup.ONE, OperandMajorMode.K, OperandMajorMode.MN
    mma_s = sm100.make_trivial_tiled_mma(Float16, k_major, k_major, Float32, one, TILE_S[:2])
    mma_o = sm100.make_trivial_tiled_mma(
        Float16, k_major, n_major, Float32, one, TILE_O[:2], tcgen05.OperandSource.TMEM
    )
    layouts = [
        sm100.make_smem_layout_a(mma_s, TILE_S, Float16, 1),
        sm100.make_smem_layout_b(mma_s, TILE_S, Float16, STAGES),
        sm100.make_smem_layout_b(mma_o, TILE_O, Float16, STAGES),
    ]
    load = cpasync.CopyBulkTensorTileG2SOp(one)
    make_a, make_b, stage = cute.nvgpu.make_tiled_tma_atom_A, cute.nvgpu.make_tiled_tma_atom_B, (None, None, None, 0)
    made = [
        make_a(load, q, cute.slice_(layouts[0], stage), TILE_S, mma_s),
        make_b(load, k, cute.slice_(layouts[1], stage), TILE_S, mma_s),
        make_b(load, v, cute.slice_(layouts[2], stage), TILE_O, mma_o),
    ]
    loads, tensors = [x[0] for x in made], [x[1] for x in made]
    scale = math.log2(math.e) / math.sqrt(D)  # exp(x) = exp2(x log2(e))
    kernel = attention_kernel(loads, tensors, o, mma_s, mma_o, layouts, scale)
    kernel.launch(grid=(cute.ceil_div(o.shape[0], QUERIES), o.shape[2], 1), block=THREADS)


def tensors(heads: int, queries: int, keys: int) -> tuple[Any, ...]:
    """Return Q, K, V and O of f16."""
    random = np.random.default_rng(0)
    shapes = ((heads, queries, D), (heads, keys, D), (heads, keys, D))
    q, k, v = (random.standard_normal(shape, np.float32).astype(np.float16) for shape in shapes)
    return *map(harness.placed, (q, k, v)), harness.placed(np.zeros((heads, queries, D), np.float16))


def check(q, k, v, o) -> float:
    """Return the largest error of O, in units of what rounding P and O to f16 allows."""
    q, k, v, o = (harness.host(x).astype(np.float64) for x in (q, k, v, o))
    s = q @ k.transpose(0, 2, 1) / math.sqrt(D)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return float((np.abs(o - p @ v) / (2**-10 * (p @ np.abs(v)) + 1e-4)).max())


if __name__ == "__main__":
    harness.use_gpu()
    heads, queries, keys = (int(argument) for argument in sys.argv[1:4]) if sys.argv[3:] else (2, 128, 384)
    operands = tensors(heads, queries, keys)
    attention(*operands)
    error = check(*operands)
    assert error <= 1, f"{error:.2f} times the error that rounding allows"
    print(f"{heads} heads, {queries} x {keys} tokens: error {error:.2f} of what rounding allows")
