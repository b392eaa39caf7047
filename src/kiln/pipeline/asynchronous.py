"""`PipelineAsync` and `PipelineCpAsync`: a ring of buffers between threads of a block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import DSLUserCodeTypeError, error
from ..base_dsl.typing import Boolean
from ..cute import arch
from ..cute.copying import guarded
from ..cute.pointer import Pointer
from .barriers import MbarrierArray, agent_sync, alloc_reserved_mbarrier
from .groups import Agent, CooperativeGroup, PipelineOp, PipelineUserType
from .participants import PipelineConsumer, PipelineProducer
from .state import PipelineState, make_pipeline_state

if TYPE_CHECKING:
    from collections.abc import Sequence


class PipelineAsync:
    """`num_stages` buffers. A producer acquires one (waits until it is empty), fills it and commits it; a consumer
    waits until it is full, uses it and releases it. Both go round in the order of the buffers.

    Each buffer has two mbarriers: `full`, where the producers arrive, and `empty`, where the consumers do. A wait that is
    given the token of a `try` before it waits only if that failed.
    """

    __kiln_immutable__ = True
    _PRODUCER_OP = PipelineOp.AsyncThread

    def __init__(
        self,
        sync_object_full: Any,
        sync_object_empty: Any,
        num_stages: int,
        producer_mask: Any = None,
        consumer_mask: Any = None,
    ) -> None:
        self.sync_object_full = sync_object_full
        self.sync_object_empty = sync_object_empty
        self.num_stages = num_stages
        self.producer_mask = producer_mask
        self.consumer_mask = consumer_mask

    @classmethod
    def create(
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group: CooperativeGroup,
        barrier_storage: Pointer | None = None,
        producer_mask: Any = None,
        consumer_mask: Any = None,
        defer_sync: bool = False,
        name: str = "",
        loc: Any = None,
        ip: Any = None,
    ) -> Any:
        """A pipeline with its mbarriers made, in `barrier_storage` (2 Int64 a stage) or in shared memory of its own.

        All threads of the block call it, and wait for each other there, unless `defer_sync` leaves that to
        `pipeline_init_arrive` and `pipeline_init_wait`. The masks are the ranks in the cluster of the block at whose
        barriers producers and consumers arrive.
        """
        if isinstance(num_stages, bool) or not isinstance(num_stages, int) or num_stages < 1:
            raise error(
                DSLUserCodeTypeError, f"a pipeline of {num_stages!r} stages", hint="at least one, known when compiling"
            )
        if barrier_storage is None:
            barrier_storage = alloc_reserved_mbarrier(num_stages)
        if not isinstance(barrier_storage, Pointer):
            raise error(
                DSLUserCodeTypeError,
                f"barrier_storage is {type(barrier_storage).__name__}",
                hint="pass the pointer: storage.barriers.data_ptr()",
            )
        full = MbarrierArray(barrier_storage, num_stages, cls._PRODUCER_OP, producer_group)
        empty = MbarrierArray(full.get_barrier(num_stages), num_stages, PipelineOp.AsyncThread, consumer_group)
        full.init()
        empty.init()
        arch.mbarrier_init_fence()
        if not defer_sync:
            agent_sync(Agent.ThreadBlock)
        return cls(full, empty, num_stages, producer_mask, consumer_mask)

    # -- producers ---------------------------------------------------------------------------------------

    def producer_acquire(
        self, state: PipelineState, try_acquire_token: Any = None, *, loc: Any = None, ip: Any = None
    ) -> None:
        """Wait until a buffer is empty."""
        _unless(try_acquire_token, lambda: self.sync_object_empty.wait(state.index, state.phase))

    def producer_try_acquire(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> Boolean:
        """Whether a buffer is empty."""
        return self.sync_object_empty.try_wait(state.index, state.phase)

    def producer_commit(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> None:
        """Say that this thread has filled its part of a buffer."""
        self.sync_object_full.arrive(state.index, self.producer_mask)

    def producer_tail(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> None:
        """Wait until all buffers are empty, so that nobody arrives at the barriers of a block that is gone."""
        for _ in range(self.num_stages):
            self.producer_acquire(state)
            state.advance()

    def producer_get_barrier(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> Pointer:
        """The mbarrier at which producers arrive."""
        return self.sync_object_full.get_barrier(state.index)

    # -- consumers ---------------------------------------------------------------------------------------

    def consumer_wait(
        self, state: PipelineState, try_wait_token: Any = None, *, loc: Any = None, ip: Any = None
    ) -> None:
        """Wait until a buffer is full."""
        _unless(try_wait_token, lambda: self.sync_object_full.wait(state.index, state.phase))

    def consumer_try_wait(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> Boolean:
        """Whether a buffer is full."""
        return self.sync_object_full.try_wait(state.index, state.phase)

    def consumer_release(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> None:
        """Say that this thread has used a buffer."""
        self.sync_object_empty.arrive(state.index, self.consumer_mask)

    def consumer_get_barrier(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> Pointer:
        """The mbarrier at which consumers arrive."""
        return self.sync_object_empty.get_barrier(state.index)

    # -- sides with a state of their own -----------------------------------------------------------------

    def make_producer(self, *, loc: Any = None, ip: Any = None) -> PipelineProducer:
        """The producer's side, at the first buffer."""
        return PipelineProducer(self, make_pipeline_state(PipelineUserType.Producer, self.num_stages))

    def make_consumer(self, *, loc: Any = None, ip: Any = None) -> PipelineConsumer:
        """The consumer's side, at the first buffer."""
        return PipelineConsumer(self, make_pipeline_state(PipelineUserType.Consumer, self.num_stages))

    def make_participants(self, *, loc: Any = None, ip: Any = None) -> tuple[PipelineProducer, PipelineConsumer]:
        """Both sides."""
        return self.make_producer(), self.make_consumer()

    # -- crossing regions --------------------------------------------------------------------------------

    def __extract_mlir_values__(self) -> list[Any]:
        return [*self.sync_object_full.__extract_mlir_values__(), *self.sync_object_empty.__extract_mlir_values__()]

    def __new_from_mlir_values__(self, values: Sequence[Any]) -> Any:
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made.sync_object_full = self.sync_object_full.__new_from_mlir_values__(values[:1])
        made.sync_object_empty = self.sync_object_empty.__new_from_mlir_values__(values[1:])
        return made

    def __kiln_static_key__(self) -> Any:
        return (type(self), self.num_stages)


def _unless(token: Any, wait: Any) -> None:
    """Wait where the token of an earlier try is missing or false."""
    if token is None:
        wait()
    else:
        guarded(Boolean(token) == Boolean(False), wait)


class PipelineCpAsync(PipelineAsync):
    """A pipeline whose producers fill buffers with `cp.async`: a commit takes effect when their copies have arrived."""

    _PRODUCER_OP = PipelineOp.AsyncLoad
