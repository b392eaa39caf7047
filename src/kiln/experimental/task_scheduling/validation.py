"""Checks of tasks, schedules and the dependency graph, while tracing. Errors name the task and the edge."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...hardware.limits import REGISTERS
from .enums import PipelineGroupMode
from .progress import check_progress
from .resources import PRODUCER_SIDE, RESERVED, PipelineGroup, WorkQueue
from .schedule_builder import Call, Token
from .task import Task


def validate(tasks: list[Task], graph: dict[Any, Any], *, progress: bool = True, waited: bool = False) -> None:
    """Raise an error for tasks that contradict each other, their schedules, their pipelines or the graph.

    `progress`: whether to look for tasks that wait for each other; `waited`: whether the kernel has waited for the grids
    it depends on, outside of the tasks.
    """
    _warps(tasks)
    for task in tasks:
        _roles(task, graph)
        for resource in {c.resource for c in task.schedule.calls() if not isinstance(c.resource, PipelineGroup)}:
            if resource.pipeline_config is not None and not isinstance(resource, WorkQueue):
                _brackets(task, resource, tasks, graph)
        _covered(task)
        _grouped(task)
        _written_before_read(task)
        _read_before_released(task, graph)
        _queues(task)
    _edges(tasks, graph)
    _counts(tasks)
    _clusters(tasks)
    _dependent_grids(tasks, waited)
    if progress:
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
    registers = [task.num_registers for task in tasks for _ in task.warps]
    counts = [count for count in registers if count is not None]
    if len(counts) == len(registers) and 32 * sum(counts) > REGISTERS:
        raise type_error(
            f"the tasks ask for {32 * sum(counts)} registers", f"num_registers of all threads: at most {REGISTERS}"
        )


def is_producing(call: Call, task: Task) -> bool:
    """Return whether an operation of a task is of the side that fills a resource.

    A task that only fills a resource also reads it as its producer: what it wrote there in the iteration before.
    """
    if call.work is None:
        return call.name in PRODUCER_SIDE
    resource = call.resource
    return call.work.side == "producer" or (resource in task.dst_resources and resource not in task.src_resources)


def _roles(task: Task, graph: dict[Any, Any]) -> None:
    for call in task.schedule.calls():
        if call.work is None and call.name not in RESERVED:
            continue
        if isinstance(call.resource, WorkQueue) or (call.work is not None and call.work.is_auxiliary):
            continue
        filling = call.work.side == "producer" if call.work is not None else call.name in PRODUCER_SIDE
        role = "dst_resources" if filling else "src_resources"
        for resource in call.resource.members:
            if call.work is not None and not filling and resource in graph.get(resource, ()):
                role = "dst_resources" if resource in task.dst_resources else role  # reused in place: its own source
            if resource not in getattr(task, role):
                raise type_error(
                    f"task {task.name!r} calls {call.resource.name}.{call.name}(), and {resource.name!r} is not in its {role}"
                )


def _brackets(task: Task, resource: Any, tasks: list[Task], graph: dict[Any, Any]) -> None:
    """Raise an error for work on a stage that the task does not hold, and stages that it never hands over."""
    for opens, closes, side in (("acquire", "commit", True), ("wait", "release", False)):
        calls = [c for c in task.schedule.calls() if resource in c.resource.members and is_producing(c, task) == side]
        if _is_shared(task, resource, opens, closes, {c.name for c in calls if c.work is None}, tasks, graph):
            continue
        held = 0
        for call in calls:
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


def _is_shared(
    task: Task, resource: Any, opens: str, closes: str, names: set[str], tasks: list[Task], graph: dict[Any, Any]
) -> bool:
    """Return whether one task gets the stages of a resource and another one hands them over.

    Consumers do so if the task that releases waits for something made of the resource instead; producers if the config
    says `advance_on_acquire`.
    """
    if (opens in names) == (closes in names):
        return False
    other = closes if opens in names else opens
    if not any(
        c.name == other and c.work is None and resource in c.resource.members
        for t in tasks
        if t is not task
        for c in t.schedule.calls()
    ):
        return False
    if opens in names or opens == "acquire":
        return opens == "wait" or resource.pipeline_config.advances_early[True]
    waited = {r for c in task.schedule.calls() if c.name == "wait" and c.work is None for r in c.resource.members}
    return any(resource in _upstream(r, graph) for r in waited)


def _upstream(resource: object, graph: dict[Any, Any]) -> set[Any]:
    """Return all that a resource is made of, directly or not."""
    sources: set[Any] = set()
    open_ = [resource]
    while open_:
        for source in graph.get(open_.pop(), ()):
            if source not in sources:
                sources.add(source)
                open_.append(source)
    return sources


def _written_before_read(task: Task) -> None:
    """Raise an error for a value that work takes and that no work of the task has returned before."""
    written: set[str] = set()
    for call in task.schedule.calls():
        for value in (*call.args, *call.kwargs.values()):
            if isinstance(value, Token) and value.key not in written:
                raise type_error(
                    f"task {task.name!r} passes {value.key} to {call}, and no work before it returns that",
                    "a value comes from a consumer_work of the same schedule",
                )
        if call.work is not None:
            written |= {Token(call.resource, slot).key for slot in call.work.slots}


_ENGINES = ("tma", "umma", "clc")


def _read_before_released(task: Task, graph: dict[Any, Any]) -> None:
    """Raise an error for a source that is released before an engine that reads it has been given its work."""
    released: set[Any] = set()
    for call in task.schedule.calls():
        members = set(call.resource.members)
        if call.work is None:
            released = released | members if call.name == "release" else released - members
        elif is_producing(call, task) and not call.work.is_auxiliary:
            config = call.resource.pipeline_config
            for source in graph.get(call.resource, ()):
                if config is not None and config.producer_kind in _ENGINES and source in released:
                    raise type_error(
                        f"task {task.name!r} calls {call} after {source.name}.release() (edge {source.name!r} -> "
                        f"{call.resource.name!r})",
                        "an engine reads the stage later: release it after the work",
                    )


def _queues(task: Task) -> None:
    """Raise an error for the operations of a work queue that do not run once for each tile."""
    for block in task.schedule.blocks():
        for call in block.body if block.kind != "tiles" else ():
            if isinstance(call, Call) and isinstance(call.resource, WorkQueue) and call.name != "fetch_work_tile":
                raise type_error(
                    f"task {task.name!r} calls {call} in a {block.kind} block", "directly in the work_tile_loop"
                )


def _clusters(tasks: list[Task]) -> None:
    """Raise an error for pipelines that see the cluster differently."""
    seen: dict[str, Any] = {}
    for resource in dict.fromkeys(r for t in tasks for r in (*t.src_resources, *t.dst_resources) if r.pipeline_config):
        layout = resource.pipeline_config.layout
        if layout is not None:
            seen.setdefault(str(layout.shape), resource)
    if len(seen) > 1:
        said = ", ".join(f"{resource.name!r}: {shape}" for shape, resource in seen.items())
        raise type_error(f"pipelines have different cta_layout_vmnk ({said})", "a kernel has one cluster")


def _dependent_grids(tasks: list[Task], waited: bool) -> None:
    """Raise an error for a task that lets dependent grids start, if no task waits for those before, or only later."""
    names = {task: [c.name for c in task.schedule.calls() if c.work is None] for task in tasks}
    for task, calls in names.items():
        if waited or "launch_griddep" not in calls:
            continue
        own = "wait_griddep" in calls
        late = own and calls.index("wait_griddep") > calls.index("launch_griddep")
        if late or not any("wait_griddep" in other for other in names.values()):
            raise type_error(
                f"task {task.name!r} calls launch_griddep() and {'waits later' if late else 'no task waits'}",
                "wait_griddep() before it, or TaskManager(assume_pdl_wait_completed=True)",
            )


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
    resources = {*graph, *(source for sources in graph.values() for source in sources)}
    for task in tasks:
        for resource in (*task.src_resources, *task.dst_resources):
            if resource not in resources:
                raise type_error(f"resource {resource.name!r} of task {task.name!r} is not in the dependency graph")
    for target, sources in graph.items():
        for source in sources:
            if source is target:
                _in_place(tasks, source)
                continue
            if not any(source in task.src_resources and target in task.dst_resources for task in tasks):
                raise type_error(
                    f"the edge {source.name!r} -> {target.name!r} of the dependency graph belongs to no task",
                    "a task has the first among its src_resources and the second among its dst_resources",
                )


def _in_place(tasks: list[Task], resource: Any) -> None:
    """Raise an error for a resource that is made of itself and that tasks do not hand to each other in turns."""
    config = resource.pipeline_config
    both = all(any(resource in getattr(t, role) for t in tasks) for role in ("src_resources", "dst_resources"))
    if config is None or config.consumer_kind != "async" or not both:
        raise type_error(
            f"the edge {resource.name!r} -> {resource.name!r} of the dependency graph",
            "a resource that is reused in place has a pipeline with async consumers, and tasks on both sides",
        )


def warps_of(tasks: list[Task], resource: object, *, producing: bool) -> int:
    """Return the warps of the tasks that hand over the stages of a resource: its producers, or its consumers.

    Of consumers that share it, those that release it.
    """
    role, closes = ("dst_resources", "commit") if producing else ("src_resources", "release")
    sides = [task for task in tasks if resource in getattr(task, role)]
    handing = [t for t in sides if any(c.name == closes and resource in c.resource.members for c in t.schedule.calls())]
    return sum(task.num_warps for task in handing or sides)


def _counts(tasks: list[Task]) -> None:
    sides = (("producer", "dst_resources"), ("consumer", "src_resources"))
    pipelined = dict.fromkeys(r for t in tasks for r in (*t.src_resources, *t.dst_resources) if r.pipeline_config)
    for resource in pipelined:
        config = resource.pipeline_config
        kinds = config.producer_kind, config.consumer_kind
        for (side, role), kind in zip(sides, kinds, strict=True):
            warps = warps_of(tasks, resource, producing=side == "producer")
            arrivals = getattr(config, f"{side}_group").size
            names = ", ".join(repr(t.name) for t in tasks if resource in getattr(t, role)) or "no task"
            if not warps:
                raise type_error(f"resource {resource.name!r} has a pipeline and no {side} task")
            if (
                kind == "async"
                and not config.in_cluster
                and isinstance(arrivals, int)
                and arrivals not in (warps, 32 * warps)
            ):
                raise type_error(
                    f"the {side}_group of {resource.name!r} has {arrivals} arrivals, and its tasks ({names}) have {warps} warps",
                    f"{32 * warps} threads, or {warps} if one thread of each warp arrives",
                )
