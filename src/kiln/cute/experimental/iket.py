"""Marks and ranges in kernels, which `kiln profile --prof-type trace` records. Otherwise they cost nothing."""

from __future__ import annotations

import functools

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Numeric
from ..kernel_ranges import add_mark, is_recording

__all__ = ["mark", "range_end", "range_pop", "range_push", "range_start", "sentinel_token"]


class Token:
    """What `range_end` ends a range by."""

    __kiln_static__ = True

    def __init__(self, name: str = "") -> None:
        self.name = name


_TOKEN = Token()
"""The token of all ranges that are not recorded: branches and loops choose between tokens as they like."""


@functools.lru_cache(maxsize=1024)
def _token(name: str) -> Token:
    """Return the token of the ranges of a name: a loop carries the same one from a range to the next."""
    return Token(name)


def _check(what: str, event_name: object, payload: object) -> None:
    if not isinstance(event_name, str) or not event_name:
        raise type_error(f"event_name of {what} is {event_name!r}", "a string that is known when compiling")
    _check_payload(what, payload)


def _check_payload(what: str, payload: object) -> None:
    if payload is not None and not isinstance(payload, (bool, int, float, Numeric)):
        raise type_error(f"payload of {what} is {payload!r}", "a number")


def mark(event_name: str, payload: object = None, *, loc: object = None, ip: object = None) -> None:
    """Name a moment of a kernel; a trace shows the number `payload` with it."""
    _check("mark", event_name, payload)
    add_mark(event_name, "moment", payload)


def range_push(event_name: str, payload: object = None, *, loc: object = None, ip: object = None) -> None:
    """Begin a named range; a trace shows the number `payload` with it."""
    _check("range_push", event_name, payload)
    add_mark(event_name, "begin", payload)


def range_pop(*, loc: object = None, ip: object = None) -> None:
    """End the range that began last."""
    add_mark("", "end")


def range_start(event_name: str, payload: object = None, *, loc: object = None, ip: object = None) -> Token:
    """Begin a named range that need not be the last to begin; return the token that ends it."""
    _check("range_start", event_name, payload)
    add_mark(event_name, "begin", payload, token=True)
    return _token(event_name) if is_recording() else _TOKEN


def range_end(token: Token, payload: object = None, *, loc: object = None, ip: object = None) -> None:
    """End the range of a token; nothing if none of its name has begun."""
    if not isinstance(token, Token):
        raise type_error(f"range_end takes a token, got {type(token).__name__}", "what range_start returned")
    _check_payload("range_end", payload)
    add_mark(token.name, "end", payload, token=True)


def sentinel_token(event_name: str, *, loc: object = None, ip: object = None) -> Token:
    """Return the token of a range that has not begun, for a variable that a loop carries."""
    _check("sentinel_token", event_name, None)
    return _token(event_name) if is_recording() else _TOKEN
