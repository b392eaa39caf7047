"""How a matrix product is cut by the implementation for sm_90a: tiles, clusters, rings, who multiplies what."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays
from .problem import SCALE_BLOCK

if TYPE_CHECKING:
    from ...dispatch.devices import Device

WARPGROUP_THREADS = 128
"""Threads of a warp group."""
MMA_WARPGROUPS = 2
"""Warp groups of a block that multiply."""
ATOM_M = 64
"""Rows of the product of a warp group."""
_SPANS = (128, 64, 32)
"""Bytes of a row in shared memory that the copy engine and the tensor cores know a swizzle for."""
MAX_ACC_REGISTERS = 192
"""A thread has registers for."""
_FEW_OF_INTEGERS = (8, 24)
"""N of products of integers that is no multiple of 16."""
_MOST_LOADED = 256
"""Rows of an operand that the copy engine loads at a time."""
_MOST_ROWS = 1 << 10
"""Of clusters that are computed side by side: tiles of so many are counted in 32 bits."""
_TURNED = (32, 24, 16, 8)
"""Columns at a time that are turned around."""
_FOLLOWED = 32
"""Columns at a time where other arrays and functions follow the sums."""
_BARRIERS = 512
"""Bytes for the barriers of the ring, and for what aligns the buffers."""
_EXTENTS = ("tile_shape_mnk", 3), ("cluster_shape_mn", 2)
_COUNTS = "ab_stages", "raster_group", "split_k_cluster", "split_k", "epi_stages"
_FLAGS = "pingpong", "swap_ab", "transpose_out"
"""Fields by what they have to be."""


@dataclasses.dataclass(frozen=True)
class Sm90GemmConfig:
    """The tile of a block and the depth of a stage, blocks of a cluster in M and N, stages of the ring, the order of tiles.

    Two warp groups multiply. They halve a tile in M, or (`pingpong`) take whole tiles in turn: one multiplies while the other
    writes results. Blocks of a cluster share what they load: those with the same rows A, those with the same columns B.
    `raster_group` rows of clusters are computed side by side, to find each other's operands in the L2 cache.

    For few tiles K is cut into `split_k_cluster` parts, each for a block of a cluster, whose sums are added in a fixed order. For few rows
    operands are `swap_ab`: M of the tile is N of the result, N of the tile (from 8 on) its M. For few tiles and a long K it may be cut into
    `split_k` products besides, whose sums a second kernel adds. Results go through shared memory a piece at a time, of which a warp group has `epi_stages`.
    `transpose_out`: those of swapped operands do too, turned around on the way, for the copy engine to store; if not, all sums of a tile go through it.
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

    def __post_init__(self) -> None:
        own = type(self).__name__
        for name, count in _EXTENTS:
            value = getattr(self, name)
            if not (isinstance(value, tuple) and len(value) == count and all(type(v) is int and v > 0 for v in value)):
                raise arrays.refusal(f"{own} with {name}={value!r}: {count} positive integers")
        for name in _COUNTS:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise arrays.refusal(f"{own} with {name}={value!r}: a positive integer")
        for name in _FLAGS:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise arrays.refusal(f"{own} with {name}={value!r}: True or False")

    @property
    def mma_warpgroups(self) -> int:
        """Warp groups that multiply."""
        return MMA_WARPGROUPS

    @property
    def warpgroups_per_tile(self) -> int:
        """Warp groups that multiply one tile."""
        return 1 if self.pingpong else self.mma_warpgroups

    @property
    def cluster_size(self) -> int:
        """Of a cluster."""
        return self.cluster_shape_mn[0] * self.cluster_shape_mn[1] * self.split_k_cluster

    @property
    def smem_epilogue(self) -> bool:
        """Whether sums go through shared memory as they are, instead of results for the copy engine."""
        return self.split_k_cluster > 1 or (self.swap_ab and not self.transpose_out)

    @property
    def smem_epilogue_bytes(self) -> int:
        """Of such sums, beside the ring: of a tile, or of one for each warp group that has tiles of its own; or those that other blocks send."""
        m, n, _ = self.tile_shape_mnk
        if self.split_k_cluster > 1:
            return m * n * 4 // self.split_k_cluster * (self.split_k_cluster - 1)
        return m * n * 4 * (self.mma_warpgroups if self.pingpong else 1)

    def epi_tile_n(self, out_bits: int, followed: bool = False, more: tuple[int, ...] = ()) -> int:
        """Columns of the results that a warp group stores at a time; 0: none fits. Fewer where something follows the sums: it takes registers.

        An even number of pieces is better: buffers are used in turn, from one tile to the next. Shorter ones than 64 bytes are worst. Those of `more`
        results, of so many bits each, have as many columns.
        """
        if self.transpose_out:
            fit = [n for n in _TURNED if self.tile_shape_mnk[1] % n == 0]
            return next((n for n in fit if self.tile_shape_mnk[1] // n % self.epi_stages == 0), *fit[:1])
        spans = _SPANS if self.epi_stages == 2 else _SPANS[1:]
        sizes = [span * 8 // out_bits for span in spans if not followed or span * 8 // out_bits <= _FOLLOWED]
        fit = [n for n in sizes if self.tile_shape_mnk[1] % n == 0 and all(n * bits // 8 in _SPANS for bits in more)]
        even = [n for n in fit if self.tile_shape_mnk[1] // n % self.epi_stages == 0]
        wide = [n for n in (*even, *fit) if n * out_bits // 8 >= _SPANS[1]]
        return next(iter(wide or even or fit), 0)

    def stage_bytes(self, bits: int, blocks: bool = False) -> int:
        """Of a stage of the ring: tiles of A and B, and factors of `blocks`."""
        m, n, k = self.tile_shape_mnk
        return (m + n) * k * bits // 8 + (4 * sum(self.scales_per_stage) if blocks else 0)

    @property
    def scales_per_stage(self) -> tuple[int, int]:
        """Of blocks, that a stage has: of rows, and of columns that have one in common."""
        m, n, _ = self.tile_shape_mnk
        return m, n // math.gcd(n, SCALE_BLOCK)

    def smem_bytes(self, bits: int, out_bits: int, more: tuple[int, ...] = (), blocks: bool = False) -> int:
        """Shared memory of a block: the ring, sums or some pieces of each result for each warp group, factors of `blocks`, barriers."""
        piece = self.epi_tile_n(out_bits, bool(more), more)
        pieces = self.mma_warpgroups * self.epi_stages * ATOM_M * piece * (out_bits + sum(more)) // 8
        if self.smem_epilogue:
            pieces = self.smem_epilogue_bytes
        return self.ab_stages * self.stage_bytes(bits, blocks) + pieces + _BARRIERS

    def acc_registers(self, promoted: bool) -> int:
        """Registers of a thread for sums."""
        m, n, _ = self.tile_shape_mnk
        return m * n // (self.warpgroups_per_tile * WARPGROUP_THREADS) * (2 if promoted else 1)

    def check(
        self, dtype: Any, out_types: tuple[Any, ...], promoted: bool, device: Device, blocks: bool = False
    ) -> None:
        """Refuse what cannot work for elements of some types; `blocks` of them have factors."""
        (m, n, k), bits = self.tile_shape_mnk, dtype.width
        out_bits, *more = (kind.width for kind in out_types)
        rows = ATOM_M * self.warpgroups_per_tile
        arrays.require(m % rows == 0, f"{self}: M of a tile is a multiple of {rows}, the rows of its warp groups")
        arrays.require(
            not dtype.is_integer or n % 16 == 0 or n in _FEW_OF_INTEGERS,
            f"{self}: N of a tile of integers is a multiple of 16, or {' or '.join(map(str, _FEW_OF_INTEGERS))}",
        )
        arrays.require(
            self.raster_group <= _MOST_ROWS, f"{self}: at most {_MOST_ROWS} rows of clusters are computed side by side"
        )
        arrays.require(
            not self.transpose_out
            or (self.swap_ab and self.split_k_cluster == 1 and all(kind.width == 16 for kind in out_types)),
            f"{self}: results of swapped operands are turned around, of 16 bits, where no blocks share a tile",
            hint="transpose_out=False",
        )
        if self.smem_epilogue or self.transpose_out:
            arrays.require(n % 8 == 0 and n <= 256, f"{self}: N of a tile is a multiple of 8, and at most 256")
        else:
            arrays.require(
                n % 16 == 0 and n <= 256 and self.epi_tile_n(out_bits, bool(more), tuple(more)) > 0,
                f"{self}: N of a tile is at most 256, and pieces of {', '.join(map(str, _SPANS))} bytes of "
                f"{', '.join(kind.__name__ for kind in out_types)}",
            )
        arrays.require(
            k * bits // 8 in _SPANS,
            f"{self}: K of a stage is {', '.join(map(str, _SPANS))} bytes: {', '.join(str(s * 8 // bits) for s in _SPANS)} of "
            f"{dtype.__name__}",
        )
        arrays.require(self.ab_stages >= 2, f"{self}: a ring has at least 2 stages")
        arrays.require(self.epi_stages >= 2, f"{self}: a piece is stored while the next is made, in another buffer")
        arrays.require(self.cluster_size <= 8, f"{self}: a cluster has at most 8 blocks")
        arrays.require(
            self.split_k_cluster * self.split_k == 1 or self.cluster_shape_mn == (1, 1),
            f"{self}: blocks that share a tile are the cluster, and others with parts of K have none",
            hint="cluster_shape_mn=(1, 1)",
        )
        arrays.require(
            self.split_k_cluster == 1 or n % (8 * self.split_k_cluster) == 0,
            f"{self}: each of the {self.split_k_cluster} blocks that share a tile writes as many of its {n} columns, a multiple of 8",
        )
        across = (m // self.cluster_shape_mn[1], n // self.cluster_shape_mn[0])
        arrays.require(
            m % (8 * self.cluster_shape_mn[1]) == 0 and n % (8 * self.cluster_shape_mn[0]) == 0,
            f"{self}: each block of a cluster loads {across[0]} rows of A and {across[1]} of B for all: multiples of 8",
        )
        arrays.require(
            across[0] <= _MOST_LOADED,
            f"{self}: each block of a cluster loads {across[0]} rows of A, and the copy engine at most {_MOST_LOADED} at a time",
            hint="a smaller tile",
        )
        arrays.require(
            self.acc_registers(promoted) <= MAX_ACC_REGISTERS,
            f"{self}: a thread has {self.acc_registers(promoted)} sums, and registers for {MAX_ACC_REGISTERS}",
            hint="a smaller tile" if self.warpgroups_per_tile == 2 else "a smaller tile, or pingpong=False",
        )
        used = self.smem_bytes(bits, out_bits, tuple(more), blocks)
        arrays.require(
            used <= device.smem,
            f"{self} takes {used} bytes of shared memory, and a block has {device.smem}",
            hint="fewer stages or a smaller tile",
        )

    def check_split_k_smem(self, width: int) -> None:
        """Refuse parts of K whose sums have no room where A was: `width` bytes of each of its rows in each stage."""
        m, n, _ = self.tile_shape_mnk
        written, ring = m * n * 4 // self.split_k_cluster, self.ab_stages * m * width
        arrays.require(
            self.split_k_cluster == 1 or written <= ring,
            f"{self}: sums that a block writes, {written} bytes, take the place of its ring of A, which has {ring}",
            hint="more stages, or more parts",
        )


@dataclasses.dataclass(frozen=True)
class Sm90MixedInputConfig(Sm90GemmConfig):
    """How a product with weights of 8 or 4 bits is cut: they are rows of the tile, and each 64 of them have a warp group, 2 or 4 in all.

    K of a stage is 64 or 128.
    """

    swap_ab: bool = True

    @property
    def mma_warpgroups(self) -> int:
        return self.tile_shape_mnk[0] // ATOM_M
