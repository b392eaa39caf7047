"""The kernel of gradients of queries for Hopper, of heads of more than 128 elements.

A block of threads has 128 queries of a head, 64 of each warp group, whose gradients stay in registers. Keys and values stream past. For each block of them: S = Q K^T and
dP = dO V^T; P and dS; and dQ += dS K, with dS in registers, in the next step, so that products and what is done in registers take turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warpgroup
from .....utils import LayoutEnum, sm90
from ....dispatch import devices
from ..fwd.query_tile import only_here
from .score_mod import shown
from .sm90_config import GROUP, GROUPS, REGISTERS
from .sm90_hd256_config import QUERIES, ROWS
from .sm90_hd256_dkv import Left, Sums
from .sm90_scheduler import stretch, tile_of
from .sm90_tiles import Tiles

if TYPE_CHECKING:
    from .score_mod import Change
    from .sm90_hd256_config import Sm90AttentionBackwardHd256Config

_CLEARED, _DONE, _RESULTS = 1, 2, 3
"""Numbers of barriers: tiles are cleared; all products are complete; gradients of a warp group are in shared memory."""


class Shared(NamedTuple):
    """Tiles in shared memory: queries and gradients of outputs (row, element), keys and values (row, element, buffer)."""

    queries: Any
    gradients: Any
    keys: Any
    values: Any


class Work(NamedTuple):
    """A block of queries of a head of a sequence; the layer of the arrays, where in it queries and keys of the sequence begin, how many there are, of keys those that
    exist; where what is known of queries begins."""

    block: Any
    head: Any
    batch: Any
    layer: Any
    first_q: Any
    queries: Any
    first_k: Any
    keys: Any
    first_known: Any


class Products:
    """S = Q K^T, dP = dO V^T, and dQ += dS K with dS in registers, of a warp group. All are begun here, and waited for elsewhere."""

    def __init__(self, of: Sm90Hd256DqKernel, thread: Any, shared: Shared, group: Any) -> None:
        tile_n = of.config.tile_n
        own = lambda x: cute.local_tile(x, (ROWS, cute.size(x, mode=[1])), (group, 0))
        self.queries = Left(of.dtype, thread, own(shared.queries), tile_n, of.config.q_dims_in_regs)
        self.gradients = Left(of.dtype, thread, own(shared.gradients), tile_n, 0)
        self.keys, self.values = (self.queries.right(thread, x) for x in (shared.keys, shared.values))
        self.acc_scores, self.acc_gradients = (
            cute.make_rmem_tensor(self.queries.mma.partition_shape_C((ROWS, tile_n)), Float32) for _ in range(2)
        )
        self.dq = Sums(of.dtype, thread, shared.keys, tile_n)

    def begin_scores(self, buffer: Any) -> None:
        """Begin S = Q K^T."""
        self.queries.begin(self.acc_scores, self.keys, buffer)

    def begin_gradients(self, buffer: Any) -> None:
        """Begin dP = dO V^T."""
        self.gradients.begin(self.acc_gradients, self.values, buffer)

    def begin_sums(self, buffer: Any) -> None:
        """Begin dQ += dS K."""
        self.dq.begin(buffer)


class Sm90Hd256DqKernel(Tiles):
    """The kernel for some tiles and masks (right, left, a cap). `elements`: those of a head of keys and of values, filled up. `packed`:
    sequences lie one after another. `partial`: not all keys exist."""

    def __init__(
        self, dtype: Any, elements: tuple[int, int], config: Sm90AttentionBackwardHd256Config, masks: tuple[bool, bool, bool],
        packed: bool, partial: bool, change: Change,
    ) -> None:  # fmt: skip
        self.dtype, self.config, self.change = dtype, config, change
        self.of_keys, self.of_values = elements
        self.right, self.left, self.capped = masks
        self.packed, self.partial = packed, partial

    def layouts(self) -> tuple[Any, ...]:
        """Queries, gradients of outputs, keys, values."""
        of, rows = self.config, LayoutEnum.ROW_MAJOR
        both = (self.of_keys, self.of_values)
        return (
            *(sm90.make_smem_layout_a(rows, (QUERIES, of.tile_n, n), self.dtype, 1) for n in both),
            sm90.make_smem_layout_b(rows, (ROWS, of.tile_n, self.of_keys), self.dtype, of.k_stages),
            sm90.make_smem_layout_b(rows, (ROWS, of.tile_n, self.of_values), self.dtype, of.v_stages),
        )

    @cute.jit
    def __call__(
        self, own: Any, other: Any, to: cute.Tensor, found: cute.Tensor, lengths: Any, slopes: Any, longest: Int32, numbers: Any,
        stream: Int64,
    ):  # fmt: skip
        """Launch it: Q and dO, K and V, dQ; what is known of queries, `Lengths`, slopes of heads (or None), queries of the longest sequence, `Numbers`."""
        both = (self.of_keys, self.of_values)
        layouts = self.layouts()
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        maps = [
            *(self.atom(load, x, tile, QUERIES, n) for x, tile, n in zip(own, layouts[:2], both)),
            *(self.atom(load, x, tile, self.config.tile_n, n) for x, tile, n in zip(other, layouts[2:], both)),
            self.atom(store, to, self.results(self.of_keys), ROWS, self.of_keys),
        ]
        batches, _, heads, _ = own[0].shape
        if const_expr(self.packed):
            batches = lengths.starts_q.shape[0] - 1
        each = cute.ceil_div(longest, QUERIES)
        rows = self.rows_of(to) if const_expr(self.packed) else None
        self.kernel(*(part for one in maps for part in one), rows, found, lengths, slopes, each, numbers).launch(
            grid=(each * heads * batches, 1, 1),
            block=(self.config.threads, 1, 1),
            min_blocks_per_mp=1,
            stream=stream,
            use_pdl=devices.current().overlaps,
        )

    def shared(self) -> Shared:
        """Shared memory of a block of threads."""
        memory = utils.SmemAllocator()
        make = lambda x: memory.allocate_tensor(self.dtype, x.outer, 1024, x.inner)
        of_queries, of_gradients, of_keys, of_values = self.layouts()
        queries, gradients = (make(x)[None, None, 0] for x in (of_queries, of_gradients))
        return Shared(queries, gradients, make(of_keys), make(of_values))

    @cute.jit
    def work(self, q: Any, k: Any, lengths: Any, each: Int32, numbers: Any):
        """The block of queries of a block of threads: those of some heads side by side, the longest first."""
        heads, layers = q.shape[2], q.shape[3]
        number, side = Int32(arch.block_idx()[0]), numbers.side * (heads // k.shape[2])
        if const_expr(lengths.starts_q is not None):
            layers = lengths.starts_q.shape[0] - 1
        first, rest = number // (each * side) * side, number % (each * side)
        beside = min(side, heads * layers - first)
        head, block = first + rest % beside, rest // beside
        if const_expr(self.right and not self.left):
            block = each - 1 - block
        batch = head // heads
        layer, first_q, first_k, first_known = batch, Int32(0), Int32(0), Int32(0)
        queries, keys = Int32(q.shape[0]), Int32(k.shape[0])
        if const_expr(lengths.starts_q is not None):
            first_q, queries = stretch(lengths.starts_q, batch, queries)
            first_k, keys = stretch(lengths.starts_k, batch, keys)
            first_known = tile_of(first_q, batch, Int32(self.config.tile_m)) * self.config.tile_m
            layer = Int32(0)
        if const_expr(lengths.used is not None):
            keys = max(Int32(0), min(lengths.used[batch], keys))
        return Work(block, head % heads, batch, layer, first_q, queries, first_k, keys, first_known)

    @cute.jit
    def span(self, work: Any, numbers: Any):
        """The blocks of keys that a block of queries sees, the first, and how many: a query at position p sees keys from p - left to p + right, both
        included."""
        tile_n, behind = self.config.tile_n, work.keys - work.queries
        begin = work.block * QUERIES
        first, end = Int32(0), work.keys
        if const_expr(self.left):
            first = max(Int32(0), begin + behind - numbers.left) // tile_n
        if const_expr(self.right):
            last = min(begin + QUERIES, work.queries) - 1
            end = min(end, last + behind + numbers.right + 1)
        return first, max(cute.ceil_div(max(end, Int32(0)), tile_n) - first, Int32(0))

    @cute.kernel
    def kernel(
        self, load_q: cute.CopyAtom, q: cute.Tensor, load_o: cute.CopyAtom, o: cute.Tensor, load_k: cute.CopyAtom,
        k: cute.Tensor, load_v: cute.CopyAtom, v: cute.Tensor, store: cute.CopyAtom, dq: cute.Tensor, rows: Any, found: cute.Tensor,
        lengths: Any, slopes: Any, each: Int32, numbers: Any,
    ):  # fmt: skip
        tile_n = self.config.tile_n
        warp_number = arch.make_warp_uniform(arch.warp_idx())
        if warp_number == 0:
            for atom in (load_k, load_v, load_q, load_o, store):
                cpasync.prefetch_descriptor(atom)
        shared = self.shared()
        pipe_q = self.ring(1, 2 * QUERIES * (self.of_keys + self.of_values))
        pipe_k, pipe_v = (
            self.ring(stages, 2 * tile_n * n)
            for stages, n in ((self.config.k_stages, self.of_keys), (self.config.v_stages, self.of_values))
        )
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        work = self.work(q, k, lengths, each, numbers)
        first, steps = self.span(work, numbers)
        producer_q, consumer_q = pipe_q.make_participants()
        producer_k, consumer_k = pipe_k.make_participants()
        producer_v, consumer_v = pipe_v.make_participants()

        # blocks after the end of a sequence that is not the longest have nothing to do
        if work.block * QUERIES < work.queries:
            if warp_number < GROUP // 32:
                arch.setmaxregister_decrease(REGISTERS[0])
                if warp_number == 0:
                    head_k = work.head // (q.shape[2] // k.shape[2])
                    stage = producer_q.acquire_and_advance()
                    for load, x, to, n in (
                        (load_q, q, shared.queries, self.of_keys),
                        (load_o, o, shared.gradients, self.of_values),
                    ):
                        part, tiles = self.parts(load, to, self.cut(x, work.first_q, QUERIES, n))
                        own = tiles[None, work.block, work.head, work.layer]
                        cute.copy(load, own, part, tma_bar_ptr=stage.barrier)
                    to_k, of_k = self.parts(load_k, shared.keys, self.cut(k, work.first_k, tile_n, self.of_keys))
                    to_v, of_v = self.parts(load_v, shared.values, self.cut(v, work.first_k, tile_n, self.of_values))
                    for i in range(steps):
                        tile = first + steps - 1 - i
                        stage = producer_k.acquire_and_advance()
                        cute.copy(
                            load_k, of_k[None, tile, head_k, work.layer], to_k[None, stage.index], tma_bar_ptr=stage.barrier
                        )  # fmt: skip
                        stage = producer_v.acquire_and_advance()
                        cute.copy(
                            load_v, of_v[None, tile, head_k, work.layer], to_v[None, stage.index], tma_bar_ptr=stage.barrier
                        )  # fmt: skip
            else:
                arch.setmaxregister_increase(REGISTERS[1])
                self.of_group(
                    warp_number // (GROUP // 32) - 1,
                    shared,
                    pipe_k,
                    (consumer_q, consumer_k, consumer_v),
                    found,
                    slopes,
                    (work, first, steps),
                    (store, dq, rows),
                    numbers,
                )
        if const_expr(devices.current().overlaps):  # kernels after this one need what the one before writes
            arch.griddepcontrol_wait()

    @cute.jit
    def of_group(
        self, group: Int32, shared: Any, pipe_k: Any, consumers: Any, found: cute.Tensor, slopes: Any, place: Any, target: Any, numbers: Any
    ):  # fmt: skip
        """What a warp group does."""
        tile_n = self.config.tile_n
        consumer_q, consumer_k, consumer_v = consumers
        work, first, steps = place
        steps = arch.make_warp_uniform(steps)  # else ptxas has a few instructions more in the loop
        thread = arch.thread_idx()[0] % GROUP
        consumer_q.wait_and_advance()
        products = Products(self, thread, shared, group)
        # the first of the rows of this warp group
        query = work.block * QUERIES + group * ROWS
        known = self.known(found, work, query, thread)
        # of the first row: position, in a block of keys; the last block comes first
        key = (first + steps - 1) * tile_n
        relative = query + work.keys - work.queries - key
        exist = work.keys - key
        slope = Float32(0.0)
        if const_expr(slopes is not None):
            slope = slopes[min(work.batch, slopes.shape[0] - 1), work.head]
        used_k = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, self.config.k_stages)
        for i in range(steps):
            filled_k = consumer_k.wait_and_advance()
            filled_v = consumer_v.wait_and_advance()
            if const_expr(self.packed or self.partial):
                if exist < tile_n:
                    tiles = (shared.keys[None, None, filled_k.index], shared.values[None, None, filled_v.index])
                    self.clear(tiles, exist, arch.thread_idx()[0] - GROUP, GROUPS * GROUP, _CLEARED)
            warpgroup.fence()
            products.begin_scores(filled_k.index)
            # of the step before
            products.begin_sums(used_k.index)
            products.begin_gradients(filled_v.index)
            warpgroup.wait_group(2)
            if const_expr(self.capped):
                self.cap(products.acc_scores, numbers)
            if exist < tile_n or self.partly_seen(relative, numbers):
                self.hide_keys(products.acc_scores, relative, exist, numbers)
            self.make_weights(
                products.acc_scores,
                known,
                (work.batch, work.head, query, key - i * tile_n, relative, slope),
                numbers,
            )
            warpgroup.wait_group(1)
            if i > 0:
                pipe_k.consumer_release(used_k)
                used_k.advance()
            warpgroup.wait_group(0)
            filled_v.release()
            self.make_changes(products, known)
            relative, exist = relative + tile_n, exist + tile_n
        if steps > 0:
            warpgroup.fence()
            products.begin_sums(used_k.index)
            warpgroup.wait_group(0)
            pipe_k.consumer_release(used_k)
        # queries are read by both warp groups
        pipeline.NamedBarrier(_DONE, GROUPS * GROUP).arrive_and_wait()
        piece = work.block * GROUPS + group
        where = (work.first_q, piece, work.queries, work.head, work.layer)
        self.write(
            products.dq.acc,
            numbers.factor,
            shared.queries,
            target,
            where,
            group,
            (_RESULTS, GROUPS * GROUP),
            False,
            self.of_keys,
        )

    @cute.jit
    def known(self, found: cute.Tensor, work: Any, query: Int32, thread: Int32):
        """Logarithms and sums of both rows of a thread."""
        known = cute.make_rmem_tensor((2, 2), Float32)
        for half in range_constexpr(2):
            row = query + thread // 32 * 16 + thread % 32 // 4 + 8 * half
            there = min(row, work.queries - 1)
            # as `BackwardPreprocess` lays them
            place = work.first_known + ((there & ~15) | ((there & 6) << 1) | ((there & 8) >> 2) | (there & 1))
            logarithm, total = (found[which, work.layer, work.head, place] for which in range(2))
            # no branch: ptxas keeps no operand of products in uniform registers around one
            known[0, half] = logarithm if row < work.queries else Float32(float("inf"))
            known[1, half] = total
        return known

    def cap(self, scores: Any, numbers: Any) -> None:
        """Scores s to tanh(s times the factor of the cap)."""
        for i in range(cute.size(scores)):
            scores[i] = 1.0 - 2.0 * arch.rcp_approx(arch.exp2(scores[i] * numbers.cap) + 1.0)

    @cute.jit
    def partly_seen(self, place: Int32, numbers: Any):
        """Whether some query of a warp group does not see some key of a block, in which the first query has this place."""
        found = Boolean(False)
        if const_expr(self.right):
            found = place + numbers.right < self.config.tile_n - 1
        if const_expr(self.left):
            found = found | (place + (ROWS - 1) - numbers.left > 0)
        return found

    @cute.jit
    def hide_keys(self, scores: cute.Tensor, place: Int32, exist: Int32, numbers: Any):
        """Give keys that a query does not see the weight 0."""
        thread = only_here(arch.thread_idx()[0]) % GROUP
        for half in range_constexpr(2):
            # relative to the first column of this thread
            column = thread % 4 * 2
            own = place + thread // 32 * 16 + thread % 32 // 4 + 8 * half - column
            end = exist - column
            if const_expr(self.right):
                end = min(end, own + numbers.right + 1)
            for n in range_constexpr(self.config.tile_n // 8):
                for c in range_constexpr(2):
                    seen = end > 8 * n + c
                    if const_expr(self.left):
                        seen = seen & (own - numbers.left <= 8 * n + c)
                    value = scores[(c, half, n), 0, 0]
                    scores[(c, half, n), 0, 0] = value if seen else Float32(-float("inf"))

    def make_weights(self, scores: Any, known: Any, seen: Any, numbers: Any) -> None:
        """P = exp(S - logarithms), times the slopes at the scores. `seen`: sequence, head, first query and key, place of the query in the block, the slope of the head."""
        change = self.change
        batch, head, query, key, place, of_head = seen
        distance: Any = None
        if change:
            thread = only_here(arch.thread_idx()[0]) % GROUP
            row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
            query, key, distance = query + row, key + column, Float32(column - place - row)
        for n in range(self.config.tile_n // 8):
            for half in range(2):
                for c in range(2):
                    at = ((c, half, n), 0, 0)
                    score, slope = scores[at], None
                    of_cap = arch.fmax(1.0 - score * score, 0.0) if self.capped else None
                    if change:
                        natural = change.lowered(
                            score * numbers.natural, of_head, distance + float(8 * n + c - 8 * half)
                        )
                        made, slope = change.applied(natural, (batch, head, query + 8 * half, key + 8 * n + c))
                        if slope is not None:
                            there = score > -float("inf")
                            made, slope = shown(there, made, -float("inf")), shown(there, slope, 0.0)
                        score = made
                    weight = arch.exp2(cute.math.fma(score, numbers.scale, -known[0, half]))
                    for factor in (of_cap, slope):
                        weight = weight if factor is None else weight * factor
                    scores[at] = weight

    def make_changes(self, products: Any, known: Any) -> None:
        """dS = P (dP - sums), in the type of operands: eight of a thread are one left operand."""
        weights, gradients = products.acc_scores, products.acc_gradients
        for k in range(self.config.tile_n // 16):
            for n in range(2 * k, 2 * k + 2):
                for half in range(2):
                    for c in range(2):
                        at = ((c, half, n), 0, 0)
                        gradients[at] = weights[at] * (gradients[at] - known[1, half])
            from_, to = (
                cute.make_tensor(x.iterator + 8 * k, cute.make_layout(8)) for x in (gradients, products.dq.left)
            )
            to.store(from_.load().to(self.dtype))
