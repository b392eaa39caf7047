"""Rows that begin anywhere, for blocks that take rows in turn (`streaming.py`).

Rows `period` apart begin equally far from a vector. A block takes such rows alone: its threads have the same columns in all of them,
so that weights are shifted once and sums over rows stay where they are. A few elements before and after the vectors of a row, one
to a lane of the row's first warp, are read one by one, a row ahead.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, cute, select_
from ...parts.unaligned_rows import Span, vector_atom
from ...parts.vectors import as_f32
from .row_kernel import WARP
from .unaligned import EdgePart

if TYPE_CHECKING:
    from .streaming import RowStream


def alike(step: int, width: int, spare: int, lines: int) -> tuple[int, int]:
    """How many rows, so far apart, begin differently beside vectors, and how many of those the first thread of a row begins at.

    Accesses at multiples of 32 bytes are 7 % faster, measured on an H200. For them twice as many rows begin differently: `lines` blocks
    or clusters are to share those evenly, and threads to have as many vectors to `spare`.
    """

    def period(lined: int) -> int:
        return width * lined // math.gcd(step, width * lined)

    def evenly(lined: int) -> float:
        return period(lined) * max(1, lines // period(lined)) / lines

    lined = 2 if spare >= 1 and evenly(2) > 0.9 * evenly(1) else 1
    return period(lined), lined


class StreamEdges:
    """Where the rows of a block lie, and a thread's element at the edges of one: `present` of the row at hand, `coming` of the next.

    The first thread of a row has a vector at a multiple of `lined` of them, which may lie before the row.
    """

    __kiln_static__ = True

    def __init__(
        self, stream: RowStream, line: Any, rows: Any, n: Any, lead: Any, skew: Any, rank: Any, lane: Any
    ) -> None:
        problem, config = stream.problem, stream.config
        self._stream = stream
        self._period = problem.period
        self._kind = line % problem.period
        self._n = n
        begin = lead + self._kind * skew
        self.span = Span(begin, n, problem.width)
        self.rows = (rows - self._kind + (problem.period - 1)) // problem.period
        """How many rows there are of the kind."""
        self.before = (begin + self.span.head) // problem.width & (problem.lined - 1)
        """Vectors that the first threads of a row have before it."""
        self.shift = begin & (problem.width - 1)
        """How far sums over rows lie from the beginning of a line, so that vectors of them are aligned."""
        (self._column,) = self.span.edges(rank * config.row_threads + lane, config.cluster * config.row_threads)
        self._there = (rank == 0) & (lane < WARP) & (self._column < n)  # nobody else has an edge
        self.has = (rank == 0) & (lane < WARP)

    def take(self, sources: Any, outs: Any, columns: Any, sums: int) -> None:
        """Look at the edges of rows of these matrices, which are given as `vectors`."""
        self._sources, self._outs = sources, outs
        self.present, self.coming = ([self._room(x) for x in sources] for _ in range(2))
        self._weights = [self._room(x) for x in columns]
        for x, held in zip(columns, self._weights, strict=True):
            self._copy(x.iterator + select_(self._there, self._column, Int32(0)), held, self._there)
        self.sums = [cute.make_rmem_tensor((1, 1), Float32) for _ in range(sums)]
        for held in self.sums:
            held.fill(0.0)

    def _room(self, x: Any) -> Any:
        held = cute.make_rmem_tensor((1,), x.element_type)
        held.fill(0)
        return held

    def _copy(self, pointer: Any, held: Any, there: Any) -> None:
        part = cute.make_tensor(pointer.with_alignment(held.element_type.width // 8), cute.make_layout(1))
        cute.copy(vector_atom(held.element_type, 1), part, held, pred=there)

    def _element(self, x: Any, row: Any) -> Any:
        """Where the thread's element of a row is: so far from its first vector, whose place is known anyway."""
        return x[row, None].iterator + select_(self._there, self._column - self.span.head, Int32(0))

    def vectors(self, x: Any) -> Any:
        """The vectors of the rows of the kind, a matrix whose rows begin at multiples of theirs."""
        width, step = self._stream.problem.width, x.stride[0]
        pointer = x.iterator + (self._kind * step + self.span.head)
        layout = cute.make_layout(
            (self.rows, self.span.units * width), stride=(cute.assume(step * self._period, divby=width), 1)
        )
        return cute.make_tensor(pointer.with_alignment(width * x.element_type.width // 8), layout)

    def line(self, out: Any, line: Any) -> Any:
        """The vectors of a line of sums over rows."""
        whole = out[line, None]
        pointer = whole.iterator + (self.shift + self.span.head)
        aligned = pointer.with_alignment(min(16, 4 * self._stream.problem.width))
        return cute.make_tensor(aligned, cute.make_layout(self.span.units * self._stream.problem.width))

    def read(self, held: list[Any], row: Any) -> None:
        """Begin to read the elements of a row."""
        exists = row < self.rows
        for x, room in zip(self._sources, held, strict=True):
            self._copy(self._element(x, select_(exists, row, Int32(0))), room, self._there & exists)

    def advance(self) -> None:
        """The next row is at hand."""
        for old, new in zip(self.present, self.coming, strict=True):
            old.store(new.load())

    def part(self, held: list[Any]) -> EdgePart:
        """A thread's element as a `Part`."""
        return EdgePart([as_f32(x.load())[0] for x in held], self._there, [as_f32(x.load()) for x in self._weights])

    @cute.jit
    def finish(self, state: Any, numbers: Any, n: Any, row: Any):
        """Write the results at the edges of a row, and add to the sums."""
        if self._there:
            part = self.part(self.present)
            made = self._stream.rule.results(part.values(0), part.columns(0), None, state, state, numbers, n)
            for out, value in zip(self._outs, made[: len(self._outs)], strict=True):
                place = self._element(out, row).with_alignment(out.element_type.width // 8)
                cute.make_tensor(place, cute.make_layout(1))[0] = value[0].to(out.element_type)
            for held, value in zip(self.sums, made[len(self._outs) :], strict=True):
                held[0, 0] = held[0, 0] + value[0]

    @cute.jit
    def write_sums(self, partial: Any, line: Any):
        """Write sums over the rows of the block."""
        if self._there:
            for out, held in zip(partial, self.sums, strict=True):
                out[line, self.shift + self._column] = held[0, 0]
