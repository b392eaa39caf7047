"""How a warp group of Hopper writes its outputs: divided by the sums, by way of shared memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float32, Int32, const_expr, cute, pipeline, range_constexpr
from ...cute import arch
from ...cute.nvgpu import cpasync, warp
from .epilogue import LN_2
from .hopper_plan import ROWS
from .tile import only_here

if TYPE_CHECKING:
    from .hopper import HopperForward
    from .hopper_steps import Products, Softmax

GROUP = 128
"""Threads of a warp group."""


class Epilogue:
    """The outputs of a warp group, and where they go: `tile` (row, element, group) in shared memory, then `out`."""

    __kiln_immutable__ = True

    def __init__(
        self, of: HopperForward, products: Products, softmax: Softmax, group: Any, store: Any, out: Any, tile: Any
    ) -> None:
        self.of, self.products, self.softmax, self.group = of, products, softmax, group
        self.store, self.out, self.tile = store, out, tile
        self.barrier = pipeline.NamedBarrier(1 + group, GROUP)
        self.stores = pipeline.PipelineTmaStore.create(num_stages=1)

    @cute.jit
    def finish(self, lse: Any, work: Any, queries: Int32):
        """Divide by the sums, and begin to store."""
        softmax, sums = self.softmax, self.products.sums
        thread = only_here(arch.thread_idx()[0]) % GROUP
        tile, head, batch = work
        for half in range_constexpr(2):
            total = softmax.totals[half]
            total = total + arch.shuffle_sync_bfly(total, offset=1)
            total = total + arch.shuffle_sync_bfly(total, offset=2)
            inverse = Float32(0.0)
            if total != 0.0:
                inverse = arch.rcp_approx(total)
            for n in range_constexpr(self.of.dim_v // 8):
                for c in range_constexpr(2):
                    sums[(c, half, n), 0, 0] = sums[(c, half, n), 0, 0] * inverse
            if const_expr(lse is not None):
                own = (
                    tile * self.of.tiling.block_q + self.group * ROWS + thread // 32 * 16 + thread % 32 // 4 + 8 * half
                )
                if thread % 4 == 0 and own < queries:
                    value = Float32(-float("inf"))
                    if total != 0.0:
                        value = (cute.math.log2(total) - softmax.lowered[half]) * LN_2
                    lse[batch, head, own] = value
        rounded = cute.make_rmem_tensor(sums.shape, self.of.dtype)
        rounded.store(sums.load().to(self.of.dtype))
        # what was stored before has been read, and so have the queries
        self.wait_for_store()
        mma = self.of.mma_outputs()
        by_warp = cute.make_tiled_copy_C_atom(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.of.dtype), mma)
        write = cute.make_tiled_copy_S(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), self.of.dtype), by_warp)
        writer = write.get_slice(thread)
        own = self.tile[None, None, self.group]
        cute.copy(write, write.retile(rounded), writer.partition_D(own))
        arch.fence_proxy("async.shared", space="cta")
        self.barrier.arrive_and_wait()
        if self.leads():
            pieces = cute.local_tile(self.out, (ROWS, self.of.dim_v), (None, 0, None, None))
            from_, to = cpasync.tma_partition(
                self.store, 0, cute.make_layout(1), cute.group_modes(self.tile, 0, 2), cute.group_modes(pieces, 0, 2)
            )
            place = tile * self.of.tiling.groups + self.group
            cute.copy(self.store, from_[None, self.group], to[None, place, head, batch])
            self.stores.producer_commit()

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
