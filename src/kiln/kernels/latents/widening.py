"""Latents of 8 bits: a warp group makes those of 16 bits of them that the tensor cores multiply with queries.

They come into the second half of the memory that is theirs then. All threads read what they convert before any writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float16, Int32, cute, pipeline, range_constexpr
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp
from ..common.narrow_floats import widened
from .plan import GROUP, ROWS

if TYPE_CHECKING:
    from .hopper import LatentForward

_BARRIER = 6
_AT_ONCE = 16
"""Elements of 8 bits that a thread reads at once."""


def tma_pipe(stages: int, warps: int, size: int) -> Any:
    """Buffers that the copy engine fills, and so many warps use."""
    return pipeline.PipelineTmaAsync.create(
        num_stages=stages,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, warps),
        tx_count=size,
        defer_sync=True,
    )


def thread_pipe(stages: int) -> Any:
    """Buffers that a warp group fills, and another uses."""
    group = pipeline.CooperativeGroup(pipeline.Agent.Thread, GROUP)
    return pipeline.PipelineAsync.create(num_stages=stages, producer_group=group, consumer_group=group, defer_sync=True)


def raw_layout(columns: int, buffers: int) -> Any:
    """Rows and columns of a tile, as far apart as those that are made of them."""
    return cute.make_layout((ROWS, columns, buffers), stride=(columns, 1, 2 * ROWS * columns))


def raw_tiles(ring: Any, columns: int, stored: Any) -> Any:
    """The tiles of 8 bits in a ring: in the second half of each buffer."""
    place = cute.recast_ptr(ring.iterator, dtype=stored) + ROWS * columns
    return cute.make_tensor(place, raw_layout(columns, cute.size(ring, mode=[2])))


class Widen:
    """Converts blocks of keys: of halves and of last columns the ring, the tiles of 8 bits in it, and the pipelines of both."""

    __kiln_immutable__ = True

    def __init__(self, of: LatentForward, rings: Any) -> None:
        self.of, self.rings = of, rings

    def block(self, count: Any) -> None:
        """Convert a block, the `count`th of all."""
        halves, rope = self.rings
        for number in range(2):
            # of the half that its warp group begins with
            half = (count & 1) ^ number
            self.part(halves, self.of.half, self.of.state(count, count & 1, 2, half))
        self.part(rope, ROWS, self.of.state(count, count & 1, 1, 0))

    @cute.jit
    def part(self, ring: Any, columns: int, state: Any):
        """Convert some columns."""
        tiles, raw, pipe, pipe_raw = ring
        thread = arch.thread_idx()[0] % GROUP
        across = columns // _AT_ONCE
        times = ROWS * across // GROUP
        read = cute.make_copy_atom(CopyUniversalOp(), self.of.stored, num_bits_per_copy=128)
        write = cute.make_copy_atom(CopyUniversalOp(), self.of.dtype, num_bits_per_copy=128)
        held = cute.make_rmem_tensor((_AT_ONCE, times), self.of.stored)
        pipe_raw.consumer_wait(state)
        for i in range_constexpr(times):
            number = i * GROUP + thread
            row, column = number // across, number % across * _AT_ONCE
            place = cute.domain_offset((row, column, state.index), raw).iterator.with_alignment(16)
            cute.copy(read, cute.make_tensor(place, cute.make_layout((_AT_ONCE,))), held[None, i])
        pipeline.NamedBarrier(_BARRIER, GROUP).arrive_and_wait()
        halves, wide = (cute.make_rmem_tensor((_AT_ONCE,), dtype) for dtype in (Float16, self.of.dtype))
        words = cute.recast_tensor(halves, Int32)
        for i in range_constexpr(times):
            number = i * GROUP + thread
            row, column = number // across, number % across * _AT_ONCE
            narrow = cute.recast_tensor(held[None, i], Int32)
            for word in range_constexpr(_AT_ONCE // 4):
                words[2 * word], words[2 * word + 1] = widened(narrow[word], self.of.stored)
            wide.store(halves.load().to(self.of.dtype))
            for j in range_constexpr(2):
                place = cute.domain_offset((row, column + 8 * j, state.index), tiles).iterator.with_alignment(16)
                eight = cute.make_tensor(wide.iterator + 8 * j, cute.make_layout((8,)))
                cute.copy(write, eight, cute.make_tensor(place, cute.make_layout((8,))))
        arch.fence_proxy("async.shared", space="cta")
        pipe.producer_commit(state)
