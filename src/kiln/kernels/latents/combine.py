"""The second half of `mla_decode`: the pieces of sequences that lie in several shares are put together, in the order of their keys."""

from __future__ import annotations

from typing import Any

from ... import Float32, Int32, Int64, const_expr, cute, range_constexpr
from ...cute import arch
from ...cute.nvgpu import CopyUniversalOp
from .. import devices
from ..attentions.epilogue import LN_2
from . import shares
from .shares import KEYS

_WIDTH = 4
"""Elements of a thread."""
_AT_ONCE = 4
"""Pieces that a thread loads before it adds them."""
_LOWEST = -1e30
"""The least logarithm: finite, so that differences of two are numbers."""


class Combine:
    """The kernel for outputs of some type: a block of threads has a query and head.

    Of each piece there are the outputs and after them the binary logarithm of its sum; outputs are weighted by its share in the sum of all.
    """

    def __init__(self, dtype: Any, value_dim: int) -> None:
        self.dtype, self.dim = dtype, value_dim

    @cute.jit
    def __call__(self, given: Any, numbers: Any, stream: Int64):
        """Launch it."""
        self.kernel(given, numbers).launch(
            grid=(given.out.shape[1], given.out.shape[0], 1),
            block=(self.dim // _WIDTH, 1, 1),
            stream=stream,
            use_pdl=devices.current().overlaps,
        )

    @cute.kernel
    def kernel(self, given: Any, numbers: Any):
        row, sequence, _ = arch.block_idx()
        column = cute.assume(arch.thread_idx()[0] * _WIDTH, divby=_WIDTH)
        count = shares.blocks(shares.length_of(given.lengths, sequence, given.table.shape[1] * KEYS))
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
        start = given.starts[sequence]
        each = cute.ceil_div(given.starts[given.lengths.shape[0]], numbers.shares)
        first, last = start // each, (start + count - 1) // each
        if first < last:
            state = self.added(given.pieces, row, column, first, last)
            inverse = Float32(0.0)
            if state[1] != 0.0:
                inverse = arch.rcp_approx(state[1])
            rounded = cute.make_rmem_tensor((_WIDTH,), self.dtype)
            for i in range_constexpr(_WIDTH):
                rounded[i] = (state[2 + i] * inverse).to(self.dtype)
            write = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=_WIDTH * self.dtype.width)
            out = given.out[sequence, row, None]
            place = (out.iterator + column).with_alignment(_WIDTH * self.dtype.width // 8)
            cute.copy(write, rounded, cute.make_tensor(place, cute.make_layout((_WIDTH,))))
            if const_expr(given.lse is not None):
                if column == 0:
                    value = Float32(-float("inf"))
                    if state[1] != 0.0:
                        value = (state[0] + cute.math.log2(state[1])) * LN_2
                    given.lse[sequence, row % numbers.heads, row // numbers.heads] = value

    @cute.jit
    def added(self, pieces: cute.Tensor, row: Int32, column: Int32, first: Int32, last: Int32):
        """The pieces of shares from `first` to `last`, put together: the highest logarithm, the sum of weights, the weighted outputs."""
        state = cute.make_rmem_tensor((2 + _WIDTH,), Float32)
        state.fill(0.0)
        state[0] = _LOWEST
        load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * _WIDTH)
        held = cute.make_rmem_tensor((_WIDTH, _AT_ONCE), Float32)
        logarithms = cute.make_rmem_tensor((_AT_ONCE,), Float32)
        for turn in range(cute.ceil_div(last - first + 1, _AT_ONCE)):
            for i in range_constexpr(_AT_ONCE):
                share = first + turn * _AT_ONCE + i
                # a share begins with the rest of a sequence, and ends with the beginning of another
                slot = 2 * min(share, last) + Int32(share == first)
                of_row = pieces[slot, row, None]
                place = (of_row.iterator + column).with_alignment(4 * _WIDTH)
                cute.copy(load, cute.make_tensor(place, cute.make_layout((_WIDTH,))), held[None, i])
                logarithms[i] = of_row[self.dim] if share <= last else Float32(-float("inf"))
            for i in range_constexpr(_AT_ONCE):
                higher = arch.fmax(state[0], logarithms[i])
                before, after = arch.exp2(state[0] - higher), arch.exp2(logarithms[i] - higher)
                state[0] = higher
                state[1] = state[1] * before + after
                for n in range_constexpr(_WIDTH):
                    state[2 + n] = state[2 + n] * before + held[n, i] * after
        return state


def columns_of_a_piece(value_dim: int) -> int:
    """Numbers of a row of a piece: the outputs, the logarithm, and what makes it a multiple of 16 bytes."""
    return value_dim + _WIDTH
