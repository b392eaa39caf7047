"""Arrivals that another schedule would count for another phase are found under every schedule, and others are not."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Float32, Int32, Int64, cute
from kiln.dialects import nvgpu
from kiln.targets.cpu.runtime import parts

SEEDS = range(6)


@pytest.fixture
def seeded():
    yield parts.set_seed
    parts.set_seed()


def found(call, *args):
    with kiln.sanitize(raises=False) as report:
        call(*args)
    return [finding.rule for finding in report.findings], "\n".join(map(str, report.findings))


# --- named barriers --------------------------------------------------------------------------------------------------


@cute.kernel
def pairs_kernel(x: cute.Tensor, y: cute.Tensor, wrong: cute.Constexpr):
    """Two pairs of warps reverse 64 elements each."""
    t, _, _ = cute.arch.thread_idx()
    s = cute.make_tensor(cute.arch.alloc_smem(Float32, 128, 16), cute.make_layout(128))
    pair = t // 64
    s[t] = x[t]
    cute.arch.barrier(barrier_id=1 if wrong else 1 + pair, number_of_threads=64)
    y[t] = s[pair * 64 + 63 - t % 64]


@cute.jit
def pairs(x: cute.Tensor, y: cute.Tensor, wrong: cute.Constexpr):
    pairs_kernel(x, y, wrong).launch(grid=2, block=128)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_named_barrier_for_two_sets_of_warps(seed, seeded):
    seeded(seed)
    x, y = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    rules, text = found(pairs, x, y, True)
    assert rules
    if not seed:  # under others warps of both pairs meet, and what comes of it is found
        assert rules == ["barrier-early"]
        assert (
            "thread 95 of block 0 arrives at barrier 1 for 64 threads after the phase that thread 0 arrived in" in text
        )
    assert found(pairs, x, y, False) == ([], "")


@cute.kernel
def turns_kernel(y: cute.Tensor, rounds: cute.Constexpr):
    """A warp writes, two read, in turns: it arrives at one barrier and waits at the other one, they the other way round."""
    t, _, _ = cute.arch.thread_idx()
    s = cute.make_tensor(cute.arch.alloc_smem(Float32, 32, 16), cute.make_layout(32))
    if t < 32:
        for i in range(rounds):
            cute.arch.barrier(barrier_id=2, number_of_threads=96)
            s[t] = Float32(i) + t
            cute.arch.barrier_arrive(barrier_id=1, number_of_threads=96)
    else:
        total = Float32(0)
        for _ in range(rounds):
            cute.arch.barrier_arrive(barrier_id=2, number_of_threads=96)
            cute.arch.barrier(barrier_id=1, number_of_threads=96)
            total += s[t % 32]
        y[t - 32] = total


@cute.jit
def turns(y: cute.Tensor, rounds: cute.Constexpr):
    turns_kernel(y, rounds).launch(grid=1, block=96)


@pytest.mark.parametrize("seed", SEEDS)
def test_barriers_that_warps_take_turns_at(seed, seeded):
    seeded(seed)
    y = np.zeros(64, np.float32)
    assert found(turns, y, 4) == ([], "")
    assert y.tolist() == [6 + 4 * (t % 32) for t in range(64)]


@cute.kernel
def reused_kernel(y: cute.Tensor):
    """A barrier of other warps than before, after one of the block."""
    t, _, _ = cute.arch.thread_idx()
    s = cute.make_tensor(cute.arch.alloc_smem(Float32, 128, 16), cute.make_layout(128))
    s[t] = Float32(t)
    if t < 64:
        cute.arch.barrier(barrier_id=1, number_of_threads=64)
    cute.arch.sync_threads()
    if t >= 32 and t < 96:
        cute.arch.barrier(barrier_id=1, number_of_threads=64)
    y[t] = s[127 - t]


@cute.jit
def reused(y: cute.Tensor):
    reused_kernel(y).launch(grid=1, block=128)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_barrier_is_used_again_by_other_warps(seed, seeded):
    seeded(seed)
    assert found(reused, np.zeros(128, np.float32)) == ([], "")


# --- mbarriers -------------------------------------------------------------------------------------------------------


@cute.kernel
def ring_kernel(x: cute.Tensor, y: cute.Tensor, tiles: cute.Constexpr, count: cute.Constexpr, lanes: cute.Constexpr):
    """A warp fills a ring of two buffers, four others add them up; `count` of them, or of their lanes, are to say that one is empty."""
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % 32, t // 32
    buffers = cute.make_tensor(cute.arch.alloc_smem(Float32, 64, 16), cute.make_layout((32, 2)))
    full = cute.arch.alloc_smem(Int64, 2)
    empty = cute.arch.alloc_smem(Int64, 2)
    if t == 0:
        for stage in range(2):
            cute.arch.mbarrier_init(full + stage, 32)
            cute.arch.mbarrier_init(empty + stage, count)
    cute.arch.sync_threads()
    if warp == 4:
        for tile in range(tiles):
            cute.arch.mbarrier_wait(empty + tile % 2, (tile // 2 % 2) ^ 1)
            buffers[lane, tile % 2] = x[tile * 32 + lane]
            cute.arch.mbarrier_arrive(full + tile % 2)
    else:
        total = Float32(0)
        for tile in range(tiles):
            cute.arch.mbarrier_wait(full + tile % 2, tile // 2 % 2)
            total += buffers[lane, tile % 2]
            if kiln.const_expr(lanes):
                cute.arch.mbarrier_arrive(empty + tile % 2)
            else:
                cute.arch.sync_warp()
                if lane == 0:
                    cute.arch.mbarrier_arrive(empty + tile % 2)
        y[t] = total


@cute.jit
def ring(x: cute.Tensor, y: cute.Tensor, tiles: cute.Constexpr, count: cute.Constexpr, lanes: cute.Constexpr):
    ring_kernel(x, y, tiles, count, lanes).launch(grid=1, block=160)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tiles", [3, 7])
@pytest.mark.parametrize(("lanes", "count"), [(False, 4), (True, 128)])
def test_an_mbarrier_that_counts_a_warp_too_few(seed, tiles, lanes, count, seeded):
    seeded(seed)
    x, y = np.arange(32 * tiles, dtype=np.float32), np.zeros(128, np.float32)
    assert found(ring, x, y, tiles, count, lanes) == ([], "")
    assert np.array_equal(y[:32], x.reshape(tiles, 32).sum(0))
    rules, text = found(ring, x, y, tiles, count - count // 4, lanes)
    assert "mbarrier-early" in rules, text
    assert f"the count of mbarrier_init is {count - count // 4}, which" in text


@cute.jit
def bulk_load(target, source, bytes_, mbarrier):
    nvgpu.async_copy.bulk_load(target.ir_value(), source.ir_value(), Int32(bytes_).ir_value(), mbarrier.ir_value())


@cute.kernel
def armed_kernel(x: cute.Tensor, y: cute.Tensor, tiles: cute.Constexpr):
    """A reader says how many bytes are to come; who copies waits until the buffer is empty. That orders the readers by the bytes alone."""
    t, _, _ = cute.arch.thread_idx()
    lane, warp = t % 32, t // 32
    memory = cute.arch.alloc_smem(Float32, 32, 128)
    buffer = cute.make_tensor(memory, cute.make_layout(32))
    full = cute.arch.alloc_smem(Int64, 1)
    empty = cute.arch.alloc_smem(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init(empty, 2)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(full, 128)
    cute.arch.sync_threads()
    if warp == 2:
        if lane == 0:
            for tile in range(tiles):
                cute.arch.mbarrier_wait(empty, (tile % 2) ^ 1)
                bulk_load(memory, x.iterator + tile * 32, 128, full)
    else:
        total = Float32(0)
        for tile in range(tiles):
            cute.arch.mbarrier_wait(full, tile % 2)
            total += buffer[lane]
            cute.arch.sync_warp()
            if t == 0 and tile + 1 < tiles:
                cute.arch.mbarrier_arrive_and_expect_tx(full, 128)
            if lane == 0:
                cute.arch.mbarrier_arrive(empty)
        y[t] = total


@cute.jit
def armed(x: cute.Tensor, y: cute.Tensor, tiles: cute.Constexpr):
    armed_kernel(x, y, tiles).launch(grid=1, block=96)


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_that_know_of_each_other_by_bytes(seed, seeded):
    seeded(seed)
    memory = np.zeros(5 * 32 + 4, np.float32)
    x = memory[(-memory.ctypes.data // 4) % 4 :][: 5 * 32]  # bulk copies need 16-byte addresses
    x[:] = np.arange(5 * 32)
    y = np.zeros(64, np.float32)
    assert found(armed, x, y, 5) == ([], "")
    assert np.array_equal(y[:32], x.reshape(5, 32).sum(0))


@cute.kernel
def twice_kernel(x: cute.Tensor, y: cute.Tensor, warps: cute.Constexpr):
    """One lane of each of some warps brings the same 128 bytes to the same place; one mbarrier counts them all."""
    t, _, _ = cute.arch.thread_idx()
    memory = cute.arch.alloc_smem(Float32, 32, 128)
    full = cute.arch.alloc_smem(Int64, 1)
    if t == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(full, 128 * warps)
    cute.arch.sync_threads()
    if t % 32 == 0 and t < 32 * warps:
        bulk_load(memory, x.iterator, 128, full)
    cute.arch.mbarrier_wait(full, 0)
    y[t] = cute.make_tensor(memory, cute.make_layout(32))[t % 32]


@cute.jit
def twice(x: cute.Tensor, y: cute.Tensor, warps: cute.Constexpr):
    twice_kernel(x, y, warps).launch(grid=1, block=64)


def test_two_warps_bring_the_same_bytes_to_one_place():
    memory = np.zeros(32 + 4, np.float32)
    x, y = memory[(-memory.ctypes.data // 4) % 4 :][:32], np.zeros(64, np.float32)
    assert found(twice, x, y, 1) == ([], "")
    rules, text = found(twice, x, y, 2)
    assert rules == ["write-write"]
    assert "another bulk copy that the same mbarrier counts wrote it" in text
    assert "of its own" not in text
