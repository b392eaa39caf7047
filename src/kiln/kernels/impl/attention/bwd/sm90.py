"""The kernel of gradients of attention for Hopper: one warp loads with the copy engine, two warp groups multiply from shared memory.

A block of threads has 128 keys of a head, 64 of each warp group, whose gradients and those of their values stay in registers. Queries and
gradients of outputs stream past, those of all heads that share the keys. For each block of them: S^T = K Q^T and dP^T = V dO^T; P^T and
dS^T; dV += P^T dO and dK += dS^T Q, with P^T and dS^T in registers; and dQ^T = K^T dS^T, with the dS of both warp groups in shared memory.
dQ^T goes to shared memory as it lies in registers, and from there two warps in turns have the copy engine add it, in f32, to what other blocks of threads
add (`sm90_dq_accumulate.py`). `sm90_dq_postprocess.py` makes dQ of that.

There are as many blocks of threads as multiprocessors. Each takes one block of keys after the other, and loads the next while it stores the gradients of one.

In a fixed order (`turns`), a block of threads adds when those before it have: `sm90_scheduler.py` says who they are.

Where sequences lie one after another, or not all keys exist, tiles that the copy engine fills have rows of others, which are cleared: what is there
has weight 0, but may not be a number. The last rows of a sequence are stored by threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warpgroup
from .....utils import LayoutEnum, sm90
from ..fwd.query_tile import VALUES, only_here
from .score_mod import NOTHING, Change
from .sm90_config import BUFFERS, GROUP, GROUPS, KEYS, REGISTERS
from .sm90_dq_accumulate import DQ, Additions, empty
from .sm90_dq_convert import Meanwhile
from .sm90_mainloop import ROWS, Products, Weights
from .sm90_scheduler import Blocks, Told
from .sm90_tiles import KeyTiles

if TYPE_CHECKING:
    from .sm90_config import Sm90AttentionBackwardConfig

_CHANGES, _DONE, _CLEARED, _RESULTS, _OTHER_CHANGES = 1, 3, 4, 11, 13
"""Numbers of barriers: dS of a group is there; all products are complete; tiles are cleared; gradients of keys or values of a group are in shared
memory; dS of the other steps. 5 to 10 are those of `sm90_dq_accumulate.py`."""


def _changes(other: int, odd: Any) -> Any:
    """The barrier at which this warp group, or the `other` (1), says that its dS of a step is there. Every other (`odd`) step has another: a
    group may be done with the next before the other one waits for this, and would take its place there."""
    group = (only_here(arch.thread_idx()[0]) // GROUP - 1) ^ other  # found again: loops have no register for it
    return pipeline.NamedBarrier(_CHANGES + group + odd * (_OTHER_CHANGES - _CHANGES), GROUPS * GROUP)


class Numbers(NamedTuple):
    """Factors of the scores (in powers of two), of the cap and of gradients of scores, keys seen before and after a query's own, heads whose
    blocks of keys are done side by side, blocks of keys that add to the same sums, heads whose gradients are made meanwhile, blocks of threads that
    run at once; the factor that makes scores what functions are given."""

    scale: Any
    cap: Any
    factor: Any
    left: Any
    right: Any
    side: Any
    part: Any
    early: Any
    at_once: Any
    natural: Any


class Shared(NamedTuple):
    """Tiles in shared memory: keys and values (row, element), queries and gradients of outputs (row, element, buffer), dS (query, key,
    buffer), dQ as it lies in registers (number, buffer), what is known of queries (row, which, buffer)."""

    keys: Any
    values: Any
    queries: Any
    gradients: Any
    changes: Any
    sums: Any
    known: Any


class Sm90BackwardKernel(KeyTiles):
    """The kernel for some tiles and masks (right, left, a cap). `elements`: those of a head, filled up. `turns`: in a fixed order. `packed`:
    sequences lie one after another. `partial`: not all keys exist."""

    def __init__(
        self, dtype: Any, elements: int, config: Sm90AttentionBackwardConfig, masks: tuple[bool, bool, bool], turns: bool,
        packed: bool = False, partial: bool = False, change: Change = NOTHING,
    ) -> None:  # fmt: skip
        self.change = change
        self.dtype, self.elements, self.config, self.turns = dtype, elements, config, turns
        self.right, self.left, self.capped = masks
        self.packed, self.partial = packed, partial
        self.keys = KEYS
        self.values_first = packed or partial or config.operands_in_regs > 0
        """Values are needed before the first product."""
        self.by_elements = elements == GROUPS * ROWS
        self.columns = config.tile_m if self.by_elements else config.tile_m // GROUPS
        """Of dQ^T of a warp group."""

    # --- how tiles lie ---

    def layouts(self) -> tuple[Any, ...]:
        """Keys and values, queries and gradients of outputs, dS."""
        of, rows = self.config, LayoutEnum.ROW_MAJOR
        return (
            sm90.make_smem_layout_a(rows, (KEYS, of.tile_m, self.elements), self.dtype, 1),
            sm90.make_smem_layout_b(rows, (ROWS, of.tile_m, self.elements), self.dtype, of.q_stages),
            sm90.make_smem_layout_b(rows, (ROWS, of.tile_m, KEYS), self.dtype, BUFFERS),
        )

    @cute.jit
    def __call__(
        self, own: Any, other: Any, to: Any, dq: Any, found: cute.Tensor, sums: cute.Tensor, counters: Any, lengths: Any,
        slopes: Any, longest: Int32, numbers: Any, stream: Int64,
    ):  # fmt: skip
        """Launch it: K and V, Q and dO, dK and dV, dQ (None, if none is made meanwhile); what is known of queries, sums of dQ, `Counters` (or None); `Lengths`, slopes of heads (or
        None), keys of the longest sequence, `Numbers`."""
        of_keys, of_queries, _ = self.layouts()
        of_results, elements = self.results(self.elements), self.elements
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        maps = [
            *(self.atom(load, x, of_keys, KEYS, elements) for x in own),
            *(self.atom(load, x, of_queries, self.config.tile_m, elements) for x in other),
            *(self.atom(store, x, of_results, ROWS, elements) for x in to),
        ]
        batches, _, heads, _ = own[0].shape
        if const_expr(self.packed):
            batches = lengths.starts_q.shape[0] - 1
        each = cute.ceil_div(longest, KEYS)
        # what threads store, the last rows of a sequence, they need as it lies
        rows = tuple(self.rows_of(x) for x in to) if const_expr(self.packed) else (None, None)
        self.kernel(
            *(part for one in maps for part in one),
            *rows,
            dq,
            found,
            sums,
            counters,
            lengths,
            slopes,
            each,
            numbers,
        ).launch(
            grid=(min(each * heads * batches, numbers.at_once), 1, 1),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, load_k: cute.CopyAtom, k: cute.Tensor, load_v: cute.CopyAtom, v: cute.Tensor, load_q: cute.CopyAtom,
        q: cute.Tensor, load_o: cute.CopyAtom, o: cute.Tensor, store_k: cute.CopyAtom, dk: cute.Tensor,
        store_v: cute.CopyAtom, dv: cute.Tensor, rows_k: Any, rows_v: Any, early_dq: Any, found: cute.Tensor, sums: cute.Tensor,
        counters: Any, lengths: Any, slopes: Any, each: Int32, numbers: Any,
    ):  # fmt: skip
        of = self.config
        warp_number = arch.make_warp_uniform(arch.warp_idx())
        if warp_number == 0:
            for atom in (load_k, load_v, load_q, load_o, store_k, store_v):
                cpasync.prefetch_descriptor(atom)
        memory = utils.SmemAllocator()
        shared = self.shared(memory)
        tile_size = 2 * self.elements
        pipe_k, pipe_v, pipe_q, pipe_o = (
            self.ring(stages, size)
            for stages, size in (
                *((1, KEYS * tile_size),) * 2,
                *((of.q_stages, of.tile_m * (tile_size + 4)),) * 2,
            )
        )
        told = Told.create(memory, GROUPS * (GROUP // 32 + 1) + (early_dq is not None))
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        blocks = Blocks(self, q, k, lengths, each, numbers)
        share = blocks.share
        producers, (_, _, consumer_q, consumer_o) = zip(
            *(pipe.make_participants() for pipe in (pipe_k, pipe_v, pipe_q, pipe_o)), strict=True
        )

        if warp_number < GROUP // 32:
            arch.setmaxregister_decrease(REGISTERS[0])
            if warp_number == 0:
                self.load(
                    (load_k, k, load_v, v, load_q, q, load_o, o), found, shared, producers, blocks, told, counters.begun
                )
            if warp_number == 1 or warp_number == 2:
                Additions(self, blocks, shared.sums, sums, counters.turns).run(warp_number - 1, told)
            if const_expr(early_dq is not None):
                if warp_number == 3:
                    Meanwhile(self, blocks, sums, counters.turns, early_dq).run(told)
        else:
            arch.setmaxregister_increase(REGISTERS[1])
            used_q = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, of.q_stages)
            # of keys, values, and what is told: which of all blocks of keys of this block of threads
            turn = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
            number = told.heard(turn)
            while number >= 0:
                # what is computed of the thread is not kept in registers from one block of keys to the next
                own_thread = only_here(arch.thread_idx()[0])
                group, thread = arch.make_warp_uniform(own_thread // GROUP) - 1, own_thread % GROUP
                products = Products(self, thread, shared)
                weights = Weights(self, products, thread, group, shared, numbers)
                dq = DQ(self, products, shared, group, thread)
                work = told.work()
                span = blocks.span(work)
                steps = span.count * share
                products.dk.fill(0.0)
                products.dv.fill(0.0)
                # the keys of this warp group: how many exist, and which of a block of queries is the first that sees the first of them
                key = work.block * KEYS + group * ROWS
                exist = work.keys - key
                first = key - (work.keys - work.queries) - numbers.right - (span.first + span.count - 1) * of.tile_m
                edge, beside = first, Int32(0)
                # The products of dS with keys are those of the step before, of which there are none in the first.
                weights.clear_changes(Int32(1))
                arch.fence_proxy("async.shared", space="cta")
                pipe_k.consumer_wait(turn)
                if const_expr(self.values_first):
                    pipe_v.consumer_wait(turn)
                if const_expr(self.packed or self.partial):
                    there = work.keys - work.block * KEYS
                    if there < KEYS:
                        self.clear((shared.keys, shared.values), KEYS, there, group)
                products.hold(group)
                # after it: where no query sees these keys, the other warp group writes results over the values as soon as it hears of this
                _changes(0, 1).arrive()
                busy = self.busy_steps(first, span) * share if const_expr(self.right) else steps
                for i in range(busy):
                    filled_q = consumer_q.wait_and_advance()
                    own = products.own(arch.make_warp_uniform(group))
                    buffer = only_here(i) & 1
                    if const_expr(self.packed):
                        if i < share:
                            tiles = (shared.queries, filled_q), (shared.gradients, consumer_o.wait())
                            self.clear_last(tiles, blocks, told, group)
                    warpgroup.fence()
                    products.begin_scores(own, filled_q.index)
                    _changes(1, 1 - buffer).arrive_and_wait()
                    products.begin_queries(own, 1 - buffer)
                    # until scores are there, and the gradients of keys of the step before
                    warpgroup.wait_group(1)
                    if i > 0:
                        pipe_q.consumer_release(used_q)
                        used_q.advance()
                    if const_expr(self.capped):
                        weights.cap_scores()
                    if const_expr(self.change):  # registers are few
                        of_keys = told.work()
                        exist = of_keys.keys - of_keys.block * KEYS - group * ROWS
                    if exist < ROWS or self.partly_hidden(edge, numbers):
                        self.hide(products.acc_scores, edge, exist, numbers)
                    seen = self.scores_of(edge, group, i, slopes, blocks, told) if const_expr(self.change) else None
                    weights.make_weights(filled_q.index, 0, seen)
                    pipe_v.consumer_wait(told.turn())
                    filled_o = consumer_o.wait_and_advance()
                    if const_expr(self.right or self.left or self.change):
                        # after the heads that share keys come the queries before
                        beside = beside + 1
                        if beside == share:
                            beside = Int32(0)
                            edge = edge + of.tile_m
                    warpgroup.wait_group(0)
                    if i > 0:
                        dq.write(i - 1)
                    warpgroup.fence()
                    products.begin_gradients(own, filled_o.index)
                    weights.make_weights(filled_q.index, 1, seen)
                    weights.round_weights()
                    warpgroup.fence()
                    products.begin_values(filled_o.index)
                    warpgroup.wait_group(1)
                    weights.make_changes(filled_o.index)
                    weights.write_changes(buffer)
                    warpgroup.fence()
                    products.begin_keys(filled_q.index)
                    arch.fence_proxy("async.shared", space="cta")
                    _changes(0, only_here(i) & 1).arrive()
                    warpgroup.wait_group(1)
                    filled_o.release()
                if const_expr(self.right):
                    for i in range(busy, steps):  # those that see keys of the other warp group only
                        consumer_q.wait_and_advance()
                        _changes(1, 1 - i % 2).arrive_and_wait()
                        warpgroup.fence()
                        products.begin_queries(products.own(arch.make_warp_uniform(group)), 1 - i % 2)
                        consumer_o.wait_and_advance().release()
                        warpgroup.wait_group(0)
                        if i > 0:
                            pipe_q.consumer_release(used_q)
                            used_q.advance()
                            dq.write(i - 1)
                        weights.clear_changes(i % 2)
                        arch.fence_proxy("async.shared", space="cta")
                        _changes(0, i % 2).arrive()
                # all of this is looked up again, not kept in registers that the loop needs
                work, turn = told.work(), told.turn()
                steps = blocks.span(work).count * share
                _changes(1, 1 - steps % 2).arrive_and_wait()
                warpgroup.fence()
                products.begin_queries(products.own(arch.make_warp_uniform(group)), 1 - steps % 2)
                told.release(turn)
                # The other warp group has told of its last dS, and so is done with the values: where they were, results are on their way, while the
                # next keys come.
                pipe_v.consumer_wait(turn)
                self.write_results(products.dv, Float32(1.0), shared.values, (store_v, dv, rows_v), group, work)
                warpgroup.wait_group(0)
                if steps > 0:
                    pipe_q.consumer_release(used_q)
                    used_q.advance()
                # dS is read by both warp groups
                pipeline.NamedBarrier(_DONE, GROUPS * GROUP).arrive_and_wait()
                pipe_k.consumer_release(turn)
                if steps > 0:
                    dq.write(steps - 1)
                self.write_results(products.dk, numbers.factor, shared.values, (store_k, dk, rows_k), group, work)
                if arch.make_warp_uniform(arch.warp_idx()) % 4 == 0:
                    arch.cp_async_bulk_wait_group(0, read=True)
                pipe_v.consumer_release(turn)
                turn.advance()
                number = told.heard(turn)
            for n in range_constexpr(BUFFERS):  # all has been read
                empty(warp_number // 4 - 1, n).arrive_and_wait()

    def shared(self, memory: Any) -> Shared:
        """Shared memory of a block of threads."""
        of_keys, of_queries, of_changes = self.layouts()
        make = lambda x: memory.allocate_tensor(self.dtype, x.outer, 1024, x.inner)
        keys, values = (make(of_keys)[None, None, 0] for _ in range(2))
        queries, gradients, changes = make(of_queries), make(of_queries), make(of_changes)
        tile_m = self.config.tile_m
        sums = memory.allocate_tensor(Float32, cute.make_layout((GROUPS * ROWS * self.columns, BUFFERS)), 128)
        known = memory.allocate_tensor(Float32, cute.make_layout((tile_m, 2, self.config.q_stages)), 128)
        return Shared(keys, values, queries, gradients, changes, sums, known)

    @cute.jit
    def load(
        self, given: Any, found: cute.Tensor, shared: Any, producers: Any, blocks: Any, told: Any, begun: Any
    ):  # fmt: skip
        """What the warp does that loads: it takes blocks of keys, and tells the others."""
        load_k, k, load_v, v, load_q, q, load_o, o = given
        producer_k, producer_v, producer_q, producer_o = producers
        tile_m = self.config.tile_m
        row = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), Float32)
        telling = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 1)
        number = blocks.take(begun)
        while number >= 0:
            work = blocks.work(number)
            span = blocks.span(work)
            layer, steps = work.layer, span.count * blocks.share
            to_q, of_q = self.parts(load_q, shared.queries, self.cut(q, work.first_q, tile_m, self.elements))
            to_o, of_o = self.parts(load_o, shared.gradients, self.cut(o, work.first_q, tile_m, self.elements))
            for i in range(max(steps, 1)):
                if i < steps:
                    head, tile = blocks.place(i, span)
                    head = work.head * blocks.share + head
                    rows = cute.local_tile(found[None, layer, head, None], (1, tile_m), (None, work.first_tile + tile))
                    stage = producer_q.acquire_and_advance()
                    cute.copy(load_q, of_q[None, tile, head, layer], to_q[None, stage.index], tma_bar_ptr=stage.barrier)
                    with arch.elect_one():
                        cute.copy(row, self.line(rows, 0), shared.known[None, 0, stage.index], mbar_ptr=stage.barrier)
                    stage = producer_o.acquire_and_advance()
                    cute.copy(load_o, of_o[None, tile, head, layer], to_o[None, stage.index], tma_bar_ptr=stage.barrier)
                    with arch.elect_one():
                        cute.copy(row, self.line(rows, 1), shared.known[None, 1, stage.index], mbar_ptr=stage.barrier)
                if i == 0:  # there is room for the first queries before there is for keys
                    told.tell(telling, number, work)
                    telling.advance()
                    of_keys = ((load_k, k, shared.keys, producer_k), (load_v, v, shared.values, producer_v))
                    for atom, x, to, producer in of_keys:
                        stage = producer.acquire_and_advance()
                        shared_part, tiles = self.parts(atom, to, self.cut(x, work.first_k, KEYS, self.elements))
                        cute.copy(
                            atom, tiles[None, work.block, work.head, layer], shared_part, tma_bar_ptr=stage.barrier
                        )
            number = blocks.take(begun)
        told.tell(telling, number, ())

    @cute.jit
    def clear_last(self, tiles: Any, blocks: Any, told: Any, group: Int32):
        """Clear what comes after a sequence in the last block of queries that see keys, and of their gradients."""
        work = told.work()
        span = blocks.span(work)
        there = work.queries - (span.first + span.count - 1) * self.config.tile_m
        if there < self.config.tile_m:
            self.clear([x[None, None, filled.index] for x, filled in tiles], self.config.tile_m, there, group)

    @cute.jit
    def clear(self, tiles: Any, rows: int, there: Int32, group: Int32):
        """Fill tiles (row, element) with zeros after the rows that are there. Both warp groups do that together."""
        chunks = self.elements // VALUES
        zeros = cute.make_rmem_tensor((VALUES,), self.dtype)
        zeros.fill(0.0)
        thread = group * GROUP + only_here(arch.thread_idx()[0]) % GROUP
        # no loop whose end depends on the thread: ptxas keeps no operand of products in uniform registers around one
        for n in range_constexpr(-(-rows * chunks // (GROUPS * GROUP))):
            row = n * (GROUPS * GROUP // chunks) + thread // chunks
            for x in tiles:
                start = cute.domain_offset((row, thread % chunks * VALUES), x).iterator
                missing = row >= there
                if const_expr(rows * chunks % (GROUPS * GROUP)):  # of threads with a row more, some have none
                    missing = missing & (row < rows)
                if missing:
                    cute.autovec_copy(zeros, cute.make_tensor(start.with_alignment(16), cute.make_layout((VALUES,))))
        arch.fence_proxy("async.shared", space="cta")
        pipeline.NamedBarrier(_CLEARED, GROUPS * GROUP).arrive_and_wait()

    @cute.jit
    def busy_steps(self, first: Int32, span: Any):
        """Blocks of queries, from the last on, of which some see keys of a warp group; the last is always one, which both clear."""
        tile_m = self.config.tile_m
        return min(span.count, max(Int32(1), (2 * tile_m - 1 - first) // tile_m))

    @cute.jit
    def scores_of(self, edge: Int32, group: Int32, step: Int32, slopes: Any, blocks: Any, told: Any):
        """What scores of a step of a warp group are of."""
        work = told.work()
        return self.seen(edge, work.block * KEYS + group * ROWS, step, slopes, blocks, work)

    @cute.jit
    def write_results(
        self, sums: cute.Tensor, factor: Float32, memory: cute.Tensor, target: Any, group: Int32, work: Any
    ):
        """Store the gradients of the keys or values of a warp group, by way of its part of a tile in shared memory, which was read before."""
        place = (work.first_k, work.block * GROUPS + group, work.rows, work.head, work.layer)
        self.write(sums, factor, memory, target, place, group, (_RESULTS + group, GROUP), True, self.elements)
