"""Tasks: contiguous warps of a CTA that run one schedule."""

from __future__ import annotations

from typing import Any

from ..._support import lazy
from ...base_dsl.diagnostics import DSLNotImplemented, error, type_error
from ...base_dsl.typing import Boolean
from ...cute import arch
from .ranges import TracedStages
from .schedule_builder import Schedule

__dir__ = lazy.listing(__name__)
__all__ = ["Task"]


class Task:
    """`num_warps` warps from `warp_idx` on, which read the source resources and fill the destination resources.

    With `run_only_on_cta_id` only those of that CTA of the cluster do.

    Derived classes may have fields of their own, and methods that are bounds of the domain loop.
    """

    __kiln_static__ = True

    def __init__(
        self,
        src_resources: Any,
        dst_resources: Any,
        warp_idx: int,
        num_warps: int,
        *,
        schedule: Schedule,
        num_registers: int | None = None,
        name: str = "",
        debug_print: bool = False,
        iket_enable_profiling: bool = False,
        iket_profiling_stages: object = None,
        iket_profiling_resources: object = None,
        run_only_on_cta_id: int | None = None,
    ) -> None:
        for kind in type(self).__mro__[: type(self).__mro__.index(Task)]:
            for method in vars(kind):
                if method.startswith("_run_task_body"):
                    raise error(
                        DSLNotImplemented,
                        f"{kind.__name__}.{method} would run the task in its own way, and TaskManager does not call it",
                        hint="overrule init_variables, make_task_cache or the schedule",
                    )
        if not isinstance(schedule, Schedule):
            raise type_error(
                f"the schedule of task {name!r} is {type(schedule).__name__}", "call the @schedule function"
            )
        if warp_idx < 0 or num_warps < 1:
            raise type_error(f"task {name!r} has {num_warps} warps from {warp_idx} on", "at least one, from 0 on")
        self.src_resources: list[Any] = list(src_resources)
        self.dst_resources: list[Any] = list(dst_resources)
        self.warp_idx = warp_idx
        self.num_warps = num_warps
        self.schedule = schedule
        self.num_registers = num_registers
        self.name: str = name or schedule.name
        self.debug_print = debug_print
        options = iket_enable_profiling, iket_profiling_stages, iket_profiling_resources
        self.traced: TracedStages = TracedStages.of(*options, f"task {self.name!r}")
        self.run_only_on_cta_id = run_only_on_cta_id

    @property
    def warps(self) -> range:
        """The numbers of its warps."""
        return range(self.warp_idx, self.warp_idx + self.num_warps)

    def _run_task_body_impl(self) -> None:
        """Refuse to run: the task manager does. Libraries look at the signature, which says the release to them."""
        raise DSLNotImplemented("a task is run by TaskManager")

    def init_variables(self, context: object = None) -> None:
        """Prepare what work methods read of the task, where it begins. `context`: what all tasks share."""
        self.context = context

    def make_task_cache(self) -> object:
        """Return what work methods get as `task_cache` of their StageInfo; by default nothing."""
        return None

    def is_selected(self) -> Boolean:
        """Return whether the warp of this thread belongs to the task, in the CTA of the cluster that runs it."""
        warp = arch.make_warp_uniform(arch.warp_idx())
        is_mine = (warp >= self.warp_idx) & (warp < self.warp_idx + self.num_warps)
        if self.run_only_on_cta_id is None:
            return is_mine
        return is_mine & (arch.make_warp_uniform(arch.block_idx_in_cluster()) == self.run_only_on_cta_id)
