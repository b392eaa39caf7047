"""What reports need of an instrumented build: its places, its kernels and their memory. The disk cache keeps it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from ....base_dsl.diagnostics import Span
from ....base_dsl.sanitizing import BOUNDS


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

    def view_at(self, offset: int) -> tuple[SharedView, int] | None:
        """Return the smallest tensor at a byte of a block's shared memory, and how far into it that is."""
        found: tuple[SharedView, int] | None = None
        for view in self.views:
            inside = offset - view.start - (self.dynamic_start if view.dynamic else 0)
            if 0 <= inside < view.end - view.start and (
                found is None or view.end - view.start < found[0].end - found[0].start
            ):
                found = view, inside
        return found


class ReportFacts:
    """An instrumented build as reports see it."""

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds: tuple[str, ...] = tuple(kinds)
        self.plain: bool = BOUNDS in self.kinds
        """Whether only bounds and unset shared memory are looked for."""
        self.sites: list[SanitizedSite] = []
        self.kernels: list[KernelInfo] = []

    def encoded(self) -> dict[str, Any]:
        """Return the places and kernels as JSON can hold them."""
        return {
            "sites": list(map(dataclasses.asdict, self.sites)),
            "kernels": list(map(dataclasses.asdict, self.kernels)),
        }

    @staticmethod
    def decoded(kinds: Sequence[str], facts: dict[str, Any]) -> ReportFacts:
        """Return the inverse of `encoded`."""
        made = ReportFacts(kinds)
        for site in facts["sites"]:
            calls = tuple(Span(**call) for call in site["calls"])
            made.sites.append(SanitizedSite(**{**site, "span": site["span"] and Span(**site["span"]), "calls": calls}))
        for kernel in facts["kernels"]:
            arguments = [argument and Argument(**argument) for argument in kernel["arguments"]]
            views = [SharedView(**{**view, "tensor": Argument(**view["tensor"])}) for view in kernel["views"]]
            made.kernels.append(KernelInfo(**{**kernel, "arguments": arguments, "views": views}))
        return made


_LEAF = re.compile(r"\?(?:\{[^}]*\})?|-?\d+")


_SWIZZLED = re.compile(r"S<(\d+),(\d+),(-?\d+)> o 0 o (.*)")


def swizzled_layout(layout: str | None) -> tuple[tuple[int, int, int] | None, str | None]:
    """Return the swizzle S<b,m,s> of a layout's text, or None, and the layout that it is composed with."""
    found = _SWIZZLED.fullmatch(layout or "")
    if found is None:
        return None, layout
    bits, base, shift, plain = found.groups()
    return (int(bits), int(base), int(shift)), plain


def layout_leaves(layout: str | None) -> tuple[list[str], list[str]] | None:
    """Return the leaves of the shape and of the stride of a layout's text; None for layouts that are not plain."""
    if layout is None or layout.count(":") != 1 or "o" in layout or "@" in layout or "E" in layout:
        return None
    shape, stride = (_LEAF.findall(part) for part in layout.split(":"))
    return (shape, stride) if len(shape) == len(stride) else None
