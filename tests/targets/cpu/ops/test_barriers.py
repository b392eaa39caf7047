"""Barriers of a block: all threads, some threads, arrivals, partial warps, threads that exit."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import run, runs

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.targets.cpu.passes import coroutines
from kiln.targets.cpu.runtime import parts
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault

pytestmark = pytest.mark.isa


def shared(count: int, kind=cute.Int32):
    return cute.make_tensor(arch.alloc_smem(kind, count, 16), cute.make_layout(count))


@pytest.mark.parametrize("block", [1, 32, 33, 100, 1024])
def test_block_reversal(block):
    @cute.kernel
    def kernel(x: cute.Tensor):
        tile = shared(1024)
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        tile[t] = x[b * block + t]
        arch.sync_threads()
        x[b * block + t] = tile[block - 1 - t]

    x = np.arange(7 * block, dtype=np.int32)
    for (got,) in runs(kernel, x, grid=7, block=block):
        assert (got.reshape(7, block) == x.reshape(7, block)[:, ::-1]).all()


def test_a_barrier_keeps_nothing_of_its_own_in_the_frame_of_a_thread(monkeypatch):
    monkeypatch.setenv("CUTE_DSL_DISABLE_FILE_CACHING", "1")
    make, frames = coroutines.make_resumable, []
    monkeypatch.setattr(coroutines, "make_resumable", lambda *given: frames.append(make(*given)) or frames[-1])
    for count in (1, 5):

        @cute.kernel
        def kernel(x: cute.Tensor):
            for _ in kiln.range_constexpr(count):
                arch.sync_threads()
            x[arch.thread_idx()[0]] = 1

        x = np.zeros(64, np.int32)
        run(kernel, x, block=64)
        assert (x == 1).all()
    assert [frame.suspends for frame in frames] == [2, 10]
    assert frames[0].spilled == frames[1].spilled


def test_tree_reduction_in_a_loop_with_barriers():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        tile = shared(256)
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        tile[t] = x[b * 256 + t]
        arch.sync_threads()
        step = cute.Int32(128)
        while step > 0:
            if t < step:
                tile[t] = tile[t] + tile[t + step]
            arch.sync_threads()
            step = step // 2
        if t == 0:
            out[b] = tile[0]

    x = np.random.default_rng(0).integers(-1000, 1000, 5 * 256, dtype=np.int32)
    for _, out in runs(kernel, x, np.zeros(5, np.int32), grid=5, block=256):
        assert (out == x.reshape(5, 256).sum(1)).all()


def test_nested_loops_with_barriers_and_divergent_work():
    """Each thread does another amount of work between barriers; all see what the others did in the last round."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        a, b = shared(96), shared(96)
        t = arch.thread_idx()[0]
        a[t] = t
        arch.sync_threads()
        for i in range(cute.Int32(4)):
            for j in range(cute.Int32(3)):
                total = cute.Int32(0)
                for k in range(t % 5 + 1):
                    total += a[(t + k + 1) % 96]
                b[t] = total + i - j
                arch.sync_threads()
                a[t] = b[t] % 1009
                arch.sync_threads()
        out[t] = a[t]

    a = np.arange(96)
    for i in range(4):
        for j in range(3):
            a = np.array([sum(a[(t + k + 1) % 96] for k in range(t % 5 + 1)) + i - j for t in range(96)])
            a = np.fmod(a, 1009)
    for (out,) in runs(kernel, np.zeros(96, np.int32), block=96):
        np.testing.assert_array_equal(out, a)


def test_named_barriers_of_subsets():
    """Two halves of a block use a barrier each, in loops of different lengths."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = shared(128)
        t = arch.thread_idx()[0]
        tile[t] = t
        if t < 64:
            for i in range(cute.Int32(10)):
                arch.barrier(barrier_id=1, number_of_threads=64)
                x = tile[(t + 1) % 64]
                arch.barrier(barrier_id=1, number_of_threads=64)
                tile[t] = x
        else:
            for i in range(cute.Int32(3)):
                arch.barrier(barrier_id=2, number_of_threads=64)
                y = tile[64 + (t + 1) % 64]
                arch.barrier(barrier_id=2, number_of_threads=64)
                tile[t] = y
        out[t] = tile[t]

    for (out,) in runs(kernel, np.zeros(128, np.int32), block=128):
        want = np.concatenate([np.roll(np.arange(64), -10), np.roll(np.arange(64, 128), -3)])
        np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize("stages", [1, 2])
def test_producer_and_consumer_through_named_barriers(stages):
    """A ring: producers wait for `empty` and arrive at `full`, consumers the other way round."""
    rounds = 7

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        ring = shared(32 * stages)
        t = arch.thread_idx()[0]
        warp = arch.warp_idx()
        if warp == 0:
            for i in range(cute.Int32(rounds)):
                s = i % stages
                arch.barrier(barrier_id=1 + 2 * s, number_of_threads=64)
                ring[s * 32 + t] = x[i * 32 + t]
                arch.barrier_arrive(barrier_id=2 + 2 * s, number_of_threads=64)
        else:
            for s in range(stages):
                arch.barrier_arrive(barrier_id=1 + 2 * s, number_of_threads=64)
            for i in range(cute.Int32(rounds)):
                s = i % stages
                arch.barrier(barrier_id=2 + 2 * s, number_of_threads=64)
                out[i * 32 + t - 32] = ring[s * 32 + 63 - t]
                if i + stages < rounds:
                    arch.barrier_arrive(barrier_id=1 + 2 * s, number_of_threads=64)

    x = np.arange(rounds * 32, dtype=np.int32)
    for _, out in runs(kernel, x, np.zeros_like(x), block=64):
        np.testing.assert_array_equal(out.reshape(rounds, 32), x.reshape(rounds, 32)[:, ::-1])


def test_an_arrival_counts_for_a_whole_warp_even_if_it_is_short():
    """48 threads are two warps: a barrier of 64 threads is complete when both are there."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = shared(48)
        t = arch.thread_idx()[0]
        tile[t] = t * t
        arch.barrier(barrier_id=3, number_of_threads=64)
        out[t] = tile[47 - t]

    for (out,) in runs(kernel, np.zeros(48, np.int32), block=48):
        np.testing.assert_array_equal(out, (np.arange(48) ** 2)[::-1])


def test_arriving_twice_before_the_rest_of_the_warp():
    """One warp gives both arrivals that a barrier of 64 threads needs; the other warp never comes."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t < 32:
            arch.barrier_arrive(barrier_id=4, number_of_threads=64)
            arch.barrier(barrier_id=4, number_of_threads=64)
        out[t] = t

    for (out,) in runs(kernel, np.zeros(64, np.int32), block=64):
        np.testing.assert_array_equal(out, np.arange(64))


def test_threads_that_exit_early_are_not_waited_for():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = shared(128)
        t = arch.thread_idx()[0]
        tile[t] = -1
        arch.sync_threads()
        if t % 3 != 0:
            tile[t] = t
            if t < 100:
                arch.sync_threads()
                arch.sync_threads()
                out[t] = tile[(t * 7) % 128]

    inside = np.array([t % 3 != 0 for t in range(128)])
    values = np.where(inside, np.arange(128), -1)
    for (out,) in runs(kernel, np.full(128, -5, np.int32), block=128):
        want = np.where(inside & (np.arange(128) < 100), values[np.arange(128) * 7 % 128], -5)
        np.testing.assert_array_equal(out, want)


def test_barriers_in_both_arms_of_a_divergent_branch():
    """A barrier is reached when all threads are at it, wherever in the program."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = shared(64)
        t = arch.thread_idx()[0]
        if t % 2 == 0:
            tile[t] = t
            arch.sync_threads()
        else:
            tile[t] = 100 + t
            arch.sync_threads()
        out[t] = tile[63 - t]

    for (out,) in runs(kernel, np.zeros(64, np.int32), block=64):
        t = 63 - np.arange(64)
        np.testing.assert_array_equal(out, np.where(t % 2 == 0, t, 100 + t))


def test_blocks_of_three_dimensions():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = shared(2 * 3 * 4)
        x, y, z = arch.thread_idx()
        number = x + 2 * (y + 3 * z)
        tile[number] = x * 100 + y * 10 + z
        arch.sync_threads()
        bx, by, bz = arch.block_idx()
        out[(bx + 2 * (by + 2 * bz)) * 24 + number] = tile[23 - number]

    one = np.array([[[x * 100 + y * 10 + z for x in range(2)] for y in range(3)] for z in range(4)]).reshape(-1)[::-1]
    for (out,) in runs(kernel, np.zeros(8 * 24, np.int32), grid=(2, 2, 2), block=(2, 3, 4)):
        np.testing.assert_array_equal(out, np.tile(one, 8))


def test_several_kernels_of_one_function():
    @cute.kernel
    def up(x: cute.Tensor):
        tile = shared(64)
        t = arch.thread_idx()[0]
        tile[t] = x[t]
        arch.sync_threads()
        x[t] = tile[(t + 1) % 64]

    @cute.kernel
    def square(x: cute.Tensor):
        t = arch.thread_idx()[0]
        x[t] = x[t] * x[t]

    @cute.jit
    def both(x: cute.Tensor):
        for _ in range(3):
            up(x).launch(grid=1, block=64)
        square(x).launch(grid=1, block=64)
        up(x).launch(grid=1, block=64)

    x = np.arange(64, dtype=np.int32)
    both(x)
    np.testing.assert_array_equal(x, np.roll(np.arange(64), -4) ** 2)


# --- deadlocks -------------------------------------------------------------------------------------------------------


def test_a_barrier_that_some_never_reach():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t >= 64:
            arch.barrier(barrier_id=1, number_of_threads=128)
        out[t] = 1

    with pytest.raises(DeadlockFault) as caught:
        run(kernel, np.zeros(128, np.int32), block=128)
    text = str(caught.value)
    assert "deadlock in kernel kernel: threads 64-127 (warps 2-3) of block (0, 0, 0) wait at a barrier" in text
    assert "64 of 128 threads are there" in text
    assert "threads 0-63 (warps 0-1) of block (0, 0, 0): exited" in text
    assert caught.value.span is not None
    assert "barrier(barrier_id=1" in text


@pytest.mark.usefixtures("in_order")
def test_threads_that_wait_in_different_places():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t < 32:
            arch.barrier(barrier_id=1, number_of_threads=64)
        elif t < 48:
            arch.barrier(barrier_id=2, number_of_threads=64)
        else:
            arch.sync_warp()
        out[t] = 1

    with pytest.raises(DeadlockFault) as caught:
        run(kernel, np.zeros(64, np.int32), grid=3, block=64)
    text = str(caught.value)
    assert "threads 0-31 (warp 0) of block (0, 0, 0) wait at a barrier" in text
    assert "threads 32-47 (warp 1) of block (0, 0, 0) wait at a barrier" in text
    assert "threads 48-63 (warp 1) of block (0, 0, 0) wait at a sync_warp" in text
    assert "exited" not in text


@pytest.mark.usefixtures("in_order")
def test_the_lowest_block_is_reported():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        if b % 4 == 3 and t == 5:
            arch.barrier(barrier_id=1, number_of_threads=64)
        out[b] = 1

    for _ in range(3):
        with pytest.raises(DeadlockFault, match=r"thread 5 \(warp 0\) of block \(3, 0, 0\) waits"):
            run(kernel, np.zeros(40, np.int32), grid=40, block=32)


@pytest.mark.usefixtures("in_order")
def test_a_block_that_takes_long_is_reported_before_later_ones():
    @cute.kernel
    def kernel(out: cute.Tensor, rounds: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        for _ in range(rounds[b]):
            arch.sync_threads()
        if b >= 3 and t == 5:
            arch.barrier(barrier_id=1, number_of_threads=64)
        out[b] = 1

    parts.set_workers(2)
    try:
        with pytest.raises(DeadlockFault, match=r"of block \(3, 0, 0\) waits"):
            run(
                kernel,
                np.zeros(40, np.int32),
                np.where(np.arange(40) < 4, 20000, 1).astype(np.int32),
                grid=40,
                block=32,
            )
    finally:
        parts.set_workers()
