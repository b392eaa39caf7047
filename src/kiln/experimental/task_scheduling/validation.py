"""Checks of tasks, schedules and the dependency graph, while tracing. Errors name the task and the edge."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from .enums import PipelineGroupMode
from .progress import check_progress
from .resources import PRODUCER_SIDE, RESERVED, PipelineGroup, WorkQueue
from .schedule_builder import Call
from .task import Task


def validate(tasks: list[Task], graph: dict[Any, Any]) -> None:
    """Raise an error for tasks that contradict each other, their schedules, their pipelines or the graph."""
    _warps(tasks)
    for task in tasks:
        _roles(task)
        for resource in {c.resource for c in task.schedule.calls() if not isinstance(c.resource, PipelineGroup)}:
            if resource.pipeline_config is not None and not isinstance(resource, WorkQueue):
                _brackets(task, resource)
        _covered(task)
        _grouped(task)
    _edges(tasks, graph)
    _counts(tasks)
    check_progress(tasks, graph)


def _warps(tasks: list[Task]) -> None:
    owner: dict[int, Task] = {}
    for task in tasks:
        for warp in task.warps:
            if warp in owner:
                raise type_error(f"warp {warp} belongs to the tasks {owner[warp].name!r} and {task.name!r}")
            owner[warp] = task
    for first in range(0, max(owner, default=0) + 1, 4):
        group = [owner[w] for w in range(first, first + 4) if w in owner]
        if len({task.num_registers for task in group}) > 1:
            names = ", ".join(f"{t.name!r}: {t.num_registers}" for t in dict.fromkeys(group))
            raise type_error(
                f"tasks of the warpgroup of warp {first} have different num_registers ({names})",
                "setmaxnreg is for whole warpgroups: give them one number, or pad with a task",
            )


def is_producing(call: Call) -> bool:
    """Return whether an operation is of the side that fills a resource."""
    return call.work.side == "producer" if call.work is not None else call.name in PRODUCER_SIDE


def _roles(task: Task) -> None:
    for call in task.schedule.calls():
        if call.work is None and call.name not in RESERVED:
            continue
        if isinstance(call.resource, WorkQueue) or (call.work is not None and call.work.is_auxiliary):
            continue
        role = "dst_resources" if is_producing(call) else "src_resources"
        for resource in call.resource.members:
            if resource not in getattr(task, role):
                raise type_error(
                    f"task {task.name!r} calls {call.resource.name}.{call.name}(), and {resource.name!r} is not in its {role}"
                )


def _brackets(task: Task, resource: Any) -> None:
    """Raise an error for work on a stage that the task does not hold, and stages that it never hands over."""
    for opens, closes, side in (("acquire", "commit", True), ("wait", "release", False)):
        held = 0
        for call in task.schedule.calls():
            if resource not in call.resource.members or is_producing(call) != side:
                continue
            held += (call.name == opens) - (call.name == closes)
            if held < 0:
                raise type_error(f"task {task.name!r} calls {call.resource.name}.{closes}() before {opens}()")
            if call.work is not None and not call.work.is_auxiliary and not held:
                raise type_error(
                    f"task {task.name!r} calls {resource.name}.{call.name}() on a stage that it does not hold",
                    f"between {opens}() and {closes}()",
                )
        if held:
            raise type_error(f"task {task.name!r} calls {resource.name}.{opens}() without {closes}()")


def _covered(task: Task) -> None:
    """Raise an error for a resource of a task that its schedule does not use."""
    used = {member for call in task.schedule.calls() for member in call.resource.members}
    used |= {block.facts["queue"] for block in task.schedule.blocks() if block.kind == "tiles"}
    for resource in (*task.src_resources, *task.dst_resources):
        if resource not in used:
            raise type_error(f"resource {resource.name!r} of task {task.name!r} is not used by its schedule")


def _grouped(task: Task) -> None:
    """Raise an error for a member of a group that is handed over by itself on the side that the members share."""
    calls = task.schedule.calls()
    for group in {call.resource for call in calls if isinstance(call.resource, PipelineGroup)}:
        shared = "commit" if group.mode is PipelineGroupMode.Fork else "release"
        for call in calls:
            if call.name == shared and call.resource in group.members:
                raise type_error(
                    f"task {task.name!r} calls {call}, and {call.resource.name!r} is a member of {group.name!r}",
                    f"{group.mode.name} groups are handed over at once: {group.name}.{shared}()",
                )
            if call.resource is group and call.name in ("commit", "release") and call.name != shared:
                raise type_error(
                    f"task {task.name!r} calls {call}, and {group.name!r} is a {group.mode.name} group",
                    f"each member has its own {call.name}()",
                )


def _edges(tasks: list[Task], graph: dict[Any, Any]) -> None:
    known = {*graph, *(source for sources in graph.values() for source in sources)}
    for task in tasks:
        for resource in (*task.src_resources, *task.dst_resources):
            if resource not in known:
                raise type_error(f"resource {resource.name!r} of task {task.name!r} is not in the dependency graph")
    for target, sources in graph.items():
        for source in sources:
            if not any(source in task.src_resources and target in task.dst_resources for task in tasks):
                raise type_error(
                    f"the edge {source.name!r} -> {target.name!r} of the dependency graph belongs to no task",
                    "a task has the first among its src_resources and the second among its dst_resources",
                )


def warps_of(tasks: list[Task], resource: Any, role: str) -> int:
    """Return the warps of the tasks that have a resource on a side (`src_resources`: they empty it)."""
    return sum(task.num_warps for task in tasks if resource in getattr(task, role))


def _counts(tasks: list[Task]) -> None:
    sides = (("producer", "dst_resources"), ("consumer", "src_resources"))
    pipelined = dict.fromkeys(r for t in tasks for r in (*t.src_resources, *t.dst_resources) if r.pipeline_config)
    for resource in pipelined:
        config = resource.pipeline_config
        kinds = config.producer_kind, config.consumer_kind
        for (side, role), kind in zip(sides, kinds, strict=True):
            warps, wanted = warps_of(tasks, resource, role), getattr(config, f"{side}_group").size
            names = ", ".join(repr(t.name) for t in tasks if resource in getattr(t, role)) or "no task"
            if not warps:
                raise type_error(f"resource {resource.name!r} has a pipeline and no {side} task")
            if (
                kind == "async"
                and not config.in_cluster
                and isinstance(wanted, int)
                and wanted not in (warps, 32 * warps)
            ):
                raise type_error(
                    f"the {side}_group of {resource.name!r} has {wanted} arrivals, and its tasks ({names}) have {warps} warps",
                    f"{32 * warps} threads, or {warps} if one thread of each warp arrives",
                )
