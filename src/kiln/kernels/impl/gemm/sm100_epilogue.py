"""The epilogue of GEMM with tcgen05: accumulators from tensor memory through shared memory, stored by TMA.

A warpgroup loads some columns of an accumulator at a time, combines and converts them in registers, and writes them to
one of its stages. While one stage is stored the next is computed, and the last of a tile are stored while it waits for
the next tile. A thread has one row of the accumulator, or of transposed results parts of several.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import Float32, Int32, const_expr, cute, range_constexpr, select_, utils
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, cpasync
from ....hardware import limits
from ....utils import LayoutEnum, sm100
from ...parts.tma_store_epilogue import TileResults, TmaStore, TmaStoreEpilogue
from ...parts.tmem_accumulator import TmemAccumulator, TmemLoad
from .sm100_config import CTA_M

if TYPE_CHECKING:
    from collections.abc import Callable

    from .... import Boolean, pipeline
    from ....utils.schedulers import GemmTile
    from ...parts.warp_roles import WarpRoles
    from .sm80_epilogue import EpilogueTensors
    from .sm100_config import Sm100GemmConfig

_THREADS = limits.WARPGROUP
"""Threads that store an accumulator."""


class Sm100Epilogue:
    """Stores the values of combine(acc, alpha, beta, *inputs) of tiles, each to a result, an epilogue tile at a time.

    `input_widths`: how many neighbours in N of each epilogue input one access loads; None: accumulators are at most
    scaled. With swap-AB tiles lie across the results. `reduces_rows`: the last value is summed along rows of the tile.
    A `row_width` that is not 0: a tile has rows of a group, and those of the next lie behind them; epilogue tiles that
    are not whole are stored by threads, so many neighbours at a time.
    """

    __kiln_fixed__ = True

    def __init__(
        self,
        config: Sm100GemmConfig,
        acc_dtype: type[cute.Numeric],
        out_types: tuple[type[cute.Numeric], ...],
        combine: Callable[..., list[cute.TensorSSA]],
        input_widths: tuple[int, ...] | None,
        reduces_rows: bool = False,
        row_width: int = 0,
    ) -> None:
        self.config = config
        self.roles: WarpRoles = config.roles()
        self.tile: tuple[int, int] = (CTA_M, config.epi_tile_n)
        self.columns: int = config.tile_shape_mnk[1]
        self.acc_dtype = acc_dtype
        self.out_types = out_types
        self.out_width: int = 128 // max(kind.width for kind in out_types)
        self.combine = combine
        self.fused: bool = input_widths is not None
        self.input_widths: tuple[int, ...] = input_widths or ()
        self.reduces_rows = reduces_rows
        self.row_width = row_width
        self.ragged: bool = row_width > 0

    @property
    def order(self) -> LayoutEnum:
        """The order of results in tiles."""
        return LayoutEnum.COL_MAJOR if self.config.swap_ab else LayoutEnum.ROW_MAJOR

    def smem_layouts(self) -> list[cute.ComposedLayout]:
        """Return the layout of the stages of all warpgroups, for each result."""
        count = self.config.accumulators * self.config.epi_stages
        return [sm100.make_smem_layout_epi(kind, self.order, self.tile, count) for kind in self.out_types]

    def tma_stores(self, d: list[cute.Tensor]) -> tuple[list[cute.CopyAtom], list[cute.Tensor]]:
        """Return the atoms that store an epilogue tile, and TMA coordinates (M, N, L), of each result. Host only."""
        op = cpasync.CopyBulkTensorTileS2GOp()
        pairs = [
            cpasync.make_tiled_tma_atom(op, x, cute.slice_(layout, (None, None, 0)), self.tile)
            for x, layout in zip(d, self.smem_layouts())
        ]
        return [atom for atom, _ in pairs], [coords for _, coords in pairs]

    def allocate(self, smem: utils.SmemAllocator) -> list[cute.Tensor]:
        """Return the epilogue stages in shared memory, of each result."""
        return [
            smem.allocate_tensor(kind, layout.outer, 1024, layout.inner)
            for kind, layout in zip(self.out_types, self.smem_layouts())
        ]

    @cute.jit
    def write(
        self,
        acc: cute.Tensor,
        full: pipeline.PipelineConsumer.ImmutableResourceHandle,
        thread: Int32,
        number: int,
        buffers: list[cute.Tensor],
        tensors: EpilogueTensors,
        rows: Int32,
        tile: GemmTile,
    ):
        """Store accumulators (M, N) in tensor memory of this CTA: those of the rows `rows`, counted in 128 rows."""
        shape = (CTA_M, self.columns, self.config.tile_shape_mnk[2])
        atom = sm100.get_tmem_load_op(shape, self.order, self.out_types[0], self.acc_dtype, self.tile, self.config.pair)
        load = TmemLoad(atom, acc, self.tile[1], thread)
        stores = []
        for sD, store, whole in zip(buffers, tensors.tma_stores, tensors.tma_coords):
            coords = cute.domain_offset((*self.of_group(tile.row_start), 0), whole) if self.ragged else whole
            to_smem = sm100.get_smem_store_op(self.order, sD.element_type, self.acc_dtype, load.tiled_copy)
            r2s = cute.make_tiled_copy_D(to_smem, load.tiled_copy)
            gD = cute.local_tile(coords, self.tile, (None, None, tile.batch))
            stores.append(TmaStore.make(r2s, thread, sD, store, gD))
        is_leader = arch.make_warp_uniform(thread // 32) == 0
        epilogue = TmaStoreEpilogue(
            self.roles.barrier("epilogue", number),
            lambda: is_leader,
            Int32(number * self.config.epi_stages),
            self.config.epi_stages,
        )
        accumulator = TmemAccumulator(load, acc, full)
        results_of = FusedResults if self.fused else ScaledResults
        results = results_of(self, stores, accumulator, tensors, rows, tile, thread, buffers)
        epilogue.write(accumulator, results, unrolled=not self.fused and not self.ragged)

    def of_group(self, row: Int32) -> tuple[Int32 | int, Int32 | int]:
        """Return the coordinate of a row in the result as it lies in tiles."""
        return (0, row) if self.config.swap_ab else (row, 0)

    def finish(self) -> None:
        """Wait until no TMA store reads shared memory any more."""
        arch.cp_async_bulk_wait_group(0, read=True)


class ScaledResults(TileResults):
    """The accumulators that a warpgroup has of a tile, at most scaled."""

    def __init__(
        self,
        epilogue: Sm100Epilogue,
        stores: list[TmaStore],
        acc: TmemAccumulator,
        tensors: EpilogueTensors,
        rows: Int32,
        tile: GemmTile,
        thread: Int32,
        buffers: list[cute.Tensor],
    ) -> None:
        self.epilogue = epilogue
        self.stores = stores
        self.acc = acc
        self.tensors = tensors
        self.rows = rows
        self.tile = tile
        self.thread = thread
        self.buffers = buffers
        self.first_column: Int32 = tile.n * (epilogue.columns // epilogue.tile[1])

    def combine(self, number: Int32 | int, values: cute.Tensor) -> list[cute.TensorSSA]:
        return self.epilogue.combine(values.load(), self.tensors.alpha, self.tensors.beta)

    def coord(self, number: Int32 | int) -> tuple[Int32, Int32]:
        """Return the coordinate of an epilogue tile in the result, counted in epilogue tiles."""
        return self.rows, self.first_column + number

    def by_tma(self, number: Int32 | int) -> Boolean | bool:
        if not self.epilogue.ragged:
            return True
        mode = 1 if self.epilogue.config.swap_ab else 0
        return self._rows(self.coord(number)) >= self.epilogue.tile[mode]

    def _rows(self, coord: tuple[Int32, Int32]) -> Int32:
        """Return how many rows the group has from an epilogue tile on."""
        mode = 1 if self.epilogue.config.swap_ab else 0
        return self.tile.rows - coord[mode] * self.epilogue.tile[mode]

    @cute.jit
    def store_rows(self, coord: tuple[Int32, Int32], stage: Int32):
        """Store the rows of a group's last epilogue tile by threads, which meet before its stage is written again."""
        epilogue = self.epilogue
        swap_ab = epilogue.config.swap_ab
        width = epilogue.row_width
        (sD,) = self.buffers
        atom = cute.make_copy_atom(CopyUniversalOp(), sD.element_type, num_bits_per_copy=width * sD.element_type.width)
        across = epilogue.tile[0 if swap_ab else 1] // width
        threads = (across, _THREADS // across) if swap_ab else (_THREADS // across, across)
        order = cute.make_layout(threads, stride=(1, across) if swap_ab else (across, 1))
        values = cute.make_layout((width, 1) if swap_ab else (1, width))
        copy = cute.make_tiled_copy_tv(atom, order, values).get_slice(self.thread)
        d = cute.domain_offset(
            epilogue.of_group(self.tile.row_start), self.tensors.outs[0][None, None, self.tile.batch]
        )
        target = copy.partition_D(cute.local_tile(d, epilogue.tile, coord))
        source = copy.partition_S(sD[None, None, stage])
        coords = copy.partition_S(cute.make_identity_tensor(epilogue.tile))
        fragment = cute.make_fragment_like(source)
        cute.copy(copy, source, fragment)
        rows = self._rows(coord)
        mode = 0 if swap_ab else 1
        columns = d.shape[mode] - coord[mode] * epilogue.tile[mode]
        for i in range_constexpr(cute.size(source, mode=[1])):
            for j in range_constexpr(cute.size(source, mode=[2])):
                at = coords[0, i, j]
                inside = (at[1 - mode] < rows) & (at[mode] < columns)
                cute.copy(atom, fragment[None, i, j], target[None, i, j], pred=inside)


class FusedResults(ScaledResults):
    """Accumulators combined with epilogue inputs, and row_sum of the last of these results."""

    def __init__(
        self,
        epilogue: Sm100Epilogue,
        stores: list[TmaStore],
        acc: TmemAccumulator,
        tensors: EpilogueTensors,
        rows: Int32,
        tile: GemmTile,
        thread: Int32,
        buffers: list[cute.Tensor],
    ) -> None:
        super().__init__(epilogue, stores, acc, tensors, rows, tile, thread, buffers)
        m, n, _ = tensors.outs[0].shape
        tile_shape = (CTA_M, epilogue.columns)
        self.coords: cute.Tensor = acc.partition(
            cute.local_tile(cute.make_identity_tensor((m, n)), tile_shape, (rows, tile.n))
        )
        inputs = tensors.inputs
        if epilogue.ragged:  # inputs behind the group's last row are those of this row
            inputs = [cute.domain_offset((*epilogue.of_group(tile.row_start), 0), x) for x in inputs]
            m, n = (m, tile.rows) if epilogue.config.swap_ab else (tile.rows, n)
        self.inputs: list[cute.Tensor] = inputs
        self.m: Int32 = m
        self.n: Int32 = n
        self.row_sum: cute.Tensor = cute.make_rmem_tensor((1,), Float32)

    def begin(self) -> None:
        self.row_sum.fill(0.0)

    @cute.jit
    def combine(self, number: Int32 | int, values: cute.Tensor):
        tensors = self.tensors
        inputs = self.load_inputs(number, values.shape)
        results = self.epilogue.combine(values.load(), tensors.alpha, tensors.beta, *[x.load() for x in inputs])
        if const_expr(self.epilogue.reduces_rows):
            self.add_to_row_sum(results[-1], number)
        return results

    @cute.jit
    def load_inputs(self, number: Int32 | int, shape: cute.Shape):
        """Return the inputs of a subtile; those outside of the result are of its last row or column."""
        loaded = []
        count = cute.size(shape)
        for x, width in zip(self.inputs, self.epilogue.input_widths):
            fragment = cute.make_rmem_tensor(shape, x.element_type)
            # With swap-AB neighbours of a thread are in different rows of the result.
            elements = 1 if self.epilogue.config.swap_ab else min(width, count)
            for i in range_constexpr(0, count, elements):
                row, column = self.acc.coord(self.coords, number, i)
                at = (min(row, self.m - 1), min(column, self.n - elements), self.tile.batch)
                if const_expr(elements > 1):
                    offset = cute.assume(cute.crd2idx(at, x.layout), divby=elements)
                    source = cute.make_tensor(x.iterator + offset, cute.make_layout(elements))
                    target = cute.make_tensor(fragment.iterator + i, cute.make_layout(elements))
                    cute.autovec_copy(source, target)
                else:
                    fragment[i] = x[at]
            loaded.append(fragment)
        return loaded

    @cute.jit
    def add_to_row_sum(self, value: cute.TensorSSA, number: Int32 | int):
        """Add the values of this thread's row in a subtile."""
        values = cute.make_rmem_tensor((self.epilogue.tile[1],), Float32)
        values.store(value.reshape(values.shape))
        total = self.row_sum[0]
        for i in range_constexpr(self.epilogue.tile[1]):
            _, column = self.acc.coord(self.coords, number, i)
            total = total + select_(column < self.n, values[i], Float32(0.0))
        self.row_sum[0] = total

    def end(self) -> None:
        if self.epilogue.reduces_rows:
            self.store_row_sum()

    @cute.jit
    def store_row_sum(self):
        """Store what the tile in N adds to its row."""
        (partials,) = self.tensors.row_partials
        row, _ = self.acc.coord(self.coords, 0, 0)
        if (row < self.m) & (self.tile.n < partials.shape[0]):
            partials[self.tile.n, self.tile.batch, row] = self.row_sum[0]
