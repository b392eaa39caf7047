"""Primitives of CTA barriers, cluster barriers and distributed shared memory."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Boolean, Int32
from ...cute import arch
from ...cute.arch.block_barrier import _check
from ...cute.arch.values import choice, kernel_only
from ...cute.tensor.array import Array
from ...cute.tensor.raw_pointer import raw_pointer
from .addresses import shared


def barrier(
    *, barrier_id: object = None, number_of_threads: object = None, loc: object = None, ip: object = None
) -> None:
    """Wait at a barrier of the CTA for some threads, by default all; whole warps arrive."""
    arch.barrier(barrier_id=barrier_id, number_of_threads=number_of_threads)


def barrier_cta_sync(
    barrier_id: object = 0, *, thread_count: object = None, loc: object = None, ip: object = None
) -> None:
    """Wait at a barrier of the CTA (`barrier.cta.sync`); threads of a warp may arrive on different paths."""
    _emit("barrier_cta_sync", "barrier.cta.sync", barrier_id, thread_count)


def barrier_cta_sync_aligned(
    barrier_id: object = 0, *, thread_count: object = None, loc: object = None, ip: object = None
) -> None:
    """Wait at a barrier of the CTA, all threads of a warp together (`barrier.cta.sync.aligned`)."""
    kernel_only("barrier_cta_sync_aligned")
    arch.barrier(barrier_id=barrier_id, number_of_threads=thread_count)


def barrier_cta_arrive(barrier_id: object, thread_count: object, *, loc: object = None, ip: object = None) -> None:
    """Arrive at a barrier of the CTA without waiting; the count includes the threads that wait."""
    if thread_count is None:
        raise type_error("barrier_cta_arrive() needs a thread_count", "the threads that arrive and those that wait")
    _emit("barrier_cta_arrive", "barrier.cta.arrive", barrier_id, thread_count)


def _emit(what: str, instruction: str, barrier_id: object, thread_count: object) -> None:
    kernel_only(what)
    _check(barrier_id, thread_count)
    values = [barrier_id] if thread_count is None else [barrier_id, thread_count]
    reads = [Int32(x) for x in values if not isinstance(x, int)]
    places = iter(range(len(reads)))
    operands = ", ".join(str(x) if isinstance(x, int) else f"{{$r{next(places)}}}" for x in values)
    arch.inline_ptx(f"{instruction} {operands};", read_only_args=reads)


def barrier_cta_red(
    pred: object,
    barrier_id: object = 0,
    kind: object = "and",
    *,
    thread_count: object = None,
    loc: object = None,
    ip: object = None,
) -> Any:
    """Wait at a barrier and return whether all (`and`) or any (`or`) predicates hold, or (`popc`) how many do."""
    kernel_only("barrier_cta_red")
    _check(barrier_id, thread_count)
    how = choice("kind", kind, ("and", "or", "popc"))
    reads = [Int32(Boolean(pred)), Int32(barrier_id), *([] if thread_count is None else [Int32(thread_count)])]
    operands = ", ".join(["{$r1}", *(["{$r2}"] if thread_count is not None else []), "q"])
    start = "{ .reg .pred p, q; setp.ne.u32 q, {$r0}, 0; "
    if how == "popc":
        code = f"{start}barrier.cta.red.popc.u32 {{$w0}}, {operands}; }}"
        return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=reads)
    code = f"{start}barrier.cta.red.{how}.pred p, {operands}; selp.u32 {{$w0}}, 1, 0, p; }}"
    return arch.inline_ptx(code, write_only_types=[Int32], read_only_args=reads) != 0


def barrier_cluster_arrive(*, loc: object = None, ip: object = None) -> None:
    """Arrive at the cluster's barrier; earlier writes are visible after the wait (`.release`)."""
    kernel_only("barrier_cluster_arrive")
    arch.cluster_arrive()


def barrier_cluster_arrive_relaxed(*, loc: object = None, ip: object = None) -> None:
    """Arrive at the cluster's barrier without ordering memory."""
    kernel_only("barrier_cluster_arrive_relaxed")
    arch.cluster_arrive_relaxed()


def barrier_cluster_wait(*, loc: object = None, ip: object = None) -> None:
    """Wait until all threads of the cluster have arrived (`.acquire`)."""
    kernel_only("barrier_cluster_wait")
    arch.cluster_wait()


def cluster_ctarank(*, loc: object = None, ip: object = None) -> Int32:
    """Return the rank of this CTA in its cluster."""
    kernel_only("cluster_ctarank")
    return arch.block_idx_in_cluster()


def mapa(addr: object, cta_rank: object, *, addrspace: int = 7, loc: object = None, ip: object = None) -> Any:
    """Return the address (or Array) in the shared memory of another CTA that corresponds to one in this CTA's."""
    if addrspace != 7:
        raise type_error(f"addrspace of mapa() is {addrspace!r}", "7, the shared memory of the cluster")
    mapped = raw_pointer(arch.map_dsmem_ptr(shared(addr, "mapa"), cta_rank))
    return addr.at(mapped) if isinstance(addr, Array) else mapped


def barrier_cta_arrive_aligned(
    barrier_id: object, thread_count: object, *, loc: object = None, ip: object = None
) -> None:
    """Arrive at a barrier of the CTA without waiting, all threads of a warp together."""
    if thread_count is None:
        raise type_error("barrier_cta_arrive_aligned() needs a thread_count", "the threads that arrive and that wait")
    _emit("barrier_cta_arrive_aligned", "barrier.cta.arrive.aligned", barrier_id, thread_count)


def barrier_cluster_arrive_aligned(*, loc: object = None, ip: object = None) -> None:
    """Arrive at the cluster's barrier, all threads of a warp together; earlier writes are visible after the wait."""
    kernel_only("barrier_cluster_arrive_aligned")
    arch.cluster_arrive(aligned=True)


def barrier_cluster_arrive_relaxed_aligned(*, loc: object = None, ip: object = None) -> None:
    """Arrive at the cluster's barrier, all threads of a warp together, without ordering memory."""
    kernel_only("barrier_cluster_arrive_relaxed_aligned")
    arch.cluster_arrive_relaxed(aligned=True)


def barrier_cluster_wait_aligned(*, loc: object = None, ip: object = None) -> None:
    """Wait until all threads of the cluster have arrived, all threads of a warp together."""
    kernel_only("barrier_cluster_wait_aligned")
    arch.inline_ptx("barrier.cluster.wait.acquire.aligned;")
