"""A step of attention in a warp group: its two products, which run while scores become weights."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ..... import Boolean, Float32, Int32, cute
from .....cute import arch
from .....cute.nvgpu import warp, warpgroup
from .query_tile import begun_here
from .sm80_mainloop import NOTHING, SLACK

if TYPE_CHECKING:
    from .sm90 import Sm90ForwardKernel

ROWS = 2
"""Rows of scores that a thread has, 8 apart; four threads share a row."""


_FOUR = """{
.reg .b16 low, high;
cvt.rn.satfinite.e4m3x2.f32 low, {$r1}, {$r0};
cvt.rn.satfinite.e4m3x2.f32 high, {$r3}, {$r2};
mov.b32 {$w0}, {low, high};
}"""
"""Four f32 to numbers of 8 bits in one register."""


class Products:
    """The two products of a step: S = Q K^T, and O = O + P V with P in registers. Both are begun here, and waited for elsewhere."""

    def __init__(self, of: Sm90ForwardKernel, thread: Any, queries: Any, k_ring: Any, v_ring: Any) -> None:
        tile_n = of.config.tile_n
        self.of_scores, self.of_outputs = of.mma_scores(), of.mma_outputs()
        first, second = (mma.get_slice(thread) for mma in (self.of_scores, self.of_outputs))
        self.held, self.begins_here = of.config.q_in_regs, of.begins_here
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
        self.scores = cute.make_rmem_tensor(self.of_scores.partition_shape_C((64, tile_n)), Float32)
        self.sums = cute.make_rmem_tensor(self.of_outputs.partition_shape_C((64, of.dim_v)), Float32)
        inner = (4, 2, 2) if of.narrow else (2, 2, 2)
        self.weights = cute.make_rmem_tensor((inner, 1, tile_n // (32 if of.narrow else 16)), of.dtype)

    def take_queries(self) -> None:
        """Load queries into registers."""
        cute.copy(self.copy_queries, self.from_queries, self.copy_queries.retile(self.queries))

    def begin_scores(self, buffer: Any) -> None:
        """Begin S = Q K^T."""
        queries = begun_here(self.queries) if self.begins_here else self.queries
        for k in range(cute.size(queries, mode=[2])):
            self.of_scores.set(warpgroup.Field.ACCUMULATE, k > 0)
            keys = self.keys[None, None, k, buffer]
            cute.gemm(self.of_scores, self.scores, queries[None, None, k], keys, self.scores)
        warpgroup.commit_group()

    def begin_outputs(self, buffer: Any) -> None:
        """Begin O = O + P V."""
        self.of_outputs.set(warpgroup.Field.ACCUMULATE, True)
        for k in range(cute.size(self.weights, mode=[2])):
            values = self.values[None, None, k, buffer]
            cute.gemm(self.of_outputs, self.sums, self.weights[None, None, k], values, self.sums)
        warpgroup.commit_group()


class Softmax:
    """What turns scores into weights: powers of two relative to a reference of each row, and their sums. `scaled`: tiles have factors."""

    __kiln_immutable__ = True

    def __init__(self, of: Sm90ForwardKernel, products: Products, scale: Any, scaled: bool) -> None:
        self.scores, self.sums, self.weights = products.scores, products.sums, products.weights
        self.pairs, self.pairs_out = of.config.tile_n // 8, of.dim_v // 8
        self.dtype, self.narrow = of.dtype, of.narrow
        self.common, self.scaled, self.scales = scale, scaled, cute.make_rmem_tensor((1,), Float32)
        # of numbers of 8 bits the smallest are too coarse: the largest weight is not 1
        self.highest = 5.0 if of.narrow else 0.0
        self.lowered, self.totals, self.factors, self.found = (
            cute.make_rmem_tensor((ROWS,), Float32) for _ in range(4)
        )
        self.raised = cute.make_rmem_tensor((1,), Boolean)

    @property
    def scale(self) -> Any:
        """The factor of scores, in powers of two: of this tile, where queries and keys have factors."""
        return self.scales[0] if self.scaled else self.common

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
                    power = arch.exp2(cute.math.fma(self.scores[(c, half, n), 0, 0], self.scale, now))
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
            now = arch.fmin(before, self.highest - highest * self.scale)
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
        if not self.narrow:
            self.weights.store(self.scores.load().to(self.dtype).reshape(self.weights.shape))
            return
        # Of 32 keys a thread has the columns 8 n + 2 q and the next; as a left operand they count as four keys in succession, twice:
        # `transpose_v_kernel` lays keys in this order.
        pairs = cute.recast_tensor(self.weights, Int32)
        for k in range(self.pairs // 4):
            for later, half in itertools.product(range(2), range(ROWS)):
                four = [self.scores[(c, half, 4 * k + 2 * later + n), 0, 0] for n in range(2) for c in range(2)]
                pairs[4 * k + 2 * later + half] = arch.inline_ptx(_FOUR, write_only_types=[Int32], read_only_args=four)
