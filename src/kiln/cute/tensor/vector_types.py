"""The types of operators on vectors and of coordinates, for type checkers. Programs never load this module."""

from __future__ import annotations

from typing import TypeAlias

from ...base_dsl.typing import Integer, Numeric
from .tensor_ssa import TensorSSA

VectorOperand = TensorSSA | Numeric | float
"""A vector, or a number that stands for all its elements."""

ElementCoord: TypeAlias = int | Integer | tuple["ElementCoord", ...]
"""The coordinate of one element: an index, or a tuple of coordinates, without None."""


def elementwise(self: TensorSSA, other: VectorOperand, /) -> TensorSSA:
    """Any operator on a vector: it works element by element."""
    return self
