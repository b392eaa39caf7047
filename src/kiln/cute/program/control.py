"""Loops and branches built by hand, for code that is not rewritten: the region is whatever runs inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.bindings import context, ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Int32, Numeric, as_numeric


def _value(x: object) -> ir.Value:
    return as_numeric(x).ir_value() if isinstance(x, (Numeric, bool, int, float)) else x


class LoopUnroll:
    """How often the body of a loop built by hand is copied: `for_generate(n, unroll=LoopUnroll(count=4))`.

    It is an attribute of the IR, which a program may also give `while_generate(...).while_op` as "loop_annotation".
    """

    def __new__(cls, count: int | None = None, *, full: bool = False, disable: bool = False) -> ir.Attribute:  # type: ignore[misc]
        """Return the attribute.

        Args:
            count: how often the body is copied; 1 leaves the loop as it is.
            full: remove the loop, if its trip count is known.
            disable: leave the loop as it is.
        """
        if count is not None and (not isinstance(count, int) or count < 1):
            raise type_error(f"a loop is unrolled {count!r} times", "the count is a Python integer of at least 1")
        if disable or count == 1:
            text = "disable = true"
        else:
            text = "disable = false" + (", full = true" if full else f", count = {count} : i32" if count else "")
        return ir.Attribute.parse(f"#llvm.loop_annotation<unroll = <{text}>>", context())


def yield_out(args: Sequence[object] = (), loc: object = None, ip: object = None) -> None:
    """End the region of a loop built by hand with the next values of what it carries."""
    tracing.emit("scf.yield", (), [_value(a) for a in args])


def for_generate(
    start: object,
    stop: object = None,
    step: object = None,
    iter_args: Sequence[object] | None = None,
    *,
    unroll: ir.Attribute | None = None,
    prefetch_stages: int | None = None,
    loc: object = None,
    ip: object = None,
) -> Iterator[Any]:
    """Build a loop, `for i in for_generate(0, n): ...; yield_out()`, whose body is traced for the one item it yields.

    With `iter_args` the item is (i, carried values, results of the loop). `unroll` is a `LoopUnroll`.
    """
    if stop is None:
        start, stop = 0, start
    carried = [_value(a) for a in iter_args or ()]
    bounds = [Int32(b).ir_value() for b in (start, stop, 1 if step is None else step)]
    operation = tracing.emit("scf.for", [c.type for c in carried], [*bounds, *carried], regions=1)
    if unroll is not None:
        operation.attributes["loop_annotation"] = unroll
    types = [Int32.mlir_type, *(c.type for c in carried)]
    block = operation.regions[0].blocks.append(*types, arg_locs=[ir.Location.unknown()] * len(types))
    index, *inside = block.arguments
    with ir.InsertionPoint(block):
        if iter_args is None:
            yield Int32._make(index)
        else:
            yield Int32._make(index), _like(iter_args, inside), list(operation.results)


def _like(examples: Sequence[object], values: Sequence[object]) -> list[Any]:
    return [type(e)._make(v) if isinstance(e, Numeric) else v for e, v in zip(examples, values, strict=True)]


class while_generate:
    """A loop while `condition(*values)` holds: `with while_generate(inputs, condition) as values: ...;
    yield_out(next)`.

    `results` are the values at its end, and `while_op` is the operation.
    """

    def __init__(
        self, inputs: Sequence[Any], condition: Callable[..., object], *, loc: object = None, ip: object = None
    ) -> None:
        self._examples = [_typed(i) for i in inputs]
        values = [_value(i) for i in inputs]
        types = [v.type for v in values]
        unknown = [ir.Location.unknown()] * len(types)
        operation = tracing.emit("scf.while", types, values, regions=2)
        self.while_op = operation
        before = operation.regions[0].blocks.append(*types, arg_locs=unknown)
        self._after = operation.regions[1].blocks.append(*types, arg_locs=unknown)
        with ir.InsertionPoint(before):
            goes_on = condition(*_like(self._examples, list(before.arguments)))
            tracing.emit("scf.condition", (), [Boolean(goes_on).ir_value(), *before.arguments])
        self.results: list[Any] = _like(self._examples, list(operation.results))

    def __enter__(self) -> tuple[Any, ...]:
        self._point = ir.InsertionPoint(self._after)
        self._point.__enter__()
        return tuple(_like(self._examples, list(self._after.arguments)))

    def __exit__(self, *failure: object) -> None:
        self._point.__exit__(*failure)


def _typed(x: object) -> Any:
    """Return a raw Boolean value of the bindings as a Boolean, so that conditions read naturally."""
    if isinstance(x, (bool, int, float)):
        return as_numeric(x)
    return Boolean._make(x) if not isinstance(x, Numeric) and getattr(x, "type", None) == Boolean.mlir_type else x


def if_generate(
    cond: Any,
    then_body: Callable[..., Any],
    else_body: Callable[..., Any] | None = None,
    input_args: Sequence[Any] | None = None,
    return_types: Sequence[Any] | None = None,
    *,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Return the value (or values) of `then_body(*input_args)` or `else_body(*input_args)`, of `return_types`."""
    kinds = list(return_types or ())
    arguments = list(input_args or ())
    operation = tracing.emit("scf.if", [k.mlir_type for k in kinds], [Boolean(cond).ir_value()], regions=2)
    for region, arm in zip(operation.regions, (then_body, else_body), strict=True):
        if arm is None and not kinds:
            continue
        with ir.InsertionPoint(region.blocks.append()):
            returned = arm(*arguments) if arm is not None else arguments
            values = returned if isinstance(returned, (list, tuple)) else [] if returned is None else [returned]
            yield_out([k(v).ir_value() for k, v in zip(kinds, values, strict=True)])
    results = [k._make(v) for k, v in zip(kinds, operation.results, strict=True)]
    return results[0] if len(results) == 1 else results or None
