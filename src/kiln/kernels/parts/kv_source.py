"""Where rows of K and V lie: dense, varlen or paged."""

from __future__ import annotations

import math
from typing import Any

from ... import Boolean, Constexpr, Int32, Int64, const_expr, cute, range_constexpr
from ...cute import arch
from ...utils.schedulers import clamp_offset

VECTOR = 8
"""16-bit elements of a 16-byte access."""
V_TRANSPOSE_KEYS = 64
"""Keys that a CTA of the fp8 V transpose handles."""


class PageTable:
    """The pages of one sequence, `page_size` rows each, in an array of `num_pages` pages."""

    __kiln_immutable__ = True

    def __init__(self, table: cute.Tensor, page_size: int, num_pages: Int32) -> None:
        self.table = table
        self.page_size = page_size
        self.num_pages = num_pages

    @cute.jit
    def page(self, row: Int32):
        """Return the page of a row, clamped so that a wrong entry does not lead outside of the array."""
        column = min(row // self.page_size, self.table.shape[0] - 1)
        return max(Int32(0), min(self.table[column], self.num_pages - 1))


@cute.jit
def sequence_rows(x: cute.Tensor, cu_seqlens: Any, batch: Int32, head: Int32, group_size: Constexpr = 1):
    """Return the rows (row, element) of one head, or of `group_size` adjacent heads, of one sequence, and the
    sequence's length."""
    length = x.shape[1]
    first = Int32(0)
    if const_expr(cu_seqlens is not None):
        first = clamp_offset(cu_seqlens[batch], length)
        length = clamp_offset(cu_seqlens[batch + 1], length) - first
        batch = Int32(0)
    if const_expr(group_size == 1):
        rows = x[batch, None, head, None]
        if const_expr(cu_seqlens is None):
            return rows, length
        rows = cute.domain_offset((first, 0), rows)
        return cute.make_tensor(rows.iterator, cute.make_layout((length, x.shape[3]), stride=rows.stride)), length
    rows = cute.domain_offset((first, head * group_size, 0), x[batch, None, None, None])
    row_stride, head_stride, element_stride = rows.stride
    layout = cute.make_layout(((group_size, length), x.shape[3]), stride=((head_stride, row_stride), element_stride))
    return cute.make_tensor(rows.iterator, layout), length


def vector_at(x: cute.Tensor, coord: tuple[Int32 | int, ...]) -> cute.Tensor:
    """Return the 16 bytes of a tensor that begin at a coordinate."""
    start = cute.domain_offset(coord, x).iterator
    return cute.make_tensor(start.with_alignment(16), cute.make_layout((128 // x.element_type.width,)))


@cute.jit
def store_vectors(tile: cute.Tensor, rows: Int32, columns: Int32, threads: int, out: cute.Tensor, coord: Any):
    """Store the first rows of a tile in smem, 16 bytes at a time; `coord(row, column)` is their coordinate in `out`.

    For the last rows of a varlen sequence: a TMA store would go beyond it."""
    vectors = columns // VECTOR
    fragment = cute.make_rmem_tensor((VECTOR,), tile.element_type)
    for i in range(arch.thread_idx()[0] % threads, max(rows, 0) * vectors, threads):
        row = i // vectors
        column = cute.assume(i % vectors * VECTOR, divby=VECTOR)
        cute.autovec_copy(vector_at(tile, (row, column)), fragment)
        cute.autovec_copy(fragment, vector_at(out, coord(row, column)))


# --- tiles that threads copy with cp.async ---


@cute.jit
def load_rows(copy: cute.ThrCopy, source: cute.Tensor, target: cute.Tensor, head_dim: int, tile: Any, rows: Any = None):
    """Issue copies of a tile of rows to smem. With `rows`, the rows that exist, those after them become zeros."""
    tile_rows, padded = (cute.size(target, mode=[i]) for i in range(2))
    first = copy.partition_S(cute.local_tile(source, (tile_rows, padded), (0, 0)))
    to = copy.partition_D(target)
    # What all threads share is added to a thread's address. The distance of its rows is a value that exists only here:
    # otherwise each row has a pointer of its own, in registers all through the main loop.
    start = first.iterator + Int64(tile) * (source.stride[0] * tile_rows)
    distance = arch.make_warp_uniform(Int32(first.stride[1] // VECTOR))
    coords = copy.partition_S(cute.make_identity_tensor((tile_rows, padded)))
    columns = cute.size(to, mode=[2])
    for i in range_constexpr(cute.size(to, mode=[1])):
        row = cute.make_tensor(
            start + cute.assume(Int64(distance) * (VECTOR * i), divby=VECTOR),
            cute.make_layout((first.shape[0], columns), stride=(first.stride[0], first.stride[2])),
        )
        if const_expr(rows is None and head_dim == padded):
            cute.copy(copy, row, to[None, i, None])
        else:
            exists = Boolean(True)
            if const_expr(rows is not None):
                exists = tile * tile_rows + coords[0, i, 0][0] < rows
            cute.copy(copy, row, to[None, i, None], pred=_predicate(coords[0, i, None], exists, head_dim, padded))


@cute.jit
def _predicate(coords: Any, exists: Boolean, head_dim: int, padded: int):
    """Return which vectors of a row are copied: all if the row exists, but for the padding of head_dim."""
    columns = cute.size(coords)
    predicate = cute.make_rmem_tensor((1, columns), Boolean)
    for j in range_constexpr(columns):
        inside = exists
        if const_expr(head_dim != padded):
            inside = inside & (coords[j][1] < head_dim)
        predicate[0, j] = inside
    return predicate


class DenseKv:
    """K and V of one head, (row, element), as the threads of a CTA copy their tiles. `tile` is a `QueryTile`."""

    __kiln_immutable__ = True

    def __init__(
        self, tile: Any, thread: Int32 | int, k: cute.Tensor, v: cute.Tensor, smem_k: cute.Tensor, smem_v: cute.Tensor
    ) -> None:
        copies = (tile.row_copy(padded, True).get_slice(thread) for padded in (tile.padded, tile.padded_v))
        self.operands: tuple[tuple[cute.ThrCopy, cute.Tensor, cute.Tensor, int], ...] = tuple(
            zip(copies, (k, v), (smem_k, smem_v), (tile.dim, tile.dim_v), strict=True)
        )

    def look_up(self, kv_tile: Int32 | int) -> None:
        """There are no pages to find."""

    def load_first(self, kv_tile: Int32 | int, rows: Int32) -> None:
        """Issue the copies of a tile to stage 0; `rows` are those that exist: it may reach beyond them."""
        for copy, source, smem, head_dim in self.operands:
            load_rows(copy, source, smem[None, None, 0], head_dim, kv_tile, rows)

    def load_next(self, stage: Int32 | int, kv_tile: Int32 | int) -> None:
        """Issue the copies of the tile before `kv_tile` to the other of two stages."""
        for copy, source, smem, head_dim in self.operands:
            load_rows(copy, source, smem[None, None, 1 - stage], head_dim, kv_tile - 1)


class PagedKv:
    """K and V of one head in pages, (page, row, element). The pages of a tile are looked up one tile ahead."""

    __kiln_immutable__ = True

    def __init__(
        self,
        tile: Any,
        pages: PageTable,
        thread: Int32 | int,
        k: cute.Tensor,
        v: cute.Tensor,
        smem_k: cute.Tensor,
        smem_v: cute.Tensor,
    ) -> None:
        self.copy_k: _PagedCopy = _PagedCopy(tile, pages, thread, tile.padded)
        self.copy_v: _PagedCopy = _PagedCopy(tile, pages, thread, tile.padded_v)
        self.one_lookup: bool = self.copy_k.rows_at_once == self.copy_v.rows_at_once
        self.pages_k: cute.Tensor = self.copy_k.page_fragment()
        self.pages_v: cute.Tensor = self.pages_k if self.one_lookup else self.copy_v.page_fragment()
        self.k: tuple[cute.Tensor, cute.Tensor, int] = (k, smem_k, tile.dim)
        self.v: tuple[cute.Tensor, cute.Tensor, int] = (v, smem_v, tile.dim_v)

    def look_up(self, kv_tile: Int32 | int) -> None:
        """Find the pages of a tile."""
        self.copy_k.look_up(self.pages_k, kv_tile)
        if not self.one_lookup:
            self.copy_v.look_up(self.pages_v, kv_tile)

    def _operands(self) -> Any:
        return (self.copy_k, self.pages_k, *self.k), (self.copy_v, self.pages_v, *self.v)

    def load_first(self, kv_tile: Int32 | int, rows: Int32) -> None:
        """Issue the copies of a tile to stage 0; `rows` are those that exist: it may reach beyond them."""
        for copy, pages, source, smem, head_dim in self._operands():
            copy.load(pages, source, smem[None, None, 0], head_dim, kv_tile, rows)

    def load_next(self, stage: Int32 | int, kv_tile: Int32 | int) -> None:
        """Issue the copies of the tile before `kv_tile`, whose pages were looked up, to the other of two stages."""
        for copy, pages, source, smem, head_dim in self._operands():
            copy.load(pages, source, smem[None, None, 1 - stage], head_dim, kv_tile - 1)


class _PagedCopy:
    """What a thread copies of tiles of paged rows."""

    __kiln_immutable__ = True

    def __init__(self, tile: Any, pages: PageTable, thread: Int32 | int, padded: int) -> None:
        self.pages = pages
        self.tile_n = tile.config.tile_n
        self.lanes = (64 if padded % 64 == 0 else 32) // VECTOR
        self.rows_at_once = tile.config.threads // self.lanes
        self.copy = tile.row_copy(padded, True).get_slice(thread)
        self.first_row = thread // self.lanes
        passes = self.tile_n // self.rows_at_once
        # so many of a thread's rows in succession lie in one page, which is looked up once for all of them
        fitting = (
            n for n in range(1, passes + 1) if passes % n == 0 and pages.page_size % (n * self.rows_at_once) == 0
        )
        self.rows_per_page = max(fitting, default=1)
        self.lookups = passes // self.rows_per_page

    def page_fragment(self) -> cute.Tensor:
        """Return registers for the pages of a tile."""
        return cute.make_rmem_tensor((self.lookups,), Int32)

    def _row(self, kv_tile: Int32 | int, lookup: int) -> Int32:
        return kv_tile * self.tile_n + lookup * self.rows_per_page * self.rows_at_once + self.first_row

    def look_up(self, pages: cute.Tensor, kv_tile: Int32 | int) -> None:
        """Find the pages of a tile."""
        for n in range(self.lookups):
            pages[n] = self.pages.page(self._row(kv_tile, n))

    @cute.jit
    def load(
        self,
        pages: cute.Tensor,
        source: cute.Tensor,
        target: cute.Tensor,
        head_dim: int,
        kv_tile: Int32,
        rows: Int32 | None = None,
    ):
        """Issue the copies of a tile of (page, row, element); rows that do not exist become zeros."""
        to = self.copy.partition_D(target)
        tile_rows, padded = (cute.size(target, mode=[i]) for i in range(2))
        columns = cute.size(to, mode=[2])
        coords = self.copy.partition_S(cute.make_identity_tensor((tile_rows, padded)))
        for n in range_constexpr(self.lookups):
            row = self._row(kv_tile, n)
            start = source.iterator + (
                Int64(pages[n]) * source.stride[0] + Int64(row % self.pages.page_size) * source.stride[1]
            )
            start = start + coords[0, 0, 0][1]
            for i in range_constexpr(self.rows_per_page):
                number = n * self.rows_per_page + i
                row_offset = cute.assume(Int64(source.stride[1]) * (i * self.rows_at_once), divby=VECTOR)
                vectors = cute.make_tensor(
                    (start + row_offset).with_alignment(2 * VECTOR),
                    cute.make_layout(((VECTOR, 1), columns), stride=((1, 0), self.lanes * VECTOR)),
                )
                if const_expr(rows is None and head_dim == padded):
                    cute.copy(self.copy, vectors, to[None, number, None])
                else:
                    exists = Boolean(True)
                    if const_expr(rows is not None):
                        exists = row + i * self.rows_at_once < rows
                    predicate = _predicate(coords[0, 0, None], exists, head_dim, padded)
                    cute.copy(self.copy, vectors, to[None, number, None], pred=predicate)


# --- fp8 V, transposed ahead of the kernel ---


def transposed_v_unit(tile_n: int) -> int:
    """Return what the keys of a varlen sequence are rounded up to in transposed V: no KV tile has keys of two
    sequences."""
    return math.lcm(tile_n, V_TRANSPOSE_KEYS)


@cute.jit
def transposed_v_offset(first_k: Int32, batch: Int32, tile_n: int):
    """Return where a varlen sequence begins in transposed V, without a prefix sum over the sequences before it."""
    unit = transposed_v_unit(tile_n)
    return (first_k // unit + batch) * unit


def transposed_v_columns(total_k: int, batch: int, tile_n: int) -> int:
    """Return the columns of transposed V for `batch` varlen sequences of `total_k` keys together."""
    unit = transposed_v_unit(tile_n)
    return (total_k // unit + batch) * unit
