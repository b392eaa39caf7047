"""Kernels as tasks: warps that run schedules over resources, which the manager turns into loops, branches and barriers.

A resource stands for memory and has work methods; a schedule records the order in which a task calls them; a resource
with a pipeline is handed from the tasks that fill it to those that empty it. Everything here happens while tracing.
"""

from __future__ import annotations

from ..._support import lazy

_MODULES = {
    "enums": ("PipelineGroupMode", "SignalingThreads", "WorkAttr"),
    "memory": ("SmemAllocation", "SmemAllocator", "TmemAllocation", "TmemAllocator"),
    "resources": (
        "MemoryResource", "PdlLaunchBarrier", "PdlWaitBarrier", "PipelineConfig", "PipelineGroup", "StageInfo",
        "TaskLocalVariable", "TileSchedulerConfig", "WorkQueue", "consumer_work", "producer_work",
    ),
    "schedule_builder": ("Schedule", "domain_loop", "schedule", "when_false", "when_true", "work_tile_loop"),
    "task": ("Task",),
    "task_manager": ("TaskManager",),
}  # fmt: skip

_PLACES = {name: f".{module}" for module, found in _MODULES.items() for name in found}
__getattr__ = lazy.names(__name__, _PLACES, tuple(_MODULES))
