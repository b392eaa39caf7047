"""How what was summed over the keys becomes outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Boolean, Float32, Int32, const_expr, cute, range_constexpr
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from .query_tile import only_here, piece

if TYPE_CHECKING:
    from .query_tile import Tile

LN_2 = 0.6931471805599453
LOG2_E = 1.4426950408889634


def with_sink(total: Any, lowered: Any, sink: Any) -> tuple[Any, Any, Any]:
    """A sum of powers and minus its reference with one more power, and what the sum was scaled by. Neither overflows."""
    reference = arch.fmin(lowered, -sink)
    scaled = arch.exp2(reference - lowered)
    return total * scaled + arch.exp2(sink + reference), reference, scaled


class Epilogue:
    """Writes the outputs of a tile, given what each thread has: sums of values, minus the references of its rows, sums of weights.
    `sinks`: logits of one more key for each head, or None. `factor` of the values, or None."""

    __kiln_immutable__ = True

    def __init__(self, of: Tile, sinks: Any, head: Any, factor: Any = None) -> None:
        self.of, self.sinks, self.head, self.factor = of, sinks, head, factor

    @cute.jit
    def total(self, result: Any, number: int, row: Int32, sink_counts: Any = True):
        """Of a row of a thread: the sum of its weights, minus its reference, and the factor that makes sums of values outputs."""
        _, lowered, sums = result
        total, reference, scaled = sums[number], lowered[number], Float32(1.0)
        total = total + arch.shuffle_sync_bfly(total, offset=1)
        total = total + arch.shuffle_sync_bfly(total, offset=2)
        if const_expr(self.sinks is not None):
            head = self.head
            if const_expr(self.of.share > 1):
                head = min(head * self.of.share + row % self.of.share, self.sinks.shape[0] - 1)
            sink = self.sinks[head] * LOG2_E if sink_counts else Float32(-float("inf"))
            total, reference, scaled = with_sink(total, reference, sink)
        factor = Float32(0.0)
        if total != 0.0:
            factor = arch.rcp_approx(total) * scaled
        if const_expr(self.factor is not None):
            factor = factor * self.factor
        return total, reference, factor

    @cute.jit
    def finish(self, memory: cute.Tensor, result: Any, out: cute.Tensor, lse: Any, tile: Int32, queries: Int32):
        """Divide by the sums, and write the outputs by way of shared memory, in whole rows."""
        tile_m, m_tiles = self.of.config.tile_m, self.of.config.m_tiles
        out_acc, dtype, columns = result[0], self.of.out_dtype, self.of.columns
        thread = only_here(arch.thread_idx()[0])
        mma = self.of.mma()
        places = mma.get_slice(thread).partition_C(cute.make_identity_tensor((tile_m, columns)))
        for m in range_constexpr(m_tiles):
            for half in range_constexpr(2):
                row, column = places[(0, half), m, 0]
                row = row + tile * tile_m
                total, lowered, inverse = self.total(result, 2 * m + half, row)
                for n in range_constexpr(columns // 8):
                    for c in range_constexpr(2):
                        out_acc[(c, half), m, n] = out_acc[(c, half), m, n] * inverse
                if const_expr(lse is not None):
                    if column == 0 and row < queries * self.of.share:
                        value = Float32(-float("inf"))
                        if total != 0.0:
                            value = (cute.math.log2(total) - lowered) * LN_2
                        lse[row] = value
        rounded = cute.make_rmem_tensor(out_acc.shape, dtype)
        rounded.store(out_acc.load().to(dtype))
        # All have read the queries and what else was there.
        arch.sync_threads()
        if const_expr(self.of.narrow):
            for m in range_constexpr(m_tiles):
                for half in range_constexpr(2):
                    row, column = places[(0, half), m, 0]
                    for start, elements in self.of.pieces():
                        for i, (c, n) in enumerate(elements):
                            memory[row, 2 * column + start + i] = rounded[(c, half), m, n]
        else:
            store = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=32)
            writer = cute.make_tiled_copy_C(store, mma).get_slice(thread)
            cute.copy(store, writer.retile(rounded), writer.partition_D(memory))
        arch.sync_threads()
        copy = self.of.row_copy(columns, False, dtype).get_slice(thread)
        from_ = copy.partition_S(memory)
        coords = copy.partition_S(cute.make_identity_tensor((tile_m, columns)))
        held = cute.make_fragment_like(from_)
        cute.copy(copy, from_, held)
        inside = cute.make_rmem_tensor((1, *held.shape[1:]), Boolean)
        for i in range_constexpr(cute.size(held, mode=[1])):
            for j in range_constexpr(cute.size(held, mode=[2])):
                row, column = coords[0, i, j]
                there = tile * tile_m + row < queries * self.of.share
                if const_expr(self.of.outputs != columns):
                    there = there & (column < self.of.outputs)
                inside[0, i, j] = there
                if const_expr(self.of.share > 1):
                    place = piece(out, tile * tile_m + row, column)
                    cute.copy(copy, held[None, i, j], place, pred=inside[None, i, j])
        if const_expr(self.of.share == 1):
            to = copy.partition_D(cute.local_tile(out, (tile_m, columns), (tile, 0)))
            cute.copy(copy, held, to, pred=inside)

    @cute.jit
    def finish_part(self, result: Any, found: cute.Tensor, tile: Int32, queries: Int32, first: Any):
        """Write what a part of the keys gives: outputs, divided by the sums, and the binary logarithm after them. Sinks count in the
        first part."""
        out_acc = result[0]
        part = self.of.mma().get_slice(only_here(arch.thread_idx()[0]))
        places = part.partition_C(cute.make_identity_tensor((self.of.config.tile_m, self.of.columns)))
        pieces = [(start, elements) for start, elements in self.of.pieces() if start < self.of.outputs]
        size = len(pieces[0][1])
        store = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * size)
        held = cute.make_rmem_tensor((size,), Float32)
        for m in range_constexpr(self.of.config.m_tiles):
            for half in range_constexpr(2):
                row, column = places[(0, half), m, 0]
                row = row + tile * self.of.config.tile_m
                total, lowered, inverse = self.total(result, 2 * m + half, row, first)
                logarithm = Float32(-float("inf"))
                if total != 0.0:
                    logarithm = cute.math.log2(total) - lowered
                if row < queries * self.of.share:
                    target = found[row, None]
                    for start, elements in pieces:
                        for i, (c, n) in enumerate(elements):
                            held[i] = out_acc[(c, half), m, n] * inverse
                        place = (target.iterator + (column * (size // 2) + start)).with_alignment(4 * size)
                        cute.copy(store, held, cute.make_tensor(place, cute.make_layout((size,))))
                    if column == 0:
                        target[self.of.outputs] = logarithm
