"""Caches of functions of code objects, whose entries live as long as the code."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import types
    from collections.abc import Callable

T = TypeVar("T")


def by_code(function: Callable[[types.CodeType], T]) -> Callable[[types.CodeType], T]:
    """Decorate a function of a code object to cache its results with the code. Results must not refer to it.

    Code is found by its identity: hashing it can take as long as the function itself.
    """
    cache: dict[int, tuple[weakref.ref[types.CodeType], T]] = {}

    def find(code: types.CodeType) -> T:
        number = id(code)
        cached = cache.get(number)
        if cached is None:
            value = function(code)
            cached = cache[number] = weakref.ref(code, lambda _: cache.pop(number, None)), value
        return cached[1]

    find.cache = cache  # pyright: ignore[reportFunctionMemberAccess]
    find.__doc__ = function.__doc__
    return find
