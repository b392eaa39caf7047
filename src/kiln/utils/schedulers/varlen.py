"""Tiles of sequences of different lengths (`cu_seqlens`): the sequence of a tile, and the order of heads and tiles.

A CTA's tile numbers grow, so that each search for a sequence goes on where the last one ended (`SequenceSearch`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ...base_dsl.typing import Int32
from ...cute import Tensor, arch, ceil_div, jit

__all__ = [
    "SequenceSearch",
    "clamp_offset",
    "fetch_tile",
    "find_sequence",
    "head_group_tile",
    "next_snake_tile",
    "sequence_range",
]

_WARP = 32


class SequenceSearch(NamedTuple):
    """Where the next search begins: a sequence, and how many tiles come before it."""

    sequence: Any
    tiles_before: Any


@jit
def clamp_offset(offset: Any, rows: Any):
    """Return `offset`, clamped to an array of `rows` rows, so that a wrong one does not lead outside."""
    return max(Int32(0), min(offset, Int32(rows)))


@jit
def sequence_range(cu_seqlens: Tensor, sequence: Int32, rows: Any):
    """Return where a sequence begins, and its length.

    Args:
        cu_seqlens: the first row of every sequence, and the number of all rows.
        sequence: the number of the sequence.
        rows: the rows of the array, to which wrong offsets are clamped.
    """
    first = clamp_offset(cu_seqlens[sequence], rows)
    return first, max(clamp_offset(cu_seqlens[sequence + 1], rows) - first, 0)


@jit
def find_sequence(number: Int32, cu_seqlens: Tensor, rows: Any, tile_rows: Any, heads: Any, search: Any):
    """Return the sequence that has a tile, the tile's number in it, and the search to go on with.

    All 32 lanes of a warp call this together and look at 32 sequences at a time. Past the last tile the sequence is
    their number.

    Args:
        number: the number of the tile among all sequences; from call to call it grows.
        cu_seqlens: the first row of every sequence, and the number of all rows.
        rows: the rows of the array, to which wrong offsets are clamped.
        tile_rows: the rows of a tile.
        heads: the heads of a sequence, each with tiles of its own.
        search: the `SequenceSearch` of the last call, at first of zeros.
    """
    lane = arch.lane_idx()
    num_sequences = cu_seqlens.shape[0] - 1
    first, before = search
    result = Int32(num_sequences)
    start = Int32(0)
    while first < num_sequences and result == num_sequences:
        sequence = first + lane
        _, length = sequence_range(cu_seqlens, min(sequence, num_sequences - 1), rows)
        tiles = ceil_div(length, tile_rows) * heads if sequence < num_sequences else Int32(0)
        end = tiles
        for step in (1, 2, 4, 8, 16):  # inclusive prefix sum over the lanes
            other = arch.shuffle_sync_up(end, step, mask_and_clamp=0)
            end = end + other if lane >= step else end
        skipped = arch.popc(arch.vote_ballot_sync(before + end <= number))
        if skipped < _WARP:
            result = first + skipped
            start = before + arch.shuffle_sync(end - tiles, skipped)
        else:
            first = first + _WARP
            before = before + arch.shuffle_sync(end, _WARP - 1)
    return result, number - start, SequenceSearch(first, before)


@jit
def head_group_tile(number: Int32, tiles: Any, heads: Any, group: Any, valid: Any = True):
    """Return the head and the tile in a sequence; tile -1 if not `valid`.

    The tiles of `group` heads are taken side by side, for L2 reuse of their keys, and the last tiles first: under a
    causal mask they see most keys.

    Args:
        number: the number of the tile in the sequence.
        tiles: the tiles of each head.
        heads: how many heads the sequence has.
        group: how many heads are taken side by side.
        valid: whether there is a tile.
    """
    first = number // (tiles * group) * group
    number = number % (tiles * group)
    beside = max(min(group, heads - first), 1)
    tile = tiles - 1 - number // beside if valid else Int32(-1)
    return first + number % beside, tile


@jit
def next_snake_tile(number: Int32, turn: Int32, num_ctas: Int32):
    """Return the tile after `number`, this CTA's tile in its turn `turn`.

    The CTAs of a grid of `num_ctas` take tiles in alternating order, so that none has the longest tile of every turn.
    """
    cta = Int32(arch.block_idx()[0])
    return number + (2 * (num_ctas - 1 - cta) if turn % 2 == 0 else 2 * cta) + 1


@jit
def fetch_tile(counter: Tensor, start: Any = 0):
    """Return the next number of an atomic counter, in lane 0 of a warp.

    The warp broadcasts it with `arch.shuffle_sync(number, 0)` where it needs it, and so need not wait for the atomic
    here.

    Args:
        counter: a tensor of one Int32 in global memory.
        start: what is added to the number.
    """
    number = Int32(0)
    if arch.lane_idx() == 0:
        number = start + arch.atomic_add(counter.iterator, Int32(1))
    return number
