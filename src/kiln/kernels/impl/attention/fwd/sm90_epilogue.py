"""The epilogue of a Hopper consumer warpgroup: O divided by row_sum, stored through smem, and LSE."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Int32, const_expr, cute, pipeline, range_constexpr
from .....cute import arch
from .....cute.nvgpu import warp
from ....parts.attention_mask import accumulator_row
from ....parts.kv_producer import partition
from ....parts.kv_source import store_vectors
from ....parts.online_softmax import LOG2_E, log_sum_exp, normalize_row
from ....parts.rematerialize import rematerialized
from .sm90_config import WARPGROUP_M

if TYPE_CHECKING:
    from ....parts.kv_producer import TmaTensor
    from ..args import AttentionTensors
    from .sm90 import Sm90ForwardKernel
    from .sm90_mma import AttentionMma
    from .sm90_scheduler import Work
    from .sm90_softmax import Sm90Softmax

_WARPGROUP = 128


class Outputs(NamedTuple):
    """Where results go."""

    tma_o: TmaTensor
    """O for TMA stores."""
    o: cute.Tensor
    """O (batch, row, head, element)."""
    lse: Any
    """LSE (batch, head, query), or (head, query) with varlen; None if nobody wants it."""


class Sm90Epilogue:
    """Writes O of a warpgroup to its part of `smem_o` (row, element, warpgroup), and from there to gmem; and LSE."""

    __kiln_immutable__ = True

    def __init__(
        self,
        kernel: Sm90ForwardKernel,
        mma: AttentionMma,
        softmax: Sm90Softmax,
        warpgroup: Any,
        smem_o: Any,
        outputs: Outputs,
        tensors: AttentionTensors,
    ) -> None:
        self.kernel = kernel
        self.mma = mma
        self.softmax = softmax
        self.warpgroup = warpgroup
        self.smem_o = smem_o
        self.outputs = outputs
        self.tensors = tensors
        self.barrier: pipeline.NamedBarrier = kernel.roles.barrier("epilogue", warpgroup)
        self.stores: pipeline.PipelineTmaStore = pipeline.PipelineTmaStore.create(num_stages=1)

    @cute.jit
    def finish(self, work: Work):
        """Normalize the output accumulator, write LSE, and begin to store O."""
        kernel = self.kernel
        acc_o = self.mma.acc_o
        tma_o, out, lse = self.outputs
        sinks = self.tensors.sinks
        v_descale = self.tensors.v_descale
        thread = rematerialized(arch.thread_idx()[0]) % _WARPGROUP
        first = work.tile * kernel.config.tile_m + self.warpgroup * WARPGROUP_M
        for half in range_constexpr(2):
            query, head = kernel.query_and_head(accumulator_row(first, thread, half), work.head)
            sink = None
            descale = None
            if const_expr(sinks is not None):
                sink = sinks[head] * LOG2_E
            if const_expr(v_descale is not None):
                descale = v_descale[work.batch, head // (out.shape[2] // v_descale.shape[1])]
            total, neg_row_max, scale = normalize_row(
                self.softmax.row_sum[half], self.softmax.rounded_neg_max(half), sink, descale
            )
            for n in range_constexpr(kernel.head_dim_v // 8):
                for c in range_constexpr(2):
                    acc_o[(c, half, n), 0, 0] = acc_o[(c, half, n), 0, 0] * scale
            if const_expr(lse is not None):
                if thread % 4 == 0 and query < work.seqlen_q:
                    value = log_sum_exp(total, neg_row_max)
                    if const_expr(kernel.varlen):
                        lse[head, work.first_q + query] = value
                    else:
                        lse[work.batch, head, query] = value
        self._write_smem(thread)
        rows = work.seqlen_q * kernel.group_size - first
        if const_expr(kernel.varlen):
            if rows >= WARPGROUP_M:
                tensor = cute.domain_offset((kernel.row_coord(work.first_q), 0, 0, 0), tma_o.tensor)
                self._store_tile(work, tensor, Int32(0))
            else:
                tile = self.smem_o[None, None, self.warpgroup]
                store_vectors(tile, rows, out.shape[3], _WARPGROUP, out, partial(self._coord, work, first))
        else:
            self._store_tile(work, tma_o.tensor, work.batch)

    def _coord(self, work: Work, first: Any, row: Any, column: Any) -> tuple[Any, ...]:
        """Return the coordinate in O of an element of the warpgroup's rows; `first` is their first row."""
        query, head = self.kernel.query_and_head(first + row, work.head)
        return 0, work.first_q + query, head, column

    def _write_smem(self, thread: Any) -> None:
        dtype = self.kernel.out_dtype
        rounded = cute.make_rmem_tensor(self.mma.acc_o.shape, dtype)
        rounded.store(self.mma.acc_o.load().to(dtype))
        self.wait_for_store()  # smem that was stored before has been read, and so has Q
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), dtype)
        copy = cute.make_tiled_copy_S(atom, cute.make_tiled_copy_C_atom(atom, self.kernel.mma_pv()))
        target = copy.get_slice(thread).partition_D(self.smem_o[None, None, self.warpgroup])
        cute.copy(copy, copy.retile(rounded), target)
        arch.fence_proxy("async.shared", space="cta")
        self.barrier.arrive_and_wait()

    @cute.jit
    def _store_tile(self, work: Work, tensor: cute.Tensor, batch: Int32):
        """Store the warpgroup's rows by TMA, which leaves out those that the array does not have."""
        if self._is_store_warp():
            kernel = self.kernel
            atom = self.outputs.tma_o.atom
            tiles = cute.local_tile(tensor, (kernel.row_shape, kernel.head_dim_v), (None, 0, None, None))
            source, target = partition(atom, self.smem_o, tiles)
            row = kernel.row_coord(work.tile * kernel.config.consumer_warpgroups + self.warpgroup)
            cute.copy(atom, source[None, self.warpgroup], target[None, row, work.head, batch])
            self.stores.producer_commit()

    def _is_store_warp(self) -> Any:
        """Return whether this is the warp that stores. ptxas must see that all threads of a warp agree, or it takes the
        WGMMAs that follow for divergent ones."""
        return arch.make_warp_uniform(arch.warp_idx()) % 4 == 0

    @cute.jit
    def wait_for_store(self):
        """Wait, in all threads of the warpgroup, until the TMA store has read its smem."""
        if self._is_store_warp():
            self.stores.producer_tail()
        self.barrier.arrive_and_wait()
