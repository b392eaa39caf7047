"""Pipelines of the tensor cores of sm_100 to sm_110, which arrive at mbarriers themselves (`tcgen05.commit`).

In a pair of CTAs (V of `cta_layout_vmnk` is 2) the even CTA, the leader, issues the MMAs for both. Its mbarriers say
that a stage is full: TMA of both CTAs completes there, and threads of both arrive there. What the tensor cores release
they release in both CTAs, and in every CTA that shares A or B by multicast.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Boolean, Int32
from ..cute.atoms.copying import guarded
from ..cute.nvgpu.common import CtaGroup
from ..cute.tensor.pointer import Pointer
from .arrivals import FencedArrival, ThreadArrival, TransactionArrival, UmmaArrival
from .asynchronous import PipelineAsync, unless
from .barriers import SyncObject
from .groups import Agent, CooperativeGroup, PipelineOp
from .multicast import consumers_mask, cta_group, is_leader, leader, pair_mask, sharers
from .state import PipelineState

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PipelineAsyncUmma", "PipelineTmaMultiConsumersAsync", "PipelineTmaUmma", "PipelineUmmaAsync"]


def _leads(group: CtaGroup) -> Any:
    return True if group is CtaGroup.ONE else is_leader()


def _shared_with(group: CooperativeGroup, enabled: bool, cta_layout_vmnk: object, mode: tuple[int, int]) -> Any:
    """Return the group of consumers, counted in all CTAs that release stages of this one if multicast signaling is
    enabled; else the program has counted them."""
    return CooperativeGroup(group.agent, group.size * sharers(cta_layout_vmnk, mode)) if enabled else group


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineTmaUmma(PipelineAsync):
    """A pipeline whose stages TMA fills and MMAs of sm_100 read.

    The producer is one warp. `producer_acquire` announces the bytes of both CTAs of a pair in the leader, and copies
    with `CtaGroup.TWO` that get the stage's mbarrier complete there; in the other CTA it only waits. The warp that
    issued the MMAs calls `consumer_release`; the stage is empty when they are complete.
    """

    is_leader_cta: Any
    cta_group: CtaGroup

    @classmethod
    def create(  # type: ignore[override]
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group: CooperativeGroup,
        tx_count: int,
        barrier_storage: Pointer | None = None,
        cta_layout_vmnk: object = None,
        mcast_mode_mn: tuple[int, int] = (1, 1),
        enable_multicast_signaling: bool = False,
        defer_sync: bool = False,
        name: str = "",
        loc: object = None,
        ip: object = None,
    ) -> Self:
        """Create a pipeline as `PipelineAsync.create` does. `tx_count`: the bytes of all copies into a stage, those of
        both CTAs of a pair.

        `cta_layout_vmnk`: the layout of the cluster's CTAs. `mcast_mode_mn`: whether A is multicast along N, and B along
        M. The consumers' group counts the commits in all CTAs (a pair commits once) that share a row or column with
        this one; with `enable_multicast_signaling`, those of this CTA only.
        """
        group = cta_group(cta_layout_vmnk)
        consumers = _shared_with(consumer_group, enable_multicast_signaling, cta_layout_vmnk, mcast_mode_mn)
        sides = (TransactionArrival(tx_count), producer_group), (UmmaArrival(group), consumers)
        full, empty = cls._barriers(num_stages, *sides, barrier_storage, defer_sync, cta_layout_vmnk)
        mask = consumers_mask(cta_layout_vmnk, mcast_mode_mn)
        return cls(full, empty, num_stages, None, mask, _leads(group), group)

    def producer_acquire(
        self,
        state: PipelineState,
        try_acquire_token: object = None,
        *,
        expected_tx: object = None,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Wait until a stage is empty; in the leader, announce its bytes, `tx_count` or `expected_tx` of them."""
        unless(try_acquire_token, lambda: self.sync_object_empty.wait(state.index, state.phase))
        bytes_ = self.sync_object_full.tx_count if expected_tx is None else expected_tx
        guarded(self.is_leader_cta, lambda: self.sync_object_full.arrive_and_expect_tx(state.index, bytes_))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineUmmaAsync(PipelineAsync):
    """A pipeline whose stages, usually accumulators in tensor memory, MMAs of sm_100 fill and threads read.

    The warp that issued the MMAs calls `producer_commit`; the stage is full when they are complete, in both CTAs of a
    pair. Each thread that calls `consumer_release` arrives in the leader. Only the leader's warp acquires and commits.
    """

    cta_group: CtaGroup

    @classmethod
    def create(  # type: ignore[override]
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group: CooperativeGroup,
        barrier_storage: Pointer | None = None,
        cta_layout_vmnk: object = None,
        defer_sync: bool = False,
        name: str = "",
        loc: object = None,
        ip: object = None,
    ) -> Self:
        """Create a pipeline as `PipelineAsync.create` does. The consumers' group counts the threads of both CTAs."""
        group = cta_group(cta_layout_vmnk)
        pair = group is CtaGroup.TWO
        sides = (UmmaArrival(group), producer_group), (ThreadArrival(publishes=False), consumer_group)
        full, empty = cls._barriers(num_stages, *sides, barrier_storage, defer_sync, cta_layout_vmnk)
        masks = (pair_mask(), leader()) if pair else (None, None)
        return cls(full, empty, num_stages, *masks, group)

    def producer_tail(self, state: PipelineState, *, loc: object = None, ip: object = None) -> None:
        """Wait until all stages are empty. The other CTA of a pair returns at once: nobody arrives there."""
        leads = _leads(self.cta_group)
        for _ in range(self.num_stages):
            guarded(leads, lambda: self.sync_object_empty.wait(state.index, state.phase))
            state.advance()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineAsyncUmma(PipelineAsync):
    """A pipeline whose stages threads fill and MMAs of sm_100 read.

    Each thread that calls `producer_commit` arrives in the leader; before it, `fence_proxy` (shared memory) or
    `fence_view_async_tmem_store` (tensor memory) makes what it wrote visible to the tensor cores. `consumer_release` is
    called by the warp that issued the MMAs.
    """

    cta_group: CtaGroup

    @classmethod
    def create(  # type: ignore[override]
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group: CooperativeGroup,
        barrier_storage: Pointer | None = None,
        cta_layout_vmnk: object = None,
        defer_sync: bool = False,
        name: str = "",
        loc: object = None,
        ip: object = None,
    ) -> Self:
        """Create a pipeline as `PipelineAsync.create` does. The producers' group counts the threads of both CTAs."""
        group = cta_group(cta_layout_vmnk)
        pair = group is CtaGroup.TWO
        sides = (FencedArrival(), producer_group), (UmmaArrival(group), consumer_group)
        full, empty = cls._barriers(num_stages, *sides, barrier_storage, defer_sync, cta_layout_vmnk)
        masks = (leader(), pair_mask()) if pair else (None, None)
        return cls(full, empty, num_stages, *masks, group)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineTmaMultiConsumersAsync(PipelineAsync):
    """A pipeline whose stages TMA fills for two kinds of consumers: MMAs of sm_100, and threads.

    `consumer_release` says which kind releases. A stage is empty when both have released it, each as often as its group
    says.

    `sync_object_empty_umma` and `sync_object_empty_async` are the mbarriers of empty stages, for the tensor cores and
    for threads to arrive at.
    """

    is_leader_cta: bool | Boolean
    sync_object_empty_umma: SyncObject
    sync_object_empty_async: SyncObject
    cta_group: CtaGroup
    consumer_dst_rank_async: int | Int32 | None = None
    is_signaling_thread: bool | Boolean = True

    producer_acquire = PipelineTmaUmma.producer_acquire

    @classmethod
    def create(  # type: ignore[override]
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group_umma: CooperativeGroup,
        consumer_group_async: CooperativeGroup,
        tx_count: int,
        barrier_storage: Pointer | None = None,
        cta_layout_vmnk: object = None,
        mcast_mode_mn: tuple[int, int] = (1, 1),
        tidx: object = None,
        enable_multicast_signaling: bool = False,
        defer_sync: bool = False,
        force_deprecated_per_lane_signaling: bool | None = None,
        name: str = "",
        loc: object = None,
        ip: object = None,
    ) -> Self:
        """Create a pipeline of one CTA as `PipelineTmaUmma.create` does. The threads' group counts threads."""
        if sharers(cta_layout_vmnk, (1, 1)) > 1 or cta_group(cta_layout_vmnk) is not CtaGroup.ONE:
            raise type_error(
                f"a pipeline with consumers of two kinds over the blocks {cta_layout_vmnk}",
                "it belongs to one block: leave out cta_layout_vmnk",
            )
        umma = UmmaArrival(CtaGroup.ONE)
        threads = ThreadArrival(publishes=False)
        count = consumer_group_umma.arrivals(umma.threads_of_a_warp)
        both = CooperativeGroup(Agent.Thread, count + consumer_group_async.arrivals(threads.threads_of_a_warp))
        sides = (TransactionArrival(tx_count), producer_group), (umma, both)
        full, empty = cls._barriers(num_stages, *sides, barrier_storage, defer_sync)
        return cls(full, empty, num_stages, None, None, True, empty, empty.arrived_by(threads), CtaGroup.ONE)

    def consumer_release(  # type: ignore[override]
        self,
        state: PipelineState,
        op_type: PipelineOp = PipelineOp.TCGen05Mma,
        *,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Arrive for this thread (`PipelineOp.AsyncThread`), or for the tensor cores once their MMAs are complete."""
        if op_type is PipelineOp.TCGen05Mma:
            super().consumer_release(state)
        elif op_type is PipelineOp.AsyncThread:
            self.sync_object_empty_async.arrive(state.index)
        else:
            raise type_error(
                f"a stage is released by {getattr(op_type, 'name', op_type)}",
                "PipelineOp.TCGen05Mma (the warp that issued MMAs) or PipelineOp.AsyncThread (each thread that read it)",
            )
