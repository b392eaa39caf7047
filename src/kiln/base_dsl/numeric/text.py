"""Strings that show a dynamic value as `?`, for people to read."""

from __future__ import annotations

from typing import Any, SupportsIndex

from ..diagnostics import runtime_error


class DynamicText(str):
    """A string that can be printed and put together with others. Comparing, hashing or measuring it is an error."""

    __slots__ = ()

    def __str__(self) -> str:
        return self

    def __bool__(self) -> bool:
        return True

    def __format__(self, spec: str) -> str:
        return DynamicText(str.__format__(self, spec))

    def __add__(self, other: str) -> str:
        return DynamicText(str.__add__(self, other))

    def __radd__(self, other: str) -> str:
        return DynamicText(str.__add__(other, self))

    def __mul__(self, count: SupportsIndex) -> str:
        return DynamicText(str.__mul__(self, count))


def _refuse(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise runtime_error(
        f"the text {str.__str__(self)!r} shows a value that is only known when the program runs, and the program asks what "
        "is in it",
        "compare or look up the number itself; a text of it can only be printed",
    )


for _name in (
    "__eq__",
    "__ne__",
    "__lt__",
    "__le__",
    "__gt__",
    "__ge__",
    "__hash__",
    "__len__",
    "__contains__",
    "__getitem__",
    "__iter__",
    "count",
    "find",
    "rfind",
    "index",
    "rindex",
    "startswith",
    "endswith",
    "isdigit",
    "isdecimal",
    "isnumeric",
    "isalpha",
    "isalnum",
    "isspace",
    "split",
    "rsplit",
    "splitlines",
    "partition",
    "rpartition",
    "encode",
):
    setattr(DynamicText, _name, _refuse)
del _name


def joined(*parts: str) -> str:
    """Return the parts of an f-string, joined."""
    text = "".join(map(str.__str__, parts))
    return DynamicText(text) if any(type(part) is DynamicText for part in parts) else text
