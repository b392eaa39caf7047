"""`Site`: a place in the user's program that can fail at run time."""

from __future__ import annotations

from typing import NamedTuple

from ...base_dsl.diagnostics import Span


class Site(NamedTuple):
    """A place in the user's program that can fail at run time."""

    kind: str
    """"division", "shift", "range", "assert", "launch", "warning", or what a thread waits for there."""
    message: str
    span: Span | None
    calls: tuple[Span, ...]
    kernel: str
    """The kernel it is in (for a launch: the one launched); empty in host code."""
    types: tuple[str, ...] = ()
    """Types of the values recorded with the fault."""
