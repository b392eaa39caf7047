"""Lanes of a warp: shuffles against a model of PTX's definition, votes, reductions, election, masks, divergence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernel_testing import run, runs

import kiln
from kiln import DSLWarning, cute
from kiln.cute import arch
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault

FEW = [(1, 0), (1, 1), (2, 2)]


def shuffle_model(kind: str, values: np.ndarray, offsets: np.ndarray, clamp: int) -> np.ndarray:
    """PTX `shfl.sync` as its manual writes it, for one warp."""
    out = values.copy()
    for lane in range(32):
        b, c = int(offsets[lane]) & 31, clamp & 31
        segment = clamp >> 8 & 31
        max_lane = (lane & segment) | (c & ~segment & 31)
        min_lane = lane & segment
        if kind == "up":
            source = lane - b
            inside = source >= max_lane
        elif kind == "down":
            source = lane + b
            inside = source <= max_lane
        elif kind == "bfly":
            source = lane ^ b
            inside = source <= max_lane
        else:
            source = min_lane | (b & ~segment & 31)
            inside = source <= max_lane
        out[lane] = values[source if inside else lane]
    return out


CLAMPS = [31, 0, 15, 7, 0x1800 | 7, 0x1800, 0x1C00 | 3, 0x1000 | 15, 0x1000, 0x1E00 | 1, 0x1F00, 0x0F00 | 16]


@pytest.mark.parametrize("kind", ["idx", "up", "down", "bfly"])
def test_shuffles_follow_ptx(kind):
    """All clamps and segments, offsets of all sizes, the same or another in each lane."""

    @cute.kernel
    def kernel(values: cute.Tensor, offsets: cute.Tensor, clamps: cute.Tensor, out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        for i in range(cute.Int32(len(CLAMPS))):
            got = arch.shuffle_sync_op(values[t], offsets[b * 32 + t], mask_and_clamp=clamps[i], kind=kind)
            out[(b * len(CLAMPS) + i) * 32 + t] = got

    rng = np.random.default_rng(1)
    values = rng.integers(-(2**31), 2**31, 32).astype(np.int32)
    offsets = np.array([*([n] * 32 for n in (0, 1, 2, 5, 16, 31)), rng.integers(0, 32, 32)], np.int32)
    if kind != "idx":
        offsets = offsets[:-1]
    grid = len(offsets)
    out = np.zeros(grid * len(CLAMPS) * 32, np.int32)
    clamps = np.array(CLAMPS, np.int32)
    want = np.array([[shuffle_model(kind, values, row, clamp) for clamp in CLAMPS] for row in offsets]).reshape(-1)
    for *_, got in runs(kernel, values, offsets.reshape(-1), clamps, out, grid=grid, schedules=FEW):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["Int8", "Int16", "Float16", "BFloat16", "Int32", "Float32", "Int64", "Float64"])
def test_shuffles_of_all_types(dtype):
    kind = getattr(cute, dtype)
    names = {"BFloat16": "bfloat16"}
    import ml_dtypes

    numpy_type = ml_dtypes.bfloat16 if dtype in names else np.dtype(dtype.lower())

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        out[t] = arch.shuffle_sync_bfly(kind(x[t]), 5)

    x = (np.arange(32) * 3 - 40).astype(numpy_type)
    out = np.zeros_like(x)
    run(kernel, x, out)
    np.testing.assert_array_equal(out.astype(np.float64), x[np.arange(32) ^ 5].astype(np.float64))


def test_a_short_last_warp():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        out[t] = arch.shuffle_sync_up(t, 1)
        out[50 + t] = arch.vote_ballot_sync(t % 3 == 0)
        out[100 + t] = arch.warp_redux_sync(t, "add")
        out[150 + t] = cute.Int32(arch.vote_all_sync(t < 50))

    for (out,) in runs(kernel, np.zeros(200, np.int32), block=50):
        t = np.arange(50)
        np.testing.assert_array_equal(out[:50], np.where(t % 32 == 0, t, t - 1))
        ballots = [sum(1 << i for i in range(32) if i % 3 == 0), sum(1 << i for i in range(18) if (32 + i) % 3 == 0)]
        np.testing.assert_array_equal(out[50:100].view(np.uint32), np.array(ballots, np.uint32)[t // 32])
        np.testing.assert_array_equal(out[100:150], np.where(t < 32, sum(range(32)), sum(range(32, 50))))
        assert (out[150:] == 1).all()


def test_votes():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        holds = x[b * 32 + t] != 0
        out[(b * 4 + 0) * 32 + t] = cute.Int32(arch.vote_all_sync(holds))
        out[(b * 4 + 1) * 32 + t] = cute.Int32(arch.vote_any_sync(holds))
        out[(b * 4 + 2) * 32 + t] = cute.Int32(arch.vote_uni_sync(holds))
        out[(b * 4 + 3) * 32 + t] = arch.vote_ballot_sync(holds)

    rows = np.array([np.zeros(32), np.ones(32), np.arange(32) == 7, np.arange(32) != 31, np.arange(32) % 2], np.int32)
    for _, out in runs(kernel, rows.reshape(-1), np.zeros(5 * 128, np.int32), grid=5):
        got = out.reshape(5, 4, 32)
        for row, (all_, any_, uni, ballot) in zip(rows, got, strict=True):
            assert (all_ == row.all()).all() and (any_ == row.any()).all()
            assert (uni == (row.all() or not row.any())).all()
            assert (ballot.view(np.uint32) == sum(1 << i for i in range(32) if row[i])).all()


REDUCTIONS = {
    "add": lambda v: v.sum(dtype=np.int32), "min": np.min, "max": np.max, "and": np.bitwise_and.reduce,
    "or": np.bitwise_or.reduce, "xor": np.bitwise_xor.reduce,
}  # fmt: skip


@pytest.mark.quick(10)
@pytest.mark.parametrize("kind", REDUCTIONS)
@pytest.mark.parametrize("mask", [0xFFFFFFFF, 0x0000FFFF, 0x80000001, 0x00FF0100])
def test_reductions_of_integers_under_masks(kind, mask):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        if (cute.Uint32(mask) >> t) & 1 == 1:
            out[t] = arch.warp_redux_sync(x[t], kind, mask)

    x = np.random.default_rng(2).integers(-(2**30), 2**30, 32).astype(np.int32)
    lanes = [n for n in range(32) if mask >> n & 1]
    for _, out in runs(kernel, x, np.zeros(32, np.int32), schedules=FEW):
        assert (out[lanes] == REDUCTIONS[kind](x[lanes])).all()


def test_reductions_of_unsigned_and_of_floats():
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, more: cute.Tensor):
        t = arch.thread_idx()[0]
        out[t] = arch.warp_redux_sync(x[t], "min")
        out[32 + t] = arch.warp_redux_sync(x[t], "max")
        more[t] = arch.warp_redux_sync(y[t], "fmin")
        more[32 + t] = arch.warp_redux_sync(y[t], "fmax")
        more[64 + t] = arch.warp_redux_sync(y[t], "fmax", abs=True)
        more[96 + t] = arch.warp_redux_sync(y[t], "fmax", nan=True)

    rng = np.random.default_rng(3)
    x = rng.integers(0, 2**32, 32, dtype=np.uint32)
    y = rng.standard_normal(32).astype(np.float32) * 10
    y[4] = np.nan
    out, more = np.zeros(64, np.uint32), np.zeros(128, np.float32)
    run(kernel, x, y, out, more)
    assert (out[:32] == x.min()).all() and (out[32:] == x.max()).all()
    assert (more[:32] == np.nanmin(y)).all() and (more[32:64] == np.nanmax(y)).all()
    assert (more[64:96] == np.nanmax(abs(y))).all() and np.isnan(more[96:]).all()


@pytest.mark.parametrize("width", [2, 8, 32])
def test_reductions_by_shuffles(width):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        out[t] = arch.warp_reduction_sum(x[t], threads_in_group=width)
        out[128 + t] = arch.warp_reduction_max(x[t], threads_in_group=width)

    x = np.random.default_rng(4).standard_normal(128).astype(np.float32)
    for _, out in runs(kernel, x, np.zeros(256, np.float32), block=128, schedules=FEW):
        groups = x.reshape(-1, width)
        np.testing.assert_allclose(out[:128].reshape(-1, width)[:, 0], groups.sum(1), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(out[128:], np.repeat(groups.max(1), width))


# --- masks and divergence --------------------------------------------------------------------------------------------


def test_halves_of_a_warp_in_different_branches():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t < 16:
            v = cute.Int32(t)
            for i in range(cute.Int32(5)):
                v = arch.shuffle_sync(v, (t + 1) % 16, 0x0000FFFF)
            out[t] = v
        else:
            w = cute.Int32(t)
            for i in range(cute.Int32(3)):
                w = arch.shuffle_sync(w, 16 + (t + 1) % 16, 0xFFFF0000)
            out[t] = w

    for (out,) in runs(kernel, np.zeros(32, np.int32)):
        want = np.concatenate([np.roll(np.arange(16), -5), np.roll(np.arange(16, 32), -3)])
        np.testing.assert_array_equal(out, want)


def test_overlapping_masks_that_wait_for_each_other():
    """Lane 2 waits for lane 0 under one mask while lane 0 first meets lane 1 under another with the same lowest lane."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t < 3:
            v = cute.Int32(100 + t)
            if t != 2:
                v = arch.shuffle_sync(v, 1 - t, 0b011)
            if t != 1:
                v = arch.shuffle_sync(v, 2 - t, 0b101)
            out[t] = v

    for (out,) in runs(kernel, np.zeros(3, np.int32)):
        np.testing.assert_array_equal(out, [102, 100, 101])


def test_many_masks_in_turn():
    """Lanes leave meetings at their own pace: what a slow lane has yet to read is not overwritten by later ones."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        total = cute.Int32(0)
        for i in range(cute.Int32(20)):
            v = t * 1000 + i
            total += arch.shuffle_sync_bfly(v, 1)
            if t < 2:
                total += arch.shuffle_sync_bfly(v, 1, 0b11)
                total += arch.shuffle_sync_bfly(v + 7, 1, 0b11)
            if t % 2 == 0:
                total += arch.warp_redux_sync(v, "max", 0x55555555)
        out[t] = total

    t = np.arange(32)
    want = np.zeros(32, np.int64)
    for i in range(20):
        v = t * 1000 + i
        want += v[t ^ 1]
        want[:2] += v[t ^ 1][:2] + (v + 7)[t ^ 1][:2]
        want[::2] += v[::2].max()
    for (out,) in runs(kernel, np.zeros(32, np.int32)):
        np.testing.assert_array_equal(out, want)


def test_the_same_instruction_at_two_places():
    """PTX asks for the same mask and kind, not for the same line."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        v = cute.Int32(0)
        if t % 2 == 0:
            v = arch.shuffle_sync_bfly(t, 1)
        else:
            v = arch.shuffle_sync_bfly(t * 10, 1)
        out[t] = v

    for (out,) in runs(kernel, np.zeros(32, np.int32)):
        t = np.arange(32)
        np.testing.assert_array_equal(out, np.where(t % 2 == 0, (t + 1) * 10, t - 1))


def test_lanes_that_exited_are_not_waited_for():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t % 4 != 1:
            arch.sync_warp()
            out[t] = arch.vote_ballot_sync(t > 10)
            out[32 + t] = arch.warp_redux_sync(cute.Int32(1), "add")

    here = np.arange(32)[np.arange(32) % 4 != 1]
    for (out,) in runs(kernel, np.zeros(64, np.int32)):
        assert (out[here].view(np.uint32) == sum(1 << int(t) for t in here if t > 10)).all()
        assert (out[32 + here] == 24).all()


def test_election():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t % 32 >= 3:
            with arch.elect_one():
                arch.atomic_add(out.iterator + t, 1)
            with arch.elect_one():
                arch.atomic_add(out.iterator + (96 + t // 32), 1)

    for (out,) in runs(kernel, np.zeros(100, np.int32), block=96):
        assert out[:96].sum() == 3 and (out[96:99] == 1).all()
        assert (out[[3, 35, 67]] == 1).all()


def test_sync_warp_orders_shared_memory():
    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = cute.make_tensor(arch.alloc_smem(cute.Int32, 64), cute.make_layout(64))
        t = arch.thread_idx()[0]
        for i in range(cute.Int32(6)):
            tile[t] = t + i
            arch.sync_warp()
            out[i * 64 + t] = tile[t ^ 31]
            arch.sync_warp()

    for (out,) in runs(kernel, np.zeros(6 * 64, np.int32), block=64):
        want = np.array([[(t ^ 31) + i for t in range(64)] for i in range(6)])
        np.testing.assert_array_equal(out.reshape(6, 64), want)


def test_a_lane_that_never_comes_is_a_deadlock():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        if t == 3:
            arch.barrier(barrier_id=1, number_of_threads=32)
        out[t] = arch.shuffle_sync_bfly(t, 1)

    with pytest.raises(DeadlockFault) as caught:
        run(kernel, np.zeros(32, np.int32))
    text = str(caught.value)
    assert "threads 0-2, 4-31 (warp 0) of block (0, 0, 0) wait at a shuffle" in text
    assert "thread 3 (warp 0) of block (0, 0, 0) waits at a barrier" in text


def test_different_instructions_do_not_meet():
    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        v = cute.Int32(0)
        if t < 16:
            v = arch.shuffle_sync_bfly(t, 1)
        else:
            v = arch.vote_ballot_sync(t > 3)
        out[t] = v

    with pytest.raises(DeadlockFault) as caught:
        run(kernel, np.zeros(32, np.int32))
    assert "wait at a shuffle" in str(caught.value) and "wait at a vote" in str(caught.value)


def test_inclusive_scan():
    """A program of the trade: Kogge-Stone within warps, then across them through shared memory."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        sums = cute.make_tensor(arch.alloc_smem(cute.Int32, 32), cute.make_layout(32))
        t = arch.thread_idx()[0]
        lane, warp = arch.lane_idx(), arch.warp_idx()
        v = x[t]
        for step in (1, 2, 4, 8, 16):
            other = arch.shuffle_sync_up(v, step)
            if lane >= step:
                v += other
        if lane == 31:
            sums[warp] = v
        arch.sync_threads()
        before = cute.Int32(0)
        for w in range(warp):
            before += sums[w]
        x[t] = v + before

    x = np.random.default_rng(5).integers(-100, 100, 256, dtype=np.int32)
    for (got,) in runs(kernel, x, block=256):
        np.testing.assert_array_equal(got, np.cumsum(x))


def test_all_pairs_by_idx_shuffles():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        best = cute.Int32(2**31 - 1)
        for i in range(cute.Int32(32)):
            other = arch.shuffle_sync(x[t], i)
            if i != t and other - x[t] > 0 and other - x[t] < best:
                best = other - x[t]
        out[t] = best

    x = np.random.default_rng(6).permutation(1000)[:32].astype(np.int32)
    want = [min([b - a for b in x if b > a], default=2**31 - 1) for a in x]
    for _, out in runs(kernel, x, np.zeros(32, np.int32), schedules=FEW):
        np.testing.assert_array_equal(out, want)


def test_every_pair_of_lanes_can_meet():
    pairs = list(itertools.combinations((0, 1, 7, 30, 31), 2))

    @cute.kernel
    def kernel(out: cute.Tensor):
        t = arch.thread_idx()[0]
        for number, (a, b) in enumerate(pairs):
            if t == a or t == b:
                out[number * 32 + t] = arch.shuffle_sync(t + 1, a + b - t, (1 << a) | (1 << b))

    for (out,) in runs(kernel, np.zeros(len(pairs) * 32, np.int32)):
        for row, (a, b) in zip(out.reshape(-1, 32), pairs, strict=True):
            assert row[a] == b + 1 and row[b] == a + 1 and row.sum() == a + b + 2


def test_a_lane_that_the_mask_lacks_meets_nobody():
    """PTX leaves its result undefined. It must not join the next shuffle of the lanes that the mask names."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        lane = arch.thread_idx()[0]
        total = cute.Int32(lane)
        for distance in kiln.range_constexpr(4):
            before = arch.shuffle_sync(total, cute.Int32(lane - (1 << distance)), cute.Int32(0xFFFF), cute.Int32(31))
            if lane >= 1 << distance:
                total += before
        out[lane] = total
        out[32 + lane] = arch.vote_ballot_sync(lane % 2 == 0, 0xFFFF)

    sums = np.zeros(64, np.int32)
    with pytest.warns(DSLWarning, match=r"a (shuffle|vote) is executed by a lane that its mask does not name"):
        run(kernel, sums)
    assert sums[:16].tolist() == np.cumsum(np.arange(16)).tolist()
    assert sums[32:48].tolist() == [0x5555] * 16
