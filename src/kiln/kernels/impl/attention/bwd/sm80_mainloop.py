"""A step of the gradients of attention: two products, what they become in registers, and two products that are summed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, cute
from .....cute import arch
from .....cute.nvgpu import warp
from ..fwd.sm80_mainloop import _Matrices, one_ahead

if TYPE_CHECKING:
    from .sm80 import Pass


class Products:
    """A = X U^T and B = Y W^T from shared memory, and what dS U and P W add, with dS and P in registers.

    How lanes name the rows of matrices in shared memory is said in `attentions/steps.py`.
    """

    def __init__(self, of: Pass, mma: Any, thread: Any, tiles: Any, rings: Any) -> None:
        block, step = of.config.tile_m, of.config.tile_n
        self.mma, self.dtype, self.steps = mma, of.dtype, step // 16
        self.depths = (of.padded // 16, of.padded_v // 16)
        scores = mma.partition_shape_C((block, step))
        self.acc_scores, self.acc_gradients = (cute.make_rmem_tensor(scores, Float32) for _ in range(2))
        self.rounded_scores, self.rounded_weights = (
            cute.make_rmem_tensor((8, 1, self.steps), of.dtype) for _ in range(2)
        )
        self.sum_scores, self.sum_weights = (
            cute.make_rmem_tensor(mma.partition_shape_C((block, n)), Float32) if there else None
            for n, there in ((of.padded, of.of_scores), (of.padded_v, of.of_weights))
        )
        for sums in (self.sum_scores, self.sum_weights):
            if sums is not None:
                sums.fill(0.0)
        self.rows = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), of.dtype)
        self.columns = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 4), of.dtype)
        lane, first = thread % 32, arch.make_warp_uniform(thread // 32)
        down, across = (lane % 16, lane // 16), (lane % 8 + lane // 16 * 8, lane // 8 % 2)
        widths = (of.padded, of.padded_v)
        self.own = [_Matrices(x, down, (block, n), first, of.config.warps).of(0) for x, n in zip(tiles, widths)]
        self.as_columns = [_Matrices(x, across, (step, n)) for x, n in zip(rings, widths)]
        self.as_rows = [_Matrices(x, down, (step, n)) for x, n in zip(rings, widths)]

    def scores(self, buffer: Any) -> None:
        """A = X U^T."""
        self._multiply(self.acc_scores, 0, buffer)

    def gradients(self, buffer: Any) -> None:
        """B = Y W^T, if it is needed."""
        if self.sum_scores is not None:
            self._multiply(self.acc_gradients, 1, buffer)

    def add(self, buffer: Any) -> None:
        """Add dS U and P W."""
        if self.sum_scores is not None:
            self._add(self.sum_scores, self.rounded_scores, 0, buffer)
        if self.sum_weights is not None:
            self._add(self.sum_weights, self.rounded_weights, 1, buffer)

    def _multiply(self, acc: Any, which: int, buffer: Any) -> None:
        own, others, depth = self.own[which], self.as_columns[which].of(buffer), self.depths[which]
        left = cute.make_rmem_tensor((8, depth), self.dtype)
        right = cute.make_rmem_tensor((4, 2, self.steps, depth), self.dtype)

        def load(k: int, n: int) -> None:
            if n == 0:
                cute.copy(self.rows, own(0, k), left[None, k])
            cute.copy(self.rows, others(n, k), _flat(right[None, None, n, k]))

        def multiply(k: int, n: int) -> None:
            for half in range(2):
                to = acc[None, 0, 2 * n + half]
                if k == 0:
                    to.fill(0.0)
                cute.mma_atom_call(self.mma, to, left[None, k], right[None, half, n, k], to)

        one_ahead(depth, self.steps, load, multiply)

    def _add(self, sums: Any, left: Any, which: int, buffer: Any) -> None:
        others, pairs = self.as_rows[which].of(buffer), self.depths[which]
        right = cute.make_rmem_tensor((4, 2, pairs, self.steps), self.dtype)

        def load(k: int, n: int) -> None:
            cute.copy(self.columns, others(k, n), _flat(right[None, None, n, k]))

        def multiply(k: int, n: int) -> None:
            for half in range(2):
                to = sums[None, 0, 2 * n + half]
                cute.mma_atom_call(self.mma, to, left[None, 0, k], right[None, half, n, k], to)

        one_ahead(self.steps, pairs, load, multiply)


@cute.jit
def _between(number: Int32, last: Int32):
    """The nearest number from 0 to the last."""
    return max(min(number, last), Int32(0))


def _flat(x: Any) -> Any:
    return cute.make_tensor(x.iterator, cute.make_layout((8,)))


class Weights:
    """What turns A and B into P and dS."""

    def __init__(self, of: Pass, products: Products, numbers: Any) -> None:
        self.of, self.products, self.numbers = of, products, numbers
        self.pairs = of.config.tile_n // 8
        self.by_rows = of.side == "queries"
        known = 2 if self.by_rows else 2 * self.pairs
        self.lowered, self.sums = (cute.make_rmem_tensor((known,), Float32) for _ in range(2))
        sloping = of.capped or of.change.function is not None
        self.slopes: Any = cute.make_rmem_tensor(products.acc_scores.shape, Float32) if sloping else None

    def take_rows(self, known: Any, first: Any, end: Any) -> None:
        """Keep what is known of the queries whose rows this thread has."""
        lane, of_warp = arch.lane_idx(), arch.make_warp_uniform(arch.warp_idx())
        for half in range(2):
            self._take(half, known, first + of_warp * 16 + lane // 4 + 8 * half, end)

    def take_columns(self, known: Any, first: Any, end: Any) -> None:
        """Keep what is known of the queries whose columns this thread has."""
        lane = arch.lane_idx()
        for n in range(self.pairs):
            for c in range(2):
                self._take(2 * n + c, known, first + lane % 4 * 2 + 8 * n + c, end)

    def _take(self, number: int, known: Any, query: Any, end: Any) -> None:
        # one that does not exist is hidden; the last is read in its place
        query = _between(query, Int32(end) - 1)
        self.lowered[number] = -known[0, query]
        self.sums[number] = known[1, query]

    def cap_scores(self) -> None:
        """Scores s to tanh(s times the factor of the cap), whose slopes are kept."""
        scores = self.products.acc_scores
        for i in range(cute.size(scores)):
            power = arch.exp2(scores[i] * self.numbers.cap)
            scores[i] = 1.0 - 2.0 * arch.rcp_approx(power + 1.0)
            self.slopes[i] = 1.0 - scores[i] * scores[i]

    def make(self) -> None:
        """P = exp(S - logarithms), dS = P (dP - sums), both in the type of the operands."""
        products = self.products
        scores, gradients = products.acc_scores, products.acc_gradients
        for n in range(self.pairs):
            for half in range(2):
                for c in range(2):
                    at, known = ((c, half), 0, n), half if self.by_rows else 2 * n + c
                    weight = arch.exp2(cute.math.fma(scores[at], self.numbers.scale, self.lowered[known]))
                    scores[at] = weight
                    if products.sum_scores is not None:
                        change = weight * (gradients[at] - self.sums[known])
                        gradients[at] = change if self.slopes is None else change * self.slopes[at]
            rounded = (
                (scores, products.rounded_weights, products.sum_weights),
                (gradients, products.rounded_scores, products.sum_scores),
            )
            for of, to in ((of, to) for of, to, sums in rounded if sums is not None):
                target = cute.make_tensor(to[None, 0, n // 2].iterator + 4 * (n % 2), cute.make_layout(4))
                target.store(of[None, 0, n].load().to(self.of.dtype).reshape((4,)))
