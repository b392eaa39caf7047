"""Keys and values that lie in pages: rows `page_table[sequence, row // size]`, `row % size` of an array (pages, size, heads, D)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Boolean, Int32, Int64, const_expr, cute, range_constexpr
from .fwd.query_tile import VALUES

if TYPE_CHECKING:
    from .fwd.query_tile import Tile


class Pages:
    """The pages of one sequence, of `size` rows each, in an array of `count` pages."""

    __kiln_immutable__ = True

    def __init__(self, table: Any, size: int, count: Any) -> None:
        self.table, self.size, self.count = table, size, count

    @cute.jit
    def number(self, row: Any):
        """The page that has a row; the nearest there is, since numbers that are wrong must not lead out of arrays."""
        column = min(row // self.size, self.table.shape[0] - 1)
        return max(Int32(0), min(self.table[column], self.count - 1))


class PagedKeys:
    """The blocks of keys and values that the threads of a tile copy with `cp.async`. Where they are is looked up a block ahead."""

    __kiln_immutable__ = True

    def __init__(self, of: Tile, pages: Pages, thread: Any, k: Any, v: Any, k_ring: Any, v_ring: Any) -> None:
        parts = (_PagedCopy(of, pages, thread, padded) for padded in (of.padded, of.padded_v))
        self.of_k, self.of_v = parts
        self.alike = self.of_k.at_once == self.of_v.at_once
        self.pages_k = self.of_k.numbers()
        self.pages_v = self.pages_k if self.alike else self.of_v.numbers()
        self.k, self.v = (k, k_ring, of.dim), (v, v_ring, of.dim_v)

    def look_up(self, block: Any) -> None:
        """Find the pages of a block."""
        self.of_k.look_up(self.pages_k, block)
        if not self.alike:
            self.of_v.look_up(self.pages_v, block)

    def fetch(self, buffer: Any, block: Any, keys: Any = None) -> None:
        """Begin to copy a block whose pages were found. `keys`: how many there are, where it may go beyond."""
        for copy, numbers, (source, ring, dim) in (
            (self.of_k, self.pages_k, self.k),
            (self.of_v, self.pages_v, self.v),
        ):
            copy.fetch(numbers, source, ring[None, None, buffer], dim, block, keys)


class _PagedCopy:
    """What a thread copies of blocks of rows in pages."""

    __kiln_immutable__ = True

    def __init__(self, of: Tile, pages: Pages, thread: Any, padded: int) -> None:
        self.pages, self.rows = pages, of.config.tile_n
        self.lanes = (64 if padded % 64 == 0 else 32) // VALUES
        self.at_once = of.config.threads // self.lanes
        self.copy = of.row_copy(padded, True).get_slice(thread)
        self.first = thread // self.lanes
        passes = self.rows // self.at_once
        # So many of its rows in succession are in one page: one number serves for all.
        able = (n for n in range(1, passes + 1) if passes % n == 0 and pages.size % (n * self.at_once) == 0)
        self.together = max(able, default=1)
        self.lookups = passes // self.together

    def numbers(self) -> Any:
        """Registers for the pages of a block."""
        return cute.make_rmem_tensor((self.lookups,), Int32)

    def look_up(self, numbers: Any, block: Any) -> None:
        """Find the pages of a block."""
        for n in range(self.lookups):
            numbers[n] = self.pages.number(block * self.rows + n * self.together * self.at_once + self.first)

    @cute.jit
    def fetch(self, numbers: Any, source: cute.Tensor, target: cute.Tensor, dim: int, block: Int32, rows: Any = None):
        """Begin to copy a block of rows of (page, row, element). `rows`: how many there are; zeros are put after them."""
        to = self.copy.partition_D(target)
        extent, padded = (cute.size(target, mode=[i]) for i in range(2))
        columns = cute.size(to, mode=[2])
        places = self.copy.partition_S(cute.make_identity_tensor((extent, padded)))
        for n in range_constexpr(self.lookups):
            row = block * self.rows + n * self.together * self.at_once + self.first
            inner = row % self.pages.size
            start = source.iterator + (Int64(numbers[n]) * source.stride[0] + Int64(inner) * source.stride[1])
            start = start + places[0, 0, 0][1]
            for i in range_constexpr(self.together):
                number = n * self.together + i
                of_row = cute.assume(Int64(source.stride[1]) * (i * self.at_once), divby=VALUES)
                piece = cute.make_tensor(
                    (start + of_row).with_alignment(2 * VALUES),
                    cute.make_layout(((VALUES, 1), columns), stride=((1, 0), self.lanes * VALUES)),
                )
                if const_expr(rows is None and dim == padded):
                    cute.copy(self.copy, piece, to[None, number, None])
                else:
                    inside = cute.make_rmem_tensor((1, columns), Boolean)
                    for j in range_constexpr(columns):
                        there = Boolean(True)
                        if const_expr(rows is not None):
                            there = row + i * self.at_once < rows
                        if const_expr(dim != padded):
                            there = there & (places[0, 0, j][1] < dim)
                        inside[0, j] = there
                    cute.copy(self.copy, piece, to[None, number, None], pred=inside)
