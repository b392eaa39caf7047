"""The config of kernels in which all threads copy and multiply."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...dispatch import arrays

if TYPE_CHECKING:
    from ...dispatch.devices import Device

SIMT_WARP = (8, 4)
"""The threads of a warp along M and N, without tensor cores."""
SIMT_VECTOR = 4
"""Neighbours in M, and in N, that one thread has, without tensor cores."""
MAX_PORTABLE_CLUSTER = 8
"""The largest cluster that every GPU with clusters runs."""
_SPLIT_K_UNIT = 16
"""K of split-K parts is a multiple of this, so that accesses of every type are whole."""


@dataclasses.dataclass(frozen=True)
class Sm80GemmConfig:
    """The tile of a CTA, its warps along M and N, the stages of its pipeline, and split-K.

    With `split_k` as many CTAs share a tile: each accumulates its part of K, and then adds up a part of the tile, in order. Up to
    `MAX_PORTABLE_CLUSTER` CTAs do so in a cluster, where the device has those; else a second kernel adds the partials.
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
                f"Sm80GemmConfig: {name} is {value!r}; it must be {count} positive integers",
            )
        for name in ("stages", "split_k"):
            value = getattr(self, name)
            arrays.require(isinstance(value, int), f"Sm80GemmConfig: {name} is {value!r}; it must be an integer")

    @property
    def threads(self) -> int:
        """The threads of a CTA."""
        return 32 * self.warp_layout_mn[0] * self.warp_layout_mn[1]

    def in_clusters(self, device: Device) -> bool:
        """Return whether the CTAs of a cluster add split-K partials."""
        return 1 < self.split_k <= min(MAX_PORTABLE_CLUSTER, device.cluster)

    def smem_bytes(self, bits: int) -> int:
        """Return the shared memory of a CTA on the tensor cores: all stages, or the accumulators of a tile after them."""
        m, n, k = self.tile_shape_mnk
        return max((m + n) * k * self.stages * bits // 8, m * n * 4)

    def simt_smem_bytes(self) -> int:
        """Return the same without tensor cores, where rows in shared memory are a vector longer."""
        m, n, k = self.tile_shape_mnk
        return max((m + n + 2 * SIMT_VECTOR) * k * self.stages * 4, m * n * 4)

    def check(self, bits: int, k_step: int, capacity: int) -> None:
        """Refuse a config that cannot work on the tensor cores for operands of some bits and instructions of some K."""
        m, n, k = self.tile_shape_mnk
        self._check_warps(16, 16)
        arrays.require(
            k % k_step == 0 and k >= 2 * k_step,
            f"{self}: K of a tile must be a multiple of the {k_step} of an instruction, and at least two of them",
        )
        for extent in (m, n, k):
            arrays.require(extent * bits % 128 == 0, f"{self}: extents of the tile must be whole vectors of 16 bytes")
        arrays.require(
            k & (k - 1) == 0 and self.threads & (self.threads - 1) == 0,
            f"{self}: K of the tile and the number of warps must be powers of two",
        )
        self._check_copies(((m, bits), (n, bits)), 128 // bits)
        self._check_device(self.smem_bytes(bits), capacity)

    def check_mixed_input(self, int4: bool, used: int, capacity: int) -> None:
        """Refuse a config that cannot work for an integer B of 8 or 4 bits, where a CTA uses some shared memory."""
        m, n, k = self.tile_shape_mnk
        self._check_warps(8, 16)
        arrays.require(
            self.warp_layout_mn[0] == 1 and k & (k - 1) == 0 and k >= 64 and self.threads & (self.threads - 1) == 0,
            f"{self}: warps must lie along N, as many as a power of two, and K of the tile must be one, from 64 on",
        )
        self._check_copies(((m, 16), (n, 4 if int4 else 8)))
        self._check_device(used, capacity)

    def check_simt(self, capacity: int) -> None:
        """Refuse a config that cannot work without tensor cores."""
        m, n, k = self.tile_shape_mnk
        self._check_warps(SIMT_WARP[0] * SIMT_VECTOR, SIMT_WARP[1] * SIMT_VECTOR)
        for extent in (m, n, k):
            arrays.require(
                extent & (extent - 1) == 0 and extent >= 2 * SIMT_VECTOR,
                f"{self}: extents of the tile must be powers of two, at least {2 * SIMT_VECTOR}",
            )
        registers = m * n // self.threads
        arrays.require(registers <= 128, f"{self}: a thread has {registers} accumulators; it may have 128")
        self._check_copies(((m, 32), (n, 32)), SIMT_VECTOR)
        self._check_device(self.simt_smem_bytes(), capacity)

    def check_split_k(self, k: int, batches: int) -> None:
        """Refuse a split-K that a second kernel cannot add."""
        arrays.require(self.split_k >= 1, f"{self}: split_k must be at least 1")
        if self.split_k == 1:
            return
        arrays.require(batches == 1, f"{self}: there is split-K, and a batch of {batches}")
        arrays.require(
            k % (self.split_k * _SPLIT_K_UNIT) == 0,
            f"{self}: K of {k} is not {self.split_k} parts that are multiples of {_SPLIT_K_UNIT}",
        )

    def _check_warps(self, rows: int, columns: int) -> None:
        m, n, _ = self.tile_shape_mnk
        rows, columns = rows * self.warp_layout_mn[0], columns * self.warp_layout_mn[1]
        arrays.require(
            m % rows == 0 and n % columns == 0,
            f"{self}: the warps cover {rows} x {columns} at once, which does not divide the tile",
        )

    def _check_copies(self, sides: tuple[tuple[int, int], tuple[int, int]], width: int = 0) -> None:
        """Refuse tiles of some rows and bits with fewer elements than all threads copy at once: `width` each, or 16 bytes."""
        k = self.tile_shape_mnk[2]
        for rows, bits in sides:
            arrays.require(
                rows * k >= self.threads * (width or 128 // bits),
                f"{self}: {self.threads} threads copy {width or 128 // bits} elements of {bits} bits each at once, more than "
                f"a tile of {rows} x {k}",
                hint="fewer warps, or a larger tile",
            )

    def _check_device(self, used: int, capacity: int) -> None:
        arrays.require(self.stages >= 2, f"{self}: there must be at least 2 stages")
        arrays.require(1 <= self.threads <= 1024, f"{self}: a CTA has at most 1024 threads")
        arrays.require(
            used <= capacity,
            f"{self} takes {used} bytes of shared memory, and a CTA has {capacity}",
            hint="fewer stages or a smaller tile",
        )


def k_step(dtype: Any) -> int:
    """Return the K of a tensor-core instruction: 32 bytes of it."""
    return 256 // dtype.width
