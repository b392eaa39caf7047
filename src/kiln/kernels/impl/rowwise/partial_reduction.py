"""Sums over the lines that blocks have written: what each of them has summed over its rows."""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Int64, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp


def wait_for_kernel_before(overlaps: bool) -> None:
    """Wait for it where it may not be complete, and let the next one's blocks come as soon as there is room for them."""
    if overlaps:
        arch.griddepcontrol_wait()
        arch.griddepcontrol_launch_dependents()


def line_pitch(n: Any, width: int) -> Any:
    """Elements from one line of sums over rows to the next, where rows begin anywhere: lines begin as they do."""
    return (n // width + 2) * width


class LineSums:
    """Sums over the lines of matrices of f32."""

    threads = 256
    unroll = 8

    def __init__(self, width: int, cluster: int, overlaps: bool, period: int = 0) -> None:
        self.width = 1 if period else min(4, width)
        self.overlaps = overlaps
        self.across = 8 if cluster == 1 and not period else 32
        """Threads side by side: few where there are many lines."""
        self.period = period
        """Lines begin as rows do that begin anywhere, this number of which begin differently; 0: all begin at their first element."""
        self.shifts = width - 1

    @cute.jit
    def __call__(self, partial: Any, sums: Any, lines: Int32, n: Int32, lead: Int32, skew: Int32, stream: Int64):
        self.kernel(partial, sums, lines, n, lead, skew).launch(
            grid=(cute.ceil_div(n, self.across * self.width), len(sums), 1),
            block=(self.threads, 1, 1),
            stream=stream,
            use_pdl=self.overlaps,
        )

    @cute.kernel
    def kernel(self, partial: Any, sums: Any, lines: Int32, n: Int32, lead: Int32, skew: Int32):
        width, across = self.width, self.across
        wait_for_kernel_before(self.overlaps)
        thread = arch.thread_idx()[0]
        block, which, _ = arch.block_idx()
        unit, first = block * across + thread % across, thread // across
        deep = self.threads // across
        memory = arch.alloc_smem(Float32, self.threads * width, 16)
        buffer = cute.make_tensor(memory, cute.make_layout((width, across, deep)))
        for k in range_constexpr(len(sums)):
            if which == k:
                found = cute.full((width,), 0.0, Float32)
                for start in range(first, lines, deep * self.unroll):
                    found = self.added(partial[k], found, start, lines, n, unit, lead, skew)
                buffer[None, thread % across, first].store(found)
                arch.sync_threads()
                if (first == 0) & (unit * width < n):
                    whole = found
                    for other in range_constexpr(1, deep):
                        whole = whole + buffer[None, thread % across, other].load()
                    for i in range_constexpr(width):
                        sums[k][unit * width + i] = whole[i].to(sums[k].element_type)

    @cute.jit
    def added(self, matrix: Any, found: Any, start: Any, lines: Any, n: Any, unit: Any, lead: Any, skew: Any):
        """With a vector of some more lines."""
        width, deep = self.width, self.threads // self.across
        held = cute.make_rmem_tensor((width, self.unroll), Float32)
        held.fill(0.0)
        atom = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * width)
        for u in range_constexpr(self.unroll):
            line = start + u * deep
            there = (line < lines) & (unit * width < n)
            place = unit
            if const_expr(self.period > 0):
                place = unit + (lead + line % self.period * skew & self.shifts)
            cute.copy(atom, cute.local_tile(matrix[line, None], (width,), (place,)), held[None, u], pred=there)
        for u in range_constexpr(self.unroll):
            found = found + held[None, u].load()
        return found
