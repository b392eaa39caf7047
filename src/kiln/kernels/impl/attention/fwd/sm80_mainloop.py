"""A step of attention: scores of a block of keys, probabilities, and what they add to the outputs."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

from ..... import Float32, cute
from .....cute import arch
from .....cute.nvgpu import warp

if TYPE_CHECKING:
    from collections.abc import Callable

    from .query_tile import Tile

NOTHING = 1e30
"""Minus the maximum of no scores: finite, so that differences of maxima are numbers."""
SLACK = 8.0
"""So far, in powers of two, a score may exceed what counts as a row's maximum: its probability is still a good f16."""


_LEAST = 2.0**-100
"""A factor that makes nothing of any score but an infinite one."""


@cute.jit
def hiding(scale: Float32):
    """A factor of scores that leaves hidden what is: keys that are not seen have the score -inf, which times 0 would be no number."""
    return Float32(_LEAST) if (scale < _LEAST) & (scale > -_LEAST) else scale


class Products:
    """The two products of a step.

    Four matrices, 16 rows by 16 columns, are loaded at once. For Q and V a lane names row `lane % 16`, columns from
    `lane / 16 * 8`: their addresses differ by what is the same in all lanes, so that few are kept. For K, whose rows are the
    columns of the product, it is the other way round.
    """

    def __init__(
        self, of: Tile, mma: Any, thread: Any, q_tile: Any, k_ring: Any, v_ring: Any, scores: Any, out_acc: Any,
        probabilities: Any,
    ) -> None:  # fmt: skip
        self.mma, self.m_tiles, self.dtype = mma, of.config.m_tiles, of.dtype
        self.acc_scores, self.acc_out, self.probabilities = scores, out_acc, probabilities
        tile_m, tile_n, warps = of.config.tile_m, of.config.tile_n, of.config.warps
        depth, depth_v = of.padded // 16, of.padded_v // 16
        self.q_frag = cute.make_rmem_tensor((8, self.m_tiles, depth), of.dtype)
        self.k_frag = cute.make_rmem_tensor((4, 2, tile_n // 16, depth), of.dtype)
        self.v_frag = cute.make_rmem_tensor((4, 2, depth_v, tile_n // 16), of.dtype)
        self.rows = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), of.dtype)
        self.columns = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), of.dtype)
        lane = thread % 32
        first = arch.make_warp_uniform(thread // 32)
        down, across = (lane % 16, lane // 16), (lane % 8 + lane // 16 * 8, lane // 8 % 2)
        self.q_from = _Matrices(q_tile, down, (tile_m, of.columns_q), first, warps).of(0)
        self.k_ring = _Matrices(k_ring, across, (tile_n, of.padded))
        self.v_ring = _Matrices(v_ring, down, (tile_n, of.padded_v))

    def scores(self, buffer: Any) -> None:
        """S = Q K^T."""
        k_from = self.k_ring.of(buffer)
        pairs, depth = cute.size(self.k_frag, mode=[2]), cute.size(self.k_frag, mode=[3])

        def load(k: int, n: int) -> None:
            if n == 0:
                self.load_queries(k)
            target = cute.make_tensor(self.k_frag[None, None, n, k].iterator, cute.make_layout((8,)))
            cute.copy(self.rows, k_from(n, k), target)

        one_ahead(depth, pairs, load, self.multiply_keys)

    def load_queries(self, k: int) -> None:
        """Those of the columns that matrices `k` of keys have."""
        for m in range(self.m_tiles):
            cute.copy(self.rows, self.q_from(m, k), self.q_frag[None, m, k])

    def multiply_keys(self, k: int, n: int) -> None:
        """Queries times matrices of keys that were loaded."""
        for half in range(2):
            for m in range(self.m_tiles):
                acc = self.acc_scores[None, m, 2 * n + half]
                if k == 0:
                    acc.fill(0.0)
                cute.mma_atom_call(self.mma, acc, self.q_frag[None, m, k], self.k_frag[None, half, n, k], acc)

    def outputs(self, buffer: Any) -> None:
        """O = O + P V."""
        v_from = self.v_ring.of(buffer)
        pairs, depth = cute.size(self.v_frag, mode=[2]), cute.size(self.v_frag, mode=[3])

        def load(k: int, n: int) -> None:
            target = cute.make_tensor(self.v_frag[None, None, n, k].iterator, cute.make_layout((8,)))
            cute.copy(self.columns, v_from(k, n), target)

        one_ahead(depth, pairs, load, self.multiply_values)

    def multiply_values(self, k: int, n: int) -> None:
        """Weights times matrices of values that were loaded."""
        for half in range(2):
            for m in range(self.m_tiles):
                acc = self.acc_out[None, m, 2 * n + half]
                cute.mma_atom_call(self.mma, acc, self.probabilities[None, m, k], self.v_frag[None, half, n, k], acc)


def one_ahead(depth: int, pairs: int, load: Callable[[int, int], None], multiply: Callable[[int, int], None]) -> None:
    """Load matrices one place ahead of their multiplications."""
    places = [(k, n) for k in range(depth) for n in range(pairs)]
    load(*places[0])
    for place, following in zip(places, [*places[1:], None], strict=True):
        if following is not None:
            load(*following)
        multiply(*place)


class _Matrices:
    """A swizzled tile in shared memory, or a ring of them, as matrices of 16 rows and 16 columns that lanes name the rows of.

    `place`: which of the 16 rows a lane names, and which half of the 16 columns. `repeat` x 16 rows are from one matrix to the
    next, the first begins at row `first` x 16.
    """

    def __init__(self, tile: Any, place: Any, shape: tuple[int, int], first: Any = 0, repeat: int = 1) -> None:
        self.dtype = tile.element_type
        self.row = math.gcd(shape[1], 64)  # elements of a row of shared memory
        self.rows, self.size, self.repeat = shape[0], shape[0] * shape[1], repeat
        self.start = tile.iterator + first * (16 * self.row)
        self.offset = tile.layout.inner(place[0] * self.row + place[1] * 8)

    def of(self, buffer: Any) -> Callable[[int, int], Any]:
        """The row a lane names of a matrix (rows, columns) of one of the tiles.

        Buffers begin at multiples of the swizzle's period, where the offset of a column, being swizzled, is an exclusive or
        with the address: one address is kept for all columns.
        """
        address = (self.start + buffer * self.size + self.offset)._address()
        bits = self.dtype.width // 8
        columns = [
            cute.make_ptr(self.dtype, address ^ (16 * bits * c), cute.AddressSpace.smem, assumed_align=16)
            for c in range(self.row // 16)
        ]

        def matrix(rows: int, number: int) -> Any:
            turn, column = divmod(number, len(columns))
            start = (rows * 16 * self.repeat + turn * self.rows) * self.row
            return cute.make_tensor(columns[column] + start, cute.make_layout((8,)))

        return matrix


class Softmax:
    """What turns scores into probabilities."""

    def __init__(
        self, of: Tile, scores: Any, lowered: Any, sums: Any, probabilities: Any, out_acc: Any, scale: Any,
        cap: Any,
    ) -> None:  # fmt: skip
        self.of = of
        self.acc, self.lowered, self.sums = scores, lowered, sums
        self.probabilities, self.out_acc, self.scale, self.cap = probabilities, out_acc, scale, cap
        self.pairs = of.config.tile_n // 8
        self.rows = [(half, m) for m in range(of.config.m_tiles) for half in range(2)]

    def cap_scores(self) -> None:
        """Scores s to tanh(s times the factor of the cap); the scale of the softmax has the rest of it."""
        for n in range(self.pairs):
            for half, m in self.rows:
                for c in range(2):
                    power = arch.exp2(self.acc[(c, half), m, n] * self.cap)
                    self.acc[(c, half), m, n] = 1.0 - 2.0 * arch.rcp_approx(power + 1.0)

    def maxima(self) -> list[Any]:
        """The largest score of each row that this thread has."""
        found = [arch.fmax(self.acc[(0, half), m, 0], self.acc[(1, half), m, 0]) for half, m in self.rows]
        for n in range(1, self.pairs):
            for c in range(2):
                for number, (half, m) in enumerate(self.rows):
                    found[number] = arch.fmax(found[number], self.acc[(c, half), m, n])
        return found

    def exceeded(self, found: list[Any]) -> Any:
        """Whether a score of this thread is too far above what its row is compared with."""
        over = [cute.math.fma(x, self.scale, self.lowered[n]) > SLACK for n, x in enumerate(found)]
        return functools.reduce(lambda a, b: a | b, over)

    def raise_reference(self, found: list[Any]) -> None:
        """Compare rows with their maxima from now on, and scale what was summed so far accordingly."""
        for number, (half, m) in enumerate(self.rows):
            highest = found[number]
            for distance in (1, 2):  # a row is in four threads
                highest = arch.fmax(highest, arch.shuffle_sync_bfly(highest, offset=distance))
            before = self.lowered[number]
            now = arch.fmin(before, -(highest * self.scale))
            factor = arch.exp2(now - before)
            self.lowered[number] = now
            self.sums[number] = self.sums[number] * factor
            for n in range(self.of.columns // 8):
                for c in range(2):
                    self.out_acc[(c, half), m, n] = self.out_acc[(c, half), m, n] * factor

    def make_probabilities(self) -> None:
        """The powers of the scores, in the type of the values, and their sums."""
        for n in range(self.pairs):
            for number, (half, m) in enumerate(self.rows):
                for c in range(2):
                    power = cute.math.fma(self.acc[(c, half), m, n], self.scale, self.lowered[number])
                    self.acc[(c, half), m, n] = arch.exp2(power)
                self.sums[number] = self.sums[number] + (self.acc[(0, half), m, n] + self.acc[(1, half), m, n])
            for m in range(self.of.config.m_tiles):
                target = cute.make_tensor(
                    self.probabilities[None, m, n // 2].iterator + 4 * (n % 2), cute.make_layout(4)
                )
                target.store(self.acc[None, m, n].load().to(self.of.dtype).reshape((4,)))
