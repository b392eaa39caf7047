"""Expanding operations: tables of handlers, and the walk that applies one to a function.

A handler is called with the expander, the operation and a builder before the operation, whose operands are lowered
values by
then. One that is entered by a class of the dialects is called with a view of the operation; with `types=True` the
view also has the
types that the operands had in the dialect (`op.types.source`), which take a while to collect. A handler returns what
replaces the
results: a value, several, or None where there are none. `KEEP` leaves the operation where it is.

Each file of operations has a table of its own; a target puts those it wants together and hands them to its expansion.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Iterable
from typing import Any, ClassVar, NamedTuple

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import DSLNotImplemented
from ...dialects import cute
from ...dialects.declaration import OpView
from ...dialects.definition import operation_names
from ...dialects.nvgpu.tma import TensorMap
from ...mlir import find, ir
from .builder import Builder

AnyOp = ir.Operation | OpView
"""An operation or a view of one, for functions that take either."""
KEEP: Any = object()
"""What a handler returns to leave an operation where it is."""


class Handler(NamedTuple):
    """The function that expands an operation, and what it is called with."""

    expand: Callable[..., Any]
    view: type[OpView] | None = None
    """The class of the views that it is called with; None for the operation itself."""
    types: bool = False
    """Whether views have the types of operands."""


class Handlers(dict[str, Any]):
    """Handlers by the names of operations."""

    def expands(self, *operations: str | type[OpView], types: bool = False) -> Callable[[Any], Any]:
        """Return a decorator that enters the handler of operations, which are named or given as classes."""

        def enter(expand: Any) -> Any:
            for operation in operations:
                if isinstance(operation, str):
                    self[operation] = Handler(expand)
                else:
                    self[operation.OPERATION_NAME] = Handler(expand, operation, types)
            return expand

        return enter


def combined(*tables: Handlers) -> Handlers:
    """Return one table of several, no two of which may have a handler of the same operation."""
    whole = Handlers()
    for table in tables:
        twice = whole.keys() & table.keys()
        assert not twice, f"two handlers of {', '.join(sorted(twice))}"
        whole.update(table)
    return whole


class Expander:
    """What handlers ask of the target, in the function that they work in. Targets add what their own handlers ask."""

    builder: ClassVar[type[Builder]] = Builder
    target: str
    """Who expands, in messages."""
    entry: ir.Block
    places: dict[tuple[ir.Value, ir.Type, int], ir.Value] | None = None
    """Addresses in threads' own memory, by pointer, type of an element, and number of the element; None where they are made for each access."""

    def handler(self, op: ir.Operation, name: str) -> Handler | None:
        """Return the handler of an operation."""
        raise NotImplementedError

    def names(self) -> Iterable[str] | None:
        """Return the names of operations that have handlers, none of which has regions; None where names do not
        tell."""
        return None

    def pointer_in(self, space: str) -> ir.Type:
        """Return the type of pointers to a memory space of the dialect."""
        raise NotImplementedError

    def lowered(self, type_: ir.Type) -> ir.Type:
        """Return what a type of the dialect is in code of the target; other types are themselves."""
        raise NotImplementedError

    def is_retyped(self, type_: ir.Type) -> bool:
        """Return whether values of a type, which operations that stay have, are to be `lowered`."""
        return isinstance(type_, (cute.Ptr, cute.Memref, TensorMap))

    def at_entry(self, location: ir.Location) -> Any:
        """Return a builder at the start of the function, for memory that lives as long as the call."""
        return self.builder(ir.InsertionPoint.at_block_begin(self.entry), location)

    def shifts_by(self, op: ir.Operation, amount: ir.Value, b: Any) -> None:
        """A shift by an amount that may be negative, which Python refuses. It has a meaning all the same."""

    def allocated(self, pointer: ir.Value, made: ir.Value) -> None:
        """Memory of a thread takes the place of a pointer, whose uses are not expanded yet."""

    def cast_pointer(self, b: Any, pointer: ir.Value, type_: ir.Type) -> ir.Value:
        """Return a pointer as one of another address space."""
        del b, type_
        return pointer

    def accessed(
        self, op: cute.Load | cute.Store, b: Builder, address: ir.Value, memory: ir.Type, type_: ir.Type, *,
        write: bool, value: ir.Value | None = None,
    ) -> ir.Value:  # fmt: skip
        """Return the address to use for an access to a value of a type through `memory`; `value` is what is written,
        where known."""
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
    """What there is to expand in a function."""

    operations: list[tuple[ir.Operation, str, Handler | None]] = dataclasses.field(default_factory=list)
    values: list[ir.Value] = dataclasses.field(default_factory=list)
    """Values whose types are to be lowered."""
    casts: list[ir.Operation] = dataclasses.field(default_factory=list)
    """Casts that made tuples, to be erased when nobody looks into them any more."""


class Task(NamedTuple):
    """An operation that is to be expanded."""

    op: ir.Operation
    name: str
    handler: Handler
    types: Any
    """The types that its operands had, if the handler asks for them."""


_OF_NUMBERS = ("arith.", "math.", "vector.")
"""How the names begin of operations whose results are numbers; all but `arith.select`."""
_CARRIERS = (
    "arith.select", "builtin.unrealized_conversion_cast", "func.call", "scf.execute_region", "scf.for", "scf.if", "scf.index_switch",
    "scf.while", "ub.poison",
)  # fmt: skip
"""Operations that stay, and may have values of the dialects."""


def _kind(name: str) -> tuple[bool, bool]:
    """Return whether an operation is of the dialects, and whether it is one whose results are numbers."""
    return name.startswith(("cute.", "cute_nvgpu.")), name.startswith(_OF_NUMBERS) and name != "arith.select"


def find_work(x: Expander, func: ir.Operation) -> Work:
    """Look at all operations of a function, once: where a target says which have handlers, by their names, at no others than those."""
    work, advance = Work(), ir.WalkResult.ADVANCE
    kinds: dict[str, tuple[bool, bool]] = {}
    found, values, handler_of, is_retyped = work.operations, work.values, x.handler, x.is_retyped

    def visit(op: ir.Operation) -> ir.WalkResult:
        name = op.name
        handler = handler_of(op, name)
        own, numbers = kinds.get(name) or kinds.setdefault(name, _kind(name))
        if own or handler is not None:
            found.append((op, name, handler))
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
    """Retype values; what is to be done then, but for operations that are `gone` meanwhile, by their positions."""
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
    """Replace operations, in order: the operands of each are lowered values by then."""
    for op, _, (expand, view, _), types in tasks:
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
