"""Statistics of a row that threads accumulate, and their reduction over lanes and warps."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from ...parts.vectors import across, maximum, plus

if TYPE_CHECKING:
    from .... import cute

Statistics = tuple[Any, ...]
"""Float32 values, or Python floats that are the same in all threads."""


def sum_statistics(parts: list[Statistics], lanes: int) -> Statistics:
    """Add the statistics of several parts, over `lanes` lanes."""
    return tuple(across(functools.reduce(plus, values), plus, lanes) for values in zip(*parts, strict=True))


def max_statistics(parts: list[Statistics], lanes: int) -> Statistics:
    """Return the maximum of single-valued statistics of several parts, over `lanes` lanes."""
    return (across(functools.reduce(maximum, [value for (value,) in parts]), maximum, lanes),)


def read_statistics(like: Statistics, slot: cute.Tensor) -> Statistics:
    """Return the statistics that another warp stored; a Python float in `like` is the same for all warps and not
    stored."""
    return tuple(value if isinstance(value, float) else slot[k] for k, value in enumerate(like))
