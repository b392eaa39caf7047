"""`a if c else b`: only the arm that Python would evaluate is evaluated."""

from __future__ import annotations

import ast
import typing
from typing import TYPE_CHECKING, Any

from .. import merging, tree
from .. import trace as tracing
from ..diagnostics import type_error
from ..typing import Boolean, Numeric
from . import merged_objects
from .lazy_effects import LazyEffects
from .nodes import mark_test
from .regions import DetachedBlock, as_condition, region

if TYPE_CHECKING:
    from collections.abc import Callable

    from .rewriter import Rewriter, _Expressions

Settle = typing.Callable[[Any, Any], "tuple[Callable[[], Any], Callable[[], Any]] | None"]

# Operations that may be computed although their result is not needed: they have no effect and cannot fail.
_SPECULATABLE = {
    f"arith.{name}"
    for name in (
        "constant",
        "addi",
        "subi",
        "muli",
        "andi",
        "ori",
        "xori",
        "cmpi",
        "cmpf",
        "addf",
        "subf",
        "mulf",
        "negf",
        "select",
        "extsi",
        "extui",
        "trunci",
        "extf",
        "truncf",
        "sitofp",
        "uitofp",
        "index_cast",
        "bitcast",
        "minsi",
        "maxsi",
        "minui",
        "maxui",
        "minimumf",
        "maximumf",
        "minnumf",
        "maxnumf",
    )
}


def rewrite(rw: Rewriter, node: ast.IfExp, outer: _Expressions) -> ast.expr:
    """Rewrite a conditional expression: both arms are handed over unevaluated."""
    mark_test(node.test)
    arms = node.body, node.orelse
    name = "ifexp_names" if all(isinstance(arm, (ast.Name, ast.Constant)) for arm in arms) else "ifexp"
    test = outer.visit(node.test)
    call = rw.hook(name, [test, rw.thunk(node.body, outer), rw.thunk(node.orelse, outer)])
    return ast.copy_location(call, node)


def run_conditional(condition: object, first: Callable[[], object], second: Callable[[], object]) -> Any:
    """Return the value of one arm."""
    if not tree.is_dynamic(condition):
        return first() if condition else second()
    return choose(as_condition(condition), first, second, effects_of=(first, second))


def run_names(condition: object, first: Callable[[], object], second: Callable[[], object]) -> Any:
    """Return the value of one arm, each a variable or a constant: numbers are selected, without regions."""
    if not tree.is_dynamic(condition):
        return first() if condition else second()
    test = as_condition(condition)
    a = first()
    b = second()
    if (
        isinstance(a, Numeric)
        and type(a) is type(b)
        and tracing.require("a conditional expression").dsl.is_selectable(type(a).mlir_type)
    ):
        merge = merging.Merge()
        make = merge.unify(a, b)
        chosen = [(x.first(), x.second(), x.type) for x in merge.leaves]
        return make(iter([tracing.emit_value("arith.select", t, (test.ir_value(), x, y)) for x, y, t in chosen]))
    return choose(test, first, second)


def choose(
    condition: Boolean,
    first: Callable[[], object],
    second: Callable[[], object],
    settle: Settle | None = None,
    effects_of: tuple[Callable[[], object], ...] = (),
    what: str = "",
    operand: object = None,
) -> Any:
    """Trace both arms, each in a region of its own, and merge their values.

    `settle`: for values of two types, returns functions that give values of one type in each arm, or None.
    `effects_of`: the parts of the user's program among the arms that may change variables or objects.
    `operand`: a value that is compared in one of the arms, perhaps by a method of its class.
    `what`: the name of the construct in errors, if it is not a conditional expression.
    """
    trace = tracing.require("a conditional expression")
    blocks = DetachedBlock([]), DetachedBlock([])
    effects = LazyEffects(effects_of, operand)
    with region(what or "a conditional expression", None, effects.snapshot):
        with blocks[0].open():
            a = first()
        effects.end_of_arm()
        with blocks[1].open():
            b = second()
        effects.end_of_arm()
    chosen = a, b
    merge = merging.Merge(dict(effects.snapshot.objects))
    if a is not b:
        a = effects.at_end(0, a, merge.kept)
        b = effects.at_end(1, b, merge.kept)
    try:
        make = merge.unify(a, b)
    except merging.Mismatch as m:
        settled = settle(a, b) if settle is not None else None
        if settled is None:
            raise _arms_error(what, m) from None
        with blocks[0].open():
            a = settled[0]()
        with blocks[1].open():
            b = settled[1]()
        merge = merging.Merge(merge.kept)
        make = merge.unify(a, b)
    noted = merged_objects.Noted(None)
    finish = effects.merge(merge, noted)
    leaves = merge.leaves
    with blocks[0].open():
        first_values = [leaf.first() for leaf in leaves]
    with blocks[1].open():
        second_values = [leaf.second() for leaf in leaves]
    if all(op.operation.name in _SPECULATABLE for block in blocks for op in block.block.operations) and all(
        trace.dsl.is_selectable(leaf.type) for leaf in leaves
    ):
        for block in blocks:
            block.splice()
        test = condition.ir_value()
        results = [
            x if x == y else tracing.emit_value("arith.select", x.type, [test, x, y])
            for x, y in zip(first_values, second_values, strict=True)
        ]
    else:
        results = trace.dsl.make_if(condition.ir_value(), blocks[0].block, first_values, blocks[1].block, second_values)
    values = iter(results)
    result = make(values)
    finish(values)
    merged_objects.look_again(effects.snapshot.watched())
    noted.add(result, list(chosen), "the value of a conditional expression")
    noted.settle(list)
    return result


def _arms_error(what: str, m: merging.Mismatch) -> Exception:
    values = f"{tree.describe(m.first)} and {tree.describe(m.second)}"
    hint = m.hint or "convert one of them, or make the condition a Python value (const_expr)"
    if what and not m.why:
        hint = f"{what} gives one of its operands: convert one of them, or write bool(x) where the truth of x is meant"
    message = f"the two values of {what or 'a conditional expression'} differ in type: {values}"
    if m.why:
        message = f"{values} cannot be the two values of {what or 'a conditional expression'}: {m.why}"
    return type_error(message, hint)
