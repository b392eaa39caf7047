"""Mbarriers: barriers in shared memory that count arrivals and bytes."""

from __future__ import annotations

from ...base_dsl.bindings import ir
from ...base_dsl.typing import Boolean
from ..deferred_dialects import nvgpu
from .values import choice, i1, i32, kernel_only, pointer

__all__ = [
    "cp_async_mbarrier_arrive_noinc",
    "mbarrier_arrive",
    "mbarrier_arrive_and_expect_tx",
    "mbarrier_conditional_try_wait",
    "mbarrier_expect_tx",
    "mbarrier_init",
    "mbarrier_test_wait",
    "mbarrier_try_wait",
    "mbarrier_wait",
]


def _scope(scope: object, remote: bool) -> str:
    if scope is None:
        return "cluster" if remote else "cta"
    return choice("scope", scope, ("cta", "cluster"))


def mbarrier_init(mbar_ptr: object, cnt: object, *, loc: object = None, ip: object = None) -> None:
    """Initialise an mbarrier. One thread does; `mbarrier_init_fence` and a barrier make it visible to the others.

    Args:
        mbar_ptr: 8 bytes of shared memory, at a multiple of 8.
        cnt: how many arrivals complete a phase.
    """
    kernel_only("mbarrier_init")
    nvgpu.mbarrier.mbarrier_init(pointer(mbar_ptr, "mbarrier_init", "smem"), i32(cnt))


def _arrive(
    what: str, mbar_ptr: object, count: object, bytes_: object, peer: object, relaxed: bool, scope: object
) -> None:
    kernel_only(what)
    operands = (pointer(mbar_ptr, what, "smem"), i32(count), i32(bytes_), i32(-1 if peer is None else peer))
    order = "relaxed" if relaxed else "release"
    nvgpu.mbarrier.mbarrier_arrive(*operands, order, _scope(scope, peer is not None))


def mbarrier_arrive(
    mbar_ptr: object,
    peer_cta_rank_in_cluster: object = None,
    arrive_count: object = 1,
    *,
    relaxed: bool = False,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Arrive at an mbarrier of this CTA, or of another CTA of the cluster.

    Args:
        mbar_ptr: the mbarrier, in this CTA's shared memory.
        peer_cta_rank_in_cluster: the rank of another CTA, whose mbarrier at the same place is meant.
        arrive_count: how many arrivals it counts for.
        relaxed: order no memory; by default earlier writes are visible to those who wait.
        scope: which threads the order is for, "cta" or "cluster".
    """
    _arrive("mbarrier_arrive", mbar_ptr, arrive_count, 0, peer_cta_rank_in_cluster, relaxed, scope)


def mbarrier_arrive_and_expect_tx(
    mbar_ptr: object,
    bytes: object,
    peer_cta_rank_in_cluster: object = None,
    relaxed: bool = False,
    scope: object = None,
    *,
    loc: object = None,
    ip: object = None,
) -> None:
    """Add to the bytes that a phase of an mbarrier expects, and arrive: the usual call before TMA loads.

    Needs sm_90 or later.

    Args:
        mbar_ptr: the mbarrier, in this CTA's shared memory.
        bytes: how many bytes asynchronous copies will bring.
        peer_cta_rank_in_cluster: the rank of another CTA, whose mbarrier at the same place is meant.
        relaxed: order no memory; by default earlier writes are visible to those who wait.
        scope: which threads the order is for, "cta" or "cluster".
    """
    _arrive("mbarrier_arrive_and_expect_tx", mbar_ptr, 1, bytes, peer_cta_rank_in_cluster, relaxed, scope)


def mbarrier_expect_tx(
    mbar_ptr: object,
    bytes: object,
    peer_cta_rank_in_cluster: object = None,
    *,
    scope: object = None,
    loc: object = None,
    ip: object = None,
) -> None:
    """Add to the bytes that a phase of an mbarrier expects, without arriving. Needs sm_90 or later.

    Args:
        mbar_ptr: the mbarrier, in this CTA's shared memory.
        bytes: how many bytes asynchronous copies will bring.
        peer_cta_rank_in_cluster: the rank of another CTA, whose mbarrier at the same place is meant.
        scope: which threads the order is for, "cta" or "cluster".
    """
    kernel_only("mbarrier_expect_tx")
    peer = -1 if peer_cta_rank_in_cluster is None else peer_cta_rank_in_cluster
    operands = (pointer(mbar_ptr, "mbarrier_expect_tx", "smem"), i32(bytes), i32(peer))
    nvgpu.mbarrier.mbarrier_expect_tx(*operands, _scope(scope, peer_cta_rank_in_cluster is not None))


def mbarrier_wait(mbar_ptr: object, phase: object, *, loc: object = None, ip: object = None) -> None:
    """Wait until a phase of an mbarrier is complete.

    Args:
        mbar_ptr: the mbarrier in shared memory.
        phase: the parity of the phase, 0 for the first one, 1 for the second, and so on in turn.
    """
    kernel_only("mbarrier_wait")
    nvgpu.mbarrier.mbarrier_wait(pointer(mbar_ptr, "mbarrier_wait", "smem"), i32(phase))


def mbarrier_try_wait(mbar_ptr: object, phase: object, *, loc: object = None, ip: object = None) -> Boolean:
    """Return whether a phase of an mbarrier is complete; it may wait a while for it.

    Args:
        mbar_ptr: the mbarrier in shared memory.
        phase: the parity of the phase, 0 for the first one, 1 for the second, and so on in turn.
    """
    kernel_only("mbarrier_try_wait")
    where = pointer(mbar_ptr, "mbarrier_try_wait", "smem")
    return Boolean._make(nvgpu.mbarrier.mbarrier_try_wait(where, i32(phase)))


def mbarrier_test_wait(mbar_ptr: object, phase: object, *, loc: object = None, ip: object = None) -> Boolean:
    """Return at once whether a phase of an mbarrier is complete.

    Args:
        mbar_ptr: the mbarrier in shared memory.
        phase: the parity of the phase, 0 for the first one, 1 for the second, and so on in turn.
    """
    kernel_only("mbarrier_test_wait")
    where = pointer(mbar_ptr, "mbarrier_test_wait", "smem")
    return Boolean._make(nvgpu.mbarrier.mbarrier_test_wait(where, i32(phase)))


def mbarrier_conditional_try_wait(
    cond: object, mbar_ptr: object, phase: object, *, loc: object = None, ip: object = None
) -> Boolean:
    """Return `mbarrier_try_wait` where a condition holds, else true at once.

    Args:
        cond: a Boolean.
        mbar_ptr: the mbarrier in shared memory.
        phase: the parity of the phase, 0 for the first one, 1 for the second, and so on in turn.
    """
    from ...base_dsl import trace as tracing

    kernel_only("mbarrier_conditional_try_wait")
    branch = tracing.emit("scf.if", (Boolean.mlir_type,), (i1(cond),), regions=2)
    with ir.InsertionPoint(branch.regions[0].blocks.append()):
        tracing.emit("scf.yield", (), (mbarrier_try_wait(mbar_ptr, phase).ir_value(),))
    with ir.InsertionPoint(branch.regions[1].blocks.append()):
        tracing.emit("scf.yield", (), (Boolean(True).ir_value(),))
    return Boolean._make(branch.result)


def cp_async_mbarrier_arrive_noinc(mbar_ptr: object, *, loc: object = None, ip: object = None) -> None:
    """Arrive at an mbarrier when this thread's `cp.async` copies so far are complete. Needs sm_80 or later.

    Args:
        mbar_ptr: the mbarrier in shared memory, initialised with a count that includes this arrival.
    """
    kernel_only("cp_async_mbarrier_arrive_noinc")
    nvgpu.async_copy.cp_async_mbarrier_arrive(pointer(mbar_ptr, "cp_async_mbarrier_arrive_noinc", "smem"))
