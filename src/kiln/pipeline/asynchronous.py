"""Pipelines whose buffers are guarded by mbarriers: `PipelineAsync`, and rows with other kinds of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Boolean
from ..cute import arch
from ..cute.atoms.copying import guarded
from ..cute.tensor.pointer import Pointer
from .arrivals import Arrival, CopyArrival, ThreadArrival, TransactionArrival, WarpArrival
from .barriers import MbarrierArray, SyncObject, agent_sync, alloc_reserved_mbarrier, in_cluster
from .groups import Agent, CooperativeGroup, PipelineOp, PipelineUserType
from .multicast import releases, sharers
from .participants import PipelineConsumer, PipelineProducer
from .state import PipelineState, make_pipeline_state, require_stages

if TYPE_CHECKING:
    from collections.abc import Sequence

_ARRIVALS = {PipelineOp.AsyncThread: ThreadArrival, PipelineOp.AsyncLoad: CopyArrival}


class PipelineAsync:
    """`num_stages` buffers. A producer acquires one (waits until it is empty), fills it and commits it; a consumer
    waits until it is full, uses it and releases it. Both go round in the order of the buffers.

    Two objects say how far they are: at `sync_object_full` the producers arrive, at `sync_object_empty` the consumers do; here
    each has an mbarrier for each buffer. How a side arrives is a strategy of its own (`arrivals`); the masks say in which blocks
    of the cluster, and `is_signaling_thread` which threads of the consumers do it: None, all.

    A wait that is given the token of a `try` before it waits only if that failed.
    """

    __kiln_immutable__ = True
    _PRODUCER: Arrival = ThreadArrival()
    _CONSUMER: Arrival = ThreadArrival(publishes=False)

    def __init__(
        self,
        sync_object_full: Any,
        sync_object_empty: Any,
        num_stages: int,
        producer_mask: Any = None,
        consumer_mask: Any = None,
        is_signaling_thread: Any = None,
    ) -> None:
        self.sync_object_full: SyncObject = sync_object_full
        self.sync_object_empty: SyncObject = sync_object_empty
        self.num_stages = num_stages
        self.producer_mask = producer_mask
        self.consumer_mask = consumer_mask
        self.is_signaling_thread = is_signaling_thread

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
        cluster: Any = None,
    ) -> tuple[MbarrierArray, MbarrierArray]:
        """The mbarriers of both sides, made; first those that say that a buffer is full."""
        require_stages(num_stages)
        if barrier_storage is None:
            barrier_storage = alloc_reserved_mbarrier(num_stages)
        if not isinstance(barrier_storage, Pointer):
            raise type_error(
                f"barrier_storage is {type(barrier_storage).__name__}", "pass the pointer: storage.barriers.data_ptr()"
            )
        full = MbarrierArray(barrier_storage, num_stages, *producer)
        empty = MbarrierArray(full.get_barrier(num_stages), num_stages, *consumer)
        full.init()
        empty.init()
        arch.mbarrier_init_fence()
        if not defer_sync:
            agent_sync(Agent.ThreadBlockCluster if in_cluster(cluster) else Agent.ThreadBlock)
        return full, empty

    @staticmethod
    def _make_sync_object(
        barrier_storage: Pointer, num_stages: int, agent: tuple[PipelineOp, CooperativeGroup], tx_count: int = 0
    ) -> MbarrierArray:
        """The mbarriers of one side, made: for pipelines that programs define themselves."""
        op, group = agent
        arrival = TransactionArrival(tx_count) if op is PipelineOp.TmaLoad else _ARRIVALS[op]()
        made = MbarrierArray(barrier_storage, num_stages, arrival, group)
        made.init()
        return made

    # -- producers ---------------------------------------------------------------------------------------

    def producer_acquire(
        self, state: PipelineState, try_acquire_token: Any = None, *, loc: Any = None, ip: Any = None
    ) -> None:
        """Wait until a buffer is empty; if an engine fills it, say what is coming."""
        _unless(try_acquire_token, lambda: self.sync_object_empty.wait(state.index, state.phase))
        if self.sync_object_full.announces:
            self.sync_object_full.arrive(state.index, self.producer_mask)

    def producer_try_acquire(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> Boolean:
        """Whether a buffer is empty."""
        return self.sync_object_empty.try_wait(state.index, state.phase)

    def producer_commit(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> None:
        """Say that this thread has filled its part of a buffer; what an engine fills, its bytes say."""
        if not self.sync_object_full.announces:
            self.sync_object_full.arrive(state.index, self.producer_mask)

    def producer_tail(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> None:
        """Wait until all buffers are empty, so that nobody arrives at the barriers of a block that is gone."""
        for _ in range(self.num_stages):
            self.sync_object_empty.wait(state.index, state.phase)
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
        signals = True if self.is_signaling_thread is None else self.is_signaling_thread
        guarded(signals, lambda: self.sync_object_empty.arrive(state.index, self.consumer_mask))

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
        first = len(values) // 2  # both objects are of one kind
        made.sync_object_full = self.sync_object_full.__new_from_mlir_values__(values[:first])
        made.sync_object_empty = self.sync_object_empty.__new_from_mlir_values__(values[first:])
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

    _PRODUCER = CopyArrival()


class PipelineTmaAsync(PipelineAsync):
    """A pipeline whose buffers the copy engine fills: `producer_acquire` says how many bytes are coming, and copies that are given
    the mbarrier of the buffer (`producer_get_barrier`, `handle.barrier`) deliver them.

    One warp is the producer. Consumers arrive once a warp, in each block of the cluster that fills buffers of this one: all threads of a
    warp release a buffer together, with the same state.
    """

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
        cta_layout_vmnk: Any = None,
        tidx: Any = None,
        mcast_mode_mn: tuple[int, int] = (1, 1),
        enable_multicast_signaling: bool = False,
        defer_sync: bool = False,
        name: str = "",
        loc: Any = None,
        ip: Any = None,
    ) -> Any:
        """As `PipelineAsync.create`. `tx_count`: the bytes of all copies into a buffer, also of those that other blocks make.

        `cta_layout_vmnk`: where the blocks of the cluster are, if copies go to several of them: those of A (`mcast_mode_mn[0]`) to
        all blocks in the row of M, those of B to all in the column of N. The consumers' group counts the arrivals of all warps of
        all blocks that a block shares a row or column with; with `enable_multicast_signaling`, those of this block only.
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
        cta_layout_vmnk: Any, tidx: Any, mcast_mode_mn: tuple[int, int] = (1, 1)
    ) -> tuple[Any, Boolean]:
        """In which block of the cluster a thread releases buffers (None: in its own), and whether it is one that does."""
        return releases(cta_layout_vmnk, tidx, mcast_mode_mn)

    def consumer_release(self, state: PipelineState, *, loc: Any = None, ip: Any = None) -> None:
        """Say that this warp has used a buffer."""
        arch.sync_warp()  # one thread says so for all: what the others have read has been read
        super().consumer_release(state)


class PipelineTmaMultiConsumersAsync(PipelineAsync):
    """A pipeline whose buffers the copy engine fills for consumers of two kinds: the tensor cores of sm_100, and threads.

    `consumer_release` says which kind releases. A buffer is empty when both have, each as often as its group says.
    """

    @classmethod
    def create(  # type: ignore[override]
        cls,
        *,
        num_stages: int,
        producer_group: CooperativeGroup,
        consumer_group_umma: CooperativeGroup,
        consumer_group_async: CooperativeGroup,
        tx_count: int,
        barrier_storage: Pointer | None = None,
        cta_layout_vmnk: Any = None,
        mcast_mode_mn: tuple[int, int] = (1, 1),
        tidx: Any = None,
        enable_multicast_signaling: bool = False,
        defer_sync: bool = False,
        force_deprecated_per_lane_signaling: bool | None = None,
        name: str = "",
        loc: Any = None,
        ip: Any = None,
    ) -> Any:
        """As `PipelineTmaAsync.create`, of one block. Threads release one by one: their group counts threads."""
        if in_cluster(cta_layout_vmnk):
            raise type_error(
                f"a pipeline with consumers of two kinds over the blocks {cta_layout_vmnk}",
                "it belongs to one block: leave out cta_layout_vmnk",
            )
        each = cls._CONSUMER.threads_of_a_warp
        both = CooperativeGroup(Agent.Thread, consumer_group_umma.arrivals(1) + consumer_group_async.arrivals(each))
        sides = (TransactionArrival(tx_count), producer_group), (cls._CONSUMER, both)
        return cls(*cls._barriers(num_stages, *sides, barrier_storage, defer_sync), num_stages)

    @property
    def sync_object_empty_async(self) -> SyncObject:
        """What threads arrive at."""
        return self.sync_object_empty

    def consumer_release(  # type: ignore[override]
        self, state: PipelineState, op_type: PipelineOp = PipelineOp.TCGen05Mma, *, loc: Any = None, ip: Any = None
    ) -> None:
        """Say that this thread (`PipelineOp.AsyncThread`) has used a buffer, or that the tensor cores will have."""
        if op_type is not PipelineOp.AsyncThread:
            raise type_error(
                f"a buffer is released by {getattr(op_type, 'name', op_type)}",
                "threads release it: consumer_release(state, PipelineOp.AsyncThread); tensor cores do on sm_100",
            )
        super().consumer_release(state)
