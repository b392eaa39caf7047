"""A query tile on sm_80: how the warps and threads of a CTA share it."""

from __future__ import annotations

from typing import Any

from ..... import Boolean, Float16, Float32, Int32, const_expr, cute, range_constexpr
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp, cpasync, warp
from ....parts.kv_source import VECTOR, vector_at
from ....parts.rematerialize import rematerialized
from .sm80_config import padded_head_dim


class QueryTile:
    """Element types, head dimensions and config of a tile.

    The rows of a tile are queries; of each query `group_size` packed heads in succession. Elements of 8 bits (`is_fp8`)
    are multiplied as f16 and copied in pairs, each pair as one 16-bit element: `dim`, `dim_v` and their paddings count
    those, `head_dim_v`, `o_columns` (padded) and `q_columns` (padded) count elements."""

    def __init__(
        self,
        kv_dtype: type[cute.Numeric],
        head_dims: tuple[int, int],
        config: Any,
        group_size: int = 1,
        out_dtype: type[cute.Numeric] | None = None,
    ) -> None:
        self.kv_dtype = kv_dtype
        self.is_fp8: bool = kv_dtype.width == 8
        self.dtype: type[cute.Numeric] = Float16 if self.is_fp8 else kv_dtype
        self.out_dtype: type[cute.Numeric] = out_dtype or self.dtype
        pack = 16 // kv_dtype.width
        self.dim: int = head_dims[0] // pack
        self.dim_v: int = head_dims[1] // pack
        self.padded: int = padded_head_dim(self.dim)
        self.padded_v: int = padded_head_dim(self.dim_v)
        self.head_dim_v: int = head_dims[1]
        self.o_columns: int = pack * self.padded_v
        self.q_columns: int = pack * self.padded
        self.config = config
        self.group_size = group_size

    def adjacent_columns(self) -> list[tuple[int, list[tuple[int, int]]]]:
        """Return the adjacent output columns of a row that a thread holds: the first, relative to the thread's first,
        and the accumulator indices (element, MMA tile) of all."""
        if not self.is_fp8:
            return [(8 * n, [(0, n), (1, n)]) for n in range(self.o_columns // 8)]
        # of a pair of columns, the even one is in one MMA tile, the odd one in the next
        return [(16 * j, [(c, 2 * j + e) for c in range(2) for e in range(2)]) for j in range(self.o_columns // 16)]

    def aligned(self, x: cute.Tensor) -> cute.Tensor:
        """Return (batch, row, head, element) with strides known to be multiples of 16 bytes; 8-bit elements become
        pairs."""
        start = x.iterator
        shape = x.shape
        strides = x.stride
        if x.element_type.width == 8:
            start = cute.recast_ptr(start, dtype=self.dtype)
            shape = (*shape[:3], shape[3] // 2)
            strides = tuple(s if isinstance(s, int) else s // 2 for s in strides)
        stride = tuple(cute.assume(s, divby=VECTOR) if not isinstance(s, int) else s for s in strides)
        return cute.make_tensor(start, cute.make_layout(shape, stride=stride))

    def mma(self) -> cute.TiledMma:
        """Return the tiled MMA: warps along M, and 16 columns, so that one ldmatrix loads four matrices of B."""
        warps = self.config.warps
        op = warp.MmaF16BF16Op(self.dtype, Float32, (16, 8, 16))
        return cute.make_tiled_mma(op, (warps, 1, 1), (16 * warps, 16, 16))

    def score_coords(self) -> Any:
        """Return the coordinates (row, column) of a thread's scores."""
        mma = self.mma().get_slice(rematerialized(arch.thread_idx()[0]))
        return mma.partition_C(cute.make_identity_tensor((self.config.tile_m, self.config.tile_n)))

    def row_copy(self, padded: int, asynchronous: bool, dtype: type[cute.Numeric] | None = None) -> cute.TiledCopy:
        """Return the tiled copy of rows between gmem and smem."""
        op: Any = cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL) if asynchronous else CopyUniversalOp()
        atom = cute.make_copy_atom(op, dtype or self.dtype, num_bits_per_copy=VECTOR * self.dtype.width)
        lanes = (64 if padded % 64 == 0 else 32) // VECTOR
        threads = cute.make_layout((self.config.threads // lanes, lanes), stride=(lanes, 1))
        return cute.make_tiled_copy_tv(atom, threads, cute.make_layout((1, VECTOR)))

    def write_accumulator(self, rounded: cute.Tensor, smem: cute.Tensor, thread: Int32) -> None:
        """Write a thread's part of a converted accumulator to smem."""
        atom = cute.make_copy_atom(CopyUniversalOp(), rounded.element_type, num_bits_per_copy=32)
        writer = cute.make_tiled_copy_C(atom, self.mma()).get_slice(thread)
        cute.copy(atom, writer.retile(rounded), writer.partition_D(smem))

    @cute.jit
    def store_rows(self, smem: cute.Tensor, out: cute.Tensor, head_dim: int, tile: Int32, rows: Int32, thread: Int32):
        """Store a tile in smem to those of its rows that exist, 16 bytes at a time."""
        tile_m, columns = (cute.size(smem, mode=[i]) for i in range(2))
        copy = self.row_copy(columns, False, smem.element_type).get_slice(thread)
        source = copy.partition_S(smem)
        coords = copy.partition_S(cute.make_identity_tensor((tile_m, columns)))
        fragment = cute.make_fragment_like(source)
        cute.copy(copy, source, fragment)
        predicate = cute.make_rmem_tensor((1, *fragment.shape[1:]), Boolean)
        for i in range_constexpr(cute.size(fragment, mode=[1])):
            for j in range_constexpr(cute.size(fragment, mode=[2])):
                row, column = coords[0, i, j]
                exists = tile * tile_m + row < rows
                if const_expr(head_dim != columns):
                    exists = exists & (column < head_dim)
                predicate[0, i, j] = exists
                if const_expr(self.group_size > 1):  # rows of several heads: each vector has an address of its own
                    target = vector_at(out, (tile * tile_m + row, column))
                    cute.copy(copy, fragment[None, i, j], target, pred=predicate[None, i, j])
        if const_expr(self.group_size == 1):
            target = copy.partition_D(cute.local_tile(out, (tile_m, columns), (tile, 0)))
            cute.copy(copy, fragment, target, pred=predicate)
