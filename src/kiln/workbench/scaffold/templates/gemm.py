"""my_kernel: c = a @ b.T on tensor cores (mma.sync, sm_80 and later), for any extents and strides.

A block makes one tile of c. Tiles of a and b go through shared memory, K_TILE columns at a time, zeros beyond the edges; four
warps multiply them. Plain on purpose: no pipeline yet, no vector loads.

kiln verify kernel.py            check it against reference_fn
kiln tune kernel.py              choose a tile

Next: a cp.async pipeline (kiln kb show cp-async-ring), then ldmatrix (kiln kb show ldmatrix-for-operands).
"""

import kiln
import torch
from kiln import cute
from kiln.cute.nvgpu import warp

K_TILE = 32
THREADS = 128
PAD = 8  # elements after each row in shared memory, so that rows begin in different banks

arch = "sm_80+"
configs: dict[str, list[int]] = {"tile_m": [64, 128], "tile_n": [64, 128]}


@cute.jit
def fill(shared: cute.Tensor, source: cute.Tensor, first_row, first_column, thread):
    """Copy a tile of a matrix to shared memory, with zeros for what lies outside."""
    rows, columns = shared.shape
    for step in kiln.range_constexpr(rows * columns // THREADS):
        i = step * THREADS + thread
        row = i // columns
        column = i % columns
        value = source.element_type(0)
        if first_row + row < source.shape[0] and first_column + column < source.shape[1]:
            value = source[first_row + row, first_column + column]
        shared[row, column] = value


@cute.kernel
def my_kernel(
    a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, mma: cute.TiledMma, tile_m: kiln.Constexpr, tile_n: kiln.Constexpr
):
    thread, _, _ = cute.arch.thread_idx()
    block_m, block_n, _ = cute.arch.block_idx()
    stride = K_TILE + PAD
    sA = cute.make_tensor(
        cute.arch.alloc_smem(a.element_type, tile_m * stride, alignment=16),
        cute.make_layout((tile_m, K_TILE), stride=(stride, 1)),
    )
    sB = cute.make_tensor(
        cute.arch.alloc_smem(b.element_type, tile_n * stride, alignment=16),
        cute.make_layout((tile_n, K_TILE), stride=(stride, 1)),
    )

    mine = mma.get_slice(thread)
    tCsA = mine.partition_A(sA)
    tCsB = mine.partition_B(sB)
    tCrA = mma.make_fragment_A(tCsA)
    tCrB = mma.make_fragment_B(tCsB)
    accumulator = cute.make_rmem_tensor(mma.partition_shape_C((tile_m, tile_n)), kiln.Float32)
    accumulator.fill(0.0)

    for k in range(cute.ceil_div(a.shape[1], K_TILE)):
        fill(sA, a, block_m * tile_m, k * K_TILE, thread)
        fill(sB, b, block_n * tile_n, k * K_TILE, thread)
        cute.arch.sync_threads()
        cute.autovec_copy(tCsA, tCrA)
        cute.autovec_copy(tCsB, tCrB)
        cute.gemm(mma, accumulator, tCrA, tCrB, accumulator)
        cute.arch.sync_threads()

    # Where each value of the accumulator belongs in c.
    where = mine.partition_C(cute.make_identity_tensor((tile_m, tile_n)))
    for i in kiln.range_constexpr(cute.size(accumulator)):
        row = block_m * tile_m + where[i][0]
        column = block_n * tile_n + where[i][1]
        if row < c.shape[0] and column < c.shape[1]:
            c[row, column] = accumulator[i].to(c.element_type)


@cute.jit
def launch(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, tile_m: kiln.Constexpr, tile_n: kiln.Constexpr):
    op = warp.MmaF16BF16Op(a.element_type, kiln.Float32, (16, 8, 16))
    mma = cute.make_tiled_mma(op, (2, 2, 1), permutation_mnk=(32, 32, 16))
    my_kernel(a, b, c, mma, tile_m, tile_n).launch(
        grid=(cute.ceil_div(c.shape[0], tile_m), cute.ceil_div(c.shape[1], tile_n), 1), block=THREADS
    )


def kernel_fn(a, b, config=None):
    config = config or {"tile_m": 64, "tile_n": 64}
    c = torch.empty(a.shape[0], b.shape[0], dtype=a.dtype, device=a.device)
    launch(a, b, c, config["tile_m"], config["tile_n"])
    return c


def reference_fn(a, b):
    return a @ b.T


def get_inputs(m=2048, n=2048, k=2048, dtype="float16"):
    return [torch.randn(extent, k, dtype=getattr(torch, dtype), device="cuda") for extent in (m, n)]


def flops_bytes(m, n, k, dtype):
    return 2 * m * n * k, (m * k + n * k + m * n) * getattr(torch, dtype).itemsize


baselines = {"torch": reference_fn}
