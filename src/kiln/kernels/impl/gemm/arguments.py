"""What the implementations of matrix products are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...dispatch import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import Product


class Given(NamedTuple):
    """The arrays of a product, as its problem says they lie, and its numbers. The result is written to `out`."""

    a: Any
    b: Any
    out: Any
    others: Sequence[Any] = ()
    alpha: float = 1.0
    beta: float = 1.0
    blocks: Sequence[Any] = ()
    bounds: Any = None
    """Of groups: where each ends, or its rows."""
    more: Sequence[Any] = ()
    """Results after the first."""
    groups: Any = None
    """Factors of weights."""
    row_sums: Any = None
    """(L, M), where sums of rows go."""


def more_tensors(problem: Product, given: Given) -> list[Any]:
    """The results after the first as arguments."""
    return [arrays.dynamic(x, 2, laid.width(2)) for x, laid in zip(given.more, problem.more, strict=True)]


def block_tensors(problem: Product, given: Given) -> list[Any]:
    """Factors of blocks as arguments."""
    return [arrays.dynamic(x, laid.leading((1, 2)), 1) for x, laid in zip(given.blocks, problem.blocks, strict=True)]


def group_tensors(problem: Product, given: Given) -> list[Any]:
    """Factors of groups as arguments, if there are any."""
    return [] if problem.groups is None else [arrays.dynamic(given.groups, problem.groups.leading((1, 2)), 1)]


def other_tensors(problem: Product, given: Given) -> list[Any]:
    """The other arrays as arguments."""
    found = []
    for x, laid, width in zip(given.others, problem.others, problem.other_widths, strict=True):
        rows = laid.leading((2,)) == 2
        found.append(arrays.dynamic(x, 2 if rows else laid.leading((0, 1)), width))
    return found
