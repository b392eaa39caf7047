"""Producer and consumer objects that keep their own pipeline state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..base_dsl.typing import Boolean, Int32
    from ..cute.tensor.pointer import Pointer
    from .state import PipelineState


class _OnState:
    """A pipeline, which stays the same, together with a state, which is a value of the program."""

    def __init__(self, pipeline: Any, state: PipelineState, group: Any = None) -> None:
        self._pipeline = pipeline
        self._state = state
        self._group = group

    def __extract_mlir_values__(self) -> list[Any]:
        return self._state.__extract_mlir_values__()

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        rebuilt = object.__new__(type(self))
        rebuilt.__dict__.update(self.__dict__)
        rebuilt._state = self._state.__new_from_mlir_values__(values)
        return rebuilt

    def __kiln_join__(self, other: Any) -> Any:
        return (self, other) if self._pipeline is other._pipeline else None

    def __kiln_coerce__(self, like: Any) -> Any:
        return self if self._pipeline is like._pipeline else None

    def __kiln_static_key__(self) -> Any:
        return self._pipeline.__kiln_static_key__()


class _Handle(_OnState):
    """A stage of a pipeline."""

    __kiln_immutable__ = True

    @property
    def index(self) -> Int32:
        """The index of the stage."""
        return self._state.index

    @property
    def count(self) -> Int32:
        """The step at which the stage was taken."""
        return self._state.count

    def get_origin(self) -> Any:
        """Return the pipeline."""
        return self._pipeline


class _Side(_OnState):
    def advance(self, count: object = 1, *, loc: object = None, ip: object = None) -> None:
        """Advance to the next stage, or by several."""
        self._state.advance(count)

    def clone(self) -> Any:
        """Return a copy with a state of its own."""
        return type(self)(self._pipeline, self._state.clone(), self._group)

    def current_handle(self) -> Any:
        """Return the stage it is at."""
        return type(self).ImmutableResourceHandle(self._pipeline, self._state.clone())

    class ImmutableResourceHandle(_Handle):
        """A stage."""


class PipelineProducer(_Side):
    """The producer's side."""

    @property
    def __state(self) -> PipelineState:  # pyright: ignore[reportUnusedFunction]
        # public programs read it, by its mangled name
        return self._state

    class ImmutableResourceHandle(_Handle):
        """A stage to fill."""

        @property
        def barrier(self) -> Pointer:
            """The mbarrier that says that the stage is full."""
            return self._pipeline.producer_get_barrier(self._state)

        def commit(self, *, loc: object = None, ip: object = None) -> None:
            """Arrive for this thread's part of the stage."""
            self._pipeline.producer_commit(self._state)

    def reset(self, *, loc: object = None, ip: object = None) -> None:
        """Go back to a producer's initial state."""
        self._state = self._pipeline.make_producer()._state

    def acquire(
        self, try_acquire_token: object = None, *, loc: object = None, ip: object = None, **kwargs: object
    ) -> ImmutableResourceHandle:
        """Wait until the stage is empty, and return it."""
        self._pipeline.producer_acquire(self._state, try_acquire_token, **kwargs)
        return self.current_handle()

    def acquire_and_advance(
        self, try_acquire_token: object = None, *, loc: object = None, ip: object = None, **kwargs: object
    ) -> ImmutableResourceHandle:
        """Wait until the stage is empty, advance, and return it."""
        handle = self.acquire(try_acquire_token, **kwargs)
        self.advance()
        return handle

    def try_acquire(self, *, loc: object = None, ip: object = None) -> Boolean:
        """Return whether the stage is empty."""
        return self._pipeline.producer_try_acquire(self._state)

    def commit(self, handle: Any = None, *, loc: object = None, ip: object = None) -> None:
        """Arrive for this thread's part of a stage, by default the current one."""
        (self.current_handle() if handle is None else handle).commit()

    def tail(self, *, loc: object = None, ip: object = None) -> None:
        """Wait until all stages are empty."""
        self._pipeline.producer_tail(self._state)


class PipelineConsumer(_Side):
    """The consumer's side."""

    @property
    def __state(self) -> PipelineState:  # pyright: ignore[reportUnusedFunction]
        return self._state

    class ImmutableResourceHandle(_Handle):
        """A full stage."""

        @property
        def barrier(self) -> Pointer:
            """The mbarrier that says that the stage is empty."""
            return self._pipeline.consumer_get_barrier(self._state)

        def release(self, *op_type: object, loc: object = None, ip: object = None) -> None:
            """Release the stage for this thread; with several kinds of consumers, `op_type` says which kind it is."""
            self._pipeline.consumer_release(self._state, *op_type)

    def reset(self, *, loc: object = None, ip: object = None) -> None:
        """Go back to a consumer's initial state."""
        self._state = self._pipeline.make_consumer()._state

    def wait(self, try_wait_token: object = None, *, loc: object = None, ip: object = None) -> ImmutableResourceHandle:
        """Wait until the stage is full, and return it."""
        self._pipeline.consumer_wait(self._state, try_wait_token)
        return self.current_handle()

    def wait_and_advance(
        self, try_wait_token: object = None, *, loc: object = None, ip: object = None
    ) -> ImmutableResourceHandle:
        """Wait until the stage is full, advance, and return it."""
        handle = self.wait(try_wait_token)
        self.advance()
        return handle

    def try_wait(self, *, loc: object = None, ip: object = None) -> Boolean:
        """Return whether the stage is full."""
        return self._pipeline.consumer_try_wait(self._state)

    def release(self, handle: Any = None, *, loc: object = None, ip: object = None) -> None:
        """Release a stage for this thread, by default the current one."""
        (self.current_handle() if handle is None else handle).release()
