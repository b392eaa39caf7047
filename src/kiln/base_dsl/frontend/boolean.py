"""`and`, `or`, `not`: the second operand is evaluated only when Python would evaluate it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from .. import tree
from ..diagnostics import frame_span, user_frame, warn_at
from ..typing import Boolean, Numeric, as_numeric
from .conditional import choose
from .nodes import ONLY_TRUTH
from .regions import as_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rewriter import Rewriter, _Expressions


def rewrite(rw: Rewriter, node: ast.BoolOp, outer: _Expressions) -> ast.expr:
    """Rewrite `a and b and c`: all operands but the first are handed over unevaluated."""
    how = [isinstance(node.op, ast.And), getattr(node, ONLY_TRUTH, False)]
    first = outer.visit(node.values[0])
    others = [rw.thunk(v, outer) for v in node.values[1:]]
    call = rw.hook("boolean", [ast.Tuple([ast.Constant(flag) for flag in how], ast.Load()), first, *others])
    return ast.copy_location(call, node)


def rewrite_not(rw: Rewriter, node: ast.UnaryOp) -> ast.expr:
    """Rewrite `not x`."""
    return ast.copy_location(rw.hook("not_", [node.operand]), node)


def rewrite_invert(rw: Rewriter, node: ast.UnaryOp) -> ast.expr:
    """Rewrite `~x`: as a test it is checked when it runs."""
    return ast.copy_location(rw.hook("inverted", [node.operand]), node) if getattr(node, ONLY_TRUTH, False) else node


_warned: dict[object, int] = {}


def run_inverted(value: Any) -> Any:
    """Return `~value` as a test: always true for Python's bool, the negation of a Boolean, of which the user is warned."""
    frame = user_frame()
    if isinstance(value, Boolean) and tree.is_dynamic(value) and frame is not None:
        text = "`~` of a Boolean is its negation, as a test too; of Python's True it would be true: write `not x`"
        warn_at(frame_span(frame), text, _warned)
    return ~value


def run_boolean(is_and: bool, value: object, others: tuple[Callable[[], object], ...], only_truth: bool = True) -> Any:
    """Return the operand that decides, as in Python. `only_truth`: its truth, if dynamic operands differ in type."""
    for index, other in enumerate(others):
        if not tree.is_dynamic(value):
            if bool(value) != is_and:
                return value
            value = other()
            continue
        kept = value
        rest = others[index:]
        condition = as_condition(value)

        def evaluate(rest: tuple[Callable[[], object], ...] = rest) -> Any:
            return run_boolean(is_and, rest[0](), rest[1:], only_truth)

        def keep(kept: object = kept) -> Any:
            return kept

        first, second = (evaluate, keep) if is_and else (keep, evaluate)
        settle = truths if only_truth else _and_values if is_and else _or_values
        what = "`and`" if is_and else "`or`"
        return choose(condition, first, second, settle, effects_of=rest, what=what)
    return value


def truths(a: object, b: object) -> Any:
    """Return arms that give the truth of two values, as `Settle` does."""
    if not all(tree.is_dynamic(x) or isinstance(x, (bool, int, float)) for x in (a, b)):
        return None
    return (lambda: _truth(a)), (lambda: _truth(b))


def _truth(x: object) -> Any:
    return as_condition(x) if tree.is_dynamic(x) else bool(x)


def _and_values(last: Any, kept: object) -> Any:
    """Return arms of `and` with values of one type, as `Settle` does.

    The first operand is the result only where it is zero, so the second operand's type has that value, too.
    """
    if not _is_number(last) or not _is_number(kept):
        return None
    return (lambda: last), (lambda: type(last)(0))


def _or_values(kept: Any, last: Any) -> Any:
    """Return arms of `or` with values of one type, as `Settle` does: a truth value beside a number becomes 0 or 1."""
    if not _is_number(last) or not _is_number(kept):
        return None
    if isinstance(kept, Boolean):
        return (lambda: type(as_numeric(last))(kept)), (lambda: last)
    if isinstance(last, (bool, Boolean)):
        return (lambda: kept), (lambda: type(kept)(last))
    return None


def _is_number(x: object) -> bool:
    return isinstance(x, (bool, int, float, Numeric))


def run_not(value: object) -> Any:
    """Return the negation of a value's truth."""
    if not tree.is_dynamic(value):
        return not value
    return as_condition(value) ^ True
