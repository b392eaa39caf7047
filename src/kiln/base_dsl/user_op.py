"""Help for programs that build operations themselves."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from . import trace as tracing


def dsl_user_op(function: Any) -> Any:
    """Decorator of a function that emits operations: its `loc` is the caller's source line unless given."""
    takes_loc = "loc" in inspect.signature(function).parameters

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        active = tracing.current()
        if active is not None and takes_loc and kwargs.get("loc") is None:
            kwargs["loc"] = active.location(1)
        return function(*args, **kwargs)

    return run


def extract_mlir_values(x: Any) -> list[Any]:
    """The MLIR values a value is made of."""
    from . import tree

    return tree.open_value(x, promote=False)[1]


def new_from_mlir_values(x: Any, values: list[Any]) -> Any:
    """A value like `x` made of other MLIR values."""
    from . import tree

    return tree.open_value(x, promote=False)[2](iter(values))
