"""Calls of kernels that cost little more than a launch.

What a call does depends on its arrays only by their types, shapes, strides and alignment, and by the target in force. All
that is worked out once and kept as a plan: compiled code, and numbers to pass beside the addresses of the arrays. Kernels
take addresses. Under the sanitizer they take arrays, whose bounds it knows.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from .. import cute
from ..base_dsl import sanitizing
from ..base_dsl.target import target_key
from ..base_dsl.typing import Int64
from . import arrays

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST = 4096

_plans: dict[Any, Any] = {}
_compiled: dict[Any, Any] = {}

mode = target_key
"""The part of a key that says where and how code runs."""


def find(key: Any) -> Any:
    """The plan of a key, or None. A key holds `mode()` and the signatures of arrays."""
    return _plans.get(key)


def keep(key: Any, plan: Any) -> Any:
    """Keep a plan; the plan. Too many plans are all forgotten."""
    if len(_plans) >= _MOST:
        _plans.clear()
    _plans[key] = plan
    return plan


@functools.lru_cache(maxsize=_MOST)
def made(kind: type[Any], *arguments: Any) -> Any:
    """One kernel object for equal arguments, so that equal kernels are compiled once."""
    return kind(*arguments)


def launcher(kernel: Any, given: Sequence[Any], *numbers: Any) -> Callable[[Sequence[Any]], None]:
    """A function of arrays like these that runs a kernel object on the stream of the first.

    The kernel is called with a tuple of where the arrays begin (see `arrays.pointer`), the numbers, typed, possibly in
    tuples, and the stream. Code is kept for each kernel object and the types of its numbers.
    """
    key = (kernel, mode(), len(given), _types(numbers))
    if sanitizing.kinds():

        def run_checked(given: Sequence[Any]) -> None:
            places = tuple(map(arrays.tensor, given))
            code = _code((*key, *map(arrays.signature, given)), kernel, places, numbers)
            code(places, *numbers, Int64(arrays.stream_of(given[0])))

        return run_checked
    code = _code(key, kernel, tuple(Int64(0) for _ in given), numbers)
    address, stream_of, run_leaves, values = arrays.address, arrays.stream_of, code.run_leaves, _values(numbers)
    return lambda given: run_leaves([*map(address, given), *values, stream_of(given[0])])


def _code(key: Any, kernel: Any, places: tuple[Any, ...], numbers: tuple[Any, ...]) -> Any:
    code = _compiled.get(key)
    if code is None:
        if len(_compiled) >= _MOST:
            _compiled.clear()
        code = _compiled[key] = cute.compile(kernel, places, *numbers, Int64(0))
    return code


def _types(numbers: Any) -> Any:
    return tuple(_types(n) if isinstance(n, tuple) else type(n) for n in numbers)


def _values(numbers: Any) -> list[Any]:
    return [v for n in numbers for v in (_values(n) if isinstance(n, tuple) else [n.value])]
