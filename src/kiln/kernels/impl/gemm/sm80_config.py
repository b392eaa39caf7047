"""How a matrix product is cut into tiles, by implementations whose threads copy and multiply in turn."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays

if TYPE_CHECKING:
    from ...dispatch.devices import Device

SIMT_WARP = (8, 4)
"""How the threads of a warp lie over M and N where each thread multiplies by itself."""
SIMT_VECTOR = 4
"""Neighbours in M, and in N, that belong to one thread there."""


MAX_PORTABLE_CLUSTER = 8
"""Blocks of a cluster that every GPU with clusters has room for."""


@dataclasses.dataclass(frozen=True)
class Sm80GemmConfig:
    """How a product is cut: the tile of a block, its warps over M and N, the buffers of the ring, and the parts of K.

    With `split_k` parts, as many blocks share a tile: each adds up its part of K, and then a part of the tile, in order. Up to
    `MAX_PORTABLE_CLUSTER` blocks do so in a cluster, where the device has those; else a second kernel adds the parts.
    """

    tile_shape_mnk: tuple[int, int, int] = (128, 128, 32)
    warp_layout_mn: tuple[int, int] = (2, 2)
    stages: int = 4
    split_k: int = 1

    def __post_init__(self) -> None:
        for name, count in (("tile_shape_mnk", 3), ("warp_layout_mn", 2)):
            value = getattr(self, name)
            arrays.require(
                isinstance(value, tuple) and len(value) == count and all(isinstance(v, int) and v > 0 for v in value),
                f"Sm80GemmConfig with {name}={value!r}: {count} positive integers",
            )
        for name in ("stages", "split_k"):
            value = getattr(self, name)
            arrays.require(isinstance(value, int), f"Sm80GemmConfig with {name}={value!r}: an integer")

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warp_layout_mn[0] * self.warp_layout_mn[1]

    def in_clusters(self, device: Device) -> bool:
        """Whether the blocks that share a tile add their sums themselves."""
        return 1 < self.split_k <= min(MAX_PORTABLE_CLUSTER, device.cluster)

    def smem_bytes(self, bits: int) -> int:
        """Shared memory of a block on the tensor cores: the ring, or the sums of a tile after it."""
        m, n, k = self.tile_shape_mnk
        return max((m + n) * k * self.stages * bits // 8, m * n * 4)

    def simt_smem_bytes(self) -> int:
        """Shared memory of a block without tensor cores: the ring, each of its rows a vector longer, or the sums of a tile."""
        m, n, k = self.tile_shape_mnk
        return max((m + n + 2 * SIMT_VECTOR) * k * self.stages * 4, m * n * 4)

    def check(self, bits: int, k_step: int, capacity: int) -> None:
        """Refuse what cannot work on the tensor cores for operands of so many bits with instructions of so much K."""
        m, n, k = self.tile_shape_mnk
        self._check_warps(16, 16)
        arrays.require(
            k % k_step == 0 and k >= 2 * k_step,
            f"{self}: K of a tile is a multiple of the {k_step} of an instruction, and at least two of them",
        )
        for extent in (m, n, k):
            arrays.require(extent * bits % 128 == 0, f"{self}: extents of the tile are whole rows of 16 bytes")
        arrays.require(
            k & (k - 1) == 0 and self.threads & (self.threads - 1) == 0,
            f"{self}: K of the tile and the number of warps are powers of two",
        )
        self._check_copies(bits, 128 // bits)
        self._check_device(self.smem_bytes(bits), capacity)

    def check_weights(self, packed: bool, used: int, capacity: int) -> None:
        """Refuse what cannot work on the tensor cores for weights of 8 or, packed, 4 bits, where a block takes so much shared memory."""
        m, n, k = self.tile_shape_mnk
        self._check_warps(8, 16)
        arrays.require(
            self.warp_layout_mn[0] == 1 and k & (k - 1) == 0 and k >= 64 and self.threads & (self.threads - 1) == 0,
            f"{self}: warps lie along N, as many as a power of two, and K of the tile is another, from 64 on",
        )
        for rows, bits in ((m, 16), (n, 4 if packed else 8)):
            arrays.require(
                rows * k * bits >= self.threads * 128,
                f"{self}: {self.threads} threads copy 16 bytes each at once, more than a tile of {rows} x {k} of {bits} bits",
                hint="fewer warps, or a larger tile",
            )
        self._check_device(used, capacity)

    def check_simt(self, capacity: int) -> None:
        """Refuse what cannot work without tensor cores."""
        m, n, k = self.tile_shape_mnk
        self._check_warps(SIMT_WARP[0] * SIMT_VECTOR, SIMT_WARP[1] * SIMT_VECTOR)
        for extent in (m, n, k):
            arrays.require(
                extent & (extent - 1) == 0 and extent >= 2 * SIMT_VECTOR,
                f"{self}: extents of the tile are powers of two, at least {2 * SIMT_VECTOR}",
            )
        each = m * n // self.threads
        arrays.require(each <= 128, f"{self}: a thread has {each} sums, and room for 128")
        self._check_copies(32, SIMT_VECTOR)
        self._check_device(self.simt_smem_bytes(), capacity)

    def check_splits(self, k: int, batches: int) -> None:
        """Refuse a number of parts that does not suit K."""
        arrays.require(self.split_k >= 1, f"{self}: K is cut into at least one part")
        if self.split_k == 1:
            return
        arrays.require(batches == 1, f"{self}: K is cut into parts, and there are {batches} products in the batch")
        arrays.require(
            k % (self.split_k * _PART) == 0,
            f"{self}: the {k} of K are no {self.split_k} parts that are multiples of {_PART}",
        )

    def _check_warps(self, rows: int, columns: int) -> None:
        m, n, _ = self.tile_shape_mnk
        rows, columns = rows * self.warp_layout_mn[0], columns * self.warp_layout_mn[1]
        arrays.require(
            m % rows == 0 and n % columns == 0,
            f"{self}: the warps cover {rows} x {columns} at once, which does not divide the tile",
        )

    def _check_copies(self, bits: int, width: int) -> None:
        m, n, k = self.tile_shape_mnk
        for rows in (m, n):
            arrays.require(
                rows * k >= self.threads * width,
                f"{self}: {self.threads} threads copy {width} elements of {bits} bits each at once, more than a tile of {rows} x {k}",
                hint="fewer warps, or a larger tile",
            )

    def _check_device(self, used: int, capacity: int) -> None:
        arrays.require(self.stages >= 2, f"{self}: a ring has at least 2 buffers")
        arrays.require(1 <= self.threads <= 1024, f"{self}: a block has at most 1024 threads")
        arrays.require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory, and a block has {capacity}",
            hint="fewer stages or a smaller tile",
        )


_PART = 16
"""Parts of K are multiples of that: whole accesses of every type."""


def k_step(dtype: Any) -> int:
    """K of a tensor-core instruction: 32 bytes of it."""
    return 256 // dtype.width
