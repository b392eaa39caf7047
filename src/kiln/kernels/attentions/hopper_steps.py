"""A step of attention in a warp group: its two products, which run while scores become weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float32, cute
from ...cute import arch
from ...cute.nvgpu import warpgroup
from .steps import NOTHING

if TYPE_CHECKING:
    from .hopper import HopperForward

ROWS = 2
"""Rows of scores that a thread has, 8 apart; four threads share a row."""


class Products:
    """The two products of a step: S = Q K^T, and O = O + P V with P in registers. Both are begun here, and waited for elsewhere."""

    def __init__(self, of: HopperForward, thread: Any, queries: Any, k_ring: Any, v_ring: Any) -> None:
        block_k = of.tiling.block_k
        self.of_scores, self.of_outputs = of.mma_scores(), of.mma_outputs()
        first, second = (mma.get_slice(thread) for mma in (self.of_scores, self.of_outputs))
        self.queries = self.of_scores.make_fragment_A(first.partition_A(queries))
        self.keys = self.of_scores.make_fragment_B(first.partition_B(k_ring))
        self.values = self.of_outputs.make_fragment_B(second.partition_B(v_ring))
        self.scores = cute.make_rmem_tensor(self.of_scores.partition_shape_C((64, block_k)), Float32)
        self.sums = cute.make_rmem_tensor(self.of_outputs.partition_shape_C((64, of.dim_v)), Float32)
        self.weights = cute.make_rmem_tensor(((2, 2, 2), 1, block_k // 16), of.dtype)

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

    def __init__(self, of: HopperForward, products: Products, scale: Any, cap: Any) -> None:
        self.scores, self.sums, self.weights = products.scores, products.sums, products.weights
        self.pairs, self.pairs_out = of.tiling.block_k // 8, of.dim_v // 8
        self.dtype, self.scale, self.cap = of.dtype, scale, cap
        self.lowered, self.totals, self.factors = (cute.make_rmem_tensor((ROWS,), Float32) for _ in range(3))

    def begin(self) -> None:
        """Nothing has been summed."""
        self.lowered.fill(NOTHING)
        self.totals.fill(0.0)
        self.sums.fill(0.0)

    def cap_scores(self) -> None:
        """Scores s to tanh(s times the factor of the cap); the scale of the softmax has the rest of it."""
        for i in range(cute.size(self.scores)):
            power = arch.exp2(self.scores[i] * self.cap)
            self.scores[i] = 1.0 - 2.0 * arch.rcp_approx(power + 1.0)

    def powers(self) -> None:
        """Scores to powers, relative to the largest score of their row so far. What was summed of them before is scaled, O not yet."""
        # Of each row the even and the odd columns by themselves: four chains of instructions that do not wait for each other.
        chains = [(c, half) for half in range(ROWS) for c in range(2)]
        found = {chain: self.scores[(*chain, 0), 0, 0] for chain in chains}
        for n in range(1, self.pairs):
            for chain in chains:
                found[chain] = arch.fmax(found[chain], self.scores[(*chain, n), 0, 0])
        for half in range(ROWS):
            highest = arch.fmax(found[0, half], found[1, half])
            for distance in (1, 2):
                highest = arch.fmax(highest, arch.shuffle_sync_bfly(highest, offset=distance))
            before = self.lowered[half]
            now = arch.fmin(before, -(highest * self.scale))
            factor = arch.exp2(now - before)
            total = self.totals[half] * factor
            for n in range(self.pairs):
                for c in range(2):
                    power = arch.exp2(cute.math.fma(self.scores[(c, half, n), 0, 0], self.scale, now))
                    self.scores[(c, half, n), 0, 0] = power
                    total = total + power
            self.lowered[half], self.totals[half], self.factors[half] = now, total, factor

    def rescale(self) -> None:
        """Scale what was summed of the values by what the references have changed."""
        for half in range(ROWS):
            for n in range(self.pairs_out):
                for c in range(2):
                    self.sums[(c, half, n), 0, 0] = self.sums[(c, half, n), 0, 0] * self.factors[half]

    def make_weights(self) -> None:
        """Powers in the type of the values: the accumulator of one product is, rounded, the left operand of the other."""
        self.weights.store(self.scores.load().to(self.dtype).reshape(self.weights.shape))
