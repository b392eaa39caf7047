"""A step of attention in a warp group: its two products, which run while scores become weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Boolean, Float32, Int32, cute
from ...cute import arch
from ...cute.nvgpu import warp, warpgroup
from .steps import NOTHING, SLACK

if TYPE_CHECKING:
    from .hopper import HopperForward

ROWS = 2
"""Rows of scores that a thread has, 8 apart; four threads share a row."""


_POLYNOMIAL = (0.009570079855620861, 0.05591783672571182, 0.240247443318367, 0.6931217908859253, 0.9999992847442627)
"""2^x for x from -1/2 to 1/2, the highest power first: relative error below 2^-18."""
_ROUND = 12582912.0
"""1.5 * 2^23: a number of at most 2^22 plus this is rounded to an integer, which its lowest bits are."""


def power_of_two(x: Any) -> Any:
    """2^x by multiplications and additions, which other units do than those of `arch.exp2`; x is at most 127, and results below 2^-126
    count as that."""
    x = arch.fmax(x, -126.0, nan=True)
    shifted = x + _ROUND
    rest = x - (shifted - _ROUND)
    value = Float32(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        value = cute.math.fma(value, rest, Float32(factor))
    return ((shifted.bitcast(Int32) << 23) + value.bitcast(Int32)).bitcast(Float32)


class Products:
    """The two products of a step: S = Q K^T, and O = O + P V with P in registers. Both are begun here, and waited for elsewhere."""

    def __init__(self, of: HopperForward, thread: Any, queries: Any, k_ring: Any, v_ring: Any) -> None:
        block_k = of.tiling.block_k
        self.of_scores, self.of_outputs = of.mma_scores(), of.mma_outputs()
        first, second = (mma.get_slice(thread) for mma in (self.of_scores, self.of_outputs))
        self.held = of.tiling.queries_held
        if self.held:
            self.queries = self.of_scores.make_fragment_A(first.partition_shape_A((64, of.dim)))
            atom = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), of.dtype)
            copy = cute.make_tiled_copy_A(atom, self.of_scores)
            self.from_queries = copy.get_slice(thread).partition_S(queries)
            self.copy_queries = copy
        else:
            self.queries = self.of_scores.make_fragment_A(first.partition_A(queries))
        self.keys = self.of_scores.make_fragment_B(first.partition_B(k_ring))
        self.values = self.of_outputs.make_fragment_B(second.partition_B(v_ring))
        self.scores = cute.make_rmem_tensor(self.of_scores.partition_shape_C((64, block_k)), Float32)
        self.sums = cute.make_rmem_tensor(self.of_outputs.partition_shape_C((64, of.dim_v)), Float32)
        self.weights = cute.make_rmem_tensor(((2, 2, 2), 1, block_k // 16), of.dtype)

    def take_queries(self) -> None:
        """Load queries into registers."""
        cute.copy(self.copy_queries, self.from_queries, self.copy_queries.retile(self.queries))

    def begin_scores(self, buffer: Any) -> None:
        """Begin S = Q K^T."""
        for k in range(cute.size(self.queries, mode=[2])):
            self.of_scores.set(warpgroup.Field.ACCUMULATE, k > 0)
            keys = self.keys[None, None, k, buffer]
            cute.gemm(self.of_scores, self.scores, self.queries[None, None, k], keys, self.scores)
        warpgroup.commit_group()

    def begin_outputs(self, buffer: Any) -> None:
        """Begin O = O + P V."""
        self.of_outputs.set(warpgroup.Field.ACCUMULATE, True)
        for k in range(cute.size(self.weights, mode=[2])):
            values = self.values[None, None, k, buffer]
            cute.gemm(self.of_outputs, self.sums, self.weights[None, None, k], values, self.sums)
        warpgroup.commit_group()


class Softmax:
    """What turns scores into weights: powers of two relative to a reference of each row, and their sums."""

    __kiln_immutable__ = True

    def __init__(self, of: HopperForward, products: Products, scale: Any) -> None:
        self.scores, self.sums, self.weights = products.scores, products.sums, products.weights
        self.pairs, self.pairs_out = of.tiling.block_k // 8, of.dim_v // 8
        self.dtype, self.scale, self.multiplied = of.dtype, scale, of.tiling.multiplied
        self.lowered, self.totals, self.factors, self.found = (
            cute.make_rmem_tensor((ROWS,), Float32) for _ in range(4)
        )
        self.raised = cute.make_rmem_tensor((1,), Boolean)

    def begin(self) -> None:
        """Nothing has been summed."""
        self.lowered.fill(NOTHING)
        self.totals.fill(0.0)
        self.sums.fill(0.0)

    def powers(self, lazy: bool) -> None:
        """Scores to powers, relative to a reference of their row. What was summed of them before is scaled, O not yet (`rescale`).

        References are the largest scores so far; `lazy`: they are raised only when a score of the warp exceeds them by much.
        """
        # Of each row the even and the odd columns by themselves: four chains of instructions that do not wait for each other.
        chains = [(c, half) for half in range(ROWS) for c in range(2)]
        found = {chain: self.scores[(*chain, 0), 0, 0] for chain in chains}
        for n in range(1, self.pairs):
            for chain in chains:
                found[chain] = arch.fmax(found[chain], self.scores[(*chain, n), 0, 0])
        for half in range(ROWS):
            self.found[half] = arch.fmax(found[0, half], found[1, half])
        if lazy:
            self.raise_where_exceeded()
        else:
            self.raise_references()
        for half in range(ROWS):
            total, now = self.totals[half], self.lowered[half]
            for n in range(self.pairs):
                for c in range(2):
                    power = cute.math.fma(self.scores[(c, half, n), 0, 0], self.scale, now)
                    power = power_of_two(power) if (2 * n + c) % 8 < self.multiplied else arch.exp2(power)
                    self.scores[(c, half, n), 0, 0] = power
                    total = total + power
            self.totals[half] = total

    @cute.jit
    def raise_where_exceeded(self):
        """Raise references if a score of the warp is far above them."""
        over = [cute.math.fma(self.found[half], self.scale, self.lowered[half]) > SLACK for half in range(ROWS)]
        self.raised[0] = arch.vote_any_sync(over[0] | over[1])
        if self.raised[0]:
            self.raise_references()

    def raise_references(self) -> None:
        """Compare rows with their maxima from now on, and scale the sums so far accordingly."""
        for half in range(ROWS):
            highest = self.found[half]
            for distance in (1, 2):  # a row is in four threads
                highest = arch.fmax(highest, arch.shuffle_sync_bfly(highest, offset=distance))
            before = self.lowered[half]
            now = arch.fmin(before, -(highest * self.scale))
            factor = arch.exp2(now - before)
            self.lowered[half], self.totals[half], self.factors[half] = now, self.totals[half] * factor, factor

    @cute.jit
    def rescale_if_raised(self):
        """Scale what was summed of the values if references have changed."""
        if self.raised[0]:
            self.rescale()

    def rescale(self) -> None:
        """Scale what was summed of the values by what the references have changed."""
        for half in range(ROWS):
            for n in range(self.pairs_out):
                for c in range(2):
                    self.sums[(c, half, n), 0, 0] = self.sums[(c, half, n), 0, 0] * self.factors[half]

    def make_weights(self) -> None:
        """Powers in the type of the values: the accumulator of one product is, rounded, the left operand of the other."""
        self.weights.store(self.scores.load().to(self.dtype).reshape(self.weights.shape))
