"""Loops of WGMMAs that the program wants unrolled are unrolled here, not by LLVM.

Their WGMMAs then become one piece of inline PTX (`wgmma_registers.py`); LLVM would copy a piece with all its registers
for each iteration.
"""

from __future__ import annotations

from typing import Any

from ....analysis import values
from ....dialects.cute import UNROLL_FULL, CastPtr, PtrAdd
from ....dialects.nvgpu.wgmma import MatrixDescriptor, Wgmma
from ....mlir import ir
from ...lowering.builder import constant_value, int_attr
from ...lowering.vector_parts import make_before

_BODY = {kind.OPERATION_NAME for kind in (Wgmma, PtrAdd, CastPtr, MatrixDescriptor)} | {"scf.yield"}
"""What may stand in such a loop, besides operations of `arith`."""
_MOST_TURNS = 16


def unroll_wgmma(module: ir.Module) -> None:
    """Unroll loops with a constant trip count that consist of WGMMAs and computation of their operands."""
    parents: dict[ir.Operation, None] = {}
    for op in Wgmma.all_in(module.operation):
        parents[op.parent.operation] = None
    for loop in parents:
        if loop.name == "scf.for" and UNROLL_FULL in loop.attributes and (turns := _turns(loop)):
            _Unrolling(loop).run(turns)


def _turns(loop: ir.Operation) -> range | None:
    """Return the counter's values in each iteration of a loop, if they are constant."""
    bounds = [constant_value(v) for v in values.bounds(loop)]
    lower, upper, step = bounds
    if lower is None or upper is None or step is None or step <= 0 or lower < 0:
        return None
    turns = range(lower, upper, step)
    body = loop.regions[0].blocks[0]
    if len(turns) > _MOST_TURNS or not isinstance(body.arguments[0].type, ir.IntegerType):
        return None
    names = {view.operation.name for view in body.operations}
    return turns if all(name.startswith("arith.") or name in _BODY for name in names) else None


class _Unrolling:
    """The unrolling of a loop, which folds what depends on counters alone."""

    def __init__(self, loop: ir.Operation) -> None:
        self._loop = loop
        self._point = ir.InsertionPoint(loop)
        self._values: dict[ir.Value, ir.Value] = {}
        self._numbers: dict[ir.Value, int] = {}
        """Values that are known in this turn, as unsigned numbers."""
        self._constants: dict[tuple[ir.Type, int], ir.Value] = {}

    def run(self, turns: range) -> None:
        """Replace the loop by its iterations."""
        body = self._loop.regions[0].blocks[0]
        counter, *carried = body.arguments
        operations = [view.operation for view in body.operations]
        for value in {v for op in operations for v in op.operands}:
            number = constant_value(value)
            if number is not None and isinstance(value.type, ir.IntegerType):
                self._numbers[value] = number & _mask(value.type)
        *steps, last = operations
        passed = values.initial_values(self._loop)
        for number in turns:
            self._values = dict(zip(carried, passed, strict=True))
            self._numbers[counter] = number
            for op in steps:
                self._step(op)
            passed = [self._value(v) for v in last.operands]
        for result, value in zip(self._loop.results, passed, strict=True):
            result.replace_all_uses_with(value)
        self._loop.erase()

    def _step(self, op: ir.Operation) -> None:
        number = self._computed(op)
        if number is not None:
            self._numbers[op.results[0]] = number
            return
        operands = [self._value(v) for v in op.operands]
        cloned = op.clone(self._point).operation
        for place, value in enumerate(operands):
            cloned.operands[place] = value
        for old, new in zip(op.results, cloned.results, strict=True):
            self._values[old] = new
            self._numbers.pop(old, None)

    def _value(self, value: ir.Value) -> ir.Value:
        number = self._numbers.get(value)
        if number is None:
            return self._values.get(value, value)
        key = (value.type, number)
        constant_ = self._constants.get(key)
        if constant_ is None:
            constant = {"value": int_attr(value.type, number)}
            constant_ = self._constants[key] = make_before(self._loop, "arith.constant", value.type, (), constant)
        return constant_

    def _computed(self, op: ir.Operation) -> int | None:
        """Return what an operation on known numbers gives, if it is one of those that addresses are made with."""
        compute = _COMPUTED.get(op.name)
        if compute is None:
            return None
        numbers = [self._numbers.get(v) for v in op.operands]
        if None in numbers:
            return None
        result: int | None = compute(op, *numbers)
        return None if result is None else result & _mask(op.results[0].type)


def _mask(type_: Any) -> int:
    return (1 << type_.width) - 1


_EQUAL = 0
_UNEQUAL = 1


def _compared(op: ir.Operation, a: int, b: int) -> int | None:
    predicate: Any = op.attributes["predicate"]
    return {_EQUAL: int(a == b), _UNEQUAL: int(a != b)}.get(predicate.value)


_COMPUTED: dict[str, Any] = {
    "arith.addi": lambda _, a, b: a + b,
    "arith.subi": lambda _, a, b: a - b,
    "arith.muli": lambda _, a, b: a * b,
    "arith.andi": lambda _, a, b: a & b,
    "arith.shrui": lambda op, a, b: a >> b if b < op.results[0].type.width else None,
    "arith.extui": lambda _, a: a,
    "arith.cmpi": _compared,
}
