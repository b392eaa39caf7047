"""How the sums of a tile become elements of a result.

An epilogue is given the sums of each thread and how they lie in the tile (a slice of the tiled MMA that made them), whatever the main
loop was; shared memory is free by then.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Boolean, Float32, Int32, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...parts.smem_layouts import swizzled

if TYPE_CHECKING:
    from collections.abc import Callable


class Sm80Epilogue:
    """Writes the values of combine(sums, alpha, beta, *others) of a tile, each to a result. The `splits` blocks that share a tile add their sums first.

    `other_widths`: how many neighbours in N of each of the other tensors can be loaded at once; None: sums are at most scaled.
    """

    held = 64
    """Registers for what is loaded ahead when results are written."""

    def __init__(
        self, tile: tuple[int, int], threads: int, splits: int, acc_dtype: Any, out_types: tuple[Any, ...], out_width: int,
        combine: Callable[..., Any], other_widths: tuple[int, ...] | None,
    ) -> None:  # fmt: skip
        self.tile = tile
        self.threads = threads
        self.splits = splits
        self.acc_dtype = acc_dtype
        self.out_types = out_types
        self.out_dtype = out_types[0]
        self.out_width = out_width
        self.combine = combine
        self.other_widths = other_widths

    @cute.jit
    def write(self, part: Any, thread: Int32, rank: Any, acc: cute.Tensor, memory: Any, d: Any, rest: Any, where: Any):
        """Write a thread's results of a tile to each of `d`. `rest`: the other tensors, alpha, beta. Nobody uses shared memory any more."""
        extras, alpha, beta = rest
        truth = self.out_dtype.width < 8  # has a byte of its own in memory, and no layout in shared memory
        if const_expr(self.splits > 1 or self.other_widths is not None or truth):
            self.write_combined(part, thread, rank, acc, memory, d, extras, alpha, beta, where)
        else:
            result = cute.make_rmem_tensor(acc.shape, self.out_dtype)
            result.store(self.combine(acc.load(), alpha, beta)[0].to(self.out_dtype))
            self.write_plain(part, thread, result, memory, d[0], where)

    @cute.jit
    def write_plain(self, part: Any, thread: Int32, result: cute.Tensor, memory: Any, d: cute.Tensor, where: Any):
        """Write results by way of shared memory, in whole rows."""
        block_m, block_n = self.tile
        places = cute.local_tile(cute.make_identity_tensor(d.shape), (block_m, block_n), where)
        staged = cute.make_tensor(
            cute.recast_ptr(memory, dtype=self.out_dtype), swizzled(self.out_dtype, (block_m, block_n), 1)
        )
        cute.autovec_copy(result, part.partition_C(staged))
        arch.sync_threads()
        width = self.out_width
        atom = cute.make_copy_atom(CopyUniversalOp(), self.out_dtype, num_bits_per_copy=width * self.out_dtype.width)
        lanes = math.gcd(block_n // width, self.threads)
        threads = cute.make_layout((self.threads // lanes, lanes), stride=(lanes, 1))
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
        self, part: Any, thread: Int32, rank: Any, acc: cute.Tensor, memory: Any, d: Any, extras: Any, alpha: Float32,
        beta: Float32, where: Any,
    ):  # fmt: skip
        """Combine sums with the other tensors and write them, in whole rows, a few at a time.

        The blocks of a cluster add their sums, in order, each block for a part of the tile.
        """
        tile, splits, threads = self.tile, self.splits, self.threads
        layout = swizzled(self.acc_dtype, tile, 1)
        own = cute.make_tensor(cute.recast_ptr(memory, dtype=self.acc_dtype), layout)
        cute.autovec_copy(acc, self.slots(part, own))
        self.meet()

        width = min(self.out_width, 128 // self.acc_dtype.width)
        load, stores = self.access(self.acc_dtype, width), [self.access(kind, width) for kind in self.out_types]
        lanes = math.gcd(tile[1] // width, threads)
        order = cute.make_layout((threads // lanes, lanes), stride=(lanes, 1))
        copy = cute.make_tiled_copy_tv(load, order, cute.make_layout((1, width))).get_slice(thread)
        blocks = [
            own if splits == 1 else cute.make_tensor(arch.map_dsmem_ptr(own.iterator, other), layout)
            for other in range(splits)
        ]
        sums = [cute.group_modes(copy.partition_S(x), 1, 3) for x in blocks]  # (width, pieces)
        shape = d[0].shape
        places = cute.local_tile(cute.make_identity_tensor(shape), tile, where)
        coords = cute.group_modes(copy.partition_S(places), 1, 3)
        targets = [cute.group_modes(copy.partition_D(cute.local_tile(x, tile, where)), 1, 3) for x in d]
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
                inside[i] = cute.elem_less(coords[0, piece], shape) & (number < pieces)
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
            if const_expr(splits > 1 and together == mine):  # before stores, which would have to arrive first
                arch.cluster_arrive()
            for i in range_constexpr(together):
                values = [x[None, i].load() for x in held]
                made = self.combine(total[None, i].load(), alpha, beta, *values)
                piece = min(rank + (first + i) * splits, pieces - 1)
                for value, kind, store, target in zip(made, self.out_types, stores, targets):
                    result = cute.make_rmem_tensor((width,), kind)
                    result.store(value.to(kind))
                    cute.copy(store, result, target[None, piece], pred=inside[i])
        if const_expr(splits > 1):  # nobody's shared memory is read any more
            if const_expr(together < mine):
                arch.cluster_arrive()
            arch.cluster_wait()

    def slots(self, part: Any, staged: Any) -> Any:
        """Where a thread's sums go in shared memory."""
        return part.partition_C(staged)

    def meet(self) -> None:
        """Wait for all that share a tile."""
        if self.splits > 1:
            arch.cluster_arrive()
            arch.cluster_wait()
        else:
            arch.sync_threads()

    def access(self, dtype: Any, width: int) -> Any:
        """A copy of so many elements at once."""
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=width * max(8, dtype.width))

    def pieces_together(self, count: int, registers: int) -> int:
        """How many pieces of so many registers each are loaded before the first is used: a divisor of their number."""
        most = max(1, self.held // registers)
        return max(n for n in range(1, count + 1) if count % n == 0 and n <= most)


class SimtEpilogue(Sm80Epilogue):
    """The same, with results written from registers where they are at most scaled: a thread has `vector` neighbours in N."""

    vector = 4

    @cute.jit
    def write_plain(self, part: Any, thread: Int32, result: cute.Tensor, memory: Any, d: cute.Tensor, where: Any):
        """Write a thread's results, neighbours in N at once where D is aligned."""
        tile = self.tile
        width = min(self.vector, self.out_width)
        to = part.partition_C(cute.local_tile(d, tile, where))  # (1, (4, M), (4, N))
        coords = part.partition_C(cute.local_tile(cute.make_identity_tensor(d.shape), tile, where))
        atom = cute.make_copy_atom(CopyUniversalOp(), self.out_dtype, num_bits_per_copy=width * self.out_dtype.width)
        for i in range_constexpr(cute.size(to, mode=[1])):
            lines = cute.logical_divide(to[0, i, None], width)  # (width, N)
            parts = cute.logical_divide(result[0, i, None], width)
            for j in range_constexpr(cute.size(lines, mode=[1])):
                inside = cute.elem_less(coords[0, i, j * width], d.shape)
                cute.copy(atom, parts[None, j], lines[None, j], pred=inside)
