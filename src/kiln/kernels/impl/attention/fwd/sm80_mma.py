"""The two GEMMs of attention with `mma.sync`, S = Q K^T and O += P V, and their ldmatrix loads from smem."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..... import Float32, cute
from .....cute import arch
from .....cute.nvgpu import warp

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..... import Int32
    from .query_tile import QueryTile


class Sm80Mma:
    """Fragments and MMAs of a warp.

    One ldmatrix loads four 8 x 8 matrices, 16 rows by 16 columns. For Q and V a lane names row `lane % 16`, columns
    from `lane / 16 * 8`; addresses then differ by amounts that are the same in all lanes, so that few are kept. For K,
    whose rows are columns of S, it is the other way round."""

    def __init__(self, tile: QueryTile, thread: Any, smem_q: Any, smem_k: Any, smem_v: Any) -> None:
        config = tile.config
        self.mma: cute.TiledMma = tile.mma()
        self.m_tiles: int = config.m_tiles
        self.dtype: type[cute.Numeric] = tile.dtype
        self.acc_o: cute.Tensor = cute.make_rmem_tensor(
            self.mma.partition_shape_C((config.tile_m, tile.o_columns)), Float32
        )
        self.acc_s: cute.Tensor[Float32] = cute.make_rmem_tensor(
            self.mma.partition_shape_C((config.tile_m, config.tile_n)), Float32
        )
        self.p: cute.Tensor = cute.make_rmem_tensor((8, self.m_tiles, config.tile_n // 16), tile.dtype)
        k_blocks = tile.padded // 16
        v_blocks = tile.padded_v // 16
        n_blocks = config.tile_n // 16
        self.q: cute.Tensor = cute.make_rmem_tensor((8, self.m_tiles, tile.q_columns // 16), tile.dtype)
        self.k: cute.Tensor = cute.make_rmem_tensor((4, 2, n_blocks, k_blocks), tile.dtype)
        self.v: cute.Tensor = cute.make_rmem_tensor((4, 2, v_blocks, n_blocks), tile.dtype)
        self.load: cute.CopyAtom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), tile.dtype)
        self.load_transposed: cute.CopyAtom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), tile.dtype)
        down, across, first = ldmatrix_lanes(thread)
        self.q_matrix: Callable[[int, int], Any] = SmemMatrices(
            smem_q, down, (config.tile_m, tile.q_columns), first, config.warps
        ).stage(0)
        self.k_matrices: SmemMatrices = SmemMatrices(smem_k, across, (config.tile_n, tile.padded))
        self.v_matrices: SmemMatrices = SmemMatrices(smem_v, down, (config.tile_n, tile.padded_v))

    def qk(self, stage: Int32) -> None:
        """Compute S = Q K^T."""
        k_matrix = self.k_matrices.stage(stage)

        def load(k: int, n: int) -> None:
            if n == 0:
                self.load_q(k)
            cute.copy(self.load, k_matrix(n, k), flat8(self.k[None, None, n, k]))

        pipelined(cute.size(self.k, mode=[3]), cute.size(self.k, mode=[2]), load, self.multiply_k)

    def load_q(self, k: int) -> None:
        """Load the part of Q that is multiplied with K block `k`."""
        for m in range(self.m_tiles):
            cute.copy(self.load, self.q_matrix(m, k), self.q[None, m, k])

    def multiply_k(self, k: int, n: int) -> None:
        """Multiply Q with a loaded block of K."""
        multiply_block(self.mma, self.acc_s, self.q, self.k, k, n, k == 0)

    def pv(self, stage: Int32) -> None:
        """Compute O += P V."""
        v_matrix = self.v_matrices.stage(stage)

        def load(k: int, n: int) -> None:
            cute.copy(self.load_transposed, v_matrix(k, n), flat8(self.v[None, None, n, k]))

        pipelined(cute.size(self.v, mode=[3]), cute.size(self.v, mode=[2]), load, self.multiply_v)

    def multiply_v(self, k: int, n: int) -> None:
        """Multiply P with a loaded block of V."""
        multiply_block(self.mma, self.acc_o, self.p, self.v, k, n)


def multiply_block(
    mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, k: int, n: int, zeroes: bool = False
) -> None:
    """Multiply A (8, m, k) with block (k, n) of B (4, half, n, k), 16 columns; `zeroes` clears the accumulator."""
    for half in range(2):
        for m in range(cute.size(a, mode=[1])):
            part = acc[None, m, 2 * n + half]
            if zeroes:
                part.fill(0.0)
            cute.mma_atom_call(mma, part, a[None, m, k], b[None, half, n, k], part)


def pipelined(
    k_blocks: int, n_blocks: int, load: Callable[[int, int], None], multiply: Callable[[int, int], None]
) -> None:
    """Load blocks of an operand one ahead of their MMAs."""
    blocks = [(k, n) for k in range(k_blocks) for n in range(n_blocks)]
    load(*blocks[0])
    for block, following in zip(blocks, [*blocks[1:], None], strict=True):
        if following is not None:
            load(*following)
        multiply(*block)


def flat8(fragment: cute.Tensor) -> cute.Tensor:
    """Return four registers of a fragment as one tensor of 8 elements."""
    return cute.make_tensor(fragment.iterator, cute.make_layout((8,)))


def ldmatrix_lanes(thread: Int32) -> tuple[tuple[Int32, Int32], tuple[Int32, Int32], Int32]:
    """Return which (row of 16, half of 16 columns) a lane names for operands read by rows, and by columns, and the
    warp's number."""
    lane = thread % 32
    number = arch.make_warp_uniform(thread // 32)
    return (lane % 16, lane // 16), (lane % 8 + lane // 16 * 8, lane // 8 % 2), number


class SmemMatrices:
    """A swizzled tile in smem, or stages of it, as blocks of 16 rows and 16 columns for ldmatrix.

    `lane` is what `ldmatrix_lanes` gives. The first block begins at row 16 `first`, and blocks are 16 `repeat` rows
    apart."""

    def __init__(
        self, tile: Any, lane: tuple[Int32, Int32], shape: tuple[int, int], first: Int32 | int = 0, repeat: int = 1
    ) -> None:
        self.dtype: type[cute.Numeric] = tile.element_type
        self.row: int = math.gcd(shape[1], 64)  # elements of a row of smem
        self.rows: int = shape[0]
        self.size: int = shape[0] * shape[1]
        self.repeat = repeat
        self.start: cute.Pointer = tile.iterator + first * (16 * self.row)
        self.offset: Int32 = tile.layout.inner(lane[0] * self.row + lane[1] * 8)

    def stage(self, stage: Int32 | int) -> Callable[[int, int], Any]:
        """Return a function that gives the row that a lane names of block (rows, columns) of a stage.

        Stages begin at multiples of the swizzle's period, where a column's swizzled offset is an exclusive or with the
        address: one address serves all columns."""
        address = (self.start + stage * self.size + self.offset)._address()
        size = self.dtype.width // 8
        columns = [
            cute.make_ptr(self.dtype, address ^ (16 * size * c), cute.AddressSpace.smem, assumed_align=16)
            for c in range(self.row // 16)
        ]

        def block(rows: int, number: int) -> cute.Tensor:
            turn, column = divmod(number, len(columns))
            start = (rows * 16 * self.repeat + turn * self.rows) * self.row
            return cute.make_tensor(columns[column] + start, cute.make_layout((8,)))

        return block
