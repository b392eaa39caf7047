"""What a warp group does with a block of latents: its scores and weights, and what weights, its own or the other's, add to its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Constexpr, Float32, Int32, const_expr, cute, pipeline, range_constexpr
from ... import range as dynamic_range
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp, warp, warpgroup
from ..attentions.epilogue import LN_2
from ..attentions.steps import hiding
from ..attentions.tile import only_here
from .forward import BARRIERS, GroupSteps
from .plan import GROUP, ROWS
from .shares import KEYS

if TYPE_CHECKING:
    from .hopper import LatentForward

_SLACK = 8.0
"""So far, in powers of two, a score may exceed what counts as a row's maximum."""
_WEIGHTS = BARRIERS
"""Named barriers: weights of a block are there (two)."""
_EIGHT = 8
"""Columns of queries that a thread converts at once."""
_HIGHEST = 141
"""The exponent of f32 that rows of queries are scaled to: 2 ** 14."""


@cute.jit
def room(most: Float32):
    """The exponent of the power of two with which a row of queries, the largest of which is given, is multiplied before it is made f16."""
    return max(Int32(1), min(Int32(253), 127 + _HIGHEST - (most.bitcast(Int32) >> 23)))


@cute.jit
def lower(before: Float32, most: Float32, scale: Float32):
    """What powers are relative to, negative: the largest score, if it exceeds what it was before by much, so that sums are seldom scaled."""
    return -(most * scale) if cute.math.fma(most, scale, before) > _SLACK else before


def _eights(dtype: Any) -> Any:
    return cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=_EIGHT * dtype.width)


class Steps(GroupSteps):
    """The steps of warp group `group`, 0 or 1: it has that half of the columns of the outputs, and the blocks of keys in that one of the two
    buffers are its own."""

    def __init__(
        self, of: LatentForward, group: Any, tiles: Any, exchanged: Any, pipes: Any, scale: Any, factor: Any, queries: Any,
    ) -> None:  # fmt: skip
        self.of, self.group, self.factor = of, group, factor
        self.queries, self.given_queries, self.row_scales = queries
        self.scale = scale if factor is None else hiding(scale * factor[0])
        self.pipe_half, self.pipe_rope = pipes
        self.references, self.all_totals = exchanged
        tile_q, tile_q_rope, self.ring, ring_rope, ring_v = tiles
        thread = arch.thread_idx()[0] % GROUP
        self.mma_scores, self.mma_own, self.mma_others = of.mma_scores(), of.mma_outputs(True), of.mma_outputs(False)
        scores, outputs = self.mma_scores.get_slice(thread), self.mma_others.get_slice(thread)
        self.q, self.q_rope = (self.mma_scores.make_fragment_A(scores.partition_A(x)) for x in (tile_q, tile_q_rope))
        self.k, self.k_rope = (self.mma_scores.make_fragment_B(scores.partition_B(x)) for x in (self.ring, ring_rope))
        self.v = self.mma_others.make_fragment_B(outputs.partition_B(ring_v))
        self.given_weights = self.mma_others.make_fragment_A(outputs.partition_A(ring_rope))
        self.weight_tiles = ring_rope
        self.acc = cute.make_rmem_tensor(self.mma_scores.partition_shape_C((ROWS, KEYS)), Float32)
        self.sums = cute.make_rmem_tensor(self.mma_own.partition_shape_C((ROWS, of.half)), Float32)
        self.own_weights = cute.make_rmem_tensor(((2, 2, 2), 1, KEYS // 16), of.operand)
        self.lowered, self.totals, self.factors = (cute.make_rmem_tensor((2,), Float32) for _ in range(3))

    @cute.jit
    def convert_queries(self):
        """Make f16 of queries where they are, scaled with powers of two, one for each row, for which f16 has room: four threads to a row."""
        thread, of = only_here(arch.thread_idx()[0]) - GROUP, self.of
        row, first = thread // 4, thread % 4 * _EIGHT
        tiles, columns = cute.size(self.queries, mode=[2]), cute.size(self.queries, mode=[1])
        most = Float32(0.0)
        for start in dynamic_range(0, tiles * columns, 4 * _EIGHT, unroll=1):
            values = self.eight(self.given_queries, row, start % columns + first, start // columns)
            for i in range_constexpr(_EIGHT):
                most = arch.fmax(most, arch.fmax(values[i], -values[i]))
        for distance in (1, 2):
            most = arch.fmax(most, arch.shuffle_sync_bfly(most, offset=distance))
        up = room(most)
        for start in dynamic_range(0, tiles * columns, 4 * _EIGHT, unroll=1):
            place = row, start % columns + first, start // columns
            values, rounded = self.eight(self.given_queries, *place), cute.make_rmem_tensor((_EIGHT,), of.operand)
            rounded.store((values.load() * (up << 23).bitcast(Float32)).to(of.operand))
            cute.copy(_eights(of.operand), rounded, self.places(self.queries, *place))
        if first == 0:
            self.row_scales[row] = hiding(((254 - up) << 23).bitcast(Float32) * self.scale)
        arch.fence_proxy("async.shared", space="cta")
        self.meet_both()

    def places(self, tile: Any, row: Any, column: Any, index: Any) -> Any:
        """Eight columns of a row."""
        place = cute.domain_offset((row, column, index), tile).iterator.with_alignment(16)
        return cute.make_tensor(place, cute.make_layout((_EIGHT,)))

    def eight(self, tile: Any, row: Any, column: Any, index: Any) -> Any:
        """What is there, as f32."""
        held, values = (cute.make_rmem_tensor((_EIGHT,), dtype) for dtype in (self.of.dtype, Float32))
        cute.copy(_eights(self.of.dtype), self.places(tile, row, column, index), held)
        values.store(held.load().to(Float32))
        return values

    def begin_scores(self, count: Any, parts: range) -> None:
        """Begin some parts of the scores of a block: those of the pieces of its halves, the half that is loaded first in front, and of the
        last columns; before the second half, if latents are widened."""
        pipe, of, group = self.pipe_half, self.of, self.here(self.group)
        for part in parts:
            number, piece = of.parts_of_scores[part]
            if number < 2:
                half = group ^ number
                pipe.consumer_wait(of.state(count, group, 2, half, piece=piece))
                each = of.half // of.pieces // 16
                steps, place = range(piece * each, (piece + 1) * each), of.place(count, group, half)[0]
                operands = ((self.q[None, None, k, half], self.k[None, None, k, place]) for k in steps)
            else:
                self.pipe_rope.consumer_wait(of.state(count, group, 1, 0))
                steps = range(cute.size(self.q_rope, mode=[2]))
                operands = ((self.q_rope[None, None, k, 0], self.k_rope[None, None, k, group]) for k in steps)
            if part == parts[0]:
                warpgroup.fence()
            for n, (queries, keys) in enumerate(operands):
                self.mma_scores.set(warpgroup.Field.ACCUMULATE, part > 0 or n > 0)
                cute.gemm(self.mma_scores, self.acc, queries, keys, self.acc)
        warpgroup.commit_group()

    def end_scores(self) -> None:
        """Wait for them, in all threads of the warp group: weights are put where some of the keys were."""
        warpgroup.wait_group(0)
        self.meet()

    def begin_others(self, count: Any) -> None:
        """Begin to add what the other warp group's weights of a block give."""
        group = self.here(self.group)
        other = 1 - group
        pipeline.NamedBarrier(_WEIGHTS + other, 2 * GROUP).arrive_and_wait()
        row = self.row()
        for half in range(2):
            now = self.references[row + 8 * half, other]
            self.factors[half] = arch.exp2(now - self.lowered[half])
            self.totals[half] = self.totals[half] * self.factors[half]
            self.lowered[half] = now
        self.rescale(self.of.early > 0)
        warpgroup.fence()
        self.mma_others.set(warpgroup.Field.ACCUMULATE, True)
        place = self.of.place(count, other, group)[0]
        for k in range(KEYS // 16):
            weights, values = self.given_weights[None, None, k, other], self.v[None, None, k, place]
            cute.gemm(self.mma_others, self.sums, weights, values, self.sums)
        warpgroup.commit_group()

    @cute.jit
    def end_others(self, count: Any, some: Any = True, later: Constexpr = 0):
        """Wait for that, but not for so many products that were begun `later`, and let the block's columns and weights be overwritten, if there is
        `some` block. Loads wait for this: which mbarriers they are is known before, and behind a branch is nothing but the arrivals."""
        group, of = self.here(self.group), self.of
        states = of.state(count, 1 - group, 2, group), of.state(count, 1 - group, 1, 0)
        pipes = self.pipe_half.sync_object_empty, self.pipe_rope.sync_object_empty
        half, rope = (pipe.get_barrier(self.here(state.index)) for pipe, state in zip(pipes, states, strict=True))
        warpgroup.wait_group(later)
        arch.sync_warp()  # one thread arrives for all of a warp
        for barrier in (*(half + piece for piece in range(of.pieces)), rope):
            if some & (arch.lane_idx() == 0):
                arch.mbarrier_arrive(barrier)

    def add_own(self, count: Any) -> None:
        """Add what the weights of a block give."""
        group = self.here(self.group)
        self.rescale()
        warpgroup.fence()
        self.mma_own.set(warpgroup.Field.ACCUMULATE, True)
        place = self.of.place(count, group, group)[0]
        for k in range(KEYS // 16):
            cute.gemm(self.mma_own, self.sums, self.own_weights[None, None, k], self.v[None, None, k, place], self.sums)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        self.release(count, group, group)

    def release(self, count: Any, buffer: Any, half: Any) -> None:
        """Let half of a block be overwritten."""
        for piece in range(self.of.pieces):
            self.pipe_half.consumer_release(self.of.state(count, buffer, 2, half, piece=piece))

    def row(self) -> Any:
        """The first of the two rows that a thread has, 8 apart."""
        thread = only_here(arch.thread_idx()[0]) % GROUP
        return thread // 32 * 16 + thread % 32 // 4

    def of_row(self, half: int) -> Any:
        """What a thread has of its first or second row: two columns of each eight."""
        layout = cute.make_layout((2, self.of.half // 8), stride=(1, 4))
        return cute.make_tensor(self.sums.iterator + 2 * half, layout)

    @cute.jit
    def rescale(self, begun: Constexpr = False):
        """Scale what was summed by what the references have changed, if those of a warp have; products that were `begun` are waited for."""
        if arch.vote_any_sync((self.factors[0] != 1.0) | (self.factors[1] != 1.0)):
            if const_expr(begun):
                warpgroup.wait_group(0)
            self.scale_sums()

    def scale_sums(self) -> None:
        """Scale what was summed."""
        self.sums.store(self.sums.load() * self.factors.load().reshape(((1, 2, 1), 1, 1)))

    @cute.jit
    def weights(self, count: Int32, there: Int32, which: Any):
        """Scores to weights, for this warp group and, with their references, for the other. `there`: keys of the sequence from the block's
        first on."""
        if there - KEYS < which.hidden:
            self.mask(there, which)
        if there < KEYS:
            self.clear(count, there)
        self.powers()
        self.own_weights.store(self.acc.load().to(self.of.operand).reshape(self.own_weights.shape))
        row = self.row()
        if arch.lane_idx() % 4 == 0:
            for half in range_constexpr(2):
                self.references[row + 8 * half, self.group] = self.lowered[half]
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.of.operand)
        write = cute.make_tiled_copy_S(atom, cute.make_tiled_copy_C_atom(atom, self.mma_scores))
        writer = write.get_slice(only_here(arch.thread_idx()[0]) % GROUP)
        rounded = cute.make_tensor(self.own_weights.iterator, cute.make_layout(self.acc.shape))
        tile = self.weight_tiles[None, None, self.group]
        cute.copy(write, write.retile(rounded), writer.partition_D(tile))
        arch.fence_proxy("async.shared", space="cta")
        pipeline.NamedBarrier(_WEIGHTS + self.group, 2 * GROUP).arrive()

    @cute.jit
    def mask(self, there: Int32, which: Any):
        """Hide the keys that a query does not see: those after its own."""
        numbers = which.numbers
        column, hidden = arch.lane_idx() % 4 * 2, Float32(-float("inf"))
        for half in range_constexpr(2):
            query = min(which.tile * ROWS + self.row() + 8 * half, which.rows - 1) // numbers.heads
            end = min(there, there - numbers.hidden + query) - column
            for n in range_constexpr(KEYS // 8):
                for c in range_constexpr(2):
                    value = self.acc[(c, half, n), 0, 0]
                    self.acc[(c, half, n), 0, 0] = value if end > 8 * n + c else hidden

    @cute.jit
    def clear(self, count: Int32, there: Int32):
        """Put zeros in the place of values that do not exist, where anything may be: what is weighted with zero must be a number."""
        thread = only_here(arch.thread_idx()[0]) % GROUP
        for row in range(max(there, Int32(0)), KEYS):
            for i in range_constexpr(self.of.dim_v // GROUP):
                half, column = (i * GROUP + thread) // self.of.half, (i * GROUP + thread) % self.of.half
                self.ring[row, column, self.of.place(count, self.group, half)[0]] = self.of.operand(0.0)
        arch.fence_proxy("async.shared", space="cta")
        self.meet()

    def powers(self) -> None:
        """Scores to powers of two, relative to the largest of their row so far; what was summed of them before is scaled."""
        chains = [(c, half) for half in range(2) for c in range(2)]
        highest = {chain: self.acc[(*chain, 0), 0, 0] for chain in chains}
        for n in range(1, KEYS // 8):
            for chain in chains:
                highest[chain] = arch.fmax(highest[chain], self.acc[(*chain, n), 0, 0])
        for half in range(2):
            most = arch.fmax(highest[0, half], highest[1, half])
            for distance in (1, 2):
                most = arch.fmax(most, arch.shuffle_sync_bfly(most, offset=distance))
            before = self.lowered[half]
            scale = self.scale if self.of.operand is self.of.dtype else self.row_scales[self.row() + 8 * half]
            now = lower(before, most, scale)
            factor = arch.exp2(now - before)
            total = self.totals[half] * factor
            for n in range(KEYS // 8):
                for c in range(2):
                    power = arch.exp2(cute.math.fma(self.acc[(c, half, n), 0, 0], scale, now))
                    self.acc[(c, half, n), 0, 0] = power
                    total = total + power
            self.lowered[half], self.totals[half], self.factors[half] = now, total, factor

    @cute.jit
    def finish(
        self, turn: Int32, given: Any, sequence: Int32, slot: Int32, whole: Any, which: Any
    ):  # fmt: skip
        """Write the outputs, divided by the sums of all weights, or if these are of a part of the keys, a piece of them."""
        row, column = self.row(), only_here(arch.lane_idx()) % 4 * 2
        for half in range_constexpr(2):
            total = self.totals[half]
            for distance in (1, 2):
                total = total + arch.shuffle_sync_bfly(total, offset=distance)
            self.totals[half] = total
            if column == 0:
                self.all_totals[row + 8 * half, self.group, turn & 1] = total
        self.meet_both()
        for half in range_constexpr(2):
            other = self.all_totals[row + 8 * half, 1 - self.group, turn & 1]
            total = self.totals[half] + other
            own = which.tile * ROWS + row + 8 * half
            inverse, logarithm = Float32(0.0), Float32(-float("inf"))
            if total != 0.0:
                inverse = arch.rcp_approx(total)
                if const_expr(self.factor is not None):
                    inverse = inverse * self.factor[0]
                logarithm = cute.math.log2(total) - self.lowered[half]
            sums = self.of_row(half)
            sums.store(sums.load() * inverse)
            there = own < which.rows
            if whole:
                self.write(given.out[sequence, own, None], self.of.dtype, half, there)
                if const_expr(given.lse is not None):
                    if there and self.group == 0 and column == 0:
                        heads = which.numbers.heads
                        given.lse[sequence, own % heads, own // heads] = logarithm * LN_2
            else:
                self.write(given.pieces[slot, own, None], Float32, half, there)
                if there and self.group == 0 and column == 0:
                    given.pieces[slot, own, self.of.dim_v] = logarithm

    @cute.jit
    def write(self, row: Any, dtype: Constexpr, half: Constexpr, there: Any):
        """Write what this thread has of a row, if that is `there`: two of each eight columns. Of 16 bits these would be 16 bytes of four threads;
        memory takes 32 at once, and waits for the others. So two threads give each other what they have of every other eight."""
        own, thread = self.of_row(half), only_here(arch.lane_idx()) % 4
        values, each, start = own, 2, 2 * thread
        if const_expr(dtype.width == 16):
            values = cute.make_rmem_tensor(own.shape, dtype)
            values.store(own.load().to(dtype))
            each, start = 4, thread % 2 * 8 + thread // 2 * 4
            upper = thread % 2 == 1
            words = cute.recast_tensor(cute.make_tensor(values.iterator, cute.make_layout((cute.size(own),))), Int32)
            for i in range_constexpr(0, cute.size(words), 2):
                first, second = words[i], words[i + 1]
                got = arch.shuffle_sync_bfly(first if upper else second, offset=1)
                words[i] = got if upper else first
                words[i + 1] = second if upper else got
        if there:
            store = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=each * dtype.width)
            place = (row.iterator + (self.group * self.of.half + start)).with_alignment(each * dtype.width // 8)
            shape = each, self.of.half // (4 * each)
            held = cute.make_tensor(values.iterator, cute.make_layout(shape)) if const_expr(each == 4) else values
            cute.copy(store, held, cute.make_tensor(place, cute.make_layout(shape, stride=(1, 4 * each))))
