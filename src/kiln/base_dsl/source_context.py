"""Syntax at a place of the user's source: errors quote it in their help. Used only where an error is raised."""

from __future__ import annotations

import ast
import functools
import linecache
import types
from typing import Any, TypeVar

from .diagnostics import Span, frame_span, node_span, user_frame

_Node = TypeVar("_Node", bound=ast.AST)


@functools.lru_cache(maxsize=4)
def _parsed(text: str) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return None


def _tree(filename: str) -> ast.Module | None:
    return _parsed("".join(linecache.getlines(filename)))


def node_at(span: Span | None, kind: type[_Node]) -> _Node | None:
    """Return the node of a kind that is at a span; where columns are unknown, the only one on its line."""
    module = None if span is None else _tree(span.filename)
    if module is None or span is None:
        return None
    matching = [n for n in ast.walk(module) if isinstance(n, kind) and getattr(n, "lineno", 0) == span.line]
    if span.column >= 0:
        end = (span.end_line, span.end_column)
        here = ((n, getattr(n, "end_lineno", -1), getattr(n, "end_col_offset", -1)) for n in matching)
        matching = [n for n, *ends in here if n.col_offset == span.column and tuple(ends) == end]  # type: ignore[attr-defined]
    return matching[0] if len(matching) == 1 else None


def statement_at(span: Span | None) -> ast.stmt | None:
    """Return the innermost statement around a span."""
    module = None if span is None else _tree(span.filename)
    if module is None or span is None:
        return None
    around = [n for n in ast.walk(module) if isinstance(n, ast.stmt) and n.lineno <= span.line <= (n.end_lineno or 0)]
    if span.column >= 0:  # several may stand on one line
        place = (span.line, span.column)
        begun = [n for n in around if (n.lineno, n.col_offset) <= place < (n.end_lineno, n.end_col_offset)]  # type: ignore[operator]
        around = begun or around
    return max(around, key=lambda n: (n.lineno, n.col_offset), default=None)


def user_span() -> Span | None:
    """Return where the innermost frame of the user's program is now."""
    frame = user_frame()
    return None if frame is None else frame_span(frame)


_FOREIGN = ("math", "cmath", "numpy", "torch", "scipy", "jax")
"""Packages whose functions compute with numbers and arrays of Python, not with traced values."""


def foreign_call(span: Span | None, frame: types.FrameType | None) -> tuple[str, str] | None:
    """Return the call at a span as written, and the name of its function, if a package of Python's numbers has it."""
    call = node_at(span, ast.Call)
    if call is None or frame is None:
        return None
    function = value_at(call.func, frame)
    package = getattr(function, "__module__", None) or type(function).__module__
    root = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
        outer = value_at(root, frame)
        if isinstance(outer, types.ModuleType):
            package = outer.__name__
    if not isinstance(package, str) or package.partition(".")[0] not in _FOREIGN:
        return None
    written = ast.unparse(call.func)
    return written, written.rpartition(".")[2]


def value_at(node: ast.expr, frame: types.FrameType | None) -> Any:
    """Return what a name or attribute chain is in a frame; None if it cannot be told without running code."""
    if frame is None:
        return None
    if isinstance(node, ast.Name):
        for names in (frame.f_locals, frame.f_globals):
            if node.id in names:
                return names[node.id]
        return None
    if isinstance(node, ast.Attribute):
        owner = value_at(node.value, frame)
        return getattr(owner, node.attr, None) if isinstance(owner, (types.ModuleType, type)) else None
    return None


def stored_expression(span: Span | None) -> str:
    """Return the source of what the assignment or `.store()` around a span stores; empty if it cannot be told."""
    statement = statement_at(span)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and statement.value.args:
        return ast.unparse(statement.value.args[0])
    if isinstance(statement, ast.Assign) or (isinstance(statement, ast.AnnAssign) and statement.value is not None):
        return ast.unparse(statement.value)  # type: ignore[arg-type]
    if isinstance(statement, ast.AugAssign):
        return ast.unparse(
            ast.BinOp(ast.parse(ast.unparse(statement.target), mode="eval").body, statement.op, statement.value)
        )
    return ""


def return_span(function: types.FunctionType) -> Span | None:
    """Return the place of the first `return` with a value in a function; None if it cannot be told."""
    code = function.__code__
    module = _tree(code.co_filename)
    for node in ast.walk(module) if module is not None else ():
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first == code.co_firstlineno:
                returns = (n for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None)
                earliest = min(returns, key=lambda n: n.lineno, default=None)
                return None if earliest is None else node_span(earliest, code.co_filename, function.__name__)
    return None
