"""What traces show of operations, asked of their declarations."""

from __future__ import annotations

import pytest

from kiln.analysis import moments
from kiln.dialects import nvgpu
from kiln.dialects.declaration import DECLARED
from kiln.hardware.engines import THREAD, WGMMA

KINDS = {
    "wait": (
        "mbarrier_wait",
        "mbarrier_try_wait",
        "barrier",
        "cluster_wait",
        "wgmma_wait",
        "cp_async_wait",
        "tcgen05_wait",
    ),
    "arrive": ("mbarrier_arrive", "barrier_arrive", "cluster_arrive", "tcgen05_commit", "cp_async_mbarrier_arrive"),
    "issue": ("wgmma", "tma_load", "tma_store", "bulk_load", "cp_async", "tcgen05_mma", "tcgen05_ld"),
    "compute": ("mma_sync", "mma_sp", "mma_block_scale"),
    "": (
        "shuffle",
        "sync_warp",
        "elect_one",
        "ldmatrix",
        "stmatrix",
        "mbarrier_init",
        "wgmma_commit",
        "fence",
        "atomic_rmw",
    ),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_kinds_follow_from_declarations(kind: str, name: str) -> None:
    assert moments.kind_of(f"cute_nvgpu.{name}") == kind


def test_every_operation_of_an_engine_is_issued_and_every_wait_for_one_is_a_wait() -> None:
    assert nvgpu.OPERATIONS
    for name, kind in DECLARED.items():
        if kind.ENGINE not in (None, THREAD):
            assert moments.kind_of(name) == "issue" and moments.engine_of(name) is kind.ENGINE
        if kind.AWAITS:
            assert moments.kind_of(name) == "wait" and moments.engine_of(name) is kind.AWAITS[0]


def test_what_else_is_known() -> None:
    assert moments.may_fail("cute_nvgpu.mbarrier_try_wait") and not moments.may_fail("cute_nvgpu.mbarrier_wait")
    assert moments.opens_late("cute_nvgpu.barrier") and not moments.opens_late("cute_nvgpu.cluster_wait")
    assert moments.meets_cluster("cute_nvgpu.cluster_arrive") and not moments.meets_cluster("cute_nvgpu.barrier")
    assert moments.commits("cute_nvgpu.wgmma_commit") and moments.engine_of("cute_nvgpu.wgmma_commit") is WGMMA
    assert not moments.kind_of("arith.addi") and moments.engine_of("arith.addi") is None
