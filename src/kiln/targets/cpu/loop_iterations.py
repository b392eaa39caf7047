"""The iteration of a loop that a thread is in, for instrumented builds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...analysis.values import bounds
from ...mlir import ir, terminator
from ..lowering.builder import Builder, int_type

if TYPE_CHECKING:
    from .expand import Expander


def loops_around(op: ir.Operation) -> Iterator[ir.Operation]:
    """Yield the dynamic loops around an operation, innermost first."""
    parent = op.parent
    while parent is not None and parent.operation.name != "func.func":
        if parent.operation.name in ("scf.for", "scf.while"):
            yield parent.operation
        parent = parent.operation.parent


class LoopIterations:
    """Numbers of iterations in the functions of one module."""

    def __init__(self) -> None:
        self._cells: dict[ir.Operation, ir.Value] = {}

    def number(self, x: Expander, b: Builder, loop: ir.Operation) -> ir.Value:
        """Return how many iterations of a loop are complete (i64), at a place inside it."""
        i64 = int_type(64)
        if loop.name == "scf.while":
            return b.load(i64, self._cell(x, loop))
        lower, _, step = bounds(loop)
        index = loop.regions[0].blocks[0].arguments[0]
        done = b.binary("divui", b.binary("subi", index, lower), step)
        if isinstance(done.type, ir.IndexType):
            return b.value("arith.index_cast", i64, (done,))
        return done if done.type == i64 else b.value("arith.extui", i64, (done,))

    def _cell(self, x: Expander, loop: ir.Operation) -> ir.Value:
        """Return where the iterations of a `while` are counted."""
        if loop not in self._cells:
            i64 = int_type(64)
            cell = self._cells[loop] = x.at_entry(loop.location).alloca(i64)
            start = Builder(ir.InsertionPoint(loop), loop.location)
            start.store(start.i64(0), cell)
            each = Builder(ir.InsertionPoint(terminator(loop.regions[1].blocks[0])), loop.location)
            each.store(each.binary("addi", each.load(i64, cell), 1), cell)
        return self._cells[loop]
