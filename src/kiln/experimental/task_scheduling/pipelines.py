"""Pipelines of resources: their configs, which threads signal, and the barriers that the members of a group share."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, Any

from ... import pipeline
from ..._support import lazy, unavailable
from ...base_dsl.diagnostics import type_error
from ...cute import arch
from ...cute.layout.layout import Layout, make_layout, size
from ...pipeline import PipelineOp
from ...pipeline.arrivals import UmmaArrival
from ...pipeline.multicast import cta_group, is_leader
from .enums import PipelineGroupMode, PipelineType, SignalingThreads

_KINDS = {
    "async_async": "PipelineAsync",
    "tma_async": "PipelineTmaAsync",
    "tma_umma": "PipelineTmaUmma",
    "umma_async": "PipelineUmmaAsync",
    "async_umma": "PipelineAsyncUmma",
    "umma_umma": "PipelineUmmaAsync",
    "clc_fetch_async": "PipelineClcFetchAsync",
}
_ARRIVALS_OF_A_WARP = {"async": 32, "tma": 1, "umma": 1}


class PipelineConfig:
    """How the stages of a resource are handed over: who fills them and who empties them, and how many arrive."""

    __kiln_static__ = True

    def __init__(
        self,
        num_stages: int,
        num_bytes: Any,
        producer_group: Any,
        consumer_group: Any,
        pipeline_type: PipelineType,
        barrier_ptr: Any = None,
        cta_layout_vmnk: Any = None,
        producer_signaling_threads: Any = SignalingThreads.All,
        consumer_signaling_threads: Any = SignalingThreads.All,
        consumer_wait_signaling_threads: Any = None,
        umma_consumer_producer_op: PipelineOp = PipelineOp.AsyncThread,
        advance_on_wait: bool = False,
        advance_on_acquire: bool = False,
        num_bytes_per_warp_per_cta: object = None,
        mcast_mode_mn: Any = None,
        interleave_stride: object = 1,
        async_producer_op: PipelineOp = PipelineOp.AsyncThread,
    ) -> None:
        _ = num_bytes_per_warp_per_cta  # `num_bytes` counts the bytes of all warps and CTAs
        if isinstance(num_stages, bool) or not isinstance(num_stages, int) or num_stages < 1:
            raise type_error(f"num_stages of a pipeline config is {num_stages!r}", "a Python integer of at least 1")
        if not isinstance(pipeline_type, PipelineType):
            raise type_error(f"pipeline_type of a pipeline config is {pipeline_type!r}", "a PipelineType")
        self.kind = kind = pipeline_type.value
        self.num_stages = num_stages
        self.producer_group = producer_group
        self.consumer_group = consumer_group
        self.num_bytes = num_bytes
        self.cta_layout_vmnk = cta_layout_vmnk
        self.mcast_mode_mn = mcast_mode_mn
        self.producer_signaling_threads = producer_signaling_threads
        self.consumer_signaling_threads = consumer_signaling_threads
        self.consumer_wait_signaling_threads = consumer_wait_signaling_threads
        producer_op = umma_consumer_producer_op if pipeline_type is PipelineType.AsyncUmma else async_producer_op
        self.producer_op = producer_op
        self.barrier_ptr = barrier_ptr
        self.advances_early: dict[bool, bool] = {True: advance_on_acquire, False: advance_on_wait}
        """Whether a side goes on to the next stage when it gets one: the producers' and the consumers'."""
        if interleave_stride not in (1, (1, 1, 1, 1)):
            raise type_error(f"interleave_stride of a pipeline config is {interleave_stride!r}", "Kiln knows 1 only")
        if producer_op is not PipelineOp.AsyncThread and (kind, producer_op) != ("async_async", PipelineOp.AsyncLoad):
            raise type_error(
                f"producer_op of a config of the kind {kind} is {producer_op}",
                "AsyncLoad is for async_async: `cp.async`",
            )

    if TYPE_CHECKING:  # below they are made by one loop

        @staticmethod
        def _create(*, num_stages: int, producer_group: Any, consumer_group: Any, **rest: Any) -> PipelineConfig:
            """Return the config of a pipeline: who fills a stage, who empties it."""
            ...

        create_async_async_pipeline_cfg = create_tma_async_pipeline_cfg = create_tma_umma_pipeline_cfg = _create
        create_umma_async_pipeline_cfg = create_async_umma_pipeline_cfg = create_umma_umma_pipeline_cfg = _create
        create_clc_fetch_async_pipeline_cfg = _create

    @property
    def producer_kind(self) -> str:
        """Who fills a stage: `async`, `tma`, `umma` or `clc`."""
        return self.kind.split("_")[0]

    @property
    def consumer_kind(self) -> str:
        """Who empties a stage: `async` or `umma`."""
        return self.kind.split("_")[-1]

    @property
    def layout(self) -> Layout | None:
        """The layout of the cluster's CTAs, if the pipeline spans a cluster."""
        layout = self.cta_layout_vmnk
        return layout if layout is None or isinstance(layout, Layout) else make_layout(tuple(layout))

    @property
    def in_cluster(self) -> bool:
        """Whether the pipeline spans several CTAs."""
        layout = self.layout
        return layout is not None and size(layout) != 1

    def arrivals(self) -> int:
        """Return how many arrivals of producers fill a stage."""
        return self.producer_group.arrivals(_ARRIVALS_OF_A_WARP[self.producer_kind])

    def with_producers(self, arrivals: int) -> PipelineConfig:
        """Return the config of a pipeline whose stages so many arrivals fill."""
        copied = copy.copy(self)
        copied.producer_group = pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals)
        return copied

    def make(self, barriers: object, consuming_warps: int) -> Any:
        """Return the pipeline, with initialised barriers that nobody has synchronised on."""
        layout = self.layout
        kind = _KINDS[self.kind]
        how: dict[str, Any] = {
            "num_stages": self.num_stages,
            "producer_group": self.producer_group,
            "consumer_group": self.consumer_group,
            "barrier_storage": barriers if self.barrier_ptr is None else self.barrier_ptr,
            "defer_sync": True,
        }
        if self.producer_kind in ("tma", "clc"):
            how["tx_count"] = self.num_bytes
        if self.kind != "async_async":
            how["cta_layout_vmnk"] = layout
        if self.mcast_mode_mn is not None and self.producer_kind == "tma":
            how["mcast_mode_mn"] = self.mcast_mode_mn
        kind = "PipelineCpAsync" if self.producer_op is PipelineOp.AsyncLoad else kind
        created = getattr(pipeline, kind).create(**how)
        if self.kind == "tma_async" and not self.in_cluster:
            # a group of as many threads as the tasks have: all arrive; else one of each warp
            every = self.consumer_group.size == 32 * consuming_warps
            return dataclasses.replace(created, is_signaling_thread=None if every else arch.lane_idx() == 0)
        if self.kind == "umma_umma":
            arrival = UmmaArrival(cta_group(layout))
            created = dataclasses.replace(created, sync_object_empty=created.sync_object_empty.arrived_by(arrival))
            return dataclasses.replace(created, consumer_mask=created.producer_mask)
        return created

    def leads(self, producing: bool, waiting: bool = False) -> Any:
        """Return whether this CTA executes the barrier operations of a side: a bool, or a Boolean of the kernel.

        Consumers may have other threads for `wait` than for `release`.

        With `CtaLeader` only the leader of a pair of CTAs does, which issues the MMAs; of a cluster that asks for tiles
        together, its first CTA.
        """
        threads = self.producer_signaling_threads if producing else self.consumer_signaling_threads
        if waiting and not producing and self.consumer_wait_signaling_threads is not None:
            threads = self.consumer_wait_signaling_threads
        if SignalingThreads.CtaLeader not in threads or not self.in_cluster:
            return True
        if self.producer_kind == "clc":
            return arch.make_warp_uniform(arch.block_idx_in_cluster()) == 0
        return is_leader() if cta_group(self.layout).value == 2 else True

    def by_first_warp(self, producing: bool) -> bool:
        """Return whether only the first warp of a task arrives, for all of them."""
        threads = self.producer_signaling_threads if producing else self.consumer_signaling_threads
        return SignalingThreads.TaskWarpLeader in threads


def _config(kind: str) -> Any:
    names = ("num_stages", *(("num_bytes",) if kind[:3] in ("tma", "clc") else ()), "producer_group", "consumer_group")
    names = (*names, "cta_layout_vmnk", "producer_signaling_threads", "consumer_signaling_threads")

    def create(*args: Any, producer_op: PipelineOp = PipelineOp.AsyncThread, **how: Any) -> PipelineConfig:
        if len(args) > len(names):
            raise type_error(f"create_{kind}_pipeline_cfg() got {len(args)} arguments by position", ", ".join(names))
        how = {"num_bytes": None, **dict(zip(names, args, strict=False)), **how}
        ops = dict.fromkeys(("async_producer_op", "umma_consumer_producer_op"), producer_op)
        return PipelineConfig(pipeline_type=PipelineType(kind), **ops, **how)

    create.__doc__ = f"Return the config of a pipeline of the kind {kind}: who fills a stage, who empties it."
    create.__name__ = f"create_{kind}_pipeline_cfg"
    return staticmethod(create)


for _kind in _KINDS:
    setattr(PipelineConfig, f"create_{_kind}_pipeline_cfg", _config(_kind))


class Pipelines:
    """The pipelines by resource, and which members of groups share barriers with the first member."""

    __kiln_static__ = True

    def __init__(self) -> None:
        self.by_resource: dict[Any, Any] = {}
        self.full_followers: set[Any] = set()
        """Members that are full by the barrier of the first, which the first's arrivals complete (Fork)."""
        self.announced_late: set[Any] = set()
        """First members whose bytes are announced by `commit`: after the stages of all members are acquired (Fork)."""
        self.empty_followers: set[Any] = set()
        """Members that are empty by the barrier of the first (Merge, FusedMerge)."""

    def share(self, group: Any) -> None:
        """Let the members of a group use one barrier on the side that a single task drives."""
        first = self.by_resource[group.members[0]]
        if group.mode is PipelineGroupMode.Fork and first.sync_object_full.announces:
            self.announced_late.add(group.members[0])
        for member in group.members[1:]:
            pipe = self.by_resource[member]
            if group.mode is PipelineGroupMode.Fork:
                self.full_followers.add(member)
                pipe = dataclasses.replace(pipe, sync_object_full=first.sync_object_full)
            else:
                self.empty_followers.add(member)
                pipe = dataclasses.replace(pipe, sync_object_empty=first.sync_object_empty)
            if group.mode is PipelineGroupMode.FusedMerge:
                kind = pipe.sync_object_full.arrival
                pipe = dataclasses.replace(pipe, sync_object_full=first.sync_object_full.arrived_by(kind))
            self.by_resource[member] = pipe


def fused(group: Any) -> PipelineConfig:
    """Return the config of the first member of a FusedMerge group: all producers arrive at its barriers."""
    configs = [member.pipeline_config for member in group.members]
    return configs[0].with_producers(sum(config.arrivals() for config in configs))


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, {}, otherwise=unavailable.name)
