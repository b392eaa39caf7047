"""Conversion of an 8-bit KV cache to f16 by a warpgroup, for the MMAs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .... import Constexpr, Float16, Int32, const_expr, cute, pipeline, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...parts.fp8 import widened
from .sm90_config import Q_TILE, ROPE_PART, WARPGROUP

if TYPE_CHECKING:
    from .... import Boolean
    from .sm90 import Sm90MlaKernel
    from .sm90_kv_tiles import MlaBuffers

_AT_ONCE = 16
"""8-bit elements that a thread reads at once."""
_PIECE = 64
"""Columns that lie side by side."""


@dataclasses.dataclass(frozen=True, eq=False)
class WarpPipeline(pipeline.PipelineAsync):
    """A pipeline whose stages one thread of each consumer warp releases."""

    is_signaling_thread: Boolean | None = None


def warp_pipe(stages: int) -> WarpPipeline:
    """Return a pipeline that one warpgroup fills and another empties: one thread arrives for a warp."""
    group = pipeline.CooperativeGroup(pipeline.Agent.Thread, WARPGROUP // 32)
    pipe = WarpPipeline.create(num_stages=stages, producer_group=group, consumer_group=group, defer_sync=True)
    return dataclasses.replace(pipe, is_signaling_thread=arch.lane_idx() == 0)


def raw_layout(columns: int, buffers: int) -> cute.Layout:
    """Return the layout of a tile as TMA loads it: 64 columns side by side, so that 8 threads, four to a row, read all
    banks."""
    shape = (Q_TILE, (_PIECE, columns // _PIECE), buffers)
    strides = (_PIECE, (1, Q_TILE * _PIECE), Q_TILE * columns)
    return cute.make_layout(shape, stride=strides)


class Fp8Converter:
    """Converts 8-bit KV tiles in shared memory to f16 tiles, from one pipeline to another."""

    __kiln_immutable__ = True

    def __init__(
        self, kernel: Sm90MlaKernel, buffers: MlaBuffers, pipe: WarpPipeline, pipe_raw: pipeline.PipelineTmaAsync
    ) -> None:
        self.kernel = kernel
        self.pipe = pipe
        self.pipe_raw = pipe_raw
        kv = buffers.kv
        raw = buffers.loaded_kv
        # halves and RoPE columns, with their sources
        halves = cute.make_tensor(kv.iterator, kernel.tile_layout(kernel.half, kernel.halves).outer)
        raw_halves = cute.make_tensor(raw.iterator, raw_layout(kernel.half, 2))
        rope = cute.domain_offset((0, 0, kernel.halves * kernel.tiles), kv)
        self.tiles: tuple[tuple[cute.Tensor, cute.Tensor], tuple[cute.Tensor, cute.Tensor]] = (
            (halves, raw_halves),
            (rope, cute.domain_offset((0, 0, 2 * kernel.tiles), raw)),
        )

    def process_tile(self, count: Int32 | int) -> None:
        """Convert KV tile `count`, in the order in which its warpgroup needs it."""
        for part, _ in self.kernel.qk_parts:
            self.part(count, part)

    @cute.jit
    def part(self, count: Int32 | int, part: Constexpr):
        """Convert the half that is needed first (0), the other (1), or the RoPE columns."""
        kernel = self.kernel
        group = count & 1
        thread = arch.thread_idx()[0] % WARPGROUP
        raw_stage, raw_phase, _, _ = kernel.raw_stage(count, Int32(part))
        if const_expr(part == ROPE_PART):
            tiles, raw = self.tiles[1]
            columns = _PIECE
            index = group
            raw_index = group
            stage = kernel.rope_stage(group)
            phase = count >> 1 & 1
        else:
            tiles, raw = self.tiles[0]
            columns = kernel.half
            raw_index = part
            index, time = kernel.stage_of(count, group, group ^ part)
            stage = index
            phase = time & 1
        raw_state = pipeline.PipelineState(4, 0, raw_stage, raw_phase)
        state = pipeline.PipelineState(kernel.halves + 2, 0, stage, phase ^ 1)
        across = _PIECE // _AT_ONCE
        rows = WARPGROUP // across
        # of 8 threads four have a row, and write to other banks than those of the next: rows are swizzled
        row = thread // across
        column = thread % across * _AT_ONCE
        places = [
            (row + down, column + right) for right in range(0, columns, _PIECE) for down in range(0, Q_TILE, rows)
        ]
        read = cute.make_copy_atom(CopyUniversalOp(), kernel.cache_dtype, num_bits_per_copy=128)
        write = cute.make_copy_atom(CopyUniversalOp(), Float16, num_bits_per_copy=128)
        held = cute.make_rmem_tensor((_AT_ONCE, len(places)), kernel.cache_dtype)
        self.pipe_raw.consumer_wait(raw_state)
        for i in range_constexpr(len(places)):
            source = cute.domain_offset((*places[i], raw_index), raw).iterator.with_alignment(16)
            cute.copy(read, cute.make_tensor(source, cute.make_layout((_AT_ONCE,))), held[None, i])
        # reads complete before TMA may write again
        arch.fence_proxy("async.shared", space="cta")
        self.pipe_raw.consumer_release(raw_state)
        self.pipe.producer_acquire(state)
        halves = cute.make_rmem_tensor((_AT_ONCE,), Float16)
        words = cute.recast_tensor(halves, Int32)
        for i in range_constexpr(len(places)):
            narrow = cute.recast_tensor(held[None, i], Int32)
            for word in range_constexpr(_AT_ONCE // 4):
                words[2 * word], words[2 * word + 1] = widened(narrow[word], kernel.cache_dtype)
            for j in range_constexpr(2):
                to = cute.domain_offset((places[i][0], places[i][1] + 8 * j, index), tiles).iterator
                eight = cute.make_tensor(halves.iterator + 8 * j, cute.make_layout((8,)))
                cute.copy(write, eight, cute.make_tensor(to.with_alignment(16), cute.make_layout((8,))))
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_warp()
        if arch.lane_idx() == 0:
            self.pipe.producer_commit(state)
