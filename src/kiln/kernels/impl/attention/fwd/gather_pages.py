"""Copies K and V of small pages into dense rows, for kernels that load tiles by TMA: a box has at least eight rows."""

from __future__ import annotations

import functools
from typing import Any

from ..... import Int32, Int64, const_expr, cute, range_constexpr
from .....cute import arch
from .....utils.schedulers import clamp_offset
from ....parts.kv_source import PageTable, vector_at

MIN_TMA_ROWS = 8
"""Pages of a multiple of this many rows need not be gathered."""
_THREADS = 256
_VECTORS = 4
"""Threads of a CTA, and 16-byte vectors that each copies."""


class GatherPages:
    """The kernel: (page, row, head, element) to (sequence, row, head, element). Rows that a sequence does not have are
    not written."""

    def __init__(self, dtype: Any, head_dim: int, page_size: int) -> None:
        self.dtype = dtype
        self.page_size = page_size
        self.vector: int = 128 // dtype.width
        self.head_vectors: Any = head_dim // self.vector

    @cute.jit
    def __call__(self, pages: cute.Tensor, out: cute.Tensor, seqused_k: Any, page_table: cute.Tensor, stream: Int64):
        """Launch the kernel; without `seqused_k` all rows exist."""
        vectors = out.shape[1] * out.shape[2] * self.head_vectors
        self.kernel(pages, out, seqused_k, page_table).launch(
            grid=(cute.ceil_div(vectors, _THREADS * _VECTORS), out.shape[0], 1), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, pages: cute.Tensor, out: cute.Tensor, seqused_k: Any, page_table: cute.Tensor):
        number, batch, _ = arch.block_idx()
        rows = Int32(out.shape[1])
        heads = Int32(out.shape[2])
        if const_expr(seqused_k is not None):
            rows = clamp_offset(seqused_k[batch], rows)
        fragment = cute.make_rmem_tensor((self.vector, _VECTORS), self.dtype)
        table = PageTable(page_table[batch, None], self.page_size, Int32(pages.shape[0]))
        first = number * (_THREADS * _VECTORS) + arch.thread_idx()[0]
        count = rows * heads * self.head_vectors
        for n in range_constexpr(_VECTORS):
            row, head, column = self._coordinates(first + n * _THREADS, heads)
            if first + n * _THREADS < count:
                source = vector_at(pages, (table.page(row), row % self.page_size, head, column))
                cute.autovec_copy(source, fragment[None, n])
        for n in range_constexpr(_VECTORS):
            row, head, column = self._coordinates(first + n * _THREADS, heads)
            if first + n * _THREADS < count:
                cute.autovec_copy(fragment[None, n], vector_at(out, (batch, row, head, column)))

    def _coordinates(self, number: Any, heads: Any) -> tuple[Any, Any, Any]:
        """Return row, head and element of a vector."""
        head_number = number // self.head_vectors
        return head_number // heads, head_number % heads, number % self.head_vectors * self.vector


gather_pages_kernel = functools.lru_cache(maxsize=64)(GatherPages)
