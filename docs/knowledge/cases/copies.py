"""y = 2 x, a few bytes to a thread: how wide accesses are, how many vectors a thread moves, what caches are told.

The cases of this folder are contract modules for whole tiles: `kiln verify --quick` checks them, and pages name
their configurations as evidence.
"""

import numpy as np
from arrays import dynamic, empty, normal

from kiln import Constexpr, Float32, cute, range_constexpr
from kiln.cute.nvgpu import CacheEvictionPriority, CopyUniversalOp

problems = [{"n": 4096}, {"n": 1 << 26}]
configs = [
    {"align": 16, "vectors": 1, "threads": 256, "keep": "usual"},
    {"align": 4, "vectors": 1, "threads": 256, "keep": "usual"},
    {"align": 16, "vectors": 4, "threads": 256, "keep": "usual"},
    {"align": 16, "vectors": 1, "threads": 256, "keep": "last"},
]


@cute.kernel
def scale_kernel(x: cute.Tensor, y: cute.Tensor, vectors: Constexpr, threads: Constexpr, keep: Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    hint = {} if keep == "usual" else {"l2_evict_priority": CacheEvictionPriority.EVICT_LAST}
    load = cute.make_copy_atom(CopyUniversalOp(), Float32, **hint)
    for i in range_constexpr(vectors):
        place = ((block * vectors + i) * threads + thread,)
        held = cute.make_rmem_tensor(4, Float32)
        cute.copy(load, cute.local_tile(x, (4,), place), held)
        cute.local_tile(y, (4,), place).store(held.load() * 2)


@cute.jit
def scale(x: cute.Tensor, y: cute.Tensor, vectors: Constexpr, threads: Constexpr, keep: Constexpr):
    blocks = cute.ceil_div(cute.size(x), 4 * vectors * threads)
    scale_kernel(x, y, vectors, threads, keep).launch(grid=blocks, block=threads)


def kernel_fn(x, config):
    y = empty(x.shape, np.float32, x)
    tensors = [dynamic(t, config["align"]) for t in (x, y)]
    scale(*tensors, config["vectors"], config["threads"], config["keep"])
    return y


def reference_fn(x):
    return 2 * x


def get_inputs(n):
    return [normal(n)]


def flops_bytes(n):
    return n, 8 * n
