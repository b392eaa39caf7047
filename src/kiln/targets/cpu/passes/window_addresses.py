"""Integers made of LLVM pointers to shared memory, and pointers made of them: addresses in the window of shared memory.

Programs get such pointers by `pointer.llvm_ptr`, and give them to inline PTX or to operations of the LLVM dialect. The host has
one address space, so the conversions become those of the `cute` dialect, which know the window.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....dialects import cute
from ....mlir import ir
from ...lowering.builder import Builder, int_type

CONVERSIONS = ("llvm.inline_asm", "llvm.inttoptr", "llvm.ptrtoint")
"""Operations that may make an integer of a pointer, or a pointer of an integer."""
_SPACES = {"!llvm.ptr<3>": "smem", "!llvm.ptr<7>": "dsmem"}


def convert(operations: Sequence[ir.Operation]) -> None:
    """Let operations of `CONVERSIONS` have addresses in the window where they have pointers to shared memory."""
    for op in operations:
        b = Builder(ir.InsertionPoint(op), op.location)
        if op.name == "llvm.inline_asm":
            for number, operand in enumerate(op.operands):
                if str(operand.type) in _SPACES:
                    op.operands[number] = _address(b, operand, int_type(32))
        elif op.name == "llvm.ptrtoint" and str(op.operands[0].type) in _SPACES:
            op.results[0].replace_all_uses_with(_address(b, op.operands[0], op.results[0].type))
            op.erase()
        elif op.name == "llvm.inttoptr" and (space := _SPACES.get(str(op.results[0].type))):
            value = _resized(b, op.operands[0], int_type(64))
            pointer = cute.int_to_ptr(value, cute.ptr_type(int_type(8), space, 1), b.value)
            op.results[0].replace_all_uses_with(_cast(b, pointer, op.results[0].type))
            op.erase()


def _cast(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    return b.value("builtin.unrealized_conversion_cast", type_, (value,))


def _address(b: Builder, pointer: ir.Value, type_: ir.Type) -> ir.Value:
    of = cute.ptr_type(int_type(8), _SPACES[str(pointer.type)], 1)
    return _resized(b, cute.ptr_to_int(_cast(b, pointer, of), b.value), type_)


def _resized(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    have, want = (ir.IntegerType(each).width for each in (value.type, type_))
    return value if have == want else b.value("arith.extui" if have < want else "arith.trunci", type_, (value,))
