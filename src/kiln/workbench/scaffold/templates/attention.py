"""my_kernel: softmax(q @ k.T / sqrt(d)) @ v for each head, in one pass over the keys.

A thread has one query: it keeps the largest score so far, the sum of the weights and the weighted sum of the values, and
rescales them when a larger score comes. A block's threads share tiles of keys and values in shared memory. Plain on purpose:
no tensor cores yet.

kiln verify kernel.py            check it against reference_fn
kiln bench kernel.py             time it beside the baselines

Next: see where the time goes, kiln profile kernel.py; then tensor cores, as in kiln new --kind gemm.
"""

import math
from typing import Any

import kiln
import torch
from kiln import cute

QUERIES = 64
KEYS = 32


@cute.kernel
def my_kernel(q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, scale: kiln.Float32, d: kiln.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, head, _ = cute.arch.block_idx()
    row = block * QUERIES + thread
    layout = cute.make_layout((KEYS, d), stride=(d, 1))
    sK = cute.make_tensor(cute.arch.alloc_smem(kiln.Float32, KEYS * d, alignment=16), layout)
    sV = cute.make_tensor(cute.arch.alloc_smem(kiln.Float32, KEYS * d, alignment=16), layout)

    query = cute.make_rmem_tensor(d, kiln.Float32)
    total = cute.make_rmem_tensor(d, kiln.Float32)
    query.fill(0.0)
    total.fill(0.0)
    if row < q.shape[1]:
        for i in kiln.range_constexpr(d):
            query[i] = q[head, row, i].to(kiln.Float32) * scale
    largest = kiln.Float32(-3.0e38)  # not -inf: the difference to a score of -inf would be NaN
    weights = kiln.Float32(0)

    for first in range(0, k.shape[1], KEYS):
        for step in kiln.range_constexpr(KEYS * d // QUERIES):
            key = (step * QUERIES + thread) // d
            i = (step * QUERIES + thread) % d
            if first + key < k.shape[1]:
                sK[key, i] = k[head, first + key, i].to(kiln.Float32)
                sV[key, i] = v[head, first + key, i].to(kiln.Float32)
        cute.arch.sync_threads()
        for key in range(kiln.min(KEYS, k.shape[1] - first)):
            score = kiln.Float32(0)
            for i in kiln.range_constexpr(d):
                score += query[i] * sK[key, i]
            larger = cute.arch.fmax(largest, score)
            shrink = cute.math.exp(largest - larger)
            weight = cute.math.exp(score - larger)
            weights = weights * shrink + weight
            for i in kiln.range_constexpr(d):
                total[i] = total[i] * shrink + weight * sV[key, i]
            largest = larger
        cute.arch.sync_threads()

    if row < q.shape[1]:
        for i in kiln.range_constexpr(d):
            out[head, row, i] = (total[i] / weights).to(out.element_type)


@cute.jit
def launch(q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, d: kiln.Constexpr):
    my_kernel(q, k, v, out, kiln.Float32(1.0 / math.sqrt(d)), d).launch(
        grid=(cute.ceil_div(q.shape[1], QUERIES), q.shape[0], 1), block=QUERIES
    )


def kernel_fn(q, k, v):
    d = q.shape[2]
    if d % 2 or d > 128:
        raise ValueError(f"heads of {d} elements: an even number of at most 128 is needed")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    launch(q, k, v, out, d)
    return out


def reference_fn(q, k, v):
    scores = q.float() @ k.float().transpose(1, 2) / math.sqrt(q.shape[2])
    return (torch.softmax(scores, dim=2) @ v.float()).to(q.dtype)


def get_inputs(heads=16, queries=1024, keys=1024, d=64, dtype="float16"):
    make = lambda extent: torch.randn(heads, extent, d, dtype=getattr(torch, dtype), device="cuda")
    return [make(queries), make(keys), make(keys)]


def flops_bytes(heads, queries, keys, d, dtype):
    return 4 * heads * queries * keys * d, 2 * heads * (queries + keys) * d * getattr(torch, dtype).itemsize


baselines: dict[str, Any] = {"torch": torch.nn.functional.scaled_dot_product_attention}
