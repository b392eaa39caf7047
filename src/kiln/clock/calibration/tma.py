"""TMA loads and stores: latencies, and rates by box, boxes in flight, CTAs, who reads the same, and where the data are.

One warp of each CTA keeps a ring of boxes in flight. A box has rows of 128 bytes, swizzled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ... import cute, utils
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import Float16, Int32, Int64
from ...cute import arch
from ...cute.nvgpu import cpasync, warpgroup
from .board import Board, Row, row

COLUMNS = 64
ROW_BYTES = 2 * COLUMNS
LOOPS = (96, 384)


class Ring:
    """A kernel that loads or stores boxes in a ring; each CTA writes its cycles and nanoseconds."""

    def __init__(self, rows: int, depth: int, what: str = "load", cluster: int = 1) -> None:
        self.rows = rows
        self.depth = depth
        self.what = what
        self.cluster = cluster

    @cute.jit
    def __call__(
        self,
        results: cute.Pointer,
        data: cute.Pointer,
        window: Int32,
        sharing: Int32,
        ctas: Int32,
        loops: Int32,
        stream: Int64,
    ):
        """Copy `loops` boxes for each CTA out of a window of its own, or of `sharing` CTAs that follow each other."""
        pointer = cute.recast_ptr(data, dtype=Float16)
        boxes = (ctas + sharing - 1) // sharing * window
        x = cute.make_tensor(pointer, cute.make_layout((boxes * self.rows, COLUMNS), stride=(COLUMNS, 1)))
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, Float16)
        layout = cute.tile_to_shape(atom, (self.rows, COLUMNS, self.depth), order=(0, 1, 2))
        tile = (self.rows, COLUMNS)
        stage = cute.slice_(layout, (None, None, 0))
        if const_expr(self.what != "load"):
            copy, view = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), x, stage, tile)
        elif const_expr(self.cluster > 1):
            operation = cpasync.CopyBulkTensorTileG2SMulticastOp()
            copy, view = cpasync.make_tiled_tma_atom(operation, x, stage, tile, self.cluster)
        else:
            copy, view = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, stage, tile)
        self.kernel(copy, view, layout, results, window, sharing, loops).launch(
            grid=(ctas, 1, 1), block=(32, 1, 1), cluster=(self.cluster, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        copy: cute.CopyAtom,
        view: cute.Tensor,
        layout: cute.ComposedLayout,
        results: cute.Pointer,
        window: Int32,
        sharing: Int32,
        loops: Int32,
    ):
        smem = utils.SmemAllocator()
        tiles = smem.allocate_tensor(Float16, layout.outer, 1024, layout.inner)
        full = smem.allocate_array(Int64, self.depth)
        lane = arch.thread_idx()[0]
        cta = arch.block_idx()[0]
        rank = arch.block_idx_in_cluster()
        if lane == 0:
            for stage in range_constexpr(self.depth):
                arch.mbarrier_init(full + stage, 1)
        arch.mbarrier_init_fence()
        arch.sync_warp()
        if const_expr(self.cluster > 1):
            arch.cluster_arrive()
            arch.cluster_wait()
        to, source = cpasync.tma_partition(
            copy,
            rank,
            cute.make_layout(self.cluster),
            cute.group_modes(tiles, 0, 2),
            cute.group_modes(cute.local_tile(view, (self.rows, COLUMNS), (None, 0)), 0, 2),
        )
        times = cute.make_tensor(results, cute.make_layout(2 + 2 * 1024))
        mask = cute.Int16((1 << self.cluster) - 1)
        first = cta // sharing * window
        place = first
        began = arch.globaltimer()
        begun = arch.clock64()
        if const_expr(self.what == "load"):
            for number in range(loops + self.depth):
                stage = number % self.depth
                if number >= self.depth:
                    arch.mbarrier_wait(full + stage, 1 - number // self.depth % 2)
                if number < loops:
                    if lane == 0:
                        arch.mbarrier_arrive_and_expect_tx(full + stage, self.rows * ROW_BYTES)
                    if const_expr(self.cluster > 1):
                        cute.copy(copy, source[None, place], to[None, stage], tma_bar_ptr=full + stage, mcast_mask=mask)
                    else:
                        cute.copy(copy, source[None, place], to[None, stage], tma_bar_ptr=full + stage)
                    place = place + 1 if place + 1 < first + window else first
        else:
            for number in range(loops):
                cute.copy(copy, to[None, number % self.depth], source[None, place])
                place = place + 1 if place + 1 < first + window else first
                arch.cp_async_bulk_commit_group()
                arch.cp_async_bulk_wait_group(self.depth - 1, read=self.what == "store read")
            arch.cp_async_bulk_wait_group(0, read=False)
        ended = arch.clock64()
        over = arch.globaltimer()
        if const_expr(self.cluster > 1):
            arch.cluster_arrive()
            arch.cluster_wait()
        if lane == 0:
            times[2 * cta] = ended - begun
            times[2 * cta + 1] = over - began


class Case(NamedTuple):
    """A ring, and the CTAs and bytes that it is measured with."""

    rows: int
    depth: int
    ctas: int
    where: str = "l2"
    sharing: int = 1
    what: str = "load"
    cluster: int = 1

    @property
    def name(self) -> str:
        """The name of the quantity, without its unit."""
        kib = self.rows * ROW_BYTES / 1024
        shared = f", multicast {self.cluster}" if self.cluster > 1 else ""
        if self.sharing > self.cluster:
            shared += f", {self.sharing} ctas share"
        return f"tma {self.what} {kib:g} KiB, {self.depth} in flight{shared}, {self.ctas} ctas, {self.where}"

    def window(self, board: Board) -> int:
        """Return the boxes of a CTA: together they fill half the L2 cache or all of the memory."""
        room = board.device.l2_cache // 2 if self.where == "l2" else board.data_bytes
        groups = -(-self.ctas // self.sharing)
        return max(1, min(LOOPS[1], room // (self.rows * ROW_BYTES * groups)))


def cases(sms: int) -> list[Case]:
    """Return what is measured."""
    rings = [Case(rows, depth, 1, "l2") for rows in (8, 32, 64, 128, 256) for depth in (1, 4)]
    rings += [Case(8, 16, 1), Case(8, 16, sms), Case(32, 16, 1), Case(32, 16, sms)]
    rings += [Case(rows, 1, 1, "dram") for rows in (8, 32, 128, 256)]
    rings += [Case(128, depth, sms, "l2") for depth in (1, 2, 4, 8)]
    rings += [Case(128, depth, sms, "dram") for depth in (1, 2, 4, 8)]
    rings += [Case(128, 4, ctas, "l2") for ctas in (8, 33, 66)]
    rings += [Case(128, 4, sms, "l2", sharing) for sharing in (2, 4, 8, 16, 33, sms)]
    rings += [Case(128, 4, sms, "dram", sharing) for sharing in (2, 8, sms)]
    rings += [Case(128, depth, sms, "l2", cluster, "load", cluster) for cluster in (2,) for depth in (1, 2, 4)]
    rings += [
        Case(rows, 4, ctas, "l2", 1, what)
        for rows in (32, 128)
        for what in ("store", "store read")
        for ctas in (1, sms)
    ]
    rings += [
        Case(128, 1, 1, "l2", 1, "store"),
        Case(128, 1, 1, "l2", 1, "store read"),
        Case(128, 4, sms, "dram", 1, "store"),
    ]
    return rings


def measure(board: Board) -> Iterator[Row]:
    """Yield cycles and nanoseconds of a box, by the CTA that takes longest."""
    compiled: dict[tuple[object, ...], Callable[..., object]] = {}
    for case in cases(board.device.sm_count):
        key = case.rows, case.depth, case.what, case.cluster
        if key not in compiled:
            compiled[key] = cute.compile(Ring(*key), board.results, board.data, 1, case.cluster, case.cluster, 1, 0)
        arguments = board.data, case.window(board), case.sharing, case.ctas
        words = board.differences(compiled[key], arguments, 2 * case.ctas, LOOPS)
        for unit, start in (("cycles", 0), ("ns", 1)):
            yield row(f"{case.name} {unit}", [max(values) for values in zip(*words[start::2], strict=True)], unit)
