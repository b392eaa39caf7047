"""Sums over rows for the gradients of the weights and biases of norms."""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Int64, const_expr, cute, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp
from ...dispatch import arrays
from ...parts.vectors import as_f32
from .row_kernel import WARP


def rows_at_once(width: int) -> int:
    """Rows of which a thread reads something before it adds it up: more where that is little."""
    return max(2, 8 // width)


class NormSums:
    """Sums over rows, given the mean of each and what it was scaled by: of gradients times normalized inputs, of gradients.

    A block sums over some rows, for as many columns as a warp accesses at once.
    """

    threads = 256

    def __init__(self, types: tuple[Any, Any], width: int, exact: bool, weighted: bool, biased: bool) -> None:
        self.types = types
        self.width = width
        self.unroll = rows_at_once(width)
        self.exact = exact
        """Whether all columns of a block exist."""
        self.weighted = weighted
        self.biased = biased

    @cute.jit
    def __call__(self, places: Any, rows: Int32, n: Int32, steps: Any, parts: Int32, each: Int32, stream: Int64):
        """`places`: inputs, gradients, means, scales, sums of `parts` blocks of `each` rows."""
        matrices = [
            cute.make_tensor(
                arrays.pointer(place, dtype, self.width),
                cute.make_layout((rows, n), stride=(cute.assume(step, divby=self.width), 1)),
            )
            for place, dtype, step in zip(places, self.types, steps, strict=False)
        ]
        notes = [cute.make_tensor(arrays.pointer(p, Float32, 1), cute.make_layout(rows)) for p in places[2:4]]
        sums = [
            cute.make_tensor(arrays.pointer(p, Float32, 1), cute.make_layout((parts, n), stride=(n, 1)))
            for p in places[4:]
        ]
        self.kernel(matrices, notes, sums, rows, n, each).launch(
            grid=(cute.ceil_div(n, WARP * self.width), parts, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, matrices: Any, notes: Any, sums: Any, rows: Int32, n: Int32, each: Int32):
        width, across = self.width, self.threads // WARP
        thread = arch.thread_idx()[0]
        block, part, _ = arch.block_idx()
        unit, first = block * WARP + thread % WARP, thread // WARP
        last = min((part + 1) * each, rows)
        summed = [cute.full((width,), 0.0, Float32) for _ in sums]
        for start in range(part * each + first, last, across * self.unroll):
            summed = self.added(matrices, notes, summed, start, last, unit, n)
        buffer = cute.make_tensor(
            arch.alloc_smem(Float32, self.threads * width, 16), cute.make_layout((width, WARP, across))
        )
        for out, found in zip(sums, summed, strict=True):
            arch.sync_threads()
            buffer[None, thread % WARP, first].store(found)
            arch.sync_threads()
            if (first == 0) & (unit * width < n):
                whole = found
                for other in range_constexpr(1, across):
                    whole = whole + buffer[None, thread % WARP, other].load()
                for i in range_constexpr(width):
                    out[part, unit * width + i] = whole[i]

    @cute.jit
    def added(self, matrices: Any, notes: Any, summed: Any, start: Any, last: Any, unit: Any, n: Any):
        """Sums with vectors of some more rows; where there are none, nothing is added."""
        read = []
        for u in range_constexpr(self.unroll):
            row = start + u * (self.threads // WARP)
            there = row < last if const_expr(self.exact) else (row < last) & (unit * self.width < n)
            values = [self.read(x[row, None], self.width, unit, there) for x in matrices]
            if const_expr(self.weighted):
                values += [self.read(x, 1, row, there) for x in notes]
            read.append(values)
        for values in read:
            x, dy, *known = [as_f32(held.load()) for held in values]
            found = []
            if const_expr(self.weighted):
                found.append(cute.math.fma(dy, (x - known[0][0]) * known[1][0], summed[0]))
            if const_expr(self.biased):
                found.append(summed[-1] + dy)
            summed = found
        return summed

    @cute.jit
    def read(self, x: Any, width: Any, at: Any, there: Any):
        """A vector, zeros where there is none."""
        held = cute.make_rmem_tensor((width,), x.element_type)
        held.fill(0)
        atom = cute.make_copy_atom(CopyUniversalOp(), x.element_type, num_bits_per_copy=width * x.element_type.width)
        cute.copy(atom, cute.local_tile(x, (width,), (at,)), held, pred=there)
        return held
