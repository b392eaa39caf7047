"""Layouts from text: the inverse of printing, for the command line and for tests."""

from __future__ import annotations

import re
from typing import Any

from .basis import ScaledBasis
from .composed_layout import ComposedLayout
from .layout import Layout
from .leaf import LayoutError
from .swizzle import Swizzle

__all__ = ["parse_layout", "parse_tuple"]

_TOKEN = re.compile(r"\s*(-?\d+|[(),:@])")
_SWIZZLE = re.compile(r"\s*S<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>\s*$")


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match.group(1) if match else ""

    def take(self, expected: str = "") -> str:
        match = _TOKEN.match(self.text, self.at)
        token = match.group(1) if match else ""
        if not match or (expected and token != expected):
            self.fail(f"expected {expected or 'a number or a parenthesis'!s}")
        self.at = match.end()  # pyright: ignore[reportOptionalMemberAccess]
        return token

    def fail(self, why: str) -> None:
        raise LayoutError(
            f"this is not a layout: {why} at the caret. Write for example ((2,4),8):((1,16),2)\n"
            f"  {self.text}\n  {' ' * self.at}^"
        )

    def tree(self) -> Any:
        if self.peek() != "(":
            return self.leaf()
        self.take("(")
        items: list[Any] = []
        while self.peek() != ")":
            items.append(self.tree())
            if self.peek() == ",":
                self.take(",")
        self.take(")")
        return tuple(items)

    def leaf(self) -> Any:
        if not re.fullmatch(r"-?\d+", self.peek()):
            self.fail("expected a number or a parenthesis")
        value = int(self.take())
        path: list[int] = []
        while self.peek() == "@":
            self.take("@")
            path.insert(0, int(self.take()))  # printed innermost first
        return ScaledBasis(value, path) if path else value

    def end(self) -> None:
        if self.text[self.at :].strip():
            self.fail("expected the end")


def parse_tuple(text: str) -> Any:
    """Return a tree of ints from its text: ``(16,(2,8))``."""
    reader = _Reader(text)
    result = reader.tree()
    reader.end()
    return result


def parse_layout(text: str) -> Layout | ComposedLayout:
    """Return a static layout from its text, as it is printed: ``(4,8):(8,1)``, ``S<3,4,3> o 0 o (8,64):(64,1)``,
    ``(4,8):(1@0,1@1)``.

    A shape alone is the compact layout of that shape. Raises LayoutError with a caret under the place.
    """
    parts = text.split(" o ")
    if len(parts) > 1:
        swizzle = _SWIZZLE.match(parts[0])
        if len(parts) > 3 or not swizzle:
            raise LayoutError(
                f"this is not a composed layout: write S<b,m,s> o offset o shape:stride, but got {text!r}"
            )
        offset = parse_tuple(parts[1]) if len(parts) == 3 else 0
        outer = parse_layout(parts[-1])
        assert isinstance(outer, Layout)
        return ComposedLayout(Swizzle(*map(int, swizzle.groups())), offset, outer)
    reader = _Reader(text)
    shape = reader.tree()
    stride = None
    if reader.peek() == ":":
        reader.take(":")
        stride = reader.tree()
    reader.end()
    return Layout(shape, stride)
