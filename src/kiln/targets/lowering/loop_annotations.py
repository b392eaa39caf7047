"""Hints for LLVM on loops."""

from __future__ import annotations

from ...mlir import ir
from .builder import operations

LOOP_ANNOTATION = "llvm.loop_annotation"
"""Attribute of an `scf.for` or `scf.while` with hints."""


def keep_loop_annotations(module: ir.Module) -> None:
    """Move the hints of loops to the back edges' own attribute: MLIR's lowering leaves them in one without a meaning
    there."""
    for func in operations(module):
        for block in func.regions[0].blocks if func.name == "llvm.func" else ():
            inside = block.operations
            op = inside[len(inside) - 1].operation
            if LOOP_ANNOTATION in op.attributes:
                op.attributes["loop_annotation"] = op.attributes[LOOP_ANNOTATION]
                del op.attributes[LOOP_ANNOTATION]
