"""How types of several arrays combine in a function of their elements."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base_dsl.numeric.array_rules import array_rules, zero_dim_type
from ...base_dsl.numeric.promotion import common_type
from . import arrays

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ... import cute


class Promotion(NamedTuple):
    """How the types of values combine: the rules of a library, and the types in which inputs are passed (None: their
    own)."""

    rules: str = "numpy"
    types: tuple[Any, ...] = ()


def promotion_of(operands: Sequence[Any], dtypes: Sequence[type[cute.Numeric]]) -> Promotion:
    """Return how types of arrays combine: as PyTorch's if one is a tensor of PyTorch, as numpy's otherwise. PyTorch's
    tensors without dimensions take the type of the others, unless theirs is of a higher kind.

    numpy's rules differ for arrays of integers only. Where there is none, integers are the function's own, such as those
    that count its loops: as Python's they take the type of an array.
    """
    if not any(map(arrays.is_torch, operands)):
        return Promotion("numpy" if any(dtype.is_integer for dtype in dtypes) else "torch")
    with array_rules("torch"):
        dimensioned = [dtype for x, dtype in zip(operands, dtypes, strict=True) if x.ndim > 0]
        if not dimensioned or len(dimensioned) == len(operands):
            return Promotion("torch")
        met = functools.reduce(common_type, dimensioned)
    types = [None if x.ndim > 0 else zero_dim_type(dtype, met) for x, dtype in zip(operands, dtypes, strict=True)]
    return Promotion("torch", tuple(types))
