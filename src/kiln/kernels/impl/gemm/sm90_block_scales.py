"""Block scales of 8-bit floats: they multiply accumulators of 128 elements of K, by rows of A and blocks of B.

A warp beside the producer loads the scales of each stage into shared memory, where they count as part of the stage.
(Loaded to registers by the consumers, they would be waited for between MMAs.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import Float32, Int32, cute, min, range_constexpr
from ....cute import arch
from ....cute.nvgpu import cpasync
from .problem import SCALE_BLOCK

if TYPE_CHECKING:
    from ....utils.schedulers import GemmTile
    from .sm90_config import Sm90GemmConfig

LANES = 32
"""The threads of the warp that loads scales: each arrives at the barrier of a stage."""


class BlockScaleLoader:
    """Loads the block scales of a tile. Outside of the result they are those of its last rows and columns."""

    __kiln_immutable__ = True

    def __init__(self, scales: list[cute.Tensor], config: Sm90GemmConfig, tile: GemmTile) -> None:
        row_scales, column_scales = scales
        self.row_scales: cute.Tensor = row_scales[None, None, tile.batch]  # (M, K / 128)
        self.column_scales: cute.Tensor = column_scales[None, None, tile.batch_b]  # (N / 128, K / 128)
        self.counts: tuple[int, int] = config.scales_per_stage
        lane = arch.lane_idx()
        self.lane: Int32 = lane
        m, n, _ = config.tile_shape_mnk
        rows, columns = config.scales_per_stage
        first = tile.row_start + tile.m * m + lane
        self.rows: list[Int32] = [min(first + i, self.row_scales.shape[0] - 1) for i in range(0, rows, LANES)]
        block = (tile.n * n + lane * (n // columns)) // SCALE_BLOCK
        self.column: Int32 = min(block, self.column_scales.shape[0] - 1)

    @cute.jit
    def load(self, k: Int32, stage: cute.Tensor):
        """Begin to load the scales of a block of K, or of the last one: of rows, then of columns."""
        k = min(k, self.row_scales.shape[1] - 1)
        rows, columns = self.counts
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.ALWAYS), Float32, num_bits_per_copy=32)
        for i in range_constexpr(len(self.rows)):
            source = cute.local_tile(self.row_scales[self.rows[i], None], (1,), (k,))
            cute.copy(atom, source, cute.local_tile(stage, (1,), (i * LANES + self.lane,)))
        if self.lane < columns:
            source = cute.local_tile(self.column_scales[self.column, None], (1,), (k,))
            cute.copy(atom, source, cute.local_tile(stage, (1,), (rows + self.lane,)))


class BlockScales:
    """The block scales of a consumer thread's accumulators: of each of its rows, and of its blocks of columns."""

    __kiln_immutable__ = True

    def __init__(self, thr_mma: cute.ThrMma, config: Sm90GemmConfig, stages: cute.Tensor) -> None:
        self.stages = stages  # (rows, then columns; stages)
        self.num_rows: int = config.scales_per_stage[0]
        self.num_columns: int = config.scales_per_stage[1]
        coords = thr_mma.partition_C(cute.make_identity_tensor(config.tile_shape_mnk[:2]))
        atoms = cute.size(coords, mode=[1])  # ((2, 2, columns / 8), rows / 64, 1)
        self.rows: list[Int32] = [coords[((0, i % 2, 0), i // 2, 0)][0] for i in range(2 * atoms)]
        self.registers: cute.Tensor = cute.make_rmem_tensor((len(self.rows) + self.num_columns,), Float32)

    def load(self, stage: Int32 | int) -> None:
        """Load the scales of a stage."""
        for i, place in enumerate((*self.rows, *range(self.num_rows, self.num_rows + self.num_columns))):
            self.registers[i] = self.stages[place, stage]

    def add(self, acc: cute.Tensor, stage_acc: cute.Tensor) -> None:
        """Add the scaled accumulators of a stage."""
        rows = len(self.rows)
        eights = cute.size(acc, mode=[0]) // 4
        for eight in range_constexpr(eights):
            column = self.registers[rows + eight * self.num_columns // eights]
            for i in range_constexpr(rows):
                for pair in range_constexpr(2):
                    at = ((pair, i % 2, eight), i // 2, 0)
                    acc[at] = acc[at] + stage_acc[at] * (self.registers[i] * column)
