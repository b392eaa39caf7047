"""Mbarriers, asynchronous copies and pipelines."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import run, runs

from kiln import cute
from kiln.cute import arch
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault


def shared(count: int, kind=cute.Int32):
    return cute.make_tensor(arch.alloc_smem(kind, count, 16), cute.make_layout(count))


@pytest.mark.parametrize("stages", [1, 3])
def test_a_ring_with_full_and_empty_barriers(stages):
    rounds = 10

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        ring = shared(32 * stages)
        full, empty = arch.alloc_smem(cute.Int64, stages), arch.alloc_smem(cute.Int64, stages)
        t, warp = arch.thread_idx()[0], arch.warp_idx()
        if t == 0:
            for s in range(stages):
                arch.mbarrier_init(full + s, 32)
                arch.mbarrier_init(empty + s, 64)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        if warp == 0:
            for i in range(cute.Int32(rounds)):
                s, phase = i % stages, (i // stages) % 2
                arch.mbarrier_wait(empty + s, phase ^ 1)
                ring[s * 32 + t] = x[i * 32 + t]
                arch.mbarrier_arrive(full + s)
        else:
            for i in range(cute.Int32(rounds)):
                s, phase = i % stages, (i // stages) % 2
                arch.mbarrier_wait(full + s, phase)
                if warp == 1:
                    out[i * 32 + t - 32] = ring[s * 32 + 63 - t]
                arch.mbarrier_arrive(empty + s)

    x = np.arange(rounds * 32, dtype=np.int32)
    for _, out in runs(kernel, x, np.zeros_like(x), block=96):
        np.testing.assert_array_equal(out.reshape(rounds, 32), x.reshape(rounds, 32)[:, ::-1])


@pytest.mark.parametrize("kind", ["wait", "try", "test"])
def test_all_ways_to_wait(kind):
    @cute.kernel
    def kernel(out: cute.Tensor):
        data = shared(32)
        barrier = arch.alloc_smem(cute.Int64, 1)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(barrier, 32)
        arch.sync_threads()
        if t < 32:
            if kind == "wait":
                arch.mbarrier_wait(barrier, 0)
            elif kind == "try":
                done = arch.mbarrier_try_wait(barrier, 0)
                while not done:
                    done = arch.mbarrier_try_wait(barrier, 0)
            else:
                done = arch.mbarrier_test_wait(barrier, 0)
                while not done:
                    done = arch.mbarrier_test_wait(barrier, 0)
            out[t] = data[t]
        else:
            data[t - 32] = t * 3
            arch.mbarrier_arrive(barrier)

    for (out,) in runs(kernel, np.zeros(32, np.int32), block=64):
        np.testing.assert_array_equal(out, np.arange(32, 64) * 3)


def test_a_look_ahead_that_fails_does_not_stop_the_thread():
    """A consumer peeks at the next phase before it gives back what the producer needs to complete it."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        full, empty = arch.alloc_smem(cute.Int64, 1), arch.alloc_smem(cute.Int64, 1)
        data = shared(1)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init(empty, 1)
        arch.sync_threads()
        if t == 0:
            for i in range(cute.Int32(6)):
                arch.mbarrier_wait(empty, (i % 2) ^ 1)
                data[0] = i * i
                arch.mbarrier_arrive(full)
        if t == 32:
            ready = arch.mbarrier_try_wait(full, 0)
            for i in range(cute.Int32(6)):
                if not ready:
                    arch.mbarrier_wait(full, i % 2)
                out[i] = data[0]
                ready = arch.mbarrier_try_wait(full, (i + 1) % 2)  # cannot be complete: the producer waits for `empty`
                arch.mbarrier_arrive(empty)
                ready = cute.Boolean(False)

    for (out,) in runs(kernel, np.zeros(6, np.int32), block=64):
        np.testing.assert_array_equal(out, np.arange(6) ** 2)


def test_bytes_that_are_missing_hold_a_phase_back():
    @cute.kernel
    def kernel(out: cute.Tensor):
        barrier = arch.alloc_smem(cute.Int64, 1)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(barrier, 2)
            arch.mbarrier_arrive_and_expect_tx(barrier, 64)
            arch.mbarrier_expect_tx(barrier, 36)
            arch.mbarrier_arrive(barrier)
            out[0] = cute.Int32(arch.mbarrier_test_wait(barrier, 0))
            arch.mbarrier_expect_tx(barrier, -60)
            out[1] = cute.Int32(arch.mbarrier_test_wait(barrier, 0))
            arch.mbarrier_expect_tx(barrier, -40)
            out[2] = cute.Int32(arch.mbarrier_test_wait(barrier, 0))
            out[3] = cute.Int32(arch.mbarrier_test_wait(barrier, 1))

    for (out,) in runs(kernel, np.full(4, -1, np.int32)):
        np.testing.assert_array_equal(out, [0, 0, 1, 0])


def test_an_arrival_can_count_for_several():
    @cute.kernel
    def kernel(out: cute.Tensor):
        barrier = arch.alloc_smem(cute.Int64, 1)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(barrier, 10)
        arch.sync_threads()
        if t == 0:
            arch.mbarrier_arrive(barrier, arrive_count=7)
        if t == 32:
            arch.mbarrier_arrive(barrier, arrive_count=3)
        arch.mbarrier_wait(barrier, 0)
        out[t] = 1

    for (out,) in runs(kernel, np.zeros(64, np.int32), block=64):
        assert (out == 1).all()


@pytest.mark.parametrize("parity", [0, 1])
def test_a_phase_that_never_completes_is_a_deadlock(parity):
    @cute.kernel
    def kernel(out: cute.Tensor):
        barrier = arch.alloc_smem(cute.Int64, 1)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(barrier, 33)
            arch.mbarrier_expect_tx(barrier, 512)
        arch.sync_threads()
        if t < 32:
            arch.mbarrier_arrive(barrier)
        if t >= 32:
            while not arch.mbarrier_try_wait(barrier, parity):
                pass
        out[t] = 1

    if parity == 1:
        for (out,) in runs(kernel, np.zeros(64, np.int32), block=64):
            assert (out == 1).all()
        return
    with pytest.raises(DeadlockFault) as caught:
        run(kernel, np.zeros(64, np.int32), block=64)
    text = str(caught.value)
    assert (
        "threads 32-63 (warp 1) of block (0, 0, 0) wait at an mbarrier (phase 0 misses 1 arrival and 512 bytes)" in text
    )
    assert "threads 0-31 (warp 0) of block (0, 0, 0): exited" in text


def cp_async(target, source, size, bytes_=None):
    """`cp.async` of `size` bytes, of which `bytes_` are copied and the rest are zeros."""
    from kiln.cute.arch.values import i32
    from kiln.dialects import nvgpu

    read = i32(size if bytes_ is None else bytes_)
    nvgpu.async_copy.cp_async(target.ir_value(), source.ir_value(), read, size, "ca")


@pytest.mark.parametrize("stages", [2, 4])
def test_a_multistage_pipeline_of_copies(stages):
    tiles = 9

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        ring = shared(64 * stages)
        t = arch.thread_idx()[0]
        for s in range(stages - 1):
            cp_async(ring.iterator + (s * 64 + t), x.iterator + (s * 64 + t), 4)
            arch.cp_async_commit_group()
        for i in range(cute.Int32(tiles)):
            arch.cp_async_wait_group(stages - 2)
            arch.sync_threads()
            ahead = i + stages - 1
            if ahead < tiles:
                cp_async(ring.iterator + (ahead % stages * 64 + t), x.iterator + (ahead * 64 + t), 4)
            arch.cp_async_commit_group()
            out[i * 64 + t] = ring[i % stages * 64 + 63 - t]

    x = np.arange(tiles * 64, dtype=np.int32)
    for _, out in runs(kernel, x, np.zeros_like(x), block=64):
        np.testing.assert_array_equal(out.reshape(tiles, 64), x.reshape(tiles, 64)[:, ::-1])


@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies_of_all_sizes_with_zeros_at_the_end(size):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        tile = shared(32 * 16, cute.Uint8)
        t = arch.thread_idx()[0]
        for i in range(16):
            tile[t * 16 + i] = cute.Uint8(255)
        cp_async(tile.iterator + t * 16, x.iterator + t * 16, size, t % (size + 1))
        arch.cp_async_commit_group()
        arch.cp_async_wait_group(0)
        for i in range(16):
            out[t * 16 + i] = tile[t * 16 + i]

    x = np.arange(512, dtype=np.uint8) | 1
    want = np.full((32, 16), 255, np.uint8)
    for t in range(32):
        want[t, :size] = np.where(np.arange(size) < t % (size + 1), x.reshape(32, 16)[t, :size], 0)
    for _, out in runs(kernel, x, np.zeros(512, np.uint8)):
        np.testing.assert_array_equal(out.reshape(32, 16), want)


def test_copies_that_arrive_at_an_mbarrier():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        tile = shared(64)
        barrier = arch.alloc_smem(cute.Int64, 1)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.mbarrier_init(barrier, 64)
        arch.sync_threads()
        cp_async(tile.iterator + t, x.iterator + t, 4)
        arch.cp_async_mbarrier_arrive_noinc(barrier)
        arch.mbarrier_wait(barrier, 0)
        out[t] = tile[63 - t]

    x = np.arange(64, dtype=np.int32)
    for _, out in runs(kernel, x, np.zeros_like(x), block=64):
        np.testing.assert_array_equal(out, x[::-1])


def test_a_seed_finds_a_missing_wait():
    """Without a wait the copy may land after it is read: some seed shows it, the default does not."""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        tile = shared(32)
        t = arch.thread_idx()[0]
        tile[t] = -1
        cp_async(tile.iterator + t, x.iterator + t, 4)
        arch.cp_async_commit_group()
        out[t] = tile[t]

    x = np.arange(32, dtype=np.int32)
    results = [out for _, out in runs(kernel, x, np.zeros_like(x), schedules=[(1, seed) for seed in range(4)])]
    np.testing.assert_array_equal(results[0], x)
    assert any((out == -1).any() for out in results[1:])


def test_more_arrivals_than_expected_are_said_so():
    """The count of an mbarrier that misses bytes goes below zero."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        t, barrier = arch.thread_idx()[0], arch.alloc_smem(cute.Int64, 1)
        if t == 0:
            arch.mbarrier_init(barrier, 1)
        arch.sync_threads()
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(barrier, 128)
            arch.mbarrier_arrive(barrier)
        arch.mbarrier_wait(barrier, 0)
        x[t] = 0

    with pytest.raises(DeadlockFault, match="phase 0 got 1 more than its 1 arrival and misses 128 bytes"):
        run(kernel, np.zeros(64, np.int32))
