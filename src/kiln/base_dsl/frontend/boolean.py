"""`and`, `or`, `not`: the second operand is evaluated only when Python would evaluate it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from .. import tree
from . import nodes

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rewriter import Rewriter, _Expressions


def rewrite(rw: Rewriter, node: ast.BoolOp, outer: _Expressions) -> ast.expr:
    """`a and b and c` hands the operands over unevaluated, but for the first."""
    name = "and_" if isinstance(node.op, ast.And) else "or_"
    if rw.may_have_effects(*node.values[1:]):
        name += "effects"
    first = outer.visit(node.values[0])
    others = [rw.thunk(v, outer) for v in node.values[1:]]
    return nodes.fix_locations(ast.copy_location(rw.hook(name, [first, *others]), node))


def rewrite_not(rw: Rewriter, node: ast.UnaryOp) -> ast.expr:
    """`not x`."""
    return nodes.fix_locations(ast.copy_location(rw.hook("not_", [node.operand]), node))


def run_boolean(is_and: bool, value: Any, others: tuple[Callable[[], Any], ...], effects: bool = False) -> Any:
    """The operand that decides, as in Python; of dynamic operands, a value with the same truth and type."""
    for index, other in enumerate(others):
        if not tree.is_dynamic(value):
            if bool(value) != is_and:
                return value
            value = other()
            continue
        from .conditional import choose
        from .regions import as_condition

        kept = value
        rest = others[index:]
        condition = as_condition(value)

        def evaluate(rest: tuple[Callable[[], Any], ...] = rest) -> Any:
            return run_boolean(is_and, rest[0](), rest[1:], effects)

        def keep(kept: Any = kept) -> Any:
            return kept

        first, second = (evaluate, keep) if is_and else (keep, evaluate)
        return choose(condition, first, second, truth_only=True, effects_of=rest if effects else ())
    return value


def run_not(value: Any) -> Any:
    """The negation of a value's truth."""
    if not tree.is_dynamic(value):
        return not value
    from .regions import as_condition

    return as_condition(value) ^ True
