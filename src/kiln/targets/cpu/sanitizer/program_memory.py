"""The memory of a program, as reports name it: places that access it, arguments, and tensors in shared memory."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, NamedTuple

from ....base_dsl.diagnostics import Span
from .state import SHARED, SPACE_OF


@dataclasses.dataclass(frozen=True)
class SanitizedSite:
    """A place in the program that the detector can name."""

    what: str
    """"read", "write", "barrier", ..."""
    span: Span | None
    calls: tuple[Span, ...]
    kernel: str
    memory: str = ""
    """What it accesses: the name of an argument or of an allocation."""
    start: int = 0
    """Where the allocation starts in shared memory; -1: at the dynamic part."""
    element: str = ""
    element_bits: int = 0
    swizzle: str = ""
    """The swizzle through which it accesses shared memory."""
    uniform: bool = False
    """Whether all threads access the same element."""
    loop: Span | None = None
    """The innermost dynamic loop around it, if its iterations are known when it is reported."""


@dataclasses.dataclass(frozen=True)
class Argument:
    """A kernel's argument that points to memory."""

    name: str
    element: str
    element_bits: int
    layout: str | None
    space: str


@dataclasses.dataclass(frozen=True)
class SharedView:
    """A tensor in shared memory: the bytes it covers, counted from the start of the static or of the dynamic part."""

    tensor: Argument
    start: int
    end: int
    dynamic: bool


@dataclasses.dataclass
class KernelInfo:
    """The description of a kernel for reports."""

    name: str
    arguments: list[Argument | None]
    views: list[SharedView] = dataclasses.field(default_factory=list)
    dynamic_start: int = 0
    """Where dynamic shared memory starts, from the start of the block's shared memory."""

    def reach(self, start: int) -> int:
        """Return the bytes that tensors reach which begin where an allocation of the block's shared memory does."""
        ends = [view.end - view.start for view in self.views if view.start == start and not view.dynamic]
        return max(ends, default=0)

    def view_at(self, offset: int) -> tuple[SharedView, int] | None:
        """Return the smallest tensor at a byte of a block's shared memory, and how far into it that is."""
        narrowest: tuple[SharedView, int] | None = None
        for view in self.views:
            inside = offset - view.start - (self.dynamic_start if view.dynamic else 0)
            if 0 <= inside < view.end - view.start and (
                narrowest is None or view.end - view.start < narrowest[0].end - narrowest[0].start
            ):
                narrowest = view, inside
        return narrowest


@dataclasses.dataclass(frozen=True)
class Allocation:
    """Bytes of static or dynamic shared memory."""

    start: int
    end: int
    name: str
    is_named: bool = False
    """Whether the allocation itself is named, so that tensors in it do not have the names of variables."""


class AccessedMemory(NamedTuple):
    """The memory of an access, as far as it is known when compiling."""

    origin: str
    """"argument", "shared", "private" or "unknown"."""
    source: Any
    """The number of the argument, the allocation, or the address of the register array."""
    space: str
    element: str
    element_bits: int
    low: int = 0
    """Where the allocation in shared memory starts, or the number of the argument plus 1."""
    high: int = 0x7FFF_FFFF
    name: str = ""
    start: int = 0

    @property
    def space_flags(self) -> int:
        return SHARED if self.origin == "shared" else SPACE_OF.get(self.space, 0)

    @property
    def site_fields(self) -> dict[str, Any]:
        """The fields of the `SanitizedSite` of an access."""
        return {"memory": self.name, "start": self.start, "element": self.element, "element_bits": self.element_bits}


_LEAF = re.compile(r"\?(?:\{[^}]*\})?|-?\d+")


_SWIZZLED = re.compile(r"S<(\d+),(\d+),(-?\d+)> o 0 o (.*)")


def swizzled_layout(layout: str | None) -> tuple[tuple[int, int, int] | None, str | None]:
    """Return the swizzle S<b,m,s> of a layout's text, or None, and the layout that it is composed with."""
    match = _SWIZZLED.fullmatch(layout or "")
    if match is None:
        return None, layout
    bits, base, shift, plain = match.groups()
    return (int(bits), int(base), int(shift)), plain


def layout_leaves(layout: str | None) -> tuple[list[str], list[str]] | None:
    """Return the leaves of the shape and of the stride of a layout's text; None for layouts that are not plain."""
    if layout is None or layout.count(":") != 1 or "o" in layout or "@" in layout or "E" in layout:
        return None
    shape, stride = (_LEAF.findall(part) for part in layout.split(":"))
    return (shape, stride) if len(shape) == len(stride) else None
