"""Resources: memory, queues and barriers with the work that tasks do on them, and the pipelines that hand them over."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, TypeAlias

from ..._support import lazy
from ...base_dsl.diagnostics import type_error
from .enums import PipelineGroupMode, SignalingThreads, TileSchedulerType, WorkAttr
from .pipelines import PipelineConfig
from .schedule_builder import Call, Token, record, recording

if TYPE_CHECKING:
    from ...base_dsl.typing import Int32
    from ...pipeline import PipelineState
    from .task_manager import _Run

__dir__ = lazy.listing(__name__)
__all__ = [
    "MemoryResource",
    "PdlLaunchBarrier",
    "PdlWaitBarrier",
    "PipelineConfig",
    "PipelineGroup",
    "SignalingThreads",
    "StageInfo",
    "TaskLocalVariable",
    "TileSchedulerConfig",
    "WorkAttr",
    "WorkQueue",
    "consumer_work",
    "producer_work",
]

emitting: list[_Run] = []
"""The run of the task that is being emitted, on top of those around it."""
RESERVED = ("try_acquire", "acquire", "commit", "try_wait", "wait", "release")
PRODUCER_SIDE = ("try_acquire", "acquire", "commit")


class TaskLocalVariable:
    """A variable of a task: what a work method returns, and other work of the same task takes."""

    __kiln_static__ = True

    def __init__(
        self,
        dtype: Any = None,
        default: Any = None,
        default_factory: Any = None,
        docs: str | None = None,
        runtime_slot_name: str | None = None,
    ) -> None:
        self.dtype = dtype
        self._default = default
        self._factory = default_factory
        self.docs = docs
        self.slot: str = runtime_slot_name or ""

    @property
    def default(self) -> Any:
        """The first value, which a program may set until the task runs."""
        return self._default if self._factory is None else self._factory()

    @default.setter
    def default(self, value: object) -> None:
        self._default = value
        self._factory = None

    @classmethod
    def uninitialized(cls) -> TaskLocalVariable:
        """Return the placeholder of a class; each resource has a variable of its own under the same name."""
        return cls()

    def __set_name__(self, owner: type, name: str) -> None:
        self.slot = name


Returned: TypeAlias = (
    "str | TaskLocalVariable | tuple[str | TaskLocalVariable, ...] | list[str | TaskLocalVariable] | None"
)


class StageInfo:
    """What a work method is told of the iteration, the tile and the stage of its pipeline."""

    def __init__(
        self,
        loop_offset: Any = None,
        loop_start: Any = None,
        loop_end: Any = None,
        loop_step: Any = None,
        stage_idx: Any = None,
        label: Any = None,
        barrier: Any = None,
        work_tile: Any = None,
        num_active_stages: int = 0,
        context: Any = None,
        task_cache: Any = None,
    ) -> None:
        self.loop_offset = loop_offset
        self.loop_start = loop_start
        self.loop_end = loop_end
        self.loop_step = loop_step
        self.label = label
        self.num_active_stages = num_active_stages
        self.task_cache = task_cache
        self.stage_idx = stage_idx
        self.barrier = barrier
        self.work_tile = work_tile
        self.context = context


class Work:
    """A work method: in a schedule it is recorded, elsewhere it runs."""

    __kiln_static__ = True

    def __init__(self, function: Any, side: str, returns: Returned, work_attrs: WorkAttr) -> None:
        functools.update_wrapper(self, function)  # pyright: ignore[reportArgumentType]
        self.function = function
        self.side = side
        self.attrs = work_attrs
        self.many = isinstance(returns, (tuple, list))
        named = returns if isinstance(returns, (tuple, list)) else () if returns is None else (returns,)
        self._returns: tuple[str | TaskLocalVariable, ...] = tuple(named)

    @property
    def slots(self) -> tuple[str, ...]:
        """The names of the variables that get what it returns; a program gives variables or their names."""
        return tuple(each if isinstance(each, str) else each.slot for each in self._returns)

    @property
    def is_auxiliary(self) -> bool:
        """Whether checks leave it out."""
        return WorkAttr.AUXILIARY in self.attrs

    def __get__(self, resource: object, owner: object = None) -> Any:
        return self if resource is None else functools.partial(self._called, resource)

    def _called(self, resource: object, *args: object, **kwargs: object) -> Any:
        if not recording():
            return self.function(resource, *args, **kwargs)
        record(Call(resource, self.function.__name__, self, args, **kwargs))
        tokens = tuple(Token(resource, slot) for slot in self.slots)
        return tokens if self.many else tokens[0] if tokens else None


def producer_work(method: object = None, *, work_attrs: WorkAttr = WorkAttr.NONE) -> Any:
    """Decorate a method that fills the resource: `(self, stage_info, values...)`."""
    if method is None:
        return functools.partial(producer_work, work_attrs=work_attrs)
    return _work(method, "producer", None, work_attrs)


def consumer_work(method: object = None, *, returns: Returned = None, work_attrs: WorkAttr = WorkAttr.NONE) -> Any:
    """Decorate a method that reads the resource; `returns`: the variables, or their names, that get what it returns."""
    if method is None:
        return functools.partial(consumer_work, returns=returns, work_attrs=work_attrs)
    return _work(method, "consumer", returns, work_attrs)


def _work(function: Any, side: str, returns: Returned, work_attrs: WorkAttr) -> Work:
    if function.__name__ in RESERVED:
        raise type_error(
            f"a work method is called {function.__name__}", f"{', '.join(RESERVED)} are barrier operations"
        )
    return Work(function, side, returns, work_attrs)


class _Scheduled:
    """The barrier operations that schedules call on a resource or a group."""

    def try_acquire(self) -> None:
        """Ask whether the next stage is empty; `acquire` waits only if it is not."""
        record(Call(self, "try_acquire"))

    def acquire(self) -> None:
        """Wait until the next stage is empty."""
        record(Call(self, "acquire"))

    def commit(self) -> None:
        """Hand the stage to the consumers, and go on to the next."""
        record(Call(self, "commit"))

    def try_wait(self) -> None:
        """Ask whether the next stage is full; `wait` waits only if it is not."""
        record(Call(self, "try_wait"))

    def wait(self) -> None:
        """Wait until the next stage is full."""
        record(Call(self, "wait"))

    def release(self) -> None:
        """Hand the stage back to the producers, and go on to the next."""
        record(Call(self, "release"))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class MemoryResource(_Scheduled):
    """The base class of resources, which are dataclasses. Two resources are never equal."""

    name: str = ""
    pipeline_config: Any = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        # `@dataclass` would compare fields, and take the hash away
        cls.__eq__ = object.__eq__
        cls.__hash__ = object.__hash__
        cls.__repr__ = MemoryResource.__repr__

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def get_smem_requirements(self) -> list[Any]:
        """Return the shared memory it needs; by default none."""
        return []

    def get_tmem_requirements(self) -> list[Any]:
        """Return the tensor memory it needs; by default none."""
        return []

    def create_pipeline(self, pipeline_config: PipelineConfig) -> Any:
        """Return the pipeline of a config. A derived class may change what this one returns, or make its own."""
        storage, warps = self.__dict__.get("_barriers", (None, 0))
        return pipeline_config.make(storage, warps)

    @property
    def members(self) -> list[Any]:
        """The resources whose pipelines its barrier operations are of."""
        return [self]

    @property
    def consumer_work_stage(self) -> Int32:
        """The stage that the task has waited for, for work on another resource that reads this one, too."""
        return self.consumer_state.index

    @property
    def producer_state(self) -> PipelineState:
        """The state of the pipeline on the side of the task, which fills the resource."""
        return emitting[-1].state(self, producing=True)

    @property
    def consumer_state(self) -> PipelineState:
        """The state of the pipeline on the side of the task, which reads the resource."""
        return emitting[-1].state(self, producing=False)

    @property
    def state_src(self) -> MemoryResource:
        """The resource that has the state of the pipeline: itself."""
        return self


class PipelineGroup(_Scheduled):
    """Resources whose stages one task hands over together: their consumer (Merge, FusedMerge) or producer (Fork).

    That task calls `release` or `commit` of the group, and each member's other operations by the member:
    `group.member_name.wait()`. Members of a Fork group that TMA fills are views of one buffer: a stage is full when the
    bytes of the first member have arrived.
    """

    __kiln_static__ = True
    pipeline_config = None

    def __init__(self, *, name: str, members: Any, mode: PipelineGroupMode) -> None:
        self.name = name
        self.members: list[Any] = list(members)
        self.mode = mode
        for member in self.members:
            if member.pipeline_config is None:
                raise type_error(f"member {member.name!r} of the pipeline group {name!r} has no pipeline_config")
        configs = [member.pipeline_config for member in self.members]
        if len({config.num_stages for config in configs}) != 1:
            raise type_error(f"the members of the pipeline group {name!r} have different numbers of stages")
        side = "producer" if mode is PipelineGroupMode.Fork else "consumer"
        kinds = {getattr(config, f"{side}_kind") for config in configs}
        if len(kinds) != 1:
            raise type_error(
                f"the members of the pipeline group {name!r} have {side}s of the kinds {', '.join(sorted(kinds))}",
                f"{mode.name}: one task is the {side} of all members, in one way",
            )

    def __getattr__(self, name: str) -> Any:
        for member in self.__dict__.get("members", ()):
            if member.name == name:
                return member
        raise AttributeError(f"the pipeline group has no member {name!r}")


class TileSchedulerConfig:
    """The tile scheduler of a work queue."""

    __kiln_static__ = True

    def __init__(
        self, tile_scheduler_type: TileSchedulerType, tile_scheduler_params: Any, response_ptr: Any = None
    ) -> None:
        if not isinstance(tile_scheduler_type, TileSchedulerType):
            raise type_error(f"tile_scheduler_type is {tile_scheduler_type!r}", "a TileSchedulerType")
        self.kind: str = tile_scheduler_type.value
        self.params = tile_scheduler_params
        self.response_ptr = response_ptr

    @classmethod
    def create_static_persistent_tile_scheduler_params(cls, *, tile_scheduler_params: object) -> TileSchedulerConfig:
        """Return the config of a static persistent scheduler."""
        return cls(TileSchedulerType.StaticPersistent, tile_scheduler_params)

    @classmethod
    def create_clc_dynamic_persistent_tile_scheduler_params(
        cls, *, tile_scheduler_params: object, response_ptr: object
    ) -> TileSchedulerConfig:
        """Return the config of a scheduler by cluster launch control (sm_100)."""
        return cls(TileSchedulerType.ClcDynamicPersistent, tile_scheduler_params, response_ptr)


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WorkQueue(MemoryResource):
    """The queue of the tiles of a persistent kernel; each task that loops over tiles advances it at the end."""

    tile_scheduler_config: Any = None

    def get_and_advance_work_tile(self) -> None:
        """Take the next tile, in each task, between `wait` and `release`."""
        record(Call(self, "get_and_advance_work_tile"))

    def fetch_work_tile(self) -> None:
        """Ask for the next tile (sm_100), in the task that fills the queue, between `acquire` and `commit`."""
        record(Call(self, "fetch_work_tile"))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PdlWaitBarrier(MemoryResource):
    """The end of the grids that this one depends on."""

    def wait_griddep(self) -> None:
        """Wait for the grids this one depends on."""
        record(Call(self, "wait_griddep"))


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class PdlLaunchBarrier(MemoryResource):
    """The start of the grids that depend on this one."""

    def launch_griddep(self) -> None:
        """Allow the grids that depend on this one to start."""
        record(Call(self, "launch_griddep"))
