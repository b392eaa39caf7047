"""Tiles of a matrix on their way to an MMA: from global memory to swizzled stages in shared memory, and to registers."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Literal

from ... import cute
from ...base_dsl.diagnostics import DSLOptimizationWarning, type_error, user_frame
from ...base_dsl.ranges import range_constexpr
from ...cute import arch
from ...cute.layout.leaf import get_divisibility, is_one
from ...cute.nvgpu import CopyUniversalOp, cpasync, warp
from ..smem_allocator import SmemAllocator
from .smem_layouts import swizzled

if TYPE_CHECKING:
    from ...base_dsl.typing import Int32

__all__ = ["StagedTile"]

_VECTOR = 16
"""Bytes of the widest copy of a thread."""


class StagedTile:
    """Stages of shared memory that hold tiles (rows, K) of one operand of an MMA.

    `copy` begins to fill a stage by `cp.async` and puts zeros where the matrix ends; `load` brings a stage to registers
    by `ldmatrix`. When a stage is filled and when it is used is the kernel's: it commits, waits and synchronizes.
    """

    __kiln_immutable__ = True  # loops need not carry it

    def __init__(
        self,
        mma: cute.TiledMma,
        operand: Literal["A", "B"],
        matrix: cute.Tensor,
        tile: tuple[int, int],
        stages: int,
        align: int | Literal["auto"] = 16,
    ) -> None:
        """Allocate the stages.

        Args:
            mma: the tiled MMA, of 16-bit operands; all its threads copy.
            operand: which operand it is.
            matrix: the matrix (rows, K) in global memory, one of whose modes is contiguous.
            tile: the rows and K of a tile, which the threads share evenly.
            stages: how many tiles shared memory has room for.
            align: the bytes that a thread copies at once. "auto" takes as many as addresses and extents are known to be
                multiples of, and warns if these are fewer than 16.
        """
        self.matrix = matrix
        self.tile = tile
        dtype = matrix.element_type
        self.by_k = is_one(matrix.stride[1])
        if dtype.width != 16 or not (self.by_k or is_one(matrix.stride[0])):
            raise type_error(
                f"StagedTile of {dtype.__name__} with strides {matrix.stride}",
                "16-bit elements with a mode of stride 1",
            )
        contiguous = int(self.by_k)
        width = _elements(matrix, contiguous, align)
        lanes, others = _threads(tile, contiguous, width, mma.size)
        layout = swizzled(dtype, (*tile, stages), contiguous)
        self.stages: cute.Tensor = SmemAllocator().allocate_tensor(dtype, layout, 1024)
        self.wide = width * 2 >= 4  # what cp.async copies
        bits = width * dtype.width
        mode = cpasync.LoadCacheMode.GLOBAL if bits == 8 * _VECTOR else cpasync.LoadCacheMode.ALWAYS
        self.atom = cute.make_copy_atom(
            cpasync.CopyG2SOp(mode) if self.wide else CopyUniversalOp(), dtype, num_bits_per_copy=bits
        )
        thread_layout = (
            cute.make_layout((others, lanes), stride=(lanes, 1)) if self.by_k else cute.make_layout((lanes, others))
        )
        values = cute.make_layout((1, width) if self.by_k else (width, 1))
        thread = arch.thread_idx()[0]
        self.copies = cute.make_tiled_copy_tv(self.atom, thread_layout, values).get_slice(thread)
        part = mma.get_slice(thread)
        is_a = operand == "A"
        one = self.stages[None, None, 0]
        self.fragment = (
            mma.make_fragment_A(part.partition_A(one)) if is_a else mma.make_fragment_B(part.partition_B(one))
        )
        matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(not self.by_k, 4), dtype)
        make = cute.make_tiled_copy_A if is_a else cute.make_tiled_copy_B
        self.loads = make(matrices, mma).get_slice(thread)

    @cute.jit
    def copy(self, place: tuple[Int32 | int, Int32 | int], stage: Int32 | int):
        """Begin to copy a tile to a stage; zeros where the matrix ends. `cp_async_commit_group` closes the group.

        Args:
            place: the number of the tile along the rows, and along K.
            stage: the stage.
        """
        source = self.copies.partition_S(cute.local_tile(self.matrix, self.tile, place))
        target = self.copies.partition_D(self.stages)[None, None, None, stage]
        everywhere = cute.make_identity_tensor(self.matrix.shape)
        coords = self.copies.partition_S(cute.local_tile(everywhere, self.tile, place))
        for i in range_constexpr(cute.size(source, mode=[1])):
            for j in range_constexpr(cute.size(source, mode=[2])):
                row, k = coords[0, i, j]
                there = (row < self.matrix.shape[0]) & (k < self.matrix.shape[1])
                if self.wide:
                    cute.copy(self.atom, source[None, i, j], target[None, i, j], pred=there)
                else:
                    target[0, i, j] = source[0, i, j] if there else self.matrix.element_type(0.0)

    def load(self, stage: Int32 | int) -> cute.Tensor:
        """Return a stage as the operand of `cute.gemm`, in registers.

        Args:
            stage: the stage; its copies are complete, and the threads have synchronized since.
        """
        cute.copy(
            self.loads, self.loads.partition_S(self.stages)[None, None, None, stage], self.loads.retile(self.fragment)
        )
        return self.fragment


def _threads(tile: tuple[int, int], contiguous: int, width: int, threads: int) -> tuple[int, int]:
    """Return the threads along the contiguous mode and along the other one; together they copy whole parts of a tile."""
    extent = tile[contiguous]
    other = tile[1 - contiguous]
    lanes = math.gcd(extent // width, threads)
    others = threads // lanes
    if lanes == 0 or extent % (lanes * width) or other % others:
        raise type_error(
            f"StagedTile of tiles {tile} with {threads} threads, each of which copies {width} elements: {lanes} threads lie "
            f"along mode {contiguous}, which is contiguous, and {others} along the other one, of {other}",
            f"a multiple of {width} elements along mode {contiguous}, and of {others} along the other one; "
            "a larger tile, or fewer warps",
        )
    return lanes, others


def _elements(matrix: cute.Tensor, contiguous: int, align: int | str) -> int:
    """Return how many elements a thread copies at once."""
    size = matrix.element_type.width // 8
    if align != "auto":
        if align not in (2, 4, 8, _VECTOR):
            raise type_error(f"align is {align!r}", '2, 4, 8 or 16 bytes, or "auto"')
        width = int(align) // size
        extent = matrix.shape[contiguous]
        if get_divisibility(extent) % width:
            raise type_error(
                f"align is {align} bytes, {width} elements, and the extent {extent} of the contiguous mode is not known to be "
                "a multiple of that",
                'align="auto", or mark_compact_shape_dynamic(divisibility=...) if it always is',
            )
        return width
    other = get_divisibility(matrix.stride[1 - contiguous]) * size
    bytes_ = math.gcd(_VECTOR, matrix.iterator.alignment, other, get_divisibility(matrix.shape[contiguous]) * size)
    if bytes_ < _VECTOR:
        frame = user_frame()
        place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("<unknown>", 0)
        text = (
            f"a thread copies {bytes_} bytes at once: rows of this matrix are only known to begin at multiples of {bytes_} "
            "bytes, and to be as long; where speed counts, pad them to multiples of 16 bytes"
        )
        warnings.warn_explicit(text, DSLOptimizationWarning, *place)
    return bytes_ // size
