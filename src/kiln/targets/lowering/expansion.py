"""Expanding operations: tables of handlers, and the walk that applies one to a function.

A handler is given the expander, the operation (its operands are lowered values already), the types that its operands and
results had in the dialect, and a builder before the operation; it returns the results' replacements, or None to leave the
operation as it is. It gets no types where its parameter's name begins with an underscore: asking for them takes a while.

Each file of operations has a table of its own; a target puts those it wants together and hands them to its expansion.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, ClassVar

from ...base_dsl.compiler import report_at
from ...base_dsl.diagnostics import DSLNotImplemented
from ...dialects import cute
from ...dialects.definition import operation_names
from ...dialects.nvgpu.tma import TensorMap
from ...mlir import find, ir
from .builder import Builder

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

Types = list[ir.Type]
Handler = Any
"""A function of an expander, an operation, two lists of types, and a builder."""


class Handlers(dict[str, Handler]):
    """Handlers by the names of operations."""

    def expands(self, *names: str) -> Callable[[Handler], Handler]:
        """A decorator of the handler of some operations."""

        def enter(handler: Handler) -> Handler:
            self.update(dict.fromkeys(names, handler))
            return handler

        return enter


def combined(*tables: Handlers) -> Handlers:
    """One table of several. An operation that two of them have is a mistake."""
    made = Handlers()
    for table in tables:
        twice = made.keys() & table.keys()
        assert not twice, f"two handlers of {', '.join(sorted(twice))}"
        made.update(table)
    return made


@functools.cache
def _wants(handler: Handler) -> tuple[bool, bool]:
    """Whether a handler looks at the types of operands, and of results."""
    names = handler.__code__.co_varnames
    return not names[2].startswith("_"), not names[3].startswith("_")


class Expander:
    """What handlers ask of the target, in the function that they work in. Targets add what their own handlers ask."""

    builder: ClassVar[type[Builder]] = Builder
    target: str
    """Who expands, in messages."""
    entry: ir.Block
    places: dict[tuple[ir.Value, ir.Type, int], ir.Value] | None = None
    """Addresses in threads' own memory, by pointer, type of an element, and number of the element; None where they are made for each access."""

    def handler(self, op: ir.Operation, name: str) -> Handler | None:
        """The handler of an operation."""
        raise NotImplementedError

    def names(self) -> Iterable[str] | None:
        """The names of operations that have handlers, none of which has regions; None where names do not tell."""
        return None

    def pointer_in(self, space: str) -> ir.Type:
        """The type of pointers to a memory space of the dialect."""
        raise NotImplementedError

    def lowered(self, type_: ir.Type) -> ir.Type:
        """What a type of the dialect is in code of the target; other types are themselves."""
        raise NotImplementedError

    def is_retyped(self, type_: ir.Type) -> bool:
        """Whether values of a type, which operations that stay have, are to be `lowered`."""
        return isinstance(type_, (cute.Ptr, cute.Memref, TensorMap))

    def at_entry(self, location: ir.Location) -> Any:
        """A builder at the start of the function, for memory that lives as long as the call."""
        return self.builder(ir.InsertionPoint.at_block_begin(self.entry), location)

    def shifts_by(self, op: ir.Operation, amount: ir.Value, b: Any) -> None:
        """A shift by an amount that may be negative, which Python refuses. It has a meaning all the same."""

    def allocated(self, pointer: ir.Value, made: ir.Value) -> None:
        """Memory of a thread takes the place of a pointer, whose uses are not expanded yet."""

    def cast_pointer(self, b: Any, pointer: ir.Value, type_: ir.Type) -> ir.Value:
        """A pointer as one of another address space."""
        del b, type_
        return pointer

    def accessed(
        self, op: ir.Operation, b: Builder, address: ir.Value, memory: ir.Type, type_: ir.Type, *, write: bool,
        value: ir.Value | None = None,
    ) -> ir.Value:  # fmt: skip
        """The address to use for an access to a value of a type through `memory`; `value` is what is written, where known."""
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
    """Those to be retyped."""
    casts: list[ir.Operation] = dataclasses.field(default_factory=list)
    """Those that made tuples: to be erased when nobody looks into them any more."""


Task = tuple[ir.Operation, str, Handler, Types]
"""An operation, its name, its handler, and the types that its operands had."""


_OF_NUMBERS = ("arith.", "math.", "vector.")
"""How the names begin of operations whose results are numbers; all but `arith.select`."""
_CARRIERS = (
    "arith.select", "builtin.unrealized_conversion_cast", "func.call", "scf.execute_region", "scf.for", "scf.if", "scf.index_switch",
    "scf.while", "ub.poison",
)  # fmt: skip
"""Operations that stay, and may have values of the dialects."""


def _kind(name: str) -> tuple[bool, bool]:
    """Whether an operation is of the dialects, and whether it is one whose results are numbers."""
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
        tasks.append((op, name, handler, [v.type for v in op.operands] if _wants(handler)[0] else []))
    for value in work.values:
        value.set_type(x.lowered(value.type))
    return tasks


def expand_operations(x: Expander, tasks: Iterable[Task]) -> None:
    """Replace operations, in order: the operands of each are lowered values by then."""
    for op, _, handler, operands in tasks:
        results = [r.type for r in op.results] if _wants(handler)[1] else []
        values = handler(x, op, operands, results, x.builder(ir.InsertionPoint(op), op.location))
        if values is None:
            continue
        for old, new in zip(op.results, values, strict=True):
            old.replace_all_uses_with(new)
        op.erase()
