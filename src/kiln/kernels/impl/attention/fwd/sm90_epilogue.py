"""How a warp group of Hopper writes its outputs: divided by the sums, by way of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..... import Float32, Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import cpasync, warp
from .query_tile import VALUES, only_here
from .sm80_epilogue import LN_2, LOG2_E, with_sink
from .sm90_config import ROWS

if TYPE_CHECKING:
    from .sm90 import Sm90ForwardKernel
    from .sm90_mainloop import Products, Softmax

GROUP = 128
"""Threads of a warp group."""


class Epilogue:
    """The outputs of a warp group, and where they go: `tile` (row, element, group) in shared memory, then `out`."""

    __kiln_immutable__ = True

    def __init__(
        self, of: Sm90ForwardKernel, products: Products, softmax: Softmax, group: Any, store: Any, out: Any, tile: Any
    ) -> None:
        self.of, self.products, self.softmax, self.group = of, products, softmax, group
        self.store, self.out, self.tile = store, out, tile
        self.barrier = pipeline.NamedBarrier(1 + group, GROUP)
        self.stores = pipeline.PipelineTmaStore.create(num_stages=1)

    @cute.jit
    def finish(self, work: Any, out: cute.Tensor, lse: Any, sinks: Any, factors: Any):
        """Divide by the sums, and begin to store."""
        of, softmax, sums = self.of, self.softmax, self.products.sums
        thread = only_here(arch.thread_idx()[0]) % GROUP
        first = work.tile * of.config.tile_m + self.group * ROWS
        for half in range_constexpr(2):
            total, lowered = softmax.totals[half], softmax.lowered[half]
            total = total + arch.shuffle_sync_bfly(total, offset=1)
            total = total + arch.shuffle_sync_bfly(total, offset=2)
            row = first + thread // 32 * 16 + thread % 32 // 4 + 8 * half
            query, head = row, work.head
            if const_expr(of.share > 1):
                query, head = row // of.share, work.head * of.share + row % of.share
            scaled = Float32(1.0)
            if const_expr(sinks is not None):
                total, lowered, scaled = with_sink(total, lowered, sinks[head] * LOG2_E)
            inverse = Float32(0.0)
            if total != 0.0:
                inverse = arch.rcp_approx(total) * scaled
            if const_expr(factors is not None):  # heads of queries are as many for each of keys
                inverse = inverse * factors[work.batch, head // (out.shape[2] // factors.shape[1])]
            for n in range_constexpr(of.dim_v // 8):
                for c in range_constexpr(2):
                    sums[(c, half, n), 0, 0] = sums[(c, half, n), 0, 0] * inverse
            if const_expr(lse is not None):
                if thread % 4 == 0 and query < work.queries:
                    value = Float32(-float("inf"))
                    if total != 0.0:
                        value = (cute.math.log2(total) - lowered) * LN_2
                    if const_expr(of.packed):
                        lse[head, work.first_q + query] = value
                    else:
                        lse[work.batch, head, query] = value
        rounded = cute.make_rmem_tensor(sums.shape, self.of.out_dtype)
        rounded.store(sums.load().to(self.of.out_dtype))
        # what was stored before has been read, and so have the queries
        self.wait_for_store()
        mma = self.of.mma_outputs()
        by_warp = cute.make_tiled_copy_C_atom(
            cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.of.out_dtype), mma
        )
        write = cute.make_tiled_copy_S(
            cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.of.out_dtype), by_warp
        )
        writer = write.get_slice(thread)
        own = self.tile[None, None, self.group]
        cute.copy(write, write.retile(rounded), writer.partition_D(own))
        arch.fence_proxy("async.shared", space="cta")
        self.barrier.arrive_and_wait()
        left = work.queries * of.share - first
        if const_expr(of.packed):
            if left >= ROWS:
                moved = cute.domain_offset((work.first_q if of.share == 1 else (0, work.first_q), 0, 0, 0), self.out)
                self.store_tile(work, moved, Int32(0))
            else:  # not beyond the sequence
                self.store_rows(own, out, work, first, left)
        else:
            self.store_tile(work, self.out, work.batch)

    @cute.jit
    def store_tile(self, work: Any, out: cute.Tensor, batch: Int32):
        """Let the copy engine store the rows of this warp group; what arrays do not have it leaves out."""
        if self.leads():
            pieces = cute.local_tile(out, (self.of.rows, self.of.dim_v), (None, 0, None, None))
            from_, to = cpasync.tma_partition(
                self.store, 0, cute.make_layout(1), cute.group_modes(self.tile, 0, 2), cute.group_modes(pieces, 0, 2)
            )
            place = self.of.row_tile(work.tile * self.of.config.consumer_warpgroups + self.group)
            cute.copy(self.store, from_[None, self.group], to[None, place, work.head, batch])
            self.stores.producer_commit()

    @cute.jit
    def store_rows(self, tile: cute.Tensor, out: cute.Tensor, work: Any, first: Int32, count: Int32):
        """Store so many rows, 16 bytes at a time."""
        of, thread = self.of, arch.thread_idx()[0] % GROUP
        chunks = out.shape[3] // VALUES
        held = cute.make_rmem_tensor((VALUES,), of.out_dtype)
        for i in range(thread, max(count, 0) * chunks, GROUP):
            row, column = i // chunks, cute.assume(i % chunks * VALUES, divby=VALUES)
            query, head = first + row, work.head
            if const_expr(of.share > 1):
                query, head = (first + row) // of.share, work.head * of.share + (first + row) % of.share
            start = cute.domain_offset((row, column), tile).iterator.with_alignment(16)
            cute.autovec_copy(cute.make_tensor(start, cute.make_layout((VALUES,))), held)
            place = cute.domain_offset((0, work.first_q + query, head, column), out).iterator.with_alignment(16)
            cute.autovec_copy(held, cute.make_tensor(place, cute.make_layout((VALUES,))))

    def leads(self) -> Any:
        """Whether this is the warp that stores. ptxas has to see that it is the same in all threads of a warp, or else it takes the
        products after it for ones that a part of a warp may come to."""
        return arch.make_warp_uniform(arch.warp_idx()) % 4 == 0

    @cute.jit
    def wait_for_store(self):
        """Until shared memory that is being stored has been read, in all threads of the warp group."""
        if self.leads():
            self.stores.producer_tail()
        self.barrier.arrive_and_wait()
