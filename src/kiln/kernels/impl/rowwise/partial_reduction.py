"""The second kernel of reductions over rows: it adds the partials that the CTAs of the first have written, a line by
each."""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Int64, const_expr, cute, range_constexpr
from ....cute import arch
from ...parts.vectors import vector_atom
from .row_kernel import wait_for_previous_kernel


def partial_pitch(n: Any, width: int) -> Any:
    """Return the elements from one line of partials to the next, for unaligned rows: lines begin as their rows do."""
    return (n // width + 2) * width


class PartialReduction:
    """The sum over the lines of each of some f32 matrices."""

    threads = 256
    unroll = 8

    def __init__(self, width: int, cluster: int, overlaps: bool, period: int = 0) -> None:
        self.width: int = 1 if period else min(4, width)
        self.overlaps = overlaps
        self.lanes = 8 if cluster == 1 and not period else 32
        """Threads side by side: few where there are many lines."""
        self.period = period
        """For unaligned rows, after how many lines the alignment repeats; 0: all lines begin at their first element."""
        self.shifts: int = width - 1

    @cute.jit
    def __call__(
        self, partials: list[cute.Tensor], outs: Any, lines: Int32, n: Int32, lead: Int32, skew: Int32, stream: Int64
    ):
        self.kernel(partials, outs, lines, n, lead, skew).launch(
            grid=(cute.ceil_div(n, self.lanes * self.width), len(outs), 1),
            block=(self.threads, 1, 1),
            stream=stream,
            use_pdl=self.overlaps,
        )

    @cute.kernel
    def kernel(self, partials: list[cute.Tensor], outs: Any, lines: Int32, n: Int32, lead: Int32, skew: Int32):
        width = self.width
        lanes = self.lanes
        wait_for_previous_kernel(self.overlaps)
        thread = arch.thread_idx()[0]
        block, which, _ = arch.block_idx()
        unit = block * lanes + thread % lanes
        first = thread // lanes
        depth = self.threads // lanes
        memory = arch.alloc_smem(Float32, self.threads * width, 16)
        buffer = cute.make_tensor(memory, cute.make_layout((width, lanes, depth)))
        for k in range_constexpr(len(outs)):
            if which == k:
                acc = cute.full((width,), 0.0, Float32)
                for start in range(first, lines, depth * self.unroll):
                    acc = self.add_lines(partials[k], acc, start, lines, n, unit, lead, skew)
                buffer[None, thread % lanes, first].store(acc)
                arch.sync_threads()
                if (first == 0) & (unit * width < n):
                    result = acc
                    for other in range_constexpr(1, depth):
                        result = result + buffer[None, thread % lanes, other].load()
                    for i in range_constexpr(width):
                        outs[k][unit * width + i] = result[i].to(outs[k].element_type)

    @cute.jit
    def add_lines(
        self,
        matrix: cute.Tensor,
        acc: cute.TensorSSA,
        start: Int32,
        lines: Int32,
        n: Any,
        unit: Int32,
        lead: Int32,
        skew: Int32,
    ):
        """Return an accumulator with a vector of each of some more lines."""
        width = self.width
        depth = self.threads // self.lanes
        registers = cute.make_rmem_tensor((width, self.unroll), Float32)
        registers.fill(0.0)
        atom = vector_atom(Float32, width)
        for u in range_constexpr(self.unroll):
            line = start + u * depth
            pred = (line < lines) & (unit * width < n)
            at = unit
            if const_expr(self.period > 0):
                at = unit + (lead + line % self.period * skew & self.shifts)
            cute.copy(atom, cute.local_tile(matrix[line, None], (width,), (at,)), registers[None, u], pred=pred)
        for u in range_constexpr(self.unroll):
            acc = acc + registers[None, u].load()
        return acc
