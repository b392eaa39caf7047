"""Kernel objects, and launches of them on arrays.

Kernels take addresses. Under the sanitizer they take arrays, whose bounds it knows.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ... import cute
from ...base_dsl import sanitizing
from ...base_dsl.typing import Int64
from . import arrays, recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..parts.element_functions import Functions

_MOST = 4096

_compiled: dict[Any, Any] = {}


@functools.lru_cache(maxsize=_MOST)
def made(kind: type[Any], *arguments: Any) -> Any:
    """One kernel object for equal arguments, so that equal kernels are compiled once."""
    return kind(*arguments)


def made_of(functions: Functions, make: Callable[[], Any], *key: Any) -> Any:
    """One kernel object `make()` for an equal key and equal functions, as long as what they read is the same."""
    key = (functions, *key)
    found = _with_functions.get(key)
    if found is None or not found[1].unchanged():
        if len(_with_functions) >= _MOST:
            _with_functions.clear()
        reads = recorder.Reads(functions.given)
        found = _with_functions[key] = (make(), reads)
    return found[0]


_with_functions: dict[Any, tuple[Any, recorder.Reads]] = {}


def launcher(kernel: Any, given: Sequence[Any], *numbers: Any) -> Callable[[Sequence[Any]], None]:
    """A function of arrays like these that runs a kernel object on the stream of the first.

    The kernel is called with a tuple of where the arrays begin (see `arrays.pointer`), the numbers, typed, possibly in
    tuples, and the stream. Code is kept for each kernel object and the types of its numbers.
    """
    key = (kernel, recorder.mode(), len(given), _types(numbers))
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
        recorder.launch(code, leaves, list(enumerate(given)), len(leaves) - 1)

    return run


def run_tensors(kernel: Any, given: Sequence[Any], tensors: Sequence[Any], first: int, *numbers: float) -> None:
    """Run a kernel object on arrays, which are these tensors, of which those after the first few go into a list, and numbers.

    It is called on the stream of the first array. Code is kept for each kernel object and the types of the tensors.
    """
    whole = (*tensors[:first], list(tensors[first:]))
    key = (kernel, recorder.mode(), first, *(t.__kiln_argument__()[0] for t in tensors))
    compiled = _compiled.get(key)
    if compiled is None:
        compiled = _keep(key, cute.compile(kernel, *whole, *(1.0 for _ in numbers), 0))
    stream = arrays.stream_of(given[0])
    if sanitizing.kinds():
        compiled(*whole, *map(float, numbers), stream)
        return
    leaves: list[Any] = []
    places: list[tuple[int, Any]] = []
    for array, tensor in zip(given, tensors, strict=True):
        places.append((len(leaves), array))
        leaves += tensor.__kiln_argument__()[1]  # the address first
    leaves += (*numbers, stream)
    recorder.launch(compiled, leaves, places, len(leaves) - 1)


def run_arguments(compiled: Any, given: Sequence[Any]) -> None:
    """Call compiled code with arrays, numbers and tuples of such, the last of which is the stream; it writes to none that is
    read-only.

    What it was compiled without is None.
    """
    if sanitizing.kinds():
        compiled(*map(_unlocked, given))
        return
    given = [value for value in given if value is not None]
    leaves: list[Any] = []
    places: list[tuple[int, Any]] = []
    for value, own in zip(given, compiled.leaves_of(list(map(_unlocked, given))), strict=True):
        at = 0
        for x in filter(arrays.is_array, value if isinstance(value, tuple) else (value,)):
            at = own.index(arrays.address(x), at)  # of the leaves of an array the address is the first
            places.append((len(leaves) + at, x))
            at += 1
        leaves += own
    recorder.launch(compiled, leaves, places, len(leaves) - 1)


def _unlocked(value: Any) -> Any:
    return type(value)(*map(arrays.unlocked, value)) if isinstance(value, tuple) else arrays.unlocked(value)


def _code(key: Any, kernel: Any, places: tuple[Any, ...], numbers: tuple[Any, ...]) -> Any:
    code = _compiled.get(key)
    return _keep(key, cute.compile(kernel, places, *numbers, Int64(0))) if code is None else code


def _keep(key: Any, code: Any) -> Any:
    if len(_compiled) >= _MOST:
        _compiled.clear()
    _compiled[key] = code
    return code


def _types(numbers: Any) -> Any:
    return tuple(_types(n) if isinstance(n, tuple) else type(n) for n in numbers)


def _values(numbers: Any) -> list[Any]:
    return [v for n in numbers for v in (_values(n) if isinstance(n, tuple) else [n.value])]
