"""The combine kernel of `mla_decode`: it merges partial outputs of sequences that lie in several splits, in the order
of their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .... import Int32, Int64, const_expr, cute
from ....cute import arch
from ...dispatch import devices
from ..attention.fwd.combine import WIDTH, CombineRows
from .split_kv_scheduler import SPLIT_FIELDS

if TYPE_CHECKING:
    from .sm90_kv_tiles import MlaScalars, MlaTensors

_THREADS = 1024
"""Threads of an SM: fewer have too many rows each, and more take longer to start."""


class Combine(CombineRows):
    """The combine kernel. A sequence that continues in other splits is merged by their CTAs, some rows by each.

    `ways`: thread groups that each merge some of the partial outputs. There are no more CTAs than run at once: often
    none has anything to do, and starting them is what takes time.
    """

    def __init__(self, dtype: type[cute.Numeric], value_dim: int, ways: int = 1) -> None:
        super().__init__(dtype, value_dim, value_dim // WIDTH, ways)

    @cute.jit
    def __call__(self, tensors: MlaTensors, scalars: MlaScalars, stream: Int64):
        """Launch the kernel, if there are several splits."""
        if scalars.num_splits > 1:
            threads = self.lanes * self.ways
            at_once = devices.current().sm_count * (_THREADS // threads)
            blocks = max(1, min(tensors.out.shape[1], at_once // (scalars.num_splits - 1)))
            self.kernel(tensors, scalars).launch(
                grid=(blocks, scalars.num_splits - 1, 1),
                block=(threads, 1, 1),
                min_blocks_per_mp=_THREADS // threads,
                stream=stream,
                use_pdl=devices.current().overlaps,
            )

    @cute.kernel
    def kernel(self, tensors: MlaTensors, scalars: MlaScalars):
        number, split, _ = arch.block_idx()
        split = split + 1
        thread = arch.thread_idx()[0]
        lane = thread % self.lanes
        way = thread // self.lanes
        column = cute.assume(lane * WIDTH, divby=WIDTH)
        shared = self.allocate() if const_expr(self.ways > 1) else None
        if const_expr(devices.current().overlaps):
            arch.griddepcontrol_wait()
        sequence, start, each, count = (tensors.splits[split, i] for i in range(SPLIT_FIELDS))
        begin = split * each
        if start < begin and begin < start + count:
            first = start // each
            others = (start + count - 1) // each - first
            for row in range(number * others + split - first - 1, tensors.out.shape[1], arch.grid_dim()[0] * others):
                state = self.merge_splits((tensors.partial, row, first), others + 1, column, way)
                if const_expr(self.ways > 1):
                    self.publish(state, shared, lane, way)
                    arch.sync_threads()
                    if way == 0:
                        self.merge_ways(state, shared, lane)
                    arch.sync_threads()
                if way == 0:
                    self.store(state, tensors.out[sequence, row, None], column, True)
                    if const_expr(tensors.lse is not None):
                        if column == 0:
                            tensors.lse[sequence, row % scalars.heads, row // scalars.heads] = self.lse(state)

    def partial_row(self, parts: tuple[cute.Tensor, Int32, Int32], number: Int32) -> cute.Tensor:
        partial, row, first = parts
        # a split begins with the rest of a sequence, and ends with the beginning of another
        return partial[2 * (first + number) + Int32(number == 0), row, None]
