"""Masks of attention scores in MMA accumulators.

Of every eight columns of a row a thread holds two adjacent ones, columns 8 n + c for c of 0 and 1, counted from its
first column. Causal masks, windows and sequence lengths all leave a range [begin, end) of a row's columns visible."""

from __future__ import annotations

from typing import Any

from ... import Float32, Int32, const_expr, cute, range_constexpr

_PAIRS = 16
"""Column pairs that have a bit each in a 32-bit word."""


def accumulator_row(first: Int32 | int, thread: Int32 | int, half: int) -> Any:
    """Return the row of a warpgroup's accumulator that a thread holds, `half` of two, counted from `first`."""
    return first + thread // 32 * 16 + thread % 32 // 4 + 8 * half


def accumulator_column(thread: Int32 | int) -> Any:
    """Return the first column of an accumulator that a thread holds."""
    return thread % 4 * 2


@cute.jit
def mask_row(scores: cute.Tensor, at: Any, columns: int, begin: Any, end: Int32, derivative: Any = None):
    """Set a row's scores to -inf outside of columns [begin, end); `begin` None means no lower bound.

    `at(c, n)` is the index of column 8 n + c. `derivative`, the score modification's, becomes 0 there: it may be NaN.
    """
    for n in range_constexpr(columns // 8):
        for c in range_constexpr(2):
            visible = end > 8 * n + c
            if const_expr(begin is not None):
                visible = visible & (begin <= 8 * n + c)
            value = scores[at(c, n)]
            scores[at(c, n)] = value if visible else Float32(-float("inf"))
            if const_expr(derivative is not None):
                value = derivative[at(c, n)]
                derivative[at(c, n)] = value if visible else Float32(0.0)


@cute.jit
def mask_row_by_bits(scores: cute.Tensor, at: Any, columns: int, begin: Any, end: Int32):
    """Do what `mask_row` does, with a bit for each column: SASS selects by seven bits at once, by comparisons one at a
    time."""
    for n in range_constexpr(columns // 8):
        if const_expr(n % _PAIRS == 0):
            hidden = _bits_from(end - 8 * n)
            if const_expr(begin is not None):
                hidden = hidden | ~_bits_from(begin - 8 * n)
        for c in range_constexpr(2):
            visible = hidden & (1 << (2 * (n % _PAIRS) + c)) == 0
            value = scores[at(c, n)]
            scores[at(c, n)] = value if visible else Float32(-float("inf"))


@cute.jit
def _bits_from(column: Int32):
    """Return a word with a bit for each of the columns 8 n and 8 n + 1, set from `column` on."""
    within = max(Int32(0), min(column, Int32(8 * _PAIRS)))
    return Int32(-1) << within // 8 << (within // 8 + min(within % 8, 2))
