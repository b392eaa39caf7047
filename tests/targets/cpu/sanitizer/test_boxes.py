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
