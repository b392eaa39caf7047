"""What is done to the scores of a warp group of Hopper before they become weights: a cap, slopes, a function, masks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ... import Float32, Int32, const_expr, cute, range_constexpr
from ...cute import arch
from .tile import only_here

if TYPE_CHECKING:
    from .hopper import HopperForward


class Seen(NamedTuple):
    """What scores are of: the first row of a warp group (of all rows of its sequence and heads), the first head, the sequence, and
    its queries and keys."""

    row: Any
    head: Any
    batch: Any
    queries: Any
    keys: Any


class Scores:
    """The scores of a warp group; `numbers` as for the kernel, `slopes` (sequence or 1, head), or None; `scaled`: queries and keys have a
    factor."""

    __kiln_immutable__ = True

    def __init__(self, of: HopperForward, scores: Any, numbers: Any, slopes: Any, scaled: bool) -> None:
        self.of, self.scores, self.numbers, self.slopes = of, scores, numbers, slopes
        self.scaled, self.factor = scaled, cute.make_rmem_tensor((1,), Float32)

    def times(self, factor: Any) -> Any:
        """A factor of scores and, where there is one, that of queries and keys."""
        return factor * self.factor[0] if self.scaled else factor

    def natural(self) -> Any:
        """What makes a score what functions are given. Capped scores have the other factors in them."""
        return self.numbers.natural if self.of.capped else self.times(self.numbers.natural)

    @cute.jit
    def change(self, block: Int32, seen: Any, masked: bool):
        """All that is done to the scores of a block of keys."""
        of = self.of
        if const_expr(of.capped):
            cap = self.times(self.numbers.cap)
            for i in range_constexpr(cute.size(self.scores)):
                # tanh of the capped score; the scale of the softmax, or of what follows, has the rest of it
                power = arch.exp2(self.scores[i] * cap)
                self.scores[i] = 1.0 - 2.0 * arch.rcp_approx(power + 1.0)
        if const_expr(masked or of.sloped or of.score is not None):
            thread = only_here(arch.thread_idx()[0]) % 128
            # the first row and column of this thread
            row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
            start = block * of.tiling.block_k + column
            for half in range_constexpr(2):
                self.change_row(half, seen.row + row + 8 * half, start, seen, masked)

    @cute.jit
    def change_row(self, half: int, row: Int32, start: Int32, seen: Any, masked: bool):
        """The same for one row of this thread, whose first column is of key `start`."""
        of, scores, numbers = self.of, self.scores, self.numbers
        pairs = of.tiling.block_k // 8
        query, head = row, seen.head
        if const_expr(of.share > 1):
            query, head = row // of.share, seen.head * of.share + row % of.share
        position = query + seen.keys - seen.queries
        if const_expr(of.sloped):
            slope = self.slopes[min(seen.batch, self.slopes.shape[0] - 1), head]
            for n in range_constexpr(pairs):
                for c in range_constexpr(2):
                    distance = Float32(start + 8 * n + c - position)
                    far = arch.fmax(distance, -distance)
                    scores[(c, half, n), 0, 0] = scores[(c, half, n), 0, 0] * self.natural() - slope * far
        if const_expr(of.score is not None):
            for n in range_constexpr(pairs):
                for c in range_constexpr(2):
                    value = scores[(c, half, n), 0, 0]
                    if const_expr(not of.sloped):
                        value = value * self.natural()
                    scores[(c, half, n), 0, 0] = of.score(value, seen.batch, head, query, start + 8 * n + c)
        if const_expr(masked):
            # relative to the first column
            own = position - start
            end = seen.keys - start
            if const_expr(of.right):
                end = min(end, own + numbers.right + 1)
            for n in range_constexpr(pairs):
                for c in range_constexpr(2):
                    shown = end > 8 * n + c
                    if const_expr(of.left):
                        shown = shown & (own - numbers.left <= 8 * n + c)
                    value = scores[(c, half, n), 0, 0]
                    scores[(c, half, n), 0, 0] = value if shown else Float32(-float("inf"))
