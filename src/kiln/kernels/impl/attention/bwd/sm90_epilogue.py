"""What the epilogue of the Hopper backward kernels stores: rows of dQ, dK and dV, an accumulator times a scale."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..... import cute
from .....cute.nvgpu import warp
from ....parts.kv_source import store_vectors
from ....parts.tma_store_epilogue import TileResults, TmaStore
from .sm90_config import WARPGROUP, WARPGROUP_ROWS

if TYPE_CHECKING:
    from ..... import Boolean, Float32, Int32
    from ....parts.tma_operand import TmaOperand


class ResultRows(NamedTuple):
    """Where 64 rows of a gradient go."""

    first: Int32
    """The first row of the sequence."""
    number: Int32
    """Which 64 rows of the sequence they are."""
    count: Int32 | int
    """How many rows the sequence has."""
    head: Int32
    layer: Int32
    """The batch index of the arrays, 0 with varlen."""


class Gradient(TileResults):
    """The gradient of 64 rows, (row, element), that one warpgroup has.

    `sD` holds its stages (row, element, stage). `gmem` is the array of the gradient with varlen, where threads store the
    last rows of a sequence, and None otherwise. `mma` is the tiled MMA of the accumulator, `target` a TMA operand.
    """

    def __init__(
        self,
        mma: cute.TiledMma,
        thread: Int32,
        scale: Float32,
        rows: ResultRows,
        sD: cute.Tensor,
        target: TmaOperand,
        gmem: cute.Tensor | None,
    ) -> None:
        self.mma = mma
        self.thread = thread
        self.scale = scale
        self.rows = rows
        self.sD = sD
        self.target = target
        self.gmem = gmem

    @property
    def stores(self) -> list[TmaStore]:
        rows, head_dim, _ = self.sD.shape
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.sD.element_type)
        tensor = self.target.tensor
        if self.gmem is not None:
            tensor = cute.domain_offset((self.rows.first, 0, 0, 0), tensor)
        gD = cute.local_tile(tensor, (cute.size(rows), cute.size(head_dim)), (None, 0, None, None))
        return [TmaStore.make(cute.make_tiled_copy_C(atom, self.mma), self.thread, self.sD, self.target.atom, gD)]

    def combine(self, number: Int32 | int, values: cute.Tensor) -> list[cute.TensorSSA]:
        return [values.load() * self.scale]

    def coord(self, number: Int32 | int) -> tuple[Int32, Int32, Int32]:
        return self.rows.number, self.rows.head, self.rows.layer

    def by_tma(self, number: Int32 | int) -> Boolean | bool:
        return True if self.gmem is None else self._rows() >= WARPGROUP_ROWS

    def _rows(self) -> Int32:
        """Return how many rows of the sequence there are from the first of these on."""
        return self.rows.count - self.rows.number * WARPGROUP_ROWS

    def store_rows(self, coord: tuple[cute.Coord, ...], stage: Int32) -> None:
        """Store the last rows of a sequence by threads: behind them are those of the next one."""
        assert self.gmem is not None
        first = self.rows.first + self.rows.number * WARPGROUP_ROWS
        at = lambda row, column: (first + row, column, self.rows.head, 0)
        store_vectors(self.sD[None, None, stage], self._rows(), self.gmem.shape[1], WARPGROUP, self.gmem, at)
