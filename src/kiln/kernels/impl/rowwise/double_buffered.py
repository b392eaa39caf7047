"""Row-wise kernels whose CTAs load the next row while they compute one.

They are for quantised rows, which compute much for each byte: memory does not wait for CTAs that all compute at the same time, as
those that start together do.
"""

from __future__ import annotations

import functools
from typing import Any

from .... import Boolean, Int32, cute
from ....cute import arch
from .config import STAGES
from .row_kernel import Position, Row, wait_for_previous_kernel
from .row_part import ResidentPart


class DoubleBuffered:
    """The kernel of a row function that reduces twice for a row: a thread that has the second result knows that all have read
    what was exchanged first, so one buffer for each exchange is enough."""

    config: Any
    problem: Any

    @cute.kernel
    def kernel(self: Any, sources: Any, outs: Any, columns: Any, row_values: Any, scalars: Any, rows: Int32, n: Int32):
        config = self.config
        wait_for_previous_kernel(self.problem.overlaps)
        thread, first = arch.thread_idx()[0], arch.block_idx()[0] * config.rows_per_cta
        exchanges = self.exchange_buffer(), self.exchange_buffer(fields=1)
        buffers = [self.smem_buffer(x.element_type, thread, STAGES) for x in sources]
        count, zero, units = min(Int32(config.rows_per_cta), rows - first), Int32(0), n // self.width
        at = Position(first, Boolean(True), thread, units, zero, thread, zero)
        self.fetch_row(sources, buffers, at, zero)
        arch.cp_async_commit_group()
        for turn in range(count):
            here = at._replace(row=first + turn)
            if turn + 1 < count:
                self.fetch_row(sources, buffers, at._replace(row=first + turn + 1), (turn + 1) % STAGES)
            arch.cp_async_commit_group()
            arch.cp_async_wait_group(1)
            part = ResidentPart(self, [], [x[None, None, turn % STAGES] for x in buffers], columns, thread, units)
            part.prefetch()
            own, saved = self.accumulate(None, part)
            part.release()
            part.prefetch()
            row = Row(own, self.reduce_row(own, exchanges[0], here), scalars, n)
            largest, first_results = self.largest_result(part, saved, row)
            row = self.with_scale(row, self.row_max(largest, exchanges[1], here))
            part.release()
            self.write_row_values(row_values, row, here)
            self.write(outs, part, saved, row, here, first_results)

    @cute.jit
    def fetch_row(self: Any, sources: Any, buffers: Any, at: Any, stage: Any):
        """Begins to copy a row to a stage of shared memory; zeros behind its end."""
        for x, buffer in zip(sources, buffers, strict=True):
            self.copy_row(x, at, buffer[None, None, stage])


@functools.cache
def double_buffered(function: type[Any]) -> type[Any]:
    """Returns the double-buffered kernel of a row function."""
    return type(function.__name__, (DoubleBuffered, function), {})
