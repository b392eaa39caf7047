"""Copies of operand tiles from global to shared memory by all threads.

A thread copies the same places of every tile. Rows behind the last are copies of the last: they are never written.
(With fewer rows than a tile they are zeros, since all SMs would read the same few lines of memory again and again.) K
begins with what is left of it beyond whole tiles, and that tile alone is filled with zeros; so the tiles after it need
no predicate but whether they exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int8, Int32, Int64, Uint32, cute, minimum, select_
from ....cute.nvgpu import CopyUniversalOp, cpasync

if TYPE_CHECKING:
    from .... import Boolean
    from .problem import Operand


class _Piece(NamedTuple):
    """One access of a thread: its place among the thread's, its k, its byte offset from the address all threads share
    (known when the kernel runs, and static), and a predicate of its row, or None."""

    row: int
    column: int
    k: Int32
    offset: Int64
    static_offset: int
    row_exists: Boolean | None


class OperandCopy:
    """What one thread copies of the tiles (rows, K) of an operand.

    `lanes` neighbouring threads copy `width` elements each along the contiguous mode; with a `width` less than the
    operand's, K is transposed on the way. `tile_k` counts elements of the array, and those of a packed operand are two
    of K.
    """

    __kiln_immutable__ = True  # a loop need not carry what `start` sets

    def __init__(self, operand: Operand, width: int, rows: int, tile_k: int, threads: int, lanes: int) -> None:
        self.operand = operand
        self.width = width
        self.rows = rows
        self.tile_k = tile_k
        self.atom: cute.CopyAtom = _copy_atom(operand.dtype, width)
        rows_of_threads = threads // lanes
        if operand.k_major:
            layout = cute.make_layout((rows_of_threads, lanes), stride=(lanes, 1))
            self.copy = cute.make_tiled_copy_tv(self.atom, layout, cute.make_layout((1, width)))
        else:
            layout = cute.make_layout((lanes, rows_of_threads), stride=(1, lanes))
            self.copy: cute.TiledCopy = cute.make_tiled_copy_tv(self.atom, layout, cute.make_layout((width, 1)))

    def start(self, tensor: cute.Tensor, stages: cute.Tensor, tile: Int32, thread: Int32) -> cute.Pointer:
        """Return the address of the first K tile of a row of tiles, which all threads share and `copy_tile` takes."""
        operand = self.operand
        kind = Int64 if self.operand.wide else Int32
        part = self.copy.get_slice(thread)
        coords = part.partition_S(cute.make_identity_tensor((self.rows, self.tile_k)))
        self.targets: Any = part.partition_D(stages)  # (values, rows, K, stage)
        self.pieces: list[_Piece] = []
        first = tile * self.rows
        rows_left = tensor.shape[0] - first
        row_stride, k_stride = tensor.stride
        size = operand.dtype.width // 8
        # the step from a piece to the next in K, where K is contiguous
        k_step = cute.size(self.copy.tiler_mn[1]) if operand.k_major else 0
        for i in range(cute.size(coords, mode=[1])):
            row = coords[0, i, 0][0]
            exists = row < rows_left if operand.partial else None
            if operand.k_major:
                row = minimum(row, rows_left - 1)
            else:  # whole pieces: the extent is a multiple of their width
                row = cute.assume(select_(row < rows_left, row, Int32(0)), divby=self.width)
            offset: Any = 0
            for j in range(cute.size(coords, mode=[2])):
                k = coords[0, i, j][1]
                if j == 0 or not operand.k_major:
                    offset = (_times(kind, row, row_stride) + _times(kind, k, k_stride)) * size
                    # Not negative: with the upper half of the address known, half the registers.
                    offset = offset if operand.wide else Int64(Uint32(offset))
                    offset = cute.assume(offset, divby=self.width * size)
                self.pieces.append(_Piece(i, j, k, offset, k_step * j * size, exists))
        self.k_stride = k_stride
        return tensor.iterator + _times(Int64, first, row_stride)

    def advanced(self, pointer: cute.Pointer, k: Int32 | int) -> cute.Pointer:
        """Return the shared address advanced by `k` elements of K."""
        step = _times(Int64, k >> 1 if self.operand.packed else k, self.k_stride)
        return pointer + (step if isinstance(step, int) else cute.assume(step, divby=self.width))

    def copy_tile(
        self, pointer: cute.Pointer, stage: Int32 | int, exists: Boolean | bool, k_left: Int32 | None = None
    ) -> None:
        """Begin to copy a K tile into a stage: zeros if it does not exist, and from `k_left` of its K on."""
        width = self.width
        start = cute.recast_ptr(pointer, dtype=Int8)
        if k_left is not None and self.operand.packed:
            k_left = k_left >> 1
        for piece in self.pieces:
            address = cute.recast_ptr(start + piece.offset + piece.static_offset, dtype=self.operand.dtype)
            source = cute.make_tensor(address, cute.make_layout(((width, 1),), stride=((1, 0),)))
            target = self.targets[None, piece.row, piece.column, stage]
            there = exists if k_left is None else exists & (piece.k < k_left)
            there = there if piece.row_exists is None else there & piece.row_exists
            if isinstance(self.atom.op, cpasync.CopyG2SOp):
                cute.copy(self.atom, source, target, pred=there)
                continue
            fragment = cute.make_fragment_like(target)
            fragment.fill(0)
            cute.copy(self.atom, source, fragment, pred=there)
            cute.copy(self.atom, fragment, target)


def _times(kind: type[cute.Numeric], count: Int32 | int, stride: Int64 | int) -> Int32 | Int64 | int:
    """Return count * stride in some bits."""
    if isinstance(stride, int):
        return count * stride if stride > 1 else count if stride else 0
    return kind(count) * kind(stride)


def _copy_atom(dtype: type[cute.Numeric], width: int) -> cute.CopyAtom:
    """Return the copy of some neighbours to shared memory: `cp.async` from 4 bytes on, or else by registers."""
    bits = width * dtype.width
    if bits < 32:
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=bits)
    mode = cpasync.LoadCacheMode.GLOBAL if bits == 128 else cpasync.LoadCacheMode.ALWAYS
    return cute.make_copy_atom(cpasync.CopyG2SOp(mode), dtype, num_bits_per_copy=bits)
