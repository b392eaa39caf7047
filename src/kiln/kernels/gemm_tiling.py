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
    """How a product is cut: the tile of a block, its warps over M and N, and the buffers of the ring."""

    block_mnk: tuple[int, int, int] = (128, 128, 32)
    warps_mn: tuple[int, int] = (2, 2)
    stages: int = 4

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_mn[0] * self.warps_mn[1]

    def smem_bytes(self, bits: int, out_bits: int) -> int:
        """Shared memory of a block on the tensor cores: the ring, or the tile of D after it."""
        m, n, k = self.block_mnk
        return max((m + n) * k * self.stages * bits // 8, m * n * out_bits // 8)

    def simt_smem_bytes(self) -> int:
        """Shared memory of a block without tensor cores: the ring, each of its rows a vector longer."""
        m, n, k = self.block_mnk
        return (m + n + 2 * SIMT_VECTOR) * k * self.stages * 4

    def check(self, bits: int, k_step: int, out_bits: int, capacity: int) -> None:
        """Refuse what cannot work on the tensor cores for operands of so many bits with instructions of so much K."""
        m, n, k = self.block_mnk
        self._check_warps(16, 16)
        arrays.require(
            k % k_step == 0 and k >= 2 * k_step,
            f"{self}: K of a tile is a multiple of the {k_step} of an instruction, and at least two of them",
        )
        for extent in (m, n, k):
            arrays.require(
                extent * bits % 128 == 0 and extent & (extent - 1) == 0,
                f"{self}: extents of the tile are powers of two and whole rows of 16 bytes",
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


def k_step(dtype: Any) -> int:
    """K of a tensor-core instruction: 32 bytes of it."""
    return 256 // dtype.width


TENSOR_CORE = (
    ((128, 256, 4), (2, 4), 3),
    ((128, 128, 2), (2, 2), 4),
    ((64, 64, 2), (2, 2), 4),
)
"""Tilings for tensor cores, the best for large problems first; K in steps of an instruction."""
TENSOR_CORE_8 = (
    ((128, 128, 4), (2, 4), 3),
    ((128, 128, 2), (2, 4), 4),
    ((64, 64, 2), (2, 2), 4),
)
"""The same for elements of 8 bits that are taken apart in registers: floats, and those whose K is not contiguous."""
TENSOR_CORE_32 = (
    ((128, 128, 4), (2, 2), 3),
    ((128, 128, 2), (2, 2), 4),
    ((64, 64, 2), (2, 2), 4),
)
"""The same for elements of 32 bits, which are rounded in registers."""
SIMT = (
    ((128, 128, 16), (2, 4), 3),
    ((64, 64, 16), (2, 2), 4),
    ((32, 32, 16), (1, 2), 4),
)
"""Tilings without tensor cores."""
_BLOCKS_ENOUGH = 96
"""Fewer tiles than that leave much of a large GPU idle."""


def _candidates(dtype: Any, simt: bool, k_major: bool) -> Any:
    if simt:
        return SIMT
    if dtype.width == 8 and dtype.is_integer and k_major:
        return TENSOR_CORE
    return {8: TENSOR_CORE_8, 32: TENSOR_CORE_32}.get(dtype.width, TENSOR_CORE)


@functools.lru_cache(maxsize=1024)
def chosen(dtype: Any, simt: bool, k_major: bool, out_bits: int, shape: tuple[int, int, int], capacity: int) -> Tiling:
    """The tiling of the largest tiles that fit in shared memory and leave enough of them for a GPU to be busy.

    `k_major` says whether K is contiguous in both operands.
    """
    batches, m, n = shape
    step = 1 if simt else k_step(dtype)
    tiling = Tiling()
    for (tile_m, tile_n, steps), warps, stages in _candidates(dtype, simt, k_major):
        tiling = Tiling((tile_m, tile_n, steps * step), warps, stages)
        blocks = batches * -(-m // tile_m) * -(-n // tile_n)
        used = tiling.simt_smem_bytes() if simt else tiling.smem_bytes(dtype.width, out_bits)
        if used <= capacity and blocks >= _BLOCKS_ENOUGH:
            break
    return tiling


def uses_simt(dtype: Any, precision: str) -> bool:
    """Whether each thread multiplies by itself: f32, unless fewer bits will do."""
    return dtype is Float32 and precision == "ieee"
