"""What the implementations of matrix products are given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...dispatch import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import GemmProblem


class GemmArguments(NamedTuple):
    """The arrays of a product, as its problem says they lie, and its numbers. The result is written to `out`."""

    a: Any
    b: Any
    out: Any
    epilogue_inputs: Sequence[Any] = ()
    alpha: float = 1.0
    beta: float = 1.0
    block_scales: Sequence[Any] = ()
    group_bounds: Any = None
    """Of groups: where each ends, or its rows."""
    extra_outs: Sequence[Any] = ()
    """Results after the first."""
    group_scales: Any = None
    """Factors of weights."""
    row_sum: Any = None
    """(L, M), where sums of rows go."""


def more_tensors(problem: GemmProblem, given: GemmArguments) -> list[Any]:
    """The results after the first as arguments."""
    return [arrays.dynamic(x, 2, laid.width(2)) for x, laid in zip(given.extra_outs, problem.extra_outs, strict=True)]


def block_tensors(problem: GemmProblem, given: GemmArguments) -> list[Any]:
    """Factors of blocks as arguments."""
    return [
        arrays.dynamic(x, laid.leading((1, 2)), 1)
        for x, laid in zip(given.block_scales, problem.block_scales, strict=True)
    ]


def group_tensors(problem: GemmProblem, given: GemmArguments) -> list[Any]:
    """Factors of groups as arguments, if there are any."""
    return (
        []
        if problem.group_scales is None
        else [arrays.dynamic(given.group_scales, problem.group_scales.leading((1, 2)), 1)]
    )


def other_tensors(problem: GemmProblem, given: GemmArguments) -> list[Any]:
    """The other arrays as arguments."""
    found = []
    for x, laid, width in zip(
        given.epilogue_inputs, problem.epilogue_inputs, problem.epilogue_input_widths, strict=True
    ):
        rows = laid.leading((2,)) == 2
        found.append(arrays.dynamic(x, 2 if rows else laid.leading((0, 1)), width))
    return found
