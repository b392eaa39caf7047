"""Pictures of task schedules: a row for each task with its operations in order, and arrows from commits to waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..._support import lazy
from ...cute.pictures.draw import cell_color, document, in_words
from ...cute.pictures.smem import rect, text_at
from .resources import PipelineGroup
from .schedule_builder import Block, Call
from .task import Task

__dir__ = lazy.listing(__name__)
__all__ = ["schedule_svg", "schedule_text"]

_WIDE = 118
_HIGH = 34
_GAP = 10
_LEFT = 190
_TOP = 46
_ROW = _HIGH + 46
_BLOCKS = {
    "domain": "loop",
    "tiles": "tiles",
    "first": "first iteration",
    "last": "last iteration",
    "every": "every",
    "when": "when",
    "skippable": "unless skipped",
}


def schedule_text(tasks: list[Task]) -> str:
    """Return the schedules of tasks as text: the warps of each, its blocks and operations in order."""
    lines: list[str] = []
    for task in tasks:
        registers = "" if task.num_registers is None else f", {task.num_registers} registers"
        lines.append(f"{task.name}: warps {task.warps.start} to {task.warps.stop - 1}{registers}")

        def walk(block: Block, depth: int) -> None:
            for node in block.body:
                lines.append("  " * depth + (str(node) if isinstance(node, Call) else _title(node)))
                if isinstance(node, Block):
                    walk(node, depth + 1)

        walk(task.schedule.root, 1)
    return "\n".join(lines)


def _title(block: Block) -> str:
    title = _BLOCKS[block.kind]
    if block.kind == "domain":
        bounds = [block.facts[name] for name in ("start", "end", "step")]
        shown = ", ".join(str(bound) if isinstance(bound, int) else "?" for bound in bounds)
        return f"{title} ({shown})"
    if block.kind == "every":
        return f"{title} {block.facts['period']} from {block.facts['start']}"
    return title


@dataclass
class _Row:
    """The boxes of a task: where each operation is, and how far each block reaches."""

    places: dict[int, tuple[Call, int]] = field(default_factory=dict)
    frames: list[tuple[str, int, int, int]] = field(default_factory=list)
    end: int = 0

    def add(self, block: Block, depth: int = 0) -> None:
        for node in block.body:
            if isinstance(node, Call):
                self.places[id(node)] = node, self.end
                self.end += 1
            else:
                first = self.end
                self.add(node, depth + 1)
                self.end = max(self.end, first + 1)
                self.frames.append((_title(node), first, self.end, depth))


def schedule_svg(tasks: list[Task], title: str = "tasks") -> str:
    """Return a picture of the schedules of tasks as an SVG document.

    Boxes of one resource have one colour; barrier operations are darker than work. An arrow goes from each commit to
    the wait that it ends, with the stages of the pipeline.
    """
    resources = list(dict.fromkeys(r for t in tasks for c in t.schedule.calls() for r in c.resource.members))
    rows: list[_Row] = []
    for task in tasks:
        rows.append(_Row())
        rows[-1].add(task.schedule.root)
    body: list[str] = []
    at: dict[tuple[str, Any], list[tuple[float, float, int]]] = {}
    for number, (task, row) in enumerate(zip(tasks, rows, strict=True)):
        y = _TOP + number * _ROW + 20
        warps = f"warps {task.warps.start}-{task.warps.stop - 1}" if task.num_warps > 1 else f"warp {task.warp_idx}"
        body.append(text_at(_LEFT - 14, y + 14, task.name, 14, anchor="end"))
        body.append(text_at(_LEFT - 14, y + 30, warps, 11, "#6b6b6b", "end"))
        for words, first, last, depth in row.frames:
            x = _x(first) - 5 + 2 * depth
            high = _HIGH + 20 - 4 * depth
            body.append(
                rect(x, y - 15 + 4 * depth, _x(last) - _GAP + 5 - 2 * depth - x, high, "none", "#999999", words)
            )
            body.append(text_at(x + 3, y - 4, words, 9, "#6b6b6b", "start"))
        for call, place in row.places.values():
            body += _box(call, _x(place), y, resources)
            for member in call.resource.members:
                at.setdefault((call.name, member), []).append((_x(place), y, number))
    for resource in resources:
        for x, y, number in at.get(("commit", resource), ()):
            for x2, y2, other in at.get(("wait", resource), ()):
                if other != number:
                    body.append(_arrow(x, y, x2, y2, resource))
    wide = _x(max((row.end for row in rows), default=1)) + 20
    about = in_words(schedule_text(tasks).splitlines())
    return document((wide, _TOP + len(rows) * _ROW + 10), title, body, about)


def _x(place: int) -> int:
    return _LEFT + place * (_WIDE + _GAP)


def _box(call: Call, x: float, y: float, resources: Sequence[object]) -> list[str]:
    color = cell_color(resources.index(call.resource.members[0]), 1 if call.work is None else 2, len(resources))
    kind = " of a group" if isinstance(call.resource, PipelineGroup) else ""
    work = "a barrier operation" if call.work is None else f"work of the {call.work.side}"
    parts = [rect(x, y, _WIDE, _HIGH, color, "#555555", f"{call}: {work}{kind}")]
    parts.append(text_at(x + _WIDE / 2, y + 14, call.resource.name[:16], 11))
    return [*parts, text_at(x + _WIDE / 2, y + 28, call.name[:16], 11)]


def _arrow(x: float, y: float, x2: float, y2: float, resource: Any) -> str:
    """Return an arrow from the box of a commit to that of a wait, with the number of stages."""
    down = y2 > y
    start = (x + _WIDE / 2, y + (_HIGH if down else 0))
    end = (x2 + _WIDE / 2, y2 + (0 if down else _HIGH))
    head = -6 if down else 6
    stages = resource.pipeline_config.num_stages if resource.pipeline_config is not None else 0
    text = text_at((start[0] + end[0]) / 2, (start[1] + end[1]) / 2, f"{resource.name}: {stages} stages", 9, "#333333")
    path = f"M{start[0]:g},{start[1]:g} L{end[0]:g},{end[1]:g} m-4,{head} l4,{-head} l4,{head}"
    return f'<path d="{path}" fill="none" stroke="#333333" stroke-width="1.2"/>{text}'
