"""What waiting costs: barriers of warps, CTAs and clusters, mbarriers, fences, and the time from an arrival to the waiter's next step.

Two warps hand a turn to each other and back; half of a round is the time from one arrival until the other warp goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ... import cute
from ...base_dsl.ranges import const_expr
from ...base_dsl.typing import Constexpr, Int32, Int64
from ...cute import arch
from .board import Board, Row, row

LOOPS = (64, 576)
_WARPS = (1, 2, 4, 8, 16, 32)


def _hand_over(kind: Constexpr, bars: cute.Pointer, other: Int32, cluster: Constexpr) -> None:
    """Arrive at the other warp's barrier."""
    if const_expr(kind == "named barrier"):
        arch.barrier_arrive(barrier_id=other + 1, number_of_threads=64)
    elif const_expr(cluster):
        arch.mbarrier_arrive(bars, other, scope="cluster" if kind == "mbarrier release.cluster" else "cta")
    else:
        arch.mbarrier_arrive(bars + other)


def _take(kind: Constexpr, bars: cute.Pointer, mine: Int32, turn: Int32 | int, cluster: Constexpr) -> None:
    """Wait for the other warp."""
    if const_expr(kind == "named barrier"):
        arch.barrier(barrier_id=mine + 1, number_of_threads=64)
    elif const_expr(cluster):
        arch.mbarrier_wait(bars, turn % 2)
    else:
        arch.mbarrier_wait(bars + mine, turn % 2)


class Turns:
    """A kernel of two warps, of one CTA or of two in a cluster, that take turns; it writes the cycles of the first warp."""

    def __init__(self, kind: str, cluster: bool = False) -> None:
        self.kind = kind
        self.cluster = cluster

    @cute.jit
    def __call__(self, results: cute.Pointer, loops: Int32, stream: Int64):
        """Take `loops` turns each."""
        ctas = 2 if self.cluster else 1
        self.kernel(results, loops).launch(
            grid=(ctas, 1, 1), block=(64 // ctas, 1, 1), cluster=(ctas, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, results: cute.Pointer, loops: Int32):
        thread = arch.thread_idx()[0]
        bars = arch.alloc_smem(Int64, 2, alignment=16)
        threads = 32 if self.kind == "mbarrier by a warp" else 1
        mine = arch.block_idx_in_cluster() if const_expr(self.cluster) else arch.make_warp_uniform(arch.warp_idx())
        other = 1 - mine
        if thread == 0:
            arch.mbarrier_init(bars, threads)
            arch.mbarrier_init(bars + 1, threads)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        if const_expr(self.cluster):
            arch.cluster_arrive()
            arch.cluster_wait()
        arrives = thread % 32 == 0 or self.kind in ("mbarrier by a warp", "named barrier")
        begun = arch.clock64()
        if mine == 0:
            for turn in range(loops):
                if arrives:
                    _hand_over(self.kind, bars, other, self.cluster)
                _take(self.kind, bars, mine, turn, self.cluster)
        else:
            for turn in range(loops):
                _take(self.kind, bars, mine, turn, self.cluster)
                if arrives:
                    _hand_over(self.kind, bars, other, self.cluster)
        ended = arch.clock64()
        if const_expr(self.cluster):
            arch.cluster_arrive()
            arch.cluster_wait()
        if thread == 0 and mine == 0:
            cute.make_tensor(results, cute.make_layout(1))[0] = ended - begun


class Meetings:
    """A kernel that repeats something that all its threads do together, and writes the cycles of the first CTA."""

    def __init__(self, meet: Callable[[cute.Pointer, cute.Tensor], None], cluster: int = 1) -> None:
        self.meet = meet
        self.cluster = cluster

    @cute.jit
    def __call__(self, results: cute.Pointer, threads: Int32, loops: Int32, stream: Int64):
        """Repeat it `loops` times."""
        self.kernel(results, loops).launch(
            grid=(self.cluster, 1, 1), block=(threads, 1, 1), cluster=(self.cluster, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, results: cute.Pointer, loops: Int32):
        thread = arch.thread_idx()[0]
        bars = arch.alloc_smem(Int64, 2, alignment=16)
        if thread == 0:
            arch.mbarrier_init(bars, 1 << 19)
            arch.mbarrier_init(bars + 1, 1)
            arch.mbarrier_arrive(bars + 1)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        words = cute.make_tensor(results, cute.make_layout(2))
        begun = arch.clock64()
        for _ in range(loops):
            self.meet(bars, words)
        ended = arch.clock64()
        if thread == 0 and arch.block_idx()[0] == 0:
            words[0] = ended - begun


def _sync_threads(bars: cute.Pointer, words: cute.Tensor) -> None:
    arch.sync_threads()


def _cluster_barrier(bars: cute.Pointer, words: cute.Tensor) -> None:
    arch.cluster_arrive()
    arch.cluster_wait()


def _arrive(bars: cute.Pointer, words: cute.Tensor) -> None:
    arch.mbarrier_arrive(bars)


def _expect(bars: cute.Pointer, words: cute.Tensor) -> None:
    arch.mbarrier_arrive_and_expect_tx(bars, 0)


def _done(bars: cute.Pointer, words: cute.Tensor) -> None:
    arch.mbarrier_wait(bars + 1, 0)


def _proxy_fence(bars: cute.Pointer, words: cute.Tensor) -> None:
    arch.fence_view_async_shared()


def _cta_fence(bars: cute.Pointer, words: cute.Tensor) -> None:
    arch.fence_acq_rel_cta()


def _gpu_fence(bars: cute.Pointer, words: cute.Tensor) -> None:
    words[1] = Int64(1)
    arch.fence_acq_rel_gpu()


def _gpu_atomic(bars: cute.Pointer, words: cute.Tensor) -> None:
    arch.atomic_add(words.iterator + 1, Int64(1))


MEETINGS: dict[str, tuple[Callable[[cute.Pointer, cute.Tensor], None], tuple[int, ...]]] = {
    "sync_threads": (_sync_threads, _WARPS),
    "mbarrier arrive": (_arrive, (1, 4)),
    "mbarrier expect_tx": (_expect, (1,)),
    "mbarrier wait done": (_done, (1, 4, 12)),
    "fence async shared": (_proxy_fence, (1, 8)),
    "fence cta": (_cta_fence, (1,)),
    "store, fence gpu": (_gpu_fence, (1,)),
    "atomic gpu": (_gpu_atomic, (1,)),
}


TURNS = (
    ("mbarrier", False),
    ("mbarrier by a warp", False),
    ("named barrier", False),
    ("mbarrier", True),
    ("mbarrier release.cluster", True),
)
"""How a turn is handed over, and whether to another CTA of a cluster."""


def measure(board: Board) -> Iterator[Row]:
    """Yield the cycles of barriers, fences and turns."""
    for name, (meet, warps_of) in MEETINGS.items():
        compiled = cute.compile(Meetings(meet), board.results, 32, 1, 0)
        for warps in warps_of:
            threads = 1 if name in ("mbarrier expect_tx", "store, fence gpu", "atomic gpu") else 32 * warps
            cycles = board.differences(compiled, (threads,), 1, LOOPS)
            yield row(f"{name}, {warps} warps", cycles[0], "cycles")
    for size in (2, 4, 8):
        if size <= board.device.cluster:
            compiled = cute.compile(Meetings(_cluster_barrier, size), board.results, 32, 1, 0)
            cycles = board.differences(compiled, (128,), 1, LOOPS)
            yield row(f"cluster barrier, {size} ctas", cycles[0], "cycles")
    for kind, cluster in TURNS:
        compiled = cute.compile(Turns(kind, cluster), board.results, 1, 0)
        cycles = board.differences(compiled, (), 1, LOOPS)
        yield row(f"hand over, {kind}{', cluster' * cluster}", [each / 2 for each in cycles[0]], "cycles")
