"""Kernel objects, one for equal arguments, and their launches on arrays.

Kernels take addresses. Under the sanitizer they take arrays, whose bounds it checks.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ... import cute
from ...base_dsl import sanitizing
from ...base_dsl.dependencies import Dependencies
from ...base_dsl.typing import Int64
from . import arrays, recorder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..parts.element_functions import Functions

_MAX_ENTRIES = 4096

_compiled: dict[Any, Any] = {}


@functools.lru_cache(maxsize=_MAX_ENTRIES)
def cached_kernel(kind: type[Any], *arguments: Any) -> Any:
    """Return one kernel object for equal arguments, so that equal kernels are compiled once."""
    return kind(*arguments)


def cached_kernel_of(functions: Functions, make: Callable[[], Any], *key: Any) -> Any:
    """Return one kernel object `make()` for an equal key and equal functions, until something the functions read
    changes."""
    key = (functions, *key)
    entry = _with_functions.get(key)
    if entry is None or not entry[1].unchanged():
        if len(_with_functions) >= _MAX_ENTRIES:
            _with_functions.clear()
        dependencies = Dependencies(None, functions.functions)
        entry = _with_functions[key] = (make(), dependencies)
    return entry[0]


_with_functions: dict[Any, tuple[Any, Dependencies]] = {}


def launch(kernel: Any, operands: Sequence[Any], *numbers: Any) -> None:
    """Run a kernel object on arrays, on the stream of the first.

    The kernel is called with a tuple of the arrays' addresses (see `arrays.pointer`), the typed numbers, possibly in
    tuples, and the stream. Code is cached by kernel object and number types.
    """
    key = (kernel, recorder.mode(), len(operands), _types(numbers))
    if sanitizing.kinds():
        tensors = tuple(map(arrays.tensor, operands))
        code = _code((*key, *(x.__kiln_argument__()[0] for x in tensors)), kernel, tensors, *numbers, Int64(0))
        code(tensors, *numbers, Int64(arrays.stream_of(operands[0])))
        return
    code = _code(key, kernel, tuple(Int64(0) for _ in operands), *numbers, Int64(0))
    leaves = [*map(arrays.address, operands), *_values(numbers), arrays.stream_of(operands[0])]
    recorder.launch(code, leaves, list(enumerate(operands)), len(leaves) - 1)


def run_tensors(kernel: Any, own: Sequence[Any], tensors: Sequence[Any], first: int, *numbers: float) -> None:
    """Run a kernel object on `tensors` of the arrays `own`, and numbers, on the stream of the first array.

    The tensors after the `first` ones are passed as a list. Code is cached by kernel object and tensor types.
    """
    arguments = (*tensors[:first], list(tensors[first:]))
    key = (kernel, recorder.mode(), first, *(t.__kiln_argument__()[0] for t in tensors))
    compiled = _code(key, kernel, *arguments, *(1.0 for _ in numbers), 0)
    stream = arrays.stream_of(own[0])
    if sanitizing.kinds():
        compiled(*arguments, *map(float, numbers), stream)
        return
    leaves: list[Any] = []
    places: list[tuple[int, Any]] = []
    for array, tensor in zip(own, tensors, strict=True):
        places.append((len(leaves), array))
        leaves += tensor.__kiln_argument__()[1]  # the address first
    leaves += (*numbers, stream)
    recorder.launch(compiled, leaves, places, len(leaves) - 1)


def run_arguments(compiled: Any, arguments: Sequence[Any]) -> None:
    """Call compiled code with arrays, numbers and tuples of them; the last is the stream, and None was compiled away.

    Read-only arrays are passed as they are: the code must not write to them.
    """
    if sanitizing.kinds():
        compiled(*map(_writable, arguments))
        return
    arguments = [value for value in arguments if value is not None]
    leaves: list[Any] = []
    places: list[tuple[int, Any]] = []
    for value, value_leaves in zip(arguments, compiled.leaves_of(list(map(_writable, arguments))), strict=True):
        at = 0
        for x in filter(arrays.is_array, value if isinstance(value, tuple) else (value,)):
            at = value_leaves.index(arrays.address(x), at)  # the address is the first leaf of an array
            places.append((len(leaves) + at, x))
            at += 1
        leaves += value_leaves
    recorder.launch(compiled, leaves, places, len(leaves) - 1)


def _writable(value: Any) -> Any:
    return type(value)(*map(arrays.writable_view, value)) if isinstance(value, tuple) else arrays.writable_view(value)


def _code(key: Any, kernel: Any, *arguments: Any) -> Any:
    """Return the code of a kernel for arguments of some types, which the key tells."""
    code = _compiled.get(key)
    if code is None:
        if len(_compiled) >= _MAX_ENTRIES:
            _compiled.clear()
        code = _compiled[key] = cute.compile(kernel, *arguments)
    return code


def _types(numbers: Any) -> Any:
    return tuple(_types(n) if isinstance(n, tuple) else type(n) for n in numbers)


def _values(numbers: Any) -> list[float]:
    return [v for n in numbers for v in (_values(n) if isinstance(n, tuple) else [n.value])]
