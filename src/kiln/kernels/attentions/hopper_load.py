"""The warp of Hopper that loads: queries, keys and values of one tile after the other, by the copy engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Int32, const_expr, cute, range_constexpr
from ... import range as dynamic_range
from ...cute import arch
from ...cute.nvgpu import cpasync
from .pages import Pages

if TYPE_CHECKING:
    from .hopper import HopperForward


def partitioned(atom: Any, tile: Any, pieces: Any) -> tuple[Any, Any]:
    """Tiles in shared and global memory as the copy engine copies them."""
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(pieces, 0, 2)
    )


class Loader:
    """Loads what tiles need. Atoms of copies with their tensors, shared memory that they fill, and what says how far each is."""

    __kiln_immutable__ = True

    def __init__(self, of: HopperForward, atoms: Any, tiles: Any, memory: Any, told: Any, table: Any) -> None:
        (self.load_q, self.q), (self.load_k, self.k), (self.load_v, self.v) = atoms
        self.of, self.tiles, self.memory, self.told, self.table = of, tiles, memory, told, table
        self.share = tiles.heads // self.k.shape[2]  # tiles that share keys

    @cute.jit
    def run(self, producers: Any, counter: Any):
        """Load all tiles of this block of threads. A whole warp does that."""
        telling, producer_q, producer_k, producer_v = producers
        blocks = Int32(arch.grid_dim()[0])
        number, turn = Int32(arch.block_idx()[0]), Int32(0)
        work = self.tiles.work(number)
        while work.tile >= 0:
            following = self.next_number(number, turn, blocks, counter)
            self.told.tell(telling, work)
            self.tile(work, producer_q, producer_k, producer_v)
            turn = turn + 1
            number = following
            if const_expr(counter is not None):
                number = arch.shuffle_sync(following, 0)
            work = self.tiles.work(number)
        self.told.tell(telling, work)

    @cute.jit
    def next_number(self, number: Int32, turn: Int32, blocks: Int32, counter: Any):
        """The tile after this one: in order of asking where there is a counter; else there and back again, so that no block of threads
        has the longest of each turn."""
        if const_expr(counter is None):
            block = Int32(arch.block_idx()[0])
            return number + (2 * (blocks - 1 - block) if turn % 2 == 0 else 2 * block) + 1
        found = Int32(0)
        if arch.lane_idx() == 0:
            found = blocks + arch.atomic_add(counter.iterator, Int32(1))
        return found

    @cute.jit
    def tile(self, work: Any, producer_q: Any, producer_k: Any, producer_v: Any):
        """Load a tile: its queries, its keys from the last block to the first, the values of each one step behind."""
        of, tiling = self.of, self.of.tiling
        last, steps, _, _ = self.tiles.span(work)
        q, k, v, layer = self.q, self.k, self.v, work.batch
        if const_expr(of.packed):
            layer = Int32(0)
            q = cute.domain_offset((work.first_q if of.share == 1 else (0, work.first_q), 0, 0, 0), q)
            k = cute.domain_offset((work.first_k, 0, 0, 0), k)
            v = cute.domain_offset((0, work.first_k, 0, 0), v)
        to_q, of_q = partitioned(
            self.load_q, self.memory[0], cute.local_tile(q, (of.rows, of.dim), (None, 0, None, None))
        )
        stage = producer_q.acquire_and_advance()
        for group in range_constexpr(tiling.groups):
            rows = of_q[None, of.row_tile(work.tile * tiling.groups + group), work.head, layer]
            cute.copy(self.load_q, rows, to_q[None, group], tma_bar_ptr=stage.barrier)
        head_k = work.head // self.share
        # what a copy fills of a buffer: all of it, or as much as is in one page
        pieces_k, pieces_v = self.memory[1], self.memory[2]
        if const_expr(of.piece < tiling.block_k):
            pieces_k = cute.local_tile(pieces_k, (of.piece, of.dim), (None, 0, None))
            pieces_v = cute.local_tile(pieces_v, (of.dim_v, of.piece), (0, None, None))
        parts_k = partitioned(self.load_k, pieces_k, cute.local_tile(k, (of.piece, of.dim), (None, 0, None, None)))
        parts_v = partitioned(self.load_v, pieces_v, cute.local_tile(v, (of.dim_v, of.piece), (0, None, None, None)))
        place = (head_k, layer, work.batch)
        self.block(self.load_k, parts_k, producer_k, last, place)
        for i in range(1, steps):
            self.block(self.load_k, parts_k, producer_k, last - i, place)
            self.block(self.load_v, parts_v, producer_v, last - i + 1, place)
        self.block(self.load_v, parts_v, producer_v, last - steps + 1, place)

    @cute.jit
    def block(self, load: Any, parts: Any, producer: Any, block: Int32, place: Any):
        """Load a block of keys or values."""
        (to, of), (head, layer, batch), page, rows = parts, place, self.of.page, self.of.piece
        stage = producer.acquire_and_advance()
        if const_expr(page == 0):
            cute.copy(load, of[None, block, head, layer], to[None, stage.index], tma_bar_ptr=stage.barrier)
        elif const_expr(rows == self.of.tiling.block_k):
            row = block * rows
            number = self.page(batch, row)
            cute.copy(
                load, of[None, row % page // rows, head, number], to[None, stage.index], tma_bar_ptr=stage.barrier
            )
        else:
            for i in dynamic_range(
                self.of.tiling.block_k // rows, unroll=1
            ):  # not unrolled: this warp has few registers
                number = self.page(batch, block * self.of.tiling.block_k + i * rows)
                cute.copy(load, of[None, 0, head, number], to[None, i, stage.index], tma_bar_ptr=stage.barrier)

    def page(self, batch: Any, row: Any) -> Any:
        """The page of a row."""
        return Pages(self.table[batch, None], self.of.page, Int32(self.k.shape[3])).number(row)
