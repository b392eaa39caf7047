"""A tile of queries: how the threads of a block share it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float16, Float32, Int32, cute
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp, cpasync, warp
from .sm80_config import padded

if TYPE_CHECKING:
    from .sm80_config import Sm80AttentionConfig

VALUES = 8
"""Elements of 16 bits that are copied at once."""


class Tile:
    """Queries of some element type and head dimensions, cut like this.

    The rows of a tile are queries, of each `share` heads which share their keys in succession. Elements of 8 bits (`narrow`) are multiplied
    as f16, and copied in pairs, as if each were one of 16: `dim`, `dim_v` and their paddings count what is copied, `outputs` and
    `columns` elements of values, with their padding.
    """

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Sm80AttentionConfig, share: int = 1, out_dtype: Any = None
    ) -> None:
        self.stored, self.narrow = dtype, dtype.width == 8
        self.dtype = Float16 if self.narrow else dtype
        self.out_dtype = out_dtype or self.dtype
        pack = 16 // dtype.width
        self.dim, self.dim_v = (dim // pack for dim in head_dims)
        self.padded, self.padded_v = padded(self.dim), padded(self.dim_v)
        self.outputs, self.columns, self.columns_q = head_dims[1], pack * self.padded_v, pack * self.padded
        self.config = config
        self.share = share

    def pieces(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Which sums of a row a thread has: columns in succession, where they begin beside the thread's first, as (element, tile of 8)."""
        if not self.narrow:
            return [(8 * n, [(0, n), (1, n)]) for n in range(self.columns // 8)]
        # of pairs of columns the first are in one tile, the second in the next
        return [(16 * j, [(c, 2 * j + e) for c in range(2) for e in range(2)]) for j in range(self.columns // 16)]

    def mma(self) -> Any:
        """The tiled MMA: warps over the queries, 16 columns at a time, so that four matrices of B are loaded at once."""
        warps = self.config.warps
        op = warp.MmaF16BF16Op(self.dtype, Float32, (16, 8, 16))
        return cute.make_tiled_mma(op, (warps, 1, 1), (16 * warps, 16, 16))

    def row_copy(self, padded: int, asynchronous: bool, dtype: Any = None) -> Any:
        """How the threads copy rows between global and shared memory."""
        op: Any = CopyUniversalOp()
        if asynchronous:
            op = cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL)
        atom = cute.make_copy_atom(op, dtype or self.dtype, num_bits_per_copy=VALUES * self.dtype.width)
        lanes = (64 if padded % 64 == 0 else 32) // VALUES
        threads = cute.make_layout((self.config.threads // lanes, lanes), stride=(lanes, 1))
        return cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, VALUES)))


def piece(rows: Any, row: Any, column: Any) -> Any:
    """What is copied at once of a row."""
    start = cute.domain_offset((row, column), rows).iterator
    return cute.make_tensor(start.with_alignment(2 * VALUES), cute.make_layout((VALUES,)))


def only_here(value: Any) -> Any:
    """A number as a value that exists from here on only.

    What is computed from the number itself would be kept from its first to its last use, in registers that the loop needs.
    """
    return arch.shuffle_sync_bfly(value, offset=0)


def begun_here(operand: Any) -> Any:
    """A left operand of products, in shared memory: where its parts begin is computed from here on.

    They are the same in each turn of a loop, and LLVM would compute them before it: for 16 of them ptxas takes 32 of 63 uniform registers,
    has no room for other operands there, and copies these from vector registers in each turn.
    """
    nothing = arch.make_warp_uniform(only_here(Int32(0)))  # which only ptxas knows
    return cute.make_tensor(operand.iterator + nothing, operand.layout)
