"""What both MLA kernels for sm_90a share: the KV tiles of a CTA, synchronisation of warpgroups, TMA partitions."""

from __future__ import annotations

from typing import Any, NamedTuple

from .... import Int32, cute, pipeline, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority, cpasync
from ...parts.online_softmax import NEG_ROW_MAX_INIT as NOTHING
from ...parts.rematerialize import rematerialized as only_here
from . import split_kv_scheduler
from .sm90_config import WARPGROUP
from .split_kv_scheduler import KV_TILE

WORK_FIELDS = split_kv_scheduler.SPLIT_FIELDS + 4
"""Values in shared memory that say what a CTA computes."""
KV_PRIORITY = CacheEvictionPriority.EVICT_FIRST
"""L2 priority of the cache: Q tiles that share it read it at about the same time, and nobody reads it later. Q, O and partials stay."""


class CtaWork(NamedTuple):
    """What a CTA computes, of so many `rows` of a sequence.

    `fields` are in shared memory, since accumulators leave no registers: those of its split, the numbers of the split and of the Q tile, how
    many keys at the end of a sequence no row of the tile sees, and how many some row does not see.
    """

    fields: Any
    rows: Any
    scalars: Any

    @property
    def tiles_per_split(self) -> Any:
        """KV tiles of a split."""
        return self.fields[2]

    @property
    def split(self) -> Any:
        return self.fields[split_kv_scheduler.SPLIT_FIELDS]

    @property
    def tile(self) -> Any:
        return self.fields[split_kv_scheduler.SPLIT_FIELDS + 1]

    @property
    def unseen(self) -> Any:
        return self.fields[split_kv_scheduler.SPLIT_FIELDS + 2]

    @property
    def hidden(self) -> Any:
        return self.fields[split_kv_scheduler.SPLIT_FIELDS + 3]


_WARPGROUP_BARRIER, _CONSUMER_BARRIER = 1, 3
"""Named barriers: of the threads of a warpgroup (two), of all consumers. Others begin with `BARRIERS`."""
BARRIERS = 4


class ConsumerWarpgroup:
    """The registers of a consumer warpgroup: -row_max and row_sum of its rows, and its output accumulator; `group` is 0 or 1."""

    __kiln_fixed__ = True
    group: Any
    neg_row_max: Any
    row_sum: Any
    acc_o: Any

    def begin(self) -> None:
        """Initialises the online softmax and the output accumulator."""
        self.neg_row_max.fill(NOTHING)
        self.row_sum.fill(0.0)
        self.acc_o.fill(0.0)

    def sync_warpgroup(self) -> None:
        """Synchronises the threads of the warpgroup."""
        pipeline.NamedBarrier(_WARPGROUP_BARRIER + self.group, WARPGROUP).arrive_and_wait()

    def sync_consumers(self) -> None:
        """Synchronises all consumer threads."""
        pipeline.NamedBarrier(_CONSUMER_BARRIER, 2 * WARPGROUP).arrive_and_wait()

    def uniform_here(self, number: Any) -> Any:
        """Returns a warp-uniform value that is computed here: addresses derived from it do not stay in registers all through the loop."""
        return arch.make_warp_uniform(only_here(number))


class MlaKernel:
    """The base of the kernels, with Q tiles of `tile_rows` rows."""

    __kiln_immutable__ = True
    tile_rows: int
    q_tiles = 1
    """Tiles in which TMA loads Q."""

    def parts(self, atom: Any, tile: Any, x: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
        """Partitions tiles in shared and global memory for TMA."""
        tiles = cute.local_tile(x, shape, (None, None, None))
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(tiles, 0, 2)
        )

    @cute.jit
    def init_work(self, tensors: Any, share: Int32, tile: Int32, work: Any):
        """Finds the split of a CTA, by one warp."""
        scalars, heads = work.scalars, work.scalars.heads
        most = tensors.page_table.shape[1] * KV_TILE
        split_kv_scheduler.find_split(
            tensors.lengths, most, share, scalars.num_splits, work.fields, tensors.splits, tile == 0
        )
        first = tile * self.tile_rows
        last = min((tile + 1) * self.tile_rows, work.rows) - 1
        unseen, hidden = (max(scalars.hidden - row // heads, Int32(0)) for row in (last, first))
        for i, value in enumerate((share, tile, unseen, hidden)):
            work.fields[split_kv_scheduler.SPLIT_FIELDS + i] = value

    @cute.jit
    def in_split(self, tensors: Any, sequence: Int32, start: Int32, work: Any):
        """Returns whether a split has tiles of a sequence."""
        return sequence < tensors.lengths.shape[0] and start < (work.split + 1) * work.tiles_per_split

    @cute.jit
    def kv_range(self, tensors: Any, sequence: Int32, start: Int32, work: Any):
        """Returns the length of a sequence, and which of its tiles a split has. Computed again each time: accumulators leave no registers."""
        most = only_here(Int32(tensors.page_table.shape[1])) * KV_TILE
        length = split_kv_scheduler.kv_length(tensors.lengths, sequence, most)
        return length, split_kv_scheduler.kv_range(
            length, work.unseen, start, work.split * work.tiles_per_split, work.tiles_per_split
        )

    @cute.jit
    def load_q(self, atom: Any, parts: Any, pipe: Any, tensors: Any, work: Any):
        """Loads the queries of all sequences of a split."""
        to, of = parts
        sequence, start = (arch.make_warp_uniform(work.fields[i]) for i in range(2))
        producer, _ = pipe.make_participants()
        while self.in_split(tensors, sequence, start, work):
            _, own = self.kv_range(tensors, sequence, start, work)
            if own.first < own.last:
                stage, row = producer.acquire_and_advance(), work.tile
                for tile in range_constexpr(self.q_tiles):
                    cute.copy(atom, of[None, row, tile, sequence], to[None, tile], tma_bar_ptr=stage.barrier)
            start = split_kv_scheduler.next_start(start, own.count)
            sequence = sequence + 1
