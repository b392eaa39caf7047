"""Mbarriers: barriers in shared memory that count arrivals and bytes."""

from __future__ import annotations

from typing import Any

from ...base_dsl.bindings import ir
from ...base_dsl.typing import Boolean
from ..deferred_dialects import nvgpu
from .values import choice, i1, i32, kernel_only, pointer

__all__ = [
    "cp_async_mbarrier_arrive_noinc", "mbarrier_arrive", "mbarrier_arrive_and_expect_tx",
    "mbarrier_conditional_try_wait", "mbarrier_expect_tx", "mbarrier_init", "mbarrier_test_wait",
    "mbarrier_try_wait", "mbarrier_wait",
]  # fmt: skip


def _scope(scope: Any, remote: bool) -> str:
    if scope is None:
        return "cluster" if remote else "cta"
    return choice("scope", scope, ("cta", "cluster"))


def mbarrier_init(mbar_ptr: Any, cnt: Any, *, loc: Any = None, ip: Any = None) -> None:
    """Initialise an mbarrier that expects `cnt` arrivals a phase."""
    kernel_only("mbarrier_init")
    nvgpu.mbarrier.mbarrier_init(pointer(mbar_ptr, "mbarrier_init", "smem"), i32(cnt))


def _arrive(what: str, mbar_ptr: Any, count: Any, bytes_: Any, peer: Any, relaxed: bool, scope: Any) -> None:
    kernel_only(what)
    operands = (pointer(mbar_ptr, what, "smem"), i32(count), i32(bytes_), i32(-1 if peer is None else peer))
    order = "relaxed" if relaxed else "release"
    nvgpu.mbarrier.mbarrier_arrive(*operands, order, _scope(scope, peer is not None))


def mbarrier_arrive(
    mbar_ptr: Any, peer_cta_rank_in_cluster: Any = None, arrive_count: Any = 1, *, relaxed: bool = False,
    scope: Any = None, loc: Any = None, ip: Any = None,
) -> None:  # fmt: skip
    """Arrive `arrive_count` times at an mbarrier of this CTA, or of CTA `peer_cta_rank_in_cluster` of the cluster.

    With `relaxed` the arrival orders no memory.
    """
    _arrive("mbarrier_arrive", mbar_ptr, arrive_count, 0, peer_cta_rank_in_cluster, relaxed, scope)


def mbarrier_arrive_and_expect_tx(
    mbar_ptr: Any, bytes: Any, peer_cta_rank_in_cluster: Any = None, relaxed: bool = False, scope: Any = None, *,
    loc: Any = None, ip: Any = None,
) -> None:  # fmt: skip
    """Add `bytes` to the tx-count of the phase, and arrive."""
    _arrive("mbarrier_arrive_and_expect_tx", mbar_ptr, 1, bytes, peer_cta_rank_in_cluster, relaxed, scope)


def mbarrier_expect_tx(
    mbar_ptr: Any, bytes: Any, peer_cta_rank_in_cluster: Any = None, *, scope: Any = None, loc: Any = None,
    ip: Any = None,
) -> None:  # fmt: skip
    """Add `bytes` to the tx-count of the phase."""
    kernel_only("mbarrier_expect_tx")
    peer = -1 if peer_cta_rank_in_cluster is None else peer_cta_rank_in_cluster
    operands = (pointer(mbar_ptr, "mbarrier_expect_tx", "smem"), i32(bytes), i32(peer))
    nvgpu.mbarrier.mbarrier_expect_tx(*operands, _scope(scope, peer_cta_rank_in_cluster is not None))


def mbarrier_wait(mbar_ptr: Any, phase: Any, *, loc: Any = None, ip: Any = None) -> None:
    """Wait until the phase of a parity (0 or 1) is complete."""
    kernel_only("mbarrier_wait")
    nvgpu.mbarrier.mbarrier_wait(pointer(mbar_ptr, "mbarrier_wait", "smem"), i32(phase))


def mbarrier_try_wait(mbar_ptr: Any, phase: Any, *, loc: Any = None, ip: Any = None) -> Boolean:
    """Return whether the phase of a parity is complete; may wait a while for it."""
    kernel_only("mbarrier_try_wait")
    where = pointer(mbar_ptr, "mbarrier_try_wait", "smem")
    return Boolean._make(nvgpu.mbarrier.mbarrier_try_wait(where, i32(phase)))


def mbarrier_test_wait(mbar_ptr: Any, phase: Any, *, loc: Any = None, ip: Any = None) -> Boolean:
    """Return whether the phase of a parity is complete now."""
    kernel_only("mbarrier_test_wait")
    where = pointer(mbar_ptr, "mbarrier_test_wait", "smem")
    return Boolean._make(nvgpu.mbarrier.mbarrier_test_wait(where, i32(phase)))


def mbarrier_conditional_try_wait(cond: Any, mbar_ptr: Any, phase: Any, *, loc: Any = None, ip: Any = None) -> Boolean:
    """Return `mbarrier_try_wait` where `cond` holds, else true at once."""
    from ...base_dsl import trace as tracing

    kernel_only("mbarrier_conditional_try_wait")
    branch = tracing.emit("scf.if", (Boolean.mlir_type,), (i1(cond),), regions=2)
    with ir.InsertionPoint(branch.regions[0].blocks.append()):
        tracing.emit("scf.yield", (), (mbarrier_try_wait(mbar_ptr, phase).ir_value(),))
    with ir.InsertionPoint(branch.regions[1].blocks.append()):
        tracing.emit("scf.yield", (), (Boolean(True).ir_value(),))
    return Boolean._make(branch.result)


def cp_async_mbarrier_arrive_noinc(mbar_ptr: Any, *, loc: Any = None, ip: Any = None) -> None:
    """Arrive at an mbarrier when this thread's asynchronous copies so far are complete."""
    kernel_only("cp_async_mbarrier_arrive_noinc")
    nvgpu.async_copy.cp_async_mbarrier_arrive(pointer(mbar_ptr, "cp_async_mbarrier_arrive_noinc", "smem"))
