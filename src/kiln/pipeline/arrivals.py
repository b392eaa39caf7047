"""Kinds of arrival at the mbarriers of a pipeline.

A side of a pipeline has a kind of arrival and the group that arrives; a pipeline has two sides:

| pipeline                         | buffers are full by  | and empty by                    |
|----------------------------------|----------------------|---------------------------------|
| `PipelineAsync`                  | `ThreadArrival`      | `ThreadArrival`                 |
| `PipelineCpAsync`                | `CopyArrival`        | `ThreadArrival`                 |
| `PipelineTmaAsync`               | `TransactionArrival` | `WarpArrival`                   |
| `PipelineTmaUmma`                | `TransactionArrival` | `UmmaArrival`                   |
| `PipelineUmmaAsync`              | `UmmaArrival`        | `ThreadArrival`                 |
| `PipelineAsyncUmma`              | `ThreadArrival`      | `UmmaArrival`                   |
| `PipelineTmaMultiConsumersAsync` | `TransactionArrival` | `UmmaArrival`, `ThreadArrival`  |
| `PipelineClcFetchAsync`          | `ClcArrival`         | `ThreadArrival`                 |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ..base_dsl import sanitizing, target
from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Int16
from ..cute import arch
from ..cute.atoms.copying import guarded
from ..cute.deferred_dialects import nvgpu
from ..hardware.limits import MBARRIER_BYTES
from .groups import PipelineOp

if TYPE_CHECKING:
    from ..cute.nvgpu.common import CtaGroup
    from ..cute.tensor.pointer import Pointer


class Arrival:
    """How the agents of a side arrive at the mbarrier of a buffer."""

    __kiln_immutable__ = True

    op: ClassVar[PipelineOp]
    """The kind of agent that arrives, by the name that programs know."""
    announces: ClassVar[bool] = False
    """Whether a side arrives when it acquires a stage, and an engine completes the phase; else when it is done."""
    threads_of_a_warp: ClassVar[int] = 32
    """How many threads of a warp arrive: a group that is counted in warps arrives that often for each warp."""

    def arrive(self, barrier: Pointer, mask: Any) -> None:
        """Arrive at the mbarrier of this CTA, or of the CTAs of the cluster in `mask`."""
        raise NotImplementedError


class ThreadArrival(Arrival):
    """Each thread arrives when it says so, in its CTA or in a CTA of the cluster (`mask`).

    `publishes`: whether those who wait see what the thread wrote. Threads that only read a stage need not publish to
    other CTAs, for which the hardware waits until all their writes are visible to the GPU.
    """

    op = PipelineOp.AsyncThread

    def __init__(self, publishes: bool = True) -> None:
        self._scope = None if publishes else "cta"

    def arrive(self, barrier: Pointer, mask: object) -> None:
        arch.mbarrier_arrive(barrier, mask, scope=self._scope)


class FencedArrival(ThreadArrival):
    """Each thread arrives when it has fenced what it wrote for the tensor cores, maybe in the leader of its pair of CTAs.

    Each CTA's tensor cores read their own shared memory, where the fence has completed the writes: the thread that waits in
    the leader, and issues the MMA, has nothing to see of them. So the arrival has the scope of a CTA, as in the PTX of
    CuTe DSL. By PTX alone it orders nothing between CTAs, so under the sanitizer, which goes by PTX, it has the scope of the
    cluster.
    """

    def arrive(self, barrier: Pointer, mask: object) -> None:
        by_ptx = "race" in sanitizing.kinds() and target.target_name() == "cpu"
        arch.mbarrier_arrive(barrier, mask, scope=None if by_ptx else "cta")


class WarpArrival(ThreadArrival):
    """One thread of a warp (the caller chooses which) arrives for all of it, in its CTA or in a CTA of the cluster."""

    threads_of_a_warp = 1


class CopyArrival(Arrival):
    """Each thread arrives when its `cp.async` copies so far are complete."""

    op = PipelineOp.AsyncLoad

    def arrive(self, barrier: Pointer, mask: object) -> None:
        if mask is not None:
            raise type_error(
                f"cp.async copies arrive in block {mask!r} of the cluster",
                "they arrive at mbarriers of their own block: leave out producer_mask",
            )
        arch.cp_async_mbarrier_arrive_noinc(barrier)


class TransactionArrival(Arrival):
    """One thread of the warp arrives and announces how many bytes are coming; TMA counts them."""

    op = PipelineOp.TmaLoad
    announces = True
    threads_of_a_warp = 1

    def __init__(self, tx_count: Any) -> None:
        if isinstance(tx_count, bool) or (isinstance(tx_count, int) and not 0 < tx_count <= MBARRIER_BYTES):
            raise type_error(
                f"tx_count is {tx_count}", f"the bytes of all copies into one buffer, 1 to {MBARRIER_BYTES}"
            )
        self.tx_count = tx_count

    def arrive(self, barrier: Pointer, mask: object) -> None:
        with arch.elect_one():
            arch.mbarrier_arrive_and_expect_tx(barrier, self.tx_count)


class ClcArrival(TransactionArrival):
    """Lane i of the warp announces the bytes of an answer of cluster launch control in CTA i of the cluster.

    The answer is written to all CTAs, and the mbarrier of each counts its bytes.
    """

    op = PipelineOp.ClcLoad

    def __init__(self, tx_count: object, ctas: int) -> None:
        super().__init__(tx_count)
        self._ctas = ctas

    def arrive(self, barrier: Pointer, mask: object) -> None:
        if self._ctas == 1:
            super().arrive(barrier, None)
        else:
            lane = arch.lane_idx()
            announce = lambda: arch.mbarrier_arrive_and_expect_tx(barrier, self.tx_count, lane, scope="cta")
            guarded(lane < self._ctas, announce)  # there is nothing to publish to the other CTAs


class UmmaArrival(Arrival):
    """The tensor cores arrive when all MMAs and copies that the thread issued before are complete (`tcgen05.commit`).

    One thread of the warp commits, the one that `elect_one` also chose for the MMAs. With a `mask` the arrival goes to
    the mbarrier with the same offset in each CTA whose bit is set.
    """

    op = PipelineOp.TCGen05Mma
    threads_of_a_warp = 1

    def __init__(self, cta_group: CtaGroup) -> None:
        self.cta_group = cta_group

    def arrive(self, barrier: Pointer, mask: object) -> None:
        masks = () if mask is None else (Int16(mask).ir_value(),)
        with arch.elect_one():
            nvgpu.tcgen05.tcgen05_commit(barrier.ir_value(), *masks, cta_group=self.cta_group.value)
