"""Factors of blocks of 8-bit floats: sums of 128 products are multiplied by those of their row of A and of their block of B.

One warp asks for those of a stage of the ring, beside the one that asks for its tiles; they come to shared memory, and count as part of the stage. (Loaded to
registers by those who multiply, they would be waited for between products.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32, cute, min, range_constexpr
from ....cute import arch
from ....cute.nvgpu import cpasync
from .problem import SCALE_BLOCK

if TYPE_CHECKING:
    from .sm90_config import Sm90GemmConfig

LANES = 32
"""Of the warp that asks for factors: each arrives at the barrier of a stage."""


class BlockScaleLoader:
    """Where factors of a tile come from. Outside of the result they are those of its last rows and columns."""

    __kiln_immutable__ = True

    def __init__(self, blocks: Any, config: Sm90GemmConfig, place: Any) -> None:
        of_rows, of_columns = blocks
        self.of_rows = of_rows[None, None, place.batch]  # (M, K / 128)
        self.of_columns = of_columns[None, None, place.matrix]  # (N / 128, K / 128)
        self.count = config.scales_per_stage
        self.lane = lane = arch.lane_idx()
        (m, n, _), (rows, across) = config.tile_shape_mnk, config.scales_per_stage
        first = place.start + place.m * m + lane
        self.rows = [min(first + i, self.of_rows.shape[0] - 1) for i in range(0, rows, LANES)]
        self.column = min((place.n * n + lane * (n // across)) // SCALE_BLOCK, self.of_columns.shape[0] - 1)

    @cute.jit
    def ask(self, k: Any, held: cute.Tensor):
        """Ask for those of a block of K, or of the last one: of rows, then of columns that have one in common."""
        k = min(k, self.of_rows.shape[1] - 1)
        rows, across = self.count
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.ALWAYS), Float32, num_bits_per_copy=32)
        for i in range_constexpr(len(self.rows)):
            source = cute.local_tile(self.of_rows[self.rows[i], None], (1,), (k,))
            cute.copy(atom, source, cute.local_tile(held, (1,), (i * LANES + self.lane,)))
        if self.lane < across:
            source = cute.local_tile(self.of_columns[self.column, None], (1,), (k,))
            cute.copy(atom, source, cute.local_tile(held, (1,), (rows + self.lane,)))


class BlockScales:
    """Those that a thread needs for its sums of a stage: of each of its rows, and of columns that have one in common."""

    __kiln_immutable__ = True

    def __init__(self, part: Any, config: Sm90GemmConfig, held: Any) -> None:
        self.held = held  # (rows, then columns; stages)
        self.first, self.across = config.scales_per_stage
        coords = part.partition_C(
            cute.make_identity_tensor(config.tile_shape_mnk[:2])
        )  # ((2, 2, columns / 8), rows / 64, 1)
        self.atoms = cute.size(coords, mode=[1])
        self.rows = [coords[((0, i % 2, 0), i // 2, 0)][0] for i in range(2 * self.atoms)]
        self.now = cute.make_rmem_tensor((len(self.rows) + self.across,), Float32)

    def take(self, stage: Any) -> None:
        """Those of a stage are the ones to use."""
        for i, place in enumerate((*self.rows, *range(self.first, self.first + self.across))):
            self.now[i] = self.held[place, stage]

    def add(self, acc: cute.Tensor, sums: cute.Tensor) -> None:
        """Add the sums of a stage, multiplied."""
        rows, eights = len(self.rows), cute.size(acc, mode=[0]) // 4
        for eight in range_constexpr(eights):
            column = self.now[rows + eight * self.across // eights]
            for i in range_constexpr(rows):
                for pair in range_constexpr(2):
                    at = ((pair, i % 2, eight), i // 2, 0)
                    acc[at] = acc[at] + sums[at] * (self.now[i] * column)
