"""How the sums of a warp group become elements of a result that the copy engine stores.

A warp group combines and converts its sums some columns at a time, in registers; a piece of them goes through one of its two buffers in
shared memory. While one is stored the next is made, and what is left of a tile is stored while the next is multiplied.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .... import Float16, Float32, Int32, const_expr, cute, pipeline, range_constexpr, select_
from .... import range as dynamic_range
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, cpasync, warp, warpgroup
from ....utils import LayoutEnum, sm90
from .sm90_config import ATOM_M, WARPGROUP_THREADS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .sm90_config import Sm90GemmConfig

_FIRST_BARRIER = 1
"""Named barriers from there on belong to the warp groups that store."""
_TIGHT, _STEP, _LEAST_STEP = 160, 16, 8
"""Where a thread has more sums, no more columns are combined at a time: registers for others, and for what is made of them, are few. (There are fewer still
where others are loaded one by one, to lie across the result, and where rows are stored by threads.)"""
_HELD = 16
"""Bits of all others of an element of which a piece is loaded at a time, even so."""


class TmaStoreEpilogue:
    """Stores the values of combine(sums, alpha, beta, *others) of tiles of a config, each to a result, which warp groups have in turns of 64 rows, `piece` columns at a time.

    `other_widths`: how many neighbours in N of each of the other tensors can be loaded at once; None: sums are at most scaled.
    Where `row_width` is not 0, a tile has rows of a group, and those of the next lie behind them: pieces that are not whole are stored by threads, so many
    neighbours at a time.
    Tiles of a config that is `turned` lie across the results. `summed`: the last value is summed along rows of the tile: the sums are those of a tile in N.
    """

    __kiln_fixed__ = True

    def __init__(
        self, config: Sm90GemmConfig, piece: int, acc_dtype: Any, out_types: tuple[Any, ...], combine: Callable[..., Any],
        other_widths: tuple[int, ...] | None, row_width: int = 0, summed: bool = False,
    ) -> None:  # fmt: skip
        self.tile_mn = config.tile_shape_mnk[:2]
        self.sharers, self.groups = config.warpgroups_per_tile, config.mma_warpgroups
        self.slots = config.epi_stages
        self.piece = piece
        tight = other_widths is not None and config.acc_registers(False) > _TIGHT
        grouped = row_width > 0
        self.step = math.gcd(piece, _LEAST_STEP if config.transpose_out or grouped else _STEP) if tight else piece
        self.order = LayoutEnum.COL_MAJOR if config.transpose_out else LayoutEnum.ROW_MAJOR
        self.acc_dtype = acc_dtype
        self.out_types = out_types
        self.combine = combine
        self.out_width = 128 // max(kind.width for kind in out_types)
        self.other_widths = other_widths or ()
        if config.transpose_out:
            self.other_widths = (1,) * len(self.other_widths)
        self.turned = config.transpose_out
        self.followed = other_widths is not None
        self.grouped = grouped
        self.row_width = row_width
        self.summed = summed

    def layouts(self) -> list[Any]:
        """How the pieces of all warp groups lie in shared memory, for each result."""
        shape, count = (ATOM_M, self.piece), self.groups * self.slots
        return [sm90.make_smem_layout_epi(kind, self.order, shape, count) for kind in self.out_types]

    def atoms(self, d: Any) -> tuple[list[Any], list[Any]]:
        """What stores a piece, and the coordinates of the result (M, N, L), for each result. Called on the host."""
        op, tile = cpasync.CopyBulkTensorTileS2GOp(), (ATOM_M, self.piece)
        made = [
            cpasync.make_tiled_tma_atom(op, x, cute.slice_(layout, (None, None, 0)), tile)
            for x, layout in zip(d, self.layouts())
        ]
        return [atom for atom, _ in made], [to for _, to in made]

    def buffers(self, smem: Any, ring: Any) -> Any:
        """The pieces in shared memory, of each result."""
        return [
            smem.allocate_tensor(kind, layout.outer, 1024, layout.inner)
            for kind, layout in zip(self.out_types, self.layouts())
        ]

    @cute.jit
    def write(self, part: Any, thread: Int32, group: Int32, acc: cute.Tensor, buffers: Any, into: Any, place: Any):
        """Store the sums that a thread of a warp group has of a tile.

        `part` is the thread's slice of the tiled MMA. `into`: for each result what stores, its coordinates (M, N, L), itself; where sums of rows go, the
        other tensors, alpha and beta.
        """
        stores, to_d, d, sums, extras, alpha, beta = into
        m, n, batch, _, start, count_rows = place
        if const_expr(self.grouped):
            to_d = [cute.domain_offset((start, 0, 0), x) for x in to_d]
        rows, columns = self.tile_mn
        across = columns // self.piece
        ways = [self.way(*given, thread, batch) for given in zip(stores, to_d, buffers, self.out_types)]
        left = count_rows, d, start, batch, thread, buffers
        stored = (ways, group, left, arch.make_warp_uniform(thread // 32) == 0)
        d = d[0]
        row, column = m * (rows // ATOM_M) + (group if self.sharers > 1 else 0), n * across
        total = rows // ATOM_M // self.sharers * across
        steps, count = self.piece // self.step, self.step // 2
        if const_expr(
            total % self.slots > 0
        ):  # the buffer of the last piece of the tile before is that of the first of this one
            if stored[-1]:
                arch.cp_async_bulk_wait_group(0, read=True)
            pipeline.NamedBarrier(_FIRST_BARRIER + group, WARPGROUP_THREADS).arrive_and_wait()
        if const_expr(not self.followed):
            for number in range_constexpr(total):
                values = cute.make_rmem_tensor((count,), self.acc_dtype)
                for i in range_constexpr(count):
                    values[i] = acc[number * count + i]
                where = row + number // across * self.sharers, column + number % across
                self.keep(self.combine(values.load(), alpha, beta), ways, 0, group, number % self.slots)
                self.store(where, number % self.slots, stored)
        else:  # in a loop, so that the code of what follows is there once
            places = cute.local_tile(cute.make_identity_tensor((d.shape[0], d.shape[1])), self.tile_mn, (m, n))
            places = part.partition_C(places)  # ((2, 2, columns / 8), rows / 64, 1); of 8 columns ((2, 2), ...)
            if const_expr(self.grouped):
                extras = [cute.domain_offset((start, 0, 0), x) for x in extras]
            if const_expr(self.turned):
                extras = [cute.select(x, mode=[1, 0, 2]) for x in extras]
            last = (count_rows if const_expr(self.grouped) else d.shape[0]) - 1, d.shape[1] - 1
            held, per = self.held(extras)
            atoms = rows // ATOM_M // self.sharers
            of_rows = cute.make_rmem_tensor((2 * atoms,), Float32)
            of_rows.fill(0.0)
            fine = across * steps
            self.load(held, extras, last, batch, places, 0, fine // per)
            for number in dynamic_range(total * steps, unroll=1):
                values = cute.make_rmem_tensor((count,), self.acc_dtype)
                for each in range_constexpr(total * steps):  # registers have no numbers that a loop could count
                    if number == each:
                        for i in range_constexpr(count):
                            values[i] = acc[each * count + i]
                made = self.combine(values.load(), alpha, beta, *[x.load() for x in self.part(held, number % per, per)])
                if const_expr(per == 1) or number % per == per - 1:
                    following = min(number // per + 1, total * steps // per - 1)
                    self.load(held, extras, last, batch, places, following, fine // per)
                if const_expr(self.summed):
                    added = self.row_sums(made[-1], places, number, fine, d.shape[1])
                    for i in range_constexpr(2 * atoms):  # not a branch, which would take their place in memory
                        mine = select_(number // fine == i // 2, added[i % 2], Float32(0.0))
                        of_rows[i] = of_rows[i] + mine
                piece = number // steps
                self.keep(made, ways, number % steps, group, piece % self.slots)
                if const_expr(steps == 1) or number % steps == steps - 1:
                    where = row + piece // across * self.sharers, column + piece % across
                    self.store(where, piece % self.slots, stored)
            if const_expr(self.summed):
                self.store_row_sums(of_rows, sums[0], places, d.shape[0], thread, n, batch)

    def way(self, store: Any, to: Any, staged: Any, kind: Any, thread: Any, batch: Any) -> tuple[Any, ...]:
        """How a result is stored: its type, how threads write pieces and where, what stores them, from where and whereto."""
        write = self.copy(kind)
        pieces = cute.local_tile(to, (ATOM_M, self.piece), (None, None, batch))  # (rows, columns, M, N)
        pair = cpasync.tma_partition(
            store, 0, cute.make_layout(1), cute.group_modes(staged, 0, 2), cute.group_modes(pieces, 0, 2)
        )
        return kind, write, write.get_slice(thread).partition_D(staged), store, *pair

    def row_sums(self, value: Any, places: Any, number: Any, across: int, columns: Any) -> list[Any]:
        """The sums of what a thread has of some columns, in its two rows of each eight."""
        values = cute.make_rmem_tensor((self.step // 2,), Float32)
        values.store(value)
        found = [Float32(0.0), Float32(0.0)]
        eights = self.step // 8
        for i in range(self.step // 4):
            _, column = places[((0, i % 2, number % across * eights + i // 2), 0, 0)]
            for pair in range(2):
                there = select_(column + pair < columns, values[2 * i + pair], Float32(0.0))
                found[i % 2] = found[i % 2] + there
        return found

    @cute.jit
    def store_row_sums(self, of_rows: Any, sums: Any, places: Any, rows: Any, thread: Any, n: Any, batch: Any):
        """Add what four lanes have of each row of a tile, and store it as that of the tile in N."""
        for i in range_constexpr(cute.size(of_rows)):
            total = of_rows[i]
            for step in (1, 2):
                total = total + arch.shuffle_sync_bfly(total, step)
            row, _ = places[((0, i % 2, 0), i // 2, 0)]
            if (thread % 4 == 0) & (row < rows) & (n < sums.shape[0]):
                sums[n, batch, row] = total

    @cute.jit
    def keep(self, made: Any, ways: Any, step: Any, group: Any, buffer: Any):
        """Write some columns of a piece of each result to a buffer."""
        for value, (kind, write, slots, _, _, _) in zip(made, ways):
            result = cute.make_rmem_tensor(((2, 2, self.step // 8), 1, 1), kind)
            result.store(value.to(kind).reshape(result.shape))
            cute.copy(write, write.retile(result)[None, None, 0], slots[None, None, step, group * self.slots + buffer])

    @cute.jit
    def store(self, where: Any, buffer: Any, stored: Any):
        """Store the piece of each result that is in a buffer at a place, counted in pieces."""
        ways, group, left, leads = stored
        slot = group * self.slots + buffer
        arch.fence_proxy("async.shared", space="cta")
        if leads:  # the other buffer, which is written next, has been read
            arch.cp_async_bulk_wait_group(self.slots - 2, read=True)
        pipeline.NamedBarrier(_FIRST_BARRIER + group, WARPGROUP_THREADS).arrive_and_wait()
        rows = Int32(ATOM_M)
        if const_expr(self.grouped):
            rows = left[0] - where[0] * ATOM_M
            if rows < ATOM_M:
                self.store_rows(rows, where, slot, left)
        if leads:
            if const_expr(not self.grouped) or rows >= ATOM_M:
                for _, _, _, store, of, to in ways:
                    cute.copy(store, of[None, slot], to[None, where[0], where[1]])
            arch.cp_async_bulk_commit_group()  # of nothing, too: a buffer is read when so many groups are left as come after its own

    @cute.jit
    def store_rows(self, rows: Int32, where: Any, slot: Int32, left: Any):
        """Store some rows of a piece. Its buffer is written again after all threads have met once more."""
        _, (d,), start, batch, thread, (buffers,) = left
        width = self.row_width
        atom = cute.make_copy_atom(
            CopyUniversalOp(), self.out_types[0], num_bits_per_copy=width * self.out_types[0].width
        )
        lanes = self.piece // width
        order = cute.make_layout((WARPGROUP_THREADS // lanes, lanes), stride=(lanes, 1))
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

    def held(self, extras: Any) -> tuple[list[Any], int]:
        """Registers for what so many steps need of the other tensors: those of a piece where there is room, since whoever loads it waits."""
        per = self.piece // self.step if sum(x.element_type.width for x in extras) <= _HELD else 1
        return [cute.make_rmem_tensor((per * self.step // 2,), x.element_type) for x in extras], per

    @cute.jit
    def part(self, held: Any, step: Any, per: int):
        """What one of those steps needs of it."""
        if const_expr(per == 1):
            return held
        found = [cute.make_rmem_tensor((self.step // 2,), x.element_type) for x in held]
        for x, own in zip(held, found):
            of, to = (cute.recast_tensor(t, Int32) if x.element_type.width == 16 else t for t in (x, own))  # pairs
            count = cute.size(to)
            for each in range_constexpr(per):
                if step == each:
                    for i in range_constexpr(count):
                        to[i] = of[each * count + i]
        return found

    @cute.jit
    def load(self, held: Any, extras: Any, last: Any, batch: Any, places: Any, number: Any, across: Any):
        """Load what some columns need of the other tensors; outside of the result, where nothing is stored, what is last in it."""
        rows, columns = last
        eights = cute.size(held[0]) // 4 if held else 0
        for i in range_constexpr(2 * eights):
            own = (0, i % 2) if self.tile_mn[1] == 8 else (0, i % 2, number % across * eights + i // 2)
            row, column = places[own, number // across, 0]
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

    def copy(self, kind: Any) -> Any:
        """How a warp group writes some columns of a type to shared memory: as the tensor cores give out sums of so many."""
        k = warpgroup.OperandMajorMode.K
        sums = sm90.make_trivial_tiled_mma(Float16, Float16, k, k, Float32, (1, 1, 1), (ATOM_M, self.step))
        if kind.width == 16:
            atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(self.turned, 4 if self.step % 16 == 0 else 2), kind)
        else:
            bits = 2 * kind.width
            atom = cute.make_copy_atom(CopyUniversalOp(), kind, num_bits_per_copy=bits)
        return cute.make_tiled_copy_C(atom, sums)
