"""Values of an `llvm.func` that are kept in a frame in memory, for passes that take functions apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base_dsl.target import size_and_alignment
from ...mlir import context, ir
from ..lowering.builder import gep_parts, int_attr, int_type, ptr_type


class FrameBuilder:
    """Builds operations of the `llvm` dialect at insertion points, and reserves places in a frame."""

    def __init__(self, size: int = 0, alignment: int = 1) -> None:
        self.size: int = size
        self.alignment: int = alignment
        self.unknown: Any = ir.Location.unknown(context())

    def op(
        self,
        name: str,
        at: ir.InsertionPoint,
        results: object = (),
        operands: object = (),
        attributes: object = None,
        successors: object = None,
    ) -> ir.Operation:
        """Make an operation."""
        return ir.Operation.create(name, results, operands, attributes, successors, 0, self.unknown, at)

    def constant(self, at: ir.InsertionPoint, value: int) -> ir.Value:
        """Return a 32-bit constant."""
        i32 = int_type(32)
        return self.op("llvm.mlir.constant", at, (i32,), (), {"value": int_attr(i32, value)}).result

    def reserve(self, size: int, alignment: int) -> int:
        """Return the offset of the next bytes of the frame."""
        self.alignment = max(self.alignment, alignment)
        offset = -(-self.size // alignment) * alignment
        self.size = offset + size
        return offset

    def place_for(self, type_: ir.Type) -> int:
        """Return the offset of a place for a value of a type."""
        return self.reserve(*size_and_alignment(type_))

    def field(self, at: ir.InsertionPoint, frame: ir.Value, offset: int) -> ir.Value:
        """Return the address of a byte of a frame."""
        return self.op("llvm.getelementptr", at, (ptr_type(),), *gep_parts(frame, int_type(8), offset)).result

    def store(self, at: ir.InsertionPoint, value: ir.Value, frame: ir.Value, offset: int) -> None:
        """Store a value in a frame."""
        self.op("llvm.store", at, (), (value, self.field(at, frame, offset)), _alignment(value.type))

    def load(self, at: ir.InsertionPoint, type_: ir.Type, frame: ir.Value, offset: int) -> ir.Value:
        """Load a value from a frame."""
        return self.op("llvm.load", at, (type_,), (self.field(at, frame, offset),), _alignment(type_)).result

    def switch(self, at: ir.InsertionPoint, value: ir.Value, targets: Sequence[tuple[int, ir.Block]]) -> None:
        """Branch to the block of a number, which is one of those given."""
        (_, first), *others = targets
        attributes = {
            "case_operand_segments": ir.DenseI32ArrayAttr.get([0] * len(others), context()),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0], context()),
        }
        if others:
            numbers = [int_attr(int_type(32), number) for number, _ in others]
            shape = ir.VectorType.get([len(others)], int_type(32), loc=self.unknown)
            attributes["case_values"] = ir.DenseElementsAttr.get(numbers, shape)
        self.op("llvm.switch", at, (), (value,), attributes, [first, *(block for _, block in others)])


def _alignment(type_: ir.Type) -> dict[str, ir.Attribute]:
    return {"alignment": ir.IntegerAttr.get(int_type(64), size_and_alignment(type_)[1])}
