"""Edges of unaligned rows in streaming kernels.

Rows `period` apart begin equally far from a vector. A CTA takes only such rows: its threads have the same columns in
all of them, so that columns are shifted once and accumulators stay where they are. The few elements before and behind
the vectors of a row are edges: one to a lane of the row's first warp, read a row ahead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, cute, select_
from ...parts.vectors import as_f32, vector_atom
from .row_part import EdgePart
from .unaligned import Edges

if TYPE_CHECKING:
    from .... import Boolean
    from .row_kernel import Row, RowTensors
    from .streaming import StreamingRowKernel


def row_period(step: int, width: int, spare: int, lines: int) -> tuple[int, int]:
    """Return after how many rows of stride `step` the alignment repeats, and at a multiple of how many vectors rows are
    read.

    Accesses at multiples of 32 bytes are 7 % faster, measured on an H200. They double the period: the `lines` CTAs or
    clusters must still share the rows evenly, and threads must have a vector to `spare`.
    """

    def period(alignment: int) -> int:
        return width * alignment // math.gcd(step, width * alignment)

    def balance(alignment: int) -> float:
        return period(alignment) * max(1, lines // period(alignment)) / lines

    alignment = 2 if spare >= 1 and balance(2) > 0.9 * balance(1) else 1
    return period(alignment), alignment


class StreamedEdges(Edges):
    """The edges of the rows of a CTA, and a thread's element of the `present` row and of the `coming` one."""

    def __init__(
        self, kernel: StreamingRowKernel, tensors: RowTensors, line: Int32, rank: Int32 | int, lane: Int32
    ) -> None:
        problem = kernel.problem
        self._kernel = kernel
        self._period = problem.period
        self._first = line % problem.period
        begin = tensors.lead + self._first * tensors.skew
        super().__init__(kernel, begin, tensors.n, rank, lane)
        self.rows: Int32 = (tensors.rows - self._first + (problem.period - 1)) // problem.period
        """Rows with this alignment."""
        self.shift: Int32 = begin & (problem.width - 1)
        """Elements from the beginning of a line of partials to the first, so that their vectors are aligned."""

    def take(self, tensors: RowTensors) -> RowTensors:
        """Read the columns, clear the accumulators and return the tensors with the vectors of the CTA's rows as
        matrices."""
        self._sources, self._outs = ([self.vectors(x) for x in group] for group in (tensors.sources, tensors.outs))
        self.present: list[Any] = [self._register(x) for x in self._sources]
        self.coming: list[Any] = [self._register(x) for x in self._sources]
        self._columns = [self._register(x) for x in tensors.columns]
        for x, register in zip(tensors.columns, self._columns, strict=True):
            self._copy(x.iterator + select_(self.pred, self.column, Int32(0)), register, self.pred)
        self.accs: list[cute.Tensor] = [cute.make_rmem_tensor((1, 1), Float32) for _ in tensors.partials]
        for register in self.accs:
            register.fill(0.0)
        return tensors._replace(sources=self._sources, outs=self._outs, rows=self.rows)

    def _register(self, x: cute.Tensor) -> cute.Tensor:
        register = cute.make_rmem_tensor((1,), x.element_type)
        register.fill(0)
        return register

    def _copy(self, pointer: cute.Pointer, register: cute.Tensor, pred: Boolean) -> None:
        tile = cute.make_tensor(pointer.with_alignment(register.element_type.width // 8), cute.make_layout(1))
        cute.copy(vector_atom(register.element_type, 1), tile, register, pred=pred)

    def _element(self, x: cute.Tensor, row: Int32) -> cute.Pointer:
        """Return the address of the thread's element, relative to the row's first vector, whose address is known
        anyway."""
        return x[row, None].iterator + select_(self.pred, self.column - self.span.head, Int32(0))

    def vectors(self, x: cute.Tensor) -> cute.Tensor:
        """Return the vectors of the CTA's rows as a matrix whose rows begin at multiples of vectors."""
        width = self._kernel.problem.width
        step = x.stride[0]
        pointer = x.iterator + (self._first * step + self.span.head)
        layout = cute.make_layout(
            (self.rows, self.span.units * width), stride=(cute.assume(step * self._period, divby=width), 1)
        )
        return cute.make_tensor(pointer.with_alignment(width * x.element_type.width // 8), layout)

    def line(self, out: cute.Tensor, line: Int32) -> cute.Tensor:
        """Return the vectors of a line of partials."""
        width = self._kernel.problem.width
        pointer = out[line, None].iterator + (self.shift + self.span.head)
        return cute.make_tensor(pointer.with_alignment(min(16, 4 * width)), cute.make_layout(self.span.units * width))

    def read(self, registers: list[Any], row: Int32) -> None:
        """Begin to read the elements of a row."""
        exists = row < self.rows
        for x, register in zip(self._sources, registers, strict=True):
            self._copy(self._element(x, select_(exists, row, Int32(0))), register, self.pred & exists)

    def next_row(self) -> None:
        """Make the coming row the present one."""
        for old, new in zip(self.present, self.coming, strict=True):
            old.store(new.load())

    def part(self, registers: list[Any]) -> EdgePart:
        """Return a thread's element as a part."""
        values = [as_f32(x.load())[0] for x in registers]
        return EdgePart(values, self.pred, [as_f32(x.load()) for x in self._columns])

    @cute.jit
    def write(self, row: Row, index: Int32):
        """Write the results at the edges of row `index`, and add to the accumulators."""
        if self.pred:
            part = self.part(self.present)
            results = self._kernel.function.results(part.values(0), part.columns(0), None, row)
            for out, value in zip(self._outs, results[: len(self._outs)], strict=True):
                target = self._element(out, index).with_alignment(out.element_type.width // 8)
                cute.make_tensor(target, cute.make_layout(1))[0] = value[0].to(out.element_type)
            for register, value in zip(self.accs, results[len(self._outs) :], strict=True):
                register[0, 0] = register[0, 0] + value[0]

    @cute.jit
    def write_partials(self, partials: list[cute.Tensor], line: Int32):
        """Write the reductions over the rows of the CTA."""
        if self.pred:
            for out, register in zip(partials, self.accs, strict=True):
                out[line, self.shift + self.column] = register[0, 0]
