"""GEMM with few rows of A and an 8- or 4-bit integer B, by `mma.sync`: B streams through shared memory as it is, and is
dequantised in registers.

Swap-AB: rows of B are rows of an instruction, which has 16 of them for 8 rows of A. The order of K within a step is
free: of 32 consecutive k each of the four lanes that share a row takes 8, an access of 16 bytes of A and of 8 or 4 of
B, which become the registers of two instructions. 4-bit integers come out of a word in pairs 4 apart, and A is paired
in the same way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, cute, minimum
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, cpasync, warp
from ...parts.dequantize import int4_pairs, int8_pairs
from ...parts.tensor_views import permuted
from .sm80_mainloop import MultistageGemmKernel

if TYPE_CHECKING:
    from .... import Boolean
    from ...parts.accumulator import RegisterAccumulator
    from .problem import Operand
    from .sm80_config import Sm80GemmConfig

K_STEP = 32
"""K of a step: two instructions."""
_LANE_K = 8
"""Elements of a step that a lane has of a row."""
_BANK_BYTES = 128


class Sm80MixedInputGemmKernel(MultistageGemmKernel):
    """The kernel for an integer B, and scales of `group_size` of K, or 0."""

    swap_ab = True

    def __init__(self, *arguments: Any, group_size: int) -> None:
        super().__init__(*arguments)
        self.group_size = group_size

    def group_scale_tensors(self, rest: list[cute.Tensor]) -> tuple[list[cute.Tensor], list[cute.Tensor]]:
        return ([permuted(rest[0], [2, 1, 0], 1)], rest[1:]) if self.group_size else ([], rest)

    def group_scales(
        self, acc: RegisterAccumulator, scales: list[cute.Tensor], smem: cute.Pointer, tile_n: Int32, thread: Int32
    ) -> GroupScales | None:
        if not self.group_size:
            return None
        group_scales = GroupScales(self.group_size, self.config)
        group_scales.start(acc, self.acc_shape(), scales[0], smem, tile_n, thread)
        return group_scales

    def fragments(self, side: int) -> FloatFragments | IntegerFragments:
        if side:
            return IntegerFragments(self.b, self.config, self.a.dtype)
        return FloatFragments(self.a, self.config, self.b.packed)

    def mma(self, fragments: tuple[FloatFragments, IntegerFragments], half: bool) -> cute.TiledMma:
        op = warp.MmaF16BF16Op(self.a.dtype, Float32, (16, 8, 16))
        return cute.make_tiled_mma(op, (self.config.warp_layout_mn[1], 1, 1))


def mixed_input_smem_bytes(config: Sm80GemmConfig, int4: bool, group_size: int) -> int:
    """Return the shared memory of all stages and group scales, or later of the accumulators of a tile."""
    m, n, k = config.tile_shape_mnk
    scales = 4 * _scale_columns(config) * (k // min(k, group_size)) if group_size else 0
    return max(((4 * m + (1 if int4 else 2) * n) * k // 2 + scales) * config.stages, 4 * m * n)


def _scale_columns(config: Sm80GemmConfig) -> int:
    """Return the columns of a tile in the stages of scales: as many as its threads copy at once, or a multiple."""
    return -(-config.tile_shape_mnk[1] // config.threads) * config.threads


def _stage_layout(dtype: type[cute.Numeric], shape: tuple[int, int, int], lane_bytes: int) -> Any:
    """Return a layout (rows, K, stages) from which four lanes load some bytes each of a row, one row after the other,
    from different banks."""
    row_bytes = math.gcd(shape[1] * dtype.width // 8, _BANK_BYTES)
    elements = row_bytes * 8 // dtype.width
    size = dtype.width // 8
    bits = (_BANK_BYTES // (4 * lane_bytes)).bit_length() - 1  # rows at once
    base = 7 - bits - (size.bit_length() - 1)
    permuted_bits = max(0, bits - (_BANK_BYTES // row_bytes).bit_length() + 1)
    rows = math.gcd(shape[0], 8)
    atom = cute.make_layout((rows, elements), stride=(elements, 1))
    swizzle = cute.make_swizzle(permuted_bits, base, bits)
    return cute.tile_to_shape(cute.make_composed_layout(swizzle, 0, atom) if permuted_bits else atom, shape, (0, 1, 2))


class _LaneFragments:
    """Fragments of one operand of a thread: pieces of K of its rows."""

    __kiln_immutable__ = True  # a loop need not carry what `start` sets

    def __init__(self, operand: Operand, rows: int, tile_k: int, config: Sm80GemmConfig) -> None:
        self.operand = operand
        self.shape = (rows, tile_k, config.stages)
        self.warps = config.warp_layout_mn[1]
        self.steps = config.tile_shape_mnk[2] // K_STEP

    lane_elements: int
    """Elements of a step that a lane loads of a row."""

    def stage_layout(self) -> cute.ComposedLayout:
        """Return the smem layout (rows, K, stages)."""
        return _stage_layout(self.operand.dtype, self.shape, self.lane_elements * self.operand.dtype.width // 8)

    def stage_bytes(self) -> int:
        """Return the shared memory of all stages."""
        return math.prod(self.shape) * self.operand.dtype.width // 8

    def allocate(self, stages: cute.Tensor, thread: Int32, lanes: cute.Layout, tile: tuple[int, int]) -> int:
        """Allocate the fragments of a K tile, and return how many steps it has."""
        dtype = self.operand.dtype
        atom = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=self.lane_elements * dtype.width)
        self.copy = cute.make_tiled_copy(atom, lanes, tile).get_slice(thread)
        self.source = self.copy.partition_S(stages)  # (values, rows, steps, stages)
        count = cute.size(self.source, mode=[0])
        self.blocks = cute.size(self.source, mode=[1])
        self.fragment = cute.make_rmem_tensor((count, self.blocks, self.steps), dtype)
        self.words = cute.recast_tensor(self.fragment, Int32)
        return self.steps

    def load(self, step: int, stage: Int32 | int) -> None:
        """Load the fragments of a step from a stage."""
        layout = cute.make_layout((cute.shape(self.source)[0], self.blocks))
        target = cute.make_tensor(self.fragment[None, None, step].iterator, layout)
        cute.copy(self.copy, self.source[None, None, step, stage], target)


class FloatFragments(_LaneFragments):
    """Fragments of A, whose elements are multiplied as they are."""

    lane_elements = _LANE_K

    def __init__(self, operand: Operand, config: Sm80GemmConfig, int4: bool) -> None:
        super().__init__(operand, config.tile_shape_mnk[0], config.tile_shape_mnk[2], config)
        self.int4 = int4

    def start(self, mma: cute.TiledMma, stages: cute.Tensor, thread: Int32) -> int:
        """Allocate the fragments of a K tile, and return how many steps it has."""
        lanes = cute.make_layout(((4, 8, self.warps), (_LANE_K,)), stride=((8 * _LANE_K, 1, 0), (8,)))
        return self.allocate(stages, thread, lanes, (8, K_STEP))

    def taken(self, step: int) -> list[cute.Tensor]:
        """Return the MMA operands of a step, one instruction in K after the other."""
        operands = []
        for number in range(2):
            operand = cute.make_rmem_tensor(((2, 2), self.blocks), self.operand.dtype)
            target = cute.recast_tensor(operand, Int32)
            for block in range(self.blocks):
                four = [self.words[n + 4 * (block + self.blocks * step)] for n in range(4)]
                if self.int4:
                    pair = [arch.prmt(four[number], four[number + 2], Int32(x)) for x in (0x5410, 0x7632)]
                else:
                    pair = four[2 * number : 2 * number + 2]
                for half in range(2):
                    target[half + 2 * block] = pair[half]
            operands.append(operand)
        return operands


class IntegerFragments(_LaneFragments):
    """Fragments of B, whose 8- or 4-bit integers become elements of another type."""

    def __init__(self, operand: Operand, config: Sm80GemmConfig, dtype: Any) -> None:
        packing = 2 if operand.packed else 1
        self.lane_elements = _LANE_K // packing
        super().__init__(operand, config.tile_shape_mnk[1], config.tile_shape_mnk[2] // packing, config)
        self.dtype = dtype

    def start(self, mma: cute.TiledMma, stages: cute.Tensor, thread: Int32) -> int:
        """Allocate the fragments of a K tile, and return how many steps it has."""
        rows = 16 * self.warps
        lane = self.lane_elements
        lanes = cute.make_layout(((4, 8, self.warps), (lane, 2)), stride=((rows * lane, 1, 16), (rows, 8)))
        return self.allocate(stages, thread, lanes, (rows, 4 * lane))

    def taken(self, step: int) -> list[Any]:
        """Return the MMA operands of a step, one instruction in K after the other."""
        operands = [cute.make_rmem_tensor(((2, 2, 2), self.blocks), self.dtype) for _ in range(2)]
        targets = [cute.recast_tensor(x, Int32) for x in operands]
        count = self.lane_elements // 4
        for place in range(2 * self.blocks):  # rows 8 apart, blocks of 16
            words = [self.words[n + count * (place + 2 * self.blocks * step)] for n in range(count)]
            if self.operand.packed:
                pairs = int4_pairs(words[0], self.dtype)
            else:
                pairs = [x for word in words for x in int8_pairs(word, self.operand.dtype, self.dtype)]
            for n, pair in enumerate(pairs):
                targets[n // 2][place % 2 + 2 * (n % 2) + 4 * (place // 2)] = pair
        return operands


class GroupScales:
    """Accumulators of groups of K, multiplied by the scales of a thread's columns before they are added to others.

    The f32 scales of each K tile come through stages of their own in shared memory, with the tile.
    """

    __kiln_immutable__ = True

    def __init__(self, group_size: int, config: Sm80GemmConfig) -> None:
        self.group_size = group_size
        self.columns: int = config.tile_shape_mnk[1]
        self.tile_k: int = config.tile_shape_mnk[2]
        self.chunk: int = min(group_size, self.tile_k)
        self.shape: tuple[int, int, int] = (_scale_columns(config), self.tile_k // self.chunk, config.stages)
        self.threads: int = config.threads

    def start(
        self,
        acc: RegisterAccumulator,
        acc_shape: tuple[int, int],
        scales: cute.Tensor,
        smem: cute.Pointer,
        tile_n: Int32,
        thread: Int32,
    ) -> None:
        """Allocate accumulators of a group; `smem` is for the stages of scales."""
        self.stages: cute.Tensor = cute.make_tensor(cute.recast_ptr(smem, dtype=Float32), cute.make_layout(self.shape))
        self.scales = scales
        self.first_column: Any = tile_n * self.columns
        self.thread = thread
        self.group_acc: cute.Tensor = cute.make_rmem_tensor_like(acc.fragment)  # ((2 rows, 2 columns), columns, rows)
        self.coords: Any = acc.partition(cute.make_identity_tensor(acc_shape))
        self.loaded: cute.Tensor = cute.make_rmem_tensor((2, cute.size(acc.fragment, mode=[1]), self.shape[1]), Float32)

    def copy_tile(self, k_tile: Int32 | int, stage: Int32 | int, exists: Boolean | bool) -> None:
        """Begin to copy the scales of a K tile into a stage."""
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.ALWAYS), Float32, num_bits_per_copy=32)
        columns, groups = self.scales.shape
        for chunk in range(self.shape[1]):
            group = minimum((k_tile * self.tile_k + chunk * self.chunk) // self.group_size, groups - 1)
            for first in range(0, self.columns, self.threads):
                column = self.thread + first
                one = cute.make_layout((1,))
                source = cute.domain_offset((minimum(self.first_column + column, columns - 1), group), self.scales)
                target = cute.domain_offset((column, chunk, stage), self.stages)
                cute.copy(atom, *(cute.make_tensor(x.iterator, one) for x in (source, target)), pred=exists)

    def take(self, stage: Int32) -> None:
        """Load the scales of a thread's columns from a stage."""
        for chunk in range(self.shape[1]):
            for n in range(self.loaded.shape[1]):
                for column in range(2):
                    self.loaded[column, n, chunk] = self.stages[self.coords[(0, column), n, 0][0], chunk, stage]

    def multiply(self, mma: cute.TiledMma, acc: cute.Tensor, pairs: zip, step: int) -> None:
        """Issue the MMAs of a step; after the last of a group, add its scaled accumulators to `acc`."""
        chunk, k = divmod(step * K_STEP, self.chunk)
        if k == 0:
            self.group_acc.fill(0)
        for left, right in pairs:
            cute.gemm(mma, self.group_acc, left, right, self.group_acc)
        if k + K_STEP == self.chunk:
            for n in range(cute.size(acc, mode=[1])):
                for column in range(2):
                    scale = self.loaded[column, n, chunk]
                    for m in range(cute.size(acc, mode=[2])):
                        for row in range(2):
                            at = ((row, column), n, m)
                            acc[at] = acc[at] + self.group_acc[at] * scale
