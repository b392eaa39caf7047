"""Hints for LLVM on loops."""

from __future__ import annotations

from ...mlir import ir
from .builder import operations

LOOP_ANNOTATION = "llvm.loop_annotation"
"""Attribute of an `scf.for` or `scf.while` with hints."""


def keep_loop_annotations(module: ir.Module) -> None:
    """Lowering hands a loop's hints to its branch back as an attribute that means nothing there: make it the branch's own."""
    for func in operations(module):
        for block in func.regions[0].blocks if func.name == "llvm.func" else ():
            inside = block.operations
            op = inside[len(inside) - 1].operation
            if LOOP_ANNOTATION in op.attributes:
                op.attributes["loop_annotation"] = op.attributes[LOOP_ANNOTATION]
                del op.attributes[LOOP_ANNOTATION]
