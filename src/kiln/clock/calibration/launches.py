"""Launches: from one kernel of a stream to the next, how CTAs start and end, and how an SM takes the next CTA."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

from ... import cute
from ...base_dsl.ranges import const_expr
from ...base_dsl.typing import Int32, Int64
from ...cute import arch
from .board import REPEATS, Board, Row, row

KERNELS = 40
"""The kernels that follow each other in a stream."""
SPIN = 3_000_000
"""Nanoseconds that the first one spins, while the others are launched."""


class Empty:
    """A kernel that writes when its first CTA begins."""

    def __init__(self, dependent: bool = False) -> None:
        self.dependent = dependent

    @cute.jit
    def __call__(
        self, results: cute.Pointer, number: Int32, ctas: Int32, threads: Int32, smem: Int32, spin: Int64, stream: Int64
    ):
        """Launch it as number `number`; spin for some nanoseconds."""
        self.kernel(results, number, spin).launch(
            grid=(ctas, 1, 1), block=(threads, 1, 1), smem=smem, use_pdl=self.dependent, stream=stream
        )

    @cute.kernel
    def kernel(self, results: cute.Pointer, number: Int32, spin: Int64):
        began = arch.globaltimer()
        if const_expr(self.dependent):
            arch.griddepcontrol_launch_dependents()
            arch.griddepcontrol_wait()
        while arch.globaltimer() - began < spin:
            arch.nanosleep(100)
        if arch.thread_idx()[0] == 0 and arch.block_idx()[0] == 0:
            cute.make_tensor(results, cute.make_layout(KERNELS))[number] = arch.globaltimer()


class Starts:
    """A kernel whose CTAs write when they begin and end, after they spun for some cycles."""

    @cute.jit
    def __call__(self, results: cute.Pointer, ctas: Int32, threads: Int32, smem: Int32, spin: Int64, stream: Int64):
        """Launch some CTAs."""
        self.kernel(results, spin).launch(grid=(ctas, 1, 1), block=(threads, 1, 1), smem=smem, stream=stream)

    @cute.kernel
    def kernel(self, results: cute.Pointer, spin: Int64):
        began = arch.globaltimer()
        begun = arch.clock64()
        while arch.clock64() - begun < spin:
            pass
        if arch.thread_idx()[0] == 0:
            cta = arch.block_idx()[0]
            times = cute.make_tensor(results, cute.make_layout(1 << 15))
            times[2 * cta] = began
            times[2 * cta + 1] = arch.globaltimer()


def _in_a_row(board: Board, empty: Callable[..., object], ctas: int, threads: int, smem: int) -> None:
    for number in range(KERNELS):
        empty(board.results, number, ctas, threads, smem, 0 if number else SPIN, 0)


def measure(board: Board) -> Iterator[Row]:
    """Yield nanoseconds."""
    sms = board.device.sm_count
    for dependent in (False, True):
        empty = cute.compile(Empty(dependent), board.results, 0, 1, 32, 0, 0, 0)
        for ctas, threads, smem in ((1, 32, 0), (sms, 128, 0), (sms, 384, 200 << 10), (10 * sms, 128, 0)):
            launch = functools.partial(_in_a_row, board, empty, ctas, threads, smem)

            between: list[float] = []
            for _ in range(REPEATS):
                times = board.words(launch, KERNELS)
                between.append((times[-1] - times[2]) / (KERNELS - 3))
            kind = "dependent launch" if dependent else "launch"
            yield row(f"{kind}, {ctas} ctas, {threads} threads, {smem >> 10} KiB", between, "ns")
    starts = cute.compile(Starts(), board.results, 1, 32, 0, 0, 0)
    for threads, smem in ((128, 0), (384, 200 << 10)):
        kind = f"{threads} threads, {smem >> 10} KiB"
        first: list[float] = []
        waves: list[float] = []
        for _ in range(REPEATS):
            one = board.words(lambda t=threads, s=smem: starts(board.results, sms, t, s, 40_000, 0), 2 * sms)
            first.append(float(max(one[::2]) - min(one[::2])))
            if smem:  # one CTA on an SM
                many = board.words(lambda t=threads, s=smem: starts(board.results, 8 * sms, t, s, 40_000, 0), 16 * sms)
                took = max(one[1::2]) - min(one[::2])
                waves.append((max(many[1::2]) - min(many[::2]) - took) / 7)
        yield row(f"start of all ctas, {kind}", first, "ns")
        if waves:
            yield row(f"wave of 40000 cycles, {kind}", waves, "ns")
