"""What is done to the scores of a warp group of Hopper before they become weights: a cap, slopes, a function, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, const_expr, cute, range_constexpr
from .....cute import arch
from .query_tile import only_here

if TYPE_CHECKING:
    from .sm90 import Sm90ForwardKernel


class Seen(NamedTuple):
    """What scores are of: the first row of a warp group (of all rows of its sequence and heads), the first head, the sequence, and
    its queries and keys."""

    row: Any
    head: Any
    batch: Any
    queries: Any
    keys: Any


_AT_ONCE = 16
"""Pairs of columns that a number of 32 bits has a bit for each of."""


@cute.jit
def from_column(first: Int32):
    """A bit for each of the columns 8 n and 8 n + 1, set from some column on: the machine code takes seven of them at once for what it chooses
    by, where comparisons are one for each."""
    within = max(Int32(0), min(first, Int32(8 * _AT_ONCE)))
    return Int32(-1) << within // 8 << (within // 8 + min(within % 8, 2))


class Scores:
    """The scores of a warp group; `numbers` as for the kernel, `slopes` (sequence or 1, head), or None; `scaled`: queries and keys have a
    factor."""

    __kiln_immutable__ = True

    def __init__(self, of: Sm90ForwardKernel, scores: Any, numbers: Any, slopes: Any, scaled: bool) -> None:
        self.of, self.scores, self.numbers, self.slopes = of, scores, numbers, slopes
        self.scaled, self.factor = scaled, cute.make_rmem_tensor((1,), Float32)

    def times(self, factor: Any) -> Any:
        """A factor of scores and, where there is one, that of queries and keys."""
        return factor * self.factor[0] if self.scaled else factor

    def natural(self) -> Any:
        """What makes a score what functions are given. Capped scores have the other factors in them."""
        return self.numbers.natural if self.of.capped else self.times(self.numbers.natural)

    @cute.jit
    def change(self, block: Int32, seen: Any):
        """All that is done to the scores of a block of keys, but for masks."""
        of, scores = self.of, self.scores
        if const_expr(of.capped):
            cap = self.times(self.numbers.cap)
            for i in range_constexpr(cute.size(scores)):
                # tanh of the capped score; the scale of the softmax, or of what follows, has the rest of it
                power = arch.exp2(scores[i] * cap)
                scores[i] = 1.0 - 2.0 * arch.rcp_approx(power + 1.0)
        if const_expr(of.sloped or callable(of.score)):
            thread = only_here(arch.thread_idx()[0]) % 128
            for half in range_constexpr(2):
                start, query, head, position = self.places(thread, half, block, seen)
                if const_expr(of.sloped):
                    slope = self.slopes[min(seen.batch, self.slopes.shape[0] - 1), head]
                for n in range_constexpr(of.config.tile_n // 8):
                    for c in range_constexpr(2):
                        key, value = start + 8 * n + c, scores[(c, half, n), 0, 0] * self.natural()
                        if const_expr(of.sloped):
                            distance = Float32(key - position)
                            value = value - slope * arch.fmax(distance, -distance)
                        if const_expr(callable(of.score)):
                            value = of.score(value, seen.batch, head, query, key)
                        scores[(c, half, n), 0, 0] = value

    @cute.jit
    def mask(self, block: Int32, look: Any, part: Any):
        """Hide scores of keys that queries do not see, where they see only a part of the block; `look` tells what the scores are of."""
        of, scores, numbers = self.of, self.scores, self.numbers
        if part:
            thread, seen = only_here(arch.thread_idx()[0]) % 128, look()
            for half in range_constexpr(2):
                if const_expr(half and of.looks_again):  # not kept meanwhile
                    thread, seen = only_here(arch.thread_idx()[0]) % 128, look()
                start, _, _, position = self.places(thread, half, block, seen)
                # relative to the first column
                own = position - start
                end = seen.keys - start
                if const_expr(of.right):
                    end = min(end, own + numbers.right + 1)
                for n in range_constexpr(of.config.tile_n // 8):
                    if const_expr(of.bits and n % _AT_ONCE == 0):
                        hidden = from_column(end - 8 * n)
                        if const_expr(of.left):
                            hidden = hidden | ~from_column(own - numbers.left - 8 * n)
                    for c in range_constexpr(2):
                        if const_expr(of.bits):
                            shown = hidden & (1 << (2 * (n % _AT_ONCE) + c)) == 0
                        else:
                            shown = end > 8 * n + c
                        value = scores[(c, half, n), 0, 0]
                        scores[(c, half, n), 0, 0] = value if shown else Float32(-float("inf"))

    def places(self, thread: Any, half: int, block: Any, seen: Any) -> tuple[Any, Any, Any, Any]:
        """Of one row of a thread: the key of its first column, its query, its head, and the query's place among keys."""
        of = self.of
        query, head = seen.row + thread // 32 * 16 + thread % 32 // 4 + 8 * half, seen.head
        if of.share > 1:
            query, head = query // of.share, seen.head * of.share + query % of.share
        return block * of.config.tile_n + thread % 4 * 2, query, head, query + seen.keys - seen.queries
