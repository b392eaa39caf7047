"""Values of 8 bits, laid as the tensor cores take them: keys in succession, in the order in which weights lie in registers."""

from __future__ import annotations

import functools
from typing import Any

from ... import Int32, Int64, const_expr, cute, range_constexpr, utils
from ...cute import arch

KEYS = 64
"""Keys of a block of threads."""
_THREADS = 128
_AT_ONCE = 16
"""Bytes that are copied at once; keys change places within so many."""


def place_of_key(place: int) -> int:
    """The key of sixteen that is put at a place: a thread has columns 2 q, 2 q + 1, 8 + 2 q and 9 + 2 q of scores, as the places 4 q to
    4 q + 3 of a left operand."""
    q, i = divmod(place, 4)
    return 8 * (i // 2) + 2 * q + i % 2


class TransposedValues:
    """(batch, key, head, element) to (batch, element, head, key), the keys a multiple of 16; what does not exist is zero."""

    def __init__(self, dtype: Any, head_dim: int) -> None:
        self.dtype, self.dim = dtype, head_dim

    @cute.jit
    def __call__(self, values: cute.Tensor, out: cute.Tensor, used: Any, stream: Int64):
        """Launch it; `used`: how many keys of each sequence exist, or None: all."""
        self.kernel(values, out, used).launch(
            grid=(cute.ceil_div(out.shape[3], KEYS), out.shape[2], out.shape[0]), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, values: cute.Tensor, out: cute.Tensor, used: Any):
        thread = arch.thread_idx()[0]
        number, head, batch = arch.block_idx()
        keys = Int32(values.shape[1])
        if const_expr(used is not None):
            keys = max(Int32(0), min(keys, used[batch]))
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
            if number * KEYS + row < keys:
                start = cute.domain_offset((batch, number * KEYS + row, head, column), values).iterator
                cute.autovec_copy(cute.make_tensor(start.with_alignment(16), cute.make_layout((_AT_ONCE,))), held)
            place = cute.domain_offset((row, column), tile).iterator.with_alignment(4)
            cute.autovec_copy(held, cute.make_tensor(place, cute.make_layout((_AT_ONCE,))))
        arch.sync_threads()
        pieces = KEYS // _AT_ONCE
        for i in range(thread, self.dim * pieces, _THREADS):
            element, first = i // pieces, i % pieces * _AT_ONCE
            for n in range_constexpr(_AT_ONCE):
                held[n] = tile[first + place_of_key(n), element]
            if number * KEYS + first < out.shape[3]:
                start = cute.domain_offset((batch, element, head, number * KEYS + first), out).iterator
                cute.autovec_copy(held, cute.make_tensor(start.with_alignment(16), cute.make_layout((_AT_ONCE,))))


transposed_values = functools.lru_cache(maxsize=64)(TransposedValues)
