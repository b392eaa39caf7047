"""Which operations of tasks are ranges in a trace of the kernel (`kiln profile --prof-type trace`), and their names."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ...base_dsl.diagnostics import type_error
from ...cute.kernel_ranges import kernel_range

if TYPE_CHECKING:
    from .schedule_builder import Call

_OPERATIONS = ("TryAcquire", "Acquire", "Commit", "TryWait", "Wait", "Release", "Work")
STAGES = tuple(f"{side}{operation}" for side in ("Producer", "Consumer") for operation in _OPERATIONS)
"""The stages of a schedule: who does something with a resource, and what."""

_PLAIN = {name.lower() for name in STAGES}


def stage_of(call: Call, producing: bool) -> str:
    """Return the stage of a schedule that an operation is, such as `ConsumerWait`."""
    side = "Producer" if producing else "Consumer"
    return f"{side}{'Work' if call.work is not None else call.name.title().replace('_', '')}"


@dataclasses.dataclass(frozen=True)
class TracedStages:
    """What `iket_enable_profiling`, `iket_profiling_stages` and `iket_profiling_resources` ask for."""

    enabled: bool = False
    stages: frozenset[str] | None = None
    """Stages in lower case; None: all of them."""
    resources: frozenset[str] | None = None
    """Names of resources; None: all of them."""

    @classmethod
    def of(cls, enabled: bool, stages: object, resources: object, where: str) -> TracedStages:
        """Return what the options of a task, or of a task manager, ask for."""
        stage_names = None if stages is None else [_plain(stage) for stage in _several(stages, "stages", where)]
        for name in stage_names or ():
            if name not in _PLAIN:
                message = f"iket_profiling_stages of {where} has {name!r}"
                raise type_error(message, f"stages are {', '.join(STAGES)}")
        names = None if resources is None else frozenset(map(str, _several(resources, "resources", where)))
        return cls(bool(enabled), None if stage_names is None else frozenset(stage_names), names)

    def or_of(self, task: TracedStages) -> TracedStages:
        """Return what a task is to record: its own options count before those of its manager."""
        return TracedStages(
            self.enabled or task.enabled,
            self.stages if task.stages is None else task.stages,
            self.resources if task.resources is None else task.resources,
        )

    def around_task(self, name: str) -> contextlib.AbstractContextManager[None]:
        """Return the range around all that the task of a name does."""
        return kernel_range(name or "task") if self.enabled else contextlib.nullcontext()

    def around(self, call: Call, producing: bool) -> contextlib.AbstractContextManager[None]:
        """Return the range around an operation of the side that fills the resource, or of the other."""
        stage = stage_of(call, producing)
        name = call.resource.name
        taken = self.stages is None or stage.lower() in self.stages
        if self.enabled and taken and (self.resources is None or name in self.resources):
            return kernel_range(f"{name} {stage}")
        return contextlib.nullcontext()


def _several(values: object, what: str, where: str) -> Collection[object]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise type_error(f"iket_profiling_{what} of {where} is {values!r}", "a set, for example frozenset({...})")
    return list(values)


def _plain(stage: object) -> str:
    """Return the name of a stage, which may be a member of an enumeration, without underscores."""
    return str(getattr(stage, "name", stage)).replace("_", "").lower()
