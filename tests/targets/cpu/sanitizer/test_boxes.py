"""Copies of the tensor memory accelerator: programs with one thing changed, and what the sanitizer says to it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sanitizer_testing import found
from tma_testing import Box, Map, coordinates, tile

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLWarning
from kiln.base_dsl.sanitizing import SanitizerError
from kiln.cute import arch
from kiln.dialects import nvgpu

BOX = Box("f32", (32, 16), (32, 8), "128b")
SIZE = 1024


def rules(main, *arrays) -> set[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DSLWarning)
        return {finding.rule for finding in found(main, *arrays)}


def arrays():
    return np.arange(BOX.memory, dtype=np.uint8), np.zeros(BOX.memory, np.uint8)


# --- a ring of two stages, loaded by one warp and stored by another ---------------------------------------------------


def ring(change: str = ""):
    """Warp 1 loads four boxes through two stages; warp 0 adds one to each and stores it from a buffer of its own."""
    boxes = 2 if change == "no reuse" else 4

    @cute.kernel
    def kernel(source: Map, target: Map):
        t = arch.thread_idx()[0]
        lane, warp = t % 32, t // 32
        stages, out = tile(2 * SIZE), tile(SIZE)
        full, empty = arch.alloc_smem(cute.Int64, 2), arch.alloc_smem(cute.Int64, 2)
        if t == 0:
            for s in kiln.range_constexpr(2):
                arch.mbarrier_init(full + s, 1)
                arch.mbarrier_init(empty + s, 1)
            if change != "no init fence":
                arch.mbarrier_init_fence()
        if change != "no barrier after init":
            arch.sync_threads()
        if warp == 1 and lane == 0:
            for k in kiln.range_constexpr(boxes):
                s = k % 2
                if change not in ("no wait for empty",):
                    arch.mbarrier_wait(empty + s, (k // 2 + 1) % 2)
                if change == "plain arrive":
                    arch.mbarrier_arrive(full + s)
                else:
                    bytes_ = {"few bytes": SIZE - 128, "many bytes": SIZE + 128}.get(change, SIZE)
                    arch.mbarrier_arrive_and_expect_tx(full + s, bytes_)
                where = stages.iterator + s * SIZE
                nvgpu.tma.tma_load(
                    source.address(),
                    where.ir_value(),
                    (full + s).ir_value(),
                    coordinates(-8 if change == "negative load" else 0, 8 * (k % 2)),
                )
            if change == "one more load":
                arch.mbarrier_wait(empty, 1)
                arch.mbarrier_arrive_and_expect_tx(full, SIZE)
                nvgpu.tma.tma_load(source.address(), stages.iterator.ir_value(), full.ir_value(), coordinates(0, 0))
        if warp == 0:
            for k in kiln.range_constexpr(boxes):
                s = k % 2
                which = 1 - s if change == "other stage" else s
                if change != "no wait for full":
                    arch.mbarrier_wait(full + which, k // 2 % 2)
                for i in range(SIZE // 32):
                    out[i * 32 + lane] = stages[s * SIZE + i * 32 + lane]
                if change not in ("no proxy fence", "fence of global memory"):
                    arch.fence_proxy("async.shared", space="cta")
                if change == "fence of global memory":
                    arch.fence_proxy("async.global")
                if change != "no barrier before store":
                    arch.sync_warp()
                if lane == 0:
                    arch.mbarrier_arrive(empty + s)
                    column = -4 if change == "negative store" else 0
                    nvgpu.tma.tma_store(target.address(), out.iterator.ir_value(), coordinates(column, 8 * (k % 2)))
                    if change != "never committed":
                        arch.cp_async_bulk_commit_group()
                    if change not in ("no wait for store", "wait by another"):
                        arch.cp_async_bulk_wait_group(
                            1 if change == "one group left" else 0, read=change != "full wait"
                        )
                if change == "wait by another" and lane == 1:
                    arch.cp_async_bulk_wait_group(0, read=True)
                if change != "no barrier after store":
                    arch.sync_warp()

    @cute.jit
    def main(a: cute.Tensor, b: cute.Tensor):
        kernel(BOX.encode(a), BOX.encode(b)).launch(grid=1, block=64)

    return main


@pytest.mark.parametrize("change", ["", "negative load", "full wait", "no reuse"])
def test_right_rings(change):
    assert found(ring(change), *arrays()) == []


@pytest.mark.quick(8)
@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("no wait for full", "write-read"),
        ("other stage", "write-read"),
        ("no wait for empty", "write-write"),
        ("no proxy fence", "proxy"),
        ("fence of global memory", "proxy"),
        ("no barrier before store", "write-read"),
        ("no barrier after store", "read-write"),
        ("no wait for store", "read-write"),
        ("one group left", "read-write"),
        ("wait by another", "read-write"),
        ("never committed", "read-write"),
        ("plain arrive", "write-read"),
        ("many bytes", "deadlock"),
        ("negative store", "negative"),
        ("no init fence", "proxy"),
        ("no barrier after init", "write-read"),
        ("one more load", "copy-unseen"),
    ],
)
def test_wrong_rings(change, rule):
    assert rule in rules(ring(change), *arrays())


# --- a store, and who may see what it wrote ---------------------------------------------------------------------------


def stores(wait: str):
    """A thread stores a box and reads what it wrote."""

    @cute.kernel
    def kernel(target: Map, b: cute.Tensor, seen: cute.Tensor):
        t = arch.thread_idx()[0]
        out = tile(SIZE)
        for i in range(SIZE // 32):
            out[i * 32 + t] = cute.Uint8(3)
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        if t == 0:
            nvgpu.tma.tma_store(target.address(), out.iterator.ir_value(), coordinates(0, 0))
            arch.cp_async_bulk_commit_group()
            if wait:
                arch.cp_async_bulk_wait_group(0, read=wait == "read")
                seen[0] = b[0]

    @cute.jit
    def main(b: cute.Tensor, seen: cute.Tensor):
        kernel(BOX.encode(b), b, seen).launch(grid=1, block=32)

    return main, np.zeros(BOX.memory, np.uint8), np.zeros(1, np.uint8)


def test_what_a_store_wrote_is_seen_after_a_full_wait():
    assert rules(*stores("full")) == set()
    assert rules(*stores("read")) == {"write-read"}


def test_a_store_that_nobody_waits_for_is_a_warning():
    with pytest.warns(DSLWarning, match="may still read shared memory"):
        assert found(*stores("")) == []


def adds(change: str = ""):
    """Blocks add a box to the same tile, and one element by an atomic."""

    @cute.kernel
    def kernel(target: Map, b: cute.Tensor):
        t = arch.thread_idx()[0]
        out = tile(SIZE)
        for i in range(SIZE // 32):
            out[i * 32 + t] = cute.Uint8(0)
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        if t == 0:
            nvgpu.tma.tma_store(target.address(), out.iterator.ir_value(), coordinates(0, 0), reduction="add")
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)
            if change:
                arch.atomic_add(b.iterator, cute.Float32(1))

    @cute.jit
    def main(b: cute.Tensor):
        kernel(BOX.encode(b), b).launch(grid=2, block=32)

    return main, np.zeros(BOX.memory // 4, np.float32)


def test_reductions_do_not_race_with_each_other_but_with_atomics():
    assert rules(*adds()) == set()
    assert rules(*adds("atomic")) == {"atomic"}


# --- edited maps ------------------------------------------------------------------------------------------------------


def edits(change: str = "", where: str = "smem"):
    """Warp 0 edits a map for each of two boxes; warp 1 loads through it."""

    @cute.kernel
    def kernel(given: Map, workspace: cute.Tensor, a: cute.Tensor):
        t = arch.thread_idx()[0]
        warp, lane = t // 32, t % 32
        shared, full = tile(SIZE), arch.alloc_smem(cute.Int64, 1)
        copy = cute.make_tensor(arch.alloc_smem(cute.Int64, 16, 128), cute.make_layout(16))
        number = cute.Int64(given.number())
        words = cute.make_tensor(cute.make_ptr(cute.Int64, number, cute.AddressSpace.gmem), cute.make_layout(16))
        edited = copy if where == "smem" else workspace
        if t < 16:
            edited[t] = words[t]
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        for k in kiln.range_constexpr(2):
            if warp == 0:
                if lane == 0:
                    there = (a.iterator + 128 * k).toint()
                    nvgpu.tma.tensor_map_replace(
                        edited.iterator.ir_value(), "global_address", cute.Int64(there).ir_value()
                    )
                arch.sync_warp()
                if where == "smem":
                    nvgpu.tma.tensor_map_publish(workspace.iterator.ir_value(), copy.iterator.ir_value())
                elif change != "no release":
                    nvgpu.tma.tensor_map_release()
            if change != "no barrier":
                arch.sync_threads()
            if change == "acquire of another":
                if warp == 0:
                    nvgpu.tma.tensor_map_acquire(workspace.iterator.ir_value())
                arch.sync_threads()
            if warp == 1:
                if change not in ("no acquire", "acquire of another"):
                    nvgpu.tma.tensor_map_acquire(workspace.iterator.ir_value())
                if lane == 0:
                    arch.mbarrier_arrive_and_expect_tx(full, SIZE)
                    nvgpu.tma.tma_load(
                        workspace.iterator.ir_value(), shared.iterator.ir_value(), full.ir_value(), coordinates(0, 0)
                    )
                if change != "no wait":
                    arch.mbarrier_wait(full, k)
            arch.sync_threads()
        arch.mbarrier_wait(full, 1)

    @cute.jit
    def main(a: cute.Tensor, workspace: cute.Tensor):
        kernel(BOX.encode(a), workspace, a).launch(grid=1, block=64)

    space = np.zeros(32, np.int64)
    start = -space.ctypes.data % 128 // 8
    return main, np.zeros(2 * BOX.memory, np.uint8), space[start : start + 16]


@pytest.mark.parametrize("where", ["smem", "gmem"])
def test_edited_maps(where):
    assert found(*edits("", where)) == []
    assert "map-proxy" in rules(*edits("no acquire", where))
    assert "map-proxy" in rules(*edits("acquire of another", where))
    assert {"write-read", "read-write"} & rules(*edits("no barrier", where))
    assert "read-write" in rules(*edits("no wait", where))


def test_maps_that_are_not_released():
    assert "map-proxy" in rules(*edits("no release", "gmem"))


# --- clusters ---------------------------------------------------------------------------------------------------------


def multicast(change: str = ""):
    """Two blocks load half of a tile each, for both, twice."""
    box = Box("f32", (32, 16), (32, 8), "128b")

    @cute.kernel
    def kernel(source: Map, out: cute.Tensor):
        t, rank = arch.thread_idx()[0], arch.block_idx_in_cluster()
        shared, full = tile(2 * SIZE), arch.alloc_smem(cute.Int64, 1)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        if change == "no barrier after init":
            arch.sync_threads()
        else:
            arch.cluster_arrive()
            arch.cluster_wait()
        for k in kiln.range_constexpr(2):
            if t == 0:
                arch.mbarrier_arrive_and_expect_tx(full, 2 * SIZE)
                half = 0 if change == "same half" else rank
                where = shared.iterator + half * SIZE
                mask = cute.Int16({"only the other": 1, "only this": 2}.get(change, 3))
                if change in ("only the other", "only this"):
                    mask = cute.Int16(1) << cute.Int16((1 - rank) if change == "only the other" else rank)
                nvgpu.tma.tma_load(
                    source.address(), where.ir_value(), full.ir_value(), coordinates(0, 8 * half), mask=mask.ir_value()
                )
            arch.mbarrier_wait(full, k)
            for i in range(t, 2 * SIZE, 32):
                out[rank, i] = shared[i]
            if change != "no barrier between" and k == 0:
                arch.cluster_arrive()
                arch.cluster_wait()

    @cute.jit
    def main(a: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(a), out).launch(grid=2, block=32, cluster=(2, 1, 1))

    return main, np.arange(box.memory, dtype=np.uint8), np.zeros((2, 2 * SIZE), np.uint8)


def test_multicast():
    assert found(*multicast()) == []
    assert "deadlock" in rules(*multicast("only this"))
    assert "write-write" in rules(*multicast("same half"))
    assert "read-write" in rules(*multicast("no barrier between"))
    assert "block-started" in rules(*multicast("no barrier after init"))


# --- swizzles ---------------------------------------------------------------------------------------------------------


def views(swizzle: str):
    """A tile that is loaded through the swizzle of a map and read through that of a layout."""
    box = Box("f32", (32, 8), (32, 8), swizzle)

    @cute.kernel
    def kernel(source: Map, out: cute.Tensor):
        t = arch.thread_idx()[0]
        full = arch.alloc_smem(cute.Int64, 1)
        memory = arch.alloc_smem(cute.Float32, 256, 1024)
        layout = cute.make_composed_layout(cute.make_swizzle(3, 2, 3), 0, cute.make_layout((8, 32), stride=(32, 1)))
        shared = cute.make_tensor(memory, layout)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(full, SIZE)
            nvgpu.tma.tma_load(source.address(), memory.ir_value(), full.ir_value(), coordinates(0, 0))
        arch.mbarrier_wait(full, 0)
        for i in range(8):
            out[i, t] = shared[i, t]

    @cute.jit
    def main(a: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(a), out).launch(grid=1, block=32)

    return main, np.arange(256, dtype=np.float32), np.zeros((8, 32), np.float32)


def test_tiles_are_read_through_the_swizzle_of_their_map():
    main, a, out = views("128b")
    assert found(main, a, out) == []
    np.testing.assert_array_equal(out, a.reshape(8, 32))
    assert rules(*views("none")) == {"swizzle"}


def short_rows(change: str = ""):
    """Rows of 64 bytes with a swizzle of 128: their other halves are for others."""
    box = Box("f32", (32, 8), (16, 8), "128b")

    @cute.kernel
    def kernel(source: Map, out: cute.Tensor):
        t = arch.thread_idx()[0]
        full, memory = arch.alloc_smem(cute.Int64, 1), tile(box.space)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(full, box.bytes)
            target = memory.iterator + (512 if change == "little memory" else 0)
            nvgpu.tma.tma_load(source.address(), target.ir_value(), full.ir_value(), coordinates(0, 0))
        if t == 1 and change != "little memory":  # piece 4 of row 0, or one that was copied to
            memory[0 if change == "race" else 64] = cute.Uint8(1)
        arch.mbarrier_wait(full, 0)
        out[t] = memory[t]

    @cute.jit
    def main(a: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(a), out).launch(grid=1, block=32)

    return main, np.zeros(256, np.float32), np.zeros(32, np.uint8)


def test_rows_shorter_than_the_span_of_a_swizzle():
    assert rules(*short_rows()) == set()
    assert "write-write" in rules(*short_rows("race"))
    main, *given = short_rows("little memory")
    with pytest.raises(SanitizerError) as caught, kiln.sanitize():
        main(*given)
    assert caught.value.findings[0].rule == "bounds"


def test_alignment():
    @cute.kernel
    def kernel(source: Map):
        full = arch.alloc_smem(cute.Int64, 1)
        shared = tile(2 * SIZE)
        if arch.thread_idx()[0] == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
            where = shared.iterator + 64
            nvgpu.tma.tma_load(source.address(), where.ir_value(), full.ir_value(), coordinates(0, 0))

    @cute.jit
    def main(a: cute.Tensor):
        kernel(BOX.encode(a)).launch(grid=1, block=32)

    with pytest.raises(SanitizerError) as caught, kiln.sanitize():
        main(np.zeros(BOX.memory, np.uint8))
    assert [finding.rule for finding in caught.value.findings] == ["alignment"]


# --- boxes outside their tensor ---------------------------------------------------------------------------------------


def loads(steps, cluster: int = 1, prologue: int = 0):
    """Each block loads boxes of 8 rows, `steps` along the rows of 32 elements, the first ones at another line."""

    @cute.kernel
    def kernel(source: Map, out: cute.Tensor):
        t, block = arch.thread_idx()[0], arch.block_idx()[0]
        stage, full = tile(SIZE), arch.alloc_smem(cute.Int64, 1)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        for k in range(prologue):
            if t == 0:
                arch.mbarrier_arrive_and_expect_tx(full, SIZE)
                where = coordinates(32 * k, 8 * block)
                nvgpu.tma.tma_load(source.address(), stage.iterator.ir_value(), full.ir_value(), where)
            arch.mbarrier_wait(full, k % 2)
            arch.sync_threads()
        for k in range(prologue, steps):
            if t == 0:
                arch.mbarrier_arrive_and_expect_tx(full, SIZE)
                where = coordinates(32 * k, 8 * block)
                nvgpu.tma.tma_load(source.address(), stage.iterator.ir_value(), full.ir_value(), where)
            arch.mbarrier_wait(full, k % 2)
            arch.sync_threads()
        out[block * 32 + t] = stage[t]

    @cute.jit
    def main(b: cute.Tensor, out: cute.Tensor, grid: kiln.Constexpr):
        kernel(BOX.encode(b), out).launch(grid=grid, block=32, cluster=(cluster, 1, 1))

    return lambda grid: main(np.zeros(BOX.memory, np.uint8), np.zeros(32 * grid, np.uint8), grid)


@pytest.mark.parametrize("prologue", [0, 1])
@pytest.mark.parametrize("how", ["sanitizer", "checks"])
def test_boxes_that_lie_wholly_outside(how, prologue, monkeypatch):
    """The tensor has 16 rows of 32 elements, and the kernel takes it for one of 16 rows of 128."""
    monkeypatch.setenv("KILN_CHECKS", "first")
    text = (
        r"thread 0 of block 0 loads a box at \(64, 0\) that lies wholly outside its tensor of \(32, 16\), as most boxes of this loop do"
        r"(.|\n)*such as \(N, K\)"
    )
    with kiln.target("cpu"), pytest.warns(DSLWarning, match=text) as warned:
        if how == "checks":
            loads(4, prologue=prologue)(2)
        else:
            with kiln.sanitize() as report:
                loads(4, prologue=prologue)(2)
            assert not report
    assert len(warned) == 1


@pytest.mark.parametrize(("steps", "blocks", "cluster"), [(1, 2, 1), (2, 2, 1), (1, 4, 1), (2, 8, 4), (1, 16, 1)])
def test_tiles_past_the_end_are_none(steps, blocks, cluster):
    """Tiles and clusters round sizes up, and loops their steps: that is no mistake, and the launch is repeated."""
    with kiln.target("cpu"), warnings.catch_warnings():
        warnings.simplefilter("error", DSLWarning)
        with kiln.sanitize() as report:
            loads(steps, cluster)(blocks)
    assert report.schedules == 4
