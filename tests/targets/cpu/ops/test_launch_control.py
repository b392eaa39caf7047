"""Cluster launch control on the CPU target: every cluster of a grid is worked on once, whoever does it."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import launcher, run, runs
from mma_cases import elements_of

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLUserCodeRuntimeError
from kiln.cute import arch
from kiln.dialects.nvgpu import launch_control


def answer(response):
    return elements_of(launch_control.clc_query_cancel(response.ir_value()), cute.Int32)


def persistent(wrong: str = ""):
    """Clusters of two blocks that count tiles in `out`: their own, and those that they take over."""

    @cute.kernel
    def kernel(out: cute.Tensor, owners: cute.Tensor):
        response, barrier = arch.alloc_smem(cute.Int32, 4, 16), arch.alloc_smem(cute.Int64, 1)
        t, rank = arch.thread_idx()[0], arch.block_idx_in_cluster()
        bx, by, bz = arch.block_idx()
        if t == 0:
            arch.mbarrier_init(barrier, 1)
            arch.mbarrier_init_fence()
        arch.cluster_arrive()
        arch.cluster_wait()
        x, y, z = cute.Int32(bx), cute.Int32(by), cute.Int32(bz)
        me = bx + 4 * (by + 3 * bz)
        phase, goes_on = cute.Int32(0), cute.Boolean(True)
        while goes_on:
            if t == 0:
                place = x + 4 * (y + 3 * z)
                out[place] += 1
                owners[place] = me
                if wrong != "not armed" or rank == 0:
                    arch.mbarrier_arrive_and_expect_tx(barrier, 16)
            arch.cluster_arrive()
            arch.cluster_wait()
            if rank == 0:
                if t == 0:
                    launch_control.clc_try_cancel(response.ir_value(), barrier.ir_value(), multicast=True)
            arch.mbarrier_wait(barrier, phase)
            phase = phase ^ 1
            first_x, first_y, first_z, found = answer(response)
            x, y, z = first_x + rank, first_y, first_z
            goes_on = found != 0
            arch.fence_view_async_shared()
            arch.cluster_arrive()
            arch.cluster_wait()
        if wrong == "once more":
            if rank == 0:
                if t == 0:
                    launch_control.clc_try_cancel(response.ir_value(), barrier.ir_value(), multicast=True)

    return kernel


GRID = {"grid": (4, 3, 2), "block": 32, "cluster": (2, 1, 1)}


def test_each_cluster_is_worked_on_once():
    kernel, taken = persistent(), set()
    schedules = [(1, 0), (2, 0), *((workers, seed) for workers in (1, 2) for seed in range(1, 5))]
    for (workers, seed), (out, owners) in zip(
        schedules,
        runs(kernel, np.zeros(24, np.int32), np.zeros(24, np.int32), schedules=schedules, **GRID),
        strict=True,
    ):
        assert (out == 1).all()
        theirs = int((owners != np.arange(24)).sum()) // 2
        if seed == 0:
            assert theirs == 0  # 12 clusters start together on a GPU
        taken.add(theirs)
    assert max(taken) > 3


def test_a_seed_repeats_who_takes_what():
    """However many OS threads there are."""
    schedules = [(workers, seed) for seed in (1, 2) for workers in (2, 1, 2, 2)]
    out, owners = np.zeros(24, np.int32), np.zeros(24, np.int32)
    found = [whose.tolist() for _, whose in runs(persistent(), out, owners, schedules=schedules, **GRID)]
    assert found[:4] == [found[0]] * 4 and found[4:] == [found[4]] * 4
    assert found[0] != found[4]


def test_clusters_take_what_does_not_fit_a_gpu(monkeypatch):
    """With room for two clusters, each takes five of the other ten; with one thread the first takes its share."""
    import dataclasses

    from kiln.targets.cpu import launch

    known = launch.device_of
    monkeypatch.setattr(launch, "device_of", lambda name: dataclasses.replace(known(name), sm_count=4))
    with kiln.target("cpu"):
        out, owners = np.zeros(24, np.int32), np.zeros(24, np.int32)
        launcher(persistent(), 2, **GRID)(out, owners)
    assert (out == 1).all()
    assert len(set(owners.tolist())) == 4


def test_cooperative_launches_cancel_nothing():
    out, owners = np.zeros(24, np.int32), np.zeros(24, np.int32)
    for seed in (0, 3):
        for found, whose in runs(persistent(), out, owners, schedules=[(1, seed)], cooperative=True, **GRID):
            assert (found == 1).all() and (whose == np.arange(24)).all()


def test_a_request_after_an_answer_that_says_no_is_a_fault():
    with pytest.raises(DSLUserCodeRuntimeError, match="clc_try_cancel by a thread that has read that there is no"):
        run(persistent("once more"), np.zeros(24, np.int32), np.zeros(24, np.int32), **GRID)


def test_a_response_is_aligned():
    @cute.kernel
    def kernel(out: cute.Tensor):
        response, barrier = arch.alloc_smem(cute.Int32, 8, 16), arch.alloc_smem(cute.Int64, 1)
        if arch.thread_idx()[0] == 0:
            launch_control.clc_try_cancel((response + 1).ir_value(), barrier.ir_value())

    with pytest.raises(DSLUserCodeRuntimeError, match="a response that is not aligned to 16 bytes"):
        run(kernel, np.zeros(1, np.int32))
