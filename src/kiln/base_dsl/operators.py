"""Operators and builtins on dynamic values as functions, for code that the front end does not rewrite."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, TypeVar

from .numeric.operators import select

if TYPE_CHECKING:
    from .numeric.operator_types import Number
    from .numeric.types import Boolean

V = TypeVar("V")


def _run(name: str, *args: object) -> Any:
    from .frontend import builtin_calls

    return builtin_calls.dynamic_form(getattr(builtins, name))(*args)


def _run_boolean(is_and: bool, args: tuple[object, ...]) -> Any:
    from .frontend.boolean import run_boolean

    return run_boolean(is_and, args[0], tuple((lambda a=a: a) for a in args[1:]))


def min(*args: object, loc: object = None, ip: object = None) -> Number:
    """Return the least of some numbers, dynamic or not."""
    return _run("min", *args)


def max(*args: object, loc: object = None, ip: object = None) -> Number:
    """Return the greatest of some numbers, dynamic or not."""
    return _run("max", *args)


def all_(iterable: object, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether all are true; of a vector value, all its elements."""
    own = getattr(iterable, "__kiln_all__", None)
    return own() if own is not None else _run("all", iterable)


def any_(iterable: object, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether one is true; of a vector value, one of its elements."""
    own = getattr(iterable, "__kiln_any__", None)
    return own() if own is not None else _run("any", iterable)


def and_(*args: object, loc: object = None, ip: object = None) -> Boolean:
    """Return the conjunction of truth values that are all evaluated already."""
    return _run_boolean(True, args)


def or_(*args: object, loc: object = None, ip: object = None) -> Boolean:
    """Return the disjunction of truth values that are all evaluated already."""
    return _run_boolean(False, args)


def select_(cond: object, if_value: V, else_value: V) -> V:
    """Return one of two numbers or vectors of one shape, by a truth value; both are evaluated already."""
    own = getattr(if_value, "__kiln_select__", None)
    return own(cond, else_value) if own is not None else select(cond, if_value, else_value)


def not_(lhs: object, *, loc: object = None, ip: object = None) -> Boolean:
    """Return the negation of a truth value."""
    from .frontend.boolean import run_not

    return run_not(lhs)
