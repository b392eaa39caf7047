"""WGMMA: the interval at which the tensor cores take one, by shape, types and where A is; latency, groups and waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ... import cute, utils
from ...base_dsl.ranges import const_expr, range_constexpr
from ...base_dsl.typing import Float8E4M3FN, Float16, Float32, Int8, Int32, Int64, Numeric, TFloat32
from ...cute import arch
from ...cute.nvgpu import warpgroup
from ...utils import LayoutEnum, sm90
from .board import Board, Row, row

LOOPS = (16, 80)
TYPES: dict[str, type[Numeric]] = {"f16": Float16, "e4m3": Float8E4M3FN, "tf32": TFloat32, "s8": Int8}


class Kind(NamedTuple):
    """An MMA: its type of operands, N, where A is, and how many warpgroups issue it beside each other."""

    type: str = "f16"
    n: int = 256
    held: bool = False
    warpgroups: int = 1

    def __str__(self) -> str:
        place = "registers" if self.held else "smem"
        beside = f", {self.warpgroups} warpgroups" if self.warpgroups > 1 else ""
        return f"wgmma {self.type} n{self.n} {place}{beside}"


class Group(NamedTuple):
    """How MMAs are issued: how many in a group, how many groups stay in flight, and over how many stages of operands."""

    mmas: int
    in_flight: int
    stages: int = 1

    def __str__(self) -> str:
        return f"groups of {self.mmas}, wait {self.in_flight}" + (f", {self.stages} stages" if self.stages > 1 else "")


USUAL = Group(4, 1)


class Groups:
    """A kernel of MMAs, with a section for each way to issue them; the first thread writes the cycles of each."""

    def __init__(self, kind: Kind, groups: Sequence[Group]) -> None:
        self.kind = kind
        self.groups = groups

    @cute.jit
    def __call__(self, results: cute.Pointer, ctas: Int32, loops: Int32, stream: Int64):
        """Issue `loops` groups in each section."""
        kind = self.kind
        element = TYPES[kind.type]
        tile = (64 * kind.warpgroups, kind.n, 64 * 16 // element.width)
        stages = max(group.stages for group in self.groups)
        layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, element, stages)
        layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, element, stages)
        source = warpgroup.OperandSource.RMEM if kind.held else warpgroup.OperandSource.SMEM
        major = LayoutEnum.ROW_MAJOR.sm90_mma_major_mode()
        accumulators = Int32 if element is Int8 else Float32
        shape = (kind.warpgroups, 1, 1)
        mma = sm90.make_trivial_tiled_mma(element, element, major, major, accumulators, shape, (64, kind.n), source)
        self.kernel(mma, layout_a, layout_b, results, loops).launch(
            grid=(ctas, 1, 1), block=(128 * kind.warpgroups, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        results: cute.Pointer,
        loops: Int32,
    ):
        kind = self.kind
        element = TYPES[kind.type]
        thread = arch.thread_idx()[0]
        smem = utils.SmemAllocator()
        a = smem.allocate_tensor(element, layout_a.outer, 1024, layout_a.inner)
        b = smem.allocate_tensor(element, layout_b.outer, 1024, layout_b.inner)
        for tensor in (a, b):
            words = cute.make_tensor(
                cute.recast_ptr(tensor.iterator, dtype=Int32),
                cute.make_layout(cute.cosize(tensor) * element.width // 32),
            )
            for word in range(thread, cute.size(words), arch.block_dim()[0]):
                words[word] = 0
        arch.fence_view_async_shared()
        arch.sync_threads()
        part = mma.get_slice(arch.make_warp_uniform(arch.warp_idx()) // 4 * 128)
        right = mma.make_fragment_B(part.partition_B(b))
        if const_expr(kind.held):
            rows = (64 * kind.warpgroups, 64 * 16 // element.width)
            left = mma.make_fragment_A(mma.get_slice(thread).partition_shape_A(rows))
            left.fill(0)
        else:
            left = mma.make_fragment_A(part.partition_A(a))
        depth = cute.size(right, mode=[2])
        accumulator_type = Int32 if element is Int8 else Float32
        accumulators = cute.make_rmem_tensor(mma.partition_shape_C((64 * kind.warpgroups, kind.n)), accumulator_type)
        accumulators.fill(0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        cycles = cute.make_tensor(results, cute.make_layout(len(self.groups) + 1))
        for number in range_constexpr(len(self.groups)):
            group = self.groups[number]
            arch.sync_threads()
            begun = arch.clock64()
            for _ in range(loops):
                warpgroup.fence()
                for one in range_constexpr(group.mmas):
                    stage = one // depth % group.stages
                    k = one % depth
                    at = (None, None, k) if kind.held else (None, None, k, stage)
                    cute.gemm(mma, accumulators, left[at], right[None, None, k, stage], accumulators)
                warpgroup.commit_group()
                warpgroup.wait_group(group.in_flight)
            warpgroup.wait_group(0)
            ended = arch.clock64()
            if thread == 0 and arch.block_idx()[0] == 0:
                cycles[number] = ended - begun
        if accumulators.load().reduce(cute.ReductionOp.ADD, accumulator_type(0), 0) == 1:
            cycles[len(self.groups)] = Int64(1)


def cases() -> Iterator[tuple[Kind, tuple[Group, ...], int]]:
    """Yield MMAs, ways to issue them, and CTAs (0: one for each SM)."""
    groups = *(Group(mmas, 0) for mmas in (1, 2, 4, 8)), Group(1, 1), Group(1, 2), Group(1, 3), Group(2, 1), USUAL
    for n in (64, 128, 256):
        yield Kind(n=n), groups, 1
        yield Kind(n=n), (Group(16, 1, 4), USUAL), 0
        yield Kind(n=n, warpgroups=2), (USUAL, Group(16, 1, 2), Group(4, 0)), 0
    for n in (8, 16, 32, 48, 80, 96, 112, 144, 160, 192, 224):
        yield Kind(n=n), (USUAL, Group(1, 0)), 1
    for n in (16, 64, 128, 192, 256):
        yield Kind(n=n, held=True), (USUAL, Group(1, 0), Group(4, 0)), 1
    for kind in ("e4m3", "tf32", "s8"):
        for n in (64, 128, 256):
            yield Kind(kind, n), (USUAL, Group(1, 0)), 1


def measure(board: Board) -> Iterator[Row]:
    """Yield the cycles of an MMA."""
    for kind, groups, ctas in cases():
        compiled = cute.compile(Groups(kind, groups), board.results, 1, 1, 0)
        grid = ctas or board.device.sm_count
        where = "" if ctas == 1 else ", all sms"
        for group, cycles in zip(groups, board.differences(compiled, (grid,), len(groups), LOOPS), strict=True):
            yield row(f"{kind}, {group}{where}", [each / group.mmas for each in cycles], "cycles")
