"""How the sums of a warp group become elements of a result that the copy engine stores.

A warp group combines and converts its sums a piece of columns at a time, in registers; a piece goes through one of its two buffers in
shared memory. While one is stored the next is made, and what is left of a tile is stored while the next is multiplied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float16, Float32, Int32, const_expr, cute, pipeline, range_constexpr
from ... import range as dynamic_range
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp, cpasync, warp, warpgroup
from ...utils import LayoutEnum, sm90
from .hopper_plan import ATOM_M, BUFFERS, GROUP, GROUPS

if TYPE_CHECKING:
    from collections.abc import Callable

_FIRST_BARRIER = 1
"""Named barriers from there on belong to the warp groups that store."""


class StoredEpilogue:
    """Stores combine(sums, alpha, beta, *others) of tiles that `sharers` warp groups have in turns of 64 rows, `piece` columns at a time.

    `other_widths`: how many neighbours in N of each of the other tensors can be loaded at once; None: sums are at most scaled.
    `grouped`: a tile has rows of a group, and those of the next lie behind them: pieces that are not whole are stored by threads.
    """

    def __init__(
        self, tile_mn: tuple[int, int], sharers: int, piece: int, acc_dtype: Any, out_dtype: Any,
        combine: Callable[..., Any], other_widths: tuple[int, ...] | None, grouped: bool = False,
    ) -> None:  # fmt: skip
        self.tile_mn = tile_mn
        self.sharers = sharers
        self.piece = piece
        self.acc_dtype = acc_dtype
        self.out_dtype = out_dtype
        self.combine = combine
        self.out_width = 128 // out_dtype.width
        self.other_widths = other_widths or ()
        self.followed = other_widths is not None
        self.grouped = grouped

    def layout(self) -> Any:
        """How the pieces of all warp groups lie in shared memory."""
        return sm90.make_smem_layout_epi(self.out_dtype, LayoutEnum.ROW_MAJOR, (ATOM_M, self.piece), GROUPS * BUFFERS)

    def atom(self, d: Any) -> Any:
        """What stores a piece, and the coordinates of the result (M, N, L). Called on the host."""
        layout = cute.slice_(self.layout(), (None, None, 0))
        return cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), d, layout, (ATOM_M, self.piece))

    def maps(self, store: Any) -> tuple[Any, ...]:
        """What the copy engine reads to store."""
        return (store,)

    def buffers(self, smem: Any, layout: Any) -> Any:
        """The pieces in shared memory."""
        return smem.allocate_tensor(self.out_dtype, layout.outer, 1024, layout.inner)

    def attend(self) -> None:
        """What threads have to do that neither multiply nor store."""

    @cute.jit
    def write(
        self, part: Any, thread: Int32, group: Int32, acc: cute.Tensor, buffers: cute.Tensor, into: Any, place: Any
    ):
        """Store the sums that a thread of a warp group has of a tile.

        `part` is the thread's slice of the tiled MMA. `into`: what stores, the coordinates of the result (M, N, L), itself, the other
        tensors, alpha and beta.
        """
        store, to_d, d, extras, alpha, beta = into
        m, n, batch, _, start, count_rows = place
        if const_expr(self.grouped):
            to_d = cute.domain_offset((start, 0, 0), to_d)
        rows, columns = self.tile_mn
        across = columns // self.piece
        write = self.copy()
        pieces = cute.local_tile(to_d, (ATOM_M, self.piece), (None, None, batch))  # (rows, columns, M, N)
        of, to = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(buffers, 0, 2), cute.group_modes(pieces, 0, 2)
        )
        left = count_rows, d, start, batch, thread, buffers
        stored = (
            write, write.get_slice(thread).partition_D(buffers), store, of, to, group, left,
            arch.make_warp_uniform(thread // 32) == 0,
        )  # fmt: skip
        row, column = m * (rows // ATOM_M) + (group if self.sharers > 1 else 0), n * across
        total = rows // ATOM_M // self.sharers * across
        count = self.piece // 2
        if const_expr(
            total % BUFFERS > 0
        ):  # the buffer of the last piece of the tile before is that of the first of this one
            if stored[-1]:
                arch.cp_async_bulk_wait_group(0, read=True)
            pipeline.NamedBarrier(_FIRST_BARRIER + group, GROUP).arrive_and_wait()
        if const_expr(not self.followed):
            for number in range_constexpr(total):
                values = cute.make_rmem_tensor((count,), self.acc_dtype)
                for i in range_constexpr(count):
                    values[i] = acc[number * count + i]
                where = row + number // across * self.sharers, column + number % across
                self.store(self.combine(values.load(), alpha, beta), where, number % BUFFERS, stored)
        else:  # in a loop, so that the code of what follows is there once
            places = cute.local_tile(cute.make_identity_tensor((d.shape[0], d.shape[1])), self.tile_mn, (m, n))
            places = part.partition_C(places)  # ((2, 2, columns / 8), rows / 64, 1)
            if const_expr(self.grouped):
                extras = [cute.domain_offset((start, 0, 0), x) for x in extras]
            last = (count_rows if const_expr(self.grouped) else d.shape[0]) - 1, d.shape[1] - 1
            held = self.held(extras)
            self.load(held, extras, last, batch, places, 0, across)
            for number in dynamic_range(total, unroll=1):
                values = cute.make_rmem_tensor((count,), self.acc_dtype)
                for each in range_constexpr(total):  # registers have no numbers that a loop could count
                    if number == each:
                        for i in range_constexpr(count):
                            values[i] = acc[each * count + i]
                made = self.combine(values.load(), alpha, beta, *[x.load() for x in held])
                self.load(held, extras, last, batch, places, min(number + 1, total - 1), across)
                where = row + number // across * self.sharers, column + number % across
                self.store(made, where, number % BUFFERS, stored)

    @cute.jit
    def store(self, made: Any, where: Any, buffer: Any, stored: Any):
        """Store a piece of results at a place, counted in pieces, by way of a buffer."""
        write, slots, store, of, to, group, left, leads = stored
        result = cute.make_rmem_tensor(((2, 2, self.piece // 8), 1, 1), self.out_dtype)
        result.store(made.to(self.out_dtype).reshape(result.shape))
        slot = group * BUFFERS + buffer
        cute.copy(write, write.retile(result), slots[None, None, None, slot])
        arch.fence_proxy("async.shared", space="cta")
        if leads:  # the other buffer, which is written next, has been read
            arch.cp_async_bulk_wait_group(BUFFERS - 2, read=True)
        pipeline.NamedBarrier(_FIRST_BARRIER + group, GROUP).arrive_and_wait()
        whole = leads
        if const_expr(self.grouped):
            rows = left[0] - where[0] * ATOM_M
            whole = leads & (rows >= ATOM_M)
            if rows < ATOM_M:
                self.store_rows(rows, where, slot, left)
        if whole:
            cute.copy(store, of[None, slot], to[None, where[0], where[1]])
            arch.cp_async_bulk_commit_group()

    @cute.jit
    def store_rows(self, rows: Int32, where: Any, slot: Int32, left: Any):
        """Store some rows of a piece. Its buffer is written again after all threads have met once more."""
        _, d, start, batch, thread, buffers = left
        width = self.out_width
        atom = cute.make_copy_atom(CopyUniversalOp(), self.out_dtype, num_bits_per_copy=128)
        lanes = self.piece // width
        order = cute.make_layout((GROUP // lanes, lanes), stride=(lanes, 1))
        copy = cute.make_tiled_copy_tv(atom, order, cute.make_layout((1, width))).get_slice(thread)
        tile = (ATOM_M, self.piece)
        d = cute.domain_offset((start, 0), d[None, None, batch])
        to = copy.partition_D(cute.local_tile(d, tile, where))
        of = copy.partition_S(buffers[None, None, slot])
        places = copy.partition_S(cute.make_identity_tensor(tile))
        held = cute.make_fragment_like(of)
        cute.copy(copy, of, held)
        columns = d.shape[1] - where[1] * self.piece
        for i in range_constexpr(cute.size(of, mode=[1])):
            for j in range_constexpr(cute.size(of, mode=[2])):
                row, column = places[0, i, j]
                inside = (row < rows) & (column < columns)
                cute.copy(atom, held[None, i, j], to[None, i, j], pred=inside)

    def held(self, extras: Any) -> list[Any]:
        """Registers for what a piece needs of the other tensors."""
        return [cute.make_rmem_tensor((self.piece // 2,), x.element_type) for x in extras]

    @cute.jit
    def load(self, held: Any, extras: Any, last: Any, batch: Any, places: Any, number: Any, across: Any):
        """Load what a piece needs of the other tensors; outside of the result, where nothing is stored, what is last in it."""
        rows, columns = last
        eights = self.piece // 8
        for i in range_constexpr(self.piece // 4):
            row, column = places[((0, i % 2, number % across * eights + i // 2), number // across, 0)]
            row = min(row, rows)
            for x, to, width in zip(extras, held, self.other_widths):
                if const_expr(width > 1):  # an even number of columns
                    at = cute.assume(cute.crd2idx((row, min(column, columns - 1), batch), x.layout), divby=2)
                    of = cute.make_tensor(x.iterator + at, cute.make_layout(2))
                    cute.autovec_copy(of, cute.make_tensor(to.iterator + 2 * i, cute.make_layout(2)))
                else:
                    to[2 * i] = x[row, min(column, columns), batch]
                    to[2 * i + 1] = x[row, min(column + 1, columns), batch]

    def finish(self) -> None:
        """Wait until nothing is stored from shared memory any more."""
        arch.cp_async_bulk_wait_group(0, read=True)

    def copy(self) -> Any:
        """How a warp group writes a piece to shared memory: as the tensor cores give out sums of so many columns."""
        k = warpgroup.OperandMajorMode.K
        sums = sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (1, 1, 1), (ATOM_M, self.piece))
        if self.out_dtype.width == 16:
            atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4 if self.piece % 16 == 0 else 2), self.out_dtype)
        else:
            bits = 2 * self.out_dtype.width
            atom = cute.make_copy_atom(CopyUniversalOp(), self.out_dtype, num_bits_per_copy=bits)
        return cute.make_tiled_copy_C(atom, sums)
