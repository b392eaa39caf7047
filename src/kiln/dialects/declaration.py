"""Dialects, types and operations as Python classes, told to MLIR as one text of IRDL.

The bindings have such classes, too (`kiln.mlir.ext`), whose operations can be made by their constructors. Nobody does that with
those of Kiln (see `definition`), and a process that compiles one line would spend 50 ms on it.
"""

# No `from __future__ import annotations` here or in the dialects: fields are read off the annotations, as objects.

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from ..mlir import ir, load_irdl, register_type

if TYPE_CHECKING:
    _T = TypeVar("_T")

    class Operand(Generic[_T]):
        """A value of a type that an operation takes."""

    class Operands(Generic[_T]):
        """Any number of them."""

    class Result(Generic[_T]):
        """A value of a type that it gives."""

else:

    class _Kind:
        def __init__(self, part: str, mark: str = "") -> None:
            self.part, self.mark = part, mark

        def __getitem__(self, constraint: Any) -> "tuple[_Kind, Any]":
            return self, constraint

    Operand, Operands, Result = _Kind("operands"), _Kind("operands", "variadic "), _Kind("results")


class Choice(NamedTuple):
    """The type of an attribute that is one of some values."""

    base: Any
    values: "tuple[str | int, ...]"


class _NoMemoryEffect(ir.MemoryEffectsOpInterface):
    @staticmethod
    def get_effects(op: Any, effects: Any) -> None:
        pass


class _AlwaysSpeculatable(ir.ConditionallySpeculatable):
    @staticmethod
    def get_speculatability(op: Any) -> Any:
        return ir.Speculatability.Speculatable


PURE = (_NoMemoryEffect, _AlwaysSpeculatable)
"""What touches no memory, and may be removed or repeated."""


class Declared:
    """Base of the operations of a dialect (`Cute.Operation`). `name` is without the dialect's; `traits` are interfaces."""

    dialect: "type[Dialect]"
    OPERATION_NAME: str
    operands: "dict[str, Any]"
    """Constraints by name; of `Operands`, a name ends in `...`."""
    results: "dict[str, Any]"
    attributes: "dict[str, Any]"
    traits: "Sequence[Any]"

    def __init_subclass__(cls, name: str = "", traits: "Sequence[Any]" = ()) -> None:
        if not name:
            return
        cls.OPERATION_NAME = f"{cls.dialect.DIALECT_NAMESPACE}.{name}"
        cls.operands, cls.results, cls.attributes, cls.traits = {}, {}, {}, traits
        for field, given in cls.__annotations__.items():
            if type(given) is not tuple:
                cls.attributes[field] = given
            else:
                kind, constraint = given
                getattr(cls, kind.part)[field + ("..." if kind.mark else "")] = constraint
        cls.dialect.operations.append(cls)


class Type(ir.DynamicType):
    """Base of the types of a dialect. Its annotations are its parameters: attributes."""

    type_name: str
    _symbol: str

    def __init_subclass__(cls, name: str, dialect: "type[Dialect]") -> None:
        cls.type_name, cls._symbol = f"{dialect.DIALECT_NAMESPACE}.{name}", f"@{dialect.DIALECT_NAMESPACE}::@{name}"
        dialect.types.append(cls)


class Dialect:
    """Base of dialects."""

    DIALECT_NAMESPACE: str
    operations: "list[type[Declared]]"
    types: "list[type[Type]]"

    class Operation(Declared):
        """Base of its operations."""

    def __init_subclass__(cls, name: str) -> None:
        cls.DIALECT_NAMESPACE, cls.operations, cls.types = name, [], []
        setattr(cls, "Operation", type("Operation", (Declared,), {"dialect": cls}))  # noqa: B010

    @classmethod
    def irdl(cls) -> str:
        """The definition of the dialect as MLIR reads it."""
        parts = [_definition("type", kind.type_name, {"parameters": kind.__annotations__}) for kind in cls.types]
        for op in cls.operations:
            fields = {"operands": op.operands, "attributes": op.attributes, "results": op.results}
            parts.append(_definition("operation", op.OPERATION_NAME, fields))
        return f"irdl.dialect @{cls.DIALECT_NAMESPACE} {{\n{''.join(parts)}}}\n"

    @classmethod
    def load(cls) -> None:
        """Make it known to the current context, which does not know it."""
        load_irdl(cls.irdl())
        for op in cls.operations:
            for trait in op.traits:
                trait.attach(op.OPERATION_NAME)
        for kind in cls.types:
            register_type(kind.type_name, kind)


def _definition(what: str, name: str, fields: "dict[str, dict[str, Any]]") -> str:
    """Of a type or an operation, in IRDL."""
    lines: list[str] = []

    def value(constraint: Any) -> str:
        text = _constraint(constraint, value)
        lines.append(f"%{len(lines)} = irdl.{text}")
        return f"%{len(lines) - 1}"

    for part, given in fields.items():
        values = {field: value(constraint) for field, constraint in given.items()}
        if part == "attributes":
            texts = [f'"{field}" = {x}' for field, x in values.items()]
            bracketed = f" {{{', '.join(texts)}}}"
        else:
            texts = [
                f"{field[:-3]}: variadic {x}" if field.endswith("...") else f"{field}: {x}"
                for field, x in values.items()
            ]
            bracketed = f"({', '.join(texts)})"
        if texts or part == "parameters":
            lines.append(f"irdl.{part}{bracketed}")
    body = "\n".join(lines)
    return f"irdl.{what} @{name.partition('.')[2]} {{\n{body}\n}}\n"


def _constraint(given: Any, value: Any) -> str:
    """What a field's annotation asks of it, in IRDL; `value` names the constraints inside one."""
    if given is Any:
        return "any"
    if isinstance(given, types.UnionType):
        return f"any_of({', '.join(map(value, given.__args__))})"
    if getattr(given, "__origin__", None) is ir.IntegerType:
        return f"is i{given.__args__[0]}"
    kind: Any = given.base if isinstance(given, Choice) else given
    if issubclass(kind, Type):
        return f"base {kind._symbol}"
    return f'base "!{kind.type_name}"' if issubclass(kind, ir.Type) else f'base "#{kind.attr_name}"'
