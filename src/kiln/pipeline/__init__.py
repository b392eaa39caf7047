"""Pipelines: stages in shared memory that some threads of a CTA fill and others empty, without stopping each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy
from .asynchronous import PipelineAsync, PipelineCpAsync, PipelineTmaAsync
from .barriers import (
    MbarrierArray,
    NamedBarrier,
    SyncObject,
    agent_sync,
    alloc_reserved_mbarrier,
    arrive,
    arrive_and_wait,
    arrive_unaligned,
    pipeline_init_arrive,
    pipeline_init_wait,
    sync,
    wait,
    wait_unaligned,
)
from .clc import PipelineClcFetchAsync
from .copy_groups import PipelineCpAsyncGroups, PipelineTmaStore, TmaStoreFence
from .groups import Agent, CooperativeGroup, PipelineOp, PipelineUserType
from .order import PipelineOrder
from .participants import PipelineConsumer, PipelineProducer
from .state import PipelineState, make_pipeline_state
from .umma import PipelineAsyncUmma, PipelineTmaMultiConsumersAsync, PipelineTmaUmma, PipelineUmmaAsync
from .work_broadcast import WorkBroadcast

__all__ = [
    "Agent",
    "CooperativeGroup",
    "MbarrierArray",
    "NamedBarrier",
    "PipelineAsync",
    "PipelineAsyncUmma",
    "PipelineClcFetchAsync",
    "PipelineConsumer",
    "PipelineCpAsync",
    "PipelineCpAsyncGroups",
    "PipelineOp",
    "PipelineOrder",
    "PipelineProducer",
    "PipelineState",
    "PipelineTmaAsync",
    "PipelineTmaMultiConsumersAsync",
    "PipelineTmaStore",
    "PipelineTmaUmma",
    "PipelineUmmaAsync",
    "PipelineUserType",
    "SyncObject",
    "TmaStoreFence",
    "WorkBroadcast",
    "agent_sync",
    "alloc_reserved_mbarrier",
    "arrive",
    "arrive_and_wait",
    "arrive_unaligned",
    "make_pipeline_state",
    "pipeline_init_arrive",
    "pipeline_init_wait",
    "sync",
    "wait",
    "wait_unaligned",
]


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, {})
