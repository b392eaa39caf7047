"""Two-dimensional convolution on tensor cores: an implicit GEMM of NHWC images, f16 with f32 accumulators.

    python examples/convolution.py               compare with numpy
    kiln verify examples/convolution.py          check it: odd sizes, strides, races
    kiln profile examples/convolution.py         registers, occupancy and instructions, without a GPU
    kiln bench examples/convolution.py           time it beside PyTorch, on a GPU

The one idea: *im2col is a layout*. A convolution is a GEMM with a row for each output pixel and a column for each
filter. A row of its A matrix holds the patch of the image that the filter sees. Nobody has to write that matrix: with
an image in memory, it is a view with strides, in which patches overlap.

    A:  ((Q, P, N), (C, S, R))     : ((t * C, t * W * C, H * W * C), (1, C, W * C))       t: the stride
    B:  (K, (C, S, R))             : the filters as they lie in memory
    D:  ((Q, P, N), K)             : the output as it lies in memory

    N images of H x W pixels and C channels; K filters of R x S; output of P x Q pixels

Only the padding is no layout. Patches that stick out of the image are filled with zeros by a predicate of `cp.async`.
Around that stands an ordinary pipelined GEMM: `cp.async`, STAGES tiles in shared memory, `ldmatrix`, `mma.sync`.

Filters have a static shape: a network has few layers and calls each many times. So k is divided into (c, s, r) by
constants. The shape of the images is dynamic. C is a multiple of 8, for copies of 16 bytes; pad an RGB image with zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import kiln
from kiln import Boolean, Constexpr, Float16, Float32, cute, utils
from kiln.cute.nvgpu import CopyUniversalOp, cpasync, warp

TILE_M, TILE_K = 128, 32
STAGES = 4
THREADS = 128
VECTOR = 8  # elements of a 16-byte copy
ACROSS = TILE_K // VECTOR  # threads that copy a row of a tile
DOWN = THREADS // ACROSS  # rows that are copied at a time


def patch_layout(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, stride: int) -> cute.Layout:
    """Return the A matrix as a view of the image: ((Q, P, N), (C, S, R))."""
    batch, height, width, channels = x.shape
    row, image = width * channels, height * width * channels
    return cute.make_layout(
        ((y.shape[2], y.shape[1], batch), (channels, w.shape[2], w.shape[1])),
        stride=((stride * channels, stride * row, image), (1, channels, row)),
    )


def smem_layout(rows: int) -> Any:
    """Return the layout of the stages of an operand: rows of 64 bytes, swizzled for copies and `ldmatrix`."""
    atom = cute.make_composed_layout(cute.make_swizzle(2, 3, 3), 0, cute.make_layout((8, TILE_K), stride=(TILE_K, 1)))
    return cute.tile_to_shape(atom, (rows, TILE_K, STAGES), (0, 1, 2))


@cute.jit
def copy_vector(source: cute.Pointer, target: cute.Tensor, row, exists):
    """Begin to copy this thread's 16 bytes of a row of a tile; zeros if they do not exist."""
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL), Float16, num_bits_per_copy=128)
    vectors = cute.zipped_divide(target, (1, VECTOR))  # ((1, 8), (rows, vectors))
    column = cute.arch.thread_idx()[0] % ACROSS
    cute.copy(atom, cute.make_tensor(source.align(16), (VECTOR,)), vectors[(0, None), (row, column)], pred=exists)


@cute.jit
def copy_tiles(x: cute.Tensor, w: cute.Tensor, sA: cute.Tensor, sB: cute.Tensor, taps, patches: list, tile_n, k_tile):
    """Begin to copy this thread's vectors of a k tile of A and B into their stage."""
    thread, _, _ = cute.arch.thread_idx()
    stage, first = k_tile % STAGES, thread // ACROSS
    k = k_tile * TILE_K + thread % ACROSS * VECTOR
    c, s, r = cute.idx2crd(k, taps.shape)  # divisions by constants
    more = k < cute.size(taps)
    for i, (at_w, at_h, corner, exists) in enumerate(patches):
        inside = (at_w + s >= 0) & (at_w + s < x.shape[2]) & (at_h + r >= 0) & (at_h + r < x.shape[1])
        source = x.iterator + (corner + taps((c, s, r)))
        copy_vector(source, sA[None, None, stage], first + i * DOWN, exists & more & inside)
    rows_b = cute.size(sB, mode=[0])
    for i in kiln.range_constexpr(rows_b // DOWN):
        n = tile_n * rows_b + first + i * DOWN
        source = w.iterator + (n * cute.size(taps) + k)
        copy_vector(source, sB[None, None, stage], first + i * DOWN, (n < w.shape[0]) & more)


@cute.kernel
def convolution_kernel(
    x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, stride: Constexpr, padding: Constexpr, tile_shape: Constexpr
):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    filters = w.shape[0]
    tiles_n = cute.ceil_div(filters, tile_shape[1])
    tile = block // tiles_n, block % tiles_n  # blocks with the same pixels run side by side

    # The patches that this thread copies: the upper left corner, its place in memory, and whether the pixel exists.
    pixels, taps = patch_layout(x, w, y, stride)
    patches = []
    for i in kiln.range_constexpr(TILE_M // DOWN):
        m = tile[0] * TILE_M + thread // ACROSS + i * DOWN
        q, p, n = cute.idx2crd(m, pixels.shape)
        corner = pixels((q, p, n)) - padding * (taps.stride[1] + taps.stride[2])
        patches.append((q * stride - padding, p * stride - padding, corner, m < cute.size(pixels)))

    smem = utils.SmemAllocator()
    sA, sB = (smem.allocate_tensor(Float16, smem_layout(rows), 128) for rows in tile_shape)
    mma = cute.make_tiled_mma(warp.MmaF16BF16Op(Float16, Float32, (16, 8, 16)), (2, 2, 1), permutation_mnk=(32, 32, 16))
    part = mma.get_slice(thread)
    tCrA = mma.make_fragment_A(part.partition_A(sA[None, None, 0]))
    tCrB = mma.make_fragment_B(part.partition_B(sB[None, None, 0]))
    acc = cute.make_rmem_tensor(mma.partition_shape_C(tile_shape), Float32)
    acc.fill(0.0)
    matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), Float16)
    read_a = cute.make_tiled_copy_A(matrices, mma).get_slice(thread)
    read_b = cute.make_tiled_copy_B(matrices, mma).get_slice(thread)

    # The pipeline: STAGES - 1 tiles are under way while one is multiplied.
    for k_tile in kiln.range_constexpr(STAGES - 1):
        copy_tiles(x, w, sA, sB, taps, patches, tile[1], k_tile)
        cute.arch.cp_async_commit_group()
    for k_tile in range(cute.ceil_div(cute.size(taps), TILE_K)):
        cute.arch.cp_async_wait_group(STAGES - 2)  # my copies of this tile have arrived,
        cute.arch.sync_threads()  # everybody's have, and the oldest stage is free
        copy_tiles(x, w, sA, sB, taps, patches, tile[1], k_tile + STAGES - 1)
        cute.arch.cp_async_commit_group()
        stage = (None, None, k_tile % STAGES)
        cute.copy(read_a, read_a.partition_S(sA[stage]), read_a.retile(tCrA))
        cute.copy(read_b, read_b.partition_S(sB[stage]), read_b.retile(tCrB))
        cute.gemm(mma, acc, tCrA, tCrB, acc)
    cute.arch.cp_async_wait_group(0)

    # A thread holds pairs of neighbouring filters. They are stored together, unless the number of filters is odd.
    out = cute.make_tensor(y.iterator, cute.make_layout((cute.size(pixels), filters), stride=(filters, 1)))
    tCgC = part.partition_C(cute.local_tile(out, tile_shape, tile))
    tCcC = part.partition_C(cute.local_tile(cute.make_identity_tensor(out.shape), tile_shape, tile))
    result = cute.make_rmem_tensor(acc.shape, Float16)
    result.store(acc.load().to(Float16))
    pair = 1 if filters % 2 else 2
    inside = cute.make_rmem_tensor((4 // pair, *acc.shape[1:]), Boolean)
    for i in kiln.range_constexpr(cute.size(inside)):
        inside[i] = cute.elem_less(tCcC[i * pair], out.shape)
    atom = cute.make_copy_atom(CopyUniversalOp(), Float16, num_bits_per_copy=16 * pair)
    cute.copy(atom, result, tCgC, pred=inside)


@cute.jit
def launch(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor, shape: Constexpr, stride: Constexpr, padding: Constexpr):
    filters, channels = shape[0], shape[3]
    if min(x.iterator.alignment, w.iterator.alignment) < 16:
        raise ValueError("x and w must begin at multiples of 16 bytes")
    shapes = (*x.shape[:3], channels), shape, (*y.shape[:3], filters)  # static where the filters say so
    x, w, y = (
        cute.make_tensor(t.iterator, cute.make_ordered_layout(extents, order=(3, 2, 1, 0)))
        for t, extents in zip((x, w, y), shapes)
    )
    tile_shape = TILE_M, 128 if filters > 64 else 64
    blocks = cute.ceil_div(cute.size(y.shape[:3]), TILE_M) * cute.ceil_div(filters, tile_shape[1])
    convolution_kernel(x, w, y, stride, padding, tile_shape).launch(grid=blocks, block=THREADS)


def output_size(x: Any, w: Any, stride: int, padding: int) -> tuple[int, int, int, int]:
    """Return the shape of y."""
    rows, columns = ((x.shape[i] + 2 * padding - w.shape[i]) // stride + 1 for i in (1, 2))
    return x.shape[0], rows, columns, w.shape[0]


def convolution(x: Any, w: Any, y: Any, stride: int = 1, padding: int = 0) -> None:
    """y (N, P, Q, K) = x (N, H, W, C) convolved with w (K, R, S, C), all f16, contiguous and aligned to 16 bytes."""
    if x.shape[3] % VECTOR or x.shape[3] != w.shape[3]:
        raise ValueError(
            f"x has {x.shape[3]} channels and w {w.shape[3]}; they must be equal, and a multiple of {VECTOR}"
        )
    if tuple(y.shape) != output_size(x, w, stride, padding):
        raise ValueError(f"y has shape {tuple(y.shape)}; it must be {output_size(x, w, stride, padding)}")
    launch(x, w, y, tuple(w.shape), stride, padding)


def reference(x: np.ndarray, w: np.ndarray, stride: int, padding: int) -> np.ndarray:
    """Return the convolution in f32: windows of the padded image times the filters."""
    image = np.pad(x.astype(np.float32), ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(image, w.shape[1:3], axis=(1, 2))[:, ::stride, ::stride]
    return np.einsum("npqcrs,krsc->npqk", windows, w.astype(np.float32))


# --- a check against numpy -------------------------------------------------------------------------------------------


def main() -> None:
    rng = np.random.default_rng(0)
    for image, filters, stride, padding in (
        ((1, 16, 16, 32), (64, 3, 3, 32), 1, 1),
        ((2, 9, 7, 8), (5, 3, 3, 8), 2, 1),
        ((1, 12, 11, 8), (9, 5, 2, 8), 3, 0),
        ((2, 5, 6, 24), (130, 1, 1, 24), 1, 0),
    ):
        x, w = (rng.integers(-3, 4, shape).astype(np.float16) for shape in (image, filters))
        y = np.zeros(output_size(x, w, stride, padding), np.float16)
        with kiln.target("cpu"):
            convolution(x, w, y, stride, padding)
        want = reference(x, w, stride, padding)
        assert np.array_equal(y, want.astype(np.float16)), f"{image} by {filters}: wrong at {np.argwhere(y != want)[0]}"
        print(f"image {image}, filters {filters}, stride {stride}, padding {padding}: agrees with numpy")


# --- the contract: what `kiln verify`, `kiln profile` and `kiln bench` take ------------------------------------------


def kernel_fn(x, w, stride, padding):
    import torch

    y = torch.empty(output_size(x, w, stride, padding), dtype=x.dtype, device=x.device)
    convolution(x.contiguous(), w.contiguous(), y, stride, padding)
    return y


def reference_fn(x, w, stride, padding):
    import torch

    y = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2), stride=stride, padding=padding)
    return y.permute(0, 2, 3, 1)


def get_inputs(n=64, h=56, c=64, k=64, r=3, stride=1, padding=1):
    import torch

    shapes = (n, h, h, c), (k, r, r, c)
    return [*(torch.randn(shape, dtype=torch.float16, device="cuda") for shape in shapes), stride, padding]


problems = [
    {},
    {"h": 28, "c": 128, "k": 128},
    {"h": 14, "c": 256, "k": 256},
    {"c": 256, "k": 512, "r": 1, "stride": 2, "padding": 0},
]
arch = "sm_80+"


def flops_bytes(n, h, c, k, r, stride, padding):
    p = (h + 2 * padding - r) // stride + 1
    return 2 * n * p * p * k * r * r * c, 2 * (n * h * h * c + k * r * r * c + n * p * p * k)


if __name__ == "__main__":
    main()
