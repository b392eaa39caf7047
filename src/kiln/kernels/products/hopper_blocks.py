"""Factors of blocks of 8-bit floats: sums of 128 products are multiplied by those of their row of A and of their block of B."""

from __future__ import annotations

import math
from typing import Any

from ... import Float32, cute, range_constexpr
from .problem import BLOCK


class BlockFactors:
    """Those that a thread needs for its sums of a tile: of each of its rows, then of columns that have one in common.

    They are loaded a stage ahead, beside the products of the stage before. Outside of the result they are those of its last rows and columns.
    """

    __kiln_immutable__ = True

    def __init__(self, blocks: Any, part: Any, tile: tuple[int, int], place: Any) -> None:
        of_rows, of_columns = blocks
        self.of_rows = of_rows[None, None, place.batch]  # (M, K / 128)
        self.of_columns = of_columns[None, None, place.matrix]  # (N / 128, K / 128)
        coords = part.partition_C(cute.make_identity_tensor(tile))  # ((2, 2, columns / 8), rows / 64, 1)
        self.halves = [(half, atom) for atom in range(cute.size(coords, mode=[1])) for half in range(2)]
        first = place.start + place.m * tile[0]
        self.rows = [first + coords[((0, half, 0), atom, 0)][0] for half, atom in self.halves]
        self.wide = math.gcd(tile[1], BLOCK)
        self.columns = [(place.n * tile[1] + first) // BLOCK for first in range(0, tile[1], self.wide)]
        self.now, self.ahead = (cute.make_rmem_tensor((len(self.rows) + len(self.columns),), Float32) for _ in range(2))

    def depth(self) -> Any:
        """Blocks of K."""
        return self.of_rows.shape[1]

    @cute.jit
    def load(self, k: Any):
        """Load those of a block of K, or of the last one."""
        k = min(k, self.depth() - 1)
        for i, row in enumerate(self.rows):
            self.ahead[i] = self.of_rows[min(row, self.of_rows.shape[0] - 1), k]
        for i, column in enumerate(self.columns):
            self.ahead[len(self.rows) + i] = self.of_columns[min(column, self.of_columns.shape[0] - 1), k]

    def use_loaded(self) -> None:
        """Those that were loaded are the ones to use."""
        self.now.store(self.ahead.load())

    def add(self, acc: cute.Tensor, stage: cute.Tensor) -> None:
        """Add the sums of a stage, multiplied."""
        eights = self.wide // 8
        for number in range_constexpr(len(self.columns)):
            for i, (half, atom) in enumerate(self.halves):
                factor = self.now[i] * self.now[len(self.rows) + number]
                for eight in range_constexpr(number * eights, (number + 1) * eights):
                    for pair in range_constexpr(2):
                        at = ((pair, half, eight), atom, 0)
                        acc[at] = acc[at] + stage[at] * factor
