"""What the epilogue of sm_90a stores of a tile by TMA: scaled accumulators, or results of a fused epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import Float32, Int32, const_expr, cute, range_constexpr, select_
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...parts.tma_store_epilogue import TileResults
from .sm90_config import ATOM_M, WARPGROUP_THREADS

if TYPE_CHECKING:
    from .... import Boolean
    from ....utils.schedulers import GemmTile
    from ...parts.accumulator import RegisterAccumulator
    from ...parts.tma_store_epilogue import TmaStore
    from .sm80_epilogue import EpilogueTensors
    from .sm90_epilogue import TmaGemmEpilogue

_INPUT_BITS = 16
"""With at most these bits of inputs for an element, those of a whole epilogue tile are loaded at once."""


class ScaledResults(TileResults):
    """The accumulators that a warpgroup has of a tile, at most scaled."""

    def __init__(
        self,
        epilogue: TmaGemmEpilogue,
        stores: list[TmaStore],
        acc: RegisterAccumulator,
        thread: Int32,
        consumer_idx: Int32,
        stages: list[cute.Tensor],
        tensors: EpilogueTensors,
        tile: GemmTile,
    ) -> None:
        self.epilogue = epilogue
        self.stores = stores
        self.acc = acc
        self.thread = thread
        self.stages = stages
        self.tensors = tensors
        self.tile = tile
        epi_rows = epilogue.tile_mn[0] // ATOM_M
        self.first_row: Int32 = tile.m * epi_rows + (consumer_idx if epilogue.warpgroups_per_tile > 1 else 0)
        self.first_column: Int32 = tile.n * epilogue.epi_tiles_n

    def combine(self, number: Int32 | int, values: cute.Tensor) -> list[cute.TensorSSA]:
        return self.epilogue.combine(values.load(), self.tensors.alpha, self.tensors.beta)

    def coord(self, number: Int32 | int) -> tuple[Int32, Int32]:
        """Return the coordinate of a warpgroup's epilogue tile in the result, counted in epilogue tiles."""
        epilogue = self.epilogue
        row = self.first_row + number // epilogue.epi_tiles_n * epilogue.warpgroups_per_tile
        return row, self.first_column + number % epilogue.epi_tiles_n

    def by_tma(self, number: Int32 | int) -> Boolean | bool:
        return self._rows(self.coord(number)) >= ATOM_M if self.epilogue.ragged else True

    def _rows(self, coord: tuple[Int32, Int32]) -> Int32:
        """Return how many rows of the group an epilogue tile has."""
        return self.tile.rows - coord[0] * ATOM_M

    @cute.jit
    def store_rows(self, coord: tuple[Int32, Int32], stage: Int32):
        """Store the rows of a group's last epilogue tile by threads, which meet before its stage is written again."""
        rows = self._rows(coord)
        (d,) = self.tensors.outs
        (stages,) = self.stages
        columns_of_tile = self.epilogue.epi_tile_n
        width = self.epilogue.row_width
        dtype = stages.element_type
        tile = (ATOM_M, columns_of_tile)
        atom = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=width * dtype.width)
        lanes = columns_of_tile // width
        order = cute.make_layout((WARPGROUP_THREADS // lanes, lanes), stride=(lanes, 1))
        copy = cute.make_tiled_copy_tv(atom, order, cute.make_layout((1, width))).get_slice(self.thread)
        d = cute.domain_offset((self.tile.row_start, 0), d[None, None, self.tile.batch])
        target = copy.partition_D(cute.local_tile(d, tile, coord))
        source = copy.partition_S(stages[None, None, stage])
        coords = copy.partition_S(cute.make_identity_tensor(tile))
        fragment = cute.make_fragment_like(source)
        cute.copy(copy, source, fragment)
        columns = d.shape[1] - coord[1] * columns_of_tile
        for i in range_constexpr(cute.size(source, mode=[1])):
            for j in range_constexpr(cute.size(source, mode=[2])):
                row, column = coords[0, i, j]
                inside = (row < rows) & (column < columns)
                cute.copy(atom, fragment[None, i, j], target[None, i, j], pred=inside)


class FusedResults(ScaledResults):
    """Accumulators combined with epilogue inputs, and row_sum of the last of these results.

    A thread loads inputs ahead of the subtiles that need them: those of a whole epilogue tile where there is room, since
    it waits for what it loads.
    """

    def __init__(
        self,
        epilogue: TmaGemmEpilogue,
        stores: list[TmaStore],
        acc: RegisterAccumulator,
        thread: Int32,
        consumer_idx: Int32,
        stages: list[cute.Tensor],
        tensors: EpilogueTensors,
        tile: GemmTile,
    ) -> None:
        super().__init__(epilogue, stores, acc, thread, consumer_idx, stages, tensors, tile)
        d = tensors.outs[0]
        inputs = tensors.inputs
        coords = cute.make_identity_tensor((d.shape[0], d.shape[1]))
        self.coords: cute.Tensor = acc.partition(cute.local_tile(coords, epilogue.tile_mn, (tile.m, tile.n)))
        if epilogue.ragged:
            inputs = [cute.domain_offset((tile.row_start, 0, 0), x) for x in inputs]
        if epilogue.transposed:
            inputs = [cute.select(x, mode=[1, 0, 2]) for x in inputs]
        self.inputs: list[cute.Tensor] = inputs
        self.rows: Int32 = d.shape[0]
        self.columns: Int32 = d.shape[1]
        self.last_row: Int32 = (tile.rows if epilogue.ragged else d.shape[0]) - 1
        bits = sum(x.element_type.width for x in inputs)
        self.ahead: int = epilogue.epi_tile_n // epilogue.step if bits <= _INPUT_BITS else 1
        """How many subtiles inputs are loaded for at a time."""
        self.loaded: list[cute.Tensor] = [
            cute.make_rmem_tensor((self.ahead * epilogue.step // 2,), x.element_type) for x in inputs
        ]
        self.row_sum: cute.Tensor = cute.make_rmem_tensor((2 * epilogue.atoms_m,), Float32)
        """A thread has two rows of 64."""

    def begin(self) -> None:
        self.row_sum.fill(0.0)
        self._load_inputs(0)

    @cute.jit
    def combine(self, number: Int32, values: cute.Tensor):
        tensors = self.tensors
        ahead = self.ahead
        inputs = [x.load() for x in self._subtile_inputs(number % ahead)]
        results = self.epilogue.combine(values.load(), tensors.alpha, tensors.beta, *inputs)
        if const_expr(ahead == 1) or number % ahead == ahead - 1:
            self._load_inputs(min(number // ahead + 1, self.acc.num_subtiles // ahead - 1))
        if const_expr(self.epilogue.reduces_rows):
            self._add_to_row_sum(results[-1], number)
        return results

    def end(self) -> None:
        if self.epilogue.reduces_rows:
            self._store_row_sum()

    @cute.jit
    def _subtile_inputs(self, number: Int32 | int):
        """Return the inputs of one of the subtiles that they are loaded for."""
        if const_expr(self.ahead == 1):
            return self.loaded
        fragments = [cute.make_rmem_tensor((self.epilogue.step // 2,), x.element_type) for x in self.loaded]
        for x, fragment in zip(self.loaded, fragments):
            source, target = (cute.recast_tensor(t, Int32) if x.element_type.width == 16 else t for t in (x, fragment))
            count = cute.size(target)
            for other in range_constexpr(self.ahead):
                if number == other:
                    for i in range_constexpr(count):
                        target[i] = source[other * count + i]
        return fragments

    @cute.jit
    def _load_inputs(self, number: Int32 | int):
        """Load the inputs of some subtiles, those of one epilogue tile or one; outside of the result those of its last
        row or column."""
        batch = self.tile.batch
        last_column = self.columns - 1
        acc = self.acc._replace(columns=self.ahead * self.epilogue.step)
        count = cute.size(self.loaded[0]) if self.loaded else 0
        for i in range_constexpr(0, count, 2):
            row, column = acc.coord(self.coords, number, i)
            row = min(row, self.last_row)
            for x, target, width in zip(self.inputs, self.loaded, self.epilogue.input_widths):
                if const_expr(width > 1):  # an even number of columns
                    offset = cute.crd2idx((row, min(column, last_column - 1), batch), x.layout)
                    source = cute.make_tensor(x.iterator + cute.assume(offset, divby=2), cute.make_layout(2))
                    cute.autovec_copy(source, cute.make_tensor(target.iterator + i, cute.make_layout(2)))
                else:
                    target[i] = x[row, min(column, last_column), batch]
                    target[i + 1] = x[row, min(column + 1, last_column), batch]

    @cute.jit
    def _add_to_row_sum(self, value: cute.TensorSSA, number: Int32):
        """Add the values that a thread has of a subtile, in both of its rows."""
        values = cute.make_rmem_tensor((self.epilogue.step // 2,), Float32)
        values.store(value)
        added = [Float32(0.0), Float32(0.0)]
        for i in range_constexpr(self.epilogue.step // 4):
            _, column = self.acc.coord(self.coords, number, 2 * i)
            for pair in range_constexpr(2):
                inside = column + pair < self.columns
                added[i % 2] = added[i % 2] + select_(inside, values[2 * i + pair], Float32(0.0))
        row_subtiles = self.acc.num_subtiles // self.epilogue.atoms_m
        for i in range_constexpr(2 * self.epilogue.atoms_m):  # not a branch, which would put them into local memory
            mine = select_(number // row_subtiles == i // 2, added[i % 2], Float32(0.0))
            self.row_sum[i] = self.row_sum[i] + mine

    @cute.jit
    def _store_row_sum(self):
        """Add what four lanes have of each row of a tile, and store it as the partial sum of the tile in N."""
        (partials,) = self.tensors.row_partials
        tile = self.tile
        row_subtiles = self.acc.num_subtiles // self.epilogue.atoms_m
        for i in range_constexpr(cute.size(self.row_sum)):
            total = self.row_sum[i]
            for step in (1, 2):
                total = total + arch.shuffle_sync_bfly(total, step)
            row, _ = self.acc.coord(self.coords, i // 2 * row_subtiles, 2 * (i % 2))
            if (self.thread % 4 == 0) & (row < self.rows) & (tile.n < partials.shape[0]):
                partials[tile.n, tile.batch, row] = total
