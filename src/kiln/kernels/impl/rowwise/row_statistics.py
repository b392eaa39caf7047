"""What threads find out about a row, and what several findings come to."""

from __future__ import annotations

from typing import Any

from ...parts.vectors import across, maximum, plus

State = tuple[Any, ...]
"""A finding: Float32, or Python numbers that are the same in all threads."""


def summed_up(states: list[State], lanes: int) -> State:
    """Findings that are sums."""
    found: list[Any] = []
    for parts in zip(*states, strict=True):
        value = parts[0]
        for more in parts[1:]:
            value = value + more
        found.append(across(value, plus, lanes))
    return tuple(found)


def most_of(states: list[State], lanes: int) -> State:
    """Findings that are one number each: the largest."""
    found = states[0][0]
    for (other,) in states[1:]:
        found = maximum(found, other)
    return (across(found, maximum, lanes),)


def told(own: State, box: Any) -> State:
    """What another warp has found. A Python number in one's own findings is the same in those of all."""
    return tuple(value if isinstance(value, float) else box[k] for k, value in enumerate(own))
