"""Functions that users pass to kernels, of the values of several elements at once."""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any

from ... import cute
from ...base_dsl.numeric.array_rules import array_rules
from ...base_dsl.static_key import static_key
from ...cute.tensor.tensor_ssa import TensorSSA, VectorTruthError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


def key_of(value: Any) -> Any:
    """Return a key that is equal for values and functions that make equal programs."""
    return static_key(value)


class Functions:
    """Functions that a kernel is specialised for: equal if code, closures and defaults are.

    What else they read, globals for example, is checked by the cache of kernels (`launches.cached_kernel_of`).
    `branching`: which of them (True: all) are called with one element at a time, and may branch on it.
    """

    def __init__(self, *functions: Callable[..., Any], branching: bool | Sequence[Callable[..., Any]] = False) -> None:
        self.functions = functions
        some = functions if branching is True else branching or ()
        self.branching: tuple[bool, ...] = tuple(any(one is function for one in some) for function in functions)
        self.key: tuple[Hashable, ...] = (self.branching, *map(static_key, functions))
        """The key: equal for equal functions."""
        self._hash = hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Functions) and self.key == other.key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Functions({', '.join(getattr(one, '__qualname__', repr(one)) for one in self.functions)})"

    def callables(self) -> list[Callable[..., Any]]:
        """Return the functions as they are called with vectors of elements."""
        return [
            one_by_one(function) if branches else of_vectors(function)
            for function, branches in zip(self.functions, self.branching, strict=True)
        ]


def vectors_first(run: Callable[[Sequence[Callable[..., Any]]], Any]) -> Any:
    """Return `run(())`; while a function branches on a vector, runs again with all functions that do, for one element
    at a time."""
    branching: list[Callable[..., Any]] = []
    while True:
        try:
            return run(tuple(branching))
        except VectorTruthError as error:
            if error.function is None:
                raise
            branching.append(error.function)


def of_vectors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function so that an error of branching on a vector names it."""

    def applied(*values: cute.TensorSSA) -> cute.TensorSSA | tuple[cute.TensorSSA, cute.TensorSSA]:
        try:
            return function(*values)
        except VectorTruthError as error:
            error.function = function
            raise

    return applied


def of_arrays(function: Callable[..., Any], *values: cute.TensorSSA, rules: str = "torch") -> Any:
    """Call a function with values of elements, whose types promote as those of arrays of a library."""
    with array_rules(rules):
        return function(*values)


def one_by_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of one element for vectors: it may branch on its argument.

    Other arguments are passed as they are.
    """
    traced = rewritten(function)

    def applied(*values: Any) -> Any:
        first = next(v for v in values if isinstance(v, TensorSSA))
        results = [traced(*[v[i] if isinstance(v, TensorSSA) else v for v in values]) for i in range(first.numel())]
        if isinstance(results[0], tuple):  # several values for each element
            return tuple(_gathered(list(own), first.shape) for own in zip(*results, strict=True))
        return _gathered(results, first.shape)

    return applied


def _gathered(results: list[Any], shape: Any) -> Any:
    """Return the vector of a function's results; a number, if all of them are numbers."""
    typed = [x for x in results if isinstance(x, cute.Numeric)]
    if not typed:
        return results[0]
    vector = cute.make_rmem_tensor(shape, type(typed[0]))
    for i, x in enumerate(results):
        vector[i] = x
    return vector.load()


def rewritten(function: Any) -> Any:
    """Return a Python function with its branches rewritten for traced values; other callables as they are."""
    if isinstance(function, types.FunctionType):
        return cute.jit(function)
    if isinstance(function, types.MethodType):
        return functools.partial(rewritten(function.__func__), function.__self__)
    if isinstance(function, functools.partial):
        return functools.partial(rewritten(function.func), *function.args, **function.keywords)
    return function
