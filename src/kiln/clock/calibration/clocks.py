"""The clock of the SMs while they work: the cycles that pass in a nanosecond, which is less than what the driver reports while tensor cores run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ... import cute, utils
from ...base_dsl.ranges import range_constexpr
from ...base_dsl.typing import Float16, Float32, Int32, Int64
from ...cute import arch
from ...cute.nvgpu import warpgroup
from ...utils import LayoutEnum, sm90
from .board import REPEATS, Board, Row, row

N = 256
LOOPS = (4000, 40000)


class Duty:
    """A kernel that issues a group of WGMMAs, waits for it, and then some cycles more; it writes cycles and nanoseconds."""

    def __init__(self, warpgroups: int = 2) -> None:
        self.warpgroups = warpgroups

    @cute.jit
    def __call__(self, results: cute.Pointer, ctas: Int32, random: Int32, pause: Int32, loops: Int32, stream: Int64):
        """Issue `loops` groups, with zeros or with random numbers."""
        tile = (64 * self.warpgroups, N, 64)
        layout_a = sm90.make_smem_layout_a(LayoutEnum.ROW_MAJOR, tile, Float16, 1)
        layout_b = sm90.make_smem_layout_b(LayoutEnum.ROW_MAJOR, tile, Float16, 1)
        major = LayoutEnum.ROW_MAJOR.sm90_mma_major_mode()
        shape = (self.warpgroups, 1, 1)
        mma = sm90.make_trivial_tiled_mma(Float16, Float16, major, major, Float32, shape, (64, N))
        self.kernel(mma, layout_a, layout_b, results, random, pause, loops).launch(
            grid=(ctas, 1, 1), block=(128 * self.warpgroups, 1, 1), min_blocks_per_mp=1, stream=stream
        )

    @cute.kernel
    def kernel(
        self,
        mma: cute.TiledMma,
        layout_a: cute.ComposedLayout,
        layout_b: cute.ComposedLayout,
        results: cute.Pointer,
        random: Int32,
        pause: Int32,
        loops: Int32,
    ):
        thread = arch.thread_idx()[0]
        smem = utils.SmemAllocator()
        a = smem.allocate_tensor(Float16, layout_a.outer, 1024, layout_a.inner)
        b = smem.allocate_tensor(Float16, layout_b.outer, 1024, layout_b.inner)
        seed = Int32(12345) + thread * 7919 + arch.block_idx()[0] * 104729
        for tensor in (a, b):
            values = cute.make_tensor(tensor.iterator, cute.make_layout(cute.cosize(tensor)))
            for place in range(thread, cute.cosize(tensor), arch.block_dim()[0]):
                total = Int32(0)
                for _ in range_constexpr(4):
                    seed = seed * 1664525 + 1013904223
                    total += (seed >> 16) & 255
                # The sum of four bytes, less its mean, over its deviation: nearly normal.
                values[place] = ((total - 510) * random).to(Float32).to(Float16) / Float16(148.0)
        arch.fence_view_async_shared()
        arch.sync_threads()
        part = mma.get_slice(arch.make_warp_uniform(arch.warp_idx()) // 4 * 128)
        left = mma.make_fragment_A(part.partition_A(a))
        right = mma.make_fragment_B(part.partition_B(b))
        accumulators = cute.make_rmem_tensor(mma.partition_shape_C((64 * self.warpgroups, N)), Float32)
        accumulators.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        times = cute.make_tensor(results, cute.make_layout(3))
        arch.sync_threads()
        began = arch.globaltimer()
        begun = arch.clock64()
        for _ in range(loops):
            warpgroup.fence()
            for k in range_constexpr(4):
                cute.gemm(mma, accumulators, left[None, None, k, 0], right[None, None, k, 0], accumulators)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            if pause > 0:
                until = arch.clock64() + Int64(pause)
                while arch.clock64() < until:
                    pass
        ended = arch.clock64()
        over = arch.globaltimer()
        if thread == 0 and arch.block_idx()[0] == 0:
            times[0] = ended - begun
            times[1] = over - began
        if accumulators.load().reduce(cute.ReductionOp.ADD, 0.0, 0) == 1.0:
            times[2] = Int64(1)


DIPS = (15, 30, 60, 500)
"""Microseconds of kernels of which it is measured what they lose until the clock has settled."""
CYCLES_OF_LOOP = 1024
CASES: Sequence[tuple[str, int, int, int]] = (
    ("zeros, 1 cta", 1, 0, 0),
    ("zeros, all sms", 0, 0, 0),
    ("random, all sms", 0, 1, 0),
    ("random, all sms, half the time", 0, 1, 1000),
    ("random, all sms, a tenth of the time", 0, 1, 9000),
    ("random, all sms, a hundredth of the time", 0, 1, 99000),
)


def _long(board: Board, compiled: Callable[..., object], sms: int) -> float:
    """Return the nanoseconds of a cycle when tensor cores have run for long."""
    few, many = (board.words(lambda loops=loops: compiled(board.results, sms, 1, 0, loops, 0), 2) for loops in LOOPS)
    return (many[1] - few[1]) / (many[0] - few[0])


def measure(board: Board) -> Iterator[Row]:
    """Yield megahertz."""
    compiled = cute.compile(Duty(), board.results, 1, 0, 0, 1, 0)
    sms = board.device.sm_count
    ns_of_cycle = _long(board, compiled, sms)
    for us in DIPS:
        loops = max(1, round(us * 1000 / ns_of_cycle / CYCLES_OF_LOOP))
        lost: list[float] = []
        for _ in range(REPEATS):
            cycles, ns = board.words(lambda loops=loops: compiled(board.results, sms, 1, 0, loops, 0), 2)
            lost.append(ns - cycles * ns_of_cycle)
        yield row(f"lost to the dip in {us} us", lost, "ns")
    for name, ctas, random, pause in CASES:
        loops = (LOOPS[0] * 1000 // (1000 + pause), LOOPS[1] * 1000 // (1000 + pause))
        arguments = ctas or board.device.sm_count, random, pause
        cycles, ns = board.differences(compiled, arguments, 2, loops)
        yield row(f"clock under wgmma, {name}", [1000 * a / b for a, b in zip(cycles, ns, strict=True)], "MHz")
