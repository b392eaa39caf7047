"""Calls of kernels that cost little more than a launch.

What a call does depends on its arrays only by their types, shapes, strides and alignment, and by the target in force. All
that is worked out once and kept as a plan: compiled code, and numbers to pass beside the addresses of the arrays. Kernels
take addresses. Under the sanitizer they take arrays, whose bounds it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import cute
from ..base_dsl import sanitizing
from ..base_dsl.target import target_key
from ..base_dsl.typing import Int64
from . import arrays

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST = 4096

Plan = "Callable[..., None]"

_plans: dict[Any, Any] = {}
_compiled: dict[Any, Any] = {}


def find(key: Any) -> Any:
    """The plan of a key (see `mode`), or None."""
    return _plans.get(key)


def keep(key: Any, plan: Any) -> Any:
    """Keep a plan; the plan. Too many plans are all forgotten."""
    if len(_plans) >= _MOST:
        _plans.clear()
    _plans[key] = plan
    return plan


mode = target_key
"""The part of a key that says where and how code runs."""


def compiled(kernel: Any, given: tuple[Any, ...], numbers: tuple[Any, ...]) -> Callable[..., None]:
    """The code of a kernel object for arrays like these, as a function of arrays and numbers.

    `kernel` is called with the arrays, the numbers and a stream; None stands for an array that there is not. Code is kept
    for each kernel object and the kinds of its arguments.
    """
    checked = bool(sanitizing.kinds())
    kinds = tuple(arrays.signature(x) for x in given) if checked else len(given)
    key = (kernel, mode(), kinds, tuple(type(n) for n in numbers))
    code = _compiled.get(key)
    if code is None:
        shown = [arrays.tensor(x) if checked and x is not None else Int64(0) for x in given]
        code = _compiled[key] = cute.compile(kernel, *shown, *numbers, 0)
    if checked:

        def run_checked(arrays_: tuple[Any, ...], numbers_: tuple[Any, ...], stream: int) -> None:
            code(*(Int64(0) if x is None else arrays.tensor(x) for x in arrays_), *numbers_, stream)

        return run_checked
    address, run_leaves = arrays.address, code.run_leaves

    def run(arrays_: tuple[Any, ...], numbers_: tuple[Any, ...], stream: int) -> None:
        run_leaves([*map(address, arrays_), *numbers_, stream])

    return run
