"""The configs of GEMM kernels for sm_100a and its kin: tiles of a CTA or a pair, clusters, stages, and the warps' roles."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....hardware import limits
from ...dispatch.config import Config, Rule
from ...parts.warp_roles import RoleBarrier, WarpgroupRole, WarpRoles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .... import cute
    from ...dispatch.devices import Device

CTA_M = limits.TMEM_LANES
"""The rows of an accumulator in the tensor memory of one CTA."""
EPI_N = 32
"""The columns of an epilogue tile, which one load from tensor memory has."""
_NARROW_EPI_N = 16
"""The same where N of a tile is no multiple of it."""
_SWIZZLE_BYTES = (128, 64, 32)
"""Bytes of a row in shared memory that TMA and tcgen05 have a swizzle for."""
_MAX_N = 256
_TMEM_COLUMNS = limits.TMEM_ALLOCATION[1]
_LANES_OF_WARP = 32
_SCALES_OF_CELL = 4
"""Scale factors of 8 bits in a cell of tensor memory, along K."""
_MAX_RASTER_GROUP = 1 << 10
"""The largest raster group whose tiles 32 bits count."""
_BARRIER_BYTES = 1024
"""Shared memory for barriers, the address of tensor memory, the answer of cluster launch control, and alignment."""


@dataclasses.dataclass(frozen=True)
class Sm100GemmConfig(Config):
    """The parameters of a warp-specialised persistent GEMM with tcgen05.

    `tile_shape_mnk`: the tile of a CTA, or with `pair` of two CTAs that multiply it together, with the K of a stage.
    Its accumulators have 128 rows of a CTA, or twice as many: then two warps issue MMAs, which share B. `acc_stages`:
    tiles whose accumulators tensor memory has room for, so that one is stored while the next is multiplied.

    `cluster_shape_mn`: CTAs of a cluster, both of a pair counted along M, which load operands for each other by
    multicast. `ab_stages`: stages of A and B. `epi_stages`: stages for epilogue tiles. `raster_group`: rows of clusters
    that are computed side by side, for reuse in the L2 cache. `dynamic`: clusters take tiles by cluster launch control,
    instead of in a fixed order.

    `swap_ab`: for few rows, D^T = B^T A^T, so that M of the tile is N of the result, and N of the tile its M. `split_k`:
    parts of K whose partials a second kernel adds.
    """

    __kiln_fixed__ = True

    tile_shape_mnk: tuple[int, int, int] = (256, 256, 64)
    cluster_shape_mn: tuple[int, int] = (2, 1)
    ab_stages: int = 6
    acc_stages: int = 2
    epi_stages: int = 2
    raster_group: int = 8
    pair: bool = True
    dynamic: bool = False
    swap_ab: bool = False
    split_k: int = 1

    @property
    def ctas(self) -> int:
        """The CTAs that multiply a tile together."""
        return 2 if self.pair else 1

    @property
    def mma_shape_mnk(self) -> tuple[int, int, int]:
        """The part of a tile with one accumulator."""
        return (CTA_M * self.ctas, *self.tile_shape_mnk[1:])

    @property
    def accumulators(self) -> int:
        """The accumulators of a tile, along M: each has a warp that issues its MMAs, and a warpgroup that stores it."""
        return self.tile_shape_mnk[0] // self.mma_shape_mnk[0]

    @property
    def cta_tile_mn(self) -> tuple[int, int]:
        """The part of a tile that a CTA stores."""
        return self.tile_shape_mnk[0] // self.ctas, self.tile_shape_mnk[1]

    @property
    def cluster_size(self) -> int:
        """The CTAs of a cluster."""
        return self.cluster_shape_mn[0] * self.cluster_shape_mn[1]

    @property
    def acc_columns(self) -> int:
        """The columns of tensor memory that are allocated: a power of two."""
        used = self.accumulators * self.acc_stages * self.tile_shape_mnk[1]
        return max(limits.TMEM_ALLOCATION[0], 1 << (used - 1).bit_length())

    def scale_columns(self, rows: int, vector: int) -> int:
        """Return the columns of tensor memory for the scale factors of a stage, of some rows of A or columns of B."""
        return -(-rows // CTA_M) * CTA_M // _LANES_OF_WARP * self.tile_shape_mnk[2] // vector // _SCALES_OF_CELL

    def scaled_columns(self, vector: int) -> int:
        """Return the columns that are allocated for accumulators and scale factors."""
        n = self.tile_shape_mnk[1]
        used = self.acc_stages * n + self.scale_columns(CTA_M, vector) + self.scale_columns(n, vector)
        return max(limits.TMEM_ALLOCATION[0], 1 << (used - 1).bit_length())

    @property
    def epi_tile_n(self) -> int:
        """The columns of an epilogue tile."""
        return EPI_N if self.tile_shape_mnk[1] % EPI_N == 0 else _NARROW_EPI_N

    def stage_bytes(self, bits: int, vector: int = 0) -> int:
        """Return the bytes of a stage of a CTA: its parts of A and B, and scale factors of vectors."""
        m, n, k = self.tile_shape_mnk
        scales = (CTA_M + -(-n // CTA_M) * CTA_M) * k // vector if vector else 0
        return (m + n) // self.ctas * k * bits // 8 + scales

    def smem_bytes(self, bits: int, *out_bits: int, vector: int = 0) -> int:
        """Return the shared memory of a CTA: stages of operands, epilogue tiles, barriers."""
        epilogue = self.accumulators * self.epi_stages * CTA_M * self.epi_tile_n * sum(out_bits) // 8
        return self.ab_stages * self.stage_bytes(bits, vector) + epilogue + _BARRIER_BYTES

    @property
    def tile_readers(self) -> int:
        """The warps of a cluster that read which tile is next: in each CTA one that loads, and those that store; in the
        leader of a pair those that issue MMAs; in the first the one that asks."""
        every = self.cluster_size * (1 + 4 * self.accumulators)
        return every + self.cluster_size // self.ctas * self.accumulators + 1

    def roles(self) -> WarpRoles:
        """Return the roles: warpgroups that store, each an accumulator; and a warpgroup whose warps load, issue MMAs,
        and ask for tiles. No registers are given away: there are enough for all."""
        count = self.accumulators
        registers = limits.registers_at_start(limits.WARPGROUP * (count + 1), 1)
        return WarpRoles(
            WarpgroupRole("epilogue", registers, count),
            WarpgroupRole("issue", registers, warps=("mma",) * count + ("load", "schedule")),
            barriers=(
                RoleBarrier("epilogue", {"epilogue": 4}, count),
                RoleBarrier("tensor memory", {"epilogue": 4 * count, "mma": count}),
                RoleBarrier("stored", {"epilogue": 4 * count}),
            ),
        )

    def rules(
        self, dtype: type[cute.Numeric], out_types: tuple[type[cute.Numeric], ...], device: Device, vector: int = 0
    ) -> Iterator[Rule]:
        """Yield the rules for operands and results of some element types, with scale factors of vectors or without."""
        m, n, k = self.tile_shape_mnk
        bits = dtype.width
        rows = self.mma_shape_mnk[0]
        who = "a pair" if self.pair else "a CTA"
        text = f"M of a tile is {m}; that of {who} must be {rows} or {2 * rows}"
        yield Rule(m in (rows, 2 * rows), text, f"tile_shape_mnk=({rows}, {n}, {k})")
        unit = _NARROW_EPI_N * self.ctas
        text = f"N of a tile is {n}; that of {who} must be a multiple of {unit}, at most {_MAX_N}"
        yield Rule(n % unit == 0 and n <= _MAX_N, text)
        spans = ", ".join(map(str, _SWIZZLE_BYTES))
        widths = ", ".join(str(x * 8 // bits) for x in _SWIZZLE_BYTES)
        yield Rule(k * bits // 8 in _SWIZZLE_BYTES, f"K of a stage must be {spans} bytes: {widths} of {dtype.__name__}")
        narrow = [kind.__name__ for kind in out_types if self.epi_tile_n * kind.width // 8 < _SWIZZLE_BYTES[-1]]
        text = f"rows of epilogue tiles must be {spans} bytes, and {self.epi_tile_n} of {', '.join(narrow)} are fewer"
        yield Rule(self.swap_ab or not narrow, text, "N of the tile a multiple of 32")
        yield Rule(self.ab_stages >= 2, "there must be at least 2 stages")
        yield Rule(self.epi_stages >= 2, "epi_stages must be at least 2: one is stored while another is written")
        used = self.accumulators * self.acc_stages * n
        if vector:
            whole = (
                self.accumulators == 1 and n % CTA_M == 0 and k % (vector * _SCALES_OF_CELL) == 0 and not self.swap_ab
            )
            text = (
                f"operands with scale factors have tiles of one accumulator, N 128 or 256, K in steps of {4 * vector}"
            )
            yield Rule(whole, text, "swap_ab=False")
            yield Rule(self.cluster_size == self.ctas, "their clusters are one CTA, or one pair", "cluster_shape_mn")
            used += self.scale_columns(CTA_M, vector) + self.scale_columns(n, vector)
        text = f"accumulators{' and scale factors' if vector else ''} take {used} columns of tensor memory; there are {_TMEM_COLUMNS}"
        yield Rule(used <= _TMEM_COLUMNS, text, "acc_stages=1")
        yield from self._cluster_rules()
        used = self.smem_bytes(bits, *(kind.width for kind in out_types), vector=vector)
        yield self.fits_smem(used, device.smem, "fewer stages or a smaller tile")

    def _cluster_rules(self) -> Iterator[Rule]:
        cluster_m = self.cluster_shape_mn[0]
        text = f"a pair is two CTAs of a cluster along M, and the cluster has {cluster_m}"
        yield Rule(cluster_m % self.ctas == 0, text, "cluster_shape_mn=(2, 1)")
        yield Rule(self.cluster_size <= 8, f"a cluster has {self.cluster_size} CTAs; it may have 8")
        whole = all(x & (x - 1) == 0 for x in self.cluster_shape_mn)
        yield Rule(whole, "CTAs of a cluster must be powers of two, of which each loads an equal part")
        text = f"raster_group is {self.raster_group}; it must be at most {_MAX_RASTER_GROUP}"
        yield Rule(self.raster_group <= _MAX_RASTER_GROUP, text)
        rows_b = self.tile_shape_mnk[1] // self.cluster_shape_mn[0]
        text = f"each CTA of a cluster loads {rows_b} rows of B for all; they must be a multiple of 8"
        yield Rule(rows_b % 8 == 0, text)
