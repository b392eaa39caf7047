"""The kernel of `flash_attention` for Hopper: one warp loads with the copy engine, warp groups multiply from shared memory.

Each warp group that computes has 64 queries. It begins the scores of the next block of keys, then adds the weights of this block
times its values to the outputs; while the tensor cores work on the latter it turns the scores into weights. Blocks of keys come from
the last that is seen to the first, so that those of which a query sees only a part are the first few (and, with windows, the last): their
scores are masked.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Boolean, Float32, Int32, Int64, const_expr, cute, pipeline, utils
from .....cute import arch
from .....cute.nvgpu import cpasync, warpgroup
from .....utils import LayoutEnum, sm90
from ....parts.pipelines import tma_pipe
from .query_tile import VALUES
from .sm80_mainloop import hiding
from .sm90_config import ROWS, padded
from .sm90_epilogue import Epilogue
from .sm90_mainloop import Products, Softmax
from .sm90_producer import Loader
from .sm90_scheduler import Tiles, Told
from .sm90_scores import Scores, Seen

if TYPE_CHECKING:
    from .sm90_config import Sm90AttentionConfig

GROUP = 128
"""Threads of a warp group."""
_CLEARING = 8
"""The barrier at which all warp groups meet after they cleared values."""
_FEW = 8
"""Parts of queries in shared memory for which there are uniform registers all through the loop."""


class Numbers(NamedTuple):
    """Factors of the scores (in powers of two) and of the cap, factor that makes scores what functions are given, keys seen before and
    after a query's own, heads that are done side by side, blocks of threads."""

    scale: Any
    cap: Any
    natural: Any
    left: Any
    right: Any
    group: Any
    blocks: Any


class More(NamedTuple):
    """Arrays that there may be: where sequences begin, how many of their keys exist, pages, slopes (sequence or 1, head), logits of sinks
    (head), a counter of tiles that are taken, and factors of queries, keys and values (sequence, head of keys)."""

    starts_q: Any = None
    starts_k: Any = None
    used: Any = None
    table: Any = None
    slopes: Any = None
    sinks: Any = None
    counter: Any = None
    factors_q: Any = None
    factors_k: Any = None
    factors_v: Any = None


class Order:
    """Warp groups begin their products in turns: while the tensor cores work for one, the others have time for their softmax."""

    __kiln_immutable__ = True

    def __init__(self, config: Sm90AttentionConfig, group: Any) -> None:
        following = (group + 1) % config.consumer_warpgroups
        self.own, self.next = (
            pipeline.NamedBarrier(1 + config.consumer_warpgroups + x, 2 * GROUP) for x in (group, following)
        )

    def wait(self) -> None:
        """Until it is this warp group's turn."""
        self.own.arrive_and_wait()

    def pass_on(self) -> None:
        """Let the next one begin."""
        self.next.arrive()


class Sm90ForwardKernel:
    """The kernel for some tiles and masks (right, left, cap). `own_outputs`: outputs have shared memory of their own. `share`: heads
    whose queries are in one tile. `packed`: sequences lie one after another; `partial`: not all keys exist. `sloped`: scores
    have slopes. `page`: keys and values lie in pages of so many rows. `out_dtype`: the type of outputs, where it is
    another. `score`: a function of scores.

    Values of 8 bits come as `transpose_v_kernel` lays them: (batch or 1, element, head, place of a key)."""

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], config: Sm90AttentionConfig, masks: tuple[bool, bool, bool],
        own_outputs: bool, share: int = 1, packed: bool = False, partial: bool = False, sloped: bool = False, page: int = 0,
        out_dtype: Any = None, score: Any = None,
    ) -> None:  # fmt: skip
        self.dtype, self.config, self.own_outputs = dtype, config, own_outputs
        self.narrow, self.out_dtype = dtype.width == 8, dtype if out_dtype is None else out_dtype
        # in shared memory; what arrays do not have is zeros there
        self.dim, self.dim_v = (padded(dim, dtype.width) for dim in head_dims)
        self.right, self.left, self.capped = masks
        self.share, self.packed, self.partial, self.sloped, self.score = (
            share,
            packed,
            partial or page > 0,
            sloped,
            score,
        )
        # what one copy brings: a block of keys, or a part of it that is in one page; values of 8 bits lie in no pages
        self.page, self.piece = page, math.gcd(page, config.tile_n)
        self.piece_v = config.tile_n if self.narrow else self.piece
        # many small copies: a warp for keys, and one for values
        self.two_load = self.piece_v < config.tile_n
        self.frees_queries = "after"
        """When the next queries may be loaded: at once if they stay in registers; with the last scores, which takes instructions in each
        step and is worth it where tiles are short; after all steps; or not before outputs are stored."""
        if not own_outputs:
            self.frees_queries = "not before"
        elif config.q_in_regs:
            self.frees_queries = "at once"
        elif masks[0]:
            self.frees_queries = "with scores"
        self.one_loop = (self.right or self.left) and (self.dim_v > 128 or score is not None)
        """Whether blocks that are masked and whole ones go through the same code, which has a branch around the mask: three quarters of
        the code to compile. Others run 1 to 2 % longer so."""
        self.bits = self.one_loop or self.left or not (self.capped or sloped)
        """Whether masks are bits of a number, or comparisons. Caps and slopes under a causal mask were not seen to gain by bits."""
        self.looks_again = self.one_loop and self.narrow
        """Whether what masks depend on is read again in each block that has one: few registers are left in the others."""
        parts = self.dim * dtype.width // 256
        self.begins_here = not config.q_in_regs and parts > _FEW and not (self.capped and self.dim_v > 128)
        """Whether where parts of queries in shared memory begin is computed in each step (`begun_here`). Capped heads of 256 run 2 % longer so."""
        # looking up pages takes some more
        self.registers = (40, 232) if page and config.consumer_warpgroups == 2 else config.registers

    # --- how tiles lie ---

    @property
    def rows(self) -> Any:
        """The rows of a warp group: queries, or heads and queries."""
        return ROWS if self.share == 1 else (self.share, ROWS // self.share)

    def row_tile(self, number: Any) -> Any:
        """The coordinate of a warp group's rows."""
        return number if self.share == 1 else (0, number)

    def mma_scores(self) -> Any:
        """The product of 64 queries and a block of keys."""
        major = warpgroup.OperandMajorMode.K
        source = warpgroup.OperandSource.RMEM if self.config.q_in_regs else warpgroup.OperandSource.SMEM
        return sm90.make_trivial_tiled_mma(
            self.dtype, self.dtype, major, major, Float32, (1, 1, 1), (ROWS, self.config.tile_n), source
        )

    def mma_outputs(self) -> Any:
        """The product of the weights of 64 queries, in registers, and a block of values."""
        majors = (
            warpgroup.OperandMajorMode.K,
            warpgroup.OperandMajorMode.K if self.narrow else warpgroup.OperandMajorMode.MN,
        )
        source = warpgroup.OperandSource.RMEM
        return sm90.make_trivial_tiled_mma(
            self.dtype, self.dtype, *majors, Float32, (1, 1, 1), (ROWS, self.dim_v), source
        )

    def layouts(self, keys: int) -> tuple[Any, Any, Any, Any]:
        """Queries (row, element, group), so many keys (row, element, buffer) and values (element, row, buffer), outputs (row, element,
        group)."""
        of, rows = self.config, LayoutEnum.ROW_MAJOR
        return (
            sm90.make_smem_layout_a(rows, (ROWS, keys, self.dim), self.dtype, of.consumer_warpgroups),
            sm90.make_smem_layout_b(rows, (ROWS, keys, self.dim), self.dtype, of.kv_stages),
            sm90.make_smem_layout_b(
                rows if self.narrow else LayoutEnum.COL_MAJOR, (ROWS, self.dim_v, keys), self.dtype, of.kv_stages
            ),
            sm90.make_smem_layout_epi(self.out_dtype, rows, (ROWS, self.dim_v), of.consumer_warpgroups),
        )

    def rows_of(self, x: Any, transposed: bool = False, share: int = 1) -> Any:
        """(batch, row, head, element) as (row, element, head, batch), or with the first two modes exchanged; `share` heads in
        succession are in the mode of rows, before them.

        Strides are multiples of 16 bytes, but those of modes of one element, which do not matter.
        """
        batch, row, head, element = x.shape
        at_once = 128 // x.element_type.width
        of_batch, of_row, of_head = (cute.assume(s // at_once * at_once, divby=at_once) for s in x.stride[:3])
        if share > 1:
            row, of_row, head, of_head = (share, row), (of_head, of_row), head // share, of_head * share
        inner = ((element, row), (1, of_row)) if transposed else ((row, element), (of_row, 1))
        layout = cute.make_layout((*inner[0], head, batch), stride=(*inner[1], of_head, of_batch))
        return cute.make_tensor(x.iterator, layout)

    @cute.jit
    def __call__(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: Any, more: Any, numbers: Any,
        stream: Int64,
    ):  # fmt: skip
        """Launch it for `More` and `Numbers`."""
        tile_q, _, _, tile_o = (cute.slice_(x, (None, None, 0)) for x in self.layouts(self.config.tile_n))
        tile_k, tile_v = (
            cute.slice_(self.layouts(piece)[n], (None, None, 0)) for n, piece in ((1, self.piece), (2, self.piece_v))
        )
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        share = self.share
        maps = (
            *cpasync.make_tiled_tma_atom(load, self.rows_of(q, False, share), tile_q, (self.rows, self.dim)),
            *cpasync.make_tiled_tma_atom(load, self.rows_of(k), tile_k, (self.piece, self.dim)),
            *cpasync.make_tiled_tma_atom(load, self.rows_of(v, not self.narrow), tile_v, (self.dim_v, self.piece_v)),
            *cpasync.make_tiled_tma_atom(store, self.rows_of(out, False, share), tile_o, (self.rows, self.dim_v)),
        )
        queries, keys = q.shape[1], k.shape[1]
        if const_expr(self.page > 0):
            keys = more.table.shape[1] * self.page
        self.kernel(*maps, out, queries, keys, lse, more, numbers).launch(
            grid=(numbers.blocks, 1, 1), block=(self.config.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, load_q: cute.CopyAtom, q: cute.Tensor, load_k: cute.CopyAtom, k: cute.Tensor, load_v: cute.CopyAtom,
        v: cute.Tensor, store_o: cute.CopyAtom, o: cute.Tensor, out: cute.Tensor, queries: Int32, keys: Int32, lse: Any,
        more: Any, numbers: Any,
    ):  # fmt: skip
        of = self.config
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for atom in (load_q, load_k, load_v, store_o):
                cpasync.prefetch_descriptor(atom)
        memory = utils.SmemAllocator()
        layouts = self.layouts(of.tile_n)
        tile_q, ring_k, ring_v = (memory.allocate_tensor(self.dtype, x.outer, 1024, x.inner) for x in layouts[:3])
        outputs = layouts[3]
        if const_expr(self.own_outputs):
            tile_o = memory.allocate_tensor(self.out_dtype, outputs.outer, 1024, outputs.inner)
        else:
            tile_o = cute.make_tensor(tile_q.iterator, outputs.outer)
        size = self.dtype.width // 8
        pipe_q, pipe_k, pipe_v = (
            tma_pipe(stages, of.consumer_warpgroups * GROUP // 32, count)
            for stages, count in (
                (1, of.tile_m * self.dim * size),
                (of.kv_stages, of.tile_n * self.dim * size),
                (of.kv_stages, of.tile_n * self.dim_v * size),
            )
        )
        told = Told.create(memory, self.packed or self.partial, of.consumer_warpgroups * GROUP // 32 + self.two_load)
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        batches = q.shape[3]
        if const_expr(self.packed):
            batches = more.starts_q.shape[0] - 1
        tiles = Tiles(self, queries, keys, q.shape[2], batches, more, numbers)
        producer_q, consumer_q = pipe_q.make_participants()
        producer_k, consumer_k = pipe_k.make_participants()
        producer_v, consumer_v = pipe_v.make_participants()
        telling, hearing = told.pipe.make_participants()

        if warp < GROUP // 32:
            arch.setmaxregister_decrease(self.registers[0])
            loader = Loader(
                self, ((load_q, q), (load_k, k), (load_v, v)), tiles, (tile_q, ring_k, ring_v), told, more.table
            )
            if warp == 0:
                loader.run(telling, (producer_q, producer_k, None if self.two_load else producer_v), more.counter)
            if const_expr(self.two_load):
                if warp == 1:
                    loader.run_values(told.pipe.make_consumer(), producer_v)
        else:
            arch.setmaxregister_increase(self.registers[1])
            group = warp // 4 - 1
            thread = arch.thread_idx()[0] % GROUP
            products = Products(self, thread, tile_q[None, None, group], ring_k, ring_v)
            changed = self.capped or self.sloped or self.score is not None
            softmax = Softmax(self, products, numbers.scale, more.factors_q is not None and not changed)
            scores = Scores(self, products.scores, numbers, more.slopes, more.factors_q is not None)
            epilogue = Epilogue(self, products, softmax, group, store_o, o, tile_o)
            parts = (products, softmax, scores, Order(of, group), pipe_v)
            used_v = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, of.kv_stages)
            if const_expr(of.pingpong) and group == of.consumer_warpgroups - 1:
                Order(of, group).pass_on()
            slot = hearing.wait_and_advance()
            work = told.heard(slot, tiles)
            while work.tile >= 0:
                last, steps, masked, whole = tiles.span(work, group if of.skips else None)
                seen = self.seen(work, group)
                softmax.begin()
                head_k = work.head // (q.shape[2] // k.shape[2])
                if const_expr(more.factors_q is not None):
                    factors: Any = (more.factors_q, more.factors_k)
                    factor = factors[0][work.batch, head_k] * factors[1][work.batch, head_k]
                    softmax.scales[0], scores.factor[0] = hiding(numbers.scale * factor), factor
                if const_expr(of.skips and self.right):
                    latest = tiles.span(work).last
                    for i in range(self.turns(latest - last)):
                        consumer_k.wait_and_advance().release()
                        skipped = consumer_v.wait_and_advance()
                        self.clear_if_needed(ring_v, skipped, group, work.keys - (latest - i) * of.tile_n)
                        pipe_v.consumer_release(used_v)
                        used_v.advance()
                filled_q = consumer_q.wait_and_advance()
                if const_expr(of.q_in_regs):
                    products.take_queries()
                    if const_expr(self.frees_queries == "at once"):
                        filled_q.release()
                filled_k = consumer_k.wait_and_advance()
                warpgroup.fence()
                products.begin_scores(filled_k.index)
                warpgroup.wait_group(0)
                filled_k.release()
                self.free_queries(filled_q, steps - 1)
                scores.change(last, seen)
                scores.mask(last, lambda seen=seen: seen, True)
                softmax.powers(False)
                softmax.make_weights()
                filled_v = consumer_v.wait_and_advance()
                self.clear_if_needed(ring_v, filled_v, group, work.keys - last * of.tile_n)
                look = lambda slot=slot, seen=seen: (
                    self.seen(told.heard(slot, tiles), group) if self.looks_again else seen
                )
                given = (parts, consumer_k, consumer_v, used_v, last, seen, look, filled_q, steps)
                begin, whole_from, whole_to = Int32(1), 1 + masked, 1 + masked + whole
                if const_expr(self.one_loop):
                    first, below = last - steps + 1, last - masked
                    for i in range(1 - last, 1 - first):  # blocks before the last, backwards
                        block, part = -i, Boolean(False)
                        if const_expr(self.right):
                            part = block >= below
                        if const_expr(self.left):
                            part = part | (block < below - whole)
                        self.step(given, block, block - first, part)
                elif const_expr(self.left and self.right):
                    # twice at most, by the same code: blocks at the right end, whole ones; then those at the left end
                    while begin < steps:
                        self.run_steps(given, begin, whole_from, True)
                        self.run_steps(given, whole_from, whole_to, False)
                        begin, whole_from, whole_to = whole_to, steps, steps
                else:
                    if const_expr(self.right):
                        self.run_steps(given, begin, whole_from, True)
                    self.run_steps(given, whole_from, whole_to, False)
                    if const_expr(self.left):
                        self.run_steps(given, whole_to, steps, True)
                if const_expr(self.frees_queries == "after"):
                    filled_q.release()
                warpgroup.fence()
                products.begin_outputs(used_v.index)
                warpgroup.wait_group(0)
                pipe_v.consumer_release(used_v)
                used_v.advance()
                if const_expr(of.skips):
                    tile = told.heard(slot, tiles)
                    whole_span, own_span = tiles.span(tile), tiles.span(tile, group)
                    left = whole_span.steps - whole_span.last + own_span.last - own_span.steps
                    for _ in range(self.turns(left)):
                        consumer_k.wait_and_advance().release()
                        consumer_v.wait_and_advance()
                        pipe_v.consumer_release(used_v)
                        used_v.advance()
                # Where results go is read again, not kept in registers that the loops need.
                epilogue.finish(told.heard(slot, tiles), out, lse, more.sinks, more.factors_v)
                if const_expr(not self.own_outputs):
                    epilogue.wait_for_store()
                    filled_q.release()
                slot.release()
                slot = hearing.wait_and_advance()
                work = told.heard(slot, tiles)
            epilogue.wait_for_store()
            if const_expr(of.pingpong) and group == 0:
                Order(of, group).wait()

    def turns(self, count: Any) -> Any:
        """As many turns of a loop in all threads of a warp, which ptxas may have to know to keep operands of products in uniform registers."""
        return arch.make_warp_uniform(count) if self.begins_here else count

    def seen(self, work: Any, group: Any) -> Seen:
        """What the scores of a warp group are of."""
        row = work.tile * self.config.tile_m + group * ROWS
        return Seen(row, work.head, work.batch, work.queries, work.keys)

    @cute.jit
    def free_queries(self, filled_q: Any, left: Int32):
        """Let the next queries be loaded when there are no more scores to come."""
        if const_expr(self.frees_queries == "with scores"):
            if left == 0:
                filled_q.release()

    @cute.jit
    def run_steps(self, given: Any, begin: Int32, end: Int32, masked: bool):
        """Steps of the numbers from `begin` to `end`: their blocks come before the last one."""
        last, steps = given[4], given[8]
        for i in range(begin, end):
            self.step(given, last - i, steps - 1 - i, masked)

    def step(self, given: Any, block: Any, left: Any, part: Any) -> None:
        """A block of keys: its scores, and beside them the outputs of the block before. `part`: not all of the block is seen."""
        (products, softmax, scores, order, pipe_v), consumer_k, consumer_v, used_v, _, seen, look, filled_q, _ = given
        filled_k = consumer_k.wait_and_advance()
        if self.config.pingpong:
            order.wait()
        warpgroup.fence()
        products.begin_scores(filled_k.index)
        products.begin_outputs(used_v.index)
        if self.config.pingpong:
            order.pass_on()
        warpgroup.wait_group(1)
        filled_k.release()
        self.free_queries(filled_q, left)
        scores.change(block, seen)
        scores.mask(block, look, part)
        softmax.powers(self.config.lazy_rescale)
        # The values of this block are for the next step. Waiting for them is a loop in the machine code, before which ptxas leaves the
        # softmax: without it, it puts most of that off until the outputs are complete.
        consumer_v.wait_and_advance()
        warpgroup.wait_group(0)
        pipe_v.consumer_release(used_v)
        used_v.advance()
        if self.config.lazy_rescale:
            softmax.rescale_if_raised()
        else:
            softmax.rescale()
        softmax.make_weights()

    def clear_if_needed(self, ring_v: Any, filled_v: Any, group: Any, rows: Any) -> None:
        """Clear a buffer of values after so many rows, where not all may exist."""
        if (self.packed or self.partial) and not self.narrow:
            self.clear(ring_v[None, None, filled_v.index], group, rows)

    @cute.jit
    def clear(self, values: cute.Tensor, group: Int32, rows: Int32):
        """Fill values (element, row) with zeros after so many rows: what is there has weight 0, but may not be a number.

        All warp groups do that together.
        """
        tile_n, chunks = self.config.tile_n, self.dim_v // VALUES
        if rows < tile_n:
            zeros = cute.make_rmem_tensor((VALUES,), self.dtype)
            zeros.fill(0.0)
            first = group * GROUP + arch.thread_idx()[0] % GROUP
            for i in range(max(rows, 0) * chunks + first, tile_n * chunks, self.config.consumer_warpgroups * GROUP):
                start = cute.domain_offset((i % chunks * VALUES, i // chunks), values).iterator
                cute.autovec_copy(zeros, cute.make_tensor(start.with_alignment(16), cute.make_layout((VALUES,))))
            arch.fence_proxy("async.shared", space="cta")
            pipeline.NamedBarrier(_CLEARING, self.config.consumer_warpgroups * GROUP).arrive_and_wait()


sm90_forward_kernel = functools.lru_cache(maxsize=1024)(Sm90ForwardKernel)
