"""What the kernels of `mla_decode` for Hopper have in common: which keys a block of threads has, and how it loads them."""

from __future__ import annotations

from typing import Any, NamedTuple

from .... import Int32, cute, pipeline
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority, cpasync
from ...parts.online_softmax import NEG_ROW_MAX_INIT as NOTHING
from ...parts.rematerialize import rematerialized as only_here
from . import split_kv_scheduler
from .sm90_config import WARPGROUP
from .split_kv_scheduler import KV_TILE

WORK_FIELDS = split_kv_scheduler.SPLIT_FIELDS + 4
"""Numbers in shared memory that say what a block of threads computes."""
KV_PRIORITY = CacheEvictionPriority.EVICT_FIRST
"""Of latents in the L2 cache: tiles that share them read them at about the same time, and nobody does after that. Queries, outputs and pieces stay."""


class CtaWork(NamedTuple):
    """What a block of threads computes, of so many `rows` of a sequence, and what else is known. `found` is in shared memory, since sums leave
    no registers: the members of its share of keys, the numbers of the share and of the tile, and how many keys at the end of a sequence no
    row of the tile sees, and how many some row does not see."""

    fields: Any
    rows: Any
    scalars: Any

    @property
    def tiles_per_split(self) -> Any:
        """Blocks of keys of a share."""
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
"""Named barriers: threads of a warp group (two), all that compute. Others begin with `BARRIERS`."""
BARRIERS = 4


class ConsumerWarpgroup:
    """What a warp group has: its number, 0 or 1; references of rows, sums of their weights, and of values."""

    __kiln_fixed__ = True
    group: Any
    neg_row_max: Any
    row_sum: Any
    acc_o: Any

    def begin(self) -> None:
        """Nothing has been summed."""
        self.neg_row_max.fill(NOTHING)
        self.row_sum.fill(0.0)
        self.acc_o.fill(0.0)

    def sync_warpgroup(self) -> None:
        """All threads of the warp group."""
        pipeline.NamedBarrier(_WARPGROUP_BARRIER + self.group, WARPGROUP).arrive_and_wait()

    def sync_consumers(self) -> None:
        """All threads that compute."""
        pipeline.NamedBarrier(_CONSUMER_BARRIER, 2 * WARPGROUP).arrive_and_wait()

    def uniform_here(self, number: Any) -> Any:
        """A number as a value that exists from here on only, the same for all threads: what is computed from it, where tiles begin, is not kept
        in registers all through the loop."""
        return arch.make_warp_uniform(only_here(number))


class MlaKernel:
    """Tiles of `tile_rows` rows."""

    __kiln_immutable__ = True
    tile_rows: int

    def parts(self, atom: Any, tile: Any, x: Any, shape: tuple[int, int]) -> tuple[Any, Any]:
        """Tiles in shared and global memory as the copy engine copies them."""
        tiles = cute.local_tile(x, shape, (None, None, None))
        return cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(tiles, 0, 2)
        )

    @cute.jit
    def init_work(self, tensors: Any, share: Int32, tile: Int32, work: Any):
        """One warp finds out which keys a block of threads has."""
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
        """Whether a share has something of a sequence."""
        return sequence < tensors.lengths.shape[0] and start < (work.split + 1) * work.tiles_per_split

    @cute.jit
    def kv_range(self, tensors: Any, sequence: Int32, start: Int32, work: Any):
        """The length of a sequence, and what a share has of it for a tile. Nothing is kept for that: sums leave no registers."""
        most = only_here(Int32(tensors.page_table.shape[1])) * KV_TILE
        length = split_kv_scheduler.kv_length(tensors.lengths, sequence, most)
        return length, split_kv_scheduler.kv_range(
            length, work.unseen, start, work.split * work.tiles_per_split, work.tiles_per_split
        )
