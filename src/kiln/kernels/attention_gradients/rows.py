"""What gradients need of each query: its logarithm, and the sum of its outputs times their gradients."""

from __future__ import annotations

from typing import Any

from ... import Float32, Int32, Int64, const_expr, cute, range_constexpr
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp

_THREADS = 256
_VALUES = 8
"""Elements of 16 bits that are read at once."""
_LOG2_E = 1.4426950408889634


class QueryRows:
    """The kernel: `found` (2, batch, heads, rows) f32 are the logarithms, binary, and the sums.

    The logarithm of a query that sees no key, or does not exist (there may be more rows than queries), is inf: its weights are 0.
    `in_fours`: of each 16 rows those of a thread of `wgmma`, 0, 1, 8 and 9, then 2, 3, 10 and 11, and so on, lie together. `sums` and `turns`, if given, (batch, heads, numbers of a head), are filled with zeros.
    """

    def __init__(self, dtype: Any, head_dim_v: int, in_fours: bool = False) -> None:
        self.dtype, self.dim, self.in_fours = dtype, head_dim_v, in_fours
        self.lanes = 1 << (head_dim_v // _VALUES - 1).bit_length()
        self.rows = _THREADS // self.lanes

    @cute.jit
    def __call__(
        self,
        dout: cute.Tensor,
        out: cute.Tensor,
        lse: cute.Tensor,
        found: cute.Tensor,
        sums: Any,
        turns: Any,
        stream: Int64,
    ):
        """Launch it for outputs (batch, queries, heads, D) and logarithms (batch, heads, queries)."""
        dout, out = (self.aligned(x) for x in (dout, out))
        self.kernel(dout, out, lse, found, sums, turns).launch(
            grid=(cute.ceil_div(found.shape[3], self.rows), out.shape[2], out.shape[0]),
            block=(_THREADS, 1, 1),
            stream=stream,
        )

    def aligned(self, x: Any) -> Any:
        """Rows begin at multiples of what is read at once."""
        strides = tuple(s if isinstance(s, int) else cute.assume(s, divby=_VALUES) for s in x.stride)
        return cute.make_tensor(x.iterator, cute.make_layout(x.shape, stride=strides))

    @cute.kernel
    def kernel(self, dout: cute.Tensor, out: cute.Tensor, lse: cute.Tensor, found: cute.Tensor, sums: Any, turns: Any):
        thread = arch.thread_idx()[0]
        block, head, batch = arch.block_idx()
        lane = thread % self.lanes
        row = block * self.rows + thread // self.lanes
        total = Float32(0.0)
        if row < out.shape[1] and lane * _VALUES < self.dim:
            load = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=_VALUES * self.dtype.width)
            held = [cute.make_rmem_tensor((_VALUES,), self.dtype) for _ in range(2)]
            for x, to in zip((dout, out), held, strict=True):
                at = (x[batch, row, head, None].iterator + lane * _VALUES).with_alignment(2 * _VALUES)
                cute.copy(load, cute.make_tensor(at, cute.make_layout((_VALUES,))), to)
            for i in range_constexpr(_VALUES):
                total = cute.math.fma(held[0][i].to(Float32), held[1][i].to(Float32), total)
        for step in range_constexpr(self.lanes.bit_length() - 1):
            total = total + arch.shuffle_sync_bfly(total, offset=1 << step)
        if lane == 0 and row < found.shape[3]:
            logarithm = Float32(float("inf"))
            if row < out.shape[1]:
                given = lse[batch, head, row]
                if given != -float("inf"):
                    logarithm = given * _LOG2_E
            place = row
            if const_expr(self.in_fours):
                place = (row & ~15) | ((row & 6) << 1) | ((row & 8) >> 2) | (row & 1)
            found[0, batch, head, place] = logarithm
            found[1, batch, head, place] = total
        if const_expr(sums is not None):
            self.clear(sums, found.shape[3], block, thread)
        if const_expr(turns is not None):
            for place in range(block * _THREADS + thread, turns.shape[2], arch.grid_dim()[0] * _THREADS):
                turns[batch, head, place] = 0

    @cute.jit
    def clear(self, sums: cute.Tensor, rows: Int32, block: Int32, thread: Int32):
        """Fill what belongs to the rows of a block of threads with zeros."""
        _, head, batch = arch.block_idx()
        each = sums.shape[2] // rows
        first = block * self.rows * each
        end = min(Int32(sums.shape[2]), first + self.rows * each)
        zeros = cute.make_rmem_tensor((4,), Float32)
        zeros.fill(0.0)
        store = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=128)
        for place in range(first + 4 * thread, end, 4 * _THREADS):
            at = (sums[batch, head, None].iterator + cute.assume(place, divby=4)).with_alignment(16)
            cute.copy(store, zeros, cute.make_tensor(at, cute.make_layout((4,))))
