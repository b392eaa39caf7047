"""`assert`: checked while tracing for Python values, and when the program runs for dynamic ones."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from .. import trace as tracing
from .. import tree
from ..numeric.scalar import DynamicText
from .lazy_effects import LazyEffects
from .nodes import mark_test
from .regions import as_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rewriter import Rewriter


def rewrite(rw: Rewriter, node: ast.Assert) -> list[ast.stmt]:
    """Rewrite an `assert`: its message is evaluated only if the check fails or is left to run time."""
    text = ast.Constant(ast.unparse(node.test))
    mark_test(node.test)
    test = rw.expression(node.test)
    message = rw.expression(node.msg) if node.msg is not None else ast.Constant(None)
    lazy = ast.Lambda(ast.arguments([], [], None, [], [], None, []), message)
    call = rw.hook("assert_", [test, text, ast.copy_location(lazy, node)])
    return [ast.copy_location(ast.Expr(call), node)]


def run_assert(condition: object, text: str, message: Callable[[], object]) -> None:
    """Raise AssertionError now, or leave a check in the program."""
    if not tree.is_dynamic(condition):
        if not condition:
            said = message()
            raise AssertionError(*([said] if said is not None else []))
        return
    trace = tracing.require("assert")
    said = _evaluated(message)
    if said is None:
        said = f"assertion failed: {text}"
    elif isinstance(said, DynamicText):
        said = f"{str.__str__(said)} (? is known when the program runs: print it with cute.printf)"
    trace.dsl.make_assert(as_condition(condition).ir_value(), f"{said}")


def _evaluated(message: Callable[[], object]) -> Any:
    """Evaluate a message, and undo its side effects: in Python it is evaluated only if the check fails."""
    effects = LazyEffects((message,))
    with tracing.require("assert").detached():
        said = message()
    effects.snapshot.check_unchanged("the message of an `assert`")
    effects.snapshot.undo()
    return said
