"""Marks and ranges for a tracer of what happens inside kernels. Kiln has none: they do nothing, and cost nothing."""

from __future__ import annotations

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Numeric

__all__ = ["mark", "range_end", "range_pop", "range_push", "range_start", "sentinel_token"]


class Token:
    """What `range_end` ends a range by."""

    __kiln_static__ = True


_TOKEN = Token()
"""The token of all ranges, which are not recorded: branches and loops choose between tokens as they like."""


def _check(what: str, event_name: object, payload: object) -> None:
    if not isinstance(event_name, str):
        raise type_error(f"event_name of {what} is {event_name!r}", "a string that is known when compiling")
    _check_payload(what, payload)


def _check_payload(what: str, payload: object) -> None:
    if payload is not None and not isinstance(payload, (bool, int, float, Numeric)):
        raise type_error(f"payload of {what} is {payload!r}", "a number")


def mark(event_name: str, payload: object = None, *, loc: object = None, ip: object = None) -> None:
    """Name a moment of a kernel."""
    _check("mark", event_name, payload)


def range_push(event_name: str, payload: object = None, *, loc: object = None, ip: object = None) -> None:
    """Begin a named range."""
    _check("range_push", event_name, payload)


def range_pop(*, loc: object = None, ip: object = None) -> None:
    """End the range that began last."""


def range_start(event_name: str, payload: object = None, *, loc: object = None, ip: object = None) -> Token:
    """Begin a named range that need not be the last to begin; return the token that ends it."""
    _check("range_start", event_name, payload)
    return _TOKEN


def range_end(token: Token, payload: object = None, *, loc: object = None, ip: object = None) -> None:
    """End the range of a token."""
    if not isinstance(token, Token):
        raise type_error(f"range_end takes a token, got {type(token).__name__}", "what range_start returned")
    _check_payload("range_end", payload)


def sentinel_token(event_name: str, *, loc: object = None, ip: object = None) -> Token:
    """Return the token of a range that has not begun, for a variable that a loop carries."""
    _check("sentinel_token", event_name, None)
    return _TOKEN
