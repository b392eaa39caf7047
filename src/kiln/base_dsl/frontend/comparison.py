"""Chained comparisons, `in` and `not in`, `is`, and equality with a literal list or tuple."""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

from .. import trace as tracing
from .. import tree
from ..diagnostics import runtime_error
from ..typing import Numeric
from .boolean import run_not, truths
from .conditional import choose
from .regions import as_condition

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rewriter import Rewriter, _Expressions


def rewrite(rw: Rewriter, node: ast.Compare, outer: _Expressions) -> ast.expr:
    """Rewrite a comparison: a single one stays, a chain hands its later operands over unevaluated."""
    sequences = any(isinstance(side, (ast.List, ast.Tuple)) for side in (node.left, *node.comparators))
    ours = isinstance(node.ops[0], (ast.In, ast.NotIn)) or (sequences and isinstance(node.ops[0], (ast.Eq, ast.NotEq)))
    ours = ours or (isinstance(node.ops[0], (ast.Is, ast.IsNot)) and not _is_none(node.left, node.comparators[0]))
    if rw.typed and any(isinstance(op, (ast.Is, ast.IsNot)) for op in node.ops):
        rw.refuse(node, "`is` compares Python's objects, not values of the program", "write `p == None` or `p != None`")
    if len(node.ops) == 1 and not ours:
        outer.generic_visit(node)
        return node
    arguments: list[ast.expr] = [outer.visit(node.left)]
    for op, operand in zip(node.ops, node.comparators, strict=True):
        arguments += [ast.Constant(type(op).__name__), rw.thunk(operand, outer)]
    return ast.copy_location(rw.hook("compare", arguments), node)


def _is_none(*operands: ast.expr) -> bool:
    return any(isinstance(x, ast.Constant) and (x.value is None or x.value is Ellipsis) for x in operands)


def _is(left: object, right: object) -> bool:
    """Return `a is b`; refuse the test where Python's answer is not known while tracing."""
    if left is right:
        return True
    numbers = all(isinstance(x, (bool, int, float, Numeric)) for x in (left, right))
    if numbers and (tree.is_dynamic(left) or tree.is_dynamic(right)):
        raise runtime_error(
            f"`is` asks whether {tree.describe(left)} and {tree.describe(right)} are one object, and which number it is, is only "
            "known when the program runs",
            "compare numbers with `==`; for truth write `if x:`",
        )
    active = tracing.current()
    if active is not None and type(left) is type(right) and (active.is_merged(left) or active.is_merged(right)):
        raise runtime_error(
            f"`is` asks for one of two {type(left).__name__} objects, and which one was chosen is only known when the program runs",
            "compare what tells them apart, for example a number that each of them has",
        )
    return False


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "Eq": operator.eq,
    "NotEq": operator.ne,
    "Lt": operator.lt,
    "LtE": operator.le,
    "Gt": operator.gt,
    "GtE": operator.ge,
    "Is": _is,
    "IsNot": lambda a, b: not _is(a, b),
}


def run_compare(left: Any, *rest: Any) -> Any:
    """Return `left op operand op operand ...`, each operand evaluated at most once and only if needed."""
    name = rest[0]
    operand = rest[1]()
    rest = rest[2:]
    if name == "In":
        result = _contains(left, operand)
    elif name == "NotIn":
        result = run_not(_contains(left, operand))
    elif name in ("Eq", "NotEq") and _has_dynamic_element(left, operand):
        result = _same_elements(left, operand)
        result = result if name == "Eq" else run_not(result)
    else:
        result = _OPERATORS[name](left, operand)
    if not rest:
        return result
    if not tree.is_dynamic(result):
        return run_compare(operand, *rest) if result else result
    return choose(
        as_condition(result),
        lambda: run_compare(operand, *rest),
        lambda: result,
        truths,
        effects_of=rest[1::2],
        operand=operand,
    )


def _has_dynamic_element(left: object, right: object) -> bool:
    """Return whether two lists or two tuples can only be compared when the program runs."""
    if not (
        (isinstance(left, list) and isinstance(right, list)) or (isinstance(left, tuple) and isinstance(right, tuple))
    ):
        return False
    return any(tree.is_dynamic(e) or isinstance(e, (list, tuple)) for e in (*left, *right))


def _same_elements(left: Any, right: Any) -> Any:
    """Return whether two lists or tuples are equal: a conjunction of comparisons where elements are dynamic."""
    if len(left) != len(right):
        return False
    result: Any = True
    for a, b in zip(left, right, strict=True):
        same = _same_elements(a, b) if _has_dynamic_element(a, b) else a is b or a == b
        if same is False:
            return False
        if same is not True:
            result = same if result is True else result & same
    return result


def _contains(item: Any, container: Any) -> Any:
    """Return `item in container`: a disjunction of comparisons where the item or elements are dynamic."""
    if isinstance(container, (tuple, list, range)) and (
        tree.is_dynamic(item) or (not isinstance(container, range) and any(tree.is_dynamic(e) for e in container))
    ):
        result: Any = False
        for element in container:
            same = item == element
            if same is True:
                return True
            if same is not False:
                result = same if result is False else result | same
        return result
    if isinstance(container, (set, frozenset, dict)) and tree.is_dynamic(item):
        return _contains(item, list(container))
    return item in container
