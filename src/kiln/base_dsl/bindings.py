"""The MLIR bindings, loaded when something is first traced: importing the language stays quick.

Modules of the language import `ir` and `context` from here, at their top; what a target or a dialect uses comes from
`kiln.mlir`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .._support import lazy

if TYPE_CHECKING:
    from ..mlir import ir
else:
    ir = lazy.Module("kiln.mlir", "ir")

_mlir: Any = lazy.Module("kiln.mlir")


def context() -> ir.Context:
    """Return the process-wide MLIR context."""
    return _mlir.context()


def file_location(name: str, line: int, column: int) -> ir.Location:
    """Return the location of a place in a file, whatever bytes its name has; line and column count from 1."""
    return _mlir.file_location(name, line, column)
