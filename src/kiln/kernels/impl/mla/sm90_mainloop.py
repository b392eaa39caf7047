"""What a warp group does with a block of latents: its scores and weights, and what weights, its own or the other's, add to its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Constexpr, Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .... import range as dynamic_range
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, warp, warpgroup
from ...parts.online_softmax import LN_2
from ...parts.online_softmax import nonzero_scale as hiding
from ...parts.rematerialize import rematerialized as only_here
from .sm90_config import GROUP, ROPE, ROPE_PART, ROWS
from .sm90_kv_tiles import BARRIERS, GroupSteps
from .split_kv_scheduler import KEYS

if TYPE_CHECKING:
    from .sm90 import LatentForward

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
        self, of: LatentForward, group: Any, tiles: Any, exchanged: Any, pipe: Any, scale: Any, factor: Any
    ) -> None:  # fmt: skip
        self.of, self.group, self.factor, self.pipe = of, group, factor, pipe
        self.scale = scale if factor is None else hiding(scale * factor[0])
        self.references, self.all_totals, self.row_scales = exchanged
        self.queries, self.given_queries, self.keys = tiles
        halves = cute.make_tensor(self.keys.iterator, of.columns(of.halves).outer)
        self.weight_tiles = cute.domain_offset((0, 0, of.halves * of.tiles), self.keys)
        thread = arch.thread_idx()[0] % GROUP
        self.mma_scores, self.mma_own, self.mma_others = of.mma_scores(), of.mma_outputs(True), of.mma_outputs(False)
        scores, outputs = self.mma_scores.get_slice(thread), self.mma_others.get_slice(thread)
        self.q = self.mma_scores.make_fragment_A(scores.partition_A(self.queries))
        self.k = self.mma_scores.make_fragment_B(scores.partition_B(self.keys))
        self.v = self.mma_others.make_fragment_B(outputs.partition_B(halves))
        self.given_weights = self.mma_others.make_fragment_A(outputs.partition_A(self.weight_tiles))
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

    def begin_scores(self, number: Any, begin: int, end: int) -> None:
        """Begin the scores that some of the tiles of a block give, in the order in which they are there."""
        before = 0
        for part, count in self.of.parts_of_scores:
            tiles = range(max(begin - before, 0), min(end - before, count))
            if tiles:
                self.scores_of(number, part, tiles, before + tiles.start == 0)
            before += count

    @cute.jit
    def scores_of(self, number: Any, part: Constexpr, tiles: Constexpr, starts: Constexpr):
        """Begin the scores that some tiles of a part of a block give; nothing was begun before, if that `starts`.

        This is a loop, all through which products are in flight: ptxas takes its time for each of them that there is in the code. Each
        turn is a group of its own, which it is for ptxas in any case. Where a half of a block comes at once there is no loop: if latents are
        widened it would take longer to run, and if there is but one tile it would have one turn."""
        of, group = self.of, self.here(self.group)
        if const_expr(part == ROPE_PART):
            self.pipe.sync_object_full.wait(of.stage_of_rope(group), number >> 1 & 1)
            self.scores_of_tile(2 * of.tiles, of.halves * of.tiles + group, True)
        else:
            half = group ^ part
            place, time = of.place(number, group, half)
            if const_expr(of.stages == 1):
                if const_expr(tiles.start == 0):
                    self.pipe.sync_object_full.wait(place, time & 1)
                for tile in range_constexpr(tiles.start, tiles.stop):
                    added = not starts or tile > tiles.start
                    self.scores_of_tile(half * of.tiles + tile, place * of.tiles + tile, added)
            else:
                for tile in dynamic_range(tiles.start, tiles.stop, 1, unroll=1):
                    self.pipe.sync_object_full.wait(place * of.tiles + tile, time & 1)
                    added = not starts or tile > tiles.start
                    self.scores_of_tile(half * of.tiles + tile, place * of.tiles + tile, added)

    def scores_of_tile(self, queries: Any, keys: Any, added: Any) -> None:
        """Begin the scores that a tile gives, and whether they are added to what there is."""
        warpgroup.fence()
        for k in range(ROPE // 16):
            self.mma_scores.set(warpgroup.Field.ACCUMULATE, added if k == 0 else True)
            cute.gemm(self.mma_scores, self.acc, self.q[None, None, k, queries], self.k[None, None, k, keys], self.acc)
        warpgroup.commit_group()

    def end_scores(self) -> None:
        """Wait for them, in all threads of the warp group: weights are put where some of the keys were."""
        warpgroup.wait_group(0)
        self.meet()

    @cute.jit
    def begin_others(self, count: Any):
        """Begin to add what the other warp group's weights of a block give."""
        group, row = self.here(self.group), self.row()
        other = 1 - group
        pipeline.NamedBarrier(_WEIGHTS + other, 2 * GROUP).arrive_and_wait()
        for half in range_constexpr(2):
            now = self.references[row + 8 * half, other]
            self.factors[half] = arch.exp2(now - self.lowered[half])
            self.totals[half] = self.totals[half] * self.factors[half]
            self.lowered[half] = now
        self.rescale(self.of.early > 0)
        self.mma_others.set(warpgroup.Field.ACCUMULATE, True)
        place = self.of.place(count, other, group)[0]
        for k in dynamic_range(0, KEYS // 16, 1, unroll=1):
            weights, values = self.given_weights[None, None, k, other], self.v[None, None, k, place]
            warpgroup.fence()
            cute.gemm(self.mma_others, self.sums, weights, values, self.sums)
            warpgroup.commit_group()

    def barriers_of_others(self, count: Any) -> list[Any]:
        """The mbarriers of a block of the other warp group. Loads wait for what arrives there, and it is known before."""
        group, of = self.here(self.group), self.of
        stages = of.place(count, 1 - group, group)[0] * of.stages, of.stage_of_rope(1 - group)
        return [self.pipe.sync_object_empty.get_barrier(self.here(stage)) for stage in stages]

    @cute.jit
    def end_others(self, barriers: Any, some: Any, later: Constexpr):
        """Wait for that, but not for so many groups of products that were begun `later`, and let the block's columns and weights be overwritten, if
        there is `some` block."""
        warpgroup.wait_group(later)
        arch.sync_warp()  # one thread arrives for all of a warp
        for barrier in barriers:
            if some & (arch.lane_idx() == 0):
                arch.mbarrier_arrive(barrier)

    def add_own(self, count: Any) -> None:
        """Add what the weights of a block give, and let its columns be overwritten."""
        group, of = self.here(self.group), self.of
        self.rescale()
        warpgroup.fence()
        self.mma_own.set(warpgroup.Field.ACCUMULATE, True)
        place, time = of.place(count, group, group)
        for k in range(KEYS // 16):
            cute.gemm(self.mma_own, self.sums, self.own_weights[None, None, k], self.v[None, None, k, place], self.sums)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        stages = of.halves * of.stages + 2
        self.pipe.consumer_release(pipeline.PipelineState(stages, 0, place * of.stages, time & 1))

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
                tile = self.of.place(count, self.group, half)[0] * self.of.tiles + column // ROPE
                self.keys[row, column % ROPE, tile] = self.of.operand(0.0)
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
            total = self.totals[half] + self.all_totals[row + 8 * half, 1 - self.group, turn & 1]
            self.totals[half], self.factors[half] = total, Float32(0.0)
            if total != 0.0:
                self.factors[half] = arch.rcp_approx(total)
                if const_expr(self.factor is not None):
                    self.factors[half] = self.factors[half] * self.factor[0]
        self.scale_sums()
        for half in range_constexpr(2):
            own = which.tile * ROWS + row + 8 * half
            if whole:
                self.write(given.out[sequence, own, None], self.of.dtype, half, own < which.rows)
            else:
                self.write(given.pieces[slot, own, None], Float32, half, own < which.rows)
        # two of the four threads of a row, and of that 8 behind it, have a logarithm each
        second = column == 2
        total, lowered = self.totals[1] if second else self.totals[0], self.lowered[1] if second else self.lowered[0]
        own = which.tile * ROWS + row + 4 * column
        if own < which.rows and self.group == 0 and column <= 2:
            logarithm = cute.math.log2(total) - lowered if total != 0.0 else Float32(-float("inf"))
            if whole:
                if const_expr(given.lse is not None):
                    heads = which.numbers.heads
                    given.lse[sequence, own % heads, own // heads] = logarithm * LN_2
            else:
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
