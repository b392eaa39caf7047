"""Rows that a block takes one after the other, with the next one on its way: for kinds that compute much for each byte.

While a block computes, it loads: memory does not wait for blocks that compute at the same time, as those that begin together do.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

from .... import Boolean, Int32, const_expr, cute
from ....cute import arch
from ...dispatch import arrays
from .row_kernel import WARP, Part, RowwiseConfig

if TYPE_CHECKING:
    from ...dispatch import devices

STAGES = 2
"""Rows of a block in shared memory: the one it has, and the next."""


@dataclasses.dataclass(frozen=True)
class DoubleBufferedRowwiseConfig(RowwiseConfig):
    """How rows are cut of which a block takes `turns`, one after the other. All of a row is in shared memory, and no other block has any of it."""

    turns: int = 4

    def smem_bytes(self, n: int, width: int, bits: int, sources: int) -> int:
        """Shared memory of a block that reads some matrices of so many bits."""
        return STAGES * super().smem_bytes(n, width, bits, sources)

    def check(self, n: int, width: int, bits: int, sources: int, device: devices.Device) -> None:
        """Refuse what cannot work for rows of `n` elements of so many bits, accessed `width` at a time."""
        super().check(n, width, bits, sources, device)
        arrays.require(isinstance(self.turns, int) and self.turns >= 1, f"{self}: {self.turns!r} rows of a block")
        arrays.require(
            self.rows == 1 and self.cluster == 1 and self.shared >= self.vectors(n, width) > 0,
            f"{self}: a block has one row of {n} at a time, all of it in shared memory",
            hint=f"row_threads={self.threads}, cluster=1, shared={max(1, self.vectors(n, width))}",
        )


class InTurn:
    """The kernel of a kind of rows that exchanges findings twice: who is told of the second has read all that were exchanged first."""

    config: Any
    problem: Any
    width: int
    shared: int

    @cute.kernel
    def kernel(self: Any, sources: Any, outs: Any, columns: Any, notes: Any, numbers: Any, rows: Int32, n: Int32):
        config = self.config
        if const_expr(self.problem.overlaps):
            arch.griddepcontrol_wait()
            arch.griddepcontrol_launch_dependents()
        thread, first = arch.thread_idx()[0], arch.block_idx()[0] * config.turns
        units, slots = n // self.width, max(1, config.row_threads // WARP)
        exchanges = self.exchange_buffer(slots), self.exchange_buffer(slots, fields=1)
        rings = [self.ring(x.element_type, thread) for x in sources]
        count, nothing, all_exist = min(Int32(config.turns), rows - first), Int32(0), Boolean(True)
        self.begin(sources, rings, first, nothing, thread, units)
        arch.cp_async_commit_group()
        for turn in range(count):
            row = first + turn
            if turn + 1 < count:
                self.begin(sources, rings, row + 1, (turn + 1) % STAGES, thread, units)
            arch.cp_async_commit_group()
            arch.cp_async_wait_group(1)
            part = Part(self, [], [self.stage(ring, turn % STAGES) for ring in rings], columns, thread, units)
            part.prepare()
            own, kept = self.absorb(None, part)
            part.release()
            part.prepare()
            state = self.gathered(own, exchanges[0], nothing, thread, nothing, slots)
            most, done = self.largest(part, kept, own, state, numbers, n)
            state = self.with_scale(
                state, self.most_of_row(most, exchanges[1], nothing, thread, nothing, slots), numbers
            )
            part.release()
            self.note(notes, state, numbers, row, all_exist, nothing, thread)
            self.finish(outs, part, kept, own, state, numbers, n, row, all_exist, thread, units, done)

    def ring(self: Any, dtype: Any, thread: Any) -> Any:
        """A thread's own shared memory (element, vector, stage), which lies between that of its neighbours."""
        width, threads = self.width, self.config.threads
        memory = arch.alloc_smem(dtype, width * threads * self.shared * STAGES, 16)
        shape, step = (width, self.shared, STAGES, threads), width * threads
        layout = cute.make_layout(shape, stride=(1, step, step * self.shared, width))
        return cute.make_tensor(memory, layout)[None, None, None, thread]

    def stage(self, ring: Any, place: Any) -> Any:
        """One of its rows (element, vector)."""
        return ring[None, None, place]

    @cute.jit
    def begin(self: Any, sources: Any, rings: Any, row: Any, place: Any, thread: Any, units: Any):
        """Begin to copy a row to shared memory; zeros where it ends."""
        for x, ring in zip(sources, rings, strict=True):
            self.copy_row(x, row, Boolean(True), thread, units, self.stage(ring, place))


@functools.cache
def in_turn(kind: type[Any]) -> type[Any]:
    """A kind of rows, taken in turn."""
    return type(kind.__name__, (InTurn, kind), {})
