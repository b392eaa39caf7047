"""Operator methods of a class, made from one function of the operator's name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Compute = Callable[..., Any]
"""A function of (name, x, y), with True as a fourth argument if y is the left operand."""


def both_ways(compute: Compute, name: str) -> tuple[Any, Any]:
    """Return the methods of an operator and of its reflected form: `__add__` and `__radd__` for "add"."""

    def operator(self: Any, other: object) -> Any:
        return compute(name, self, other)

    def reflected(self: Any, other: object) -> Any:
        return compute(name, self, other, True)

    return operator, reflected


def one_way(compute: Compute, *names: str) -> list[Any]:
    """Return the methods of operators without a reflected form, such as comparisons."""
    return [both_ways(compute, name)[0] for name in names]
