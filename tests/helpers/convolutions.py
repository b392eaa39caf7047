# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Convolutions: what they are, in numpy, and kernels that copy the pixels that their filters meet."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np

import kiln
from kiln import Float16, Float32, Int64, cute, utils
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.utils import LayoutEnum
from kiln.utils import hopper_helpers as sm90

LOAD = cpasync.CopyBulkTensorIm2ColG2SOp()
MULTICAST = cpasync.CopyBulkTensorIm2ColG2SMulticastOp()
STORE = cpasync.CopyBulkTensorIm2ColS2GOp()


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Images (N, ..., C) and a filter; a number for each mode between."""

    images: tuple[int, ...]
    filter: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def outputs(self) -> tuple[int, ...]:
        """The extents of the output between images and channels."""
        parts = zip(self.images[1:-1], self.filter, self.before, self.after, self.stride, self.dilation, strict=True)
        return tuple((s + b + a - (f - 1) * d - 1) // t + 1 for s, f, b, a, t, d in parts)

    @property
    def options(self) -> dict[str, Any]:
        """Of `make_im2col_tma_atom`."""
        return {
            "filter": self.filter, "lower_padding": self.before, "upper_padding": self.after, "stride": self.stride, "dilation": self.dilation
        }  # fmt: skip

    def corners(self, backwards: bool = False) -> dict[str, Any]:
        """Of `make_im2col_tma_atom` for images ((W, H, D, N), C); `backwards`: the last tap first."""
        reach = [(f - 1) * d for f, d in zip(self.filter, self.dilation, strict=True)]
        lower = [-b for b in self.before]
        upper = [a - r for a, r in zip(self.after, reach, strict=True)]
        given = {
            "lower_corner_whd": lower, "upper_corner_whd": upper, "stride_whd": self.stride,
            "lower_padding_whd": [low + r for low, r in zip(lower, reach, strict=True)] if backwards else self.before,
            "upper_padding_whd": self.after,
            "lower_srt": reach if backwards else [0] * len(reach),
            "stride_srt": [-d for d in self.dilation] if backwards else self.dilation,
        }  # fmt: skip
        return {name: tuple(reversed(value)) for name, value in given.items()}

    def columns(self, x: np.ndarray) -> np.ndarray:
        """(output pixels, channels, taps): what the filter meets; of taps the first mode is the fastest, as in layouts."""
        padding = [(0, 0), *zip(self.before, self.after, strict=True), (0, 0)]
        padded, found = np.pad(x, padding), []
        for tap in itertools.product(*map(range, reversed(self.filter))):
            parts = zip(reversed(tap), self.dilation, self.stride, self.outputs, strict=True)
            cut = tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in parts)
            found.append(padded[(slice(None), *cut)].reshape(-1, x.shape[-1]))
        return np.stack(found, axis=-1)

    def output(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """(output pixels, K) of weights (K, ..., C)."""
        w = np.moveaxis(weights, -1, 1).reshape(len(weights), x.shape[-1], -1, order="F")
        return np.einsum("mct,kct->mk", self.columns(x).astype(np.float32), w.astype(np.float32))


def smem_layout(tile: tuple[int, int], dtype: Any, kind: str | None) -> Any:
    """Of (pixels, channels)."""
    if kind is None:
        return cute.make_layout(tile, stride=(tile[1], 1))
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind[f"K_{kind}"], dtype)
    return cute.tile_to_shape(atom, tile, (0, 1))


def by_image(x: Any) -> Any:
    """Images (N, [[D,] H,] W, C) as ((W, [[H,] D,] N), C)."""
    modes = [*reversed(range(len(x.shape) - 1)), len(x.shape) - 1]
    return cute.group_modes(cute.make_tensor(x.iterator, cute.select(x.layout, mode=modes)), 0, len(modes) - 1)


def columns(
    problem: Convolution, tile: tuple[int, int], dtype: Any, kind: str | None, blocks: int = 1, backwards: bool = False
) -> Any:
    """A program that writes the tiles of (output pixels, channels, taps) by copies; so many blocks of a cluster share each tile.

    `backwards`: the last tap first, by the parameters of images ((W, H, D, N), C)."""
    layout = smem_layout(tile, dtype, kind)
    pixels, channels = tile

    @cute.kernel
    def kernel(load: cpasync.TmaInfo, out: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        m, c, _ = cute.arch.block_idx()
        rank = cute.arch.block_idx_in_cluster()
        smem = utils.SmemAllocator()
        swizzled = isinstance(layout, cute.ComposedLayout)
        inner, outer = (layout.inner, layout.outer) if swizzled else (None, layout)
        shared = smem.allocate_tensor(dtype, outer, 1024, inner)
        full = smem.allocate_array(Int64, 1)
        if t == 0:
            cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        tiles = cute.local_tile(load.tma_tensor, tile, (m // blocks, c, None))  # (pixels, channels, taps)
        part, tiles = cpasync.tma_partition(
            load.atom, rank, cute.make_layout(blocks), cute.group_modes(shared, 0, 2), cute.group_modes(tiles, 0, 2)
        )
        mine = cute.local_tile(out, tile, (m // blocks, c, None))
        for tap in range(cute.size(tiles, mode=[1])):
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(full, pixels * channels * dtype.width // 8)
            cute.arch.sync_warp()
            mask = {} if blocks == 1 else {"mcast_mask": (1 << blocks) - 1}
            cute.prefetch(load.atom, tiles[None, tap])
            cute.copy(load.atom, tiles[None, tap], part, tma_bar_ptr=full, **mask)
            cute.arch.mbarrier_wait(full, tap % 2)
            if rank == tap % blocks:
                for i in kiln.range(t, pixels * channels, 32):
                    mine[i % pixels, i // pixels, tap] = shared[i]
            cute.arch.cluster_arrive()
            cute.arch.cluster_wait()

    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor):
        op = LOAD if blocks == 1 else MULTICAST
        if backwards:
            images = by_image(x)
            atom, coords = cpasync.make_im2col_tma_atom(op, images, layout, tile, **problem.corners(True))
            taps = cute.make_tensor(coords.iterator, cute.flatten(coords.layout))  # (pixels, C, S, R, T)
            order = [0, 1, *reversed(range(2, len(taps.shape)))]
            taps = cute.make_tensor(taps.iterator, cute.select(taps.layout, mode=order))
            load = cpasync.TmaInfo(atom, cute.group_modes(taps, 2, len(order)), layout)
        else:
            load = cpasync.make_im2col_tma_atom(op, x, layout, tile, **problem.options, num_multicast=blocks)
        grid = (cute.ceil_div(load.tma_tensor.shape[0], pixels) * blocks, cute.ceil_div(x.shape[-1], channels), 1)
        kernel(load, out).launch(grid=grid, block=32, cluster=(blocks, 1, 1))

    return main


def whole_tiles(problem: Convolution, x: np.ndarray, tile: tuple[int, int]) -> np.ndarray:
    """What `columns` writes: zeros past the ends."""
    found = problem.columns(x)
    more = [(0, -size % t) for size, t in zip(found.shape, tile)]
    return np.pad(found, [*more, (0, 0)])


def forward(problem: Convolution, tile: tuple[int, int, int] = (64, 32, 64)) -> Any:
    """A convolution as a product of warpgroups: images (N, H, W, C), weights (K, R, S, C), output (pixels, K)."""
    m_tile, n_tile, k_tile = tile
    spatial = len(problem.filter)

    @cute.kernel
    def kernel(tiled_mma: cute.TiledMma, a: cpasync.TmaInfo, b: cpasync.TmaInfo, out: cute.Tensor):
        thread, _, _ = cute.arch.thread_idx()
        m, n, _ = cute.arch.block_idx()
        smem = utils.SmemAllocator()
        sA = smem.allocate_tensor(Float16, a.smem_layout.outer, 1024, a.smem_layout.inner)
        sB = smem.allocate_tensor(Float16, b.smem_layout.outer, 1024, b.smem_layout.inner)
        full = smem.allocate_array(Int64, 1)
        if thread == 0:
            cute.arch.mbarrier_init(full, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        gA = cute.local_tile(a.tma_tensor, (m_tile, k_tile), (m, None, None))  # (BM, BK, channels, taps)
        gB = cute.local_tile(b.tma_tensor, (n_tile, k_tile), (n, None, None))
        one = cute.make_layout(1)
        tAsA, tAgA = cpasync.tma_partition(a.atom, 0, one, cute.group_modes(sA, 0, 2), cute.group_modes(gA, 0, 2))
        tBsB, tBgB = cpasync.tma_partition(b.atom, 0, one, cute.group_modes(sB, 0, 2), cute.group_modes(gB, 0, 2))
        tAgA, tBgB = cute.group_modes(tAgA, 1, 3), cute.group_modes(tBgB, 1, 3)
        thr_mma = tiled_mma.get_slice(thread)
        tCrA = tiled_mma.make_fragment_A(thr_mma.partition_A(sA))
        tCrB = tiled_mma.make_fragment_B(thr_mma.partition_B(sB))
        acc = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((m_tile, n_tile)))
        tiled_mma.set(warpgroup.Field.ACCUMULATE, False)
        for k in kiln.range(cute.size(tAgA, mode=[1])):
            if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full, (m_tile + n_tile) * k_tile * 2)
                cute.copy(a.atom, tAgA[None, k], tAsA, tma_bar_ptr=full)
                cute.copy(b.atom, tBgB[None, k], tBsB, tma_bar_ptr=full)
            cute.arch.mbarrier_wait(full, k % 2)
            warpgroup.fence()
            for block in kiln.range_constexpr(cute.size(tCrA, mode=[2])):
                cute.gemm(tiled_mma, acc, tCrA[None, None, block], tCrB[None, None, block], acc)
                tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            cute.arch.sync_threads()
        places = thr_mma.partition_C(cute.make_identity_tensor((m_tile, n_tile)))
        for i in kiln.range_constexpr(cute.size(acc)):
            row, column = places[i][0] + m * m_tile, places[i][1] + n * n_tile
            if row < out.shape[0] and column < out.shape[1]:
                out[row, column] = acc[i]

    @cute.jit
    def main(x: cute.Tensor, weights: cute.Tensor, out: cute.Tensor):
        # weights as (K, C, ([[T,] R,] S)), as the images are (pixels, C, ([[T,] R,] S))
        order = [0, spatial + 1, *range(1, spatial + 1)]
        w = cute.group_modes(cute.make_tensor(weights.iterator, cute.select(weights.layout, mode=order)), 2)
        layouts = [smem_layout((rows, k_tile), Float16, "SW128") for rows in (m_tile, n_tile)]
        a = cpasync.make_im2col_tma_atom(LOAD, x, layouts[0], (m_tile, k_tile), **problem.options)
        b = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), w, layouts[1], (n_tile, k_tile))
        major = LayoutEnum.ROW_MAJOR.sm90_mma_major_mode()
        mma = sm90.make_trivial_tiled_mma(Float16, Float16, major, major, Float32, (1, 1, 1), (64, n_tile))
        grid = (*cute.ceil_div(out.shape, (m_tile, n_tile)), 1)
        kernel(mma, a, b, out).launch(grid=grid, block=128)

    return main


def scattered(tile: tuple[int, int], stride: Any) -> Any:
    """A program that stores rows of a matrix (pixels, channels) to every `stride`-th pixel of images."""
    layout = cute.make_layout(tile, stride=(tile[1], 1))

    @cute.kernel
    def kernel(rows: cute.Tensor, store: cpasync.TmaInfo):
        t, _, _ = cute.arch.thread_idx()
        m, c, _ = cute.arch.block_idx()
        shared = utils.SmemAllocator().allocate_tensor(rows.element_type, layout, 1024)
        mine = cute.local_tile(rows, tile, (m, c))
        for i in kiln.range(t, cute.size(layout), 32):
            shared[i] = mine[i]
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_warp()
        target = cute.local_tile(store.tma_tensor, tile, (m, c, 0))
        part, target = cpasync.tma_partition(
            store.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(target, 0, 2)
        )
        cute.copy(store.atom, part, target)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def main(rows: cute.Tensor, y: cute.Tensor):
        store = cpasync.make_im2col_tma_atom(STORE, y, layout, tile, stride=stride)
        grid = cute.ceil_div((store.tma_tensor.shape[0], y.shape[-1]), tile)
        kernel(rows, store).launch(grid=(*grid, 1), block=32)

    return main


PROBLEMS = {
    "1d": Convolution((3, 11, 16), (3,), (2,), (1,), (2,), (2,)),
    "2d": Convolution((2, 7, 9, 16), (3, 2), (1, 1), (1, 0), (1, 2), (1, 1)),
    "2d_dilated": Convolution((3, 9, 7, 24), (2, 3), (2, 1), (0, 2), (3, 1), (3, 2)),
    "2d_one": Convolution((2, 5, 3, 32), (1, 1), (0, 0), (0, 0), (1, 1), (1, 1)),
    "3d": Convolution((2, 4, 5, 6, 16), (2, 3, 2), (0, 1, 1), (1, 1, 0), (1, 2, 1), (1, 1, 3)),
}
"""Odd extents, paddings that differ, strides and dilations."""
