"""What kernels of gradients for Hopper have in common: tiles of rows that the copy engine loads, which of their scores are hidden, and how results are stored."""

from __future__ import annotations

from typing import Any

from ..... import Boolean, Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import cpasync, warp, warpgroup
from .....utils import LayoutEnum, sm90
from ....parts.pipelines import tma_pipe
from ..fwd.query_tile import VALUES, only_here
from .sm90_config import GROUP, GROUPS
from .sm90_mainloop import ROWS, Seen


class Tiles:
    """How tiles of some rows are loaded, and results stored. `packed`: sequences lie one after another."""

    dtype: Any
    packed: bool

    def rows_of(self, x: Any) -> Any:
        """(batch, row, head, element) as (row, element, head, batch).

        Strides are multiples of 16 bytes, but those of modes of one element, which do not matter.
        """
        batch, row, head, element = x.shape
        strides = [cute.assume(s // VALUES * VALUES, divby=VALUES) for s in x.stride[:3]]
        layout = cute.make_layout((row, element, head, batch), stride=(strides[1], 1, strides[2], strides[0]))
        return cute.make_tensor(x.iterator, layout)

    def atom(self, op: Any, x: Any, layout: Any, rows: int, elements: int) -> Any:
        """What copies tiles of so many rows, and their coordinates."""
        return cpasync.make_tiled_tma_atom(op, self.rows_of(x), cute.slice_(layout, (None, None, 0)), (rows, elements))

    def ring(self, stages: int, size: int) -> Any:
        """Buffers that the copy engine fills, and both warp groups use."""
        return tma_pipe(stages, GROUPS * GROUP // 32, size)

    def cut(self, x: Any, first: Any, rows: int, elements: int) -> Any:
        """An array cut into tiles of so many rows, from the first row of the sequence on."""
        if self.packed:
            x = cute.domain_offset((first, 0, 0, 0), x)
        return cute.local_tile(x, (rows, elements), (None, 0, None, None))

    def parts(self, atom: Any, tile: Any, tiles: Any) -> tuple[Any, Any]:
        """Tiles in shared and global memory as the copy engine copies them."""
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(tiles, 0, 2)
        )

    def line(self, rows: Any, which: int) -> Any:
        """What is known of a block of queries (1, row, which): (row)."""
        line = rows[0, None, which]
        return cute.make_tensor(line.iterator.with_alignment(16), cute.make_layout(cute.size(rows, mode=[1])))

    def results(self, elements: int) -> Any:
        """Gradients of warp groups (row, element, group)."""
        return sm90.make_smem_layout_epi(self.dtype, LayoutEnum.ROW_MAJOR, (ROWS, elements), GROUPS)

    @cute.jit
    def clear(self, tiles: Any, there: Int32, thread: Int32, threads: int, meeting: int):
        """Fill tiles (row, element) with zeros after the rows that are there. Both warp groups meet when that is done."""
        zeros = cute.make_rmem_tensor((VALUES,), self.dtype)
        zeros.fill(0.0)
        for x in tiles:
            rows, chunks = cute.size(x, mode=[0]), cute.size(x, mode=[1]) // VALUES
            # no loop whose end depends on the thread: ptxas keeps no operand of products in uniform registers around one
            for n in range_constexpr(-(-rows * chunks // threads)):
                i = n * threads + thread
                start = cute.domain_offset((i // chunks, i % chunks * VALUES), x).iterator
                if i // chunks >= there and i < rows * chunks:
                    cute.autovec_copy(zeros, cute.make_tensor(start.with_alignment(16), cute.make_layout((VALUES,))))
        arch.fence_proxy("async.shared", space="cta")
        pipeline.NamedBarrier(meeting, GROUPS * GROUP).arrive_and_wait()

    @cute.jit
    def write(
        self, sums: cute.Tensor, factor: Float32, memory: cute.Tensor, target: Any, place: Any, slot: Int32, meeting: tuple[Any, int], again: bool, elements: int
    ):  # fmt: skip
        """Store gradients of 64 rows of a warp group, by way of shared memory that nobody needs any more. `place`: where the sequence begins, which of its 64s of rows these
        are, how many rows it has, head and layer; `slot`: which of the places for results is its own; `meeting`: a barrier, its number and threads; `again`: results were,
        and will be, stored from there: the copy engine is waited for before they are written, not after."""
        store, out, plain = target
        first, piece, rows, head, layer = place
        thread = only_here(arch.thread_idx()[0]) % GROUP
        rounded = cute.make_rmem_tensor(sums.shape, self.dtype)
        rounded.store((sums.load() * factor).to(self.dtype))
        mma = sm90.make_trivial_tiled_mma(
            self.dtype, self.dtype, warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN, Float32, (1, 1, 1), (ROWS, elements),
            warpgroup.OperandSource.RMEM,
        )  # fmt: skip
        write = cute.make_tiled_copy_C(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.dtype), mma)
        tiles = cute.make_tensor(memory.iterator, self.results(elements).outer)
        own = pipeline.NamedBarrier(*meeting)
        if const_expr(again):
            if arch.make_warp_uniform(arch.warp_idx()) % 4 == 0:
                arch.cp_async_bulk_wait_group(0, read=True)
            own.arrive_and_wait()
        cute.copy(write, write.retile(rounded), write.get_slice(thread).partition_D(tiles[None, None, slot]))
        arch.fence_proxy("async.shared", space="cta")
        own.arrive_and_wait()
        count = Int32(ROWS)
        if const_expr(self.packed):
            count = rows - piece * ROWS
        if count >= ROWS:
            if arch.make_warp_uniform(arch.warp_idx()) % 4 == 0:
                from_, to = self.parts(store, tiles, self.cut(out, first, ROWS, elements))
                cute.copy(store, from_[None, slot], to[None, piece, head, layer])
                arch.cp_async_bulk_commit_group()
                if const_expr(not again):
                    arch.cp_async_bulk_wait_group(0, read=True)
        if const_expr(self.packed):
            if count < ROWS:  # not beyond the sequence
                self.store_last(tiles[None, None, slot], plain, (first + piece * ROWS, head), count)

    @cute.jit
    def store_last(self, tile: cute.Tensor, out: cute.Tensor, place: Any, count: Int32):
        """Store so many rows, 16 bytes at a time."""
        first, head = place
        thread, chunks = arch.thread_idx()[0] % GROUP, out.shape[1] // VALUES
        held = cute.make_rmem_tensor((VALUES,), self.dtype)
        for i in range(thread, max(count, 0) * chunks, GROUP):
            row, column = i // chunks, cute.assume(i % chunks * VALUES, divby=VALUES)
            start = cute.domain_offset((row, column), tile).iterator.with_alignment(16)
            cute.autovec_copy(cute.make_tensor(start, cute.make_layout((VALUES,))), held)
            to = cute.domain_offset((first + row, column, head, 0), out).iterator
            cute.autovec_copy(held, cute.make_tensor(to.with_alignment(16), cute.make_layout((VALUES,))))


class KeyTiles(Tiles):
    """Tiles of so many `keys`, whose scores (key, query) with some queries are of 64 keys for each warp group. Masks are `right`, `left`."""

    config: Any
    keys: int
    right: bool
    left: bool

    @cute.jit
    def partly_hidden(self, edge: Int32, numbers: Any):
        """Whether some query of a block does not see some key of a warp group."""
        found = Boolean(False)
        if const_expr(self.right):
            found = edge + (ROWS - 1) > 0
        if const_expr(self.left):
            found = found | (edge + numbers.left + numbers.right + 1 < self.config.tile_m)
        return found

    @cute.jit
    def hide(self, scores: cute.Tensor, edge: Int32, exist: Int32, numbers: Any):
        """Give keys that a query does not see the weight 0: key r is seen by the queries from `edge` + r on, as far as it sees."""
        thread = only_here(arch.thread_idx()[0]) % GROUP
        for half in range_constexpr(2):
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * half
            # relative to the first column of this thread
            begin = edge + row - thread % 4 * 2
            # all or none: said by a product, no branch comes of it, which all scores would have to be carried around
            end = (only_here(exist) - row) * self.config.tile_m
            if const_expr(self.left):
                end = min(end, begin + numbers.left + numbers.right + 1)
            for n in range_constexpr(self.config.tile_m // 8):
                for c in range_constexpr(2):
                    seen = end > 8 * n + c
                    if const_expr(self.right):
                        seen = seen & (begin <= 8 * n + c)
                    value = scores[(c, half, n), 0, 0]
                    scores[(c, half, n), 0, 0] = value if seen else Float32(-float("inf"))

    @cute.jit
    def seen(self, edge: Int32, key: Int32, step: Int32, slopes: Any, blocks: Any, work: Any):
        """What scores of a step are of, `key` being the first of a warp group: sequence, head, the first query and key of this thread, their distance; the slope of
        the head."""
        thread, behind = only_here(arch.thread_idx()[0]) % GROUP, work.keys - work.queries
        head = work.head * blocks.share + step % blocks.share
        query = key - behind - blocks.numbers.right - edge + thread % 4 * 2
        key = key + thread // 32 * 16 + thread % 32 // 4
        slope = Float32(0.0)
        if const_expr(slopes is not None):
            slope = slopes[min(work.batch, slopes.shape[0] - 1), head]
        return Seen(work.batch, head, query, key, Float32(key - query - behind), slope)
