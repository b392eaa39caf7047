"""Statistics of a row that threads accumulate, and their reduction over lanes and warps."""

from __future__ import annotations

from typing import Any

from ...parts.vectors import across, maximum, plus

Statistics = tuple[Any, ...]
"""Float32 values, or Python floats that are the same in all threads."""


def sum_statistics(parts: list[Statistics], lanes: int) -> Statistics:
    """Returns the sums of the statistics of several parts, over `lanes` lanes."""
    sums: list[Any] = []
    for values in zip(*parts, strict=True):
        value = values[0]
        for other in values[1:]:
            value = value + other
        sums.append(across(value, plus, lanes))
    return tuple(sums)


def max_statistics(parts: list[Statistics], lanes: int) -> Statistics:
    """Returns the maximum of single-valued statistics of several parts, over `lanes` lanes."""
    result = parts[0][0]
    for (other,) in parts[1:]:
        result = maximum(result, other)
    return (across(result, maximum, lanes),)


def read_statistics(like: Statistics, slot: Any) -> Statistics:
    """Returns the statistics that another warp stored; a Python float in `like` is the same for all warps and not stored."""
    return tuple(value if isinstance(value, float) else slot[k] for k, value in enumerate(like))
