"""What the kernels of `mla_decode` for Hopper have in common: which keys a block of threads has, and how it loads them."""

from __future__ import annotations

from typing import Any, NamedTuple

from .... import Int32, cute, pipeline
from ....cute import arch
from ....cute.nvgpu import CacheEvictionPriority, cpasync
from ...parts.online_softmax import NEG_ROW_MAX_INIT as NOTHING
from ...parts.rematerialize import rematerialized as only_here
from . import split_kv_scheduler
from .sm90_config import GROUP
from .split_kv_scheduler import KEYS

FOUND = split_kv_scheduler.MEMBERS + 4
"""Numbers in shared memory that say what a block of threads computes."""
PRIORITY = CacheEvictionPriority.EVICT_FIRST
"""Of latents in the L2 cache: tiles that share them read them at about the same time, and nobody does after that. Queries, outputs and pieces stay."""


class Which(NamedTuple):
    """What a block of threads computes, of so many `rows` of a sequence, and what else is known. `found` is in shared memory, since sums leave
    no registers: the members of its share of keys, the numbers of the share and of the tile, and how many keys at the end of a sequence no
    row of the tile sees, and how many some row does not see."""

    found: Any
    rows: Any
    numbers: Any

    @property
    def each(self) -> Any:
        """Blocks of keys of a share."""
        return self.found[2]

    @property
    def share(self) -> Any:
        return self.found[split_kv_scheduler.MEMBERS]

    @property
    def tile(self) -> Any:
        return self.found[split_kv_scheduler.MEMBERS + 1]

    @property
    def unseen(self) -> Any:
        return self.found[split_kv_scheduler.MEMBERS + 2]

    @property
    def hidden(self) -> Any:
        return self.found[split_kv_scheduler.MEMBERS + 3]


_EACH, _BOTH = 1, 3
"""Named barriers: threads of a warp group (two), all that compute. Others begin with `BARRIERS`."""
BARRIERS = 4


class GroupSteps:
    """What a warp group has: its number, 0 or 1; references of rows, sums of their weights, and of values."""

    __kiln_fixed__ = True
    group: Any
    lowered: Any
    totals: Any
    sums: Any

    def begin(self) -> None:
        """Nothing has been summed."""
        self.lowered.fill(NOTHING)
        self.totals.fill(0.0)
        self.sums.fill(0.0)

    def meet(self) -> None:
        """All threads of the warp group."""
        pipeline.NamedBarrier(_EACH + self.group, GROUP).arrive_and_wait()

    def meet_both(self) -> None:
        """All threads that compute."""
        pipeline.NamedBarrier(_BOTH, 2 * GROUP).arrive_and_wait()

    def here(self, number: Any) -> Any:
        """A number as a value that exists from here on only, the same for all threads: what is computed from it, where tiles begin, is not kept
        in registers all through the loop."""
        return arch.make_warp_uniform(only_here(number))


class Forward:
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
    def find(self, given: Any, share: Int32, tile: Int32, which: Any):
        """One warp finds out which keys a block of threads has."""
        numbers, heads = which.numbers, which.numbers.heads
        most = given.table.shape[1] * KEYS
        split_kv_scheduler.find(given.lengths, most, share, numbers.shares, which.found, given.found, tile == 0)
        first = tile * self.tile_rows
        last = min((tile + 1) * self.tile_rows, which.rows) - 1
        unseen, hidden = (max(numbers.hidden - row // heads, Int32(0)) for row in (last, first))
        for i, value in enumerate((share, tile, unseen, hidden)):
            which.found[split_kv_scheduler.MEMBERS + i] = value

    @cute.jit
    def inside(self, given: Any, sequence: Int32, start: Int32, which: Any):
        """Whether a share has something of a sequence."""
        return sequence < given.lengths.shape[0] and start < (which.share + 1) * which.each

    @cute.jit
    def own(self, given: Any, sequence: Int32, start: Int32, which: Any):
        """The length of a sequence, and what a share has of it for a tile. Nothing is kept for that: sums leave no registers."""
        most = only_here(Int32(given.table.shape[1])) * KEYS
        length = split_kv_scheduler.length_of(given.lengths, sequence, most)
        return length, split_kv_scheduler.piece(length, which.unseen, start, which.share * which.each, which.each)
