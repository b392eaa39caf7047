"""The configs of GEMM kernels for sm_90a: tiles, clusters, pipeline stages, split-K and the roles of warpgroups."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

from ...dispatch.config import Config, Rule
from .problem import SCALE_BLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .... import cute
    from ...dispatch.devices import Device

WARPGROUP_THREADS = 128
MMA_WARPGROUPS = 2
"""The consumer warpgroups of a CTA, except for mixed inputs."""
ATOM_M = 64
"""The rows of WGMMA."""
MAX_ACC_REGISTERS = 192
"""The most accumulators of a thread."""
_SWIZZLE_BYTES = (128, 64, 32)
"""Bytes of a row in shared memory that TMA and WGMMA have a swizzle for."""
_SMALL_INTEGER_N = (8, 24)
"""The N of an integer WGMMA that are no multiples of 16."""
_MAX_BOX_ROWS = 256
"""The most rows of a TMA box."""
_MAX_RASTER_GROUP = 1 << 10
"""The largest raster group whose tiles 32 bits count."""
_TRANSPOSED_EPI_N = (32, 24, 16, 8)
"""Columns of an epilogue tile that is transposed."""
_MAX_FUSED_EPI_N = 32
"""The most columns of an epilogue tile with a fused epilogue, which takes registers."""
_BARRIER_BYTES = 512
"""Shared memory for barriers, and for alignment."""


@dataclasses.dataclass(frozen=True)
class Sm90GemmConfig(Config):
    """The parameters of a warp-specialised persistent GEMM on sm_90a.

    `tile_shape_mnk`: the tile of a CTA, with the K of a stage. `cluster_shape_mn`: CTAs of a cluster, which load
    operands for each other by multicast: those with the same rows A, those with the same columns B. `ab_stages`: stages
    of A and B. `raster_group`: rows of clusters that are computed side by side, for reuse in the L2 cache. `pingpong`:
    two consumer warpgroups take tiles in turn, and one multiplies while the other stores; without it they halve each
    tile in M (cooperative).

    `split_k_cluster`: CTAs of a cluster that split the K of a tile and add their accumulators in a fixed order.
    `split_k`: parts of K whose partials a second kernel adds; both may be used at once. `swap_ab`: for few rows, D^T =
    B^T A^T, so that M of the tile is N of the result, and N of the tile (from 8 on) its M. `epi_stages`: stages of a
    warpgroup for epilogue tiles in shared memory. `transpose_out`: results of swap-AB are transposed there, for TMA to
    store; without it threads write whole rows.
    """

    __kiln_fixed__ = True

    tile_shape_mnk: tuple[int, int, int] = (128, 256, 64)
    cluster_shape_mn: tuple[int, int] = (2, 1)
    ab_stages: int = 4
    raster_group: int = 8
    pingpong: bool = False
    split_k_cluster: int = 1
    swap_ab: bool = False
    split_k: int = 1
    epi_stages: int = 2
    transpose_out: bool = False

    @property
    def mma_warpgroups(self) -> int:
        """The consumer warpgroups of a CTA."""
        return MMA_WARPGROUPS

    @property
    def warpgroups_per_tile(self) -> int:
        """The warpgroups that multiply one tile."""
        return 1 if self.pingpong else self.mma_warpgroups

    @property
    def cluster_size(self) -> int:
        """The CTAs of a cluster."""
        return self.cluster_shape_mn[0] * self.cluster_shape_mn[1] * self.split_k_cluster

    @property
    def smem_epilogue(self) -> bool:
        """Whether accumulators go through shared memory as they are, instead of results for TMA."""
        return self.split_k_cluster > 1 or (self.swap_ab and not self.transpose_out)

    @property
    def smem_epilogue_bytes(self) -> int:
        """Bytes of such accumulators: of a tile, one tile for each warpgroup (pingpong), or those of other CTAs.

        With split-K a CTA has one tile, whose accumulators take the place of stages.
        """
        m, n, _ = self.tile_shape_mnk
        if self.split_k_cluster * self.split_k > 1:
            return m * n * 4 // self.split_k_cluster * (self.split_k_cluster - 1)
        return m * n * 4 * (self.mma_warpgroups if self.pingpong else 1)

    @property
    def written_over_b(self) -> bool:
        """Whether accumulators with split-K take the place of the stages of B, as the larger ones, instead of A's."""
        m, n, _ = self.tile_shape_mnk
        return self.split_k_cluster == 1 and n > m

    def epi_tile_n(self, *out_bits: int, fused: bool = False) -> int:
        """Return the columns of an epilogue tile, which a warpgroup stores at a time, of each result; 0: none fits.

        A number of epilogue tiles that the stages divide is better, since stages are used in turn from one tile to the
        next; rows shorter than 64 bytes are worst.
        """
        n = self.tile_shape_mnk[1]
        if self.transpose_out:
            fit = [columns for columns in _TRANSPOSED_EPI_N if n % columns == 0]
            return next((columns for columns in fit if n // columns % self.epi_stages == 0), fit[0] if fit else 0)
        spans = _SWIZZLE_BYTES if self.epi_stages == 2 else _SWIZZLE_BYTES[1:]
        sizes = [
            columns for span in spans if (columns := span * 8 // out_bits[0]) <= (_MAX_FUSED_EPI_N if fused else n)
        ]
        fit = [x for x in sizes if n % x == 0 and all(x * bits // 8 in _SWIZZLE_BYTES for bits in out_bits)]
        even = [x for x in fit if n // x % self.epi_stages == 0]
        wide = [x for x in (*even, *fit) if x * out_bits[0] // 8 >= _SWIZZLE_BYTES[1]]
        return next(iter(wide or even or fit), 0)

    def stage_bytes(self, bits: int, block_scaled: bool = False) -> int:
        """Return the bytes of a stage: tiles of A and B, and block scales."""
        m, n, k = self.tile_shape_mnk
        return (m + n) * k * bits // 8 + (4 * sum(self.scales_per_stage) if block_scaled else 0)

    @property
    def scales_per_stage(self) -> tuple[int, int]:
        """The block scales of a stage: of rows, and of columns that have one in common."""
        m, n, _ = self.tile_shape_mnk
        return m, n // math.gcd(n, SCALE_BLOCK)

    def smem_bytes(self, bits: int, *out_bits: int, block_scaled: bool = False) -> int:
        """Return the shared memory of a CTA: stages of operands, accumulators or epilogue tiles, barriers."""
        epilogue = self.smem_epilogue_bytes
        if not self.smem_epilogue:
            columns = self.epi_tile_n(*out_bits, fused=len(out_bits) > 1)
            epilogue = self.mma_warpgroups * self.epi_stages * ATOM_M * columns * sum(out_bits) // 8
        return self.ab_stages * self.stage_bytes(bits, block_scaled) + epilogue + _BARRIER_BYTES

    def acc_registers(self, promoted: bool) -> int:
        """Return the registers of a thread for accumulators."""
        m, n, _ = self.tile_shape_mnk
        return m * n // (self.warpgroups_per_tile * WARPGROUP_THREADS) * (2 if promoted else 1)

    def rules(
        self,
        dtype: type[cute.Numeric],
        out_types: tuple[type[cute.Numeric], ...],
        promoted: bool,
        device: Device,
        block_scaled: bool = False,
    ) -> Iterator[Rule]:
        """Yield the rules for operands and results of some element types."""
        _, n, k = self.tile_shape_mnk
        bits = dtype.width
        out_bits = [kind.width for kind in out_types]
        spans = ", ".join(map(str, _SWIZZLE_BYTES))
        out_names = ", ".join(kind.__name__ for kind in out_types)
        transposable = self.swap_ab and self.split_k_cluster == 1 and all(kind.width == 16 for kind in out_types)
        by_threads = self.smem_epilogue or self.transpose_out
        by_tma = n % 16 == 0 and n <= 256 and self.epi_tile_n(*out_bits, fused=len(out_bits) > 1) > 0
        text = f"N of a tile of integers must be a multiple of 16, or {' or '.join(map(str, _SMALL_INTEGER_N))}"
        yield Rule(not dtype.is_integer or n % 16 == 0 or n in _SMALL_INTEGER_N, text)
        text = "transpose_out is for results of 16 bits with swap_ab and without split_k_cluster"
        yield Rule(not self.transpose_out or transposable, text, "transpose_out=False")
        text = "N of a tile must be a multiple of 8, and at most 256"
        yield Rule(not by_threads or (n % 8 == 0 and n <= 256), text)
        text = f"N of a tile must be at most 256, and epilogue tiles with rows of {spans} bytes of {out_names}"
        yield Rule(by_threads or by_tma, text)
        widths = ", ".join(str(x * 8 // bits) for x in _SWIZZLE_BYTES)
        yield Rule(k * bits // 8 in _SWIZZLE_BYTES, f"K of a stage must be {spans} bytes: {widths} of {dtype.__name__}")
        yield Rule(self.ab_stages >= 2, "there must be at least 2 stages")
        yield Rule(self.epi_stages >= 2, "epi_stages must be at least 2: one is stored while another is written")
        yield from self._cluster_rules()
        registers = self.acc_registers(promoted)
        text = f"a thread has {registers} accumulators; it may have {MAX_ACC_REGISTERS}"
        hint = "a smaller tile" if self.warpgroups_per_tile == 2 else "a smaller tile, or pingpong=False"
        yield Rule(registers <= MAX_ACC_REGISTERS, text, hint)
        used = self.smem_bytes(bits, *out_bits, block_scaled=block_scaled)
        yield self.fits_smem(used, device.smem, "fewer stages or a smaller tile")

    def _cluster_rules(self) -> Iterator[Rule]:
        m, n, _ = self.tile_shape_mnk
        cluster_m, cluster_n = self.cluster_shape_mn
        split_k = self.split_k_cluster
        rows = ATOM_M * self.warpgroups_per_tile
        rows_a = m // cluster_n
        rows_b = n // cluster_m
        yield Rule(m % rows == 0, f"M of a tile must be a multiple of {rows}, the rows of its warpgroups")
        text = f"raster_group is {self.raster_group}; it must be at most {_MAX_RASTER_GROUP}"
        yield Rule(self.raster_group <= _MAX_RASTER_GROUP, text)
        yield Rule(self.cluster_size <= 8, f"a cluster has {self.cluster_size} CTAs; it may have 8")
        alone = split_k * self.split_k == 1 or (cluster_m, cluster_n) == (1, 1)
        yield Rule(alone, "with split-K the cluster is the CTAs of a tile", "cluster_shape_mn=(1, 1)")
        text = f"each of the {split_k} CTAs that share a tile writes as many of its {n} columns"
        yield Rule(split_k == 1 or n % (8 * split_k) == 0, f"{text}, which must be a multiple of 8")
        text = f"each CTA of a cluster loads {rows_a} rows of A and {rows_b} of B for all; they must be multiples of 8"
        yield Rule(m % (8 * cluster_n) == 0 and n % (8 * cluster_m) == 0, text)
        text = f"each CTA of a cluster loads {rows_a} rows of A, and a TMA box has at most {_MAX_BOX_ROWS}"
        yield Rule(rows_a <= _MAX_BOX_ROWS, text, "a smaller tile")

    def split_k_stages(self, row_bytes: int) -> int:
        """Return the least stages whose place accumulators can take with split-K, if threads write them."""
        m, n, _ = self.tile_shape_mnk
        if not self.smem_epilogue or self.split_k_cluster * self.split_k == 1:
            return 0
        rows = n if self.written_over_b else m
        return -(-(m * n * 4 // self.split_k_cluster) // (rows * row_bytes))

    def split_k_smem(self, row_bytes: int) -> Rule:
        """Return the rule that accumulators of split-K fit where stages were."""
        m, n, _ = self.tile_shape_mnk
        name, rows = ("B", n) if self.written_over_b else ("A", m)
        written = m * n * 4 // self.split_k_cluster
        stages = f"its stages of {name}, which have {self.ab_stages * rows * row_bytes}"
        text = f"accumulators that a CTA writes, {written} bytes, take the place of {stages}"
        fits = self.ab_stages >= self.split_k_stages(row_bytes)
        return Rule(fits, text, "more stages, or a larger split_k_cluster")


@dataclasses.dataclass(frozen=True)
class Sm90MixedInputConfig(Sm90GemmConfig):
    """The parameters of a GEMM with an 8- or 4-bit integer B on sm_90a: rows of the tile are columns of B (swap-AB),
    and each 64 of them have a warpgroup, 2 or 4 in all. K of a stage is 64 or 128."""

    swap_ab: bool = True

    @property
    def mma_warpgroups(self) -> int:
        return self.tile_shape_mnk[0] // ATOM_M
