"""Values that come from Python at run time."""

from __future__ import annotations

from typing import Any

from ..base_dsl.arguments import Node


def argument_node(value: Any, annotation: Any) -> Node | None:
    """The argument node of a tensor or another value of this language."""
    return None
