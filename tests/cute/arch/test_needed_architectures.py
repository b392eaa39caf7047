"""Docstrings of `cute.arch` name the architecture that a function needs, if sm_80 lacks what it compiles to."""

from __future__ import annotations

import inspect
import re

import pytest

from kiln import Float32, Int32, Int64, cute
from kiln.hardware.features import Feature
from kiln.testing import dry_run

CALLS = {
    "cluster_arrive()", "cluster_arrive_relaxed()", "cluster_wait()", "cluster_idx()", "block_in_cluster_idx()",
    "fence_acq_rel_cluster()", "fence_acq_rel_gpu()", "fence_proxy('async')", "fence_view_async_shared()",
    "fence_view_async_tmem_load()", "fence_view_async_tmem_store()", "mbarrier_init_fence()", "mbarrier_arrive(barrier)",
    "mbarrier_init(barrier, 1)", "mbarrier_wait(barrier, 0)", "mbarrier_try_wait(barrier, 0)",
    "mbarrier_expect_tx(barrier, 4)", "mbarrier_arrive_and_expect_tx(barrier, 4)", "map_dsmem_ptr(barrier, 0)",
    "cp_async_commit_group()", "cp_async_wait_group(0)", "cp_async_bulk_commit_group()", "cp_async_bulk_wait_group(0)",
    "griddepcontrol_wait()", "griddepcontrol_launch_dependents()", "setmaxregister_decrease(40)",
    "setmaxregister_increase(232)", "warpgroup_reg_dealloc(40)", "warpgroup_reg_alloc(232)", "alloc_tmem(32, word)",
    "relinquish_tmem_alloc_permit()", "sync_threads()", "sync_warp()", "elect_one()", "clock64()", "nanosleep(5)",
    "shuffle_sync_bfly(number, 1)", "warp_reduction_sum(number)", "vote_ballot_sync(True)", "rcp_approx(number)",
    "fma_packed_f32x2((number, number), (number, number), (number, number))", "exp_packed_f32x2((number, number))",
}  # fmt: skip


@pytest.mark.quick(12)
@pytest.mark.parametrize("call", sorted(CALLS))
def test_a_docstring_names_what_sm_80_lacks(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused: list[str] = []
    refusal = Feature.refusal

    def heard(self: Feature, *args: object) -> str:
        refused.append(said := refusal(self, *args))  # type: ignore[arg-type]
        return said

    monkeypatch.setattr(Feature, "refusal", heard)

    @cute.kernel
    def kernel():
        barrier, word = cute.arch.alloc_smem(Int64, 1), cute.arch.alloc_smem(Int32, 1)
        number = Float32(cute.arch.lane_idx())
        eval(f"arch.{call}", {"arch": cute.arch, "barrier": barrier, "word": word, "number": number})

    @cute.jit
    def main():
        kernel().launch(grid=1, block=128)

    try:
        with dry_run("sm_80"):
            main()
    except Exception:
        assert any(refused)
    described = inspect.getdoc(getattr(cute.arch, call.partition("(")[0])) or ""
    assert any(refused) == bool(re.search(r"needs sm_\d+", described, re.IGNORECASE)), refused
