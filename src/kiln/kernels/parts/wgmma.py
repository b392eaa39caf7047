"""WGMMAs of a warpgroup over the K blocks of their operands."""

from __future__ import annotations

from ... import Float32, Int32, cute
from ...cute.nvgpu import warp, warpgroup
from ...utils import sm90

K_MAJOR = warpgroup.OperandMajorMode.K
MN_MAJOR = warpgroup.OperandMajorMode.MN
WARPGROUP_M = 64
"""Rows of a warpgroup's accumulator: M of a WGMMA."""


def make_wgmma(
    dtype: type[cute.Numeric],
    columns: int,
    a: warpgroup.OperandMajorMode = K_MAJOR,
    b: warpgroup.OperandMajorMode = K_MAJOR,
    a_in_regs: bool = False,
) -> cute.TiledMma:
    """Return the tiled MMA of one warpgroup, with f32 accumulators of 64 rows; `a` and `b` are major modes."""
    source = warpgroup.OperandSource.RMEM if a_in_regs else warpgroup.OperandSource.SMEM
    return sm90.make_trivial_tiled_mma(dtype, dtype, a, b, Float32, (1, 1, 1), (WARPGROUP_M, columns), source)


def issue_wgmma(
    mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, stage: Int32 | int, accumulate: bool = False
) -> None:
    """Issue acc = A B, or acc += A B, as one group; B (value, n, k, stage) has stages. The caller waits for it."""
    for k in range(cute.size(a, mode=[2])):
        mma.set(warpgroup.Field.ACCUMULATE, accumulate or k > 0)
        cute.gemm(mma, acc, a[None, None, k], b[None, None, k, stage], acc)
    warpgroup.commit_group()


def load_a_operand(mma: cute.TiledMma, thread: Int32 | int, tile: cute.Tensor, fragment: cute.Tensor) -> None:
    """Load a tile (row, element) of 16-bit elements from smem into the registers of an A operand."""
    atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), fragment.element_type)
    load = cute.make_tiled_copy_A(atom, mma)
    cute.copy(load, load.get_slice(thread).partition_S(tile), load.retile(fragment))
