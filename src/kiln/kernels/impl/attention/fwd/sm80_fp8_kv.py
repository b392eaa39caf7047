"""Products of a step whose keys and values have 8 bits: they are widened to f16 between shared memory and the tensor cores.

Matrices are loaded as if pairs of elements were one of 16 bits. A word of keys is then four columns in succession of one key, where a
product of 16 columns wants two and, eight columns on, two more: which columns these are does not matter as long as those of the queries are the same,
whose columns are put in that order once. A word of values is two columns of two keys: even and odd columns make products of their own,
so that a thread has four columns of outputs in succession (`Tile.pieces`).
"""

from __future__ import annotations

from typing import Any

from ..... import Float32, Int32, const_expr, cute, range_constexpr
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from ....parts.fp8 import widened
from .sm80_mainloop import Products

_EVEN_ODD = 0x3120
"""The bytes of a word, those of even places first."""
_MOST = 65504.0
"""The largest f16."""


@cute.jit
def widen_queries(of: Any, source: Any, target: Any, tile: Int32, rows: Int32):
    """Write a tile of queries as f16 to shared memory, zeros after the last: of 16 columns four in succession are a word of each half.

    Those of bf16 that f16 has not are the largest it has.
    """
    thread, threads = arch.thread_idx()[0], of.config.threads
    tile_m, words = of.config.tile_m, of.columns_q // 4
    halves, wide = cute.recast_tensor(target, Int32), of.q_dtype.width == 16
    held = cute.make_rmem_tensor((4 if wide else 2,), source.element_type)
    read = cute.make_copy_atom(CopyUniversalOp(), source.element_type, num_bits_per_copy=4 * of.q_dtype.width)
    for i in range_constexpr(-(-tile_m * words // threads)):
        number = thread + i * threads
        row, word = number // words, number % words
        if number < tile_m * words:
            held.fill(0)
            if (tile * tile_m + row < rows) & (2 * word < of.dim):
                place = cute.domain_offset((tile * tile_m + row, cute.size(held) * word), source).iterator
                place = place.with_alignment(of.q_dtype.width // 2)
                cute.copy(read, cute.make_tensor(place, held.layout), held)
            column = word // 4 * 8 + word % 4
            if const_expr(wide):
                rounded = cute.make_rmem_tensor((4,), of.dtype)
                for i in range_constexpr(4):
                    rounded[i] = arch.fmax(arch.fmin(Float32(held[i]), _MOST, nan=True), -_MOST, nan=True).to(of.dtype)
                both = cute.recast_tensor(rounded, Int32)
                halves[row, column], halves[row, column + 4] = both[0], both[1]
            else:
                halves[row, column], halves[row, column + 4] = widened(cute.recast_tensor(held, Int32)[0], of.stored)


class NarrowProducts(Products):
    """The two products of a step; each four matrices that are loaded at once are operands of twice as many products."""

    def __init__(self, of: Any, *more: Any) -> None:
        super().__init__(of, *more)
        self.stored = of.stored
        self.q_frag = cute.make_rmem_tensor((8, self.m_tiles, 2 * cute.size(self.k_frag, mode=[3])), of.dtype)

    def widen(self, held: Any, turned: bool) -> list[Any]:
        """Four right operands of what was loaded: of keys for (half of the columns, of the keys), of values for (half of the columns,
        parity)."""
        wide = cute.make_rmem_tensor((4, 4), self.dtype)
        to = cute.recast_tensor(cute.make_tensor(wide.iterator, cute.make_layout(16)), Int32)
        words = cute.recast_tensor(cute.make_tensor(held.iterator, cute.make_layout(8)), Int32)
        for n in range(4):
            if turned:
                half, key = n // 2, n % 2
                to[4 * half + key], to[4 * half + 2 + key] = widened(arch.prmt(words[n], 0, _EVEN_ODD), self.stored)
            else:
                to[2 * n], to[2 * n + 1] = widened(words[n], self.stored)
        return [wide[None, n] for n in range(4)]

    def load_queries(self, k: int) -> None:
        for m in range(self.m_tiles):
            for half in range(2):
                cute.copy(self.rows, self.q_from(m, 2 * k + half), self.q_frag[None, m, 2 * k + half])

    def multiply_keys(self, k: int, n: int) -> None:
        operands = self.widen(self.k_frag[None, None, n, k], False)
        for part in range(2):
            for half in range(2):
                for m in range(self.m_tiles):
                    acc = self.acc_scores[None, m, 2 * n + half]
                    if k == part == 0:
                        acc.fill(0.0)
                    cute.mma_atom_call(
                        self.mma, acc, self.q_frag[None, m, 2 * k + part], operands[2 * half + part], acc
                    )

    def multiply_values(self, k: int, n: int) -> None:
        for number, operand in enumerate(self.widen(self.v_frag[None, None, n, k], True)):
            for m in range(self.m_tiles):
                acc = self.acc_out[None, m, 4 * n + number]
                cute.mma_atom_call(self.mma, acc, self.probabilities[None, m, k], operand, acc)
