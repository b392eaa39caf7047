"""The epilogue of the sm_80 kernel: O divided by row_sum and LSE, or partial results of split-KV."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, const_expr, cute, range_constexpr
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from .....utils.tiles.online_softmax import LOG2_E, log_sum_exp, normalize_row, store_row_sum
from ....parts.rematerialize import rematerialized

if TYPE_CHECKING:
    from ..... import Boolean
    from .query_tile import QueryTile
    from .sm80_softmax import Sm80Softmax


class Sm80Epilogue:
    """Writes the outputs of a tile. `sinks` are the logits of all heads' attention sinks, `v_descale` the scale factor
    of V."""

    __kiln_immutable__ = True

    def __init__(self, tile: QueryTile, sinks: Any, head: Int32, v_descale: Any = None) -> None:
        self.tile = tile
        self.sinks = sinks
        self.head = head
        self.v_descale = v_descale

    @cute.jit
    def _normalize(self, softmax: Sm80Softmax, number: int, row: Int32, counts_sink: Boolean | bool = True):
        sink = None
        if const_expr(self.sinks is not None):
            head = self.head
            group_size = self.tile.group_size
            if const_expr(group_size > 1):
                head = min(head * group_size + row % group_size, self.sinks.shape[0] - 1)
            sink = self.sinks[head] * LOG2_E if counts_sink else Float32(-float("inf"))
        return normalize_row(softmax.row_sum[number], softmax.rounded_neg_max(number), sink, self.v_descale)

    @cute.jit
    def finish(
        self, smem_o: cute.Tensor, softmax: Sm80Softmax, out: cute.Tensor, lse: Any, m_tile: Int32, seqlen_q: Int32
    ):
        """Normalize the output accumulator, and write LSE, and O through smem in whole rows."""
        tile = self.tile
        acc_o = softmax.acc_o
        rows = seqlen_q * self.tile.group_size
        tile_m = tile.config.tile_m
        columns = tile.o_columns
        thread = rematerialized(arch.thread_idx()[0])
        coords = tile.mma().get_slice(thread).partition_C(cute.make_identity_tensor((tile_m, columns)))
        for m in range_constexpr(tile.config.m_tiles):
            for half in range_constexpr(2):
                row, column = coords[(0, half), m, 0]
                row = row + m_tile * tile_m
                total, neg_row_max, scale = self._normalize(softmax, 2 * m + half, row)
                for n in range_constexpr(columns // 8):
                    for c in range_constexpr(2):
                        acc_o[(c, half), m, n] = acc_o[(c, half), m, n] * scale
                if const_expr(lse is not None):
                    if column == 0 and row < rows:
                        lse[row] = log_sum_exp(total, neg_row_max)
        rounded = cute.make_rmem_tensor(acc_o.shape, tile.out_dtype)
        rounded.store(acc_o.load().to(tile.out_dtype))
        arch.sync_threads()  # all warps have read Q, which O replaces
        self._write_smem(smem_o, rounded, coords, thread)
        arch.sync_threads()
        tile.store_rows(smem_o, out, tile.head_dim_v, m_tile, rows, thread)

    @cute.jit
    def _write_smem(self, smem_o: cute.Tensor, rounded: cute.Tensor, coords: Any, thread: Int32):
        tile = self.tile
        if const_expr(tile.is_fp8):
            for m in range_constexpr(tile.config.m_tiles):
                for half in range_constexpr(2):
                    row, column = coords[(0, half), m, 0]
                    for start, elements in tile.adjacent_columns():
                        for i, (c, n) in enumerate(elements):
                            smem_o[row, 2 * column + start + i] = rounded[(c, half), m, n]
        else:
            tile.write_accumulator(rounded, smem_o, thread)

    @cute.jit
    def finish_split(
        self, softmax: Sm80Softmax, partial: cute.Tensor, m_tile: Int32, seqlen_q: Int32, counts_sink: Boolean
    ):
        """Write the partial result of a KV split: normalized outputs, row_max and row_sum. The sink counts in one
        split."""
        tile = self.tile
        acc_o = softmax.acc_o
        mma = tile.mma().get_slice(rematerialized(arch.thread_idx()[0]))
        coords = mma.partition_C(cute.make_identity_tensor((tile.config.tile_m, tile.o_columns)))
        vectors = [(start, elements) for start, elements in tile.adjacent_columns() if start < tile.head_dim_v]
        size = len(vectors[0][1])
        store = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * size)
        fragment = cute.make_rmem_tensor((size,), Float32)
        for m in range_constexpr(tile.config.m_tiles):
            for half in range_constexpr(2):
                row, column = coords[(0, half), m, 0]
                row = row + m_tile * tile.config.tile_m
                total, neg_row_max, scale = self._normalize(softmax, 2 * m + half, row, counts_sink)
                if row < seqlen_q * tile.group_size:
                    target = partial[row, None]
                    for start, elements in vectors:
                        for i, (c, n) in enumerate(elements):
                            fragment[i] = acc_o[(c, half), m, n] * scale
                        place = (target.iterator + (column * (size // 2) + start)).with_alignment(4 * size)
                        cute.copy(store, fragment, cute.make_tensor(place, cute.make_layout((size,))))
                    if column == 0:
                        store_row_sum(target, tile.head_dim_v, total, neg_row_max)
