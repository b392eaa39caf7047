"""Accumulators of a CTA tile, as epilogues take them.

A kernel of an architecture has accumulators where its MMAs leave them, and every epilogue reads them as an
`Accumulator`: one subtile after the other, in registers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, cast

from ... import const_expr, cute, range_constexpr

if TYPE_CHECKING:
    from ... import Int32

_EIGHT = 8
"""The columns of the 8 x 8 blocks that an accumulator of WGMMA or `mma.sync` consists of; a thread has two neighbours of a
row in each."""


class Accumulator(Protocol):
    """The accumulators of a tile (M, N) that some warps store together, in subtiles.

    An accumulator is complete when it is made: whoever makes it has waited for all MMAs that write it, with
    `warpgroup.wait_group` for registers, or at the mbarrier of a `tcgen05` commit for tensor memory. So an epilogue waits
    for nothing, and may take subtiles in any order and more than once. Nothing may write it before `release`, after which
    no subtile may be taken.
    """

    @property
    def num_subtiles(self) -> int:
        """How many subtiles there are: along N first, then along M."""
        ...

    @property
    def subtile_shape(self) -> cute.Shape:
        """The shape of what a thread has of a subtile, as copies to shared memory take it."""
        ...

    def subtile(self, number: Int32 | int) -> cute.Tensor:
        """Return what this thread has of a subtile, in registers."""
        ...

    def coord(self, coords: cute.Tensor, number: Int32 | int, element: int) -> tuple[Int32, Int32]:
        """Return the coordinate of an element of this thread's fragment of a subtile.

        `coords` is what `partition` returns for the coordinates of the tile.
        """
        ...

    def partition(self, tile: cute.Tensor) -> cute.Tensor:
        """Return the elements of a tile (M, N) that belong to the accumulators of this thread."""
        ...

    def release(self) -> None:
        """Let the MMAs of the next tile write the accumulator."""
        ...


class RegisterAccumulator(NamedTuple):
    """The accumulators of a thread in registers. Its own MMAs write them, so that nobody waits for their release."""

    fragment: cute.Tensor
    """((2, 2, N / 8), M / 64, 1) with WGMMA: in blocks of 8 x 8, two neighbours of a row, and two rows 8 apart."""
    thr_mma: cute.ThrMma
    """This thread's slice of the tiled MMA: where accumulators lie in the tile."""
    columns: int = 0
    """The columns of a subtile; 0: the whole accumulator is one."""

    @property
    def num_subtiles(self) -> int:
        return cute.size(self.fragment) // (self.columns // 2) if self.columns else 1

    @property
    def subtile_shape(self) -> cute.Shape:
        return ((2, 2, self.columns // _EIGHT), 1, 1) if self.columns else self.fragment.shape

    @cute.jit
    def subtile(self, number: Int32 | int):
        """Return what this thread has of a subtile: two neighbours in each 8 x 8 block, in each half of 64 x columns."""
        if const_expr(self.columns == 0):
            return self.fragment
        count = self.columns // 2
        values = cute.make_rmem_tensor((count,), self.fragment.element_type)
        if const_expr(isinstance(number, int)):
            for i in range_constexpr(count):
                values[i] = self.fragment[number * count + i]
        else:
            for other in range_constexpr(self.num_subtiles):  # registers have no numbers that a loop could count
                if number == other:
                    for i in range_constexpr(count):
                        values[i] = self.fragment[other * count + i]
        return values

    def coord(self, coords: cute.Tensor, number: Int32 | int, element: int) -> tuple[Int32, Int32]:
        eights = self.columns // _EIGHT
        tile_eights = cute.size(self.fragment, mode=[0]) // 4
        row_subtiles = tile_eights // eights
        pair = element // 2
        value = (element % 2, pair % 2)
        if tile_eights > 1:
            value = (*value, number % row_subtiles * eights + pair // 2)
        return cast("tuple[Int32, Int32]", coords[value, number // row_subtiles, 0])

    def partition(self, tile: cute.Tensor) -> cute.Tensor:
        return self.thr_mma.partition_C(tile)

    def release(self) -> None:
        pass
