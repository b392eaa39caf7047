"""Gradients of the weights and biases of norms, for rows that cannot be streamed: reductions over rows, given their
statistics."""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Int64, const_expr, cute, range_constexpr
from ....cute import arch
from ...parts.vectors import as_f32, load_vector
from .config import WARP
from .row_kernel import row_matrix, vector_at


def rows_at_once(width: int) -> int:
    """Return of how many rows a thread reads a vector before it adds them: more where vectors are short."""
    return max(2, 8 // width)


class WeightGradient:
    """The sum over rows of dy * (x - mean) * rstd, and that of dy, given mean and rstd of each row.

    A CTA adds some rows, for as many columns as a warp accesses at once.
    """

    threads = 256

    def __init__(self, types: tuple[Any, Any], width: int, exact: bool, has_weight: bool, has_bias: bool) -> None:
        self.types = types
        self.width = width
        self.unroll: int = rows_at_once(width)
        self.exact = exact
        """Whether all columns of a CTA exist."""
        self.has_weight = has_weight
        self.has_bias = has_bias

    @cute.jit
    def __call__(self, addresses: Any, rows: Int32, n: Int32, steps: Any, parts: Int32, each: Int32, stream: Int64):
        """`addresses`: x, dy, means, rstds, partials of `parts` CTAs of `each` rows."""
        matrices = [
            row_matrix(p, dtype, rows, n, step, self.width)
            for p, dtype, step in zip(addresses, self.types, steps, strict=False)
        ]
        row_values = [vector_at(p, Float32, rows) for p in addresses[2:4]]
        partials = [row_matrix(p, Float32, parts, n, n) for p in addresses[4:]]
        self.kernel(matrices, row_values, partials, rows, n, each).launch(
            grid=(cute.ceil_div(n, WARP * self.width), parts, 1), block=(self.threads, 1, 1), stream=stream
        )

    @cute.kernel
    def kernel(self, matrices: Any, row_values: Any, partials: Any, rows: Int32, n: Int32, each: Int32):
        width = self.width
        warps = self.threads // WARP
        thread = arch.thread_idx()[0]
        block, part, _ = arch.block_idx()
        unit = block * WARP + thread % WARP
        first = thread // WARP
        last = min((part + 1) * each, rows)
        accs = [cute.full((width,), 0.0, Float32) for _ in partials]
        for start in range(part * each + first, last, warps * self.unroll):
            accs = self.add_rows(matrices, row_values, accs, start, last, unit, n)
        buffer = cute.make_tensor(
            arch.alloc_smem(Float32, self.threads * width, 16), cute.make_layout((width, WARP, warps))
        )
        for out, acc in zip(partials, accs, strict=True):
            arch.sync_threads()
            buffer[None, thread % WARP, first].store(acc)
            arch.sync_threads()
            if (first == 0) & (unit * width < n):
                result = acc
                for other in range_constexpr(1, warps):
                    result = result + buffer[None, thread % WARP, other].load()
                for i in range_constexpr(width):
                    out[part, unit * width + i] = result[i]

    @cute.jit
    def add_rows(self, matrices: Any, row_values: Any, accs: Any, start: Any, last: Any, unit: Any, n: Any):
        """Return accumulators with vectors of some more rows; rows that do not exist add nothing."""
        loaded = []
        for u in range_constexpr(self.unroll):
            row = start + u * (self.threads // WARP)
            pred = row < last if const_expr(self.exact) else (row < last) & (unit * self.width < n)
            values = [self.read(x[row, None], self.width, unit, pred) for x in matrices]
            if const_expr(self.has_weight):
                values += [self.read(x, 1, row, pred) for x in row_values]
            loaded.append(values)
        for values in loaded:
            x, dy, *statistics = [as_f32(registers.load()) for registers in values]
            results = []
            if const_expr(self.has_weight):
                mean = statistics[0][0]
                rstd = statistics[1][0]
                results.append(cute.math.fma(dy, (x - mean) * rstd, accs[0]))
            if const_expr(self.has_bias):
                results.append(accs[-1] + dy)
            accs = results
        return accs

    def read(self, x: Any, width: int, at: Any, pred: Any) -> Any:
        """Read a vector, zeros where it does not exist."""
        return load_vector(cute.local_tile(x, (width,), (at,)), width, pred)
