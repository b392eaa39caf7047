"""my_kernel: y = x * sigmoid(x), element by element, for matrices of any shape and strides.

kiln verify kernel.py            check it against reference_fn
kiln bench kernel.py             time it beside the baselines

Next: change the formula in my_kernel and in reference_fn, and verify again.
"""

from typing import Any

import kiln
import torch
from kiln import cute

THREADS = (4, 32)
VALUES = (2, 4)


@cute.kernel
def my_kernel(
    gX: cute.Tensor,
    gY: cute.Tensor,
    coordinates: cute.Tensor,
    shape: cute.Shape,
    threads: cute.Layout,
    values: cute.Layout,
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    tile = ((None, None), block)

    # Which values of the tile this thread has, of the input, the output and the coordinates.
    atom = cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), gX.element_type)
    mine = cute.make_tiled_copy_tv(atom, threads, values).get_slice(thread)
    x = mine.partition_S(gX[tile])
    y = mine.partition_D(gY[tile])
    where = mine.partition_S(coordinates[tile])

    # Tiles at the edges are larger than what is left of the matrix.
    inside = cute.make_rmem_tensor(where.shape, kiln.Boolean)
    for i in kiln.range_constexpr(cute.size(inside)):
        inside[i] = cute.elem_less(where[i], shape)

    values_in = cute.make_fragment_like(x)
    values_out = cute.make_fragment_like(y)
    values_in.fill(0)
    cute.copy(atom, x, values_in, pred=inside)
    a = values_in.load().to(kiln.Float32)
    values_out.store((a / (1.0 + cute.math.exp(-a))).to(gY.element_type))
    cute.copy(atom, values_out, y, pred=inside)


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor):
    threads = cute.make_ordered_layout(THREADS, order=(1, 0))
    values = cute.make_ordered_layout(VALUES, order=(1, 0))
    tiler, _ = cute.make_layout_tv(threads, values)
    # ((TileM, TileN), (RestM, RestN))
    gX = cute.zipped_divide(x, tiler)
    gY = cute.zipped_divide(y, tiler)
    coordinates = cute.zipped_divide(cute.make_identity_tensor(x.shape), tiler)
    my_kernel(gX, gY, coordinates, x.shape, threads, values).launch(
        grid=cute.size(gX, mode=[1]), block=cute.size(threads)
    )


def kernel_fn(x):
    y = torch.empty_like(x)
    launch(x, y)
    return y


def reference_fn(x):
    return torch.nn.functional.silu(x)


def get_inputs(m=4096, n=4096, dtype="float16"):
    return [torch.randn(m, n, dtype=getattr(torch, dtype), device="cuda")]


def flops_bytes(m, n, dtype):
    return 4 * m * n, 2 * m * n * getattr(torch, dtype).itemsize


baselines: dict[str, Any] = {"torch": torch.nn.functional.silu}
