"""The kernel of gradients of keys and values for Hopper, of heads of more than 128 elements.

A block of threads has 64 keys of a head. One of its warp groups has the gradients of their values, the other those of the keys themselves: in registers, which
for both would be too few. Queries and gradients of outputs stream past, as in `sm90.py`. The first computes S^T = K Q^T, P^T, and dV += P^T dO; the second dP^T = V dO^T,
dS^T, and dK += dS^T Q. All that the second needs of the first is P, rounded, which lies in registers of both in the same way. So each
has two products in a step, whose left operand is in shared memory once and in registers once.

Gradients of queries are a pass of their own (`sm90_hd256_dq.py`): seven products instead of five, but nothing is added up in memory. (That would be 64 KiB in f32
for 64 queries, through shared memory, which takes as long as the two products.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warp, warpgroup
from .....utils import LayoutEnum, sm90
from ....dispatch import devices
from ..fwd.query_tile import VALUES, begun_here, only_here
from .sm90_config import GROUP, GROUPS, REGISTERS
from .sm90_hd256_config import ROWS, SENT
from .sm90_mainloop import Weights, transposed
from .sm90_scheduler import Blocks
from .sm90_tiles import KeyTiles

if TYPE_CHECKING:
    from .score_mod import Change
    from .sm90_hd256_config import Sm90AttentionBackwardHd256Config

_SENT, _READ, _CLEARED, _DONE, _RESULTS = 1, 3, 5, 6, 7
"""Numbers of barriers: weights are there, in one of two buffers, and have been read; tiles are cleared; all products are complete; gradients of a warp group are
in shared memory."""


class Shared(NamedTuple):
    """Tiles in shared memory: keys and values (row, element), queries and gradients of outputs (row, element, buffer), weights as they lie in
    registers (number, buffer), what is known of queries (row, which, buffer)."""

    keys: Any
    values: Any
    queries: Any
    gradients: Any
    sent: Any
    known: Any


class Numbers(NamedTuple):
    """Factors of the scores (in powers of two), of the cap and of gradients of scores, keys seen before and after a query's own, heads whose
    blocks of keys are done side by side; the factor that makes scores what functions are given."""

    scale: Any
    cap: Any
    factor: Any
    left: Any
    right: Any
    side: Any
    natural: Any


class Left:
    """A left operand (row, element) of products with columns that are rows of another. Its first elements are held in registers: shared memory is then read the less."""

    def __init__(self, dtype: Any, thread: Any, tile: Any, columns: int, held: int) -> None:
        major, elements = warpgroup.OperandMajorMode.K, cute.size(tile, mode=[1])
        make = lambda *source: sm90.make_trivial_tiled_mma(
            dtype, dtype, major, major, Float32, (1, 1, 1), (ROWS, columns), *source
        )
        self.mma, self.of_held = make(), make(warpgroup.OperandSource.RMEM)
        self.fragment = self.mma.make_fragment_A(self.mma.get_slice(thread).partition_A(tile))
        self.count = min(held, elements) // 16
        if self.count:
            load = cute.make_tiled_copy_A(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), dtype), self.of_held)
            loader = load.get_slice(thread)
            first = cute.local_tile(tile, (ROWS, 16 * self.count), (0, 0))
            self.kv_dims_in_regs = cute.make_rmem_tensor(((2, 2, 2), 1, self.count), dtype)
            cute.copy(load, loader.partition_S(first), loader.retile(self.kv_dims_in_regs))

    def right(self, thread: Any, tiles: Any) -> Any:
        """Tiles (row, element, buffer) as right operands."""
        return self.mma.make_fragment_B(self.mma.get_slice(thread).partition_B(tiles))

    def begin(self, acc: Any, right: Any, buffer: Any) -> None:
        """Begin the product."""
        parts = cute.size(self.fragment, mode=[2])
        fragment = begun_here(self.fragment) if self.count < parts else self.fragment
        for k in range(parts):
            mma, left = (self.of_held, self.kv_dims_in_regs) if k < self.count else (self.mma, fragment)
            mma.set(warpgroup.Field.ACCUMULATE, k > 0)
            cute.gemm(mma, acc, left[None, None, k], right[None, None, k, buffer], acc)
        warpgroup.commit_group()


class Sums:
    """Sums of left operands in registers, (64 rows, `depth`), times tiles (row, element, buffer)."""

    def __init__(self, dtype: Any, thread: Any, tiles: Any, depth: int) -> None:
        elements = cute.size(tiles, mode=[1])
        self.mma = sm90.make_trivial_tiled_mma(
            dtype, dtype, warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN, Float32, (1, 1, 1), (ROWS, elements),
            warpgroup.OperandSource.RMEM,
        )  # fmt: skip
        self.right = self.mma.make_fragment_B(self.mma.get_slice(thread).partition_B(transposed(tiles)))
        self.acc = cute.make_rmem_tensor(self.mma.partition_shape_C((ROWS, elements)), Float32)
        self.left = cute.make_rmem_tensor(((2, 2, 2), 1, depth // 16), dtype)
        self.acc.fill(0.0)
        # what a step gives is multiplied in the next; before the first there is nothing
        self.left.fill(0.0)

    def begin(self, buffer: Any) -> None:
        """Begin the product."""
        self.mma.set(warpgroup.Field.ACCUMULATE, True)
        for k in range(cute.size(self.left, mode=[2])):
            cute.gemm(self.mma, self.acc, self.left[None, None, k], self.right[None, None, k, buffer], self.acc)
        warpgroup.commit_group()


class Side:
    """The products of a warp group: scores (or their gradients) of its keys, left times right, and sums of what becomes of them times `down`."""

    def __init__(self, of: Sm90Hd256DkDvKernel, thread: Any, left: Any, right: Any, down: Any) -> None:
        tile_m = of.config.tile_m
        self.left = Left(of.dtype, thread, left, tile_m, of.config.kv_dims_in_regs)
        self.right = self.left.right(thread, right)
        self.acc_scores = cute.make_rmem_tensor(self.left.mma.partition_shape_C((ROWS, tile_m)), Float32)
        self.sums = Sums(of.dtype, thread, down, tile_m)
        self.weights = self.sums.left

    def begin_scores(self, buffer: Any) -> None:
        """Begin S^T = K Q^T, or dP^T = V dO^T."""
        self.left.begin(self.acc_scores, self.right, buffer)

    def begin_sums(self, buffer: Any) -> None:
        """Begin dV += P^T dO, or dK += dS^T Q."""
        self.sums.begin(buffer)


class SentWeights(Weights):
    """What turns S^T into P^T in one warp group, and dP^T into dS^T in the other, to which P^T is sent."""

    def __init__(self, of: Sm90Hd256DkDvKernel, products: Side, thread: Any, shared: Shared, numbers: Any) -> None:
        self.of, self.products, self.numbers = of, products, numbers
        self.sixteens = of.config.tile_m // 16
        self.sloping = of.capped or of.change.function is not None
        self.known, self.first = shared.known, thread % 4 * 4
        self.start = shared.sent[None, 0].iterator + thread * VALUES
        self.size = ROWS * of.config.tile_m

    def _pieces(self, x: Any, step: Any) -> list[tuple[Any, Any]]:
        """What a thread has of a tensor in registers, 16 bytes at a time, and where that is sent."""
        start, line = self.start + step % SENT * self.size, cute.make_layout(VALUES)
        return [
            (
                cute.make_tensor(x.iterator + VALUES * n, line),
                cute.make_tensor((start + n * (VALUES * GROUP)).with_alignment(16), line),
            )
            for n in range(self.sixteens)
        ]

    def send(self, step: Any) -> None:
        """P, or P times the slopes at the scores, rounded, for the other warp group."""
        sent = self.products.weights
        if self.sloping:
            sent = cute.make_rmem_tensor(sent.shape, self.of.dtype)
            self._round(self.products.acc_scores, sent, range(self.sixteens))
        barrier(_READ, step).arrive_and_wait()
        for from_, to in self._pieces(sent, step):
            cute.autovec_copy(from_, to)
        barrier(_SENT, step).arrive()

    def receive(self, step: Any) -> Any:
        """P as it lies in registers."""
        received = cute.make_rmem_tensor(self.products.acc_scores.shape, self.of.dtype)
        barrier(_SENT, step).arrive_and_wait()
        for to, from_ in self._pieces(received, step):
            cute.autovec_copy(from_, to)
        barrier(_READ, step).arrive()
        return received

    def make_changes_of(self, weights: Any, buffer: Any) -> None:
        """dS = P (dP - sums)."""
        gradients = self.products.acc_scores
        for k in range(self.sixteens):
            known = self._four(1, k, buffer)
            for at, number in self._places(k):
                gradients[at] = weights[at].to(Float32) * (gradients[at] - known[number])

    def round(self) -> None:
        """P, or dS, in the type of operands."""
        self._round(self.products.acc_scores, self.products.weights, range(self.sixteens))


def barrier(first: int, step: Any) -> Any:
    """Where both warp groups meet, by steps."""
    return pipeline.NamedBarrier(first + step % SENT, GROUPS * GROUP)


class Sm90Hd256DkDvKernel(KeyTiles):
    """The kernel for some tiles and masks (right, left, a cap). `elements`: those of a head of keys and of values, filled up. `packed`:
    sequences lie one after another. `partial`: not all keys exist."""

    def __init__(
        self, dtype: Any, elements: tuple[int, int], config: Sm90AttentionBackwardHd256Config, masks: tuple[bool, bool, bool],
        packed: bool, partial: bool, change: Change,
    ) -> None:  # fmt: skip
        self.dtype, self.config, self.change, self.turns = dtype, config, change, False
        self.keys = ROWS
        self.of_keys, self.of_values = elements
        self.right, self.left, self.capped = masks
        self.packed, self.partial = packed, partial

    def layouts(self) -> tuple[Any, ...]:
        """Keys, values, queries, gradients of outputs."""
        of, rows = self.config, LayoutEnum.ROW_MAJOR
        return (
            *(
                sm90.make_smem_layout_a(rows, (ROWS, of.tile_m, n), self.dtype, 1)
                for n in (self.of_keys, self.of_values)
            ),
            *(
                sm90.make_smem_layout_b(rows, (ROWS, of.tile_m, n), self.dtype, of.q_stages)
                for n in (self.of_keys, self.of_values)
            ),
        )

    @cute.jit
    def __call__(
        self, own: Any, other: Any, to: Any, found: cute.Tensor, lengths: Any, slopes: Any, longest: Int32, numbers: Any,
        stream: Int64,
    ):  # fmt: skip
        """Launch it: K and V, Q and dO, dK and dV; what is known of queries, `Lengths`, slopes of heads (or None), keys of the longest sequence,
        `Numbers`."""
        both = (self.of_keys, self.of_values)
        layouts = self.layouts()
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        maps = [
            *(self.atom(load, x, tile, ROWS, n) for x, tile, n in zip(own, layouts[:2], both)),
            *(self.atom(load, x, tile, self.config.tile_m, n) for x, tile, n in zip(other, layouts[2:], both)),
            *(self.atom(store, x, self.results(n), ROWS, n) for x, n in zip(to, both)),
        ]
        batches, _, heads, _ = own[0].shape
        if const_expr(self.packed):
            batches = lengths.starts_q.shape[0] - 1
        each = cute.ceil_div(longest, ROWS)
        # what threads store, the last rows of a sequence, they need as it lies
        rows = tuple(self.rows_of(x) for x in to) if const_expr(self.packed) else (None, None)
        self.kernel(*(part for one in maps for part in one), *rows, found, lengths, slopes, each, numbers).launch(
            grid=(each * heads * batches, 1, 1),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    def shared(self) -> Shared:
        """Shared memory of a block of threads."""
        memory = utils.SmemAllocator()
        make = lambda x: memory.allocate_tensor(self.dtype, x.outer, 1024, x.inner)
        of_keys, of_values, of_queries, of_gradients = self.layouts()
        keys, values = (make(x)[None, None, 0] for x in (of_keys, of_values))
        queries, gradients = make(of_queries), make(of_gradients)
        of = self.config
        sent = memory.allocate_tensor(self.dtype, cute.make_layout((ROWS * of.tile_m, SENT)), 128)
        known = memory.allocate_tensor(Float32, cute.make_layout((of.tile_m, 2, of.q_stages)), 128)
        return Shared(keys, values, queries, gradients, sent, known)

    @cute.kernel
    def kernel(
        self, load_k: cute.CopyAtom, k: cute.Tensor, load_v: cute.CopyAtom, v: cute.Tensor, load_q: cute.CopyAtom,
        q: cute.Tensor, load_o: cute.CopyAtom, o: cute.Tensor, store_k: cute.CopyAtom, dk: cute.Tensor,
        store_v: cute.CopyAtom, dv: cute.Tensor, rows_k: Any, rows_v: Any, found: cute.Tensor, lengths: Any, slopes: Any, each: Int32,
        numbers: Any,
    ):  # fmt: skip
        of = self.config
        # gradients of queries, which need nothing from here, begin where blocks of threads are done
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_launch_dependents()
        warp_number = arch.make_warp_uniform(arch.warp_idx())
        if warp_number == 0:
            for atom in (load_k, load_v, load_q, load_o, store_k, store_v):
                cpasync.prefetch_descriptor(atom)
        shared = self.shared()
        pipe_k = self.ring(1, 2 * ROWS * (self.of_keys + self.of_values))
        pipe_q, pipe_o = (self.ring(of.q_stages, of.tile_m * (2 * n + 4)) for n in (self.of_keys, self.of_values))
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        blocks = Blocks(self, q, k, lengths, each, numbers)
        work = blocks.work(Int32(arch.block_idx()[0]))
        span = blocks.span(work)
        share = q.shape[2] // k.shape[2]
        steps = span.count * share
        producer_k, consumer_k = pipe_k.make_participants()
        producer_q, consumer_q = pipe_q.make_participants()
        producer_o, consumer_o = pipe_o.make_participants()

        # blocks after the end of a sequence that is not the longest have nothing to do
        if work.block * ROWS < work.rows:
            if warp_number < GROUP // 32:
                arch.setmaxregister_decrease(REGISTERS[0])
                if warp_number == 0:
                    self.load_rows(
                        (load_k, k, load_v, v, load_q, q, load_o, o), found, shared, (producer_k, producer_q, producer_o),
                        (blocks, work, span), share, steps,
                    )  # fmt: skip
            else:
                arch.setmaxregister_increase(REGISTERS[1])
                thread = arch.thread_idx()[0] % GROUP
                consumer_k.wait_and_advance()
                if const_expr(self.packed or self.partial):
                    there = work.keys - work.block * ROWS
                    if there < ROWS:
                        self.clear(
                            (shared.keys, shared.values), there, arch.thread_idx()[0] - GROUP, GROUPS * GROUP, _CLEARED
                        )
                # the keys of this block of threads: how many exist, and which of a block of queries is the first that sees the first of them
                key = work.block * ROWS
                first = key - (work.keys - work.queries) - numbers.right - (span.first + span.count - 1) * of.tile_m
                if warp_number < 2 * GROUP // 32:
                    dv_side = Side(self, thread, shared.keys, shared.queries, shared.gradients)
                    self.of_weights(
                        dv_side, SentWeights(self, dv_side, thread, shared, numbers), (pipe_o, consumer_q), shared, (blocks, share, steps),
                        (key, first, work.keys - key), slopes, numbers,
                    )  # fmt: skip
                    place = (work.first_k, work.block, work.rows, work.head, work.layer)
                    pipeline.NamedBarrier(_DONE, GROUPS * GROUP).arrive_and_wait()
                    self.write(
                        dv_side.sums.acc, Float32(1.0), shared.values, (store_v, dv, rows_v), place, Int32(0), (_RESULTS, GROUP), False, self.of_values
                    )  # fmt: skip
                else:
                    dk_side = Side(self, thread, shared.values, shared.gradients, shared.queries)
                    self.of_changes(
                        dk_side, SentWeights(self, dk_side, thread, shared, numbers), (pipe_q, consumer_o), shared, (blocks, share, steps)
                    )  # fmt: skip
                    place = (work.first_k, work.block, work.rows, work.head, work.layer)
                    pipeline.NamedBarrier(_DONE, GROUPS * GROUP).arrive_and_wait()
                    self.write(
                        dk_side.sums.acc, numbers.factor, shared.keys, (store_k, dk, rows_k), place, Int32(0), (_RESULTS + 1, GROUP), False, self.of_keys
                    )  # fmt: skip

    @cute.jit
    def load_rows(
        self, given: Any, found: cute.Tensor, shared: Any, producers: Any, place: Any, share: Int32, steps: Int32
    ):
        """What the warp does that loads."""
        load_k, k, load_v, v, load_q, q, load_o, o = given
        producer_k, producer_q, producer_o = producers
        blocks, work, span = place
        tile_m, layer = self.config.tile_m, work.layer
        stage = producer_k.acquire_and_advance()
        for atom, x, to, n in ((load_k, k, shared.keys, self.of_keys), (load_v, v, shared.values, self.of_values)):
            shared_part, tiles = self.parts(atom, to, self.cut(x, work.first_k, ROWS, n))
            own = tiles[None, work.block, work.head, layer]
            cute.copy(atom, own, shared_part, tma_bar_ptr=stage.barrier)
        to_q, of_q = self.parts(load_q, shared.queries, self.cut(q, work.first_q, tile_m, self.of_keys))
        to_o, of_o = self.parts(load_o, shared.gradients, self.cut(o, work.first_q, tile_m, self.of_values))
        row = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32)
        for i in range(steps):
            head, tile = blocks.place(i, span)
            head = work.head * share + head
            rows = cute.local_tile(found[None, layer, head, None], (1, tile_m), (None, work.first_tile + tile))
            for which, (producer, load, from_, to) in enumerate(
                ((producer_q, load_q, of_q, to_q), (producer_o, load_o, of_o, to_o))
            ):
                stage = producer.acquire_and_advance()
                cute.copy(load, from_[None, tile, head, layer], to[None, stage.index], tma_bar_ptr=stage.barrier)
                with arch.elect_one():
                    cute.copy(
                        row, self.line(rows, which), shared.known[None, which, stage.index], mbar_ptr=stage.barrier
                    )

    @cute.jit
    def clear_tile(self, tile: cute.Tensor, blocks: Any, thread: Int32):
        """Clear what comes after a sequence in the last block of queries that see keys: one warp group that of queries, the other that of gradients of outputs."""
        work = blocks.work(Int32(arch.block_idx()[0]))
        span = blocks.span(work)
        there = work.queries - (span.first + span.count - 1) * self.config.tile_m
        if there < self.config.tile_m:
            self.clear((tile,), there, thread, GROUP, _CLEARED)

    @cute.jit
    def scores_of(self, edge: Int32, key: Int32, step: Int32, slopes: Any, blocks: Any):
        """What scores of a step are of."""
        return self.seen(edge, key, step, slopes, blocks, blocks.work(Int32(arch.block_idx()[0])))

    @cute.jit
    def of_weights(
        self, side: Any, weights: Any, pipes: Any, shared: Any, place: Any, keys: Any, slopes: Any, numbers: Any
    ):
        """What the warp group does that has the gradients of values."""
        of = self.config
        blocks, share, steps = place
        pipe_o, consumer_q = pipes
        key, first, exist = keys
        edge, beside = first, Int32(0)
        # A constant would be the same register as the zeros that weights begin with, which are no uniform ones, and ptxas would copy from there.
        first_buffer = arch.make_warp_uniform(Int32(0))
        used_o = pipeline.PipelineState(of.q_stages, 0, first_buffer, first_buffer)
        for i in range(steps):
            filled_q = consumer_q.wait_and_advance()
            if const_expr(self.packed):
                if i < share:
                    self.clear_tile(shared.queries[None, None, filled_q.index], blocks, side_thread())
            pipe_o.consumer_wait(used_o)
            warpgroup.fence()
            side.begin_scores(filled_q.index)
            side.begin_sums(used_o.index)
            # until scores, or their gradients, are there; sums of the step before are beside what follows
            warpgroup.wait_group(1)
            if const_expr(self.capped):
                weights.cap_scores()
            if exist < ROWS or self.partly_hidden(edge, numbers):
                self.hide(side.acc_scores, edge, exist, numbers)
            seen = self.scores_of(edge, key, i, slopes, blocks) if const_expr(self.change) else None
            if const_expr(weights.sloping):  # which rounds weights where those of the step before are
                warpgroup.wait_group(0)
            weights.make_weights(filled_q.index, 0, seen)
            weights.make_weights(filled_q.index, 1, seen)
            filled_q.release()
            warpgroup.wait_group(0)
            if i > 0:
                pipe_o.consumer_release(used_o)
                used_o.advance()
            weights.round_weights()
            weights.send(i)
            if const_expr(self.right or self.left or self.change):
                # after the heads that share keys come the queries before
                beside = beside + 1
                if beside == share:
                    beside = Int32(0)
                    edge = edge + of.tile_m
        for n in range_constexpr(SENT):  # all has been read
            barrier(_READ, steps + n).arrive_and_wait()
        if steps > 0:
            pipe_o.consumer_wait(used_o)
            warpgroup.fence()
            side.begin_sums(used_o.index)
            warpgroup.wait_group(0)
            pipe_o.consumer_release(used_o)

    @cute.jit
    def of_changes(self, side: Any, weights: Any, pipes: Any, shared: Any, place: Any):
        """What the warp group does that has the gradients of keys."""
        of = self.config
        blocks, share, steps = place
        pipe_q, consumer_o = pipes
        used_q = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, of.q_stages)
        for n in range_constexpr(SENT):
            barrier(_READ, Int32(n)).arrive()
        for i in range(steps):
            filled_o = consumer_o.wait_and_advance()
            if const_expr(self.packed):
                if i < share:
                    self.clear_tile(shared.gradients[None, None, filled_o.index], blocks, side_thread())
            pipe_q.consumer_wait(used_q)
            warpgroup.fence()
            side.begin_scores(filled_o.index)
            side.begin_sums(used_q.index)
            # until scores, or their gradients, are there; sums of the step before are beside what follows
            warpgroup.wait_group(1)
            received = weights.receive(i)
            weights.make_changes_of(received, filled_o.index)
            filled_o.release()
            warpgroup.wait_group(0)
            if i > 0:
                pipe_q.consumer_release(used_q)
                used_q.advance()
            weights.round()
        if steps > 0:
            pipe_q.consumer_wait(used_q)
            warpgroup.fence()
            side.begin_sums(used_q.index)
            warpgroup.wait_group(0)
            pipe_q.consumer_release(used_q)


def side_thread() -> Any:
    """The number of a thread in its warp group."""
    return only_here(arch.thread_idx()[0]) % GROUP
