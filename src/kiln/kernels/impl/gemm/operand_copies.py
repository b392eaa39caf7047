"""How the operands of a matrix product stream from global to shared memory.

A thread copies the same places of every tile. Rows beyond the end are those at the end: their products are never written. (With
fewer rows than a tile they are zeros: all multiprocessors would ask for the same few lines of memory again and again.)
K begins with what is left of it beyond whole tiles, and that tile alone is filled with zeros; so the tiles that follow
need no predicate but whether they exist.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Int8, Int32, Int64, Uint32, cute, minimum, select_
from ....cute.nvgpu import CopyUniversalOp, cpasync

if TYPE_CHECKING:
    from .problem import Operand


class OperandCopy:
    """What one thread copies of the tiles (rows, K) of an operand.

    `lanes` neighbouring threads copy `width` elements each along the contiguous mode; with `width` less than the operand's,
    K is transposed on the way.
    """

    __kiln_immutable__ = True  # a loop need not carry what `start` sets

    def __init__(self, operand: Operand, width: int, rows: int, depth: int, threads: int, lanes: int) -> None:
        self.operand = operand
        self.width = width
        self.rows = rows
        self.depth = depth
        self.atom = _atom(operand.dtype, width)
        others = threads // lanes
        if operand.k_major:
            order = cute.make_layout((others, lanes), stride=(lanes, 1))
            self.copy = cute.make_tiled_copy_tv(self.atom, order, cute.make_layout((1, width)))
        else:
            order = cute.make_layout((lanes, others), stride=(1, lanes))
            self.copy = cute.make_tiled_copy_tv(self.atom, order, cute.make_layout((width, 1)))

    def start(self, tensor: Any, ring: Any, tile: Any, thread: Any) -> Any:
        """Begin at the first tile of a matrix (rows, K): the address all threads share, which `fetch` takes."""
        operand, kind = self.operand, Int64 if self.operand.wide else Int32
        part = self.copy.get_slice(thread)
        places = part.partition_S(cute.make_identity_tensor((self.rows, self.depth)))
        self.targets = part.partition_D(ring)  # (values, rows, K, stage)
        self.pieces: list[tuple[int, int, Any, Any, int, Any]] = []
        """Row, column of the piece among the thread's; its place in K; its offset from the shared address, in bytes: what is
        known when it runs, and the rest; whether it is there, unless it is read anyway."""
        first = tile * self.rows
        left = tensor.shape[0] - first
        row_stride, k_stride = tensor.stride
        size = operand.dtype.width // 8
        along = (
            cute.size(self.copy.tiler_mn[1]) if operand.k_major else 0
        )  # from a piece to the next in K, where K is contiguous
        for i in range(cute.size(places, mode=[1])):
            row = places[0, i, 0][0]
            there = row < left if operand.few else None
            if operand.k_major:
                row = minimum(row, left - 1)
            else:  # whole pieces: the extent is a multiple of their width
                row = cute.assume(select_(row < left, row, Int32(0)), divby=self.width)
            offset: Any = 0
            for j in range(cute.size(places, mode=[2])):
                k = places[0, i, j][1]
                if j == 0 or not operand.k_major:
                    offset = (_times(kind, row, row_stride) + _times(kind, k, k_stride)) * size
                    # Not negative: with the upper half of the address known, half the registers.
                    offset = offset if operand.wide else Int64(Uint32(offset))
                    offset = cute.assume(offset, divby=self.width * size)
                self.pieces.append((i, j, k, offset, along * j * size, there))
        self.k_stride = k_stride
        return tensor.iterator + _times(Int64, first, row_stride)

    def advanced(self, pointer: Any, depth: Any) -> Any:
        """The shared address so much further in K."""
        step = _times(Int64, depth, self.k_stride)
        return pointer + (step if isinstance(step, int) else cute.assume(step, divby=self.width))

    def fetch(self, pointer: Any, stage: Any, exists: Any, depth: Any = None) -> None:
        """Begin to copy a tile into a buffer: zeros if it does not exist, and beyond a depth of K."""
        width, start = self.width, cute.recast_ptr(pointer, dtype=Int8)
        for i, j, k, offset, further, inside in self.pieces:
            place = cute.recast_ptr(start + offset + further, dtype=self.operand.dtype)
            source = cute.make_tensor(place, cute.make_layout(((width, 1),), stride=((1, 0),)))
            target = self.targets[None, i, j, stage]
            there = exists if depth is None else exists & (k < depth)
            there = there if inside is None else there & inside
            if isinstance(self.atom.op, cpasync.CopyG2SOp):
                cute.copy(self.atom, source, target, pred=there)
                continue
            held = cute.make_fragment_like(target)
            held.fill(0)
            cute.copy(self.atom, source, held, pred=there)
            cute.copy(self.atom, held, target)


class Int4OperandCopy(OperandCopy):
    """One whose elements count for two of K."""

    def advanced(self, pointer: Any, depth: Any) -> Any:
        return super().advanced(pointer, depth >> 1)

    def fetch(self, pointer: Any, stage: Any, exists: Any, depth: Any = None) -> None:
        super().fetch(pointer, stage, exists, None if depth is None else depth >> 1)


def _times(kind: Any, count: Any, stride: Any) -> Any:
    """A product of so many bits."""
    if isinstance(stride, int):
        return count * stride if stride > 1 else count if stride else 0
    return kind(count) * kind(stride)


def _atom(dtype: Any, width: int) -> Any:
    """The copy of some neighbours from global to shared memory: asynchronous, of at least 4 bytes, or else by registers."""
    bits = width * dtype.width
    if bits < 32:
        return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=bits)
    mode = cpasync.LoadCacheMode.GLOBAL if bits == 128 else cpasync.LoadCacheMode.ALWAYS
    return cute.make_copy_atom(cpasync.CopyG2SOp(mode), dtype, num_bits_per_copy=bits)
