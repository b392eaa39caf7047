"""The epilogue of sm_90a with TMA stores.

A warpgroup combines and converts its accumulators some columns at a time, in registers; each such epilogue tile of 64
rows goes through one of its stages in shared memory. While one is stored the next is computed, and the last of a tile
are stored while the next tile is multiplied.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float16, Float32, Int32, const_expr, cute, range_constexpr, select_
from .... import range as dynamic_range
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, cpasync, warp, warpgroup
from ....utils import LayoutEnum, sm90
from .sm90_config import ATOM_M, WARPGROUP_THREADS
from .sm90_roles import gemm_roles

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....utils.schedulers import GemmTile
    from ...parts.accumulator import RegisterAccumulator
    from ...parts.warp_roles import WarpRoles
    from .sm80_epilogue import EpilogueTensors
    from .sm90_config import Sm90GemmConfig

_MANY_ACCUMULATORS = 160
_STEP = 16
_LEAST_STEP = 8
"""With more accumulators than this a thread combines 16 columns at a time, or 8, where inputs are loaded one by one
since the tile is transposed, or threads store rows: registers for inputs and results are few."""
_INPUT_BITS = 16
"""With at most these bits of inputs for an element, those of a whole epilogue tile are loaded at once."""


class _Store(NamedTuple):
    """How a result is stored: its type, the copy to shared memory, and the TMA store from there."""

    dtype: Any
    copy: Any
    slots: Any
    atom: Any
    source: Any
    target: Any


class _TileStores(NamedTuple):
    """The stores of a tile's results by a warpgroup, and what they need to know."""

    stores: Any
    consumer_idx: Any
    tile: Any
    tensors: Any
    thread: Any
    buffers: Any
    is_leader: Any


class TmaStoreEpilogue:
    """Stores the values of combine(acc, alpha, beta, *inputs) of tiles, each to a result, an epilogue tile at a time.

    `input_widths`: how many neighbours in N of each epilogue input one access loads; None: accumulators are at most
    scaled. A `row_width` that is not 0: a tile has rows of a group, and those of the next lie behind them; epilogue
    tiles that are not whole are stored by threads, so many neighbours at a time. With `transpose_out` tiles lie across
    the results. `reduces_rows`: the last value is summed along rows of the tile.
    """

    __kiln_fixed__ = True

    def __init__(
        self,
        config: Sm90GemmConfig,
        epi_tile_n: int,
        acc_dtype: Any,
        out_types: tuple[Any, ...],
        combine: Callable[..., Any],
        input_widths: tuple[int, ...] | None,
        row_width: int = 0,
        reduces_rows: bool = False,
    ) -> None:
        self.tile_mn: tuple[int, int] = config.tile_shape_mnk[:2]
        self.warpgroups_per_tile: int = config.warpgroups_per_tile
        self.warpgroups: int = config.mma_warpgroups
        self.roles: WarpRoles = gemm_roles(config)
        self.stages: int = config.epi_stages
        self.epi_tile_n = epi_tile_n
        self.fused: bool = input_widths is not None
        self.transposed: bool = config.transpose_out
        self.ragged: bool = row_width > 0
        least = _LEAST_STEP if self.transposed or self.ragged else _STEP
        scarce = self.fused and config.acc_registers(False) > _MANY_ACCUMULATORS
        self.step: int = math.gcd(epi_tile_n, least) if scarce else epi_tile_n
        self.acc_dtype = acc_dtype
        self.out_types = out_types
        self.combine = combine
        self.out_width: Any = 128 // max(kind.width for kind in out_types)
        self.input_widths: tuple[int, ...] | tuple[int, ...] | tuple[()] = (
            (1,) * len(input_widths or ()) if self.transposed else input_widths or ()
        )
        self.row_width = row_width
        self.reduces_rows = reduces_rows
        self.epi_tiles_n: int = self.tile_mn[1] // epi_tile_n
        self.atoms_m: int = self.tile_mn[0] // ATOM_M // self.warpgroups_per_tile
        """Epilogue tiles of a warpgroup along M."""

    def smem_layouts(self) -> list[Any]:
        """Return the layout of the stages of all warpgroups, for each result."""
        order = LayoutEnum.COL_MAJOR if self.transposed else LayoutEnum.ROW_MAJOR
        shape = (ATOM_M, self.epi_tile_n)
        count = self.warpgroups * self.stages
        return [sm90.make_smem_layout_epi(kind, order, shape, count) for kind in self.out_types]

    def tma_stores(self, d: Any) -> tuple[list[Any], list[Any]]:
        """Return the atoms that store an epilogue tile, and TMA coordinates (M, N, L), of each result. Host only."""
        op = cpasync.CopyBulkTensorTileS2GOp()
        tile = (ATOM_M, self.epi_tile_n)
        pairs = [
            cpasync.make_tiled_tma_atom(op, x, cute.slice_(layout, (None, None, 0)), tile)
            for x, layout in zip(d, self.smem_layouts())
        ]
        return [atom for atom, _ in pairs], [coords for _, coords in pairs]

    def allocate(self, smem: Any, stages: Any) -> Any:
        """Return the epilogue stages in shared memory, of each result."""
        return [
            smem.allocate_tensor(kind, layout.outer, 1024, layout.inner)
            for kind, layout in zip(self.out_types, self.smem_layouts())
        ]

    @cute.jit
    def write(
        self,
        acc: RegisterAccumulator,
        thread: Int32,
        consumer_idx: Int32,
        buffers: Any,
        tensors: EpilogueTensors,
        tile: GemmTile,
    ):
        """Store the accumulators that a thread of a warpgroup has of a tile."""
        coords = tensors.tma_coords
        if const_expr(self.ragged):
            coords = [cute.domain_offset((tile.row_start, 0, 0), x) for x in coords]
        ways = zip(tensors.tma_stores, coords, buffers, self.out_types)
        stores = [self.make_store(*way, thread, tile.batch) for way in ways]
        is_leader = arch.make_warp_uniform(thread // 32) == 0
        stored = _TileStores(stores, consumer_idx, tile, tensors, thread, buffers, is_leader)
        first_row = tile.m * (self.tile_mn[0] // ATOM_M) + (consumer_idx if self.warpgroups_per_tile > 1 else 0)
        first = first_row, tile.n * self.epi_tiles_n
        if const_expr(self.atoms_m * self.epi_tiles_n % self.stages > 0):
            # the stage of the last epilogue tile of the tile before is that of the first of this one
            if is_leader:
                arch.cp_async_bulk_wait_group(0, read=True)
            self.roles.barrier("epilogue", consumer_idx).arrive_and_wait()
        if const_expr(not self.fused):
            self.write_scaled(acc.fragment, first, stored)
        else:
            self.write_fused(acc, first, stored)

    @cute.jit
    def write_scaled(self, acc: cute.Tensor, first: Any, stored: _TileStores):
        """Store accumulators that are at most scaled."""
        tensors = stored.tensors
        count = self.step // 2
        for number in range_constexpr(self.atoms_m * self.epi_tiles_n):
            values = cute.make_rmem_tensor((count,), self.acc_dtype)
            for i in range_constexpr(count):
                values[i] = acc[number * count + i]
            coord = self.epi_coord(first, number)
            self.convert(self.combine(values.load(), tensors.alpha, tensors.beta), stored, 0, number % self.stages)
            self.store(coord, number % self.stages, stored)

    @cute.jit
    def write_fused(self, acc: RegisterAccumulator, first: Any, stored: _TileStores):
        """Combine accumulators with epilogue inputs and store the results, in a loop, since its code is long."""
        tensors = stored.tensors
        tile = stored.tile
        thread = stored.thread
        d = tensors.outs[0]
        inputs = tensors.inputs
        steps = self.epi_tile_n // self.step
        count = self.step // 2
        fragment = acc.fragment
        coords = cute.local_tile(cute.make_identity_tensor((d.shape[0], d.shape[1])), self.tile_mn, (tile.m, tile.n))
        coords = acc.partition(coords)  # ((2, 2, columns / 8), rows / 64, 1); of 8 columns ((2, 2), ...)
        if const_expr(self.ragged):
            inputs = [cute.domain_offset((tile.row_start, 0, 0), x) for x in inputs]
        if const_expr(self.transposed):
            inputs = [cute.select(x, mode=[1, 0, 2]) for x in inputs]
        last = (tile.rows if const_expr(self.ragged) else d.shape[0]) - 1, d.shape[1] - 1
        loaded, steps_loaded = self.input_registers(inputs)
        row_sum = cute.make_rmem_tensor((2 * self.atoms_m,), Float32)
        row_sum.fill(0.0)
        total = self.atoms_m * self.epi_tiles_n * steps
        row_steps = self.epi_tiles_n * steps
        self.load_inputs(loaded, inputs, last, tile.batch, coords, 0, row_steps // steps_loaded)
        for number in dynamic_range(total, unroll=1):
            values = cute.make_rmem_tensor((count,), self.acc_dtype)
            for other in range_constexpr(total):  # registers have no numbers that a loop could count
                if number == other:
                    for i in range_constexpr(count):
                        values[i] = fragment[other * count + i]
            step_inputs = [x.load() for x in self.step_inputs(loaded, number % steps_loaded, steps_loaded)]
            results = self.combine(values.load(), tensors.alpha, tensors.beta, *step_inputs)
            if const_expr(steps_loaded == 1) or number % steps_loaded == steps_loaded - 1:
                following = min(number // steps_loaded + 1, total // steps_loaded - 1)
                self.load_inputs(loaded, inputs, last, tile.batch, coords, following, row_steps // steps_loaded)
            if const_expr(self.reduces_rows):
                added = self.thread_row_sum(results[-1], coords, number, row_steps, d.shape[1])
                for i in range_constexpr(2 * self.atoms_m):  # not a branch, which would put them into local memory
                    mine = select_(number // row_steps == i // 2, added[i % 2], Float32(0.0))
                    row_sum[i] = row_sum[i] + mine
            epi_tile = number // steps
            self.convert(results, stored, number % steps, epi_tile % self.stages)
            if const_expr(steps == 1) or number % steps == steps - 1:
                self.store(self.epi_coord(first, epi_tile), epi_tile % self.stages, stored)
        if const_expr(self.reduces_rows):
            self.store_row_sum(row_sum, tensors.row_partials[0], coords, d.shape[0], thread, tile)

    def epi_coord(self, first: Any, number: Any) -> tuple[Any, Any]:
        """Return the coordinate of a warpgroup's epilogue tile in the result, counted in epilogue tiles."""
        row, column = first
        return row + number // self.epi_tiles_n * self.warpgroups_per_tile, column + number % self.epi_tiles_n

    def make_store(self, atom: Any, coords: Any, stages: Any, dtype: Any, thread: Any, batch: Any) -> _Store:
        """Return how a result is stored."""
        copy = self.smem_copy(dtype)
        epi_tiles = cute.local_tile(coords, (ATOM_M, self.epi_tile_n), (None, None, batch))  # (rows, columns, M, N)
        source, target = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(stages, 0, 2), cute.group_modes(epi_tiles, 0, 2)
        )
        return _Store(dtype, copy, copy.get_slice(thread).partition_D(stages), atom, source, target)

    def thread_row_sum(self, value: Any, coords: Any, number: Any, row_steps: int, columns: Any) -> list[Any]:
        """Add the values that a thread has in some columns, for both of its rows of an 8 x 8 block pair."""
        values = cute.make_rmem_tensor((self.step // 2,), Float32)
        values.store(value)
        pair_sum = [Float32(0.0), Float32(0.0)]
        eights = self.step // 8
        for i in range(self.step // 4):
            _, column = coords[((0, i % 2, number % row_steps * eights + i // 2), 0, 0)]
            for pair in range(2):
                pair_sum[i % 2] = pair_sum[i % 2] + select_(column + pair < columns, values[2 * i + pair], Float32(0.0))
        return pair_sum

    @cute.jit
    def store_row_sum(self, row_sum: Any, partials: Any, coords: Any, rows: Any, thread: Any, tile: Any):
        """Add what four lanes have of each row of a tile, and store it as the partial sum of the tile in N."""
        for i in range_constexpr(cute.size(row_sum)):
            total = row_sum[i]
            for step in (1, 2):
                total = total + arch.shuffle_sync_bfly(total, step)
            row, _ = coords[((0, i % 2, 0), i // 2, 0)]
            if (thread % 4 == 0) & (row < rows) & (tile.n < partials.shape[0]):
                partials[tile.n, tile.batch, row] = total

    @cute.jit
    def convert(self, values: Any, stored: _TileStores, step: Any, stage: Any):
        """Write some columns of an epilogue tile of each result to a stage."""
        slot = stored.consumer_idx * self.stages + stage
        for value, store in zip(values, stored.stores):
            result = cute.make_rmem_tensor(((2, 2, self.step // 8), 1, 1), store.dtype)
            result.store(value.to(store.dtype).reshape(result.shape))
            cute.copy(store.copy, store.copy.retile(result)[None, None, 0], store.slots[None, None, step, slot])

    @cute.jit
    def store(self, coord: Any, stage: Any, stored: _TileStores):
        """Store the epilogue tile of each result that is in a stage."""
        consumer_idx = stored.consumer_idx
        is_leader = stored.is_leader
        slot = consumer_idx * self.stages + stage
        arch.fence_proxy("async.shared", space="cta")
        if is_leader:  # the stage that is written next has been read
            arch.cp_async_bulk_wait_group(self.stages - 2, read=True)
        self.roles.barrier("epilogue", consumer_idx).arrive_and_wait()
        rows = Int32(ATOM_M)
        if const_expr(self.ragged):
            rows = stored.tile.rows - coord[0] * ATOM_M
            if rows < ATOM_M:
                self.store_rows(rows, coord, slot, stored)
        if is_leader:
            if const_expr(not self.ragged) or rows >= ATOM_M:
                for store in stored.stores:
                    cute.copy(store.atom, store.source[None, slot], store.target[None, coord[0], coord[1]])
            arch.cp_async_bulk_commit_group()  # of nothing, too: waits count groups, one for each epilogue tile

    @cute.jit
    def store_rows(self, rows: Int32, coord: Any, slot: Int32, stored: _TileStores):
        """Store some rows of an epilogue tile by threads, which meet before its stage is written again."""
        (d,) = stored.tensors.outs
        (stages,) = stored.buffers
        width = self.row_width
        dtype = self.out_types[0]
        tile = (ATOM_M, self.epi_tile_n)
        atom = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=width * dtype.width)
        lanes = self.epi_tile_n // width
        order = cute.make_layout((WARPGROUP_THREADS // lanes, lanes), stride=(lanes, 1))
        copy = cute.make_tiled_copy_tv(atom, order, cute.make_layout((1, width))).get_slice(stored.thread)
        d = cute.domain_offset((stored.tile.row_start, 0), d[None, None, stored.tile.batch])
        target = copy.partition_D(cute.local_tile(d, tile, coord))
        source = copy.partition_S(stages[None, None, slot])
        coords = copy.partition_S(cute.make_identity_tensor(tile))
        fragment = cute.make_fragment_like(source)
        cute.copy(copy, source, fragment)
        columns = d.shape[1] - coord[1] * self.epi_tile_n
        for i in range_constexpr(cute.size(source, mode=[1])):
            for j in range_constexpr(cute.size(source, mode=[2])):
                row, column = coords[0, i, j]
                inside = (row < rows) & (column < columns)
                cute.copy(atom, fragment[None, i, j], target[None, i, j], pred=inside)

    def input_registers(self, inputs: Any) -> tuple[list[Any], int]:
        """Return registers for the epilogue inputs of some steps, and how many: those of an epilogue tile where there
        is room, since a thread waits for what it loads."""
        steps = self.epi_tile_n // self.step if sum(x.element_type.width for x in inputs) <= _INPUT_BITS else 1
        return [cute.make_rmem_tensor((steps * self.step // 2,), x.element_type) for x in inputs], steps

    @cute.jit
    def step_inputs(self, loaded: Any, step: Any, steps: int):
        """Return the inputs of one of the loaded steps."""
        if const_expr(steps == 1):
            return loaded
        fragments = [cute.make_rmem_tensor((self.step // 2,), x.element_type) for x in loaded]
        for x, fragment in zip(loaded, fragments):
            source, target = (cute.recast_tensor(t, Int32) if x.element_type.width == 16 else t for t in (x, fragment))
            count = cute.size(target)
            for other in range_constexpr(steps):
                if step == other:
                    for i in range_constexpr(count):
                        target[i] = source[other * count + i]
        return fragments

    @cute.jit
    def load_inputs(self, loaded: Any, inputs: Any, last: Any, batch: Any, coords: Any, number: Any, row_steps: Any):
        """Load the epilogue inputs of some columns; outside of the result those of its last row or column."""
        last_row, last_column = last
        eights = cute.size(loaded[0]) // 4 if loaded else 0
        for i in range_constexpr(2 * eights):
            at = (0, i % 2) if self.tile_mn[1] == 8 else (0, i % 2, number % row_steps * eights + i // 2)
            row, column = coords[at, number // row_steps, 0]
            row = min(row, last_row)
            for x, target, width in zip(inputs, loaded, self.input_widths):
                if const_expr(width > 1):  # an even number of columns
                    offset = cute.crd2idx((row, min(column, last_column - 1), batch), x.layout)
                    source = cute.make_tensor(x.iterator + cute.assume(offset, divby=2), cute.make_layout(2))
                    cute.autovec_copy(source, cute.make_tensor(target.iterator + 2 * i, cute.make_layout(2)))
                else:
                    target[2 * i] = x[row, min(column, last_column), batch]
                    target[2 * i + 1] = x[row, min(column + 1, last_column), batch]

    def finish(self) -> None:
        """Wait until no TMA store reads shared memory any more."""
        arch.cp_async_bulk_wait_group(0, read=True)

    def smem_copy(self, dtype: Any) -> Any:
        """Return the copy by which a warpgroup writes some columns of accumulators to shared memory."""
        k = warpgroup.OperandMajorMode.K
        mma = sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (1, 1, 1), (ATOM_M, self.step))
        if dtype.width == 16:
            atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(self.transposed, 4 if self.step % 16 == 0 else 2), dtype)
        else:
            atom = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=2 * dtype.width)
        return cute.make_tiled_copy_C(atom, mma)
