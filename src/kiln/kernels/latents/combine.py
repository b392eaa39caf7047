"""The second half of `mla_decode`: the pieces of sequences that lie in several shares are put together, in the order of their keys."""

from __future__ import annotations

from typing import Any

from ... import Int32, Int64, const_expr, cute
from ...cute import arch
from .. import devices
from ..attentions.parts import WIDTH, Together
from .shares import MEMBERS


class Combine(Together):
    """The kernel for outputs of some type: a block of threads has a query and head of the sequence that goes on in a share, if it began in
    the one before. `ways`: groups of threads that each put some of the pieces together."""

    def __init__(self, dtype: Any, value_dim: int, ways: int = 1) -> None:
        super().__init__(dtype, value_dim, value_dim // WIDTH, ways)

    @cute.jit
    def __call__(self, given: Any, numbers: Any, stream: Int64):
        """Launch it."""
        if numbers.shares > 1:
            self.kernel(given, numbers).launch(
                grid=(given.out.shape[1], numbers.shares - 1, 1),
                block=(self.lanes * self.ways, 1, 1),
                stream=stream,
                use_pdl=devices.current().overlaps,
            )

    @cute.kernel
    def kernel(self, given: Any, numbers: Any):
        row, share, _ = arch.block_idx()
        share = share + 1
        thread = arch.thread_idx()[0]
        lane, way = thread % self.lanes, thread // self.lanes
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
        sequence, start, each, count = (given.found[share, i] for i in range(MEMBERS))
        first, last = start // each, (start + count - 1) // each
        if count > 0 and first + 1 == share and last >= share:
            column = cute.assume(lane * WIDTH, divby=WIDTH)
            state = self.added((given.pieces, row, first), last - first + 1, column, way)
            if const_expr(self.ways > 1):
                shared = self.shared()
                self.leave(state, shared, lane, way)
                arch.sync_threads()
                if way == 0:
                    self.add_others(state, shared, lane)
            if way == 0:
                self.store(state, given.out[sequence, row, None], column, True)
                if const_expr(given.lse is not None):
                    if column == 0:
                        given.lse[sequence, row % numbers.heads, row // numbers.heads] = self.logarithm(state)

    def row_of(self, parts: Any, number: Any) -> Any:
        pieces, row, first = parts
        # a share begins with the rest of a sequence, and ends with the beginning of another
        return pieces[2 * (first + number) + Int32(number == 0), row, None]
