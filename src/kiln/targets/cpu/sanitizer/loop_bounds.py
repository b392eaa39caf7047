"""Loops whose accesses are checked once, before the loop, as a range.

An address that is linear in the loop's index lies between its first and its last: if both are inside the argument, all
are. The loop is there twice: without these checks where the ranges are inside, and as it was elsewhere, where each access
is checked and the one that is outside is found.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....analysis.values import bounds
from ....base_dsl.target import value_bytes
from ....mlir import ir
from ...lowering.builder import Builder, constant_value, int_type
from ..loop_iterations import loops_around
from .inline import AccessCheck, object_field

if TYPE_CHECKING:
    from ..expand import Expander, Expansion

_LINEAR = ("arith.addi", "arith.subi", "arith.muli", "arith.shli")
_SAME = ("arith.extsi", "arith.extui", "arith.index_cast", "llvm.ptrtoint")
_MOST_OPERATIONS = 4000
"""Loops of more operations are not copied."""
_I64 = 64


def hoist(x: Expander, checks: list[AccessCheck], written: set[int]) -> list[AccessCheck]:
    """Give innermost loops a version without the checks that hold for all iterations; return the checks that are left."""
    by_loop: dict[ir.Operation, list[AccessCheck]] = {}
    for check in checks:
        loop = next(loops_around(check.call), None)
        if loop is not None and loop.name == "scf.for":
            by_loop.setdefault(loop, []).append(check)
    left = list(checks)
    for loop, inside in by_loop.items():
        index = _Index.of(loop)
        if index is None or not _may_be_copied(loop, inside):
            continue
        ranged = [
            c for c in inside if c.argument >= 0 and not c.noncoherent and index.degree(c.call.operands[0]) is not None
        ]
        if ranged:
            left += _version(x.module, index, inside, ranged, written)
    return left


def _may_be_copied(loop: ir.Operation, checks: list[AccessCheck]) -> bool:
    """Return whether a loop has no loop and no calls of the runtime in it but those that check accesses."""
    own = {check.call for check in checks}
    operations = _operations(loop)
    if len(operations) > _MOST_OPERATIONS:
        return False
    for op in operations[1:]:
        if op.name in ("scf.for", "scf.while"):
            return False
        if op.name == "func.call" and op not in own and op.attributes["callee"].value.startswith("kiln"):
            return False
    return True


def _operations(top: ir.Operation) -> list[ir.Operation]:
    """Return an operation and all inside it, in order."""
    reached: list[ir.Operation] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        reached.append(op)
        return ir.WalkResult.ADVANCE

    top.walk(visit, ir.WalkOrder.PRE_ORDER)
    return reached


def _version(
    expansion: Expansion, index: _Index, checks: list[AccessCheck], ranged: list[AccessCheck], written: set[int]
) -> list[AccessCheck]:
    """Copy a loop without the `ranged` checks of it; return those that the copy still has."""
    loop = index.loop
    b = Builder(ir.InsertionPoint(loop), loop.location)
    fine = b.const(int_type(1), 1)
    for check in ranged:
        fine = b.binary("andi", fine, _fine(expansion, b, index, check, check.argument in written))
    branch = b.op("scf.if", [result.type for result in loop.results], (fine,), None, 2)
    then, other = (region.blocks.append() for region in branch.regions)
    for old, new in zip(loop.results, branch.results, strict=True):
        old.replace_all_uses_with(new)
    copied = loop.clone(ir.InsertionPoint(then))
    Builder(ir.InsertionPoint(then), loop.location).op("scf.yield", (), tuple(copied.results))
    end = Builder(ir.InsertionPoint(other), loop.location).op("scf.yield", (), tuple(loop.results))
    originals = _operations(loop)
    copies = dict(zip(originals, _operations(copied), strict=True))
    loop.move_before(end)
    left: list[AccessCheck] = []
    for check in checks:
        call = copies[check.call]
        if check not in ranged:
            left.append(dataclasses.replace(check, call=call, calls=tuple(copies[op] for op in check.calls)))
            continue
        call.results[0].replace_all_uses_with(call.operands[0])
        for op in (call, *(copies[extra] for extra in reversed(check.calls))):
            op.erase()
    return left


def _fine(expansion: Expansion, b: Builder, index: _Index, check: AccessCheck, written: bool) -> ir.Value:
    """Return whether an access is inside its argument, aligned and allowed in every iteration."""
    address = check.call.operands[0]
    low, high = (b.load(int_type(_I64), object_field(expansion, b, check.argument, name)) for name in ("low", "high"))
    fine = b.const(int_type(1), 1)
    places: list[ir.Value] = []
    for point in index.points(b):
        place, fits = point.value(address)
        places.append(place)
        inside = b.binary(
            "andi", b.compare("uge", place, low), b.compare("ule", b.binary("addi", place, check.bytes_), high)
        )
        fine = b.binary("andi", fine, b.binary("andi", inside, fits))
    if check.alignment > 1:
        # of the first address, and of the way to the second
        bits = b.binary("ori", places[0], b.binary("subi", places[1], places[0]))
        fine = b.binary("andi", fine, b.compare("eq", b.binary("andi", bits, check.alignment - 1), 0))
    if written:
        readonly = object_field(expansion, b, check.argument, "readonly")

        fine = b.binary("andi", fine, b.compare("eq", b.load(int_type(_I64), readonly), 0))
    return fine


class _Index:
    """The index of an `scf.for` with a constant step, and what is linear in it."""

    def __init__(self, loop: ir.Operation, step: int) -> None:
        self.loop = loop
        self.step = step
        self.value: ir.Value = loop.regions[0].blocks[0].arguments[0]
        self._inside = set(_operations(loop))
        self._degrees: dict[ir.Value, int | None] = {self.value: 1}

    @staticmethod
    def of(loop: ir.Operation) -> _Index | None:
        """Return the index of a loop whose step is a positive constant."""
        step = constant_value(bounds(loop)[2])
        if not isinstance(step, int) or step <= 0 or "unsignedCmp" in loop.attributes:
            return None
        return _Index(loop, step)

    def inside(self, value: ir.Value) -> ir.Operation | None:
        """Return the operation inside the loop that makes a value."""
        owner = value.owner
        op = None if isinstance(owner, ir.Block) else owner.operation
        return op if op in self._inside else None

    def degree(self, value: ir.Value) -> int | None:
        """Return 1 of a value that is linear in the index, 0 of one that it does not change, None of others."""
        if value not in self._degrees:
            self._degrees[value] = self._degree(value)
        return self._degrees[value]

    def _degree(self, value: ir.Value) -> int | None:
        owner = value.owner
        if isinstance(owner, ir.Block):  # iterations hand on the other arguments of the loop
            return None if owner.owner.operation in self._inside else 0
        op = self.inside(value)
        if op is None or op.name == "arith.constant":
            return 0
        if op.name not in (*_LINEAR, *_SAME, "llvm.getelementptr"):
            return None
        degrees = [degree for operand in op.operands if (degree := self.degree(operand)) is not None]
        if len(degrees) < len(op.operands):
            return None
        if op.name == "arith.shli" and not isinstance(constant_value(op.operands[1]), int):
            return None
        if op.name == "arith.muli":
            if sum(degrees) > 1 or (value.type != int_type(_I64) and self._multiplies(op)):
                return None  # what is multiplied twice might not fit in 64 bits
        return max(degrees)

    def _multiplies(self, op: ir.Operation) -> bool:
        """Return whether an operand is the result of a multiplication in the loop."""
        factors = [of for operand in op.operands if (of := self.inside(operand)) is not None and of.name in _LINEAR]
        return any(of.name in ("arith.muli", "arith.shli") or self._multiplies(of) for of in factors)

    def points(self, b: Builder) -> list[_Point]:
        """Return the first iteration, the second if there is one, and the last."""
        first, end = (_wide(b, value) for value in bounds(self.loop)[:2])
        steps = b.binary("divsi", b.binary("subi", b.binary("subi", end, first), 1), self.step)
        last = b.binary("addi", first, b.binary("muli", steps, self.step))
        second = b.binary("minsi", b.binary("addi", first, self.step), last)
        return [_Point(self, b, at) for at in (first, second, last)]


class _Point:
    """Values of a loop in one iteration, in 64 bits, computed before the loop."""

    def __init__(self, index: _Index, b: Builder, at: ir.Value) -> None:
        self._index = index
        self._b = b
        self._values: dict[ir.Value, ir.Value] = {index.value: at}
        self._fits = b.const(int_type(1), 1)

    def value(self, value: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return a value, and whether no 32-bit part of it has wrapped around."""
        return self._of(value), self._fits

    def _of(self, value: ir.Value) -> ir.Value:
        if value not in self._values:
            op = self._index.inside(value)
            self._values[value] = _wide(self._b, value) if op is None else self._computed(op)
        return self._values[value]

    def _computed(self, op: ir.Operation) -> ir.Value:
        b = self._b
        if op.name == "arith.constant":
            return b.i64(ir.IntegerAttr(op.attributes["value"]).value)
        if op.name == "llvm.getelementptr":
            return self._element(op)
        operands = [self._of(operand) for operand in op.operands]
        if op.name in _LINEAR:
            return b.binary(op.name.removeprefix("arith."), operands[0], operands[1])
        self._must_fit(op.operands[0], operands[0], op.name != "arith.extui")
        return operands[0]

    def _must_fit(self, value: ir.Value, exact: ir.Value, signed: bool) -> None:
        """Note that a narrow value is extended: its exact value must be one that it can have."""
        if isinstance(value.type, ir.IntegerType) and value.type.width < _I64:
            b = self._b
            end = 1 << (value.type.width - 1)
            fits = b.binary("andi", b.compare("sge", exact, -end if signed else 0), b.compare("slt", exact, end))
            self._fits = b.binary("andi", self._fits, fits)

    def _element(self, op: ir.Operation) -> ir.Value:
        """Return the address of an element."""
        b = self._b
        size = value_bytes(op.attributes["elem_type"].value)
        if len(op.operands) == 2:
            offset = self._of(op.operands[1])
            self._must_fit(op.operands[1], offset, True)
            offset = b.binary("muli", offset, size)
        else:
            (number,) = op.attributes["rawConstantIndices"]
            offset = b.i64(number * size)
        return b.binary("addi", self._of(op.operands[0]), offset)


def _wide(b: Builder, value: ir.Value) -> ir.Value:
    """Return a number or address as i64, numbers as signed."""
    kind = value.type
    if kind == int_type(_I64):
        return value
    if isinstance(kind, ir.IndexType):
        return b.value("arith.index_cast", int_type(_I64), (value,))
    if isinstance(kind, ir.IntegerType):
        return b.value("arith.extsi" if kind.width < _I64 else "arith.trunci", int_type(_I64), (value,))
    return b.value("llvm.ptrtoint", int_type(_I64), (value,))
