"""The config of kernels in which all threads copy and multiply."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ...dispatch.config import Config, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .... import cute
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
class Sm80GemmConfig(Config):
    """The tile of a CTA, its warps along M and N, the stages of its pipeline, and split-K.

    With `split_k` as many CTAs share a tile: each accumulates its part of K, and then adds up a part of the tile, in
    order. Up to `MAX_PORTABLE_CLUSTER` CTAs do so in a cluster, where the device has those; else a second kernel adds
    the partials.
    """

    tile_shape_mnk: tuple[int, int, int] = (128, 128, 32)
    warp_layout_mn: tuple[int, int] = (2, 2)
    stages: int = 4
    split_k: int = 1

    @property
    def threads(self) -> int:
        """The threads of a CTA."""
        return 32 * self.warp_layout_mn[0] * self.warp_layout_mn[1]

    def in_clusters(self, device: Device) -> bool:
        """Return whether the CTAs of a cluster add split-K partials."""
        return 1 < self.split_k <= min(MAX_PORTABLE_CLUSTER, device.cluster)

    def rules(self, warp_shape_mn: tuple[int, int], bits: tuple[int, int], smem: int, device: Device) -> Iterator[Rule]:
        """Yield the rules for warps that multiply `warp_shape_mn` at a time, operands of some bits, and `smem` bytes of
        shared memory."""
        m, n, k = self.tile_shape_mnk
        rows, columns = (extent * warps for extent, warps in zip(warp_shape_mn, self.warp_layout_mn, strict=True))
        divides = m % rows == 0 and n % columns == 0
        yield Rule(divides, f"the warps cover {rows} x {columns} at once, which does not divide the tile")
        for extent, width in zip((m, n), bits, strict=True):
            elements = 128 // width
            copied = f"{self.threads} threads copy {elements} elements of {width} bits each at once"
            text = f"{copied}, more than a tile of {extent} x {k}"
            yield Rule(extent * k >= self.threads * elements, text, "fewer warps, or a larger tile")
        yield Rule(self.stages >= 2, "there must be at least 2 stages")
        yield Rule(1 <= self.threads <= 1024, "a CTA has at most 1024 threads")
        yield self.fits_smem(smem, device.smem, "fewer stages or a smaller tile")

    def split_k_rules(self, k: int, batches: int) -> Iterator[Rule]:
        """Yield the rules for a split-K that a second kernel adds."""
        whole = self.split_k == 1 or k % (self.split_k * _SPLIT_K_UNIT) == 0
        yield Rule(self.split_k == 1 or batches == 1, f"there is split-K, and a batch of {batches}")
        yield Rule(whole, f"K of {k} is not {self.split_k} parts that are multiples of {_SPLIT_K_UNIT}")


def is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def instruction_k(dtype: type[cute.Numeric]) -> int:
    """Return the K of a tensor-core instruction: 32 bytes of it."""
    return 256 // dtype.width
