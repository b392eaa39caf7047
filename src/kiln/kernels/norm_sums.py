"""Sums over rows for the gradients of the weights and biases of norms."""

from __future__ import annotations

from typing import Any

from .. import cute
from ..base_dsl.ranges import const_expr, range_constexpr
from ..base_dsl.typing import Float32, Int32, Int64
from ..cute import arch
from ..cute.nvgpu import CopyUniversalOp
from . import arrays
from .row_kernel import WARP, as_f32


class NormSums:
    """Sums over rows, given the mean of each and what it was scaled by: of gradients times normalized inputs, of gradients.

    A block sums over some rows, for as many columns as a warp accesses at once.
    """

    threads = 256
    unroll = 2

    def __init__(self, types: tuple[Any, Any], width: int, exact: bool, weighted: bool, biased: bool) -> None:
        self.types = types
        self.width = width
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
            for u in range_constexpr(self.unroll):
                row = start + u * across
                there = row < last if const_expr(self.exact) else (row < last) & (unit * width < n)
                summed = self.added(matrices, notes, summed, row, unit, there)
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
    def added(self, matrices: Any, notes: Any, summed: Any, row: Any, unit: Any, there: Any):
        """Sums with a vector of one more row; where there is none, nothing is added."""
        values = []
        for x in matrices:
            held = cute.make_rmem_tensor((self.width,), x.element_type)
            held.fill(0)
            bits = self.width * x.element_type.width
            atom = cute.make_copy_atom(CopyUniversalOp(), x.element_type, num_bits_per_copy=bits)
            cute.copy(atom, cute.local_tile(x[row, None], (self.width,), (unit,)), held, pred=there)
            values.append(as_f32(held.load()))
        x, dy = values
        found = []
        if const_expr(self.weighted):
            mean, scale = Float32(0.0), Float32(0.0)
            if there:
                mean, scale = notes[0][row], notes[1][row]
            found.append(cute.math.fma(dy, (x - mean) * scale, summed[0]))
        if const_expr(self.biased):
            found.append(summed[-1] + dy)
        return found
