"""Barriers at which the sides of a pipeline meet: named barriers of the CTA, and arrays of mbarriers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from ..base_dsl.diagnostics import type_error
from ..base_dsl.typing import Boolean, Int32, Int64
from ..cute import arch
from ..cute.atoms.copying import guarded
from ..cute.layout.layout import Layout, size
from ..cute.nvgpu.common import CtaGroup
from ..cute.tensor.pointer import Pointer, recast_ptr
from ..hardware.limits import BARRIERS
from .arrivals import Arrival, CopyArrival, ThreadArrival, TransactionArrival, UmmaArrival
from .groups import Agent, CooperativeGroup, PipelineOp


class SyncObject:
    """An object to arrive at and to wait for."""

    announces: bool = False
    """Whether a side arrives when it takes a stage rather than when it is done with it."""

    def arrive(self, *args: Any, **kwargs: Any) -> None:
        """Arrive for this thread."""
        raise NotImplementedError

    def wait(self, *args: Any, **kwargs: Any) -> None:
        """Wait until all have arrived."""
        raise NotImplementedError

    def arrive_and_wait(self, *args: Any, **kwargs: Any) -> None:
        """Arrive, and wait until all have arrived."""
        raise NotImplementedError

    def try_wait(self, *args: Any, **kwargs: Any) -> Any:
        """Return whether a wait would return at once."""
        raise self._without("cannot be asked whether it is complete", "wait for it")

    def get_barrier(self, *args: Any, **kwargs: Any) -> Any:
        """Return the barrier."""
        raise self._without("has no barrier", "only pipelines with mbarriers do")

    def _without(self, message: str, hint: str) -> Exception:
        return type_error(f"{type(self).__name__} {message}", hint)

    def max(self) -> int | None:
        """Return the largest number of such objects."""
        return None

    def __extract_mlir_values__(self) -> list[Any]:
        return []

    def __new_from_mlir_values__(self, values: Sequence[object]) -> Any:
        return self


@dataclasses.dataclass(frozen=True)
class NamedBarrier(SyncObject):
    """Barrier `barrier_id` (1 to 15) of the CTA, for `num_threads` threads, a multiple of 32.

    Barrier 0 is that of `cute.arch.sync_threads`.
    """

    barrier_id: Any
    num_threads: Any

    __kiln_immutable__ = True

    def __post_init__(self) -> None:
        if isinstance(self.barrier_id, int) and not 0 <= self.barrier_id < BARRIERS:
            hint = f"a block has the barriers 0 to {BARRIERS - 1}"
            raise type_error(f"barrier_id is {self.barrier_id}", hint)

    def arrive(self, *, loc: object = None, ip: object = None) -> None:  # type: ignore[override]
        """Arrive without waiting."""
        arch.barrier_arrive(barrier_id=self.barrier_id, number_of_threads=self.num_threads)

    arrive_unaligned = arrive

    def wait(self, *, loc: object = None, ip: object = None) -> None:  # type: ignore[override]
        """Arrive, and wait until all have arrived."""
        arch.barrier(barrier_id=self.barrier_id, number_of_threads=self.num_threads)

    arrive_and_wait = wait_unaligned = sync = wait

    def arrive_and_drop(self, *, loc: object = None, ip: object = None) -> None:
        """Raise an error: named barriers cannot drop a thread."""
        raise type_error("arrive_and_drop: a thread cannot leave a named barrier")

    def get_barrier(self, *, loc: object = None, ip: object = None) -> Any:
        """Return the number of the barrier."""
        return self.barrier_id

    def max(self) -> int:
        """Return the number of barriers."""
        return 16


class MbarrierArray(SyncObject):
    """`num_stages` mbarriers in shared memory, at each of which the group of `agent` arrives once a phase.

    All threads of the CTA construct it, and one of them initialises the mbarriers.

    Args:
        barrier_storage: a pointer to the mbarriers, 8 bytes each.
        num_stages: how many there are.
        agent: how is arrived, a `PipelineOp`, and the `CooperativeGroup` that arrives.
        tx_count: the bytes that complete a phase as well, where TMA fills the stages.
    """

    __kiln_immutable__ = True

    def __init__(
        self,
        barrier_storage: Pointer,
        num_stages: int,
        agent: tuple[PipelineOp, CooperativeGroup],
        tx_count: int | Int32 = 0,
        *,
        loc: object = None,
        ip: object = None,
    ) -> None:
        op, group = agent
        self._set(barrier_storage, num_stages, arrival_of(op, tx_count), group)
        self.init()

    @classmethod
    def without_init(
        cls, barrier_storage: Pointer, num_stages: int, arrival: Arrival, group: CooperativeGroup
    ) -> MbarrierArray:
        """Return the mbarriers at which a group arrives in the way of `arrival`; `init` initialises them."""
        barriers = object.__new__(cls)
        barriers._set(barrier_storage, num_stages, arrival, group)
        return barriers

    def _set(self, barrier_storage: Pointer, num_stages: int, arrival: Arrival, group: CooperativeGroup) -> None:
        if barrier_storage.dtype is not Int64:
            barrier_storage = recast_ptr(barrier_storage, None, Int64)
        if not isinstance(group, CooperativeGroup):
            raise type_error(
                f"a pipeline's producer_group and consumer_group are groups of agents, not {group!r}",
                "pipeline.CooperativeGroup(pipeline.Agent.Thread, number of threads)",
            )
        self._base = barrier_storage
        self._num_stages = num_stages
        self._arrival = arrival
        self._group = group
        self.announces: bool = arrival.announces

    @property
    def barrier_storage(self) -> Pointer:
        """The mbarrier of the first stage; those of the others follow it."""
        return self._base

    @property
    def arrival(self) -> Arrival:
        """How agents arrive."""
        return self._arrival

    @property
    def op(self) -> PipelineOp:
        """The kind of agent that arrives."""
        return self._arrival.op

    @property
    def arrive_count(self) -> Any:
        """The arrivals that complete a phase."""
        return self._group.arrivals(self._arrival.threads_of_a_warp)

    @property
    def tx_count(self) -> Any:
        """The bytes that complete a phase, besides arrivals."""
        return getattr(self._arrival, "tx_count", 0)

    def arrived_by(self, arrival: Arrival) -> MbarrierArray:
        """Return the same mbarriers, at which agents of another kind arrive, too; the group counts both kinds."""
        return MbarrierArray.without_init(self._base, self._num_stages, arrival, self._group)

    def recast_to_new_op_type(self, new_op_type: PipelineOp) -> MbarrierArray:
        """Return the same mbarriers, at which agents arrive in the way of another `PipelineOp`."""
        return self.arrived_by(arrival_of(new_op_type, self.tx_count))

    def init(self) -> None:
        """Initialise the mbarriers with one thread; the others may use them after a barrier."""
        first = (arch.warp_idx() == 0) & (arch.lane_idx() == 0)

        def make() -> None:
            for stage in range(self._num_stages):
                arch.mbarrier_init(self._base + stage, self.arrive_count)

        guarded(first, make)

    mbarrier_init = init

    def arrive(  # type: ignore[override]
        self,
        index: object,
        dst: object = None,
        cta_group: CtaGroup | None = None,
        *,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Arrive at the mbarrier of a stage, of this CTA or of those in `dst`.

        Args:
            index: the stage.
            dst: a rank in the cluster or, for the tensor cores, a mask of ranks; None for this CTA.
            cta_group: whether MMAs of this CTA or of a pair of CTAs arrive, where the tensor cores do.
        """
        arrival = self._arrival
        if cta_group is not None and isinstance(arrival, UmmaArrival):
            arrival = UmmaArrival(cta_group)
        arrival.arrive(self.get_barrier(index), dst)

    def arrive_mbarrier(self, index: object, dst_rank: object = None, *, loc: object = None, ip: object = None) -> None:
        """Let this thread arrive at the mbarrier of a stage, of this CTA or of the one with rank `dst_rank`."""
        ThreadArrival().arrive(self.get_barrier(index), dst_rank)

    def arrive_cp_async_mbarrier(self, index: object, *, loc: object = None, ip: object = None) -> None:
        """Let this thread arrive at the mbarrier of a stage when its `cp.async` copies so far are complete."""
        CopyArrival().arrive(self.get_barrier(index), None)

    def arrive_tcgen05mma(
        self,
        index: object,
        mask: object = None,
        cta_group: CtaGroup = CtaGroup.ONE,
        *,
        loc: object = None,
        ip: object = None,
    ) -> None:
        """Let the tensor cores arrive at the mbarrier of a stage, in the CTAs of `mask`, when MMAs so far are complete."""
        UmmaArrival(cta_group).arrive(self.get_barrier(index), mask)

    def arrive_and_expect_tx(self, index: object, tx_count: object, *, loc: object = None, ip: object = None) -> None:
        """Let one thread of the warp arrive at the mbarrier of a stage and announce how many bytes are coming."""
        TransactionArrival(tx_count).arrive(self.get_barrier(index), None)

    def arrive_and_drop(self, *, loc: object = None, ip: object = None) -> None:
        """Raise an error: nobody leaves the group of an mbarrier."""
        raise self._without("cannot drop an agent", "arrive, in each phase")

    def wait(self, index: object, phase: object, *, loc: object = None, ip: object = None) -> None:  # type: ignore[override]
        """Wait until the phase of a stage is complete."""
        arch.mbarrier_wait(self.get_barrier(index), phase)

    def try_wait(self, index: object, phase: object, *, loc: object = None, ip: object = None) -> Boolean:
        """Return whether the phase of a stage is complete."""
        return arch.mbarrier_try_wait(self.get_barrier(index), phase)

    def get_barrier(self, index: object, *, loc: object = None, ip: object = None) -> Pointer:
        """Return the mbarrier of a stage."""
        return self._base + index

    def __extract_mlir_values__(self) -> list[Any]:
        return self._base.__extract_mlir_values__()

    def __new_from_mlir_values__(self, values: Sequence[object]) -> MbarrierArray:
        base = self._base.__new_from_mlir_values__(values)
        return MbarrierArray.without_init(base, self._num_stages, self._arrival, self._group)


def arrival_of(op: PipelineOp, tx_count: int | Int32 = 0) -> Arrival:
    """Return how agents of a `PipelineOp` arrive; `tx_count` bytes complete a phase where TMA fills the stages."""
    if op is PipelineOp.TmaLoad:
        return TransactionArrival(tx_count)
    if op not in _ARRIVALS:
        raise type_error(
            f"agents of {op} arrive at no mbarrier", f"{', '.join(map(str, _ARRIVALS))} or PipelineOp.TmaLoad"
        )
    return _ARRIVALS[op]()


_ARRIVALS: dict[PipelineOp, Callable[[], Arrival]] = {
    PipelineOp.AsyncThread: ThreadArrival,
    PipelineOp.AsyncLoad: CopyArrival,
    PipelineOp.TCGen05Mma: lambda: UmmaArrival(CtaGroup.ONE),
}


def described(barrier: object) -> tuple[str, str]:
    """Return who arrives at a barrier of a pipeline, and how often until a phase is complete, for people."""
    if not isinstance(barrier, MbarrierArray):
        pending = getattr(barrier, "pending", None)
        return type(barrier).__name__.lstrip("_"), "none" if pending is None else f"groups, {pending} may be pending"
    bytes_too = f" and {barrier.tx_count} bytes" if barrier.tx_count != 0 else ""
    return barrier.op.name, f"{barrier.arrive_count}{bytes_too}"


def alloc_reserved_mbarrier(num_stages: int, *, multiplier: int = 2, loc: object = None, ip: object = None) -> Pointer:
    """Allocate shared memory for the mbarriers of a pipeline, and return a pointer to it.

    Args:
        num_stages: the stages of the pipeline.
        multiplier: mbarriers of a stage: full and empty.
    """
    return arch.alloc_smem(Int64, num_stages * multiplier, alignment=8)


def agent_sync(group: Agent, is_relaxed: bool = False, *, loc: object = None, ip: object = None) -> None:
    """Wait for all threads of the warp, the CTA or the cluster.

    Args:
        group: `Agent.Warp`, `Agent.ThreadBlock` or `Agent.ThreadBlockCluster`.
        is_relaxed: order no memory among the CTAs of a cluster.
    """
    if group is Agent.Warp:
        arch.sync_warp()
    elif group is Agent.ThreadBlock:
        arch.sync_threads()
    elif group is Agent.ThreadBlockCluster:
        (arch.cluster_arrive_relaxed if is_relaxed else arch.cluster_arrive)()
        arch.cluster_wait()
    else:
        raise type_error(f"agent_sync cannot wait for {group!r}", "Agent.Warp, ThreadBlock or ThreadBlockCluster")


def sync(barrier_id: int = 0, *, loc: object = None, ip: object = None) -> None:
    """Wait at barrier `barrier_id`, 0 to 15, for all threads of the CTA."""
    arch.barrier(barrier_id=barrier_id)


def arrive_and_wait(barrier_id: object, num_threads: object, *, loc: object = None, ip: object = None) -> None:
    """Wait at barrier `barrier_id`, 0 to 15, for `num_threads` threads, a multiple of 32."""
    arch.barrier(barrier_id=barrier_id, number_of_threads=num_threads)


def arrive(barrier_id: object, num_threads: object, *, loc: object = None, ip: object = None) -> None:
    """Arrive at barrier `barrier_id`, 0 to 15, of `num_threads` threads without waiting."""
    NamedBarrier(barrier_id, num_threads).arrive()


def wait(barrier_id: object, num_threads: object, *, loc: object = None, ip: object = None) -> None:
    """Wait at barrier `barrier_id`, 0 to 15, for `num_threads` threads, a multiple of 32: `arrive_and_wait`."""
    NamedBarrier(barrier_id, num_threads).wait()


arrive_unaligned = arrive
wait_unaligned = wait


def in_cluster(cluster_shape_mn: Any) -> bool:
    """Return whether a shape or layout of a cluster has more than one CTA."""
    if cluster_shape_mn is None:
        return False
    blocks = size(cluster_shape_mn if isinstance(cluster_shape_mn, Layout) else tuple(cluster_shape_mn))
    return not isinstance(blocks, int) or blocks > 1


def pipeline_init_arrive(
    cluster_shape_mn: object = None, is_relaxed: bool = False, *, loc: object = None, ip: object = None
) -> None:
    """Make new mbarriers visible to the other CTAs of the cluster; `pipeline_init_wait` waits for theirs.

    Args:
        cluster_shape_mn: the CTAs of the cluster, a shape or layout; None for no cluster.
        is_relaxed: order no other memory among the CTAs.
    """
    arch.mbarrier_init_fence()
    if in_cluster(cluster_shape_mn):
        (arch.cluster_arrive_relaxed if is_relaxed else arch.cluster_arrive)()


def pipeline_init_wait(cluster_shape_mn: object = None, *, loc: object = None, ip: object = None) -> None:
    """Wait until the mbarriers of the CTA, or of the cluster, are initialised.

    Args:
        cluster_shape_mn: the CTAs of the cluster, as for `pipeline_init_arrive`.
    """
    if in_cluster(cluster_shape_mn):
        arch.cluster_wait()
    else:
        arch.sync_threads()
