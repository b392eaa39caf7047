"""The epilogue of sm_90a with TMA stores.

A warpgroup combines and converts its accumulators some columns at a time, in registers; each such epilogue tile of 64
rows goes through one of its stages in shared memory. While one is stored the next is computed, and the last of a tile
are stored while the next tile is multiplied.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Float16, Float32, const_expr, cute, utils
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, cpasync, warp, warpgroup
from ....utils import LayoutEnum, sm90
from ...parts.tma_store_epilogue import TmaStore, TmaStoreEpilogue
from .sm90_config import ATOM_M
from .sm90_roles import gemm_roles
from .sm90_tile_results import FusedResults, ScaledResults

if TYPE_CHECKING:
    from collections.abc import Callable

    from .... import Int32
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


class TmaGemmEpilogue:
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
        acc_dtype: type[cute.Numeric],
        out_types: tuple[type[cute.Numeric], ...],
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
        self.out_width: int = 128 // max(kind.width for kind in out_types)
        widths = input_widths or ()
        self.input_widths: tuple[int, ...] = (1,) * len(widths) if self.transposed else widths
        self.row_width = row_width
        self.reduces_rows = reduces_rows
        self.epi_tiles_n: int = self.tile_mn[1] // epi_tile_n
        self.atoms_m: int = self.tile_mn[0] // ATOM_M // self.warpgroups_per_tile
        """Epilogue tiles of a warpgroup along M."""

    def smem_layouts(self) -> list[cute.ComposedLayout]:
        """Return the layout of the stages of all warpgroups, for each result."""
        order = LayoutEnum.COL_MAJOR if self.transposed else LayoutEnum.ROW_MAJOR
        shape = (ATOM_M, self.epi_tile_n)
        count = self.warpgroups * self.stages
        return [sm90.make_smem_layout_epi(kind, order, shape, count) for kind in self.out_types]

    def tma_stores(self, d: Any) -> tuple[list[cute.CopyAtom], list[cute.Tensor]]:
        """Return the atoms that store an epilogue tile, and TMA coordinates (M, N, L), of each result. Host only."""
        op = cpasync.CopyBulkTensorTileS2GOp()
        tile = (ATOM_M, self.epi_tile_n)
        pairs = [
            cpasync.make_tiled_tma_atom(op, x, cute.slice_(layout, (None, None, 0)), tile)
            for x, layout in zip(d, self.smem_layouts())
        ]
        return [atom for atom, _ in pairs], [coords for _, coords in pairs]

    def allocate(self, smem: utils.SmemAllocator, stages: cute.Pointer) -> list[cute.Tensor]:
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
        buffers: list[cute.Tensor],
        tensors: EpilogueTensors,
        tile: GemmTile,
    ):
        """Store the accumulators that a thread of a warpgroup has of a tile."""
        coords = tensors.tma_coords
        if const_expr(self.ragged):
            coords = [cute.domain_offset((tile.row_start, 0, 0), x) for x in coords]
        gD = [cute.local_tile(x, (ATOM_M, self.epi_tile_n), (None, None, tile.batch)) for x in coords]
        stores = [
            TmaStore.make(self.smem_copy(sD.element_type), thread, sD, atom, tiles)
            for sD, atom, tiles in zip(buffers, tensors.tma_stores, gD)
        ]
        is_leader = arch.make_warp_uniform(thread // 32) == 0
        epilogue = TmaStoreEpilogue(
            self.roles.barrier("epilogue", consumer_idx),
            lambda: is_leader,
            consumer_idx * self.stages,
            self.stages,
            self.epi_tile_n // self.step,
        )
        acc = acc._replace(columns=self.step)
        results_of = FusedResults if self.fused else ScaledResults
        results = results_of(self, stores, acc, thread, consumer_idx, buffers, tensors, tile)
        epilogue.write(acc, results, unrolled=not self.fused)

    def finish(self) -> None:
        """Wait until no TMA store reads shared memory any more."""
        arch.cp_async_bulk_wait_group(0, read=True)

    def smem_copy(self, dtype: type[cute.Numeric]) -> cute.TiledCopy:
        """Return the copy by which a warpgroup writes some columns of accumulators to shared memory."""
        k = warpgroup.OperandMajorMode.K
        mma = sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (1, 1, 1), (ATOM_M, self.step))
        if dtype.width == 16:
            atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(self.transposed, 4 if self.step % 16 == 0 else 2), dtype)
        else:
            atom = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=2 * dtype.width)
        return cute.make_tiled_copy_C(atom, mma)
