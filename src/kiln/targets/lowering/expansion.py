"""Expanding operations: tables of handlers, and the walk that applies one to a function.

A handler is called with the expander, the operation and a builder before the operation, whose operands are lowered
values by then. One that is entered by a class of the dialects is called with a view of the operation; with `types=True`
the view also has the types that the operands had in the dialect (`op.types.source`), which take a while to collect. A
handler returns what replaces the results: a value, several, or None where there are none. `KEEP` leaves the operation
where it is.

Each file of operations has a table of its own; a target puts those it wants together and hands them to its expansion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable
from typing import Any, ClassVar, NamedTuple, TypeVar

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import DSLNotImplemented
from ...dialects import cute
from ...dialects.declaration import DECLARED, OpView
from ...dialects.definition import operation_names
from ...dialects.nvgpu.tma import TensorMap
from ...mlir import find, ir
from .builder import Builder

_Function = TypeVar("_Function", bound=Callable[..., Any])
AnyOp = ir.Operation | OpView
"""An operation or a view of one, for functions that take either."""
KEEP: Any = object()
"""What a handler returns to leave an operation where it is."""


class Handler(NamedTuple):
    """The function that expands an operation, and how it is called."""

    expand: Callable[..., Any]
    view: type[OpView] | None = None
    """The class of the views that it is called with; None for the operation itself."""
    types: bool = False
    """Whether views have the types of operands."""
    of_fields: Callable[..., Any] | None = None
    """The function of `Handlers.takes`, which takes values from any object that has the operation's fields."""


class Handlers(dict[str, Any]):
    """Handlers by the names of operations."""

    def expands(self, *operations: str | type[OpView], types: bool = False) -> Callable[[_Function], _Function]:
        """Return a decorator that enters the handler of operations, which are named or given as classes."""

        def enter(expand: _Function) -> _Function:
            for operation in operations:
                if isinstance(operation, str):
                    self[operation] = Handler(expand)
                else:
                    self[operation.OPERATION_NAME] = Handler(expand, operation, types)
            return expand

        return enter

    def calls(self, operation: type[OpView], *fields: str, **constants: Any) -> Callable[[_Function], _Function]:
        """Return a decorator that enters a function of values as a handler: it is called with fields of the operation.

        So other callers, such as expansions of inline PTX, can use the function, too.
        """

        def enter(function: _Function) -> _Function:
            def of_fields(x: Expander, op: AnyOp, b: Builder, source: object) -> object:
                return function(x, op, b, *[getattr(source, field) for field in fields], **constants)

            self.takes(operation)(of_fields)
            return function

        return enter

    def takes(self, operation: type[OpView]) -> Callable[[_Function], _Function]:
        """Return a decorator that enters a function of an object with the operation's fields as a handler.

        The object is a view of the operation, or the `Fields` of the same instruction in inline PTX.
        """

        def enter(function: _Function) -> _Function:
            def expand(x: Expander, op: OpView, b: Builder) -> object:
                return function(x, op, b, op)

            self[operation.OPERATION_NAME] = Handler(expand, operation, of_fields=function)
            return function

        return enter


def combined(*tables: Handlers) -> Handlers:
    """Return the union of tables, which must not have two handlers of one operation."""
    whole = Handlers()
    for table in tables:
        twice = whole.keys() & table.keys()
        assert not twice, f"two handlers of {', '.join(sorted(twice))}"
        whole.update(table)
    return whole


class Expander:
    """The interface of handlers to their target, in the function they work in. Targets extend it for their own
    handlers."""

    builder: ClassVar[type[Builder]] = Builder
    target: str
    """The target's name in messages."""
    entry: ir.Block
    places: dict[tuple[ir.Value, ir.Type, int], ir.Value] | None = None
    """Addresses in register tensors, by pointer, element type and element number; None to build them at each access."""

    def handler(self, op: ir.Operation, name: str) -> Handler | None:
        """Return the handler of an operation."""
        raise NotImplementedError

    def names(self) -> Iterable[str] | None:
        """Return the names of operations with handlers, none of which has regions; None if names do not decide."""
        return None

    def pointer_in(self, space: str) -> ir.Type:
        """Return the type of pointers to a memory space of the dialect."""
        raise NotImplementedError

    def lowered(self, type_: ir.Type) -> ir.Type:
        """Return the target's type for a type of the dialect; other types are unchanged."""
        raise NotImplementedError

    def is_retyped(self, type_: ir.Type) -> bool:
        """Return whether values of a type are to be `lowered`, in operations that stay."""
        return isinstance(type_, (cute.Ptr, cute.Memref, TensorMap))

    def at_entry(self, location: ir.Location) -> Any:
        """Return a builder at the start of the function, for memory that lives as long as the call."""
        return self.builder(ir.InsertionPoint.at_block_begin(self.entry), location)

    def shifts_by(self, op: ir.Operation, amount: ir.Value, b: Any) -> None:
        """Report a shift by a negative amount, which Python refuses; the shift itself is well defined."""

    def allocated(self, pointer: ir.Value, address: ir.Value) -> None:
        """Note the memory of a register tensor, before uses of its pointer are expanded."""

    def cast_pointer(self, b: object, pointer: ir.Value, type_: ir.Type) -> ir.Value:
        """Return a pointer as one of another address space."""
        del b, type_
        return pointer

    def register_offset(self, b: object, pointer: ir.Value, offset: ir.Value, bytes_: int) -> ir.Value:
        """Return the offset at which an element of `bytes_` bytes of a register tensor is read."""
        del b, pointer, bytes_
        return offset

    def accessed(
        self,
        op: cute.Load | cute.Store,
        b: Builder,
        address: ir.Value,
        memory: ir.Type,
        type_: ir.Type,
        *,
        write: bool,
        value: ir.Value | None = None,
    ) -> ir.Value:
        """Return the address to use for an access through `memory`; `value` is the written value, if known."""
        del op, b, memory, type_, write, value
        return address

    def load(self, b: Any, type_: ir.Type, address: ir.Value, alignment: int) -> ir.Value:
        """Read a value."""
        return b.load(type_, address, alignment)

    def store(self, b: Any, value: ir.Value, address: ir.Value, alignment: int) -> None:
        """Write a value."""
        b.store(value, address, alignment)


@dataclasses.dataclass
class Work:
    """The operations to expand in a function, and the values to retype."""

    operations: list[tuple[ir.Operation, str, Handler | None]] = dataclasses.field(default_factory=list)
    values: list[ir.Value] = dataclasses.field(default_factory=list)
    """Values whose types are to be lowered."""
    casts: list[ir.Operation] = dataclasses.field(default_factory=list)
    """Casts that made tuples, which are erased at the end."""


class Task(NamedTuple):
    """An operation that is to be expanded."""

    op: ir.Operation
    name: str
    handler: Handler
    types: Any
    """The types that its operands had, if the handler asks for them."""


_OF_NUMBERS = ("arith.", "math.", "vector.")
"""Prefixes of operations whose results are numbers, except `arith.select`."""
_CARRIERS = (
    "arith.select",
    "builtin.unrealized_conversion_cast",
    "func.call",
    "scf.execute_region",
    "scf.for",
    "scf.if",
    "scf.index_switch",
    "scf.while",
    "ub.poison",
)
"""Operations that stay, and may have operands or results of dialect types."""


def _kind(name: str) -> tuple[bool, bool]:
    """Return whether an operation is of the dialects, and whether it is one whose results are numbers."""
    return name in DECLARED, name.startswith(_OF_NUMBERS) and name != "arith.select"


def find_work(x: Expander, func: ir.Operation) -> Work:
    """Collect the operations of a function to expand and the values to retype, in one walk."""
    work = Work()
    advance = ir.WalkResult.ADVANCE
    kinds: dict[str, tuple[bool, bool]] = {}
    to_expand = work.operations
    values = work.values
    handler_of = x.handler
    is_retyped = x.is_retyped

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        handler = handler_of(op, name)
        own, numbers = kinds.get(name) or kinds.setdefault(name, _kind(name))
        if own or handler is not None:
            to_expand.append((op, name, handler))
        if own or numbers:
            return advance
        if name == "builtin.unrealized_conversion_cast" and any(isinstance(r.type, ir.TupleType) for r in op.results):
            work.casts.append(op)
            return advance
        values.extend(v for v in op.results if is_retyped(v.type))
        for region in op.regions:
            for block in region.blocks:
                values.extend(v for v in block.arguments if is_retyped(v.type))
        return advance

    names = x.names()
    if names is None:
        func.walk(visit, ir.WalkOrder.PRE_ORDER)
    else:
        for op in (func, *find(func, {*names, *operation_names(), *_CARRIERS})):
            visit(op)
    return work


def begin(x: Expander, work: Work, gone: Container[int] = ()) -> list[Task]:
    """Retype values, and return the operations to expand, except those at positions that are `gone`."""
    tasks: list[Task] = []
    for number, (op, name, handler) in enumerate(work.operations):
        if number in gone:
            continue
        if handler is None:
            raise report_at(op.location, DSLNotImplemented, f"{x.target} does not implement {name}")
        types = None
        if handler.types and handler.view is not None:
            types = handler.view.Types._make([v.type for v in op.operands][: len(handler.view.Types._fields)])
        tasks.append(Task(op, name, handler, types))
    for value in work.values:
        value.set_type(x.lowered(value.type))
    return tasks


def expand_operations(x: Expander, tasks: Iterable[Task]) -> None:
    """Replace operations in order, so that the operands of each are lowered values."""
    for op, _, (expand, view, *_), types in tasks:
        builder = x.builder(ir.InsertionPoint(op), op.location)
        values = expand(x, op if view is None else view(op, types), builder)
        if values is KEEP:
            continue
        if isinstance(values, ir.Value):
            op.result.replace_all_uses_with(values)
        else:
            for old, new in zip(op.results, values or (), strict=True):
                old.replace_all_uses_with(new)
        op.erase()
