"""A step of the gradients of attention in a warp group: its five products, and what is done in registers between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, cute
from .....cute import arch
from .....cute.nvgpu import warp, warpgroup
from .....utils import sm90
from .score_mod import shown
from .sm90_config import BUFFERS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .sm90 import Sm90BackwardKernel

ROWS = 64
"""Keys of a warp group."""


class Own(NamedTuple):
    """Operands that differ between warp groups: keys and values, keys with elements along M, dS."""

    keys: Any
    values: Any
    keys_across: Any
    changes: Any


class Seen(NamedTuple):
    """What scores are of: sequence, head, the first query and key of a thread, how far the key is after the query; the slope of the head."""

    batch: Any
    head: Any
    query: Any
    key: Any
    distance: Any
    slope: Any


class Products:
    """S^T = K Q^T and dP^T = V dO^T, dV += P^T dO and dK += dS^T Q with P^T and dS^T in registers, and dQ^T = K^T dS^T with dS in
    shared memory. All are begun here, and waited for elsewhere.

    A tile of queries is the right operand twice: queries are columns of S^T, and along K of dK.
    """

    __kiln_immutable__ = True

    def __init__(self, of: Sm90BackwardKernel, thread: Any, shared: Any) -> None:
        elements, tile_m = of.elements, of.config.tile_m
        self.of, self.thread, self.shared = of, thread, shared
        major, minor = warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN
        make = lambda *given: sm90.make_trivial_tiled_mma(of.dtype, of.dtype, *given)
        self.of_scores = make(major, major, Float32, (1, 1, 1), (ROWS, tile_m))
        self.of_sums = make(major, minor, Float32, (1, 1, 1), (ROWS, elements), warpgroup.OperandSource.RMEM)
        self.of_queries = make(minor, major, Float32, (1, 1, 1), (ROWS, of.columns))
        self.of_held = make(major, major, Float32, (1, 1, 1), (ROWS, tile_m), warpgroup.OperandSource.RMEM)
        self.held = [
            cute.make_rmem_tensor(((2, 2, 2), 1, elements // 16), of.dtype) for _ in range(of.config.operands_in_regs)
        ]
        scores, sums = (x.get_slice(thread) for x in (self.of_scores, self.of_sums))
        self.queries, self.gradients = (
            self.of_scores.make_fragment_B(scores.partition_B(x)) for x in (shared.queries, shared.gradients)
        )
        self.queries_down, self.gradients_down = (
            self.of_sums.make_fragment_B(sums.partition_B(transposed(x))) for x in (shared.queries, shared.gradients)
        )
        made = lambda mma, shape: cute.make_rmem_tensor(mma.partition_shape_C(shape), Float32)
        self.acc_scores, self.acc_gradients = (made(self.of_scores, (ROWS, tile_m)) for _ in range(2))
        self.dk, self.dv = (made(self.of_sums, (ROWS, elements)) for _ in range(2))
        self.dq = made(self.of_queries, (ROWS, of.columns))
        self.weights, self.rounded = (cute.make_rmem_tensor(((2, 2, 2), 1, tile_m // 16), of.dtype) for _ in range(2))

    def own(self, group: Any) -> Own:
        """Operands of a warp group. In a loop they are made of a number that exists there only: it is less to keep in registers."""
        of, shared = self.of, self.shared
        scores, queries = (x.get_slice(self.thread) for x in (self.of_scores, self.of_queries))
        halves = (cute.local_tile(x, (ROWS, of.elements), (group, 0)) for x in (shared.keys, shared.values))
        keys, values = (self.of_scores.make_fragment_A(scores.partition_A(x)) for x in halves)
        # dQ^T: a warp group has some of the elements, or some of the queries
        across, changes = transposed(shared.keys), shared.changes
        if of.by_elements:
            across = cute.local_tile(across, (ROWS, of.keys), (group, 0))
        else:
            changes = cute.local_tile(changes, (of.columns, of.keys, BUFFERS), (group, 0, 0))
        return Own(
            keys,
            values,
            self.of_queries.make_fragment_A(queries.partition_A(across)),
            self.of_queries.make_fragment_B(queries.partition_B(changes)),
        )

    def hold(self, group: Any) -> None:
        """Load the values of a warp group, or values and keys, into registers: shared memory is then read the less for their products."""
        of = self.of
        load = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), of.dtype), self.of_held)
        loader = load.get_slice(self.thread)
        for x, held in zip((self.shared.values, self.shared.keys), self.held, strict=False):
            tile = cute.local_tile(x, (ROWS, of.elements), (group, 0))
            cute.copy(load, loader.partition_S(tile), loader.retile(held))

    def begin_scores(self, own: Own, buffer: Any) -> None:
        """Begin S^T = K Q^T."""
        if len(self.held) > 1:
            self._begin(self.of_held, self.acc_scores, self.held[1], self.queries, buffer)
        else:
            self._begin(self.of_scores, self.acc_scores, own.keys, self.queries, buffer)

    def begin_gradients(self, own: Own, buffer: Any) -> None:
        """Begin dP^T = V dO^T."""
        if self.held:
            self._begin(self.of_held, self.acc_gradients, self.held[0], self.gradients, buffer)
        else:
            self._begin(self.of_scores, self.acc_gradients, own.values, self.gradients, buffer)

    def begin_values(self, buffer: Any) -> None:
        """Begin dV += P^T dO."""
        self._begin(self.of_sums, self.dv, self.weights, self.gradients_down, buffer, True)

    def begin_keys(self, buffer: Any) -> None:
        """Begin dK += dS^T Q."""
        self._begin(self.of_sums, self.dk, self.rounded, self.queries_down, buffer, True)

    def begin_queries(self, own: Own, buffer: Any) -> None:
        """Begin dQ^T = K^T dS^T."""
        self._begin(self.of_queries, self.dq, own.keys_across, own.changes, buffer)

    def _begin(self, mma: Any, acc: Any, left: Any, right: Any, buffer: Any, add: bool = False) -> None:
        for k in range(cute.size(left, mode=[2])):
            mma.set(warpgroup.Field.ACCUMULATE, add or k > 0)
            cute.gemm(mma, acc, left[None, None, k], right[None, None, k, buffer], acc)
        warpgroup.commit_group()


def transposed(x: Any) -> Any:
    """A tile in shared memory with its first two modes exchanged."""
    modes = [1, 0, *range(2, cute.rank(x))]
    return cute.make_tensor(x.iterator, cute.select(x.layout, mode=modes))


class Weights:
    """What turns S^T and dP^T into P^T and dS^T. A thread has of each eight queries two, and of 64 keys two."""

    __kiln_immutable__ = True

    def __init__(
        self, of: Sm90BackwardKernel, products: Products, thread: Any, group: Any, shared: Any, numbers: Any
    ) -> None:
        self.of, self.products, self.numbers = of, products, numbers
        self.sixteens = of.config.tile_m // 16
        self.sloping = of.capped or of.change.function is not None
        self.known = shared.known
        self.first = thread % 4 * 4
        # dS lies (query, key) in shared memory, and is written as (key, query)
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(True, 4), of.dtype)
        self.write = cute.make_tiled_copy_C(atom, products.of_scores)
        own = cute.local_tile(transposed(shared.changes), (ROWS, of.config.tile_m, BUFFERS), (group, 0, 0))
        self.places = self.write.get_slice(thread).partition_D(own)

    def _four(self, which: int, k: int, buffer: Any) -> Any:
        """What is known of the four of 16 queries that a thread has: binary logarithms, or sums. Two of eight, then two of the next."""
        at = self.known[None, which, buffer].iterator + (self.first + 16 * k)
        return cute.make_tensor(at.with_alignment(16), cute.make_layout(4)).load()

    def cap_scores(self) -> None:
        """Scores s to tanh(s times the factor of the cap)."""
        scores = self.products.acc_scores
        for i in range(cute.size(scores)):
            power = arch.exp2(scores[i] * self.numbers.cap)
            scores[i] = 1.0 - 2.0 * arch.rcp_approx(power + 1.0)

    def _changed(self, score: Any, at: Any, seen: Any) -> tuple[Any, Any]:
        """A score after what distances and a function do to it, and the slope of that (None: 1). One that is hidden, -inf, stays hidden."""
        change = self.of.change
        if not change:
            return score, None
        (c, half, eight), _, _ = at
        query, key = 8 * eight + c, 8 * half
        natural = change.lowered(score * self.numbers.natural, seen.slope, seen.distance + float(key - query))
        made, slope = change.applied(natural, (seen.batch, seen.head, seen.query + query, seen.key + key))
        if slope is None:
            return made, None
        there = score > -float("inf")
        return shown(there, made, -float("inf")), shown(there, slope, 0.0)

    def make_weights(self, buffer: Any, half_of: int, seen: Any) -> None:
        """P = exp(S - logarithms), the first half of it or the second; `seen`: what scores are of, if that matters.

        With a cap, or a function, they are rounded at once, and what stays is P times the slopes at the scores: no register has to keep these.
        """
        scores = self.products.acc_scores
        middle = self.sixteens // 2
        for k in range(middle, self.sixteens) if half_of else range(middle):
            known = self._four(0, k, buffer)
            slopes = []
            for at, number in self._places(k):
                # one that is hidden is -inf, and has slope 0
                of_cap = cute.arch.fmax(1.0 - scores[at] * scores[at], 0.0) if self.of.capped else None
                score, slope = self._changed(scores[at], at, seen)
                slopes.append(of_cap if slope is None else slope if of_cap is None else slope * of_cap)
                scores[at] = arch.exp2(cute.math.fma(score, self.numbers.scale, -known[number]))
            if self.sloping:
                self._round(scores, self.products.weights, [k])
                for (at, _), slope in zip(self._places(k), slopes, strict=True):
                    scores[at] = scores[at] * slope

    def _places(self, k: int) -> list[Any]:
        """Places of scores of 16 queries, and which of the four of a thread they belong to."""
        return [(((c, half, 2 * k + n), 0, 0), 2 * n + c) for n in range(2) for half in range(2) for c in range(2)]

    def round_weights(self) -> None:
        """P in the type of operands."""
        products = self.products
        if not self.sloping:
            self._round(products.acc_scores, products.weights, range(self.sixteens))

    def make_changes(self, buffer: Any) -> None:
        """dS = P (dP - sums), in the type of operands."""
        products = self.products
        weights, gradients = products.acc_scores, products.acc_gradients
        for k in range(self.sixteens):
            known = self._four(1, k, buffer)
            for at, number in self._places(k):
                gradients[at] = weights[at] * (gradients[at] - known[number])
        self._round(gradients, products.rounded, range(self.sixteens))

    def _round(self, sums: Any, to: Any, sixteens: Iterable[int]) -> None:
        """Sums in the type of operands: eight of a thread are one left operand."""
        for k in sixteens:
            from_, target = (cute.make_tensor(x.iterator + 8 * k, cute.make_layout(8)) for x in (sums, to))
            target.store(from_.load().to(self.of.dtype))

    def clear_changes(self, buffer: Any) -> None:
        """Zeros in place of dS."""
        self.products.rounded.fill(0.0)
        self.write_changes(buffer)

    def write_changes(self, buffer: Any) -> None:
        """dS to shared memory; a fence lets the tensor cores see it."""
        rounded = self.products.rounded
        as_sums = cute.make_tensor(rounded.iterator, cute.make_layout(self.products.acc_scores.shape))
        cute.copy(self.write, self.write.retile(as_sums), self.places[None, None, None, buffer])
