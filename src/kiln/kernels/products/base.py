"""What the kernels of matrix products have in common: which tile a block computes, and how sums become a result."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ... import cute
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import Boolean, Float32, Int8, Int32, Int64, Uint8
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp
from ...utils import swizzled_tile
from ..common.smem import swizzled

if TYPE_CHECKING:
    from collections.abc import Callable

    from .feed import Operand
    from .plan import Tiling

_GROUP = 16
"""So many rows of tiles are computed side by side, to find each other's operands in the L2 cache."""


_HELD = 64
"""Registers for what is loaded ahead when results are written."""


class Product:
    """D = combine(A B): the kernel for operands of some kinds, without its main loop."""

    def __init__(
        self,
        a: Operand,
        b: Operand,
        out_dtype: Any,
        out_width: int,
        tiling: Tiling,
        combine: Callable[..., Any],
        other_widths: tuple[int, ...] | None = None,
    ) -> None:
        self.a = a
        self.b = b
        self.out_dtype = out_dtype
        self.out_width = out_width
        self.tiling = tiling
        self.combine = combine
        self.other_widths = other_widths
        """How many neighbours in N of each of the other tensors can be loaded at once; None: sums are at most scaled."""

    @property
    def acc_dtype(self) -> Any:
        """What sums are made in."""
        return Int32 if self.a.dtype in (Int8, Uint8) else Float32

    kernel: Any

    def blocks_together(self) -> int:
        """How many blocks at least are to fit on a multiprocessor; 0: as many as do. (Told 1, ptxas takes 255 registers for
        8-bit floats, and runs out of them, where it needs 178.)
        """
        return 0

    @cute.jit
    def __call__(
        self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, extras: Any, alpha: Float32, beta: Float32, stream: Int64
    ):
        """Launch it for (L, M, K), (L, K, N) and (L, M, N)."""
        a = self.arranged(a, [1, 2, 0], self.a.width)  # (M, K, L)
        b = self.arranged(b, [2, 1, 0], self.b.width)  # (N, K, L)
        d = self.arranged(d, [1, 2, 0], self.out_width)  # (M, N, L)
        extras = [self.arranged(x, [1, 2, 0], w) for x, w in zip(extras, self.other_widths or ())]
        block_m, block_n, _ = self.tiling.block_mnk
        tiles = cute.ceil_div(d.shape[0], block_m) * cute.ceil_div(d.shape[1], block_n)
        splits = self.tiling.splits
        self.kernel(a, b, d, extras, alpha, beta).launch(
            grid=(tiles * splits, d.shape[2], 1),
            block=(self.tiling.threads, 1, 1),
            cluster=(splits, 1, 1) if splits > 1 else None,
            stream=stream,
            min_blocks_per_mp=self.blocks_together(),
        )

    def arranged(self, x: Any, modes: list[int], width: int) -> Any:
        """A tensor with its modes in another order, strides known to be multiples of the width of an access."""
        layout = cute.select(x.layout, mode=modes)
        stride = tuple(s if isinstance(s, int) else cute.assume(s, divby=width) for s in layout.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(layout.shape, stride=stride))

    def place(self, number: Int32, d: cute.Tensor) -> tuple[Any, Any]:
        """The tile of a block."""
        block_m, block_n, _ = self.tiling.block_mnk
        tiles_m, tiles_n = cute.ceil_div(d.shape[0], block_m), cute.ceil_div(d.shape[1], block_n)
        return swizzled_tile(number, tiles_m, tiles_n, _GROUP)

    @cute.jit
    def begin(self, feeds: Any, a: cute.Tensor, b: cute.Tensor, rings: Any, where: Any, thread: Int32, rank: Any):
        """Begin to fill the ring with this block's tiles of K: where those that follow are, and how many there are in all."""
        splits, stages, depth = self.tiling.splits, self.tiling.stages, self.tiling.block_mnk[2]
        a_feed, b_feed = feeds
        a_next = a_feed.start(a, rings[0], where[0], thread)
        b_next = b_feed.start(b, rings[1], where[1], thread)
        tiles = cute.ceil_div(a.shape[1], depth)
        rest = a.shape[1] - (tiles - 1) * depth  # of the first tile; the others are whole
        exists = Boolean(True)
        if const_expr(splits > 1):
            first = tiles * rank // splits
            tiles = tiles * (rank + 1) // splits - first
            exists = tiles > 0
            before = rest + (first - 1) * depth if first > 0 else Int32(0)
            a_next, b_next = a_feed.advanced(a_next, before), b_feed.advanced(b_next, before)
            rest = Int32(depth) if first > 0 else rest
        a_feed.fetch(a_next, 0, exists, rest)
        b_feed.fetch(b_next, 0, exists, rest)
        arch.cp_async_commit_group()
        a_next, b_next = a_feed.advanced(a_next, rest), b_feed.advanced(b_next, rest)
        for stage in range_constexpr(1, stages - 1):
            if stage <= tiles:  # one more than there are: what is read ahead of the last is zeros
                a_feed.fetch(a_next, stage, stage < tiles)
                b_feed.fetch(b_next, stage, stage < tiles)
            arch.cp_async_commit_group()
            a_next, b_next = a_feed.advanced(a_next, depth), b_feed.advanced(b_next, depth)
        return a_next, b_next, tiles

    @cute.jit
    def write(self, part: Any, thread: Int32, rank: Any, acc: cute.Tensor, memory: Any, d: Any, rest: Any, where: Any):
        """Write a thread's results of a tile. `rest`: the other tensors, alpha, beta. Nobody uses shared memory any more."""
        extras, alpha, beta = rest
        if const_expr(self.tiling.splits > 1 or self.other_widths is not None):
            self.write_combined(part, thread, rank, acc, memory, d, extras, alpha, beta, where)
        else:
            result = cute.make_rmem_tensor(acc.shape, self.out_dtype)
            result.store(self.combine(acc.load(), alpha, beta).to(self.out_dtype))
            self.write_plain(part, thread, result, memory, d, where)

    @cute.jit
    def write_plain(self, part: Any, thread: Int32, result: cute.Tensor, memory: Any, d: cute.Tensor, where: Any):
        """Write results by way of shared memory, in whole rows."""
        block_m, block_n, _ = self.tiling.block_mnk
        places = cute.local_tile(cute.make_identity_tensor(d.shape), (block_m, block_n), where)
        staged = cute.make_tensor(
            cute.recast_ptr(memory, dtype=self.out_dtype), swizzled(self.out_dtype, (block_m, block_n), 1)
        )
        cute.autovec_copy(result, part.partition_C(staged))
        arch.sync_threads()
        width = self.out_width
        atom = cute.make_copy_atom(CopyUniversalOp(), self.out_dtype, num_bits_per_copy=width * self.out_dtype.width)
        lanes = math.gcd(block_n // width, self.tiling.threads)
        threads = cute.make_layout((self.tiling.threads // lanes, lanes), stride=(lanes, 1))
        copy = cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, width))).get_slice(thread)
        d_part = copy.partition_D(cute.local_tile(d, (block_m, block_n), where))
        s_part, coords = copy.partition_S(staged), copy.partition_S(places)
        held = cute.make_fragment_like(s_part)
        cute.copy(copy, s_part, held)
        rows, columns = cute.size(d_part, mode=[1]), cute.size(d_part, mode=[2])
        inside = cute.make_rmem_tensor((1, rows, columns), Boolean)
        for i in range_constexpr(rows):
            for j in range_constexpr(columns):
                inside[0, i, j] = cute.elem_less(coords[0, i, j], d.shape)
        cute.copy(copy, held, d_part, pred=inside)

    @cute.jit
    def write_combined(
        self, part: Any, thread: Int32, rank: Any, acc: cute.Tensor, memory: Any, d: cute.Tensor, extras: Any, alpha: Float32,
        beta: Float32, where: Any,
    ):  # fmt: skip
        """Combine sums with the other tensors and write them, in whole rows, a few at a time.

        The blocks of a cluster add their sums, in order, each block for a part of the tile.
        """
        block_m, block_n, _ = self.tiling.block_mnk
        tile, splits, threads = (block_m, block_n), self.tiling.splits, self.tiling.threads
        layout = swizzled(self.acc_dtype, tile, 1)
        own = cute.make_tensor(cute.recast_ptr(memory, dtype=self.acc_dtype), layout)
        cute.autovec_copy(acc, part.partition_C(own))
        if const_expr(splits > 1):
            arch.cluster_arrive()
            arch.cluster_wait()
        else:
            arch.sync_threads()

        width = min(self.out_width, 128 // self.acc_dtype.width)
        load, store = self.access(self.acc_dtype, width), self.access(self.out_dtype, width)
        lanes = math.gcd(block_n // width, threads)
        order = cute.make_layout((threads // lanes, lanes), stride=(lanes, 1))
        copy = cute.make_tiled_copy_tv(load, order, cute.make_layout((1, width))).get_slice(thread)
        blocks = [
            own if splits == 1 else cute.make_tensor(arch.map_dsmem_ptr(own.iterator, other), layout)
            for other in range(splits)
        ]
        sums = [cute.group_modes(copy.partition_S(x), 1, 3) for x in blocks]  # (width, pieces)
        places = cute.local_tile(cute.make_identity_tensor(d.shape), tile, where)
        coords = cute.group_modes(copy.partition_S(places), 1, 3)
        target = cute.group_modes(copy.partition_D(cute.local_tile(d, tile, where)), 1, 3)
        others = [cute.group_modes(copy.partition_S(cute.local_tile(x, tile, where)), 1, 3) for x in extras]
        pieces = cute.size(coords, mode=[1])
        mine = -(-pieces // splits)
        together = self.pieces_together(mine, width * (1 + len(extras)))
        held = [cute.make_rmem_tensor((width, together), x.element_type) for x in extras]
        total = cute.make_rmem_tensor((width, together), self.acc_dtype)
        there = cute.make_rmem_tensor((width, splits), self.acc_dtype)
        inside = cute.make_rmem_tensor((together,), Boolean)
        for first in range(0, mine, together):
            for i in range_constexpr(together):
                number = rank + (first + i) * splits
                piece = min(number, pieces - 1)
                inside[i] = cute.elem_less(coords[0, piece], d.shape) & (number < pieces)
                for x, to, among in zip(others, held, self.other_widths or ()):
                    to[None, i].fill(0)
                    if inside[i]:
                        atom = self.access(x.element_type, width if among >= width else 1)
                        cute.copy(atom, x[None, piece], to[None, i])
                for other in range_constexpr(splits):
                    cute.copy(load, sums[other][None, piece], there[None, other])
                total[None, i].store(there[None, 0].load())
                for other in range_constexpr(1, splits):
                    total[None, i].store(total[None, i].load() + there[None, other].load())
            for i in range_constexpr(together):
                values = [x[None, i].load() for x in held]
                result = cute.make_rmem_tensor((width,), self.out_dtype)
                result.store(self.combine(total[None, i].load(), alpha, beta, *values).to(self.out_dtype))
                piece = min(rank + (first + i) * splits, pieces - 1)
                cute.copy(store, result, target[None, piece], pred=inside[i])
        if const_expr(splits > 1):  # nobody's shared memory is read any more
            arch.cluster_arrive()
            arch.cluster_wait()

    def access(self, dtype: Any, width: int) -> Any:
        """A copy of so many elements at once."""
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=width * max(8, dtype.width))

    def pieces_together(self, count: int, registers: int) -> int:
        """How many pieces of so many registers each are loaded before the first is used: a divisor of their number."""
        most = max(1, _HELD // registers)
        return max(n for n in range(1, count + 1) if count % n == 0 and n <= most)
