"""Fields, attributes and rules of the operations of the dialects.

An operation is a class of its dialect, and its docstring is its definition. Its fields are operands, results and the
attributes it always has; MLIR checks their types. `OPTIONAL` names the attributes it may have. `check` says which rule
an operation breaks, with the value that breaks it. `verify` checks all of that, once for a module. Kernels have
thousands of loads and stores, so operations marked `OFTEN` are only checked with KILN_VERIFY_PASSES; MLIR has checked
their types.

`OpView.build`, or a function beside the class where arguments need preparing, builds the operation through
`Operation.create` (`trace.emit`), ten times cheaper than the constructors that the bindings generate. Nothing else
makes operations of the dialects.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from ..base_dsl import settings
from ..base_dsl.compiler import report_at
from ..base_dsl.diagnostics import CompilerDiagnosticError
from ..mlir import context, find, ir, require_dialect
from .declaration import Choice, OpView

I1 = ir.IntegerType[1]
I16 = ir.IntegerType[16]
I32 = ir.IntegerType[32]
I64 = ir.IntegerType[64]
Integer = I32 | I64
F32 = ir.F32Type

Emit = Callable[..., ir.Value]
"""A function that adds an operation with one result: `trace.emit_value`, or that of a pass that inserts elsewhere."""


class Pointer(ir.Type):
    """A `!cute.ptr`, for fields of another dialect."""

    type_name = "cute.ptr"


def one_of(*values: str | int) -> Any:
    """Return the type of an attribute that is one of some texts or 32-bit numbers."""
    return Choice(ir.StringAttr if isinstance(values[0], str) else ir.IntegerAttr, values)


def choices(constraint: Any) -> tuple[str | int, ...]:
    """Return the values that `one_of` was given; none for another type."""
    return constraint.values if isinstance(constraint, Choice) else ()


# --- building --------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def int_type(width: int) -> ir.Type:
    """Return the signless integer type of `width` bits."""
    return ir.IntegerType.get_signless(width, context())


# --- rules -----------------------------------------------------------------------------------------------------------


def constant(value: ir.Value) -> int | None:
    """Return the value of an operand that is an `arith.constant`, else None."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return None
    return owner.operation.attributes["value"].value  # pyright: ignore[reportAttributeAccessIssue]


class _Rules(NamedTuple):
    """The rules of one kind of operation beyond the types that MLIR checks."""

    fields: dict[str, tuple[str | int, ...]]
    """The attributes it has, and their choices."""
    optional: dict[str, tuple[str | int, ...]]
    chosen: tuple[tuple[str, tuple[str | int, ...]], ...]
    """The fields that have choices."""
    check: Callable[[OpView], str] | None
    often: bool


@functools.lru_cache(maxsize=256)
def _rules(kind: Any) -> _Rules:
    fields = {name: choices(constraint) for name, constraint in kind.ATTRIBUTES.items()}
    optional = {name: choices(constraint) for name, constraint in kind.OPTIONAL.items()}
    chosen = tuple((name, allowed) for name, allowed in fields.items() if allowed)
    return _Rules(fields, optional, chosen, getattr(kind, "check", None), hasattr(kind, "OFTEN"))


def broken_rule(op: ir.Operation, kind: Any) -> str:
    """Return the rule that an operation of class `kind` breaks, with the value that breaks it, or an empty text."""
    rules = _rules(kind)
    attrs = op.attributes
    if len(attrs) != len(rules.fields):
        for name in attrs:
            if name in rules.optional:
                if rule := _wrong_choice(name, attrs[name], rules.optional[name]):
                    return rule
            elif name not in rules.fields and not _is_discardable(name):
                return f"has no attribute '{name}': it has {', '.join([*rules.fields, *rules.optional]) or 'none'}"
    for name, choices in rules.chosen:
        if rule := _wrong_choice(name, attrs[name], choices):
            return rule
    return rules.check(kind(op)) if rules.check is not None else ""


def _is_discardable(name: str) -> bool:
    """Return whether an attribute is not the operation's own: a pass's mark, or MLIR's segment sizes."""
    return ("." in name and not name.startswith("cute.")) or name == "operandSegmentSizes"


def _wrong_choice(name: str, attribute: Any, choices: tuple[str | int, ...]) -> str:
    if not choices or attribute.value in choices:
        return ""
    return f"has the {name} {attribute}: it is one of {', '.join(map(str, choices))}"


_loaded: list[Any] = []
"""The dialects that modules can have operations of."""


def load(dialect: Any) -> None:
    """Make a dialect known to the context, and to `verify`."""
    require_dialect(dialect)
    if dialect not in _loaded:
        _loaded.append(dialect)


def operation_names() -> list[str]:
    """Return the names of all operations of the dialects."""
    return [kind.OPERATION_NAME for dialect in _loaded for kind in dialect.operations]


def verify(module: ir.Module) -> None:
    """Refuse a module that MLIR rejects, or in which an operation of the dialects breaks a rule, at the user's line."""
    module.operation.verify()
    every = settings.get("KILN_VERIFY_PASSES")
    kinds = {
        kind.OPERATION_NAME: kind
        for dialect in _loaded
        for kind in dialect.operations
        if _has_rules(_rules(kind), every)
    }
    for op in find(module.operation, kinds):
        rule = broken_rule(op, kinds[op.name])
        if rule:
            raise report_at(op.location, CompilerDiagnosticError, f"the program is not valid: {op.name} {rule}")


def _has_rules(rules: _Rules, every: bool) -> bool:
    return (every or not rules.often) and bool(rules.check or rules.optional or rules.chosen)
