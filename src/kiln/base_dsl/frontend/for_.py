"""`for`: loops of the object program over ranges, loops of Python over everything else."""

from __future__ import annotations

import ast
import builtins
from typing import TYPE_CHECKING, Any

from .. import tree
from ..diagnostics import DSLRuntimeError, error
from ..ranges import Range
from ..typing import Boolean, Int32, Int64, Int128, Integer, as_numeric, common_type
from .if_ import known_set

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .carry import Scope
    from .construct import Construct
    from .jumps import Loop
    from .rewriter import Rewriter


def rewrite(rw: Rewriter, loop: Loop) -> list[ast.stmt]:
    """The body becomes a function of the item."""
    node = loop.node
    assert isinstance(node, ast.For)
    index = rw.construct("for", node, node.iter, loop, [node], exits=loop.exits)
    item = rw.fresh("item")
    first = ast.Assign([node.target], ast.Name(item, ast.Load()))
    ast.copy_location(first, node.target)
    body = rw.region(rw.fresh("body"), [first, *node.body], node, item)
    iterable = rw.expression(node.iter)
    if isinstance(node.iter, ast.Call) and isinstance(node.iter.func, ast.Name) and node.iter.func.id == "range":
        call = iterable
        assert isinstance(call, ast.Call)
        call.func = ast.copy_location(rw.hook("range", [ast.Name("range", ast.Load())]), node.iter.func)
    run = rw.hook("for_", [index, rw.scope(), iterable, ast.Name(body.name, ast.Load())])
    made = ast.copy_location(ast.Expr(ast.copy_location(run, node.iter)), node.iter)
    return [body, made]


def run_for(rec: Construct, scope: Scope, iterable: Any, body: Callable[[bool, Any], None]) -> None:
    """Run or build the loop."""
    if isinstance(iterable, builtins.range):
        iterable = Range(iterable.start, iterable.stop, iterable.step)
    if isinstance(iterable, Range):
        _range_loop(rec, scope, iterable, body)
        return
    try:
        items = iter(iterable)
    except TypeError:
        raise error(
            DSLRuntimeError,
            f"a `for` loop cannot run over {tree.describe(iterable)}",
            hint="write range(n) to count to a value that is only known when the program runs",
        ) from None
    python_loop(rec, scope, items, body)


def python_loop(rec: Construct, scope: Scope, items: Iterator[Any], body: Callable[[bool, Any], None]) -> None:
    """Run the body for each item now. After a dynamic jump, the other items run only if it was not taken."""
    for item in items:
        body(False, item)
        if run_rest(rec, scope, lambda: python_loop(rec, scope, items, body)):
            return


def run_rest(rec: Construct, scope: Scope, rest: Callable[[], None]) -> bool:
    """After an iteration run in Python: whether the loop is over here, because it was left or `rest` did the others."""
    values = {flag: scope.get(flag) for flag in rec.exits}
    if any(v is True for v in values.values()):
        return True
    dynamic = {f: v for f, v in values.items() if tree.is_dynamic(v)}
    if not dynamic:
        return False
    from .regions import dynamic_if

    left: Any = None
    for value in dynamic.values():
        left = value if left is None else left | value

    def go_on() -> None:
        for flag in dynamic:
            scope.set(flag, False)
        rest()

    otherwise = known_set(scope, list(dynamic.items()))
    dynamic_if(rest_of(rec), scope, left ^ Boolean(True), go_on, otherwise, else_jumped=tuple(dynamic))
    return True


def rest_of(rec: Construct) -> Construct:
    """The remaining iterations of a loop, seen as a branch: what an iteration may read stays alive."""
    import dataclasses

    flow = dataclasses.replace(rec.flow, live_out=rec.flow.live_out | rec.flow.live_head | frozenset(rec.exits))
    return dataclasses.replace(rec, flow=flow)


def _range_loop(rec: Construct, scope: Scope, r: Range, body: Callable[[bool, Any], None]) -> None:
    from .regions import dynamic_for

    bounds = (r.start, r.stop, r.step)
    for name, value in zip(("start", "stop", "step"), bounds, strict=True):
        if isinstance(value, bool) or not isinstance(value, (int, Integer)):
            raise error(
                DSLRuntimeError,
                f"range() takes integers, and its {name} is {tree.describe(value)}",
                hint="convert it with Int32(...)",
            )
    start, stop, step = bounds
    static = all(type(v) is int for v in bounds)
    if static:
        count = len(range(start, stop, step))
        if count == 0:
            return
    kind: Any = Int32
    for value in bounds:
        kind = common_type(kind, type(as_numeric(value)))
    if not kind.signed and any(type(v) is int and v < 0 for v in bounds):
        kind = Int64 if kind.width <= 32 else Int128  # negative numbers beside unsigned ones
    certain = static
    if type(step) is int and step > 0:
        dynamic_for(rec, scope, kind(start), kind(stop), kind(step), r.hints, lambda i: body(True, i), certain)
        return
    # Any other step: count the iterations, and compute the item.
    if type(step) is int and step == 0:
        raise error(DSLRuntimeError, "the step of range() must not be zero", hint="give a positive or negative step")
    first, increment = kind(start), kind(step)
    if type(step) is int:
        trips = (kind(start) - kind(stop) + (-step - 1)) // kind(-step)
    else:
        up = increment > 0
        from ..typing import select

        distance = select(up, kind(stop) - first, first - kind(stop))
        size = select(up, increment, -increment)
        trips = (distance + size - 1) // size
    dynamic_for(
        rec, scope, kind._make(kind(0).ir_value(), nonneg=True), trips, kind(1), r.hints,
        lambda k: body(True, first + k * increment), certain,
    )  # fmt: skip
