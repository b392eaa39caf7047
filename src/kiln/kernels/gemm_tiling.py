"""How a matrix product is cut into tiles, and which cut suits a problem."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from ..base_dsl.typing import Float32
from . import arrays

SIMT_WARP = (8, 4)
"""How the threads of a warp lie over M and N where each thread multiplies by itself."""
SIMT_VECTOR = 4
"""Neighbours in M, and in N, that belong to one thread there."""


@dataclasses.dataclass(frozen=True)
class Tiling:
    """How a product is cut: the tile of a block, its warps over M and N, the buffers of the ring, and the parts of K.

    With `splits` parts, as many blocks share a tile: each adds up its part of K, and a second kernel adds the parts in order.
    """

    block_mnk: tuple[int, int, int] = (128, 128, 32)
    warps_mn: tuple[int, int] = (2, 2)
    stages: int = 4
    splits: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_mn[0] * self.warps_mn[1]

    def smem_bytes(self, bits: int, out_bits: int) -> int:
        """Shared memory of a block on the tensor cores: the ring, or the tile of D after it."""
        m, n, k = self.block_mnk
        return max((m + n) * k * self.stages * bits // 8, m * n * (32 if self.splits > 1 else out_bits) // 8)

    def simt_smem_bytes(self) -> int:
        """Shared memory of a block without tensor cores: the ring, each of its rows a vector longer."""
        m, n, k = self.block_mnk
        ring = (m + n + 2 * SIMT_VECTOR) * k * self.stages * 4
        return max(ring, m * n * 4) if self.splits > 1 else ring

    def check(self, bits: int, k_step: int, out_bits: int, capacity: int) -> None:
        """Refuse what cannot work on the tensor cores for operands of so many bits with instructions of so much K."""
        m, n, k = self.block_mnk
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
        self._check_device(self.smem_bytes(bits, out_bits), capacity)

    def check_simt(self, capacity: int) -> None:
        """Refuse what cannot work without tensor cores."""
        m, n, k = self.block_mnk
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
        arrays.require(isinstance(self.splits, int) and self.splits >= 1, f"{self}: K is cut into at least one part")
        if self.splits == 1:
            return
        arrays.require(batches == 1, f"{self}: K is cut into parts, and there are {batches} products in the batch")
        arrays.require(
            k % (self.splits * _PART) == 0,
            f"{self}: the {k} of K are no {self.splits} parts that are multiples of {_PART}",
        )

    def _check_warps(self, rows: int, columns: int) -> None:
        for name, value in (("block_mnk", self.block_mnk), ("warps_mn", self.warps_mn)):
            arrays.require(
                len(value) == (3 if name == "block_mnk" else 2) and all(isinstance(v, int) and v > 0 for v in value),
                f"{self}: {name} are positive integers",
            )
        m, n, _ = self.block_mnk
        rows, columns = rows * self.warps_mn[0], columns * self.warps_mn[1]
        arrays.require(
            m % rows == 0 and n % columns == 0,
            f"{self}: the warps cover {rows} x {columns} at once, which does not divide the tile",
        )

    def _check_copies(self, bits: int, width: int) -> None:
        m, n, k = self.block_mnk
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


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A tiling to choose from: K in steps of an instruction, and how many TFLOP/s a multiprocessor of an H200 does with it.

    The second figure is for two blocks at a time, where they fit.
    """

    block_mn: tuple[int, int]
    steps: int
    warps_mn: tuple[int, int]
    stages: int
    speed: tuple[float, float]

    def tiling(self, step: int) -> Tiling:
        """The tiling for instructions of so much K."""
        return Tiling((*self.block_mn, self.steps * step), self.warps_mn, self.stages)


TENSOR_CORE = (
    Candidate((128, 256), 4, (2, 4), 3, (3.75, 3.75)),
    Candidate((128, 128), 4, (2, 4), 3, (3.4, 3.2)),
    Candidate((64, 128), 4, (2, 4), 4, (2.5, 2.6)),
    Candidate((64, 64), 4, (2, 2), 5, (2.1, 2.4)),
    Candidate((32, 64), 4, (2, 2), 6, (1.3, 1.6)),
    Candidate((16, 64), 8, (1, 4), 5, (1.1, 1.1)),
)
"""Tilings for tensor cores."""
TENSOR_CORE_8 = (
    Candidate((128, 128), 4, (2, 4), 3, (2.4, 2.4)),
    Candidate((64, 64), 2, (2, 2), 4, (1.2, 1.4)),
)
"""The same for elements of 8 bits that are taken apart in registers: floats, and those whose K is not contiguous."""
TENSOR_CORE_32 = (
    Candidate((128, 128), 4, (2, 2), 3, (1.6, 1.7)),
    Candidate((64, 64), 4, (2, 2), 4, (1.0, 1.2)),
)
"""The same for elements of 32 bits, which are rounded in registers."""
SIMT = (
    Candidate((128, 128), 16, (2, 4), 3, (0.37, 0.37)),
    Candidate((64, 64), 16, (2, 2), 4, (0.18, 0.22)),
    Candidate((32, 32), 16, (1, 2), 4, (0.07, 0.1)),
)
"""Tilings without tensor cores."""


def _candidates(dtype: Any, simt: bool, k_major: bool) -> tuple[Candidate, ...]:
    if simt:
        return SIMT
    if dtype.width == 8 and dtype.is_integer and k_major:
        return TENSOR_CORE
    return {8: TENSOR_CORE_8, 32: TENSOR_CORE_32}.get(dtype.width, TENSOR_CORE)


_PROCESSORS = 132
"""Multiprocessors of a large GPU."""
_MEMORY = 4.0
"""TB/s of its memory."""
_SECOND_KERNEL = 2.0
"""Microseconds that a second kernel takes besides what it reads and writes."""
_LEAST_PART = 512
"""A shorter part of K costs more to add than it saves."""


@functools.lru_cache(maxsize=1024)
def chosen(
    dtype: Any,
    simt: bool,
    k_major: bool,
    out_bits: int,
    shape: tuple[int, int, int],
    k: int,
    capacity: int,
    may_split: bool = True,
) -> Tiling:
    """The tiling that is expected to take least time on a large GPU, of those that fit in shared memory.

    `k_major` says whether K is contiguous in both operands, `may_split` whether K may be cut into parts.
    """
    batches, m, n = shape
    step = 1 if simt else k_step(dtype)
    moved = batches * ((m + n) * k * dtype.width + m * n * out_bits) / 8 / _MEMORY / 1e6
    best, least = Tiling(), float("inf")
    for candidate in _candidates(dtype, simt, k_major):
        tiling = candidate.tiling(step)
        used = tiling.simt_smem_bytes() if simt else tiling.smem_bytes(dtype.width, out_bits)
        if used > capacity:
            continue
        tile_m, tile_n = candidate.block_mn
        tiles = batches * -(-m // tile_m) * -(-n // tile_n)
        together = 2 if 2 * used <= capacity and tiles > _PROCESSORS else 1
        for splits in (1, 2, 4, 8, 16):
            part = k // splits
            if splits > 1 and not _may_cut(tiling, tiles, k, splits, may_split and batches == 1):
                break
            blocks = together * -(-tiles * splits // (_PROCESSORS * together))  # of one multiprocessor
            took = max(moved, blocks * 2 * tile_m * tile_n * part / candidate.speed[together - 1] / 1e6)
            if splits > 1:
                took += _SECOND_KERNEL + 2 * splits * m * n * 4 / _MEMORY / 1e6
            if took < least:
                best, least = dataclasses.replace(tiling, splits=splits), took
    return best


def _may_cut(tiling: Tiling, tiles: int, k: int, splits: int, allowed: bool) -> bool:
    part, rest = divmod(k, splits)
    whole = rest == 0 and part % tiling.block_mnk[2] == 0 and part >= _LEAST_PART
    return allowed and whole and tiles * splits <= 2 * _PROCESSORS


def uses_simt(dtype: Any, precision: str) -> bool:
    """Whether each thread multiplies by itself: f32, unless fewer bits will do."""
    return dtype is Float32 and precision == "ieee"
