"""Kernel objects, and launches of them on arrays.

Kernels take addresses. Under the sanitizer they take arrays, whose bounds it knows.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ... import cute
from ...base_dsl import sanitizing
from ...base_dsl.typing import Int64
from . import arrays, calls

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_MOST = 4096

_compiled: dict[Any, Any] = {}


@functools.lru_cache(maxsize=_MOST)
def made(kind: type[Any], *arguments: Any) -> Any:
    """One kernel object for equal arguments, so that equal kernels are compiled once."""
    return kind(*arguments)


def launcher(kernel: Any, given: Sequence[Any], *numbers: Any) -> Callable[[Sequence[Any]], None]:
    """A function of arrays like these that runs a kernel object on the stream of the first.

    The kernel is called with a tuple of where the arrays begin (see `arrays.pointer`), the numbers, typed, possibly in
    tuples, and the stream. Code is kept for each kernel object and the types of its numbers.
    """
    key = (kernel, calls.mode(), len(given), _types(numbers))
    if sanitizing.kinds():

        def run_checked(given: Sequence[Any]) -> None:
            places = tuple(map(arrays.tensor, given))
            code = _code((*key, *(place.__kiln_argument__()[0] for place in places)), kernel, places, numbers)
            code(places, *numbers, Int64(arrays.stream_of(given[0])))

        return run_checked
    code = _code(key, kernel, tuple(Int64(0) for _ in given), numbers)
    values = _values(numbers)

    def run(given: Sequence[Any]) -> None:
        leaves = [*map(arrays.address, given), *values, arrays.stream_of(given[0])]
        calls.launch(code, leaves, list(enumerate(given)), len(leaves) - 1)

    return run


def run_on(
    compiled: Any, given: Sequence[Any], tensors: Sequence[Any], numbers: tuple[Any, ...], whole: tuple[Any, ...]
) -> None:
    """Run compiled code on arrays that are these tensors, then numbers, on the stream of the first.

    `whole` are its arguments without the stream, as it is called under the sanitizer.
    """
    stream = arrays.stream_of(given[0])
    if sanitizing.kinds():
        compiled(*whole, stream)
        return
    leaves: list[Any] = []
    places: list[tuple[int, Any]] = []
    for array, tensor in zip(given, tensors, strict=True):
        places.append((len(leaves), array))
        leaves += tensor.__kiln_argument__()[1]  # the address first
    leaves += (*numbers, stream)
    calls.launch(compiled, leaves, places, len(leaves) - 1)


def run_arguments(compiled: Any, given: Sequence[Any]) -> None:
    """Call compiled code with arrays and numbers, the last of which is the stream; it writes to none that is read-only.

    What it was compiled without is None.
    """
    if sanitizing.kinds():
        compiled(*map(arrays.unlocked, given))
        return
    given = [value for value in given if value is not None]
    leaves: list[Any] = []
    places: list[tuple[int, Any]] = []
    for value, own in zip(given, compiled.leaves_of(list(map(arrays.unlocked, given))), strict=True):
        if arrays.is_array(value):
            places.append((len(leaves), value))  # the address first
        leaves += own
    calls.launch(compiled, leaves, places, len(leaves) - 1)


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
