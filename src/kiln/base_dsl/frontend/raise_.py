"""`raise`: ordinary Python, but refused directly under a condition that is only known when the program runs."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from ..diagnostics import DSLSyntaxError, error

if TYPE_CHECKING:
    from .rewriter import Rewriter


def rewrite(rw: Rewriter, node: ast.Raise) -> list[ast.stmt]:
    """Rewrite a `raise`: check first whether the innermost region is one of the program."""
    region = rw.innermost_region()
    stmts: list[ast.stmt] = []
    if region is not None:
        check = ast.Expr(rw.hook("check_raise", [ast.Name(region, ast.Load())]))
        stmts.append(ast.copy_location(check, node))
    if node.exc is not None:
        node.exc = rw.expression(node.exc)
    if node.cause is not None:
        node.cause = rw.expression(node.cause)
    return [*stmts, node]


def check_raise(dynamic: bool) -> None:
    """Refuse a `raise` on a path that may not be taken."""
    if dynamic:
        raise error(
            DSLSyntaxError,
            "`raise` under a condition that is only known when the program runs",
            hint="use `assert condition, message` for a check at run time, or a condition that is a Python value (const_expr)",
        )
