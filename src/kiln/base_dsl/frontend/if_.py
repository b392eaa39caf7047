"""`if`, `elif`, `else`, and statements that a jump may skip."""

from __future__ import annotations

import ast
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
    rec: Construct, scope: Scope, condition: Any, then: Callable[[bool], None], orelse: Callable[[bool], None] | None
) -> None:
    """Run an `if`: a Python condition just runs in Python; a dynamic one becomes a branch of the program."""
    if not tree.is_dynamic(condition):
        if condition:
            then(False)
        elif orelse is not None:
            orelse(False)
        return
    dynamic_if(rec, scope, condition, lambda: then(True), lambda: orelse(True) if orelse is not None else None)


def run_guard(rec: Construct, scope: Scope, flags: tuple[str, ...], body: Callable[[bool], None]) -> None:
    """Run `body` on the paths where no flag is set; inside it they are known to be clear."""
    values = [scope.get(flag) for flag in flags]
    if any(v is True for v in values):
        return
    dynamic = [(f, v) for f, v in zip(flags, values, strict=True) if tree.is_dynamic(v)]
    if not dynamic:
        body(False)
        return
    skip = dynamic[0][1]
    for _, value in dynamic[1:]:
        skip = skip | value

    def clear_and_run() -> None:
        for flag, _ in dynamic:
            scope.set(flag, False)
        body(True)

    dynamic_if(rec, scope, skip ^ Boolean(True), clear_and_run, known_set(scope, dynamic), else_jumped=flags)


def known_set(scope: Scope, dynamic: list[tuple[str, Any]]) -> Callable[[], None]:
    """Return the other arm of a guard: if there is but one flag, it is set there."""
    return lambda: scope.set(dynamic[0][0], True) if len(dynamic) == 1 else None
