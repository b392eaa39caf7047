"""`for`: a loop of the program over a range or a dynamic iterator, and a Python loop while tracing over anything else."""

from __future__ import annotations

import ast
import builtins
import dataclasses
from typing import TYPE_CHECKING, Any

from .. import tree
from ..diagnostics import DSLBaseError, runtime_error
from ..numeric.meta import INTEGERS
from ..ranges import DynamicIterator, Range
from ..typing import Int32, Int64, Int128, Integer, as_numeric, common_type, select
from .if_ import dynamic_flags, unless_set
from .loops import dynamic_for, dynamic_while
from .regions import DetachedBlock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .carry import Scope
    from .construct import Construct
    from .jumps import Loop
    from .rewriter import Rewriter


UNROLL_LIMIT = 10_000
"""Iterations of a loop whose condition is a Python value that Python runs by itself before it is refused as endless."""


def rewrite(rw: Rewriter, loop: Loop) -> list[ast.stmt]:
    """Rewrite a `for`: its body becomes a function of the item."""
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
    run_loop = ast.copy_location(ast.Expr(ast.copy_location(run, node.iter)), node.iter)
    return [body, run_loop]


def run_for(rec: Construct, scope: Scope, iterable: Any, body: Callable[[bool, Any], None]) -> None:
    """Run or build the loop."""
    if isinstance(iterable, builtins.range):
        iterable = Range(iterable.start, iterable.stop, iterable.step)
    if isinstance(iterable, Range):
        _range_loop(rec, scope, iterable, body)
        return
    if isinstance(iterable, DynamicIterator):
        _iterator_loop(rec, scope, iterable, body)
        return
    try:
        items = iter(iterable)
    except DSLBaseError:
        raise
    except TypeError:
        raise runtime_error(
            f"a `for` loop cannot run over {tree.describe(iterable)}",
            "write range(n) to count to a value that is only known when the program runs",
        ) from None
    python_loop(rec, scope, items, body)


def python_loop(rec: Construct, scope: Scope, items: Iterator[object], body: Callable[[bool, Any], None]) -> None:
    """Run the body for each item now. After a dynamic jump, the other items run only if it was not taken."""
    for item in items:
        body(False, item)
        if run_rest(rec, scope, lambda: python_loop(rec, scope, items, body)):
            return


def run_rest(rec: Construct, scope: Scope, rest: Callable[[], None]) -> bool:
    """Continue after an iteration run in Python; return whether the loop was left or `rest` did the others."""
    dynamic = dynamic_flags(scope, rec.exits)
    if dynamic:
        unless_set(_rest_of(rec), scope, dynamic, rest, jumped=tuple(dynamic))
    return dynamic is None or bool(dynamic)


def _rest_of(rec: Construct) -> Construct:
    """Return the remaining iterations of a loop as a branch, in which variables that an iteration may read are live."""
    flow = dataclasses.replace(rec.flow, live_out=rec.flow.live_out | rec.flow.live_head | frozenset(rec.exits))
    return dataclasses.replace(rec, flow=flow)


def _iterator_loop(
    rec: Construct, scope: Scope, iterator: DynamicIterator[object], body: Callable[[bool, object], None]
) -> None:
    """Build a `while` over a dynamic iterator; run it in Python as long as `has_item` is a Python value.

    The iterator is a variable of the loop under a name that no program has, so that its state is carried.
    """
    name = f"{type(iterator).__name__}(...)"
    scope = scope.with_variable(name, iterator)
    flow = dataclasses.replace(rec.flow, reads=rec.flow.reads | {name})
    rec = dataclasses.replace(rec, flow=flow, calls=rec.calls | {"has_item", "item", "advance"})

    def step() -> None:
        body(True, iterator.item())
        if not run_rest(rec, scope, iterator.advance):
            iterator.advance()

    def go_on(left: int) -> None:
        iterator.advance()
        run(left)

    def run(left: int) -> None:
        while True:
            with DetachedBlock([]).open():  # only to see whether it is a Python value
                has_item = iterator.has_item()
            if tree.is_dynamic(has_item):
                dynamic_while(rec, scope, iterator.has_item, step)
                return
            if not has_item:
                return
            refuse_endless(rec, left)
            left -= 1
            body(False, iterator.item())
            if run_rest(rec, scope, lambda left=left: go_on(left)):
                return
            iterator.advance()

    run(UNROLL_LIMIT)


def refuse_endless(rec: Construct, left: int) -> None:
    """Refuse a loop that ran `UNROLL_LIMIT` times while tracing; it may run `left` times more."""
    if left == 0:
        raise runtime_error(
            f"{rec.title} ran {UNROLL_LIMIT} times while tracing, with a condition that is a Python value",
            "make the condition depend on a value of the program, for example i = Int32(0) before the loop",
            span=rec.span,
        )


def _range_loop(rec: Construct, scope: Scope, r: Range, body: Callable[[bool, Any], None]) -> None:
    bounds = (r.start, r.stop, r.step)
    for name, value in zip(("start", "stop", "step"), bounds, strict=True):
        if isinstance(value, bool) or not isinstance(value, (int, Integer)):
            raise runtime_error(
                f"range() takes integers, and its {name} is {tree.describe(value)}",
                "divide integers with //, or convert it with Int32(...)",
            )
    start, stop, step = bounds
    if type(step) is int and step == 0:
        raise runtime_error("the step of range() must not be zero", "give a positive or negative step")
    count = len(range(start, stop, step)) if all(type(v) is int for v in bounds) else None
    if count == 0:
        return
    kind = item_type(start, stop, step)
    certain = count is not None
    if type(step) is int and step > 0 and _counts_up_safely(kind, start, step, count, bool(rec.exits)):
        first, increment = (_bound(kind, each) for each in (start, step))
        dynamic_for(rec, scope, first, kind(stop), increment, r.hints, lambda i: body(True, i), certain)
        return
    # Any other step: count the iterations, and compute the item.
    first = _bound(kind, start)
    increment = _bound(kind, step)
    trips = _trip_count(kind, first, kind(stop), step, count)
    zero = type(trips)(0)
    one = type(trips)(1)

    def run(number: object) -> None:
        body(True, first + kind._make(kind(number).ir_value(), nonneg=True) * increment)

    dynamic_for(rec, scope, zero, trips, one, r.hints, run, certain)


def _bound(kind: Any, value: Any) -> Any:
    """Return a start or step as a number of the loop's type that keeps what it is a multiple of."""
    number = kind(value)
    return number._assume(divisibility=abs(value)) if type(value) is int else number


def item_type(start: object, stop: object, step: object) -> Any:
    """Return the type of a range's items: the common type of bounds and step, if it has all values of the bounds.

    Otherwise it is the smallest integer type that has them.
    """
    met: Any = Int32
    for value in (start, stop, step):
        met = common_type(met, type(as_numeric(value)))
    if not met.signed and any(type(v) is int and v < 0 for v in (start, stop, step)):
        met = Int64 if met.width <= 32 else Int128  # negative numbers beside unsigned ones
    limits = [limit for bound in (start, stop) for limit in _limits(bound)]
    low = min(limits)
    high = max(limits)
    if met.min <= low and high <= met.max:
        return met
    fitting = next((t for t in (Int32, Int64, Int128) if t.min <= low and high <= t.max), None)
    if fitting is None:
        raise runtime_error(
            f"range() from {tree.describe(start)} to {tree.describe(stop)}: no integer type has all values of both",
            "convert both bounds to one type",
        )
    return fitting


def _limits(bound: Any) -> tuple[int, int]:
    """Return the smallest and the largest value that a bound can have."""
    if type(bound) is int:
        return bound, bound
    t = type(bound)
    return 0 if bound.nonneg else t.min, t.max


def _counts_up_safely(kind: Any, start: Any, step: int, count: int | None, has_exits: bool) -> bool:
    """Return whether a counter that starts at `start` passes the end of its range within its type.

    With a step of 1 it reaches the end itself. Signed counters with other steps are assumed not to overflow, as
    indices are; targets check this for plain loops.
    """
    if count is not None:
        return start + count * step <= kind.max
    return step == 1 or (kind.signed and not has_exits)


def _trip_count(kind: Any, first: Any, last: Any, step: Any, count: int | None) -> Any:
    """Return the number of items of a range, as an unsigned integer as wide as the items and the step.

    A non-negative distance between two numbers of `kind` is a value of the unsigned type of that width.
    """
    width = max(kind.width, type(as_numeric(step)).width)
    unsigned: Any = INTEGERS[width, False]
    if count is not None:
        return unsigned(count)
    size: Any
    if type(step) is int:
        size = abs(step)
        low, high = (first, last) if step > 0 else (last, first)
    elif step.nonneg:
        size = unsigned(step)
        low = first
        high = last
    else:
        up = step > 0
        size = unsigned(INTEGERS[step.width, False](select(up, step, -step)))
        low = select(up, first, last)
        high = select(up, last, first)
    distance = unsigned(INTEGERS[kind.width, False](high - low))
    return select(low < high, (distance - 1) // size + 1, unsigned(0))
