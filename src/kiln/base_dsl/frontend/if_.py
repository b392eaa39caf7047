"""`if`, `elif`, `else`, and guards: statements that a jump may skip."""

from __future__ import annotations

import ast
import functools
import operator
from typing import TYPE_CHECKING, Any

from .. import tree
from ..typing import Boolean
from .nodes import mark_test
from .regions import dynamic_if

if TYPE_CHECKING:
    from collections.abc import Callable

    from .carry import Scope
    from .construct import Construct
    from .jumps import Guard
    from .rewriter import Rewriter


def rewrite(rw: Rewriter, node: ast.If) -> list[ast.stmt]:
    """Rewrite an `if`: both arms become functions, of which the hook runs one, or traces both."""
    mark_test(node.test)
    index = rw.construct("if", node, node.test, node, [*node.body, *node.orelse])
    then = rw.region(rw.fresh("then"), node.body, node)
    functions = [then]
    otherwise: ast.expr = ast.Constant(None)
    if node.orelse:
        orelse = rw.region(rw.fresh("else"), node.orelse, node.orelse[0])
        functions.append(orelse)
        otherwise = ast.Name(orelse.name, ast.Load())
    call = rw.hook("if_", [index, rw.scope(), rw.expression(node.test), ast.Name(then.name, ast.Load()), otherwise])
    run = ast.copy_location(ast.Expr(ast.copy_location(call, node.test)), node.test)
    return [*functions, run]


def rewrite_guard(rw: Rewriter, node: Guard) -> list[ast.stmt]:
    """Rewrite statements that run unless a jump flag is set."""
    index = rw.construct("guard", node, node, node, list(node.body))
    body = rw.region(rw.fresh("rest"), node.body, node)
    flags = ast.Tuple([ast.Constant(f) for f in node.flags], ast.Load())
    call = rw.hook("guard", [index, rw.scope(), flags, ast.Name(body.name, ast.Load())])
    run = ast.copy_location(ast.Expr(ast.copy_location(call, node)), node)
    return [body, run]


def run_if(
    rec: Construct, scope: Scope, condition: object, then: Callable[[bool], None], orelse: Callable[[bool], None] | None
) -> None:
    """Run an `if`: a Python condition chooses an arm while tracing; a dynamic one becomes a branch of the program."""
    if not tree.is_dynamic(condition):
        if condition:
            then(False)
        elif orelse is not None:
            orelse(False)
        return
    dynamic_if(rec, scope, condition, lambda: then(True), lambda: orelse(True) if orelse is not None else None)


def run_guard(rec: Construct, scope: Scope, flags: tuple[str, ...], body: Callable[[bool], None]) -> None:
    """Run `body` on the paths where no flag is set; inside it they are known to be clear."""
    dynamic = dynamic_flags(scope, flags)
    if dynamic:
        unless_set(rec, scope, dynamic, lambda: body(True), jumped=flags)
    elif dynamic is not None:
        body(False)


def dynamic_flags(scope: Scope, flags: tuple[str, ...]) -> dict[str, Any] | None:
    """Return the jump flags whose value is only known when the program runs; None if one is known to be set."""
    values = {flag: scope.get(flag) for flag in flags}
    if any(value is True for value in values.values()):
        return None
    return {flag: value for flag, value in values.items() if tree.is_dynamic(value)}


def unless_set(
    rec: Construct, scope: Scope, dynamic: dict[str, Any], run: Callable[[], None], jumped: tuple[str, ...]
) -> None:
    """Branch over `run`, in which the dynamic flags are clear. `jumped`: the flags that may be set otherwise."""

    def clear_and_run() -> None:
        for flag in dynamic:
            scope.set(flag, False)
        run()

    def skip() -> None:
        if len(dynamic) == 1:  # then this flag is the one that is set
            scope.set(next(iter(dynamic)), True)

    is_set = functools.reduce(operator.or_, dynamic.values())
    dynamic_if(rec, scope, is_set ^ Boolean(True), clear_and_run, skip, else_jumped=jumped)
