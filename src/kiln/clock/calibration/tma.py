"""TMA loads and stores: latency, issue interval, and rates by box, depth of the ring, CTAs and where the data are.

One thread of each CTA keeps `depth` boxes in flight. A box has rows of 128 bytes, swizzled.
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
SMEM = 192 << 10
"""The bytes of shared memory that a ring may have."""


class Ring:
    """A kernel that loads or stores boxes in a ring; the first CTA writes its cycles, and the nanoseconds of the first and last."""

    def __init__(self, rows: int, depth: int, what: str = "load", cluster: int = 1) -> None:
        self.rows = rows
        self.depth = depth
        self.what = what
        self.cluster = cluster

    @cute.jit
    def __call__(
        self, results: cute.Pointer, data: cute.Pointer, boxes: Int32, ctas: Int32, loops: Int32, stream: Int64
    ):
        """Copy `loops` boxes for each CTA, the next of `boxes` boxes that lie side by side."""
        pointer = cute.recast_ptr(data, dtype=Float16)
        x = cute.make_tensor(pointer, cute.make_layout((boxes * self.rows, COLUMNS), stride=(COLUMNS, 1)))
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, Float16)
        tile = (self.rows // self.cluster, COLUMNS)
        layout = cute.tile_to_shape(atom, (self.rows, COLUMNS, self.depth), order=(0, 1, 2))
        part = cute.tile_to_shape(atom, tile, order=(0, 1))
        if const_expr(self.what == "load"):
            is_shared = self.cluster > 1
            operation = cpasync.CopyBulkTensorTileG2SMulticastOp() if is_shared else cpasync.CopyBulkTensorTileG2SOp()
            whole = cute.slice_(layout, (None, None, 0))
            copy, view = cpasync.make_tiled_tma_atom(operation, x, whole, (self.rows, COLUMNS), self.cluster)
        else:
            copy, view = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), x, part, tile)
        self.kernel(copy, view, layout, results, boxes, loops).launch(
            grid=(ctas, 1, 1), block=(32, 1, 1), cluster=(self.cluster, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        copy: cute.CopyAtom,
        view: cute.Tensor,
        layout: cute.ComposedLayout,
        results: cute.Pointer,
        boxes: Int32,
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
        mask = Int32((1 << self.cluster) - 1)
        began = arch.globaltimer()
        begun = arch.clock64()
        first = cta // self.cluster * loops
        if const_expr(self.what == "load"):
            for number in range(loops + self.depth):
                stage = number % self.depth
                phase = number // self.depth % 2
                if number >= self.depth:
                    arch.mbarrier_wait(full + stage, 1 - phase)
                if number < loops:
                    if lane == 0:
                        arch.mbarrier_arrive_and_expect_tx(full + stage, self.rows * ROW_BYTES)
                    if const_expr(self.cluster > 1):
                        cute.copy(
                            copy,
                            source[None, (first + number) % boxes],
                            to[None, stage],
                            tma_bar_ptr=full + stage,
                            mcast_mask=mask.to(cute.Int16),
                        )
                    else:
                        cute.copy(
                            copy, source[None, (first + number) % boxes], to[None, stage], tma_bar_ptr=full + stage
                        )
        else:
            for number in range(loops):
                cute.copy(copy, to[None, number % self.depth], source[None, (first + number) % boxes])
                arch.cp_async_bulk_commit_group()
                if const_expr(self.what == "store read"):
                    arch.cp_async_bulk_wait_group(self.depth - 1, read=True)
                else:
                    arch.cp_async_bulk_wait_group(self.depth - 1, read=False)
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
    in_l2: bool
    what: str = "load"
    cluster: int = 1

    @property
    def name(self) -> str:
        place = "l2" if self.in_l2 else "dram"
        kib = self.rows * ROW_BYTES / 1024
        shared = f", multicast {self.cluster}" if self.cluster > 1 else ""
        return f"tma {self.what} {kib:g} KiB x {self.depth}{shared}, {self.ctas} ctas, {place}"


def cases(sms: int) -> list[Case]:
    """Return what is measured."""
    rings: list[Case] = []
    for rows in (8, 32, 64, 128, 256):
        for depth in (1, 2, 4, 8):
            if rows * ROW_BYTES * depth <= SMEM:
                rings += [Case(rows, depth, ctas, in_l2) for ctas in (1, 8, sms) for in_l2 in (True, False)]
    for rows in (32, 128):
        rings += [Case(rows, 4, ctas, True, what) for what in ("store", "store read") for ctas in (1, sms)]
    rings += [
        Case(128, depth, sms // cluster * cluster, True, "load", cluster) for cluster in (2, 4) for depth in (2, 4)
    ]
    return rings


def measure(board: Board) -> Iterator[Row]:
    """Yield cycles and nanoseconds of a box, by the CTA that takes longest."""
    compiled: dict[tuple[object, ...], Callable[..., object]] = {}
    for case in cases(board.device.sm_count):
        key = case.rows, case.depth, case.what, case.cluster
        if key not in compiled:
            ring = Ring(*key)
            compiled[key] = cute.compile(ring, board.results, board.data, 1, case.cluster, 1, 0)
        box = case.rows * ROW_BYTES
        boxes = (board.device.l2_cache // 4 if case.in_l2 else board.data_bytes) // box
        steps = 192 if case.in_l2 else max(16, min(256, board.data_bytes // (2 * box * case.ctas)))
        loops = (steps // 3, steps)
        words = board.differences(compiled[key], (board.data, boxes, case.ctas), 2 * case.ctas, loops)
        for name, start in (("cycles", 0), ("ns", 1)):
            of_ctas = words[start::2]
            yield row(case.name + " " + name, [max(values) for values in zip(*of_ctas, strict=True)], name)
