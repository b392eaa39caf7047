"""The task manager: checks tasks, allocates shared memory and barriers, and emits a branch and loops for each task."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from ... import cute, pipeline, utils
from ..._support import lazy
from ...base_dsl.diagnostics import DSLBaseError, DSLWarning, type_error
from ...base_dsl.ranges import Range as dynamic_range
from ...base_dsl.typing import Boolean, NumericMeta
from ...cute import arch
from ...cute.atoms.copying import guarded
from ...cute.tensor.array import Array
from ...cute.tensor.pointer import Pointer
from ...cute.tensor.tensor_ssa import TensorSSA
from ...hardware.limits import registers_at_start
from ...pipeline.asynchronous import unless
from .enums import PipelineGroupMode
from .memory import ResourceContext, SmemAllocator
from .picture import schedule_svg, schedule_text
from .pipelines import Pipelines, fused
from .ranges import TracedStages
from .resources import RESERVED, MemoryResource, PipelineGroup, StageInfo, TaskLocalVariable, WorkQueue, emitting
from .schedule_builder import Block, Call, Token
from .task import Task
from .validation import is_producing, validate, warps_of

__dir__ = lazy.listing(__name__)
__all__ = ["TaskManager"]


watchers: list[Callable[[TaskManager], None]] = []
"""Functions that see each manager that a program makes."""


class TaskManager:
    """The tasks of a kernel, and which resource is made from which: `{target: [sources]}`."""

    __kiln_static__ = True

    def __init__(
        self,
        tasks: Any,
        resource_dependency_graph: dict[Any, Any],
        *,
        smem_allocator: SmemAllocator | None = None,
        tmem_allocator: Any = None,
        skip_validation: bool = False,
        verbose: bool = False,
        tmem_ptr_i32: Any = None,
        smem_capacity_bytes: int | None = None,
        tmem_capacity_columns: int | None = None,
        exhaustive_deadlock_race_check: bool = True,
        assume_pdl_wait_completed: bool = False,
        dma_consumer_release_labels: object = None,
        iket_enable_profiling: bool = False,
        iket_profiling_stages: object = None,
        iket_profiling_resources: object = None,
    ) -> None:
        options = iket_enable_profiling, iket_profiling_stages, iket_profiling_resources
        self.traced: TracedStages = TracedStages.of(*options, "TaskManager")
        _ = dma_consumer_release_labels  # for checks of NVIDIA's; a schedule says when stages are released
        self.tasks: list[Task] = list(tasks)
        self.graph: dict[Any, Any] = dict(resource_dependency_graph)
        self.smem_allocator: SmemAllocator = smem_allocator or SmemAllocator()
        self.tmem_allocator = tmem_allocator
        if smem_allocator is None:
            self.smem_allocator.compute_layout()
        self._tmem_ptr_i32 = tmem_ptr_i32
        self._checks: dict[str, bool] = {
            "progress": exhaustive_deadlock_race_check,
            "waited": assume_pdl_wait_completed,
        }
        try:
            validate(self.tasks, self.graph, **self._checks)
            self._fit(smem_capacity_bytes, tmem_capacity_columns)
        except DSLBaseError as wrong:
            if not skip_validation:
                raise
            warnings.warn(str(wrong), DSLWarning, stacklevel=2)
        if verbose:
            print(schedule_text(self.tasks))
        for look in watchers:
            look(self)
        self._pipelines: Pipelines | None = None

    def _fit(self, smem: int | None, tmem: int | None) -> None:
        """Raise an error for more memory than given capacities."""
        columns = 0 if self.tmem_allocator is None else self.tmem_allocator.num_columns
        for name, used, most, unit in (
            ("shared", self.smem_allocator.num_bytes, smem, "bytes"),
            ("tensor", columns, tmem, "columns"),
        ):
            if most is not None and used > most:
                raise type_error(f"the resources take {used} {unit} of {name} memory", f"at most {most}, as given")

    @property
    def resources(self) -> list[Any]:
        """The resources of all tasks."""
        return list(dict.fromkeys(r for t in self.tasks for r in (*t.src_resources, *t.dst_resources)))

    def print_and_verify(self) -> None:
        """Check the tasks, and print their schedules."""
        validate(self.tasks, self.graph, **self._checks)
        print(schedule_text(self.tasks))

    def picture(self, title: str = "tasks") -> str:
        """Return a picture of the schedules, as an SVG document."""
        return schedule_svg(self.tasks, title)

    def setup_resources_and_tasks(self) -> None:
        """Allocate shared memory and initialise barriers; the caller synchronises the CTA (or cluster) after it."""
        self.smem_allocator.allocate()
        self._pipelines = pipelines = Pipelines()
        calls = [call for task in self.tasks for call in task.schedule.calls()]
        groups = list(dict.fromkeys(call.resource for call in calls if isinstance(call.resource, PipelineGroup)))
        fused_first = {g.members[0]: fused(g) for g in groups if g.mode is PipelineGroupMode.FusedMerge}
        for resource in self.resources:
            config = fused_first.get(resource, resource.pipeline_config)
            if config is None:
                continue
            place = self.smem_allocator.barriers.get(resource)
            storage = None if place is None else Array(self.smem_allocator.get(place), dtype=cute.Int64).data_ptr()
            resource._barriers = storage, warps_of(self.tasks, resource, producing=False)
            pipelines.by_resource[resource] = resource.create_pipeline(config)
            del resource._barriers
        for group in groups:
            pipelines.share(group)

    def run(self) -> None:
        """Emit each task under the condition that the warp belongs to it."""
        if self._pipelines is None:
            raise type_error("TaskManager.run() is called before setup_resources_and_tasks()")
        word = self.smem_allocator.tmem_ptr_i32 if self._tmem_ptr_i32 is None else self._tmem_ptr_i32
        context = ResourceContext(self.smem_allocator.smem_base, word)
        threads = 32 * (max(w for t in self.tasks for w in t.warps) + 1)
        for task in self.tasks:
            before = {r: dict(vars(r)) for r in self.resources}
            run = _Run(task, self._pipelines, context, threads, self.traced.or_of(task.traced))
            emitting.append(run)
            try:
                guarded(task.is_selected(), run.emit)
            finally:
                emitting.pop()
            for resource, fields in before.items():  # what a task sets in its resources is the task's own
                vars(resource).clear()
                vars(resource).update(fields)


class _Run:
    """A task while it is emitted: the variables, pipeline states and tile that its loops carry."""

    def __init__(
        self, task: Task, pipelines: Pipelines, context: ResourceContext, threads: int, traced: TracedStages
    ) -> None:
        self.task = task
        self.traced = traced
        self.context = context
        self.resources = list(dict.fromkeys((*task.src_resources, *task.dst_resources)))
        self.pipelines = pipelines
        self.threads = threads
        self.variables: dict[str, Any] = {}
        self.states: dict[str, Any] = {}
        self.tokens: dict[str, Any] = {}
        self.scheduler: Any = None
        self.work_tile: Any = None
        self.bounds: tuple[Any, ...] | None = None
        """The start, end and step of the domain loop, for a tile."""

    def emit(self) -> None:
        """Emit the whole task."""
        with self.traced.around_task(self.task.name):
            self._emit()

    def _emit(self) -> None:
        count = self.task.num_registers
        if count is not None:
            before = registers_at_start(self.threads, 1)
            (arch.setmaxregister_decrease if count <= before else arch.setmaxregister_increase)(count)
        self.task.init_variables(self.context)
        calls = self.task.schedule.calls()
        for call in calls:
            for slot in call.work.slots if call.work is not None else ():
                variable = getattr(call.resource, slot, None)
                if not isinstance(variable, TaskLocalVariable):
                    raise type_error(f"{call.resource.name}.{slot} is no TaskLocalVariable, and {call} returns it")
                self.variables[Token(call.resource, slot).key] = variable.default
            for member in call.resource.members if call.name in RESERVED or call.work is not None else ():
                self._prepare(member, is_producing(call, self.task))
        if all(node.kind != "tiles" for node in self.task.schedule.blocks()):
            self.work_tile = utils.WorkTileInfo(arch.block_idx(), True)
            self.start_tile()
        self.block(self.task.schedule.root, None)
        for resource in self.resources:  # CTAs of the cluster may still arrive at the barriers of this one
            key = _key(resource, True)
            config = resource.pipeline_config
            if key in self.states and config.in_cluster:
                _tail(self, self.pipelines.by_resource[resource], key, config.leads(True))

    def _prepare(self, resource: object, producing: bool) -> None:
        pipe = self.pipelines.by_resource.get(resource)
        key = _key(resource, producing)
        if pipe is None or key in self.states:
            return
        user = pipeline.PipelineUserType.Producer if producing else pipeline.PipelineUserType.Consumer
        self.states[key] = pipeline.make_pipeline_state(user, pipe.num_stages)
        self.tokens[key] = None
        if self._advances_early(resource, producing):
            for more in (_HELD, _CLOSING):
                self.states[key + more] = pipeline.make_pipeline_state(user, pipe.num_stages)

    def _advances_early(self, resource: Any, producing: bool) -> bool:
        """Return whether `acquire` or `wait` goes on to the next stage; a task that only waits has no `release` to do it."""
        if producing or resource.pipeline_config.advances_early[False]:
            return resource.pipeline_config.advances_early[producing]
        names = {c.name for c in self.task.schedule.calls() if c.work is None and resource in c.resource.members}
        return "wait" in names and "release" not in names

    # --- blocks ------------------------------------------------------------------------------------------------------

    def block(self, block: Block, loop: object) -> None:
        """Emit the operations of a block; `loop` is the offset, start, end and step of the domain loop around it."""
        for node in block.body:
            if isinstance(node, Call):
                self.call(node, loop)
            elif node.kind == "domain":
                assert self.bounds is not None
                _domain(self, node, *self.bounds, node.facts["unroll"])
            elif node.kind == "tiles":
                self._start_tiles(node.facts["queue"])
                _tiles(self, node, loop)
            else:
                _branch(self, node, self._condition(node, loop), loop)

    def start_tile(self) -> None:
        """Compute the bounds of the domain loop, which work before and after it is told, too."""
        for node in self.task.schedule.blocks():
            if node.kind == "domain":
                self.bounds = tuple(self._bound(node.facts[name]) for name in ("start", "end", "step"))

    def _bound(self, bound: object) -> Any:
        return bound(self.task, self.work_tile.tile_idx) if callable(bound) else bound

    def _start_tiles(self, queue: WorkQueue) -> None:
        config = queue.tile_scheduler_config
        where = config.params, arch.block_idx(), arch.grid_dim()
        if config.kind == "static":
            self.scheduler = utils.StaticPersistentTileScheduler.create(*where)
        else:
            self.scheduler = utils.ClcDynamicPersistentTileScheduler.create(*where, config.response_ptr)
        self.work_tile = self.scheduler.initial_work_tile_info()

    def _condition(self, node: Block, loop: Any) -> Any:
        facts = node.facts
        if node.kind == "when":
            value = self.variables[facts["condition"].key]
            return Boolean(value != 0 if not isinstance(value, Boolean) else value) == Boolean(facts["holds"])
        if node.kind == "skippable":
            return Boolean(self._skips(facts["loop"].facts)) == Boolean(False)
        offset, start, end, step = loop
        if node.kind == "first":
            return offset == start
        if node.kind == "last":
            return offset + step <= end if isinstance(step, int) and step < 0 else offset + step >= end
        count = (offset - start) // step
        return (count >= facts["start"]) & ((count - facts["start"]) % facts["period"] == 0)

    def _skips(self, facts: dict[str, Any]) -> Any:
        skip = facts["skip_if"]
        queue = facts["queue"]
        if skip is None:
            return False
        function = getattr(skip, "function", skip)
        if function.__code__.co_argcount == 1:
            return skip(self.work_tile)
        return skip(queue, self.work_tile)

    # --- operations --------------------------------------------------------------------------------------------------

    def call(self, call: Call, loop: object) -> None:
        """Emit an operation."""
        with self.traced.around(call, is_producing(call, self.task)):
            self._call(call, loop)

    def _call(self, call: Call, loop: object) -> None:
        if call.work is not None:
            self._work(call, loop)
        elif isinstance(call.resource, WorkQueue):
            self._queue(call)
        elif call.name == "wait_griddep":
            arch.griddepcontrol_wait()
        elif call.name == "launch_griddep":
            arch.griddepcontrol_launch_dependents()
        else:
            for member in call.resource.members:
                self._barrier(call, member)

    def _queue(self, call: Call) -> None:
        """Emit an operation of a work queue. A static one needs no barriers: each task computes its tiles itself."""
        queue = call.resource
        config = queue.tile_scheduler_config
        if config.kind == "static":
            if call.name == "get_and_advance_work_tile":
                self.scheduler.advance_to_next_work()
                self.work_tile = self.scheduler.get_current_work()
            return
        pipe = self.pipelines.by_resource.get(queue)
        if pipe is None:
            raise type_error(
                f"the work queue {queue.name!r} is by cluster launch control and has no pipeline_config",
                "PipelineConfig.create_clc_fetch_async_pipeline_cfg(...)",
            )
        if call.name == "fetch_work_tile":
            state = self.states[_key(queue, True)]

            def ask() -> None:
                with arch.elect_one():
                    arch.issue_clc_query(pipe.producer_get_barrier(state), config.response_ptr + state.index)

            guarded(queue.pipeline_config.leads(True), ask)
        elif call.name == "get_and_advance_work_tile":
            answer = config.response_ptr + self.states[_key(queue, False)].index
            self.work_tile = self.scheduler.work_tile_info_from_clc_response(answer)
            arch.fence_view_async_shared()  # the next answer is written by the async proxy
        else:
            self._barrier(call, queue)

    def _barrier(self, call: Call, resource: Any) -> None:
        """Emit a barrier operation of a resource, or of a member of a group."""
        producing = is_producing(call, self.task)
        pipe = self.pipelines.by_resource.get(resource)
        key = _key(resource, producing)
        name = call.name
        if pipe is None:
            raise type_error(f"task {self.task.name!r} calls {call}, and {resource.name!r} has no pipeline_config")
        state = self.states[key]
        token = self.tokens[key]
        config = resource.pipeline_config
        leads = config.leads(producing, waiting=name == "wait")
        early = key + _HELD in self.states
        if name in ("try_acquire", "try_wait"):
            self.tokens[key] = (pipe.producer_try_acquire if producing else pipe.consumer_try_wait)(state)
        elif name == "acquire":
            guarded(leads, lambda: self._acquire(resource, pipe, state, token))
        elif name == "wait":
            guarded(leads, lambda: pipe.consumer_wait(state, token))
        else:
            state = self.states[key + _CLOSING] if early else state
            shared = self.pipelines.full_followers if producing else self.pipelines.empty_followers
            if resource not in shared:  # the first member of a group has arrived for the others
                arrive = pipe.producer_commit if producing else pipe.consumer_release
                if producing and resource in self.pipelines.announced_late:
                    arrive = lambda state: pipe.producer_acquire(state, Boolean(True))
                first = self._is_first_warp() if config.by_first_warp(producing) else True
                guarded(leads, lambda: guarded(first, lambda: arrive(state)))
            state.advance()
        if name in ("acquire", "wait"):
            self.tokens[key] = None
            if early:
                self.states[key + _HELD] = state.clone()
                state.advance()

    def _acquire(self, resource: Any, pipe: Any, state: Any, token: Any) -> None:
        config = resource.pipeline_config
        if resource in self.pipelines.full_followers | self.pipelines.announced_late:
            unless(token, lambda: pipe.sync_object_empty.wait(state.index, state.phase))
        elif pipe.sync_object_full.announces and config.by_first_warp(True):
            # all warps wait, and the first announces the bytes that all of them copy
            unless(token, lambda: pipe.sync_object_empty.wait(state.index, state.phase))
            guarded(self._is_first_warp(), lambda: pipe.producer_acquire(state, Boolean(True)))
        else:
            pipe.producer_acquire(state, token)

    def _is_first_warp(self) -> Any:
        return True if self.task.num_warps == 1 else arch.make_warp_uniform(arch.warp_idx()) == self.task.warp_idx

    def _state(self, resource: MemoryResource, producing: bool) -> pipeline.PipelineState | None:
        key = _key(resource, producing)
        return self.states.get(key + _HELD, self.states.get(key))

    def state(self, resource: MemoryResource, producing: bool) -> pipeline.PipelineState:
        """Return the state of a pipeline: the stage that work is on."""
        state = self._state(resource, producing)
        if state is None:
            raise type_error(
                f"task {self.task.name!r} is on no stage of {resource.name!r}", "get one in its schedule: acquire, wait"
            )
        return state

    def _work(self, call: Call, loop: Any) -> None:
        resource = call.resource
        producing = is_producing(call, self.task)
        pipe = self.pipelines.by_resource.get(call.resource)
        offset, start, end, step = loop or (None, *(self.bounds or (None, None, None)))
        stage = barrier = None
        if pipe is not None and (state := self._state(resource, producing)) is not None:
            stage = state.index
            barrier = Array(pipe.producer_get_barrier(state), shape=(1,))
        info = StageInfo(
            loop_offset=offset,
            loop_start=start,
            loop_end=end,
            loop_step=step,
            stage_idx=stage,
            label=call.name,
            barrier=barrier,
            work_tile=self.work_tile,
            context=self.context,
            task_cache=self.task.make_task_cache(),
        )
        args = [self._value(x) for x in call.args]
        named = {name: self._value(x) for name, x in call.kwargs.items()}
        returned = call.work.function(resource, info, *args, **named)
        if not call.work.slots:
            return
        values = returned if call.work.many else (returned,)
        for slot, value in zip(call.work.slots, values, strict=True):
            variable = getattr(resource, slot)
            kind: Any = variable.dtype
            number = isinstance(kind, NumericMeta) and not isinstance(value, (TensorSSA, Pointer, Array))
            self.variables[Token(resource, slot).key] = kind(value) if number else value

    def _value(self, x: object) -> Any:
        return self.variables[x.key] if isinstance(x, Token) else x


_HELD = " held"
_CLOSING = " closing"
"""What is behind the key of a state: of the stage that work is on, and of the stage that is handed over next, where
they are not those of the next `acquire` or `wait`."""


def _key(resource: Any, producing: bool) -> str:
    return f"{resource.name} {'producer' if producing else 'consumer'}"


@cute.jit
def _tail(run: _Run, pipe: Any, key: str, leads: Any) -> None:
    if leads:
        pipe.producer_tail(run.states[key])


@cute.jit
def _domain(run: _Run, node: Block, start: Any, end: Any, step: Any, unroll: Any) -> None:
    for offset in dynamic_range(start, end, step, unroll=unroll):
        run.block(node, (offset, start, end, step))


@cute.jit
def _tiles(run: _Run, node: Block, loop: Any) -> None:
    while run.work_tile.is_valid_tile:
        run.start_tile()
        run.block(node, loop)
        run.bounds = None


@cute.jit
def _branch(run: _Run, node: Block, condition: Any, loop: Any) -> None:
    if condition:
        run.block(node, loop)
