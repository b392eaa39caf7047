"""What the Hopper backward kernels share: tiles that TMA loads, masks of transposed scores, and stores of dK, dV and
dQ."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..... import Boolean, Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import cpasync, warp, warpgroup
from .....utils import LayoutEnum, sm90
from ....parts.attention_mask import accumulator_column, accumulator_row, mask_row
from ....parts.kv_producer import TmaTensor, gmem_view, partition
from ....parts.kv_source import VECTOR
from ....parts.pipelines import tma_pipe
from ....parts.rematerialize import rematerialized
from .sm90_config import WARPGROUP, WARPGROUP_ROWS, WARPGROUPS


class ScoreCoordinates(NamedTuple):
    """Coordinates of a thread's transposed scores: sequence, head, its first query and key, the distance of key and
    query, ALiBi slope."""

    batch: Any
    head: Any
    query: Any
    key: Any
    distance: Any
    slope: Any


class ResultRows(NamedTuple):
    """Where 64 rows of a gradient go: the sequence's first row, which 64 of its rows, how many it has, head and batch
    index."""

    first: Any
    number: Any
    count: Any
    head: Any
    layer: Any


def transposed(x: Any) -> Any:
    """Return a tile in smem with its first two modes exchanged."""
    return cute.make_tensor(x.iterator, cute.select(x.layout, mode=[1, 0, *range(2, cute.rank(x))]))


def round_to_operand(acc: Any, operand: Any, blocks: Any) -> None:
    """Convert K blocks of an accumulator into an A operand: eight of a thread's elements are one block of 16."""
    for k in blocks:
        source, target = (cute.make_tensor(x.iterator + 8 * k, cute.make_layout(8)) for x in (acc, operand))
        target.store(source.load().to(operand.element_type))


class TmaTiles:
    """Loads of tiles of rows, and stores of gradients."""

    dtype: Any
    varlen: bool

    def tma(self, op: Any, x: Any, layout: Any, rows: int, head_dim: int) -> TmaTensor:
        """Return the TMA operand of (batch, row, head, element) with tiles of so many rows."""
        tile = cute.slice_(layout, (None, None, 0))
        return TmaTensor(*cpasync.make_tiled_tma_atom(op, gmem_view(x), tile, (rows, head_dim)))

    def pipe(self, stages: int, size: int) -> Any:
        """Return a pipeline of TMA loads that both consumer warpgroups wait for."""
        return tma_pipe(stages, WARPGROUPS * WARPGROUP // 32, size)

    def tiles(self, operand: TmaTensor, smem: Any, first: Any, rows: int, head_dim: int) -> tuple[Any, Any]:
        """Return stages in smem and a sequence's tiles in gmem, partitioned for TMA."""
        tensor = cute.domain_offset((first, 0, 0, 0), operand.tensor) if self.varlen else operand.tensor
        return partition(operand.atom, smem, cute.local_tile(tensor, (rows, head_dim), (None, 0, None, None)))

    def result_layout(self, head_dim: int) -> Any:
        """Return the smem layout of the warpgroups' gradients (row, element, warpgroup)."""
        return sm90.make_smem_layout_epi(self.dtype, LayoutEnum.ROW_MAJOR, (WARPGROUP_ROWS, head_dim), WARPGROUPS)

    @cute.jit
    def clear(self, tiles: Any, rows: Int32, thread: Int32, threads: int, barrier: int):
        """Zero the rows of tiles (row, element) that do not exist. Consumer warpgroups meet at a barrier when that is
        done."""
        zeros = cute.make_rmem_tensor((VECTOR,), self.dtype)
        zeros.fill(0.0)
        for x in tiles:
            tile_rows, vectors = cute.size(x, mode=[0]), cute.size(x, mode=[1]) // VECTOR
            count = tile_rows * vectors
            # no loop whose end depends on the thread: ptxas keeps no WGMMA descriptor in uniform registers across one
            for n in range_constexpr(-(-count // threads)):
                i = n * threads + thread
                row, vector = i // vectors, i % vectors
                if const_expr(threads % vectors == 0):
                    row, vector = n * (threads // vectors) + thread // vectors, thread % vectors
                missing = row >= rows
                if const_expr(count % threads):
                    missing = missing & (i < count)
                start = cute.domain_offset((row, vector * VECTOR), x).iterator
                if missing:
                    cute.autovec_copy(zeros, cute.make_tensor(start.with_alignment(16), cute.make_layout((VECTOR,))))
        arch.fence_proxy("async.shared", space="cta")
        pipeline.NamedBarrier(barrier, WARPGROUPS * WARPGROUP).arrive_and_wait()

    @cute.jit
    def store_gradient(
        self, acc: cute.Tensor, scale: Float32, smem: cute.Tensor, target: Any, gmem: Any, rows: Any, slot: Int32,
        barrier: Any, repeated: bool, head_dim: int,
    ):  # fmt: skip
        """Store 64 rows of a gradient, times `scale`, through slot `slot` of smem that is not needed any more.

        `target` is a TMA operand, `gmem` the plain tensor for the last rows of a varlen sequence, `rows` the
        `ResultRows`. `repeated`: the slot is used for several stores, so that a store is waited for before the next is
        written, not at its end."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        rounded = cute.make_rmem_tensor(acc.shape, self.dtype)
        rounded.store((acc.load() * scale).to(self.dtype))
        mma = sm90.make_trivial_tiled_mma(
            self.dtype, self.dtype, warpgroup.OperandMajorMode.K, warpgroup.OperandMajorMode.MN, Float32, (1, 1, 1),
            (WARPGROUP_ROWS, head_dim), warpgroup.OperandSource.RMEM,
        )  # fmt: skip
        copy = cute.make_tiled_copy_C(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.dtype), mma)
        slots = cute.make_tensor(smem.iterator, self.result_layout(head_dim).outer)
        if const_expr(repeated):
            if arch.make_warp_uniform(arch.warp_idx()) % 4 == 0:
                arch.cp_async_bulk_wait_group(0, read=True)
            barrier.arrive_and_wait()
        cute.copy(copy, copy.retile(rounded), copy.get_slice(thread).partition_D(slots[None, None, slot]))
        arch.fence_proxy("async.shared", space="cta")
        barrier.arrive_and_wait()
        count = Int32(WARPGROUP_ROWS)
        if const_expr(self.varlen):
            count = rows.count - rows.number * WARPGROUP_ROWS
        if count >= WARPGROUP_ROWS:
            if arch.make_warp_uniform(arch.warp_idx()) % 4 == 0:
                source, tiles = self.tiles(target, slots, rows.first, WARPGROUP_ROWS, head_dim)
                cute.copy(target.atom, source[None, slot], tiles[None, rows.number, rows.head, rows.layer])
                arch.cp_async_bulk_commit_group()
                if const_expr(not repeated):
                    arch.cp_async_bulk_wait_group(0, read=True)
        if const_expr(self.varlen):
            if count < WARPGROUP_ROWS:  # a TMA store would go beyond the sequence
                self._store_rows(slots[None, None, slot], gmem, rows, count)

    @cute.jit
    def _store_rows(self, tile: cute.Tensor, gmem: cute.Tensor, rows: Any, count: Int32):
        """Store the last rows of a sequence, 16 bytes at a time."""
        first, vectors = rows.first + rows.number * WARPGROUP_ROWS, gmem.shape[1] // VECTOR
        fragment = cute.make_rmem_tensor((VECTOR,), self.dtype)
        for i in range(arch.thread_idx()[0] % WARPGROUP, max(count, 0) * vectors, WARPGROUP):
            row, column = i // vectors, cute.assume(i % vectors * VECTOR, divby=VECTOR)
            source = cute.domain_offset((row, column), tile).iterator.with_alignment(16)
            cute.autovec_copy(cute.make_tensor(source, cute.make_layout((VECTOR,))), fragment)
            target = cute.domain_offset((first + row, column, rows.head, 0), gmem).iterator.with_alignment(16)
            cute.autovec_copy(fragment, cute.make_tensor(target, cute.make_layout((VECTOR,))))


class KvTiles(TmaTiles):
    """KV tiles of `tile_n` keys whose transposed scores (key, query) have 64 keys for each warpgroup.

    `edge` is the first query of a query tile that sees the warpgroup's first key: key r is seen from query `edge` + r
    on."""

    config: Any
    tile_n: int
    masks_right: bool
    masks_left: bool

    def load_row_values(self, atom: Any, lse_delta: Any, which: int, smem: Any, stage: Any) -> None:
        """Load LSE (0) or delta (1) of a query tile, (1, row, which), to smem (row, which, stage) by a bulk copy."""
        values = lse_delta[0, None, which]
        source = cute.make_tensor(values.iterator.with_alignment(16), cute.make_layout(cute.size(lse_delta, mode=[1])))
        with arch.elect_one():
            cute.copy(atom, source, smem[None, which, stage.index], mbar_ptr=stage.barrier)

    @cute.jit
    def is_masked(self, edge: Int32, scalars: Any):
        """Return whether some query of a tile does not see some key of a warpgroup."""
        masked = Boolean(False)
        if const_expr(self.masks_right):
            masked = edge + (WARPGROUP_ROWS - 1) > 0
        if const_expr(self.masks_left):
            masked = masked | (edge + scalars.window_left + scalars.window_right + 1 < self.config.tile_m)
        return masked

    @cute.jit
    def mask(self, acc_s: cute.Tensor, edge: Int32, keys: Int32, scalars: Any):
        """Mask transposed scores: pairs outside of the window, and keys beyond the warpgroup's `keys` that exist."""
        thread = rematerialized(arch.thread_idx()[0]) % WARPGROUP
        for half in range_constexpr(2):
            row = accumulator_row(0, thread, half)
            first = edge + row - accumulator_column(thread)
            # all or none of a row's queries: as a product, without a branch that all scores would be carried around
            end = (rematerialized(keys) - row) * self.config.tile_m
            if const_expr(self.masks_left):
                end = min(end, first + scalars.window_left + scalars.window_right + 1)
            begin = first if const_expr(self.masks_right) else None
            mask_row(acc_s, lambda c, n, half=half: ((c, half, n), 0, 0), self.config.tile_m, begin, end)

    @cute.jit
    def coordinates(self, edge: Int32, key: Int32, step: Int32, alibi_slopes: Any, scheduler: Any, work: Any):
        """Return the coordinates of a thread's scores in a step; `key` is the first of the warpgroup."""
        thread, offset = rematerialized(arch.thread_idx()[0]) % WARPGROUP, work.seqlen_k - work.seqlen_q
        head = work.head * scheduler.group_size + step % scheduler.group_size
        query = key - offset - scheduler.scalars.window_right - edge + accumulator_column(thread)
        key = accumulator_row(key, thread, 0)
        slope = Float32(0.0)
        if const_expr(alibi_slopes is not None):
            slope = alibi_slopes[min(work.batch, alibi_slopes.shape[0] - 1), head]
        return ScoreCoordinates(work.batch, head, query, key, Float32(key - query - offset), slope)
