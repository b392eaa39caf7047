"""Transposes 8-bit V: WGMMA takes 8-bit operands K-major only, so the keys of an element must be adjacent.

The kernel also permutes keys into the order in which P lies in registers.
"""

from __future__ import annotations

import functools
from typing import Any

from ..... import Int32, Int64, const_expr, cute, range_constexpr, utils
from .....cute import arch
from .....utils.schedulers import clamp_offset, sequence_range
from ....parts.kv_source import V_TRANSPOSE_KEYS as KEYS
from ....parts.kv_source import PageTable, transposed_v_offset, transposed_v_unit, vector_at

_THREADS = 128
_WARP = 32
_VECTOR = 16
"""Bytes of an access, and keys that are permuted among themselves."""


def permuted_key(column: int) -> int:
    """Return which key of 16 a column has. Of S a thread holds columns 2 q, 2 q + 1, 8 + 2 q and 9 + 2 q; as an A
    operand they are its columns 4 q to 4 q + 3."""
    q, i = divmod(column, 4)
    return 8 * (i // 2) + 2 * q + i % 2


class TransposeV:
    """The kernel: (batch, key, head, element) to (batch or 1, element, head, key), keys padded to a multiple of 16.

    Varlen sequences begin at `transposed_v_offset`; paged V becomes dense. Keys that do not exist are zero, as far as
    KV tiles of `tile_n` keys reach."""

    def __init__(self, dtype: Any, head_dim: int, tile_n: int, page_size: int = 0) -> None:
        self.dtype = dtype
        self.head_dim = head_dim
        self.tile_n = tile_n
        self.page_size = page_size

    @cute.jit
    def __call__(
        self, v: cute.Tensor, out: cute.Tensor, cu_seqlens_k: Any, seqused_k: Any, page_table: Any, stream: Int64
    ):
        """Launch the kernel; lengths and pages may be None."""
        self.kernel(v, out, cu_seqlens_k, seqused_k, page_table).launch(
            grid=(cute.ceil_div(out.shape[3], KEYS), out.shape[2], out.shape[0]), block=(_THREADS, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, v: cute.Tensor, out: cute.Tensor, cu_seqlens_k: Any, seqused_k: Any, page_table: Any):
        number, head, layer = arch.block_idx()
        batch = layer
        first = number * KEYS
        first_k = Int32(0)
        seqlen_k = Int32(v.shape[1])
        if const_expr(page_table is not None):
            seqlen_k = Int32(page_table.shape[1] * self.page_size)
        if const_expr(cu_seqlens_k is not None):
            batch = self.sequence_at(first, cu_seqlens_k, seqlen_k)
            existing = max(batch, 0)
            first_k, seqlen_k = sequence_range(cu_seqlens_k, existing, seqlen_k)
            first = first - transposed_v_offset(first_k, existing, self.tile_n)
        if const_expr(seqused_k is not None):
            seqlen_k = clamp_offset(seqused_k[max(batch, 0)], seqlen_k)
        unit = transposed_v_unit(self.tile_n)
        if (
            batch >= 0 and first < max(cute.ceil_div(seqlen_k, unit), 1) * unit
        ):  # a tile is read even if there is no key
            smem = utils.SmemAllocator().allocate_tensor(
                self.dtype, cute.make_layout((KEYS, self.head_dim), stride=(self.head_dim + 4, 1)), 16
            )  # padded rows, so that keys lie in different banks
            self.load(v, smem, (layer, head, batch), first, first_k, seqlen_k, page_table)
            arch.sync_threads()
            self.store(smem, out, (layer, head), number * KEYS)

    @cute.jit
    def sequence_at(self, column: Int32, cu_seqlens_k: cute.Tensor, rows: Int32):
        """Return the sequence that has a column of the result: the last that begins there or before. A whole warp
        searches."""
        sequences = cu_seqlens_k.shape[0] - 1
        lane = arch.lane_idx()
        count = Int32(0)
        for first in range(0, sequences, _WARP):
            sequence = first + lane
            start, _ = sequence_range(cu_seqlens_k, min(sequence, sequences - 1), rows)
            begun = (sequence < sequences) & (transposed_v_offset(start, sequence, self.tile_n) <= column)
            count = count + arch.popc(arch.vote_ballot_sync(begun))
        return count - 1

    @cute.jit
    def load(
        self,
        v: cute.Tensor,
        smem: cute.Tensor,
        place: tuple[Int32, Int32, Int32],
        first: Int32,
        first_k: Int32,
        seqlen_k: Int32,
        page_table: Any,
    ):
        """Load keys from `first` on to smem, zeros for those that do not exist."""
        layer, head, batch = place
        fragment = cute.make_rmem_tensor((_VECTOR,), self.dtype)
        words = cute.recast_tensor(fragment, Int32)
        vectors = self.head_dim // _VECTOR
        for i in range(arch.thread_idx()[0], KEYS * vectors, _THREADS):
            row = i // vectors
            column = i % vectors * _VECTOR
            words.fill(0)
            key = first + row
            if key >= 0 and key < seqlen_k:
                block = layer
                block_row = first_k + key
                if const_expr(page_table is not None):
                    block = PageTable(page_table[batch, None], self.page_size, Int32(v.shape[0])).page(key)
                    block_row = key % self.page_size
                cute.autovec_copy(vector_at(v, (block, block_row, head, column)), fragment)
            target = cute.domain_offset((row, column), smem).iterator.with_alignment(4)
            cute.autovec_copy(fragment, cute.make_tensor(target, cute.make_layout((_VECTOR,))))

    @cute.jit
    def store(self, smem: cute.Tensor, out: cute.Tensor, place: tuple[Int32, Int32], first: Int32):
        """Store the transposed keys as columns from `first` on."""
        layer, head = place
        fragment = cute.make_rmem_tensor((_VECTOR,), self.dtype)
        vectors = KEYS // _VECTOR
        for i in range(arch.thread_idx()[0], self.head_dim * vectors, _THREADS):
            element = i // vectors
            column = i % vectors * _VECTOR
            for n in range_constexpr(_VECTOR):
                fragment[n] = smem[column + permuted_key(n), element]
            if first + column < out.shape[3]:
                cute.autovec_copy(fragment, vector_at(out, (layer, element, head, first + column)))


transpose_v_kernel = functools.lru_cache(maxsize=64)(TransposeV)
