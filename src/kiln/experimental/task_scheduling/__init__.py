"""Kernels as tasks: warps that run schedules over resources, which the manager turns into loops, branches and barriers.

A resource stands for memory and has work methods; a schedule records the order in which a task calls them; a resource
with a pipeline is handed from the tasks that fill it to those that empty it. Everything here happens while tracing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from . import enums as enums
    from . import memory as memory
    from . import resources as resources
    from . import schedule_builder as schedule_builder
    from . import task as task
    from . import task_manager as task_manager
    from .enums import PipelineGroupMode as PipelineGroupMode
    from .enums import PipelineType as PipelineType
    from .enums import SignalingThreads as SignalingThreads
    from .enums import TileSchedulerType as TileSchedulerType
    from .enums import WorkAttr as WorkAttr
    from .memory import ResourceContext as ResourceContext
    from .memory import SmemAllocation as SmemAllocation
    from .memory import SmemAllocator as SmemAllocator
    from .memory import TmemAllocation as TmemAllocation
    from .memory import TmemAllocator as TmemAllocator
    from .resources import MemoryResource as MemoryResource
    from .resources import PdlLaunchBarrier as PdlLaunchBarrier
    from .resources import PdlWaitBarrier as PdlWaitBarrier
    from .resources import PipelineConfig as PipelineConfig
    from .resources import PipelineGroup as PipelineGroup
    from .resources import StageInfo as StageInfo
    from .resources import TaskLocalVariable as TaskLocalVariable
    from .resources import TileSchedulerConfig as TileSchedulerConfig
    from .resources import WorkQueue as WorkQueue
    from .resources import consumer_work as consumer_work
    from .resources import producer_work as producer_work
    from .schedule_builder import Schedule as Schedule
    from .schedule_builder import domain_loop as domain_loop
    from .schedule_builder import schedule as schedule
    from .schedule_builder import when_false as when_false
    from .schedule_builder import when_true as when_true
    from .schedule_builder import work_tile_loop as work_tile_loop
    from .task import Task as Task
    from .task_manager import TaskManager as TaskManager

_MODULES = {
    "enums": ("PipelineGroupMode", "PipelineType", "SignalingThreads", "TileSchedulerType", "WorkAttr"),
    "memory": ("ResourceContext", "SmemAllocation", "SmemAllocator", "TmemAllocation", "TmemAllocator"),
    "resources": (
        "MemoryResource",
        "PdlLaunchBarrier",
        "PdlWaitBarrier",
        "PipelineConfig",
        "PipelineGroup",
        "StageInfo",
        "TaskLocalVariable",
        "TileSchedulerConfig",
        "WorkQueue",
        "consumer_work",
        "producer_work",
    ),
    "schedule_builder": ("Schedule", "domain_loop", "schedule", "when_false", "when_true", "work_tile_loop"),
    "task": ("Task",),
    "task_manager": ("TaskManager",),
}

_PLACES = {name: f".{module}" for module, names in _MODULES.items() for name in names}
if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, _PLACES, tuple(_MODULES))
