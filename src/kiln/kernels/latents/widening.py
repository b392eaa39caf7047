"""Latents of 8 bits: a warp group makes f16 of them, which the tensor cores multiply with queries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Constexpr, Float16, Int32, const_expr, cute, pipeline, range_constexpr
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp
from ..common.narrow_floats import widened
from .plan import GROUP, ROWS

if TYPE_CHECKING:
    from .hopper import LatentForward

_AT_ONCE = 16
"""Elements of 8 bits that a thread reads at once."""
_PIECE = 64
"""Columns that lie side by side."""


def warp_pipe(stages: int) -> Any:
    """Buffers that a warp group fills, and another uses: one thread of a warp arrives for all of it."""
    group = pipeline.CooperativeGroup(pipeline.Agent.Thread, GROUP // 32)
    made = pipeline.PipelineAsync.create(num_stages=stages, producer_group=group, consumer_group=group, defer_sync=True)
    made.is_signaling_thread = arch.lane_idx() == 0
    return made


def raw_layout(columns: int, buffers: int) -> Any:
    """Rows and columns of a tile as it comes: pieces of 64 columns, so that 8 threads, four to a row, read all banks."""
    shape, strides = (ROWS, (_PIECE, columns // _PIECE), buffers), (_PIECE, (1, ROWS * _PIECE), ROWS * columns)
    return cute.make_layout(shape, stride=strides)


class Widen:
    """Converts blocks of keys: of halves and of last columns the ring, the tiles of 8 bits, and the pipelines of both."""

    __kiln_immutable__ = True

    def __init__(self, of: LatentForward, rings: Any) -> None:
        self.of, self.rings = of, rings

    def block(self, count: Any) -> None:
        """Convert a block, the `count`th of all, in the order in which its warp group needs it."""
        halves, rope = self.rings
        self.part(halves, count, 0)
        self.part(rope, count, None)
        self.part(halves, count, 1)

    @cute.jit
    def part(self, ring: Any, count: Any, half: Constexpr):
        """Convert the half that is needed first (0), the other (1), or the last columns (None)."""
        tiles, raw, pipe, pipe_raw = ring
        of, group, thread = self.of, count & 1, arch.thread_idx()[0] % GROUP
        buffers, columns = (1, _PIECE) if const_expr(half is None) else (2, of.half)
        raw_state, own = of.raw_state(count, buffers, half)
        state = of.state(count, group, buffers, own, 1)
        across = _PIECE // _AT_ONCE
        rows = GROUP // across
        # of 8 threads four have a row, and write to other banks than those of the next: rows are swizzled
        row, column = thread // across, thread % across * _AT_ONCE
        places = [(row + down, column + right) for right in range(0, columns, _PIECE) for down in range(0, ROWS, rows)]
        read = cute.make_copy_atom(CopyUniversalOp(), of.stored, num_bits_per_copy=128)
        write = cute.make_copy_atom(CopyUniversalOp(), Float16, num_bits_per_copy=128)
        held = cute.make_rmem_tensor((_AT_ONCE, len(places)), of.stored)
        pipe_raw.consumer_wait(raw_state)
        for i in range_constexpr(len(places)):
            source = cute.domain_offset((*places[i], raw_state.index), raw).iterator.with_alignment(16)
            cute.copy(read, cute.make_tensor(source, cute.make_layout((_AT_ONCE,))), held[None, i])
        # what was read is here before the copy engine may write again
        arch.fence_proxy("async.shared", space="cta")
        pipe_raw.consumer_release(raw_state)
        pipe.producer_acquire(state)
        halves = cute.make_rmem_tensor((_AT_ONCE,), Float16)
        words = cute.recast_tensor(halves, Int32)
        for i in range_constexpr(len(places)):
            narrow = cute.recast_tensor(held[None, i], Int32)
            for word in range_constexpr(_AT_ONCE // 4):
                words[2 * word], words[2 * word + 1] = widened(narrow[word], of.stored)
            for j in range_constexpr(2):
                to = cute.domain_offset((places[i][0], places[i][1] + 8 * j, state.index), tiles).iterator
                eight = cute.make_tensor(halves.iterator + 8 * j, cute.make_layout((8,)))
                cute.copy(write, eight, cute.make_tensor(to.with_alignment(16), cute.make_layout((8,))))
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_warp()
        if arch.lane_idx() == 0:
            pipe.producer_commit(state)
