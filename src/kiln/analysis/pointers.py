"""Pointers: where the memory of a value lies, as the operations that made the value say (`alias` in the dialects).

A step leads from the result of an operation to the operand whose memory it leads to, or the other way. `WITHIN` are the
steps of pointers and tensors inside the same memory; `ANY` also counts addresses as integers, memory of other CTAs, and
descriptors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ..dialects import cute
from ..dialects.declaration import DECLARED, Alias
from ..dialects.definition import constant
from ..mlir import ir
from .values import sources, targets


class Steps:
    """Operations whose result leads to the memory of an operand in one of several ways, and `others` that do."""

    def __init__(self, *how: str, others: Mapping[str, int] | None = None) -> None:
        self._how = how
        self._numbers = dict(others or {})

    def number(self, name: str) -> int | None:
        """Return the number of the operand whose memory the result of an operation leads to."""
        number = self._numbers.get(name)
        if number is None and (kind := DECLARED.get(name)) is not None:
            alias = kind.ALIAS
            if isinstance(alias, Alias) and alias.how in self._how:
                number = self._numbers[name] = list(kind.OPERANDS).index(alias.operand)
        return number

    def __contains__(self, name: str) -> bool:
        return self.number(name) is not None


SAME = Steps("same")
"""The result is the same address."""
WITHIN = Steps("same", "offset")
ANY = Steps("same", "offset", "integer", "peer", "descriptor")
_LLVM = (
    "builtin.unrealized_conversion_cast",
    "llvm.addrspacecast",
    "llvm.bitcast",
    "llvm.extractvalue",
    "llvm.getelementptr",
    "llvm.inttoptr",
    "llvm.ptrtoint",
)
LOWERED = Steps("same", "offset", "integer", others=dict.fromkeys(_LLVM, 0))
"""Addresses in functions that are expanded in part. A tensor is a structure whose first field is its address."""


# --- towards the memory ----------------------------------------------------------------------------------------------


def base(value: ir.Value, steps: Steps = WITHIN) -> ir.Value | None:
    """Return what a pointer was made of, one step back; None where that is no step."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        return None
    op = owner.operation
    number = steps.number(op.name)
    return None if number is None else op.operands[number]


def root(value: ir.Value, steps: Steps = WITHIN) -> ir.Value:
    """Return what a pointer was made of in the first place. Loops and branches are not looked through."""
    while (before := base(value, steps)) is not None:
        value = before
    return value


def roots(value: ir.Value, next_sources: Callable[[ir.Value], list[ir.Value]]) -> list[ir.Value]:
    """Return the values without further sources that a value comes from."""
    ends: list[ir.Value] = []
    seen = {value}
    todo = [value]
    while todo:
        at = todo.pop()
        before = next_sources(at)
        if not before:
            ends.append(at)
        for source in before:
            if source not in seen:
                seen.add(source)
                todo.append(source)
    return ends


def address_sources(value: ir.Value) -> list[ir.Value]:
    """Return the values that an address may be made of, one step back, in a function that is expanded in part.

    The initial value of a loop comes first.
    """
    before = base(value, LOWERED)
    if before is not None:
        return [before]
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "llvm.insertvalue":
        return sources(value)
    op = value.owner.operation
    is_address = list(op.attributes["position"]) == [0]  # pyright: ignore[reportArgumentType]
    return [op.operands[1] if is_address else op.operands[0]]


def unchanged_from(value: ir.Value) -> ir.Value:
    """Return the pointer that branches and loops pass on unchanged as this one; the value itself if there are several."""
    ends = roots(value, lambda at: [before] if (before := base(at, SAME)) is not None else sources(at))
    return ends[0] if len(ends) == 1 else value


class Place(NamedTuple):
    """A place in memory: its root, and the bits from there on; None where they are not constant."""

    root: ir.Value
    bits: int | None

    @property
    def space(self) -> str:
        """The memory space of the root."""
        return cute.info(self.root.type).space


def place(pointer: ir.Value) -> Place:
    """Return where a pointer leads to."""
    bits: int | None = 0
    at = pointer
    while (before := base(at)) is not None:
        if move := cute.PtrAdd.making(at):
            offset = constant(move.offset)
            step = None if offset is None else offset * cute.element_bits(cute.info(before.type).element)
            bits = None if bits is None or step is None else bits + step
        at = before
    return Place(at, bits)


# --- towards the uses ------------------------------------------------------------------------------------------------


def derived(op: ir.Operation, number: int, steps: Steps = WITHIN) -> ir.Value | None:
    """Return the pointer that an operation makes of an operand; None if it does something else with it."""
    return op.results[0] if steps.number(op.name) == number else None


def uses(pointer: ir.Value, steps: Steps = WITHIN, *, carried: bool = False) -> Iterator[tuple[ir.Operation, int]]:
    """Return the operations that use a pointer, or one made of it, each with the number of that operand.

    `carried`: values that branches and loops make of it count, too; otherwise those are uses themselves.
    """
    todo = [pointer]
    seen = {pointer}
    while todo:
        for use in todo.pop().uses:
            op = use.owner.operation
            number = use.operand_number
            result = derived(op, number, steps)
            values = [result] if result is not None else targets(op, number) if carried else []
            if not values:
                yield op, number
            todo += [value for value in values if value not in seen]
            seen.update(values)
