"""The epilogue of a Hopper consumer warpgroup: O divided by row_sum, stored through smem, and LSE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..... import Int32, const_expr, cute, range_constexpr
from .....cute import arch
from .....cute.nvgpu import warp
from .....utils.tiles.online_softmax import LOG2_E, log_sum_exp, normalize_row
from ....parts.accumulator import RegisterAccumulator
from ....parts.attention_mask import accumulator_row
from ....parts.kv_source import store_vectors
from ....parts.rematerialize import rematerialized
from ....parts.tma_store_epilogue import TileResults, TmaStore, TmaStoreEpilogue
from .sm90_config import WARPGROUP_M

if TYPE_CHECKING:
    from ..... import Boolean
    from ....parts.tma_operand import TmaOperand
    from ..args import AttentionTensors
    from .sm90 import Sm90ForwardKernel
    from .sm90_mma import AttentionMma
    from .sm90_scheduler import Work
    from .sm90_softmax import Sm90Softmax

_WARPGROUP = 128


class Outputs(NamedTuple):
    """Where results go."""

    tma_o: TmaOperand
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
        warpgroup: Int32,
        smem_o: cute.Tensor,
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
        # ptxas must see that all threads of a warp agree, or it takes the WGMMAs that follow for divergent ones
        is_leader = lambda: arch.make_warp_uniform(arch.warp_idx()) % 4 == 0
        self.stores: TmaStoreEpilogue = TmaStoreEpilogue(
            kernel.roles.barrier("epilogue", warpgroup), is_leader, warpgroup
        )

    @cute.jit
    def finish(self, work: Work):
        """Normalize the output accumulator, write LSE, and begin to store O."""
        thread = rematerialized(arch.thread_idx()[0]) % _WARPGROUP
        acc = RegisterAccumulator(self.mma.tOrO, self.mma.mma_pv.get_slice(thread))
        self.stores.write(acc, AttentionOutput(self, work, thread))

    def wait_for_store(self) -> None:
        """Wait, in all threads of the warpgroup, until the TMA store has read its smem."""
        self.stores.drain()


class AttentionOutput(TileResults):
    """O of a warpgroup's query rows, and their LSE."""

    def __init__(self, epilogue: Sm90Epilogue, work: Work, thread: Int32) -> None:
        kernel = epilogue.kernel
        self.epilogue = epilogue
        self.work = work
        self.thread = thread
        self.first: Int32 = work.tile * kernel.config.tile_m + epilogue.warpgroup * WARPGROUP_M
        """The first row of the warpgroup."""

    @property
    def stores(self) -> list[TmaStore]:
        kernel = self.epilogue.kernel
        tma_o = self.epilogue.outputs.tma_o
        tensor = tma_o.tensor
        if kernel.varlen:
            tensor = cute.domain_offset((kernel.row_coord(self.work.first_q), 0, 0, 0), tensor)
        gO = cute.local_tile(tensor, (kernel.row_shape, kernel.head_dim_v), (None, 0, None, None))
        atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), kernel.out_dtype)
        tiled_copy_r2s = cute.make_tiled_copy_S(atom, cute.make_tiled_copy_C_atom(atom, kernel.mma_pv()))
        return [TmaStore.make(tiled_copy_r2s, self.thread, self.epilogue.smem_o, tma_o.atom, gO)]

    @cute.jit
    def combine(self, number: Int32 | int, values: cute.Tensor):
        """Divide the accumulators, ((2, 2, head_dim / 8), 1, 1), by row_sum, and write LSE."""
        epilogue = self.epilogue
        work = self.work
        kernel = epilogue.kernel
        _, out, lse = epilogue.outputs
        sinks = epilogue.tensors.sinks
        v_descale = epilogue.tensors.v_descale
        for half in range_constexpr(2):
            query, head = kernel.query_and_head(accumulator_row(self.first, self.thread, half), work.head)
            sink = None
            descale = None
            if const_expr(sinks is not None):
                sink = sinks[head] * LOG2_E
            if const_expr(v_descale is not None):
                descale = v_descale[work.batch, head // (out.shape[2] // v_descale.shape[1])]
            total, neg_row_max, scale = normalize_row(
                epilogue.softmax.row_sum[half], epilogue.softmax.rounded_neg_max(half), sink, descale
            )
            for n in range_constexpr(kernel.head_dim_v // 8):
                for c in range_constexpr(2):
                    values[(c, half, n), 0, 0] = values[(c, half, n), 0, 0] * scale
            if const_expr(lse is not None):
                if self.thread % 4 == 0 and query < work.seqlen_q:
                    value = log_sum_exp(total, neg_row_max)
                    if const_expr(kernel.varlen):
                        lse[head, work.first_q + query] = value
                    else:
                        lse[work.batch, head, query] = value
        return [values.load()]

    def coord(self, number: Int32 | int) -> tuple[cute.Coord, Int32, Int32]:
        kernel = self.epilogue.kernel
        row = self.work.tile * kernel.config.consumer_warpgroups + self.epilogue.warpgroup
        return kernel.row_coord(row), self.work.head, Int32(0) if kernel.varlen else self.work.batch

    def by_tma(self, number: Int32 | int) -> Boolean | bool:
        return self._rows() >= WARPGROUP_M if self.epilogue.kernel.varlen else True

    def _rows(self) -> Int32:
        """Return how many rows of the sequence there are from the warpgroup's first on."""
        return self.work.seqlen_q * self.epilogue.kernel.group_size - self.first

    def store_rows(self, coord: tuple[cute.Coord, ...], stage: Int32) -> None:
        """Store the last rows of a sequence by threads: behind them are those of the next one."""
        out = self.epilogue.outputs.o
        tile = self.epilogue.smem_o[None, None, stage]
        store_vectors(tile, self._rows(), out.shape[3], _WARPGROUP, out, self._element)

    def _element(self, row: Int32, column: Int32) -> tuple[Int32 | int, ...]:
        """Return the coordinate in O of an element of the warpgroup's rows."""
        query, head = self.epilogue.kernel.query_and_head(self.first + row, self.work.head)
        return 0, self.work.first_q + query, head, column
