"""Atomic operations, ordered accesses, locks, flags and grids that synchronize through memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_testing import run, runs

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLCudaRuntimeError
from kiln.cute import arch

pytestmark = pytest.mark.isa

INTEGERS = {"Int32": np.int32, "Uint32": np.uint32, "Int64": np.int64, "Uint64": np.uint64}
OPERATIONS = {
    "add": lambda v, s: np.append(v, s).sum(dtype=v.dtype), "min": lambda v, s: min(v.min(), s),
    "max": lambda v, s: max(v.max(), s), "and": lambda v, s: np.bitwise_and.reduce(v) & s,
    "or": lambda v, s: np.bitwise_or.reduce(v) | s, "xor": lambda v, s: np.bitwise_xor.reduce(v) ^ s,
}  # fmt: skip


@pytest.mark.quick(12)
@pytest.mark.parametrize("space", ["gmem", "smem"])
@pytest.mark.parametrize("name", INTEGERS)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_integers(operation, name, space):
    kind, dtype = getattr(cute, name), INTEGERS[name]
    apply = getattr(arch, f"atomic_{operation}")

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        if space == "gmem":
            apply(out.iterator, x[b * 64 + t])
        else:
            cell = arch.alloc_smem(kind, 1)
            view = cute.make_tensor(cell, cute.make_layout(1))
            if t == 0:
                view[0] = out[0]
            arch.sync_threads()
            apply(cell, x[t])
            arch.sync_threads()
            if b == 0 and t == 0:
                out[0] = view[0]

    info = np.iinfo(dtype)
    x = np.random.default_rng(0).integers(info.min // 2, info.max // 2, 16 * 64, dtype=dtype)
    start = dtype(x[5] // 2 + 3)
    blocks = 16 if space == "gmem" else 1
    want = OPERATIONS[operation](x[: 64 * blocks], start)
    for _, out in runs(kernel, x, np.array([start]), grid=blocks, block=64, schedules=[(1, 0), (2, 0), (2, 3)]):
        assert out[0] == want


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("Float16", np.float16), ("BFloat16", ml_dtypes.bfloat16), ("Float32", np.float32), ("Float64", np.float64)],
)
@pytest.mark.parametrize("space", ["gmem", "smem"])
def test_addition_of_floats(name, dtype, space):
    """Small integers are exact in every type, so the order does not matter."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t, one = arch.thread_idx()[0], getattr(cute, name)(1)
        if kiln.const_expr(space == "gmem"):
            arch.atomic_add(out.iterator + t % 4, one)
        else:
            cells = cute.make_tensor(arch.alloc_smem(getattr(cute, name), 4, 16), cute.make_layout(4))
            if t < 4:
                cells[t] = getattr(cute, name)(0)
            arch.sync_threads()
            arch.atomic_add(cells.iterator + t % 4, one)
            arch.sync_threads()
            if t < 4:
                arch.atomic_add(out.iterator + t, cells[t])

    for (out,) in runs(kernel, np.zeros(4, dtype), grid=8, block=64, schedules=[(1, 0), (2, 0)]):
        assert (out.astype(np.float64) == 128).all()


def test_extremes_of_floats():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        arch.atomic_fmax(out.iterator, x[b * 32 + t])
        arch.atomic_fmin(out.iterator + 1, x[b * 32 + t])

    x = np.random.default_rng(1).standard_normal(8 * 32).astype(np.float32)
    for _, out in runs(kernel, x, np.array([-np.inf, np.inf], np.float32), grid=8):
        assert out[0] == x.max() and out[1] == x.min()


def test_old_values_are_distinct_tickets():
    @cute.kernel
    def kernel(counter: cute.Tensor, out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        out[b * 64 + t] = arch.atomic_add(counter.iterator, 1)

    for _, out in runs(kernel, np.zeros(1, np.int32), np.zeros(32 * 64, np.int32), grid=32, block=64):
        np.testing.assert_array_equal(np.sort(out), np.arange(32 * 64))


@pytest.mark.parametrize("space", ["gmem", "smem"])
@pytest.mark.parametrize("name", ["Int32", "Uint32", "Int64", "Uint64", "Float32", "Float64"])
def test_exchange_and_compare_of_all_types(name, space):
    kind = getattr(cute, name)

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        place = x.iterator + t
        if kiln.const_expr(space == "smem"):
            cells = cute.make_tensor(arch.alloc_smem(kind, 32, 16), cute.make_layout(32))
            cells[t] = x[t]
            place = cells.iterator + t
        out[t] = arch.atomic_exch(place, kind(t + 100))
        if kiln.const_expr(not name.startswith("Float")):
            out[32 + t] = arch.atomic_cas(place, cmp=kind(110), val=kind(7))
        if kiln.const_expr(space == "smem"):
            x[t] = cells[t]

    dtype = getattr(np, name.lower())
    for x, out in runs(kernel, np.arange(32).astype(dtype), np.zeros(64, dtype), schedules=[(1, 0), (1, 2)]):
        after = np.arange(100, 132)
        np.testing.assert_array_equal(out[:32], np.arange(32))
        if not name.startswith("Float"):
            np.testing.assert_array_equal(out[32:], after)
            after = np.where(after == 110, 7, after)
        np.testing.assert_array_equal(x, after)


def test_exchange_and_compare():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        out[t] = arch.atomic_exch(x.iterator + t, t + 100)
        out[32 + t] = arch.atomic_cas(x.iterator + t, 110, -1)

    x, out = np.arange(32, dtype=np.int32), np.zeros(64, np.int32)
    run(kernel, x, out)
    np.testing.assert_array_equal(out[:32], np.arange(32))
    np.testing.assert_array_equal(out[32:], np.arange(100, 132))
    np.testing.assert_array_equal(x, np.where(np.arange(32) == 10, -1, np.arange(100, 132)))


@pytest.mark.parametrize("how", ["cas", "exch"])
@pytest.mark.parametrize("inside", ["nothing", "shuffle", "barrier"])
def test_a_lock(how, inside):
    """Threads that spin let the one that holds the lock go on, even if it waits for its own things meanwhile."""

    @cute.kernel
    def kernel(lock: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t % 32 == 0 or inside == "nothing":
            got = cute.Int32(1)
            while got != 0:
                if how == "cas":
                    got = arch.atomic_cas(lock.iterator, 0, 1)
                else:
                    got = arch.atomic_exch(lock.iterator, 1)
        if inside == "shuffle":
            arch.sync_warp()
            value = out[0]
            value = arch.shuffle_sync(value, 0)
            if t % 32 == 0:
                out[0] = value + 1
            arch.sync_warp()
        elif inside == "barrier":
            arch.sync_warp()
            if t % 32 == 0:
                value = out[0]
                arch.load(out.iterator, cute.Int32, sem="relaxed")
                out[0] = value + 1
            arch.sync_warp()
        else:
            out[0] = out[0] + 1
        if t % 32 == 0 or inside == "nothing":
            arch.atomic_exch(lock.iterator, 0)

    threads = 6 * 96
    want = threads if inside == "nothing" else threads // 32
    for lock, out in runs(kernel, np.zeros(1, np.int32), np.zeros(1, np.int32), grid=6, block=96):
        assert out[0] == want and lock[0] == 0


def test_a_flag_between_warps():
    """Release and acquire: what was written before the flag is there."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        data = cute.make_tensor(arch.alloc_smem(cute.Int32, 32), cute.make_layout(32))
        flag = arch.alloc_smem(cute.Int32, 1)
        t = arch.thread_idx()[0]
        if t == 0:
            arch.store(flag, cute.Int32(0))
        arch.sync_threads()
        if t < 32:
            seen = arch.load(flag, cute.Int32, sem="acquire", scope="cta")
            while seen == 0:
                seen = arch.load(flag, cute.Int32, sem="acquire", scope="cta")
            out[t] = data[t]
        else:
            data[t - 32] = t * t
            arch.sync_warp()
            if t == 32:
                arch.store(flag, cute.Int32(1), sem="release", scope="cta")

    for (out,) in runs(kernel, np.zeros(32, np.int32), block=64):
        np.testing.assert_array_equal(out, np.arange(32, 64) ** 2)


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_barrier_of_the_grid(cooperative):
    """Every block waits for all others, several times; blocks must be resident together."""
    blocks, rounds = 12, 5

    @cute.kernel
    def kernel(counter: cute.Tensor, x: cute.Tensor, out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        for i in range(cute.Int32(rounds)):
            x[i * blocks + b] = b * 10 + i
            arch.sync_threads()
            if t == 0:
                arch.fence_acq_rel_gpu()
                arch.atomic_add(counter.iterator, 1, sem="release", scope="gpu")
                seen = arch.load(counter.iterator, cute.Int32, sem="acquire", scope="gpu")
                while seen < (i + 1) * blocks:
                    seen = arch.load(counter.iterator, cute.Int32, sem="acquire", scope="gpu")
            arch.sync_threads()
            if t == 0:
                out[i * blocks + b] = x[i * blocks + (b + i + 1) % blocks]

    arrays = np.zeros(1, np.int32), np.zeros(rounds * blocks, np.int32), np.zeros(rounds * blocks, np.int32)
    want = [[(b + i + 1) % blocks * 10 + i for b in range(blocks)] for i in range(rounds)]
    for _, _, out in runs(kernel, *arrays, grid=blocks, block=64, cooperative=cooperative):
        np.testing.assert_array_equal(out.reshape(rounds, blocks), want)


def test_the_last_block_finishes_the_work():
    """Threadfence reduction: the block that takes the last ticket adds up what the others wrote."""

    @cute.kernel
    def kernel(x: cute.Tensor, parts: cute.Tensor, counter: cute.Tensor, out: cute.Tensor):
        last = cute.make_tensor(arch.alloc_smem(cute.Int32, 1), cute.make_layout(1))
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        total = arch.warp_redux_sync(x[b * 32 + t], "add")
        if t == 0:
            parts[b] = total
            arch.fence_acq_rel_gpu()
            last[0] = cute.Int32(arch.atomic_add(counter.iterator, 1) == 15)
        arch.sync_threads()
        if last[0] == 1:
            v = cute.Int32(0)
            if t < 16:
                v = parts[t]
            v = arch.warp_redux_sync(v, "add")
            if t == 0:
                out[0] = v

    x = np.random.default_rng(2).integers(-1000, 1000, 16 * 32, dtype=np.int32)
    arrays = x, np.zeros(16, np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32)
    for *_, out in runs(kernel, *arrays, grid=16):
        assert out[0] == x.sum()


def test_histogram_in_shared_memory():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        bins = cute.make_tensor(arch.alloc_smem(cute.Int32, 64), cute.make_layout(64))
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        if t < 64:
            bins[t] = 0
        arch.sync_threads()
        for i in range(cute.Int32(8)):
            arch.atomic_add(bins.iterator + x[(b * 8 + i) * 128 + t], 1)
        arch.sync_threads()
        if t < 64:
            arch.red(out.iterator + t, bins[t], op="add")

    x = (np.random.default_rng(3).standard_normal(4 * 8 * 128) * 8 + 32).clip(0, 63).astype(np.int32)
    for _, out in runs(kernel, x, np.zeros(64, np.int32), grid=4, block=128):
        np.testing.assert_array_equal(out, np.bincount(x, minlength=64))


def test_a_cooperative_launch_that_no_device_could_hold():
    @cute.kernel
    def kernel(x: cute.Tensor):
        arch.atomic_add(x.iterator, 1)

    with pytest.raises(DSLCudaRuntimeError, match="10240000 threads cannot be resident together") as caught:
        run(kernel, np.zeros(1, np.int32), grid=10_000, block=1024, cooperative=True)
    assert caught.value.error_code == 720  # cudaErrorCooperativeLaunchTooLarge
