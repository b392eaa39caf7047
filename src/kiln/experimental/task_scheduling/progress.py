"""Finds tasks that wait for each other: runs the barrier operations of all schedules while tracing, without their work.

An operation that can go on stays able to: running other tasks only adds commits and releases. So one order decides
whether all tasks end, and the interleavings need not be enumerated.
"""

from __future__ import annotations

import collections
from collections.abc import Iterator
from typing import Any

from ...base_dsl.diagnostics import type_error
from .resources import RESERVED, WorkQueue
from .schedule_builder import Block, Call
from .task import Task

_TILES = 2
"""The tiles that each task works on."""
_MOST = 1000
"""The iterations of a loop that are followed."""


class _Unknown(Exception):
    """Raised for a schedule whose operations depend on values of the running kernel."""


def check_progress(tasks: list[Task], graph: dict[Any, Any]) -> None:
    """Raise an error that names the tasks and the edges of the graph if the tasks cannot all end."""
    try:
        steps = _steps(tasks)
    except _Unknown:
        return
    sides = {task: {(c.name, r) for c, r in steps[task]} for task in tasks}
    at = dict.fromkeys(tasks, 0)
    done = collections.Counter[tuple[Task, str, Any]]()

    def blockers(task: Task) -> list[Task]:
        """Return the tasks whose commits or releases the next operation of a task waits for."""
        call, resource = steps[task][at[task]]
        if call.name not in ("acquire", "wait"):
            return []
        needed = done[task, call.name, resource] + 1
        arrives = "commit" if call.name == "wait" else "release"
        if call.name == "acquire":
            needed -= resource.pipeline_config.num_stages
        others = [t for t in tasks if (arrives, resource) in sides[t]]
        return [other for other in others if done[other, arrives, resource] < needed]

    moved = True
    while moved:
        moved = False
        for task in tasks:
            while at[task] < len(steps[task]) and not blockers(task):
                call, resource = steps[task][at[task]]
                done[task, call.name, resource] += 1
                at[task] = at[task] + 1
                moved = True
    stuck = [task for task in tasks if at[task] < len(steps[task])]
    if stuck:
        waits = [_said(task, *steps[task][at[task]], blockers(task), graph) for task in stuck]
        raise type_error(
            f"the tasks cannot all end: {'; '.join(waits)}",
            "more stages, another order of operations, or as many iterations on both sides of a resource",
        )


def _said(task: Task, call: Call, resource: Any, others: list[Task], graph: dict[Any, Any]) -> str:
    """Return what a task waits for, with the edges of the graph that the tasks it waits for belong to."""
    producing = call.name == "acquire"
    verb = "release" if producing else "commit"
    edges: list[str] = []
    for other in others:
        pairs = (
            [(resource, target) for target in other.dst_resources if resource in graph.get(target, ())]
            if producing
            else [(source, resource) for source in other.src_resources if source in graph.get(resource, ())]
        )
        edges += [f"{source.name!r} -> {target.name!r}" for source, target in pairs]
    names = ", ".join(repr(other.name) for other in others)
    where = f" (edge {', '.join(dict.fromkeys(edges))})" if edges else ""
    return f"task {task.name!r} waits at {resource.name}.{call.name}() for {names} to {verb}{where}"


def _steps(tasks: list[Task]) -> dict[Task, list[tuple[Call, Any]]]:
    """Return the barrier operations of each task in the order in which it executes them, with their resources."""
    blocks = {task: [block for block in task.schedule.blocks() if _has_barriers(block)] for task in tasks}
    if len({any(b.kind == "tiles" for b in blocks[t]) for t in tasks if _has_barriers(t.schedule.root)}) > 1:
        raise _Unknown  # how often a task goes on without tiles is up to its loops
    kinds = {block.kind for task in tasks for block in blocks[task]}
    loops = [block for task in tasks for block in blocks[task] if block.kind == "domain"]
    counts = {_count(loop) for loop in loops}
    if len(counts) == 1 and not kinds & {"first", "last", "every"}:
        # all loops are as long, and all iterations the same: a few rounds over the stages show what all do
        least = next(iter(counts))
        rounds = 2 * max((r.pipeline_config.num_stages for t in tasks for r in _pipelined(t)), default=0) + 1
        lengths = {id(loop): min(least, rounds) if isinstance(least, int) else rounds for loop in loops}
    elif all(isinstance(count, int) and count <= _MOST for count in counts):
        lengths = {id(loop): _count(loop) for loop in loops}
    else:
        raise _Unknown
    return {task: list(_walk(task.schedule.root, lengths, 0, 1)) for task in tasks}


def _pipelined(task: Task) -> list[Any]:
    return [r for r in (*task.src_resources, *task.dst_resources) if r.pipeline_config is not None]


def _has_barriers(block: Block) -> bool:
    return any(call.name in RESERVED if isinstance(call, Call) else _has_barriers(call) for call in block.body)


def _count(loop: Block) -> Any:
    """Return the iterations of a loop; if they are not known, what identifies its bounds."""
    bounds = [loop.facts[name] for name in ("start", "end", "step")]
    if all(isinstance(bound, int) for bound in bounds):
        return len(range(*bounds))
    return tuple(bound if isinstance(bound, int) or callable(bound) else id(bound) for bound in bounds)


def _walk(block: Block, lengths: dict[int, int], iteration: int, count: int) -> Iterator[tuple[Call, Any]]:
    for node in block.body:
        if isinstance(node, Call):
            static = isinstance(node.resource, WorkQueue) and node.resource.pipeline_config is None
            if node.name in RESERVED and not static and node.work is None:
                yield from ((node, member) for member in node.resource.members)
        elif not _has_barriers(node):
            continue
        elif node.kind == "domain":
            for number in range(lengths[id(node)]):
                yield from _walk(node, lengths, number, lengths[id(node)])
        elif node.kind == "tiles":
            for _ in range(_TILES):
                yield from _walk(node, lengths, iteration, count)
        elif node.kind == "when":
            raise _Unknown
        elif node.kind == "skippable" or _runs(node, iteration, count):
            yield from _walk(node, lengths, iteration, count)


def _runs(node: Block, iteration: int, count: int) -> bool:
    if node.kind == "first":
        return iteration == 0
    if node.kind == "last":
        return iteration == count - 1
    start = node.facts["start"]
    period = node.facts["period"]
    return iteration >= start and (iteration - start) % period == 0
