"""Attributes of `cute` on operations of other dialects: what a program asks of its loops, and layouts of arguments."""

from collections.abc import Mapping

from ...mlir import ir
from ..declaration import attribute_of

__all__ = ["LAYOUT", "PREFETCH_STAGES", "UNROLL", "UNROLL_FULL", "VECTORIZE", "loop_hints"]

LAYOUT = "cute.layout"
"""On an argument of a host function: the layout of the array whose address it is, as text, for the sanitizer."""
UNROLL = "cute.unroll"
"""On a loop: how often its body is copied."""
UNROLL_FULL = "cute.unroll_full"
"""On a loop: that it is removed if its trip count is constant."""
VECTORIZE = "cute.vectorize"
"""On a loop: that vector code is asked for."""
PREFETCH_STAGES = "cute.prefetch_stages"
"""On a loop: the stages of software pipelining that are asked for."""


def loop_hints(hints: Mapping[str, bool | int | None]) -> dict[str, ir.Attribute]:
    """Return the attributes of a loop with these hints."""
    return {
        f"cute.{name}": ir.UnitAttr.get() if value is True else attribute_of(int(value or 0))
        for name, value in hints.items()
    }
