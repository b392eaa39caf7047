"""The combine kernel of split-KV: merges the partial outputs of KV splits by their LSE.

A split leaves, for each query and head, its normalized outputs followed by its LSE in powers of two, all f32. Splits
are merged in a fixed order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, Int64, const_expr, cute, range_constexpr, utils
from .....cute import arch
from .....cute.nvgpu import CopyUniversalOp
from .....utils.tiles.online_softmax import LN_2
from ....dispatch import devices

if TYPE_CHECKING:
    from ..... import Boolean

_THREADS = 128
WIDTH = 4
"""Output elements of a thread."""
_LOADS = 4
"""Splits that a thread loads before it merges them."""
_MIN_ROW_MAX = -3.4028234663852886e38
"""row_max of no splits: finite, so that differences are numbers."""


def partial_columns(head_dim_v: int) -> int:
    """Return the numbers of a partial row: the normalized outputs, row_max, row_sum, and padding to 16 bytes."""
    return head_dim_v + WIDTH


class CombineRows:
    """Merges partial rows: `lanes` threads have `WIDTH` columns each, and `ways` groups of them some of the splits.

    The state of a thread is (row_max, row_sum, weighted outputs). Subclasses say where partial rows are."""

    def __init__(self, dtype: Any, head_dim: int, lanes: int, ways: int) -> None:
        self.dtype = dtype
        self.head_dim = head_dim
        self.lanes = lanes
        self.ways = ways

    def partial_row(self, partials: Any, split: Int32) -> cute.Tensor:
        """Return the partial row of a split."""
        raise NotImplementedError

    def allocate(self) -> cute.Tensor:
        """Allocate smem for the states of all threads."""
        layout = cute.make_layout((2 + WIDTH, self.lanes, self.ways))
        return utils.SmemAllocator().allocate_tensor(Float32, layout, 16)

    @cute.jit
    def merge_splits(
        self, partials: cute.Tensor | tuple[cute.Tensor, Int32, Int32], splits: Int32, column: Int32, way: Int32
    ):
        """Return the state of a thread over the splits of its way."""
        state = cute.make_rmem_tensor((2 + WIDTH,), Float32)
        state.fill(0.0)
        state[0] = _MIN_ROW_MAX
        load = cute.make_copy_atom(CopyUniversalOp(), Float32, num_bits_per_copy=32 * WIDTH)
        outputs = cute.make_rmem_tensor((WIDTH, _LOADS), Float32)
        row_max, row_sum = (cute.make_rmem_tensor((_LOADS,), Float32) for _ in range(2))
        for turn in range(cute.ceil_div(splits, _LOADS * self.ways)):
            for i in range_constexpr(_LOADS):
                split = (turn * _LOADS + i) * self.ways + way
                row = self.partial_row(partials, min(split, splits - 1))
                start = (row.iterator + column).with_alignment(4 * WIDTH)
                cute.copy(load, cute.make_tensor(start, cute.make_layout((WIDTH,))), outputs[None, i])
                row_max[i] = row[self.head_dim] if split < splits else Float32(-float("inf"))
                row_sum[i] = row[self.head_dim + 1]
            for i in range_constexpr(_LOADS):
                self._merge(state, row_max[i], row_sum[i], outputs[None, i], 0, True)
        return state

    def _merge(
        self,
        state: cute.Tensor,
        row_max: Float32,
        row_sum: Float32,
        outputs: cute.Tensor,
        first: int,
        normalized: bool = False,
    ) -> None:
        highest = arch.fmax(state[0], row_max)
        kept = arch.exp2(state[0] - highest)
        added = arch.exp2(row_max - highest)
        state[0] = highest
        state[1] = state[1] * kept + row_sum * added
        weight = row_sum * added if normalized else added
        for i in range(WIDTH):
            state[2 + i] = state[2 + i] * kept + outputs[first + i] * weight

    def publish(self, state: cute.Tensor, smem: Any, lane: Int32, way: Int32) -> None:
        """Write a thread's state to smem."""
        for i in range(2 + WIDTH):
            smem[i, lane, way] = state[i]

    def merge_ways(self, state: cute.Tensor, smem: Any, lane: Int32) -> None:
        """Merge the states of the other ways into that of the first."""
        for way in range(1, self.ways):
            self._merge(state, smem[0, lane, way], smem[1, lane, way], smem[None, lane, way], 2)

    @cute.jit
    def store(self, state: cute.Tensor, out: cute.Tensor, column: Int32, exists: Boolean | bool):
        """Write the outputs of a thread, if its columns exist."""
        inverse = Float32(0.0)
        if state[1] != 0.0:
            inverse = arch.rcp_approx(state[1])
        rounded = cute.make_rmem_tensor((WIDTH,), self.dtype)
        for i in range_constexpr(WIDTH):
            rounded[i] = (state[2 + i] * inverse).to(self.dtype)
        if exists:
            store = cute.make_copy_atom(CopyUniversalOp(), self.dtype, num_bits_per_copy=WIDTH * self.dtype.width)
            start = (out.iterator + column).with_alignment(WIDTH * self.dtype.width // 8)
            cute.copy(store, rounded, cute.make_tensor(start, cute.make_layout((WIDTH,))))

    @cute.jit
    def lse(self, state: cute.Tensor):
        """Return the natural LSE over all splits."""
        value = Float32(-float("inf"))
        if state[1] != 0.0:
            value = (state[0] + cute.math.log2(state[1])) * LN_2
        return value


class CombineKernel(CombineRows):
    """The kernel: a CTA has a query and head, its warps some of the splits each."""

    def __init__(self, dtype: Any, head_dim_v: int) -> None:
        lanes = 1 << (head_dim_v // WIDTH - 1).bit_length()
        super().__init__(dtype, head_dim_v, lanes, _THREADS // lanes)

    @cute.jit
    def __call__(
        self, partials: cute.Tensor, out: cute.Tensor, lse: cute.Tensor | None, cu_seqlens: Any, stream: Int64
    ):
        """Launch the kernel for partial rows (splits, batch, queries, heads, columns) and outputs (batch, queries,
        heads, D)."""
        self.kernel(partials, out, lse, cu_seqlens).launch(
            grid=(cute.size(out.shape[:3]), 1, 1),
            block=(_THREADS, 1, 1),
            stream=stream,
            use_pdl=devices.current().overlaps,
        )

    @cute.kernel
    def kernel(self, partials: cute.Tensor, out: cute.Tensor, lse: Any, cu_seqlens: Any):
        thread = arch.thread_idx()[0]
        lane = thread % self.lanes
        way = thread // self.lanes
        number = arch.block_idx()[0]
        row = number // out.shape[2]
        head = number % out.shape[2]
        batch = row // out.shape[1]
        query = row % out.shape[1]
        smem = self.allocate()
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
        exists = True
        if const_expr(cu_seqlens is not None):
            exists = (query >= cu_seqlens[0]) & (query < cu_seqlens[cu_seqlens.shape[0] - 1])
        if exists:
            column = cute.assume(min(lane * WIDTH, Int32(self.head_dim - WIDTH)), divby=WIDTH)
            state = self.merge_splits(partials[None, batch, query, head, None], partials.shape[0], column, way)
            self.publish(state, smem, lane, way)
            arch.sync_threads()
            if way == 0:
                self.merge_ways(state, smem, lane)
                self.store(state, out[batch, query, head, None], column, lane * WIDTH < self.head_dim)
                if const_expr(lse is not None):
                    if lane == 0:
                        if const_expr(cu_seqlens is None):
                            lse[batch, head, query] = self.lse(state)
                        else:
                            lse[head, query] = self.lse(state)

    def partial_row(self, partials: Any, split: Int32) -> cute.Tensor:
        return partials[split, None]
