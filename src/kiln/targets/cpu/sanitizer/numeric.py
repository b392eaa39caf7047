"""Numeric checks: results that are not finite, and index arithmetic that overflows.

Works on a kernel after it has been expanded, when addresses are computed by `arith` operations. The kind `numeric` looks
at every addition, subtraction and multiplication on the way to an address. The other checks compare an access with the element that
its formula means, where extents are multiplied: what wraps around in 32 bits leads to another one, which may be within
bounds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ....mlir import context, ir
from ...lowering.builder import Builder, int_type, like

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..expand import Expander
    from .inline import AccessCheck
    from .instrument import Instrumentation

_MOVES = {"arith.constant", "arith.bitcast", "arith.select", "arith.negf"}
"""Operations that pass on a value."""
_INDEX = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.shli": "<<"}
_WIDENS = {"arith.extsi": True, "arith.index_cast": True, "arith.extui": False, "arith.index_castui": False}
"""Conversions of an index, and whether they take it as signed."""


def watch(sanitizer: Instrumentation, x: Expander) -> None:
    """Add numeric checks to a kernel."""
    _Watch(sanitizer, x).run()


def watch_multiplied(sanitizer: Instrumentation, x: Expander, accesses: list[AccessCheck]) -> None:
    """Check accesses whose index multiplies, in 32 bits, two numbers that are known when the kernel runs."""
    for access in accesses:
        b = Builder(ir.InsertionPoint(access.call), access.call.location)
        for op, signed in _multiplied(access.call.operands[0]):
            (value,) = op.results
            actual = b.value("arith.extsi" if signed else "arith.extui", int_type(64), (value,))
            bad = b.compare("ne", _exact(b, value, "arith.extsi"), actual)
            if not signed:  # it may be a difference of unsigned numbers: n + (2**32 - 1)
                bad = b.binary("andi", bad, b.compare("ne", _exact(b, value, "arith.extui"), actual))
            inside = b.if_(bad)
            operands = [_exact(inside, operand, "arith.extsi") for operand in op.operands]
            site = sanitizer.site(op, x, _INDEX[op.name])
            sanitizer.call(x.module, inside, "overflowed", site, *operands)


def _multiplied(address: ir.Value) -> Iterator[tuple[ir.Operation, bool]]:
    """Yield the 32-bit parts of an address that multiply two dynamic numbers, and whether each counts as signed."""
    todo = [(address, True)]
    seen = set[tuple[Any, bool]]()
    while todo:
        value, signed = todo.pop()
        op = _maker(value)
        if op is None or (value, signed) in seen:
            continue
        seen.add((value, signed))
        if op.name in _WIDENS:
            todo.append((op.operands[0], _WIDENS[op.name]))
        elif op.name in _INDEX and value.type == int_type(32):
            if _multiplies(value):
                yield op, signed
        elif op.name in ("llvm.ptrtoint", "llvm.getelementptr", *_INDEX):
            todo += [(operand, signed) for operand in op.operands]


def _multiplies(value: ir.Value) -> bool:
    op = _maker(value)
    if op is None or op.name not in _INDEX:
        return False
    dynamic = [(of := _maker(operand)) is None or of.name != "arith.constant" for operand in op.operands]
    return (op.name == "arith.muli" and all(dynamic)) or any(map(_multiplies, op.operands))


def _exact(b: Builder, value: ir.Value, extend: str) -> ir.Value:
    """Return a 32-bit index, computed in 64 bits from the numbers that it is made of."""
    op = _maker(value)
    if op is None or op.name not in _INDEX:
        return b.value(extend, int_type(64), (value,))
    return b.value(op.name, int_type(64), tuple(_exact(b, operand, extend) for operand in op.operands))


def _maker(value: ir.Value) -> ir.Operation | None:
    """Return the operation that computes a value; None for an argument."""
    return None if isinstance(value.owner, ir.Block) else value.owner.operation


def _exponent_mask(type_: ir.Type) -> int:
    """Return the bits of the exponent of a floating-point type, or of a vector's elements; 0 for other types."""
    element = type_.element_type if isinstance(type_, ir.VectorType) else type_
    kinds = ((ir.F16Type, 0x7C00), (ir.BF16Type, 0x7F80), (ir.F32Type, 0x7F80_0000), (ir.F64Type, 0x7FF0 << 48))
    return next((mask for kind, mask in kinds if isinstance(element, kind)), 0)


def _not_finite(b: Builder, value: ir.Value) -> ir.Value:
    """Return whether a number is infinite or not a number; for each element of a vector."""
    element = value.type.element_type if isinstance(value.type, ir.VectorType) else value.type
    bits = like(value.type, int_type(element.width))  # pyright: ignore[reportAttributeAccessIssue]
    mask = b.const(bits, _exponent_mask(value.type))
    exponent = b.binary("andi", b.value("arith.bitcast", bits, (value,)), mask)
    return b.compare("eq", exponent, mask)


class _Watch:
    def __init__(self, sanitizer: Instrumentation, x: Expander) -> None:
        self.sanitizer = sanitizer
        self.x = x
        self.computing: list[ir.Operation] = []
        self.addresses: list[ir.Operation] = []
        self.stores: list[ir.Operation] = []

    def run(self) -> None:
        def visit(op: ir.Operation) -> ir.WalkResult:
            name = op.name
            if name.startswith(("arith.", "math.")) and name not in _MOVES and len(op.results) == 1:
                if _exponent_mask(op.results[0].type):
                    self.computing.append(op)
            elif name == "llvm.getelementptr" and len(op.operands) == 2:
                self.addresses.append(op)
            elif name == "llvm.store" and _exponent_mask(op.operands[0].type) and self._checked_address(op) is not None:
                self.stores.append(op)
            return ir.WalkResult.ADVANCE

        self.x.function.operation.walk(visit)
        for op in self.computing:
            self._finite(op)
        for op in self.stores:
            self._stored(op)
        self._indices()

    # -- not finite --------------------------------------------------------------------------------------

    def _finite(self, op: ir.Operation) -> None:
        """Check that the result of an operation is finite if its operands are."""
        b = Builder(ir.InsertionPoint.after(op), op.location)
        type_ = op.results[0].type
        bad = _not_finite(b, op.results[0])
        operands = [v for v in op.operands if _exponent_mask(v.type)]
        for operand in operands:
            infinite = _not_finite(b, operand)
            if infinite.type != bad.type:  # a reduction: of a vector to a number
                infinite = b.any(infinite)
            if infinite.type != bad.type:
                infinite = b.value("vector.broadcast", bad.type, (infinite,))
            bad = b.binary("andi", bad, b.binary("xori", infinite, b.const(bad.type, 1)))
        inside = b.if_(b.any(bad))
        index = _first(inside, bad)
        same = [v for v in operands if like(v.type, int_type(1)) == like(type_, int_type(1))][:2]
        values = [_as_double(inside, v, index) for v in (op.results[0], *same)]
        values += [inside.i64(0)] * (3 - len(values))
        count = type_.shape[-1] if isinstance(type_, ir.VectorType) else 1
        site = self.sanitizer.site(op, self.x, op.name.partition(".")[2])
        self.sanitizer.call(self.x.module, inside, "number", site, index, count, len(same), *values)

    def _checked_address(self, op: ir.Operation) -> ir.Value | None:
        """Return the address of a store to shared or global memory, which the detector has checked; None for others."""
        owner = op.operands[1].owner
        if isinstance(owner, ir.Block) or owner.operation.name != "llvm.inttoptr":
            return None
        call = owner.operation.operands[0].owner
        name = "" if isinstance(call, ir.Block) else call.operation.name
        if name != "func.call" or not call.operation.attributes["callee"].value.endswith("_access"):  # pyright: ignore[reportAttributeAccessIssue]
            return None
        return owner.operation.operands[0]

    def _stored(self, op: ir.Operation) -> None:
        """Record where a number that is not finite is stored."""
        b = Builder(ir.InsertionPoint(op), op.location)
        value = op.operands[0]
        bad = _not_finite(b, value)
        inside = b.if_(b.any(bad))
        element = value.type.element_type if isinstance(value.type, ir.VectorType) else value.type
        offset = inside.value("arith.extui", int_type(64), (_first(inside, bad),))
        offset = inside.binary("muli", offset, element.width // 8)  # pyright: ignore[reportAttributeAccessIssue]
        address = self._checked_address(op)
        assert address is not None
        self.sanitizer.call(self.x.module, inside, "stored", inside.binary("addi", address, offset))

    # -- index arithmetic --------------------------------------------------------------------------------

    def _indices(self) -> None:
        """Check all 32-bit additions, subtractions and multiplications that addresses depend on."""
        seen: set[tuple[Any, bool]] = set()
        for address in self.addresses:
            todo = [(address.operands[1], True)]
            while todo:
                value, signed = todo.pop()
                if isinstance(value.owner, ir.Block) or (value, signed) in seen:
                    continue
                seen.add((value, signed))
                op = value.owner.operation
                if op.name in _WIDENS:
                    todo.append((op.operands[0], _WIDENS[op.name]))
                elif op.name in _INDEX:
                    todo += [(operand, signed) for operand in op.operands]
                    if value.type == int_type(32):
                        self._fits(op, signed)

    def _fits(self, op: ir.Operation, signed: bool) -> None:
        b = Builder(ir.InsertionPoint.after(op), op.location)
        extend = "arith.extsi" if signed else "arith.extui"
        i64 = int_type(64)
        left, right = (b.value(extend, i64, (operand,)) for operand in op.operands)
        exact = b.value(op.name, i64, (left, right))
        bad = b.compare("ne", exact, b.value(extend, i64, (op.results[0],)))
        site = self.sanitizer.site(op, self.x, _INDEX[op.name])
        self.sanitizer.call(self.x.module, b.if_(bad), "overflowed", site, left, right)


def _first(b: Builder, bad: ir.Value) -> ir.Value:
    """Return the number (i32) of the first true element of a vector of i1; 0 for an i1."""
    if not isinstance(bad.type, ir.VectorType):
        return b.i32(0)
    (count,) = bad.type.shape
    result = b.i32(0)
    for index in reversed(range(count)):
        holds = b.value("vector.extract", int_type(1), (bad,), {"static_position": _position(index)})
        result = b.select(holds, b.i32(index), result)
    return result


def _position(index: int) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get([index], context())


def _as_double(b: Builder, value: ir.Value, index: ir.Value) -> ir.Value:
    """Return an element of a value as the bits of an f64."""
    if isinstance(value.type, ir.VectorType):
        (count,) = value.type.shape
        chosen = b.value("vector.extract", value.type.element_type, (value,), {"static_position": _position(0)})
        for number in range(1, count):
            other = b.value("vector.extract", value.type.element_type, (value,), {"static_position": _position(number)})
            chosen = b.select(b.compare("eq", index, number), other, chosen)
        value = chosen
    wide = ir.F64Type.get(context())
    if value.type != wide:
        value = b.value("arith.extf", wide, (value,))
    return b.value("arith.bitcast", int_type(64), (value,))
