"""The second half of attention whose keys are cut into parts: what is found of each part is put together.

Of each part there are, for a query and head, its outputs and after them the binary logarithm of its sum, all f32. Outputs are
weighted by the share that a part has in the sum of all; parts are added in a fixed order.
"""

from __future__ import annotations

from typing import Any

from ..... import Float32, Int32, Int64, const_expr, cute, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from ....dispatch import devices
from .sm80_epilogue import LN_2

_THREADS = 128
WIDTH = 4
"""Elements of a thread."""
_AT_ONCE = 4
"""Parts that a thread loads before it adds them."""
_LOWEST = -1e30
"""The least logarithm: finite, so that differences of two are numbers."""


def partial_columns(head_dim_v: int) -> int:
    """Numbers of a row of a part: the outputs, the logarithm, and what makes it a multiple of 16 bytes."""
    return head_dim_v + WIDTH


class CombineRows:
    """What puts parts of a row together: `lanes` threads have `WIDTH` columns each, `ways` groups of them some of the parts. A subclass
    says where parts are."""

    def __init__(self, dtype: Any, dim: int, lanes: int, ways: int) -> None:
        self.dtype, self.dim, self.lanes, self.ways = dtype, dim, lanes, ways

    def row_of(self, parts: Any, number: Any) -> Any:
        """The numbers of a part."""
        raise NotImplementedError

    def shared(self) -> Any:
        """Memory for what each way has added: reference, sum and outputs."""
        layout = cute.make_layout((2 + WIDTH, self.lanes, self.ways))
        return utils.SmemAllocator().allocate_tensor(Float32, layout, 16)

    @cute.jit
    def added(self, parts: Any, count: Int32, column: Int32, way: Int32):
        """The parts of one way, put together: the highest logarithm, the sum of their weights, the weighted outputs."""
        state = cute.make_rmem_tensor((2 + WIDTH,), Float32)
        state.fill(0.0)
        state[0] = _LOWEST
        load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * WIDTH)
        held = cute.make_rmem_tensor((WIDTH, _AT_ONCE), Float32)
        logarithms = cute.make_rmem_tensor((_AT_ONCE,), Float32)
        for turn in range(cute.ceil_div(count, _AT_ONCE * self.ways)):
            for i in range_constexpr(_AT_ONCE):
                part = (turn * _AT_ONCE + i) * self.ways + way
                row = self.row_of(parts, min(part, count - 1))
                place = (row.iterator + column).with_alignment(4 * WIDTH)
                cute.copy(load, cute.make_tensor(place, cute.make_layout((WIDTH,))), held[None, i])
                logarithms[i] = row[self.dim] if part < count else Float32(-float("inf"))
            for i in range_constexpr(_AT_ONCE):
                self.add(state, logarithms[i], Float32(1.0), held[None, i], 0)
        return state

    def add(self, state: Any, reference: Any, total: Any, outputs: Any, first: int) -> None:
        """Put more together: outputs, from `first` on, which are `total` times the weight of a logarithm."""
        higher = arch.fmax(state[0], reference)
        before, after = arch.exp2(state[0] - higher), arch.exp2(reference - higher)
        state[0] = higher
        state[1] = state[1] * before + total * after
        for i in range(WIDTH):
            state[2 + i] = state[2 + i] * before + outputs[first + i] * after

    def leave(self, state: Any, shared: Any, lane: Any, way: Any) -> None:
        """Let the first way see what this one has."""
        for i in range(2 + WIDTH):
            shared[i, lane, way] = state[i]

    def add_others(self, state: Any, shared: Any, lane: Any) -> None:
        """Add what the other ways have left."""
        for other in range(1, self.ways):
            self.add(state, shared[0, lane, other], shared[1, lane, other], shared[None, lane, other], 2)

    @cute.jit
    def store(self, state: cute.Tensor, out: cute.Tensor, column: Int32, wanted: Any):
        """Write the outputs of a thread, divided by the sum of the weights."""
        inverse = Float32(0.0)
        if state[1] != 0.0:
            inverse = arch.rcp_approx(state[1])
        rounded = cute.make_rmem_tensor((WIDTH,), self.dtype)
        for i in range_constexpr(WIDTH):
            rounded[i] = (state[2 + i] * inverse).to(self.dtype)
        if wanted:
            write = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=WIDTH * self.dtype.width)
            place = (out.iterator + column).with_alignment(WIDTH * self.dtype.width // 8)
            cute.copy(write, rounded, cute.make_tensor(place, cute.make_layout((WIDTH,))))

    @cute.jit
    def logarithm(self, state: cute.Tensor):
        """The natural logarithm of the sum of all weights."""
        value = Float32(-float("inf"))
        if state[1] != 0.0:
            value = (state[0] + cute.math.log2(state[1])) * LN_2
        return value


class CombineKernel(CombineRows):
    """The kernel for outputs of some type: a block of threads has a query and head, some of its warps some of the parts."""

    def __init__(self, dtype: Any, head_dim_v: int) -> None:
        lanes = 1 << (head_dim_v // WIDTH - 1).bit_length()
        super().__init__(dtype, head_dim_v, lanes, _THREADS // lanes)

    @cute.jit
    def __call__(self, found: cute.Tensor, out: cute.Tensor, lse: Any, starts: Any, stream: Int64):
        """Launch it for parts (parts, batch, queries, heads, columns) and outputs (batch, queries, heads, D)."""
        self.kernel(found, out, lse, starts).launch(
            grid=(cute.size(out.shape[:3]), 1, 1),
            block=(_THREADS, 1, 1),
            stream=stream,
            use_pdl=devices.current().overlaps,
        )

    @cute.kernel
    def kernel(self, found: cute.Tensor, out: cute.Tensor, lse: Any, starts: Any):
        thread = arch.thread_idx()[0]
        lane, way = thread % self.lanes, thread // self.lanes
        number = arch.block_idx()[0]
        row, head = number // out.shape[2], number % out.shape[2]
        batch, query = row // out.shape[1], row % out.shape[1]
        shared = self.shared()
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
        exists = True
        if const_expr(starts is not None):
            exists = (query >= starts[0]) & (query < starts[starts.shape[0] - 1])
        if exists:
            column = cute.assume(min(lane * WIDTH, Int32(self.dim - WIDTH)), divby=WIDTH)
            state = self.added(found[None, batch, query, head, None], found.shape[0], column, way)
            self.leave(state, shared, lane, way)
            arch.sync_threads()
            if way == 0:
                self.add_others(state, shared, lane)
                self.store(state, out[batch, query, head, None], column, lane * WIDTH < self.dim)
                if const_expr(lse is not None):
                    if lane == 0:
                        if const_expr(starts is None):
                            lse[batch, head, query] = self.logarithm(state)
                        else:
                            lse[head, query] = self.logarithm(state)

    def row_of(self, parts: Any, number: Any) -> Any:
        return parts[number, None]
