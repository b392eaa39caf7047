"""`assume`: facts about numbers that the programmer knows and the compiler cannot."""

from __future__ import annotations

from math import lcm
from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Integer
from .pointer import Pointer

__all__ = ["assume"]


def assume(
    src: object, divby: int | None = None, pow2: bool | None = None, *, loc: object = None, ip: object = None
) -> Any:
    """Return `src` (an integer, a pointer or a tuple of them), taken to be a multiple of `divby`.

    It must be true: vector widths are chosen by it. A static number is checked. For a pointer `divby` is in bytes.
    `pow2` is accepted and has no effect yet.
    """
    if divby is None:
        return src
    if isinstance(divby, bool) or not isinstance(divby, int) or divby < 1:
        raise type_error(f"assume(..., divby={divby!r}): a multiple of a positive int is assumed")
    if isinstance(src, (tuple, list)):
        return type(src)(assume(x, divby) for x in src)
    if isinstance(src, Pointer):
        if divby & (divby - 1):
            raise type_error(f"assume(pointer, divby={divby}): an alignment is a power of two")
        return src.with_alignment(max(src.alignment, divby))
    if isinstance(src, Integer) and not src.is_static:
        return src._assume(divisibility=lcm(src.divisibility, divby))
    if isinstance(src, (int, Integer)):
        if int(src) % divby:
            raise type_error(f"assume({int(src)}, divby={divby}): {int(src)} is no multiple of {divby}")
        return src
    raise type_error(f"assume() takes an integer or a pointer, got {type(src).__name__}")
