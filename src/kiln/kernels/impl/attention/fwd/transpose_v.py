"""Values of 8 bits, laid as the tensor cores take them: keys in succession, in the order in which weights lie in registers."""

from __future__ import annotations

import functools
import math
from typing import Any

from ..... import Int32, Int64, const_expr, cute, range_constexpr, utils
from .....cute import arch
from ..paged_kv import Pages
from .sm90_scheduler import stretch, within

KEYS = 64
"""Keys of a block of threads."""
_THREADS, _WARP = 128, 32
_AT_ONCE = 16
"""Bytes that are copied at once; keys change places within so many."""


def place_of_key(place: int) -> int:
    """The key of sixteen that is put at a place: a thread has columns 2 q, 2 q + 1, 8 + 2 q and 9 + 2 q of scores, as the places 4 q to
    4 q + 3 of a left operand."""
    q, i = divmod(place, 4)
    return 8 * (i // 2) + 2 * q + i % 2


def unit_of_places(tile_n: int) -> int:
    """Sequences that lie one after another have places in multiples of so many, where a step has `tile_n` keys."""
    return math.lcm(tile_n, KEYS)


@cute.jit
def first_place(first_key: Int32, batch: Int32, tile_n: int):
    """The place of the first key of a sequence among others: no step of one has keys of the next, and nothing is to be added up."""
    unit = unit_of_places(tile_n)
    return (first_key // unit + batch) * unit


def places_of_all(keys: int, batches: int, tile_n: int) -> int:
    """Places of so many sequences that lie one after another."""
    unit = unit_of_places(tile_n)
    return (keys // unit + batches) * unit


class TransposeV:
    """(batch, key, head, element) to (batch or 1, element, head, place), places a multiple of 16, for steps of `tile_n` keys.

    Keys have the places of their numbers. Of sequences one after another each begins at its `first_place`; from pages of `page`
    rows values come in order. What does not exist is zero, as far as steps go.
    """

    def __init__(self, dtype: Any, head_dim: int, tile_n: int, page: int = 0) -> None:
        self.dtype, self.dim, self.tile_n, self.page = dtype, head_dim, tile_n, page

    @cute.jit
    def __call__(self, values: cute.Tensor, out: cute.Tensor, starts: Any, used: Any, table: Any, stream: Int64):
        """Launch it for where sequences begin, how many keys of each exist (None: all), and the pages of sequences, or None."""
        self.kernel(values, out, starts, used, table).launch(
            grid=(cute.ceil_div(out.shape[3], KEYS), out.shape[2], out.shape[0]), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, values: cute.Tensor, out: cute.Tensor, starts: Any, used: Any, table: Any):
        number, head, layer = arch.block_idx()
        batch, first, layer_in, first_in, keys = layer, number * KEYS, layer, Int32(0), Int32(values.shape[1])
        if const_expr(table is not None):
            keys = Int32(table.shape[1] * self.page)
        if const_expr(starts is not None):
            batch = self.sequence_at(first, starts, keys)
            there = max(batch, 0)
            first_in, keys = stretch(starts, there, keys)
            first = first - first_place(first_in, there, self.tile_n)
        if const_expr(used is not None):
            keys = within(used[max(batch, 0)], keys)
        # a step sees one block even if there is no key
        unit = unit_of_places(self.tile_n)
        if batch >= 0 and first < max(cute.ceil_div(keys, unit), 1) * unit:
            self.lay(values, out, (number, head, layer), (batch, first, layer_in, first_in, keys), table)

    @cute.jit
    def sequence_at(self, place: Int32, starts: cute.Tensor, rows: Int32):
        """The sequence that has a place: the last that begins there or before. A whole warp finds it together."""
        batches, lane, count = starts.shape[0] - 1, arch.lane_idx(), Int32(0)
        for first in range(0, batches, _WARP):
            batch = first + lane
            start, _ = stretch(starts, min(batch, batches - 1), rows)
            begun = (batch < batches) & (first_place(start, batch, self.tile_n) <= place)
            count = count + arch.popc(arch.vote_ballot_sync(begun))
        return count - 1

    @cute.jit
    def lay(self, values: cute.Tensor, out: cute.Tensor, place: Any, source: Any, table: Any):
        """Lay the values of some keys, by way of shared memory."""
        (number, head, layer), (batch, first, layer_in, first_in, keys) = place, source
        thread = arch.thread_idx()[0]
        pitch = self.dim + 4  # so that keys lie in different banks
        tile = utils.SmemAllocator().allocate_tensor(
            self.dtype, cute.make_layout((KEYS, self.dim), stride=(pitch, 1)), 16
        )
        held = cute.make_rmem_tensor((_AT_ONCE,), self.dtype)
        words = cute.recast_tensor(held, Int32)
        chunks = self.dim // _AT_ONCE
        for i in range(thread, KEYS * chunks, _THREADS):
            row, column = i // chunks, i % chunks * _AT_ONCE
            words.fill(0)
            key = first + row
            if key >= 0 and key < keys:
                if const_expr(table is None):
                    start = cute.domain_offset((layer_in, first_in + key, head, column), values).iterator
                else:
                    page = Pages(table[batch, None], self.page, Int32(values.shape[0])).number(key)
                    start = cute.domain_offset((page, key % self.page, head, column), values).iterator
                cute.autovec_copy(cute.make_tensor(start.with_alignment(16), cute.make_layout((_AT_ONCE,))), held)
            spot = cute.domain_offset((row, column), tile).iterator.with_alignment(4)
            cute.autovec_copy(held, cute.make_tensor(spot, cute.make_layout((_AT_ONCE,))))
        arch.sync_threads()
        pieces = KEYS // _AT_ONCE
        for i in range(thread, self.dim * pieces, _THREADS):
            element, within_tile = i // pieces, i % pieces * _AT_ONCE
            for n in range_constexpr(_AT_ONCE):
                held[n] = tile[within_tile + place_of_key(n), element]
            if number * KEYS + within_tile < out.shape[3]:
                start = cute.domain_offset((layer, element, head, number * KEYS + within_tile), out).iterator
                cute.autovec_copy(held, cute.make_tensor(start.with_alignment(16), cute.make_layout((_AT_ONCE,))))


transpose_v_kernel = functools.lru_cache(maxsize=64)(TransposeV)
