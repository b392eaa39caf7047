"""The kernel of `flash_attention` for Hopper: one warp loads with the copy engine, warp groups multiply from shared memory.

Each warp group that computes has 64 queries. It begins the scores of the next block of keys, then adds the weights of this block
times its values to the outputs; while the tensor cores work on the latter it turns the scores into weights. Blocks of keys come from
the last that is seen to the first, so that those of which a query sees only a part are the first few, and have a loop of their own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

from ... import Float32, Int32, Int64, const_expr, cute, pipeline, range_constexpr, utils
from ...cute import arch
from ...cute.nvgpu import cpasync, warpgroup
from ...utils import LayoutEnum, sm90
from .hopper_epilogue import Epilogue
from .hopper_plan import ROWS
from .hopper_steps import Products, Softmax
from .tile import VALUES, only_here

if TYPE_CHECKING:
    from .hopper_plan import HopperAttentionTiling

GROUP = 128
"""Threads of a warp group."""


class Numbers(NamedTuple):
    """Factors of the scores (in powers of two) and of the cap, keys seen before and after a query's own, heads that are done side by
    side, blocks of threads."""

    scale: Any
    cap: Any
    left: Any
    right: Any
    group: Any
    blocks: Any


class Work(NamedTuple):
    """A tile of queries, its head and sequence."""

    tile: Any
    head: Any
    batch: Any


class Span(NamedTuple):
    """The blocks of keys that a tile sees: the last, how many, how many of them are masked at the end, and how many are not at the
    beginning, the last not counted."""

    last: Any
    steps: Any
    masked: Any
    whole: Any


class Order:
    """Warp groups begin their products in turns: while the tensor cores work for one, the others have time for their softmax."""

    __kiln_immutable__ = True

    def __init__(self, tiling: HopperAttentionTiling, group: Any) -> None:
        following = (group + 1) % tiling.groups
        self.own, self.next = (pipeline.NamedBarrier(1 + tiling.groups + x, 2 * GROUP) for x in (group, following))

    def wait(self) -> None:
        """Until it is this warp group's turn."""
        self.own.arrive_and_wait()

    def pass_on(self) -> None:
        """Let the next one begin."""
        self.next.arrive()


class HopperForward:
    """The kernel for some tiles and masks (right, left, cap). `own_outputs`: outputs have shared memory of their own."""

    def __init__(
        self, dtype: Any, head_dims: tuple[int, int], tiling: HopperAttentionTiling, masks: tuple[bool, bool, bool],
        own_outputs: bool,
    ) -> None:  # fmt: skip
        self.dtype, self.tiling, self.own_outputs = dtype, tiling, own_outputs
        self.dim, self.dim_v = head_dims
        self.right, self.left, self.capped = masks

    # --- how tiles lie ---

    def mma_scores(self) -> Any:
        """The product of 64 queries and a block of keys."""
        major = warpgroup.OperandMajorMode.K
        return sm90.make_trivial_tiled_mma(
            self.dtype, self.dtype, major, major, Float32, (1, 1, 1), (ROWS, self.tiling.block_k)
        )

    def mma_outputs(self) -> Any:
        """The product of the weights of 64 queries, in registers, and a block of values."""
        majors = warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN
        source = warpgroup.OperandSource.RMEM
        return sm90.make_trivial_tiled_mma(
            self.dtype, self.dtype, *majors, Float32, (1, 1, 1), (ROWS, self.dim_v), source
        )

    def layouts(self) -> tuple[Any, Any, Any, Any]:
        """Queries (row, element, group), keys (row, element, buffer), values (element, row, buffer), outputs (row, element, group)."""
        of, rows, keys = self.tiling, LayoutEnum.ROW_MAJOR, self.tiling.block_k
        return (
            sm90.make_smem_layout_a(rows, (ROWS, keys, self.dim), self.dtype, of.groups),
            sm90.make_smem_layout_b(rows, (ROWS, keys, self.dim), self.dtype, of.stages),
            sm90.make_smem_layout_b(LayoutEnum.COL_MAJOR, (ROWS, self.dim_v, keys), self.dtype, of.stages),
            sm90.make_smem_layout_epi(self.dtype, rows, (ROWS, self.dim_v), of.groups),
        )

    def rows_of(self, x: Any, transposed: bool = False) -> Any:
        """(batch, row, head, element) as (row, element, head, batch), or with the first two modes exchanged.

        Strides are multiples of 16 bytes, but those of modes of one element, which do not matter.
        """
        batch, row, head, element = x.shape
        strides = [cute.assume(s // VALUES * VALUES, divby=VALUES) for s in x.stride[:3]]
        inner = ((element, row), (1, strides[1])) if transposed else ((row, element), (strides[1], 1))
        layout = cute.make_layout((*inner[0], head, batch), stride=(*inner[1], strides[2], strides[0]))
        return cute.make_tensor(x.iterator, layout)

    @cute.jit
    def __call__(
        self, q: cute.Tensor, k: cute.Tensor, v: cute.Tensor, out: cute.Tensor, lse: Any, numbers: Any, stream: Int64
    ):
        """Launch it for `Numbers`."""
        tile_q, tile_k, tile_v, tile_o = (cute.slice_(x, (None, None, 0)) for x in self.layouts())
        load, store = cpasync.CopyBulkTensorTileG2SOp(), cpasync.CopyBulkTensorTileS2GOp()
        block_k = self.tiling.block_k
        maps = (
            *cpasync.make_tiled_tma_atom(load, self.rows_of(q, False), tile_q, (ROWS, self.dim)),
            *cpasync.make_tiled_tma_atom(load, self.rows_of(k, False), tile_k, (block_k, self.dim)),
            *cpasync.make_tiled_tma_atom(load, self.rows_of(v, True), tile_v, (self.dim_v, block_k)),
            *cpasync.make_tiled_tma_atom(store, self.rows_of(out, False), tile_o, (ROWS, self.dim_v)),
        )
        self.kernel(*maps, lse, numbers).launch(
            grid=(numbers.blocks, 1, 1), block=(self.tiling.threads, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    # --- which tile, and which keys it sees ---

    @cute.jit
    def turns(self, tiles: Int32, heads: Int32, batches: Int32, blocks: Int32):
        """How many tiles this block of threads has."""
        rounds = cute.ceil_div(tiles * heads * batches, blocks)
        last = self.number(rounds - 1, blocks)
        return rounds if last < tiles * heads * batches else rounds - 1

    def number(self, turn: Any, blocks: Any) -> Any:
        """Which tile of all it has in a turn: there and back again, so that none has the longest of each turn."""
        block = Int32(arch.block_idx()[0])
        back = Int32(turn % 2)
        return turn * blocks + block + back * (blocks - 1 - 2 * block)

    @cute.jit
    def work(self, turn: Int32, tiles: Int32, heads: Int32, numbers: Any):
        """What a block of threads does in a turn.

        The tiles of `group` heads are done side by side, to find each other's keys in the L2 cache, and the last tiles, which
        see most keys where later ones are hidden, first.
        """
        number = self.number(turn, numbers.blocks)
        batch, rest = number // (tiles * heads), number % (tiles * heads)
        first, rest = rest // (tiles * numbers.group) * numbers.group, rest % (tiles * numbers.group)
        beside = min(numbers.group, heads - first)
        return Work(tiles - 1 - rest // beside, first + rest % beside, batch)

    @cute.jit
    def span(self, tile: Int32, queries: Int32, keys: Int32, numbers: Any):
        """The keys that the queries of a tile see: a query at position p sees those from p - left to p + right, both included.

        Where they see none, it is one block, all of it masked.
        """
        block_q, block_k = self.tiling.block_q, self.tiling.block_k
        position = tile * block_q + keys - queries
        end, whole_end = keys, keys
        if const_expr(self.right):
            end = min(keys, position + block_q + numbers.right)
            whole_end = max(Int32(0), min(keys, position + numbers.right + 1))
        begin, whole_begin = Int32(0), Int32(0)
        if const_expr(self.left):
            begin = max(Int32(0), position - numbers.left)
            whole_begin = max(Int32(0), position + block_q - 1 - numbers.left)
        last = max(cute.ceil_div(end, block_k), Int32(1)) - 1
        first = begin // block_k
        steps = last - first + 1
        # the blocks that are whole are those from `low` to `high`, both included
        high = min(last - 1, whole_end // block_k - 1)
        low = max(first, cute.ceil_div(whole_begin, block_k))
        whole = max(high - low + 1, Int32(0))
        masked = min(last - 1 - high, steps - 1) if const_expr(self.right) else Int32(0)
        return Span(last, steps, masked, min(whole, steps - 1 - masked))

    # --- the kernel ---

    @cute.kernel
    def kernel(
        self, load_q: cute.CopyAtom, q: cute.Tensor, load_k: cute.CopyAtom, k: cute.Tensor, load_v: cute.CopyAtom,
        v: cute.Tensor, store_o: cute.CopyAtom, o: cute.Tensor, lse: Any, numbers: Any,
    ):  # fmt: skip
        of = self.tiling
        warp = arch.make_warp_uniform(arch.warp_idx())
        if warp == 0:
            for atom in (load_q, load_k, load_v, store_o):
                cpasync.prefetch_descriptor(atom)
        memory = utils.SmemAllocator()
        layouts = self.layouts()
        tile_q, ring_k, ring_v = (memory.allocate_tensor(self.dtype, x.outer, 1024, x.inner) for x in layouts[:3])
        outputs = layouts[3]
        if const_expr(self.own_outputs):
            tile_o = memory.allocate_tensor(self.dtype, outputs.outer, 1024, outputs.inner)
        else:
            tile_o = cute.make_tensor(tile_q.iterator, outputs.outer)
        bytes_q = of.block_q * self.dim * 2
        pipe_q, pipe_k, pipe_v = (
            pipeline.PipelineTmaAsync.create(
                num_stages=stages,
                producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
                consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, of.groups * GROUP // 32),
                tx_count=size,
                defer_sync=True,
            )
            for stages, size in (
                (1, bytes_q),
                (of.stages, of.block_k * self.dim * 2),
                (of.stages, of.block_k * self.dim_v * 2),
            )
        )
        pipeline.pipeline_init_arrive()
        pipeline.pipeline_init_wait()
        queries, keys, heads, batches = q.shape[0], k.shape[0], q.shape[2], q.shape[3]
        share = heads // k.shape[2]
        tiles = cute.ceil_div(queries, of.block_q)
        turns = self.turns(tiles, heads, batches, numbers.blocks)
        producer_q, consumer_q = pipe_q.make_participants()
        producer_k, consumer_k = pipe_k.make_participants()
        producer_v, consumer_v = pipe_v.make_participants()

        if warp < GROUP // 32:
            arch.setmaxregister_decrease(of.registers[0])
            if warp == 0:
                to_q, of_q = self.parts(load_q, tile_q, cute.local_tile(q, (ROWS, self.dim), (None, 0, None, None)))
                to_k, of_k = self.parts(
                    load_k, ring_k, cute.local_tile(k, (of.block_k, self.dim), (None, 0, None, None))
                )
                to_v, of_v = self.parts(
                    load_v, ring_v, cute.local_tile(v, (self.dim_v, of.block_k), (0, None, None, None))
                )
                for turn in range(turns):
                    tile, head, batch = self.work(turn, tiles, heads, numbers)
                    last, steps, _, _ = self.span(tile, queries, keys, numbers)
                    head_k = head // share
                    stage = producer_q.acquire_and_advance()
                    for group in range_constexpr(of.groups):
                        rows = of_q[None, tile * of.groups + group, head, batch]
                        cute.copy(load_q, rows, to_q[None, group], tma_bar_ptr=stage.barrier)
                    stage = producer_k.acquire_and_advance()
                    cute.copy(
                        load_k, of_k[None, last, head_k, batch], to_k[None, stage.index], tma_bar_ptr=stage.barrier
                    )
                    for i in range(1, steps):
                        stage = producer_k.acquire_and_advance()
                        cute.copy(
                            load_k,
                            of_k[None, last - i, head_k, batch],
                            to_k[None, stage.index],
                            tma_bar_ptr=stage.barrier,
                        )
                        stage = producer_v.acquire_and_advance()
                        cute.copy(
                            load_v,
                            of_v[None, last - i + 1, head_k, batch],
                            to_v[None, stage.index],
                            tma_bar_ptr=stage.barrier,
                        )
                    stage = producer_v.acquire_and_advance()
                    cute.copy(
                        load_v,
                        of_v[None, last - steps + 1, head_k, batch],
                        to_v[None, stage.index],
                        tma_bar_ptr=stage.barrier,
                    )
        else:
            arch.setmaxregister_increase(of.registers[1])
            group = warp // 4 - 1
            thread = arch.thread_idx()[0] % GROUP
            products = Products(self, thread, tile_q[None, None, group], ring_k, ring_v)
            softmax = Softmax(self, products, numbers.scale, numbers.cap)
            epilogue = Epilogue(self, products, softmax, group, store_o, o, tile_o)
            parts = (products, softmax, Order(of, group), pipe_v)
            used_v = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, of.stages)
            if const_expr(of.in_turns) and group == of.groups - 1:
                Order(of, group).pass_on()
            for turn in range(turns):
                tile, _, _ = self.work(turn, tiles, heads, numbers)
                last, steps, masked, whole = self.span(tile, queries, keys, numbers)
                # where the first query of this warp group is among the keys
                seen = (tile * of.block_q + group * ROWS + keys - queries, keys, numbers)
                softmax.begin()
                filled_q = consumer_q.wait_and_advance()
                filled_k = consumer_k.wait_and_advance()
                warpgroup.fence()
                products.begin_scores(filled_k.index)
                warpgroup.wait_group(0)
                filled_k.release()
                if const_expr(self.capped):
                    softmax.cap_scores()
                self.mask(products.scores, last, *seen)
                softmax.powers()
                softmax.make_weights()
                consumer_v.wait_and_advance()
                if const_expr(self.right):
                    for i in range(1, 1 + masked):
                        self.step(parts, consumer_k, consumer_v, used_v, last - i, seen, True)
                for i in range(1 + masked, 1 + masked + whole):
                    self.step(parts, consumer_k, consumer_v, used_v, last - i, seen, False)
                if const_expr(self.left):
                    for i in range(1 + masked + whole, steps):
                        self.step(parts, consumer_k, consumer_v, used_v, last - i, seen, True)
                if const_expr(self.own_outputs):
                    filled_q.release()
                warpgroup.fence()
                products.begin_outputs(used_v.index)
                warpgroup.wait_group(0)
                pipe_v.consumer_release(used_v)
                used_v.advance()
                # Where results go is found out again, not kept in registers that the loops need.
                epilogue.finish(lse, self.work(only_here(turn), tiles, heads, numbers), queries)
                if const_expr(not self.own_outputs):
                    epilogue.wait_for_store()
                    filled_q.release()
            epilogue.wait_for_store()
            if const_expr(of.in_turns) and group == 0:
                Order(of, group).wait()

    def parts(self, atom: Any, tile: Any, tiles: Any) -> tuple[Any, Any]:
        """Tiles in shared and global memory as the copy engine copies them."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(tiles, 0, 2)
        )

    def step(
        self, parts: Any, consumer_k: Any, consumer_v: Any, used_v: Any, block: Any, seen: Any, masked: bool
    ) -> None:
        """A block of keys: its scores, and beside them the outputs of the block before."""
        products, softmax, order, pipe_v = parts
        filled_k = consumer_k.wait_and_advance()
        if self.tiling.in_turns:
            order.wait()
        warpgroup.fence()
        products.begin_scores(filled_k.index)
        products.begin_outputs(used_v.index)
        if self.tiling.in_turns:
            order.pass_on()
        warpgroup.wait_group(1)
        filled_k.release()
        if self.capped:
            softmax.cap_scores()
        if masked:
            self.mask(products.scores, block, *seen)
        softmax.powers()
        # The values of this block are for the next step. Waiting for them is a loop in the machine code, before which ptxas leaves the
        # softmax: without it, it puts most of that off until the outputs are complete.
        consumer_v.wait_and_advance()
        warpgroup.wait_group(0)
        pipe_v.consumer_release(used_v)
        used_v.advance()
        softmax.rescale()
        softmax.make_weights()

    @cute.jit
    def mask(self, scores: cute.Tensor, block: Int32, position: Int32, keys: Int32, numbers: Any):
        """Hide the keys that a query does not see."""
        block_k = self.tiling.block_k
        thread = only_here(arch.thread_idx()[0]) % GROUP
        # the first row and column of this thread
        row, column = thread // 32 * 16 + thread % 32 // 4, thread % 4 * 2
        start = block * block_k + column
        for half in range_constexpr(2):
            # relative to the first column
            own = position + row + 8 * half - start
            end = keys - start
            if const_expr(self.right):
                end = min(end, own + numbers.right + 1)
            for n in range_constexpr(block_k // 8):
                for c in range_constexpr(2):
                    seen = end > 8 * n + c
                    if const_expr(self.left):
                        seen = seen & (own - numbers.left <= 8 * n + c)
                    value = scores[(c, half, n), 0, 0]
                    scores[(c, half, n), 0, 0] = value if seen else Float32(-float("inf"))


hopper_forward = functools.lru_cache(maxsize=1024)(HopperForward)
