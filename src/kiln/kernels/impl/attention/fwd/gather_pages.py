"""Keys and values in small pages, laid in succession: the copy engine fills no fewer than eight rows of a product at a time."""

from __future__ import annotations

import functools
from typing import Any

from ..... import Int32, Int64, const_expr, cute, range_constexpr
from .....cute import arch
from ..paged_kv import Pages
from .sm90_scheduler import within

LEAST = 8
"""Pages of multiples of so many rows are copied as they are."""
_THREADS, _EACH = 256, 4
"""Threads of a block, and what each copies at once, in pieces of 16 bytes."""


class GatherPages:
    """(page, row, head, element) to (sequence, row, head, element). Rows that sequences do not have are not written."""

    def __init__(self, dtype: Any, head_dim: int, page: int) -> None:
        self.dtype, self.page, self.at_once = dtype, page, 128 // dtype.width
        self.pieces = head_dim // self.at_once

    @cute.jit
    def __call__(self, pages: cute.Tensor, out: cute.Tensor, used: Any, table: cute.Tensor, stream: Int64):
        """Launch it for how many rows of each sequence exist (None: all), and the pages of sequences."""
        pieces = out.shape[1] * out.shape[2] * self.pieces
        self.kernel(pages, out, used, table).launch(
            grid=(cute.ceil_div(pieces, _THREADS * _EACH), out.shape[0], 1), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, pages: cute.Tensor, out: cute.Tensor, used: Any, table: cute.Tensor):
        number, batch, _ = arch.block_idx()
        rows, heads = Int32(out.shape[1]), Int32(out.shape[2])
        if const_expr(used is not None):
            rows = within(used[batch], rows)
        held = cute.make_rmem_tensor((self.at_once, _EACH), self.dtype)
        own = Pages(table[batch, None], self.page, Int32(pages.shape[0]))
        first, count = number * (_THREADS * _EACH) + arch.thread_idx()[0], rows * heads * self.pieces
        for n in range_constexpr(_EACH):
            row, head, column = self.place(first + n * _THREADS, heads)
            if first + n * _THREADS < count:
                piece = cute.domain_offset((own.number(row), row % self.page, head, column), pages)
                cute.autovec_copy(self.piece(piece), held[None, n])
        for n in range_constexpr(_EACH):
            row, head, column = self.place(first + n * _THREADS, heads)
            if first + n * _THREADS < count:
                cute.autovec_copy(held[None, n], self.piece(cute.domain_offset((batch, row, head, column), out)))

    def place(self, number: Any, heads: Any) -> tuple[Any, Any, Any]:
        """Row, head and element of a piece."""
        of_head = number // self.pieces
        return of_head // heads, of_head % heads, number % self.pieces * self.at_once

    def piece(self, x: Any) -> Any:
        """What is copied at once."""
        return cute.make_tensor(x.iterator.with_alignment(16), cute.make_layout((self.at_once,)))


gather_pages_kernel = functools.lru_cache(maxsize=64)(GatherPages)
