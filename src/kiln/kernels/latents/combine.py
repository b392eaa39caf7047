"""The second half of `mla_decode`: the pieces of sequences that lie in several shares are put together, in the order of their keys."""

from __future__ import annotations

from typing import Any

from ... import Float32, Int32, Int64, const_expr, cute, range_constexpr, utils
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
    """The kernel for outputs of some type: a block of threads has a query and head of the sequence that goes on in a share, if it began in
    the one before. `ways`: groups of threads that each put some of the pieces together.

    Of each piece there are the outputs and after them the binary logarithm of its sum; outputs are weighted by its share in the sum of all.
    """

    def __init__(self, dtype: Any, value_dim: int, ways: int = 1) -> None:
        self.dtype, self.dim, self.ways = dtype, value_dim, ways
        self.lanes = value_dim // _WIDTH

    @cute.jit
    def __call__(self, given: Any, numbers: Any, stream: Int64):
        """Launch it."""
        if numbers.shares > 1:
            self.kernel(given, numbers).launch(
                grid=(given.out.shape[1], numbers.shares - 1, 1),
                block=(self.lanes * self.ways, 1, 1),
                stream=stream,
                use_pdl=devices.current().overlaps,
            )

    @cute.kernel
    def kernel(self, given: Any, numbers: Any):
        row, share, _ = arch.block_idx()
        share = share + 1
        thread = arch.thread_idx()[0]
        lane, way = thread % self.lanes, thread // self.lanes
        batch = given.lengths.shape[0]
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
        sequence, start, each = given.found[share, 0], given.found[share, 1], given.found[share, 2]
        count = Int32(0)
        if sequence < batch:
            count = shares.blocks(shares.length_of(given.lengths, sequence, given.table.shape[1] * KEYS))
        first, last = start // each, (start + count - 1) // each
        if count > 0 and first + 1 == share and last >= share:
            column = cute.assume(lane * _WIDTH, divby=_WIDTH)
            state = self.added(given.pieces, row, column, first, last, way)
            if const_expr(self.ways > 1):
                memory = utils.SmemAllocator().allocate_tensor(
                    Float32, cute.make_layout((2 + _WIDTH, self.lanes, self.ways)), 16
                )
                for i in range_constexpr(2 + _WIDTH):
                    memory[i, lane, way] = state[i]
                arch.sync_threads()
                if way == 0:
                    for other in range_constexpr(1, self.ways):
                        self.add(state, memory[0, lane, other], memory[1, lane, other], memory[None, lane, other], 2)
            if way == 0:
                self.store(state, given, sequence, row, column, numbers)

    @cute.jit
    def store(self, state: cute.Tensor, given: Any, sequence: Int32, row: Int32, column: Int32, numbers: Any):
        """Write the outputs of a thread, divided by the sum of the weights, and the logarithm."""
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
    def added(self, pieces: cute.Tensor, row: Int32, column: Int32, first: Int32, last: Int32, way: Int32):
        """The pieces of shares from `first` to `last` that one way has, put together: the highest logarithm, the sum of weights, the weighted
        outputs."""
        state = cute.make_rmem_tensor((2 + _WIDTH,), Float32)
        state.fill(0.0)
        state[0] = _LOWEST
        load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * _WIDTH)
        held = cute.make_rmem_tensor((_WIDTH, _AT_ONCE), Float32)
        logarithms = cute.make_rmem_tensor((_AT_ONCE,), Float32)
        for turn in range(cute.ceil_div(last - first + 1, _AT_ONCE * self.ways)):
            for i in range_constexpr(_AT_ONCE):
                share = first + (turn * _AT_ONCE + i) * self.ways + way
                # a share begins with the rest of a sequence, and ends with the beginning of another
                slot = 2 * min(share, last) + Int32(share == first)
                of_row = pieces[slot, row, None]
                place = (of_row.iterator + column).with_alignment(4 * _WIDTH)
                cute.copy(load, cute.make_tensor(place, cute.make_layout((_WIDTH,))), held[None, i])
                logarithms[i] = of_row[self.dim] if share <= last else Float32(-float("inf"))
            for i in range_constexpr(_AT_ONCE):
                self.add(state, logarithms[i], Float32(1.0), held[None, i], 0)
        return state

    def add(self, state: Any, reference: Any, total: Any, outputs: Any, first: int) -> None:
        """Put more together: outputs, from `first` on, which are `total` times the weight of a logarithm."""
        higher = arch.fmax(state[0], reference)
        before, after = arch.exp2(state[0] - higher), arch.exp2(reference - higher)
        state[0] = higher
        state[1] = state[1] * before + total * after
        for i in range(_WIDTH):
            state[2 + i] = state[2 + i] * before + outputs[first + i] * after


def columns_of_a_piece(value_dim: int) -> int:
    """Numbers of a row of a piece: the outputs, the logarithm, and what makes it a multiple of 16 bytes."""
    return value_dim + _WIDTH
