"""Tiled MMAs of `mma.sync`, accumulators of a tile, and where they lie in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ... import cute
from ...base_dsl.diagnostics import type_error
from ...base_dsl.ranges import range_constexpr
from ...base_dsl.typing import BFloat16, Float16, Float32
from ...cute import arch
from ...cute.nvgpu import warp

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...base_dsl.typing import Int32, Numeric

__all__ = ["accumulator_coords", "accumulators", "store_tile", "warp_mma"]

_BLOCK = 16
"""Rows of A, and columns of B, that a warp takes at a time: what one `ldmatrix` loads."""


def warp_mma(dtype: type[Numeric], warps: tuple[int, int] = (2, 2)) -> cute.TiledMma:
    """Return the tiled MMA of f16 or bf16 with f32 accumulators that every GPU since sm_80 has.

    Args:
        dtype: the type of A and B.
        warps: the warps along M and N; each multiplies 16 x 16 at a time.
    """
    if dtype not in (Float16, BFloat16):
        raise type_error(f"warp_mma of {dtype.__name__}", "Float16 or BFloat16; others are ops of cute.nvgpu.warp")
    op = warp.MmaF16BF16Op(dtype, Float32, (16, 8, 16))
    return cute.make_tiled_mma(op, (*warps, 1), (_BLOCK * warps[0], _BLOCK * warps[1], 16))


def accumulators(mma: cute.TiledMma, shape: tuple[int, int]) -> cute.Tensor:
    """Return this thread's accumulators of a tile (M, N), which are zero: ((2, 2), M blocks, N blocks) in registers.

    Args:
        mma: the tiled MMA.
        shape: M and N of the tile.
    """
    acc = cute.make_rmem_tensor(mma.partition_shape_C(shape), Float32)
    acc.fill(0.0)
    return acc


def accumulator_coords(mma: cute.TiledMma, shape: tuple[int, int]) -> cute.Tensor[tuple[Int32, Int32]]:
    """Return the (row, column) in the tile of each of this thread's accumulators, as a tensor of coordinates.

    Args:
        mma: the tiled MMA.
        shape: M and N of the tile.
    """
    coords = mma.get_slice(arch.thread_idx()[0]).partition_C(cute.make_identity_tensor(shape))
    return cast("cute.Tensor[tuple[Int32, Int32]]", coords)


@cute.jit
def store_tile(
    mma: cute.TiledMma,
    acc: cute.Tensor,
    out: cute.Tensor,
    shape: tuple[int, int],
    place: tuple[Int32 | int, Int32 | int],
    epilogue: Callable[[Float32], Float32] | None = None,
):
    """Store accumulators to a tile of a matrix, each element by itself, and leave out what is outside of it.

    Args:
        mma: the tiled MMA.
        acc: this thread's accumulators.
        out: the matrix (M, N).
        shape: M and N of the tile.
        place: the coordinates of the tile in the matrix.
        epilogue: a function of an accumulator that gives what is stored; None stores it as it is.
    """
    coords = accumulator_coords(mma, shape)
    for i in range_constexpr(cute.size(acc)):
        row = place[0] * shape[0] + coords[i][0]
        column = place[1] * shape[1] + coords[i][1]
        if (row < out.shape[0]) & (column < out.shape[1]):
            value = acc[i] if epilogue is None else epilogue(acc[i])
            out[row, column] = value.to(out.element_type)
