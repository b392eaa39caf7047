"""The warp of Hopper that loads: queries, keys and values of one tile after the other, by the copy engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Int32, const_expr, cute, range_constexpr
from ..... import range as dynamic_range
from .....cute import arch
from .....cute.nvgpu import cpasync
from ..paged_kv import Pages
from .transpose_v import first_place

if TYPE_CHECKING:
    from .sm90 import Sm90ForwardKernel


def partitioned(atom: Any, tile: Any, pieces: Any) -> tuple[Any, Any]:
    """Tiles in shared and global memory as the copy engine copies them."""
    return cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(pieces, 0, 2)
    )


class Loader:
    """Loads what tiles need. Atoms of copies with their tensors, shared memory that they fill, and what says how far each is."""

    __kiln_immutable__ = True

    def __init__(self, of: Sm90ForwardKernel, atoms: Any, tiles: Any, memory: Any, told: Any, table: Any) -> None:
        (self.load_q, self.q), (self.load_k, self.k), (self.load_v, self.v) = atoms
        self.of, self.tiles, self.memory, self.told, self.table = of, tiles, memory, told, table
        self.share = tiles.heads // self.k.shape[2]  # tiles that share keys

    @cute.jit
    def run(self, telling: Any, producers: Any, counter: Any):
        """Load all tiles of this block of threads. A whole warp does that."""
        blocks = Int32(arch.grid_dim()[0])
        number, turn = Int32(arch.block_idx()[0]), Int32(0)
        work, known = self.tiles.work(number, (Int32(0), Int32(0)))
        while work.tile >= 0:
            following = self.next_number(number, turn, blocks, counter)
            self.told.tell(telling, work)
            self.tile(work, producers)
            turn = turn + 1
            number = following
            if const_expr(counter is not None):
                number = arch.shuffle_sync(following, 0)
            work, known = self.tiles.work(number, known)
        self.told.tell(telling, work)

    @cute.jit
    def run_values(self, hearing: Any, producer_v: Any):
        """Load the values of all tiles, as the warp that loads queries and keys tells of them."""
        slot = hearing.wait_and_advance()
        work = self.told.heard(slot, self.tiles)
        while work.tile >= 0:
            self.tile(work, (None, None, producer_v))
            slot.release()
            slot = hearing.wait_and_advance()
            work = self.told.heard(slot, self.tiles)

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
    def tile(self, work: Any, producers: Any):
        """Load a tile, as far as there are producers: its queries, its keys from the last block to the first, the values of each one
        step behind."""
        (producer_q, producer_k, producer_v), of, config = producers, self.of, self.of.config
        last, steps, _, _ = self.tiles.span(work)
        q, k, v, layer_q, layer_k = self.q, self.k, self.v, work.batch, work.batch
        if const_expr(of.packed):
            layer_q = Int32(0)
            q = cute.domain_offset((work.first_q if of.share == 1 else (0, work.first_q), 0, 0, 0), q)
        if const_expr(self.tiles.lengths.starts_k is not None):
            layer_k, first_v = Int32(0), work.first_k
            if const_expr(of.narrow):
                first_v = first_place(work.first_k, work.batch, config.tile_n)
            k = cute.domain_offset((work.first_k, 0, 0, 0), k)
            v = cute.domain_offset((0, first_v, 0, 0), v)
        to_q, of_q = partitioned(
            self.load_q, self.memory[0], cute.local_tile(q, (of.rows, of.dim), (None, 0, None, None))
        )
        if const_expr(producer_q is not None):
            stage = producer_q.acquire_and_advance()
            for group in range_constexpr(config.consumer_warpgroups):
                rows = of_q[None, of.row_tile(work.tile * config.consumer_warpgroups + group), work.head, layer_q]
                cute.copy(self.load_q, rows, to_q[None, group], tma_bar_ptr=stage.barrier)
        head_k = work.head // self.share
        # what a copy fills of a buffer: all of it, or as much as is in one page
        pieces_k, pieces_v = self.memory[1], self.memory[2]
        if const_expr(of.page > 0):
            pieces_k = cute.local_tile(pieces_k, (of.piece, of.dim), (None, 0, None))
            if const_expr(not of.narrow):
                pieces_v = cute.local_tile(pieces_v, (of.dim_v, of.piece_v), (0, None, None))
        parts_k = partitioned(self.load_k, pieces_k, cute.local_tile(k, (of.piece, of.dim), (None, 0, None, None)))
        parts_v = partitioned(self.load_v, pieces_v, cute.local_tile(v, (of.dim_v, of.piece_v), (0, None, None, None)))
        # pages are looked up a block ahead, and are the same for keys and values
        pages, following = self.pages(work.batch, last), self.pages(work.batch, last - 1)
        place = head_k, layer_k
        keys, values = (self.load_k, parts_k, producer_k, place), (self.load_v, parts_v, producer_v, place)
        self.block(keys, last, pages, of.page > 0)
        for i in range(1, steps):
            later = self.pages(work.batch, last - i - 1)
            self.block(keys, last - i, following, of.page > 0)
            self.block(values, last - i + 1, pages, of.page > 0 and not of.narrow)
            pages, following = following, later
        self.block(values, last - steps + 1, pages, of.page > 0 and not of.narrow)

    @cute.jit
    def block(self, what: Any, block: Int32, pages: Int32, paged: bool):
        """Load a block of keys or values, from `pages` if it is `paged`; nothing without a producer."""
        (load, parts, producer, (head, layer)), page, rows = what, self.of.page, self.of.piece
        if const_expr(producer is not None):
            to, of = parts
            stage = producer.acquire_and_advance()
            if const_expr(not paged):
                cute.copy(load, of[None, block, head, layer], to[None, stage.index], tma_bar_ptr=stage.barrier)
            else:
                # not unrolled: this warp has few registers
                for i in dynamic_range(self.of.config.tile_n // rows, unroll=1):
                    inner = 0 if page == rows else (block * self.of.config.tile_n + i * rows) % page // rows
                    part = of[None, inner, head, arch.shuffle_sync(pages, i)]
                    cute.copy(load, part, to[None, i, stage.index], tma_bar_ptr=stage.barrier)

    @cute.jit
    def pages(self, batch: Int32, block: Int32):
        """The pages of a block of keys: each lane has that of the piece with its number."""
        found = Int32(0)
        if const_expr(self.of.page > 0):
            row = max(block, 0) * self.of.config.tile_n + arch.lane_idx() * self.of.piece
            found = Pages(self.table[batch, None], self.of.page, Int32(self.k.shape[3])).number(row)
        return found
