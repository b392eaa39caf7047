"""How narrow weights and what they are multiplied with come from shared memory into the registers of the tensor cores.

Operands are swapped: weights are rows of an instruction, which has 16 of them for 8 rows of the result. Sums do not depend on which K an instruction calls
its first: of 32 in succession each of the four lanes that share a row takes 8, an access of 16 bytes (of weights 8 or 4), which become the registers of two
instructions. 4-bit integers come out of a word in pairs 4 apart, so what they are multiplied with is paired alike.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, cute, minimum
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, cpasync
from ...parts.dequantize import bytes_widened, halves_widened

if TYPE_CHECKING:
    from .problem import Operand
    from .sm80_config import Sm80GemmConfig

STEP = 32
"""K of a step."""
_EACH = 8
"""Of which a lane has."""
_BANKS = 128


def swizzled_for(dtype: Any, shape: tuple[int, int, int], piece: int) -> Any:
    """A ring (rows, K, stages) from which four lanes take `piece` bytes each of a row, one row after the other, from different banks."""
    bytes_ = math.gcd(shape[1] * dtype.width // 8, _BANKS)
    elements, size = bytes_ * 8 // dtype.width, dtype.width // 8
    bits = (_BANKS // (4 * piece)).bit_length() - 1  # rows at once
    base = 7 - bits - (size.bit_length() - 1)
    among = max(0, bits - (_BANKS // bytes_).bit_length() + 1)
    rows = math.gcd(shape[0], 8)
    atom = cute.make_layout((rows, elements), stride=(elements, 1))
    tiled = cute.make_composed_layout(cute.make_swizzle(among, base, bits), 0, atom) if among else atom
    return cute.tile_to_shape(tiled, shape, (0, 1, 2))


class _Lanes:
    """One operand of a thread: pieces of K for its rows."""

    __kiln_immutable__ = True  # a loop need not carry what `start` sets

    def __init__(self, operand: Operand, rows: int, depth: int, config: Sm80GemmConfig) -> None:
        self.operand = operand
        self.shape = (rows, depth, config.stages)
        self.warps = config.warp_layout_mn[1]
        self.steps = config.tile_shape_mnk[2] // STEP

    each: int
    """Elements of a lane of a step."""

    def ring_layout(self) -> Any:
        """The ring of tiles (rows, K, stages)."""
        return swizzled_for(self.operand.dtype, self.shape, self.each * self.operand.dtype.width // 8)

    def ring_bytes(self) -> int:
        """Shared memory of the ring."""
        rows, depth, stages = self.shape
        return rows * depth * stages * self.operand.dtype.width // 8

    def begin(self, ring: Any, thread: Any, lanes: Any, tile: tuple[int, int]) -> int:
        dtype = self.operand.dtype
        atom = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=self.each * dtype.width)
        self.copy = cute.make_tiled_copy(atom, lanes, tile).get_slice(thread)
        self.source = self.copy.partition_S(ring)  # (values, rows, steps, stages)
        count, self.blocks = cute.size(self.source, mode=[0]), cute.size(self.source, mode=[1])
        self.held = cute.make_rmem_tensor((count, self.blocks, self.steps), dtype)
        self.words = cute.recast_tensor(self.held, Int32)
        return self.steps

    def load(self, step: int, stage: Any) -> None:
        """Load what a step in K takes of a buffer."""
        target = cute.make_tensor(
            self.held[None, None, step].iterator,
            cute.make_layout((cute.shape(self.source)[0], self.blocks)),
        )
        cute.copy(self.copy, self.source[None, None, step, stage], target)


class ActivationFragments(_Lanes):
    """A, of elements as they are multiplied."""

    each = _EACH

    def __init__(self, operand: Operand, config: Sm80GemmConfig, packed: bool) -> None:
        super().__init__(operand, config.tile_shape_mnk[0], config.tile_shape_mnk[2], config)
        self.packed = packed

    def start(self, mma: Any, ring: Any, thread: Any) -> int:
        """Make room for what a thread has of a tile; how many steps in K it has."""
        lanes = cute.make_layout(((4, 8, self.warps), (_EACH,)), stride=((8 * _EACH, 1, 0), (8,)))
        return self.begin(ring, thread, lanes, (8, STEP))

    def taken(self, step: int) -> list[Any]:
        """What the tensor cores take in a step, one instruction in K after the other."""
        found = []
        for number in range(2):
            made = cute.make_rmem_tensor(((2, 2), self.blocks), self.operand.dtype)
            into = cute.recast_tensor(made, Int32)
            for block in range(self.blocks):
                four = [self.words[n + 4 * (block + self.blocks * step)] for n in range(4)]
                if self.packed:
                    pair = [arch.prmt(four[number], four[number + 2], Int32(x)) for x in (0x5410, 0x7632)]
                else:
                    pair = four[2 * number : 2 * number + 2]
                for half in range(2):
                    into[half + 2 * block] = pair[half]
            found.append(made)
        return found


class WeightFragments(_Lanes):
    """B, of integers of 8 or 4 bits that become elements of another type."""

    def __init__(self, operand: Operand, config: Sm80GemmConfig, packed: bool, into: Any) -> None:
        self.each = _EACH // 2 if packed else _EACH
        super().__init__(operand, config.tile_shape_mnk[1], config.tile_shape_mnk[2] // (2 if packed else 1), config)
        self.packed = packed
        self.into = into

    def start(self, mma: Any, ring: Any, thread: Any) -> int:
        """Make room for what a thread has of a tile; how many steps in K it has."""
        rows = 16 * self.warps
        lanes = cute.make_layout(((4, 8, self.warps), (self.each, 2)), stride=((rows * self.each, 1, 16), (rows, 8)))
        return self.begin(ring, thread, lanes, (rows, 4 * self.each))

    def taken(self, step: int) -> list[Any]:
        """What the tensor cores take in a step, one instruction in K after the other."""
        found = [cute.make_rmem_tensor(((2, 2, 2), self.blocks), self.into) for _ in range(2)]
        words = [cute.recast_tensor(x, Int32) for x in found]
        each = self.each // 4
        for place in range(2 * self.blocks):  # rows 8 apart, blocks of 16
            given = [self.words[n + each * (place + 2 * self.blocks * step)] for n in range(each)]
            if self.packed:
                pairs = halves_widened(given[0], self.into)
            else:
                pairs = [x for word in given for x in bytes_widened(word, self.operand.dtype, self.into)]
            for n, pair in enumerate(pairs):
                words[n // 2][place % 2 + 2 * (n % 2) + 4 * (place // 2)] = pair
        return found


def factor_rows(config: Sm80GemmConfig) -> int:
    """Columns of a tile in the ring of factors: as many as its threads copy at once, or a multiple."""
    return -(-config.tile_shape_mnk[1] // config.threads) * config.threads


class GroupScales:
    """Sums of groups of K, multiplied by the factors of a thread's columns before they are added to others.

    Factors of each tile of K, f32, come through a ring of their own in shared memory, with the tile.
    """

    __kiln_immutable__ = True

    def __init__(self, group: int, config: Sm80GemmConfig) -> None:
        self.group = group
        _, self.columns, self.depth = config.tile_shape_mnk
        self.chunk = min(group, self.depth)
        self.shape = (factor_rows(config), self.depth // self.chunk, config.stages)
        self.threads = config.threads

    def start(
        self, part: Any, tile: tuple[int, int], factors: Any, acc: Any, memory: Any, where: Any, thread: Any
    ) -> None:
        """`memory`: of the ring; `where`: which tile of columns is the block's."""
        self.ring = cute.make_tensor(cute.recast_ptr(memory, dtype=Float32), cute.make_layout(self.shape))
        self.factors = factors
        self.first = where * self.columns
        self.thread = thread
        self.sums = cute.make_rmem_tensor_like(acc)  # ((2 rows, 2 columns), columns, rows)
        self.places = part.partition_C(cute.make_identity_tensor(tile))
        self.now = cute.make_rmem_tensor((2, cute.size(acc, mode=[1]), self.shape[1]), Float32)

    def fetch(self, tile: Any, stage: Any, exists: Any) -> None:
        """Begin to copy the factors of a tile of K."""
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.ALWAYS), Float32, num_bits_per_copy=32)
        rows, groups = self.factors.shape
        for chunk in range(self.shape[1]):
            group = minimum((tile * self.depth + chunk * self.chunk) // self.group, groups - 1)
            for first in range(0, self.columns, self.threads):
                column, one = self.thread + first, cute.make_layout((1,))
                source = cute.domain_offset((minimum(self.first + column, rows - 1), group), self.factors)
                target = cute.domain_offset((column, chunk, stage), self.ring)
                cute.copy(atom, *(cute.make_tensor(x.iterator, one) for x in (source, target)), pred=exists)

    def take(self, stage: Any) -> None:
        """Load those of a thread's columns of a tile that has come."""
        for chunk in range(self.shape[1]):
            for n in range(self.now.shape[1]):
                for which in range(2):
                    self.now[which, n, chunk] = self.ring[self.places[(0, which), n, 0][0], chunk, stage]

    def multiply(self, mma: Any, acc: Any, pairs: Any, step: int) -> None:
        """Add the products of a step."""
        chunk, place = divmod(step * STEP, self.chunk)
        if place == 0:
            self.sums.fill(0)
        for left, right in pairs:
            cute.gemm(mma, self.sums, left, right, self.sums)
        if place + STEP == self.chunk:
            for n in range(cute.size(acc, mode=[1])):
                for which in range(2):
                    factor = self.now[which, n, chunk]
                    for m in range(cute.size(acc, mode=[2])):
                        for row in range(2):
                            where = ((row, which), n, m)
                            acc[where] = acc[where] + self.sums[where] * factor
