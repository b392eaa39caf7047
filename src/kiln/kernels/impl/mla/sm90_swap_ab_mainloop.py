"""What a warp group does with a block of latents as rows of products: its scores, weights, and outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Constexpr, Float32, Int32, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, warp, warpgroup
from ....utils import sm90
from ...parts.online_softmax import LN_2
from ...parts.rematerialize import rematerialized as only_here
from .sm90_config import GROUP
from .sm90_kv_tiles import GroupSteps
from .sm90_mainloop import lower
from .split_kv_scheduler import KEYS

if TYPE_CHECKING:
    from .sm90_swap_ab import TurnedForward

_WIDTH = 4
"""Columns of outputs that a thread writes at once."""
_ROWS = 4
"""Rows of which a thread puts sums together at once."""


class TurnedSteps(GroupSteps):
    """The steps of warp group `group`, 0 or 1."""

    def __init__(self, of: TurnedForward, group: Any, tiles: Any, exchanged: Any, pipe: Any, scale: Any) -> None:
        self.of, self.group, self.pipe, self.scale = of, group, pipe, scale
        self.highest, self.all_totals, self.references = exchanged
        self.tile_q, self.ring, self.tile_p = tiles
        thread = arch.thread_idx()[0] % GROUP
        self.mma_scores, self.mma_outputs = self.products()
        scores, outputs = self.mma_scores.get_slice(thread), self.mma_outputs.get_slice(thread)
        self.q = self.mma_scores.make_fragment_B(scores.partition_B(self.tile_q))
        self.p = self.mma_outputs.make_fragment_B(outputs.partition_B(self.tile_p))
        self.partition(scores, outputs)
        self.acc = cute.make_rmem_tensor(self.mma_scores.partition_shape_C((KEYS, of.rows)), Float32)
        self.sums = cute.make_rmem_tensor(self.mma_outputs.partition_shape_C((of.dim_v, of.rows)), Float32)
        # of the rows that a thread has, two of each eight
        self.lowered, self.totals, self.factors = (cute.make_rmem_tensor((of.rows // 4,), Float32) for _ in range(3))
        # sums of the last blocks, in the memory of their latents: column, row, buffer
        words, self.at_once = of.piece_bytes // 4, min(of.rows, of.piece_bytes // 4 // KEYS)
        self.summed = self.memory(Float32, (KEYS, self.at_once), words)
        # the same memory as words of a key
        self.words = self.memory(Int32, (words // KEYS, KEYS), words)

    def memory(self, dtype: Any, shape: tuple[int, int], each: int) -> Any:
        """The memory of latents as something else: tiles of a shape, buffers."""
        layout = cute.make_layout((*shape, self.of.buffers), stride=(1, shape[0], each))
        return cute.make_tensor(cute.recast_ptr(self.ring.iterator, dtype=dtype), layout)

    def products(self) -> tuple[Any, Any]:
        """The products of latents and queries, and of values and weights."""
        of, along, across = self.of, warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN
        return tuple(
            sm90.make_trivial_tiled_mma(of.operand, of.operand, major, along, Float32, (1, 1, 1), (KEYS, of.rows))
            for major in (along, across)
        )  # pyright: ignore[reportReturnType]

    def partition(self, scores: Any, outputs: Any) -> None:
        """Latents as left operands of both products."""
        values = cute.make_tensor(self.ring.iterator, self.of.values().outer)
        self.k = self.mma_scores.make_fragment_A(scores.partition_A(self.ring))
        self.v = self.mma_outputs.make_fragment_A(outputs.partition_A(values))

    def block(self, count: Any, there: Any, which: Any, again: Any) -> None:
        """All that is done with a block, the `count`th of all. `there`: keys of the sequence from its first on; `again`: whether this warp
        group has one more."""
        self.scores(count)
        self.weights(count, there, which)
        self.outputs(count, again)

    def scores(self, count: Any) -> None:
        """The scores of a block."""
        count, first = self.here(count), self.here(Int32(0))
        for piece in range(self.of.pieces):
            state = self.of.state(count, piece)
            self.pipe.consumer_wait(state)
            if piece == 0:
                warpgroup.fence()
            for k in range(4):
                self.mma_scores.set(warpgroup.Field.ACCUMULATE, piece > 0 or k > 0)
                keys, queries = self.k[None, None, k, state.index], self.q[None, None, 4 * piece + k, first]
                cute.gemm(self.mma_scores, self.acc, keys, queries, self.acc)
        warpgroup.commit_group()
        warpgroup.wait_group(0)

    def outputs(self, count: Any, again: Any) -> None:
        """Add what the weights of a block give; and let it be overwritten, if this warp group has blocks `again`."""
        count = self.here(count)
        self.rescale()
        self.add(count)
        warpgroup.wait_group(0)
        self.release(count, again)

    def add(self, count: Any) -> None:
        """Begin to add what the weights of a block give."""
        group = self.here(self.group)
        warpgroup.fence()
        self.mma_outputs.set(warpgroup.Field.ACCUMULATE, True)
        for piece in range(self.of.pieces - 1):
            index, sums = self.of.state(count, piece).index, self.sums_of(piece)
            for k in range(4):
                cute.gemm(self.mma_outputs, sums, self.v[None, None, k, index], self.p[None, None, k, group], sums)
        warpgroup.commit_group()

    def sums_of(self, piece: int) -> Any:
        """What was summed of the columns of a piece."""
        return cute.make_tensor(self.sums.iterator + piece * cute.size(self.acc), cute.make_layout(self.acc.shape))

    @cute.jit
    def release(self, count: Any, wanted: Any):
        """Let a block be overwritten."""
        if wanted:
            for piece in range_constexpr(self.of.pieces):
                self.pipe.consumer_release(self.of.state(count, piece))

    def lane(self) -> Any:
        """The thread in its warp: a value that exists from here on only."""
        return only_here(arch.lane_idx())

    def key(self) -> Any:
        """The first of the two keys of a block that a thread has, 8 apart."""
        thread = only_here(arch.thread_idx()[0]) % GROUP
        return thread // 32 * 16 + thread % 32 // 4

    @cute.jit
    def rescale(self):
        """Scale what was summed by what the references have changed, if those of a warp have."""
        changed = self.factors[0] != 1.0
        for i in range_constexpr(1, self.of.rows // 4):
            changed = changed | (self.factors[i] != 1.0)
        if arch.vote_any_sync(changed):
            layout = cute.make_layout((2, self.of.pieces - 1), stride=(2, cute.size(self.acc)))
            for i in range_constexpr(self.of.rows // 4):
                of_row = cute.make_tensor(self.sums.iterator + (i % 2 + i // 2 * 4), layout)
                of_row.store(of_row.load() * self.factors[i])

    @cute.jit
    def weights(self, count: Int32, there: Int32, which: Any):
        """Scores to weights, in shared memory. `there`: keys of the sequence from the block's first on."""
        if there - KEYS < which.hidden:
            self.mask(there, which)
        self.find_highest()
        if there < KEYS:
            self.clear(count, there)
        self.powers()
        rounded = cute.make_rmem_tensor(self.acc.shape, self.of.operand)
        rounded.store(self.acc.load().to(self.of.operand))
        # (row, key) in shared memory, written as (key, row)
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(True, 4), self.of.operand)
        write = cute.make_tiled_copy_C(atom, self.mma_scores)
        writer = write.get_slice(only_here(arch.thread_idx()[0]) % GROUP)
        tile = self.tile_p[None, None, self.here(self.group)]
        turned = cute.make_tensor(tile.iterator, cute.select(tile.layout, mode=[1, 0]))
        cute.copy(write, write.retile(rounded), writer.partition_D(turned))
        arch.fence_proxy("async.shared", space="cta")
        self.meet()

    @cute.jit
    def mask(self, there: Int32, which: Any):
        """Hide the keys that a query does not see: those after its own."""
        tile, rows, numbers = which.tile, which.rows, which.numbers
        first = self.lane() % 4 * 2 + tile * self.of.rows
        key = self.key()
        for i in range_constexpr(self.of.rows // 4):
            query = min(first + 8 * (i // 2) + i % 2, rows - 1) // numbers.heads
            end = min(there, there - numbers.hidden + query)
            for half in range_constexpr(2):
                at = (i % 2, half, i // 2), 0, 0
                value = self.acc[at]
                self.acc[at] = value if key + 8 * half < end else Float32(-float("inf"))

    @cute.jit
    def clear(self, count: Int32, there: Int32):
        """Put zeros in the place of values that do not exist, where anything may be: what is weighted with zero must be a number."""
        thread = only_here(arch.thread_idx()[0]) % GROUP
        across = cute.size(self.words, mode=[0])  # words of a key in a piece
        each = across * (self.of.pieces - 1)
        for i in range(max(there, Int32(0)) * each + thread, KEYS * each, GROUP):
            key, word = i // each, i % each
            self.words[word % across, key, self.of.state(count, word // across).index] = Int32(0)

    @cute.jit
    def find_highest(self):
        """The highest scores of each warp's keys, in shared memory."""
        lane, own, group = self.lane(), self.key() // 16, self.here(self.group)
        for i in range_constexpr(self.of.rows // 4):
            most = arch.fmax(self.acc[(i % 2, 0, i // 2), 0, 0], self.acc[(i % 2, 1, i // 2), 0, 0])
            for distance in (4, 8, 16):
                most = arch.fmax(most, arch.shuffle_sync_bfly(most, offset=distance))
            if lane < 4:
                self.highest[lane * 2 + 8 * (i // 2) + i % 2, own, group] = most
        self.meet()

    def scale_of(self, i: int) -> Any:
        """The factor of the scores of one of the rows that a thread has."""
        return self.scale

    def powers(self) -> None:
        """Scores to powers of two, relative to the largest of their row so far; what was summed of them before is to be scaled."""
        first, group = self.lane() % 4 * 2, self.here(self.group)
        for i in range(self.of.rows // 4):
            row = first + 8 * (i // 2) + i % 2
            most = self.highest[row, 0, group]
            for other in range(1, 4):
                most = arch.fmax(most, self.highest[row, other, group])
            before = self.lowered[i]
            scale = self.scale_of(i)
            now = lower(before, most, scale)
            factor = arch.exp2(now - before)
            total = self.totals[i] * factor
            for half in range(2):
                at = (i % 2, half, i // 2), 0, 0
                power = arch.exp2(cute.math.fma(self.acc[at], scale, now))
                self.acc[at] = power
                total = total + power
            self.lowered[i], self.totals[i], self.factors[i] = now, total, factor

    @cute.jit
    def finish(
        self, count: Int32, blocks: Int32, given: Any, sequence: Int32, slot: Int32, whole: Any, which: Any
    ):  # fmt: skip
        """Put together what both warp groups have summed, and write the outputs, divided by the sums of all weights, or if these are of a
        part of the keys, a piece of them."""
        last = count + blocks - 1
        # this warp group's last block, if it has one
        own = last - ((last ^ self.group) & 1)
        has = own >= count
        if has:
            self.share_totals()
        for first in range_constexpr(0, self.of.rows, self.at_once):
            if has:
                self.share_sums(own, first)
            self.meet_both()
            if const_expr(first == 0):
                self.weigh(last, blocks > 1)
                self.meet_both()
            self.put_together(first, last, blocks > 1, given, sequence, slot, whole, which)
            arch.fence_proxy("async.shared", space="cta")
            self.meet_both()
        self.release(own, has)

    @cute.jit
    def weigh(self, last: Int32, both: Any):
        """What the sums of a row are multiplied with, of each warp group, and the binary logarithm of the sum of its weights: where the
        highest scores were. `both`: one has the last block, and one that before it."""
        row = only_here(arch.thread_idx()[0]) - GROUP
        if row < self.of.rows:
            a, b = last & 1, 1 - (last & 1)
            one, total, more = self.references[row, a], self.total(row, a), Float32(0.0)
            other = one
            if both:
                other, more = self.references[row, b], self.total(row, b)
            high = arch.fmin(one, other)
            weights = arch.exp2(high - one), arch.exp2(high - other)
            total = total * weights[0] + more * weights[1]
            inverse, logarithm = Float32(0.0), Float32(-float("inf"))
            if total != 0.0:
                inverse = self.inverse(total)
                logarithm = cute.math.log2(total) - high
            self.highest[row, 0, a], self.highest[row, 0, b] = weights[0] * inverse, weights[1] * inverse
            self.highest[row, 1, 0] = logarithm

    @cute.jit
    def put_together(
        self, first: Constexpr, last: Int32, both: Any, given: Any, sequence: Int32, slot: Int32, whole: Any, which: Any,
    ):  # fmt: skip
        """Write rows whose sums are in the memory of the last block and, if `both` warp groups have one, that before it."""
        thread = only_here(arch.thread_idx()[0]) - GROUP
        lanes = self.of.dim_v // _WIDTH
        column, at = thread % lanes * _WIDTH, thread // lanes
        step = 2 * GROUP // lanes
        numbers = which.numbers
        before = only_here(which.tile) * self.of.rows  # rows of other tiles
        end = min(which.rows - before, Int32(first + self.at_once))
        values = [cute.make_rmem_tensor((_WIDTH,), Float32) for _ in range(_ROWS)]
        for start in range(first + at, end, _ROWS * step):
            for n in range_constexpr(_ROWS):
                row = min(start + n * step, end - 1)
                sums, weight = self.some(row - first, column, last), self.highest[row, 0, last & 1]
                for i in range_constexpr(_WIDTH):
                    values[n][i] = sums[i] * weight
            if both:
                for n in range_constexpr(_ROWS):
                    row = min(start + n * step, end - 1)
                    sums, weight = self.some(row - first, column, last - 1), self.highest[row, 0, 1 - (last & 1)]
                    for i in range_constexpr(_WIDTH):
                        values[n][i] = values[n][i] + sums[i] * weight
            for n in range_constexpr(_ROWS):
                row = start + n * step
                number = before + row
                if row < end:
                    if whole:
                        self.write(given.out[sequence, number, None], self.of.dtype, column, values[n])
                        if const_expr(given.lse is not None):
                            if column == 0:
                                logarithm = self.highest[row, 1, 0] * LN_2
                                given.lse[sequence, number % numbers.heads, number // numbers.heads] = logarithm
                    else:
                        self.write(given.pieces[slot, number, None], Float32, column, values[n])
                        if column == 0:
                            given.pieces[slot, number, self.of.dim_v] = self.highest[row, 1, 0]

    def inverse(self, total: Any) -> Any:
        """What outputs are multiplied with."""
        return arch.rcp_approx(total)

    @cute.jit
    def share_totals(self):
        """Put references and sums of weights into shared memory."""
        lane, number, group = self.lane(), self.key() // 16, self.here(self.group)
        for i in range_constexpr(self.of.rows // 4):
            row = lane % 4 * 2 + 8 * (i // 2) + i % 2
            total = self.totals[i]
            for distance in (4, 8, 16):
                total = total + arch.shuffle_sync_bfly(total, offset=distance)
            if lane < 4:
                self.all_totals[row, number, group] = total
                self.references[row, group] = self.lowered[i]
        self.meet()  # all have read the last block

    @cute.jit
    def share_sums(self, own: Int32, first: Constexpr):
        """Put what was summed, of some rows, where the latents of this warp group's last block were."""
        lane, at = self.lane(), self.here(own)
        # in other banks than the rows of other threads
        places = [(self.column(half) ^ (lane % 4 * 8)) + lane % 4 * 2 * KEYS for half in range(2)]
        eights = self.at_once // 8
        for piece in range_constexpr(self.of.pieces - 1):
            start = self.of.state(at, piece).index * (self.of.piece_bytes // 4)
            for half in range_constexpr(2):
                target = cute.make_layout((2, eights), stride=(KEYS, 8 * KEYS))
                of = self.sums.iterator + (piece * cute.size(self.acc) + 2 * half + first // 2)
                cute.autovec_copy(
                    cute.make_tensor(of, cute.make_layout((2, eights), stride=(1, 4))),
                    cute.make_tensor(self.summed.iterator + (start + places[half]), target),
                )

    def column(self, half: int) -> Any:
        """Which column of a piece a thread has sums of, the first or the second."""
        return self.key() + 8 * half

    def total(self, row: Any, group: Any) -> Any:
        """The sum of weights of a warp group."""
        total = self.all_totals[row, 0, group]
        for number in range(1, 4):
            total = total + self.all_totals[row, number, group]
        return total

    def some(self, row: Any, column: Any, count: Any) -> Any:
        """Some columns of what a warp group has summed, whose last block is the `count`th of all."""
        index = self.of.state(count, column // KEYS).index
        at = (column % KEYS) ^ (row // 2 % 4 * 8)
        place = cute.domain_offset((at, row, index), self.summed).iterator.with_alignment(16)
        held = cute.make_rmem_tensor((_WIDTH,), Float32)
        load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * _WIDTH)
        cute.copy(load, cute.make_tensor(place, cute.make_layout((_WIDTH,))), held)
        return held

    def write(self, row: Any, dtype: Any, column: Any, values: Any) -> None:
        """Write some columns of a row."""
        store = cute.make_copy_atom(CopyUniversalOp(), dtype, num_bits_per_copy=_WIDTH * dtype.width)
        rounded = cute.make_rmem_tensor((_WIDTH,), dtype)
        rounded.store(values.load().to(dtype))
        place = (row.iterator + column).with_alignment(_WIDTH * dtype.width // 8)
        cute.copy(store, rounded, cute.make_tensor(place, cute.make_layout((_WIDTH,))))
