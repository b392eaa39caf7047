"""Pipelines whose stages are guarded by mbarriers: `PipelineAsync`, and those with other kinds of arrival."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from .._support import notebook
from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Boolean
from ..cute import arch
from ..cute.arch.warp import elected
from ..cute.atoms.copying import guarded
from ..cute.tensor.pointer import Pointer
from .arrivals import Arrival, CopyArrival, ThreadArrival, TransactionArrival, WarpArrival
from .barriers import MbarrierArray, agent_sync, alloc_reserved_mbarrier, described, in_cluster
from .groups import Agent, CooperativeGroup, PipelineOp, PipelineUserType
from .multicast import releases, sharers
from .participants import PipelineConsumer, PipelineProducer
from .state import PipelineState, make_pipeline_state, require_stages

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineAsync:
    """A pipeline of `num_stages` stages. A producer acquires a stage (waits until it is empty), fills and commits it; a
    consumer waits until it is full, uses and releases it. Both go through the stages in order.

    Producers arrive at `sync_object_full`, consumers at `sync_object_empty`; here each has an mbarrier for every stage.
    The kind of arrival is a strategy (`arrivals`). The masks say in which CTAs of the cluster a side arrives. Programs
    derive dataclasses with more fields.

    A wait that gets the token of an earlier `try` waits only if the `try` failed.
    """

    sync_object_full: Any
    sync_object_empty: Any
    num_stages: int
    producer_mask: Any
    consumer_mask: Any

    __kiln_immutable__ = True
    _PRODUCER: ClassVar[Arrival] = ThreadArrival()
    _CONSUMER: ClassVar[Arrival] = ThreadArrival(publishes=False)

    def _sides(self) -> list[tuple[str, str, str]]:
        """Return what producers and consumers signal, who arrives, and how often in a phase."""
        sides = (("full", self.sync_object_full), ("empty", self.sync_object_empty))
        return [(signals, *described(barrier)) for signals, barrier in sides]

    def __str__(self) -> str:
        sides = "; ".join(f"{signals} by {who}, arrivals: {arrivals}" for signals, who, arrivals in self._sides())
        return f"{type(self).__name__} of {self.num_stages} stages; {sides}"

    __repr__ = __str__

    def _as_html(self) -> str:
        title = f"{type(self).__name__} of {self.num_stages} stages"
        return notebook.page(notebook.table(("a stage is", "by", "arrivals"), self._sides(), name=title))

    # `notebook.Shown` is no base: its empty `__slots__` would forbid libraries to make a pipeline one of their own
    # class by assigning `__class__`, where that class also derives from a mixin.
    _repr_mimebundle_ = notebook.Shown._repr_mimebundle_

    @classmethod
    def create(
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group: CooperativeGroup,
        barrier_storage: Pointer | None = None,
        producer_mask: object = None,
        consumer_mask: object = None,
        defer_sync: bool = False,
        name: str = "",
        loc: object = None,
        ip: object = None,
    ) -> Self:
        """Create a pipeline and initialise its mbarriers, in `barrier_storage` (2 Int64 a stage) or in shared memory of
        its own.

        All threads of the CTA call it and synchronise there, unless `defer_sync` leaves that to `pipeline_init_arrive`
        and `pipeline_init_wait`. The masks are the ranks of the CTA of the cluster at whose mbarriers producers and
        consumers arrive.
        """
        sides = (cls._PRODUCER, producer_group), (cls._CONSUMER, consumer_group)
        full, empty = cls._barriers(num_stages, *sides, barrier_storage, defer_sync)
        return cls(full, empty, num_stages, producer_mask, consumer_mask)

    @staticmethod
    def _barriers(
        num_stages: int,
        producer: tuple[Arrival, CooperativeGroup],
        consumer: tuple[Arrival, CooperativeGroup],
        barrier_storage: Pointer | None,
        defer_sync: bool,
        cluster: object = None,
    ) -> tuple[MbarrierArray, MbarrierArray]:
        """Return the initialised mbarriers of both sides, those that say that a stage is full first."""
        require_stages(num_stages)
        if barrier_storage is None:
            barrier_storage = alloc_reserved_mbarrier(num_stages)
        if not isinstance(barrier_storage, Pointer):
            raise type_error(
                f"barrier_storage is {type(barrier_storage).__name__}", "pass the pointer: storage.barriers.data_ptr()"
            )
        full = MbarrierArray.without_init(barrier_storage, num_stages, *producer)
        empty = MbarrierArray.without_init(full.get_barrier(num_stages), num_stages, *consumer)
        full.init()
        empty.init()
        arch.mbarrier_init_fence()
        if not defer_sync:
            # the fence has published the mbarriers, and there is nothing else to publish
            agent_sync(Agent.ThreadBlockCluster if in_cluster(cluster) else Agent.ThreadBlock, is_relaxed=True)
        return full, empty

    @staticmethod
    def _make_sync_object(
        barrier_storage: Pointer,
        num_stages: int,
        agent: tuple[PipelineOp, CooperativeGroup],
        tx_count: int = 0,
        *,
        name: str = "",
        phase: object = None,
    ) -> MbarrierArray:
        """Return the initialised mbarriers of one side, for pipelines that programs define themselves.

        `name` and `phase` are for profilers of other implementations.
        """
        return MbarrierArray(barrier_storage, num_stages, agent, tx_count)

    def producer_acquire(
        self, state: PipelineState, try_acquire_token: object = None, *, loc: object = None, ip: object = None
    ) -> None:
        """Wait until a stage is empty; if an engine fills it, announce its bytes."""
        unless(try_acquire_token, lambda: self.sync_object_empty.wait(state.index, state.phase))
        if self.sync_object_full.announces:
            self.sync_object_full.arrive(state.index, self.producer_mask)

    def producer_try_acquire(self, state: PipelineState, *, loc: object = None, ip: object = None) -> Boolean:
        """Return whether a stage is empty."""
        return self.sync_object_empty.try_wait(state.index, state.phase)

    def producer_commit(self, state: PipelineState, *, loc: object = None, ip: object = None) -> None:
        """Arrive for this thread's part of a stage; a stage that an engine fills needs no arrival."""
        if not self.sync_object_full.announces:
            self.sync_object_full.arrive(state.index, self.producer_mask)

    def producer_tail(self, state: PipelineState, *, loc: object = None, ip: object = None) -> None:
        """Wait until all stages are empty, so that nobody arrives at the mbarriers of a CTA that has exited."""
        for _ in range(self.num_stages):
            self.sync_object_empty.wait(state.index, state.phase)
            state.advance()

    def producer_get_barrier(self, state: PipelineState, *, loc: object = None, ip: object = None) -> Pointer:
        """Return the mbarrier at which producers arrive."""
        return self.sync_object_full.get_barrier(state.index)

    def consumer_wait(
        self, state: PipelineState, try_wait_token: object = None, *, loc: object = None, ip: object = None
    ) -> None:
        """Wait until a buffer is full."""
        unless(try_wait_token, lambda: self.sync_object_full.wait(state.index, state.phase))

    def consumer_try_wait(self, state: PipelineState, *, loc: object = None, ip: object = None) -> Boolean:
        """Return whether a stage is full."""
        return self.sync_object_full.try_wait(state.index, state.phase)

    def consumer_release(self, state: PipelineState, *, loc: object = None, ip: object = None) -> None:
        """Arrive for this thread: it has used the stage."""
        chosen = getattr(self, "is_signaling_thread", None)
        guarded(
            True if chosen is None else chosen, lambda: self.sync_object_empty.arrive(state.index, self.consumer_mask)
        )

    def consumer_get_barrier(self, state: PipelineState, *, loc: object = None, ip: object = None) -> Pointer:
        """Return the mbarrier at which consumers arrive."""
        return self.sync_object_empty.get_barrier(state.index)

    def make_producer(self, *, loc: object = None, ip: object = None) -> PipelineProducer:
        """Return the producer's side, at the first stage."""
        return PipelineProducer(self, make_pipeline_state(PipelineUserType.Producer, self.num_stages))

    def make_consumer(self, *, loc: object = None, ip: object = None) -> PipelineConsumer:
        """Return the consumer's side, at the first stage."""
        return PipelineConsumer(self, make_pipeline_state(PipelineUserType.Consumer, self.num_stages))

    def make_participants(self, *, loc: object = None, ip: object = None) -> tuple[PipelineProducer, PipelineConsumer]:
        """Return the producer's and the consumer's side."""
        return self.make_producer(), self.make_consumer()

    def __extract_mlir_values__(self) -> list[Any]:
        return [*self.sync_object_full.__extract_mlir_values__(), *self.sync_object_empty.__extract_mlir_values__()]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        rebuilt = object.__new__(type(self))
        first = len(values) // 2  # both objects are of one kind
        full = self.sync_object_full.__new_from_mlir_values__(values[:first])
        empty = self.sync_object_empty.__new_from_mlir_values__(values[first:])
        rebuilt.__dict__.update(self.__dict__, sync_object_full=full, sync_object_empty=empty)
        return rebuilt

    def __kiln_static_key__(self) -> Any:
        return (type(self), self.num_stages)


def unless(token: Any, wait: Any) -> None:
    """Wait unless an earlier try succeeded (its token holds)."""
    if token is None:
        wait()
    else:
        guarded(Boolean(token) == Boolean(False), wait)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineCpAsync(PipelineAsync):
    """A pipeline whose producers fill buffers with `cp.async`: a commit takes effect when their copies have arrived."""

    _PRODUCER = CopyArrival()


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class PipelineTmaAsync(PipelineAsync):
    """A pipeline whose stages TMA fills: `producer_acquire` announces the bytes, and copies that get the stage's
    mbarrier (`producer_get_barrier`, `handle.barrier`) deliver them.

    One warp is the producer. Consumers arrive once a warp, in each CTA of the cluster that fills stages of this one:
    all threads of a warp release a stage together, with the same state, and those arrive for which
    `is_signaling_thread` holds (None: all). One thread of a warp can release it in a region of `elect_one`, after the
    warp's barrier.
    """

    is_signaling_thread: Any

    _CONSUMER = WarpArrival(publishes=False)

    @classmethod
    def create(  # type: ignore[override]
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group: CooperativeGroup,
        tx_count: int,
        barrier_storage: Pointer | None = None,
        cta_layout_vmnk: object = None,
        tidx: object = None,
        mcast_mode_mn: tuple[int, int] = (1, 1),
        enable_multicast_signaling: bool = False,
        defer_sync: bool = False,
        name: str = "",
        loc: object = None,
        ip: object = None,
    ) -> Self:
        """Create a pipeline as `PipelineAsync.create` does. `tx_count`: the bytes of all copies into a stage, also
        those of other CTAs.

        `cta_layout_vmnk`: the layout of the cluster's CTAs, if copies are multicast: those of A (`mcast_mode_mn[0]`) to
        all CTAs in the row of M, those of B to all in the column of N. The consumers' group counts the arrivals of all
        warps of all CTAs that share a row or column with this one; with `enable_multicast_signaling`, those of this CTA
        only.
        """
        if enable_multicast_signaling:
            peers = sharers(cta_layout_vmnk, mcast_mode_mn)
            consumer_group = CooperativeGroup(consumer_group.agent, consumer_group.size * peers)
        sides = (TransactionArrival(tx_count), producer_group), (cls._CONSUMER, consumer_group)
        full, empty = cls._barriers(num_stages, *sides, barrier_storage, defer_sync, cta_layout_vmnk)
        block, signals = releases(cta_layout_vmnk, tidx, mcast_mode_mn)
        return cls(full, empty, num_stages, None, block, signals)

    @staticmethod
    def init_empty_barrier_arrive_signal(
        cta_layout_vmnk: object, tidx: object, mcast_mode_mn: tuple[int, int] = (1, 1)
    ) -> tuple[Any, Boolean]:
        """Return in which CTA of the cluster a thread releases stages (None: its own), and whether it does."""
        return releases(cta_layout_vmnk, tidx, mcast_mode_mn)

    def consumer_release(self, state: PipelineState, *, loc: object = None, ip: object = None) -> None:
        """Arrive for this warp: it has used the stage."""
        if not elected():
            arch.sync_warp()  # one thread arrives for all: the others must have read the stage before
        super().consumer_release(state)
