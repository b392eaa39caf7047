"""Kernels as state machines: what lives across waits, printing and asserting, compile time; stopping them."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_testing import launcher, run, runs

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.targets.cpu.runtime import parts
from kiln.targets.cpu.runtime.deadlock_report import TimeoutFault


def shared(count: int, kind=cute.Int32):
    return cute.make_tensor(arch.alloc_smem(kind, count, 16), cute.make_layout(count))


def test_values_of_all_types_live_across_barriers():
    kinds = [cute.Boolean, cute.Int8, cute.Int16, cute.Int64, cute.Float16, cute.BFloat16, cute.Float32, cute.Float64]
    kinds += [cute.Float8E4M3FN, cute.Float8E5M2]

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        values = [kind(t % 2) if kind is cute.Boolean else kind(t % 8) for kind in kinds]
        arch.sync_threads()
        total = cute.Float32(0)
        for value in values:
            total += cute.Float32(value) if not isinstance(value, cute.Boolean) else cute.Float32(cute.Int32(value))
            arch.sync_threads()
        out[t] = total

    for (out,) in runs(kernel, np.zeros(32, np.float32)):
        t = np.arange(32)
        np.testing.assert_array_equal(out, t % 2 + (t % 8) * (len(kinds) - 1))


def test_register_arrays_live_across_barriers():
    """A big frame: 256 floats of each thread."""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        registers = cute.make_rmem_tensor(256, cute.Float32)
        for i in range(cute.Int32(256)):
            registers[i] = x[(t + i) % 64] * i
        for round_ in range(cute.Int32(3)):
            arch.sync_threads()
            for i in range(cute.Int32(256)):
                registers[i] = registers[i] + 1
        total = cute.Float32(0)
        for i in range(cute.Int32(256)):
            total += registers[i]
        out[t] = total

    x = np.random.default_rng(0).integers(-5, 5, 64).astype(np.float32)
    want = [sum(x[(t + i) % 64] * i + 3 for i in range(256)) for t in range(64)]
    for _, out in runs(kernel, x, np.zeros(64, np.float32), block=64, schedules=[(1, 0), (1, 1)]):
        np.testing.assert_array_equal(out, want)


def test_256_suspend_points_in_a_row_compile_in_seconds():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        v = cute.Int32(t)
        for i in kiln.range_constexpr(256):
            v = arch.shuffle_sync_bfly(v, 1 << (i % 5)) + i
        out[t] = v

    start = time.process_time()
    out = np.zeros(32, np.int32)
    run(kernel, out)
    elapsed = time.process_time() - start
    lanes = np.arange(32)
    v = lanes.copy()
    for i in range(256):
        v = v[lanes ^ (1 << (i % 5))] + i
    np.testing.assert_array_equal(out, v)
    assert elapsed < 60  # some seconds; far from the minutes that quadratic growth would take


def test_printing_between_barriers(capfd):
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        if t == 0:
            cute.printf("block %d starts", b)
        arch.sync_threads()
        if t == 33:
            cute.printf("block %d, thread %d", b, t)
        out[t] = 1

    run(kernel, np.zeros(64, np.int32), grid=2, block=64)
    assert capfd.readouterr().out == "block 0 starts\nblock 0, thread 33\nblock 1 starts\nblock 1, thread 33\n"


@pytest.mark.usefixtures("in_order")
def test_a_failed_assertion_between_barriers():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        arch.sync_threads()
        v = arch.shuffle_sync_bfly(t, 1)
        assert v != 7 or b != 2, "lane six"
        arch.sync_threads()
        out[b * 32 + t] = 1

    out = np.zeros(8 * 32, np.int32)
    with pytest.raises(AssertionError, match=r"lane six.*block \(2, 0, 0\), thread \(6, 0, 0\)"):
        run(kernel, out, grid=8)
    assert (out[:64] == 1).all()


def test_early_returns_and_breaks_around_barriers():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = shared(64)
        t = arch.thread_idx()[0]
        tile[t] = t
        for i in range(cute.Int32(100)):
            arch.sync_threads()
            v = tile[(t + 1) % 64]
            arch.sync_threads()
            tile[t] = v
            if i == 6:
                break
        if t >= 40:
            return
        arch.sync_threads()
        out[t] = tile[t]

    for (out,) in runs(kernel, np.zeros(64, np.int32), block=64):
        np.testing.assert_array_equal(out, np.where(np.arange(64) < 40, np.roll(np.arange(64), -7), 0))


# --- stopping --------------------------------------------------------------------------------------------------------


@cute.kernel
def endless(out: cute.Tensor):
    t = arch.thread_idx()[0]
    if t < 32:
        arch.sync_warp()
        while out[0] == 0:
            out[1] = out[1] + 1
    else:
        arch.barrier(barrier_id=1, number_of_threads=64)


@cute.kernel
def spinning(out: cute.Tensor):
    t = arch.thread_idx()[0]
    seen = arch.load(out.iterator, cute.Int32, sem="acquire")
    while seen == 0:
        seen = arch.load(out.iterator, cute.Int32, sem="acquire")
    out[t] = seen


@cute.kernel
def plain(out: cute.Tensor):
    """Loops of numbers only; nothing in the kernel waits."""
    t = arch.thread_idx()[0]
    total = cute.Float32(t)
    for i in range(1 + (1 - out[0]) * 2_000_000_000):
        for j in range(out[0], 2_000_000_000 * (1 - out[0]), 3):
            total = total * 0.999 + cute.Float32(i + j)
    out[t] = cute.Int32(total >= 0)


@cute.kernel
def guarded(out: cute.Tensor):
    """Under a guard that holds for all threads, or for some of them."""
    t = arch.thread_idx()[0]
    if t < cute.size(out):
        total = cute.Float32(t)
        for i in range(2_000_000_000 * cute.Int64(1 - out[0])):
            total = total * 0.999 + cute.Float32(i)
        out[t] = cute.Int32(total >= 0)


@cute.kernel
def waits_around(out: cute.Tensor):
    """The same between barriers."""
    t = arch.thread_idx()[0]
    arch.sync_threads()
    total = cute.Float32(t)
    for i in range(2_000_000_000 * cute.Int64(1 - out[0])):
        total = total * 0.999 + cute.Float32(i)
    arch.sync_threads()
    out[t] = cute.Int32(total >= 0)


@pytest.mark.quick(4)
@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("limit", ["time", "steps"])
@pytest.mark.parametrize("kernel", [endless, spinning, plain, guarded, waits_around])
def test_a_limit_stops_a_kernel_that_never_ends(kernel, limit):
    set_limit = parts.set_timeout if limit == "time" else parts.set_max_steps
    set_limit(0.2 if limit == "time" else 1_000_000)
    start = time.monotonic()
    try:
        with pytest.raises(TimeoutFault) as caught:
            run(kernel, np.zeros(64, np.int32), block=64)
    finally:
        set_limit(0)
    assert time.monotonic() - start < 60
    text = str(caught.value)
    assert ("did not end in its time" if limit == "time" else "did not end in its number of steps") in text
    if kernel is endless:
        assert "threads 32-63 (warp 1) of block (0, 0, 0) wait at a barrier" in text
        assert "(warp 0) of block (0, 0, 0): last seen at a loop" in text
    elif kernel is spinning:
        assert ": last seen at a loop" in text
    elif kernel in (plain, guarded):
        assert "thread (0, 0, 0) of block (0, 0, 0): last seen at a loop" in text
        assert ("for j in range(out[0]" if kernel is plain else "for i in range(2_000") in text
    else:
        assert "thread 63 (warp 1) of block (0, 0, 0): last seen at a loop" in text
        assert "threads 0-62 (warps 0-1) of block (0, 0, 0): last seen at a barrier" in text


def test_steps_are_counted_the_same_every_time():
    @cute.kernel
    def kernel(out: cute.Tensor, n: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        total = cute.Int32(0)
        for i in range(n[0]):
            total += i ^ t
        out[b * 32 + t] = total

    def goes(steps, count):
        parts.set_max_steps(steps)
        try:
            run(kernel, np.zeros(64, np.int32), np.array([count], np.int32), grid=2)
            return True
        except TimeoutFault:
            return False
        finally:
            parts.set_max_steps(0)

    assert goes(64 * 100, 100) and not goes(64 * 100 - 1, 100)
    assert goes(64 * 100_000, 100_000) and not goes(64 * 100_000 - 1, 100_000)


def test_a_limit_that_is_not_reached_changes_nothing():
    parts.set_timeout(100)
    try:
        start = time.monotonic()
        test_early_returns_and_breaks_around_barriers()
        assert time.monotonic() - start < 60
    finally:
        parts.set_timeout(0)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C as in a terminal: a process started in the background may have been told to ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.quick(2)
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("kernel", [endless, spinning, plain, guarded, waits_around])
def test_control_c_stops_a_kernel(kernel):
    out = np.ones(64, np.int32)
    with kiln.target("cpu"):
        launch = launcher(kernel, 1, grid=1, block=32 if kernel is endless else 64)
        launch(out)  # compiled now
        out[:] = 0
        before = signal.getsignal(signal.SIGINT)
        timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            launch(out)
        timer.join()
        assert signal.getsignal(signal.SIGINT) is before
        out[:] = 1
        launch(out)  # the process is as it was


@pytest.mark.usefixtures("interruptible")
def test_control_c_stops_a_grid_of_plain_blocks():
    @cute.kernel
    def kernel(out: cute.Tensor):
        b = arch.block_idx()[0]
        total = cute.Float32(b)
        for i in range(cute.Int32(1_000_000)):
            total = total * 0.999 + 1
        out[b % 64] = total

    with kiln.target("cpu"):
        launch = launcher(kernel, 1, grid=1_000_000, block=1)
        timer = threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            launch(np.zeros(64, np.float32))
        timer.join()


# --- schedules -------------------------------------------------------------------------------------------------------


def test_schedules_are_deterministic_and_differ():
    """The order in which threads take tickets is the schedule."""

    @cute.kernel
    def kernel(counter: cute.Tensor, out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        for i in range(cute.Int32(3)):
            arch.sync_threads()
            out[(i * 4 + b) * 32 + t] = arch.atomic_add(counter.iterator, 1)

    def orders(seeds):
        arrays = np.zeros(1, np.int32), np.zeros(12 * 32, np.int32)
        return [out for _, out in runs(kernel, *arrays, grid=4, schedules=[(1, seed) for seed in seeds])]

    first, second = orders(range(6)), orders(range(6))
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
    want = np.array([[[b * 96 + i * 32 + t for t in range(32)] for b in range(4)] for i in range(3)])
    # in order, the last thread at a barrier goes on at once: it takes the first ticket of the next round
    assert sorted(first[0]) == sorted(want.reshape(-1))
    assert len({tuple(order) for order in first}) == 6


def test_threads_without_waits_are_permuted_too():
    """In blocks of three dimensions, with a guard that lets some threads pass."""

    @cute.kernel
    def kernel(counter: cute.Tensor, out: cute.Tensor):
        x, y, z = arch.thread_idx()
        i = arch.block_idx()[0] * 60 + z * 15 + y * 5 + x
        if i < 230:
            out[i] = arch.atomic_add(counter.iterator, 1)

    schedules = [(1, 0), (1, 1), (1, 2), (1, 1)]
    arrays = np.zeros(1, np.int32), np.full(240, -1, np.int32)
    results = [out for _, out in runs(kernel, *arrays, grid=4, block=(5, 3, 4), schedules=schedules)]
    np.testing.assert_array_equal(results[0], [*range(230), *[-1] * 10])
    np.testing.assert_array_equal(results[1], results[3])
    assert len({tuple(order) for order in results}) == 3
    for order in results:
        assert sorted(order) == [*[-1] * 10, *range(230)]


def test_blocks_without_waits_are_permuted_too():
    @cute.kernel
    def kernel(counter: cute.Tensor, out: cute.Tensor):
        b = arch.block_idx()[0]
        out[b] = arch.atomic_add(counter.iterator, 1)

    results = [
        out
        for _, out in runs(
            kernel,
            np.zeros(1, np.int32),
            np.zeros(50, np.int32),
            grid=50,
            block=1,
            schedules=[(1, n) for n in range(4)],
        )
    ]
    np.testing.assert_array_equal(results[0], np.arange(50))
    assert len({tuple(order) for order in results}) == 4
    for order in results:
        assert sorted(order) == list(range(50))
