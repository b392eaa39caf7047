"""Functions that users give kernels, of the values of some elements at once."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from ... import cute
from ...base_dsl.numeric.promotion import array_rules
from ...cute.tensor.tensor_ssa import TensorSSA

if TYPE_CHECKING:
    from collections.abc import Callable


def of_arrays(function: Callable[..., Any], *values: Any) -> Any:
    """What a function of arrays gives for values of their elements, whose types meet as arrays' do."""
    with array_rules():
        return function(*values)


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function of vectors, called for one element at a time: it may branch on what it is given.

    Other arguments are passed as they are.
    """
    traced = _rewritten(function)

    def applied(*values: Any) -> Any:
        first = next(v for v in values if isinstance(v, TensorSSA))
        made = [traced(*[v[i] if isinstance(v, TensorSSA) else v for v in values]) for i in range(first.numel())]
        typed = [x for x in made if isinstance(x, cute.Numeric)]
        if not typed:
            return made[0]
        held = cute.make_rmem_tensor(first.shape, type(typed[0]))
        for i, x in enumerate(made):
            held[i] = x
        return held.load()

    return applied


def _rewritten(function: Any) -> Any:
    """The same function with its branches made ready for values of the program; what is no Python function stays as it is."""
    if isinstance(function, types.FunctionType):
        return cute.jit(function)
    if isinstance(function, types.MethodType):
        return functools.partial(_rewritten(function.__func__), function.__self__)
    if isinstance(function, functools.partial):
        return functools.partial(_rewritten(function.func), *function.args, **function.keywords)
    return function
