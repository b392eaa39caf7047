"""Attention that fits a slide: O = softmax(Q K^T / sqrt(D)) V, with TMA, WGMMA and warp specialization.

Run it with `kiln run examples/hopper/attention_slide.py [HEADS QUERIES KEYS]`. On a GPU that times it beside the library.

One warp loads tiles by TMA, two warpgroups have 64 queries each. `kernels.flash_attention` has masks, all shapes and
types besides, and is faster: a warpgroup computes the softmax of one tile of keys while the tensor cores multiply P and V
of the tile before, and persistent CTAs load the next queries while they store.
"""

import math
import sys
from typing import Any

import harness
import numpy as np

import kiln.cute as cute
import kiln.cute.experimental as ext
from kiln import Float16, Float32, pipeline
from kiln.cute.nvgpu import OperandMajorMode, warpgroup
from kiln.utils import LayoutEnum, sm90

M, N, D = 128, 128, 128  # queries of a CTA, keys of a tile, head_dim
STAGES, SMEM = 2, cute.AddressSpace.smem

# --- the slide -------------------------------------------------------------------------------------------------------


def load(producer, tile, buffer):
    stage = producer.acquire_and_advance()
    ext.tma_load(tile, buffer[None, None, stage.index], stage.barrier, update_expect_tx=False)


def multiply(mma, acc, a, b, stage, accumulate):
    warpgroup.fence()
    for k in range(cute.size(a, mode=[2])):
        mma.set(warpgroup.Field.ACCUMULATE, accumulate or k > 0)
        cute.gemm(mma, acc, a[None, None, k], b[None, None, k, stage.index], acc)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    stage.release()


def softmax(acc_s, acc_o, row_max, row_sum, scale):
    for r in range(2):  # a thread has elements of two rows, and four threads share a row
        s, o = (acc[(None, r, None), 0, 0] for acc in (acc_s, acc_o))
        largest = cute.arch.warp_reduction_max(s.load().reduce(cute.ReductionOp.MAX, row_max[r]), threads_in_group=4)
        factor = cute.arch.exp2((row_max[r] - largest) * scale)
        s.store(cute.math.exp2(s.load() * scale - largest * scale, fastmath=True))
        o.store(o.load() * factor)
        row_sum[r] = s.load().reduce(cute.ReductionOp.ADD, row_sum[r] * factor)
        row_max[r] = largest


@ext.kernel
def attention_kernel(q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor, scale: Float32):
    (thread, _, _), (m, head, _) = cute.arch.thread_idx(), cute.arch.block_idx()
    K, MN, registers = OperandMajorMode.K, OperandMajorMode.MN, warpgroup.OperandSource.RMEM
    mma_s = sm90.make_trivial_tiled_mma(Float16, Float16, K, K, Float32, (2, 1, 1), (64, N))
    mma_o = sm90.make_trivial_tiled_mma(Float16, Float16, K, MN, Float32, (2, 1, 1), (64, D), registers)
    sQ = ext.allocate(Float16, SMEM, sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, (M, N, D), Float16, 1), 1024)
    sK = ext.allocate(Float16, SMEM, sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, (M, N, D), Float16, STAGES), 1024)
    sV = ext.allocate(Float16, SMEM, sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, (M, D, N), Float16, STAGES), 1024)
    one, eight = (pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals) for arrivals in (1, 8))
    (q_in, q_out), (k_in, k_out), (v_in, v_out) = (
        pipeline.PipelineTmaAsync.create(
            num_stages=stages, producer_group=one, consumer_group=eight, tx_count=rows * D * 2
        ).make_participants()
        for stages, rows in ((1, M), (STAGES, N), (STAGES, N))
    )
    tiles = k.shape[0] // N
    if thread < 128:
        cute.arch.setmaxregister_decrease(24)
        if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
            load(q_in, cute.local_tile(q, (M, D), (m, 0, head)), sQ)
            for j in range(tiles):
                load(k_in, cute.local_tile(k, (N, D), (j, 0, head)), sK)
                load(v_in, cute.local_tile(v, (D, N), (0, j, head)), sV)
    else:
        cute.arch.setmaxregister_increase(240)
        part_s, part_o = mma_s.get_slice(thread - 128), mma_o.get_slice(thread - 128)
        tQ = mma_s.make_fragment_A(part_s.partition_A(sQ[None, None, 0]))
        tK = mma_s.make_fragment_B(part_s.partition_B(sK))
        tV = mma_o.make_fragment_B(part_o.partition_B(sV))
        acc_s = cute.make_rmem_tensor(mma_s.partition_shape_C((M, N)), Float32)
        acc_o = cute.make_rmem_tensor(mma_o.partition_shape_C((M, D)), Float32)
        tP = cute.make_rmem_tensor(((2, 2, 2), 1, N // 16), Float16)  # an accumulator has the layout of operand A
        row_max, row_sum = cute.make_rmem_tensor(2, Float32), cute.make_rmem_tensor(2, Float32)
        for tensor, value in ((acc_o, 0.0), (row_max, -Float32.inf), (row_sum, 0.0)):
            tensor.fill(value)
        q_out.wait_and_advance()
        for _ in range(tiles):
            multiply(mma_s, acc_s, tQ, tK, k_out.wait_and_advance(), False)
            softmax(acc_s, acc_o, row_max, row_sum, scale)
            tP.store(acc_s.load().to(Float16).reshape(tP.shape))
            multiply(mma_o, acc_o, tP, tV, v_out.wait_and_advance(), True)
        for r in range(2):
            row = acc_o[(None, r, None), 0, 0]
            row.store(row.load() * (1 / cute.arch.warp_reduction_sum(row_sum[r], threads_in_group=4)))
        result = cute.make_rmem_tensor_like(acc_o, Float16)
        result.store(acc_o.load().to(Float16))
        cute.autovec_copy(result, part_o.partition_C(cute.local_tile(o, (M, D), (m, 0, head))))


@ext.jit
def attention(q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, o: cute.Tensor):
    q, k, o = (cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 2, 0])) for x in (q, k, o))
    v = cute.make_tensor(v.iterator, cute.select(v.layout, mode=[2, 1, 0]))
    scale = math.log2(math.e) / math.sqrt(D)  # exp(x) = exp2(x log2(e))
    attention_kernel(q, k, v, o, scale).launch(grid=(q.shape[0] // M, q.shape[2], 1), block=384)


# --- its check, and its time -----------------------------------------------------------------------------------------


def tensors(heads: int, queries: int, keys: int) -> list[Any]:
    """Return Q, K, V and O of f16: PyTorch's on a GPU, else numpy's."""
    shapes = [(heads, tokens, D) for tokens in (queries, keys, keys, queries)]
    if harness.has_gpu():
        import torch

        torch.manual_seed(0)
        return [torch.randn(shape, device="cuda", dtype=torch.float16) for shape in shapes]
    random = np.random.default_rng(0)
    return [random.standard_normal(shape, np.float32).astype(np.float16) for shape in shapes]


def check(q, k, v, o) -> float:
    """Return the largest error of O in the first heads, in units of what rounding P and O to f16 allows."""
    q, k, v, o = (harness.host(x[:2]).astype(np.float64) for x in (q, k, v, o))
    s = q @ k.transpose(0, 2, 1) / math.sqrt(D)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return float((np.abs(o - p @ v) / (2**-10 * (p @ np.abs(v)) + 1e-4)).max())


def compare(compiled, operands) -> None:
    """Time it beside `kernels.flash_attention`, which takes (batch, tokens, heads, D)."""
    from kiln import kernels

    q, k, v = (x.transpose(0, 1).contiguous()[None] for x in operands[:3])
    ours, library = harness.seconds(lambda: compiled(*operands), lambda: kernels.flash_attention(q, k, v))
    flops = 4 * operands[0].shape[0] * operands[0].shape[1] * operands[1].shape[1] * D
    print(f"  {flops / ours / 1e12:.0f} TFLOP/s, the library {flops / library / 1e12:.0f}: {library / ours:.2f}x")


if __name__ == "__main__":
    heads, queries, keys = (int(argument) for argument in sys.argv[1:4]) if sys.argv[3:] else (2, 256, 384)
    operands = tensors(heads, queries, keys)
    compiled = ext.compile(attention, *operands)
    compiled(*operands)
    error = check(*operands)
    assert error <= 1, f"{error:.2f} times the error that rounding allows"
    print(f"{heads} heads, {queries} x {keys} tokens: error {error:.2f} of what rounding allows")
    if harness.has_gpu():
        compare(compiled, operands)
