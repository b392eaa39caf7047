"""Pipelines that keep the states of both sides: TMA to tensor cores, tensor cores to threads, threads to TMA.

They are those of `kiln.pipeline`. A warp role calls the methods of its side only; all threads carry both states.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Int32
from ...pipeline.arrivals import ThreadArrival, UmmaArrival
from ...pipeline.asynchronous import PipelineAsync
from ...pipeline.barriers import NamedBarrier, in_cluster
from ...pipeline.copy_groups import PipelineTmaStore
from ...pipeline.groups import Agent, CooperativeGroup, PipelineUserType
from ...pipeline.multicast import consumers_mask, cta_group, is_leader, sharers
from ...pipeline.participants import PipelineConsumer, PipelineProducer
from ...pipeline.state import PipelineState, make_pipeline_state
from ...pipeline.umma import PipelineUmmaAsync
from .. import arch
from ..atoms.copying import guarded
from ..nvgpu.common import CtaGroup
from .operation_types import TMA_LOADS, OperationTypeEnum
from .program import needs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..tensor.pointer import Pointer

__all__ = ["TMAStorePipeline", "TMAToUMMAPipeline", "UMMAtoAsyncPipeline", "get_mbarrier", "pipeline_advance_iterator"]

_FILLED = PipelineProducer.ImmutableResourceHandle
_READ = PipelineConsumer.ImmutableResourceHandle


def get_mbarrier(stage_token: object, *, loc: object = None, ip: object = None) -> Pointer:
    """Return the mbarrier at which copies into a stage complete, from the token of `producer_acquire_and_get_stage`."""
    if not isinstance(stage_token, _FILLED):
        raise type_error(
            f"get_mbarrier takes the token of a stage to fill, got {type(stage_token).__name__}",
            "token, index = pipeline.producer_acquire_and_get_stage()",
        )
    return stage_token.barrier


def pipeline_advance_iterator(pipe: object, state: object, *, loc: object = None, ip: object = None) -> PipelineState:
    """Return the state of the next stage."""
    if not isinstance(state, PipelineState):
        raise type_error(
            f"pipeline_advance_iterator takes a state, got {type(state).__name__}",
            "pipeline.producer_state or pipeline.consumer_state",
        )
    following = state.clone()
    following.advance()
    return following


def _ctas(kind: Any, what: str, cluster_layout_vmnk: Any) -> CtaGroup:
    """Return how many CTAs execute an MMA together, by the kind of operation, which the cluster must have."""
    if not isinstance(kind, OperationTypeEnum) or not kind.name.startswith(("SM100_MMA", "SM107_MMA")):
        raise type_error(f"mma_operation_type of {what} is {kind!r}", "such as OperationTypeEnum.SM100_MMA_1SM_SS")
    group = CtaGroup.TWO if "_2SM_" in kind.name else CtaGroup.ONE
    if group is not cta_group(cluster_layout_vmnk):
        raise type_error(
            f"{kind.name} of {what} in a cluster {cluster_layout_vmnk}",
            "mode V of cluster_layout_vmnk has as many CTAs as execute an MMA together: 2 for 2SM, else 1",
        )
    return group


@dataclasses.dataclass(frozen=True, eq=False)
class _TmaToUmma(PipelineAsync):
    """Stages that TMA fills and MMAs read; copies announce their bytes, and then one thread arrives."""

    def producer_commit(self, state: PipelineState, *, loc: object = None, ip: object = None) -> None:
        with arch.elect_one():
            self.sync_object_full.arrive(state.index, None)


class _Pipeline:
    """A pipeline, `raw_pipeline`, and the states of its producer and its consumer. Methods return the pipeline."""

    def __init__(
        self,
        raw_pipeline: Any,
        num_stages: int,
        producer_state: PipelineState,
        consumer_state: PipelineState,
        is_2sm: bool = False,
    ) -> None:
        self.raw_pipeline = raw_pipeline
        self.num_stages = num_stages
        self.is_2sm = is_2sm
        self.producer_state = producer_state
        self.consumer_state = consumer_state

    @classmethod
    def _at_start(cls, raw: Any, group: CtaGroup) -> Any:
        producer, consumer = (
            make_pipeline_state(side, raw.num_stages) for side in (PipelineUserType.Producer, PipelineUserType.Consumer)
        )
        return cls(raw, raw.num_stages, producer, consumer, group is CtaGroup.TWO)

    def __extract_mlir_values__(self) -> list[Any]:
        return [*self.producer_state.__extract_mlir_values__(), *self.consumer_state.__extract_mlir_values__()]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        rebuilt = object.__new__(type(self))
        half = len(values) // 2
        rebuilt.__dict__.update(self.__dict__)
        rebuilt.producer_state = self.producer_state.__new_from_mlir_values__(values[:half])
        rebuilt.consumer_state = self.consumer_state.__new_from_mlir_values__(values[half:])
        return rebuilt

    def __kiln_join__(self, other: Any) -> Any:
        return (self, other) if self.raw_pipeline is other.raw_pipeline else None

    def __kiln_coerce__(self, like: Any) -> Any:
        return self if self.raw_pipeline is like.raw_pipeline else None

    def __kiln_static_key__(self) -> Any:
        return self.raw_pipeline.__kiln_static_key__()

    # --- the producer's side ---------------------------------------------------------------------------------------

    def producer_try_acquire(self, *, token: object = None) -> Boolean:
        """Return whether the producer's stage is empty; a token that holds is returned."""
        is_free = self.raw_pipeline.producer_try_acquire(self.producer_state)
        return is_free if token is None else Boolean(token) | is_free

    def producer_acquire(self, *, token: object = None) -> Any:
        """Wait until the producer's stage is empty, unless the token of a try holds."""
        self.raw_pipeline.producer_acquire(self.producer_state, token)
        return self

    def producer_acquire_and_get_stage(self, *, token: object = None) -> tuple[Any, Int32]:
        """Wait until the producer's stage is empty; return its token, for `get_mbarrier`, and its index."""
        self.producer_acquire(token=token)
        return _FILLED(self.raw_pipeline, self.producer_state.clone()), self.producer_state.index

    def producer_acquire_and_get_phase(self, *, token: object = None) -> Int32:
        """Wait until the producer's stage is empty; return the phase."""
        self.producer_acquire(token=token)
        return self.producer_state.phase

    def producer_commit(self, *, elect_one_sync: bool | None = None, elect_leader_cta: bool | None = None) -> Any:
        """Say that the producer is done with its stage: one thread of the warp arrives.

        With `elect_leader_cta` only in the even CTA of a pair.
        """
        guarded(
            is_leader() if elect_leader_cta else True, lambda: self.raw_pipeline.producer_commit(self.producer_state)
        )
        return self

    def producer_commit_and_advance(
        self, *, elect_one_sync: bool | None = None, elect_leader_cta: bool | None = None
    ) -> Any:
        """Say that the producer is done with its stage, and go to the next one."""
        self.producer_commit(elect_one_sync=elect_one_sync, elect_leader_cta=elect_leader_cta)
        self.producer_state.advance()
        return self

    def producer_tail(self) -> Any:
        """Wait until all stages are empty."""
        self.raw_pipeline.producer_tail(self.producer_state)
        return self

    def get_producer_stage(self) -> Int32:
        """Return the index of the producer's stage."""
        return self.producer_state.index

    def get_producer_phase(self) -> Int32:
        """Return the phase of the producer's stage."""
        return self.producer_state.phase

    # --- the consumer's side ---------------------------------------------------------------------------------------

    def consumer_try_wait(self, *, token: object = None) -> Boolean:
        """Return whether the consumer's stage is full; a token that holds is returned."""
        is_full = self.raw_pipeline.consumer_try_wait(self.consumer_state)
        return is_full if token is None else Boolean(token) | is_full

    def consumer_wait(self, state: PipelineState | None = None, *, token: object = None) -> Any:
        """Wait until the consumer's stage, or that of a state, is full, unless the token of a try holds."""
        self.raw_pipeline.consumer_wait(self.consumer_state if state is None else state, token)
        return self

    def consumer_wait_and_get_stage(self, *, token: object = None) -> tuple[Any, Int32]:
        """Wait until the consumer's stage is full; return its token and its index."""
        self.consumer_wait(token=token)
        return _READ(self.raw_pipeline, self.consumer_state.clone()), self.consumer_state.index

    def consumer_wait_and_get_phase(self, *, token: object = None) -> Int32:
        """Wait until the consumer's stage is full; return the phase."""
        self.consumer_wait(token=token)
        return self.consumer_state.phase

    def consumer_release(self, *, elect_one_sync: bool | None = None, elect_leader_cta: bool | None = None) -> Any:
        """Say that the consumer is done with its stage. With `elect_leader_cta` only in the even CTA of a pair."""
        guarded(
            is_leader() if elect_leader_cta else True, lambda: self.raw_pipeline.consumer_release(self.consumer_state)
        )
        return self

    def consumer_release_and_advance(self) -> Any:
        """Say that the consumer is done with its stage, and go to the next one."""
        self.consumer_release()
        self.consumer_state.advance()
        return self

    def consumer_tail(self) -> Any:
        """Return at once: a consumer that has waited for all stages has nothing to wait for."""
        return self

    def get_consumer_stage(self) -> Int32:
        """Return the index of the consumer's stage."""
        return self.consumer_state.index

    def get_consumer_phase(self) -> Int32:
        """Return the phase of the consumer's stage."""
        return self.consumer_state.phase

    def create_state_at(self, stage_index: object, phase: object) -> PipelineState:
        """Return the state at a stage and phase."""
        return PipelineState(self.num_stages, 0, stage_index, phase)

    def increment_state(self, state: PipelineState) -> PipelineState:
        """Return the state of the next stage."""
        return pipeline_advance_iterator(self.raw_pipeline, state)


class TMAToUMMAPipeline(_Pipeline):
    """A pipeline whose stages `tma_load` fills and `dot` reads.

    A producer's warp acquires a stage, loads into it with the mbarrier of its token, and commits. `tma_load` announces
    its bytes itself. In a pair of CTAs both load, and only the even one commits.
    """

    @staticmethod
    def create(
        *,
        num_stages: int,
        mma_operation_type: object,
        tma_operation_type: object = None,
        cluster_layout_vmnk: object = None,
    ) -> TMAToUMMAPipeline:
        """Create the pipeline; all threads of the CTA, in a cluster of all CTAs, call it and synchronise."""
        return TMAToUMMAPipeline._create(num_stages, mma_operation_type, tma_operation_type, cluster_layout_vmnk, False)

    @staticmethod
    def create_with_mask(
        *, num_stages: int, tma_operation_type: object, mma_operation_type: object, cluster_layout_vmnk: object
    ) -> TMAToUMMAPipeline:
        """Create the pipeline for multicast: a stage is empty when all CTAs that it was copied to have released it."""
        return TMAToUMMAPipeline._create(num_stages, mma_operation_type, tma_operation_type, cluster_layout_vmnk, True)

    @staticmethod
    def _create(num_stages: int, mma: Any, tma: Any, cluster: object, multicast: bool) -> TMAToUMMAPipeline:
        group = _ctas(mma, "TMAToUMMAPipeline", cluster)
        kind = (group is CtaGroup.TWO, multicast)
        if tma is not None and TMA_LOADS.get(tma) != kind:
            names = [mode.name for mode, its in TMA_LOADS.items() if its == kind]
            raise type_error(
                f"a TMAToUMMAPipeline of {mma.name} with tma_operation_type {getattr(tma, 'name', tma)}", f"{names[0]}"
            )
        shared = (int(multicast), int(multicast))
        releases = CooperativeGroup(Agent.Thread, sharers(cluster, shared) if multicast else 1)
        sides = (ThreadArrival(), CooperativeGroup(Agent.Thread)), (UmmaArrival(group), releases)
        full, empty = _TmaToUmma._barriers(num_stages, *sides, None, False, cluster)
        mask = consumers_mask(cluster, shared)
        needed = needs("TMAToUMMAPipeline.create")
        needed.stages = max(needed.stages, num_stages)
        needed.in_cluster |= in_cluster(cluster)
        return TMAToUMMAPipeline._at_start(_TmaToUmma(full, empty, num_stages, None, mask), group)


class UMMAtoAsyncPipeline(_Pipeline):
    """A pipeline whose stages, accumulators in tensor memory, `dot` fills and threads read."""

    @staticmethod
    def create(
        *,
        num_stages: int,
        consumer: object,
        consumer_arv_count: int,
        mma_operation_type: object,
        cluster_layout_vmnk: object = None,
    ) -> UMMAtoAsyncPipeline:
        """Create the pipeline; all threads of the CTA, in a cluster of all CTAs, call it and synchronise.

        `consumer_arv_count`: the threads that release a stage, of both CTAs of a pair.
        """
        group = _ctas(mma_operation_type, "UMMAtoAsyncPipeline", cluster_layout_vmnk)
        if consumer is not OperationTypeEnum.SM100_COPY_T2R:
            raise type_error(
                f"consumer of UMMAtoAsyncPipeline is {getattr(consumer, 'name', consumer)}",
                "OperationTypeEnum.SM100_COPY_T2R: threads load accumulators from tensor memory",
            )
        raw = PipelineUmmaAsync.create(
            num_stages=num_stages,
            producer_group=CooperativeGroup(Agent.Thread),
            consumer_group=CooperativeGroup(Agent.Thread, consumer_arv_count),
            cta_layout_vmnk=cluster_layout_vmnk,
        )
        return UMMAtoAsyncPipeline._at_start(raw, group)

    @staticmethod
    def create_with_mask(
        *,
        num_stages: int,
        consumer_type: object,
        consumer_arv_count: int,
        mma_operation_type: object,
        cluster_layout_vmnk: object,
    ) -> UMMAtoAsyncPipeline:
        """Create the pipeline as `create` does: accumulators are never multicast."""
        return UMMAtoAsyncPipeline.create(
            num_stages=num_stages,
            consumer=consumer_type,
            consumer_arv_count=consumer_arv_count,
            mma_operation_type=mma_operation_type,
            cluster_layout_vmnk=cluster_layout_vmnk,
        )


class TMAStorePipeline:
    """A pipeline of `stages` buffers in shared memory that threads fill and warp `tma_warp_id` stores with `tma_store`.

    `arv_count` threads, those of the warp among them, go through it together: `acquire_sync`, fill the buffer
    `get_index()`, `commit_sync`, `tma_store` in the warp, `release_advance`; `tail` at the end.
    """

    def __init__(self, stages: int, arv_count: int, barrier_id: int, tma_warp_id: int, index: object = 0) -> None:
        self.stages = stages
        self.arv_count = arv_count
        self.barrier_id = barrier_id
        self.tma_warp_id = tma_warp_id
        self.index: Int32 = Int32(index)
        self._barrier = NamedBarrier(barrier_id, arv_count)
        self._groups = PipelineTmaStore.create(num_stages=stages)

    def __extract_mlir_values__(self) -> list[Any]:
        return [self.index.ir_value()]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> TMAStorePipeline:
        rebuilt = object.__new__(type(self))
        rebuilt.__dict__.update(self.__dict__, index=Int32._make(values[0], True))
        return rebuilt

    def _in_tma_warp(self, act: Any) -> None:
        guarded(arch.make_warp_uniform(arch.warp_idx()) == self.tma_warp_id, act)

    def acquire_sync(self) -> TMAStorePipeline:
        """Wait until TMA has read the buffer."""
        self._in_tma_warp(self._groups.producer_acquire)
        self._barrier.arrive_and_wait()
        return self

    def get_index(self) -> Int32:
        """Return the index of the buffer."""
        return self.index

    def get_num_stages(self) -> int:
        """Return the number of buffers."""
        return self.stages

    def commit_sync(self) -> TMAStorePipeline:
        """Make what the threads wrote to the buffer visible to TMA, and wait until all have."""
        arch.fence_proxy("async.shared", space="cta")
        self._barrier.arrive_and_wait()
        return self

    def release_advance(self) -> TMAStorePipeline:
        """Commit the stores of the buffer, and go to the next one."""
        self._in_tma_warp(self._groups.producer_commit)
        self.index = (self.index + 1) % self.stages
        return self

    def tail(self) -> TMAStorePipeline:
        """Wait until TMA has read all buffers."""
        self._in_tma_warp(self._groups.producer_tail)
        return self
