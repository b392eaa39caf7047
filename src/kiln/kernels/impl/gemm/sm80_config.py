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

    With `split_k` as many CTAs share a tile: each accumulates its part of K, and then adds up a part of the tile, in
    order. Up to `MAX_PORTABLE_CLUSTER` CTAs do so in a cluster, where the device has those; else a second kernel adds
    the partials.
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
        """Return the shared memory of a CTA with tensor cores: all stages, or later the accumulators of a tile."""
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
        self._require(
            (k % k_step == 0 and k >= 2 * k_step,
             f"K of a tile must be a multiple of the {k_step} of an instruction, and at least two of them"),
            (all(extent * bits % 128 == 0 for extent in (m, n, k)),
             "extents of the tile must be whole vectors of 16 bytes"),
            (_is_power_of_two(k) and _is_power_of_two(self.threads),
             "K of the tile and the number of warps must be powers of two"),
        )  # fmt: skip
        self._check_copies(((m, bits), (n, bits)), 128 // bits)
        self._check_device(self.smem_bytes(bits), capacity)

    def check_mixed_input(self, int4: bool, used: int, capacity: int) -> None:
        """Refuse a config that cannot work for an integer B of 8 or 4 bits, where a CTA uses some shared memory."""
        m, n, k = self.tile_shape_mnk
        self._check_warps(8, 16)
        self._require(
            (self.warp_layout_mn[0] == 1 and _is_power_of_two(k) and k >= 64 and _is_power_of_two(self.threads),
             "warps must lie along N, as many as a power of two, and K of the tile must be one, from 64 on"),
        )  # fmt: skip
        self._check_copies(((m, 16), (n, 4 if int4 else 8)))
        self._check_device(used, capacity)

    def check_simt(self, capacity: int) -> None:
        """Refuse a config that cannot work without tensor cores."""
        m, n, k = self.tile_shape_mnk
        least, registers = 2 * SIMT_VECTOR, m * n // self.threads
        self._check_warps(SIMT_WARP[0] * SIMT_VECTOR, SIMT_WARP[1] * SIMT_VECTOR)
        self._require(
            (all(_is_power_of_two(extent) and extent >= least for extent in (m, n, k)),
             f"extents of the tile must be powers of two, at least {least}"),
            (registers <= 128, f"a thread has {registers} accumulators; it may have 128"),
        )  # fmt: skip
        self._check_copies(((m, 32), (n, 32)), SIMT_VECTOR)
        self._check_device(self.simt_smem_bytes(), capacity)

    def check_split_k(self, k: int, batches: int) -> None:
        """Refuse a split-K that a second kernel cannot add."""
        whole = self.split_k >= 1 and k % (self.split_k * _SPLIT_K_UNIT) == 0
        self._require(
            (self.split_k >= 1, "split_k must be at least 1"),
            (self.split_k == 1 or batches == 1, f"there is split-K, and a batch of {batches}"),
            (self.split_k == 1 or whole, f"K of {k} is not {self.split_k} parts that are multiples of {_SPLIT_K_UNIT}"),
        )

    def _check_warps(self, rows: int, columns: int) -> None:
        m, n, _ = self.tile_shape_mnk
        rows, columns = rows * self.warp_layout_mn[0], columns * self.warp_layout_mn[1]
        divides = m % rows == 0 and n % columns == 0
        self._require((divides, f"the warps cover {rows} x {columns} at once, which does not divide the tile"))

    def _check_copies(self, sides: tuple[tuple[int, int], tuple[int, int]], width: int = 0) -> None:
        """Refuse tiles with fewer elements than all threads copy at once: `width` each, or 16 bytes."""
        k = self.tile_shape_mnk[2]
        for rows, bits in sides:
            elements = width or 128 // bits
            copied = f"{self.threads} threads copy {elements} elements of {bits} bits each at once"
            rule = f"{copied}, more than a tile of {rows} x {k}"
            self._require((rows * k >= self.threads * elements, rule, "fewer warps, or a larger tile"))

    def _check_device(self, used: int, capacity: int) -> None:
        self._require(
            (self.stages >= 2, "there must be at least 2 stages"),
            (1 <= self.threads <= 1024, "a CTA has at most 1024 threads"),
            (used <= capacity, f"it takes {used} bytes of shared memory, and a CTA has {capacity}",
             "fewer stages or a smaller tile"),
        )  # fmt: skip

    def _require(self, *rules: tuple[Any, ...]) -> None:
        """Refuse the config by the first of some rules that does not hold: (whether it holds, the rule, a hint)."""
        for holds, rule, *hint in rules:
            arrays.require(holds, f"{self}: {rule}", *hint)


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def k_step(dtype: Any) -> int:
    """Return the K of a tensor-core instruction: 32 bytes of it."""
    return 256 // dtype.width
