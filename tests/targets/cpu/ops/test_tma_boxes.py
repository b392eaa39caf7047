"""Boxes of tensors between global and shared memory, against a model in numpy, under several schedules."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tma_testing import Box, Map, coordinates, tile

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLUserCodeRuntimeError
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.targets.cpu.ops.tma import refused_copy
from kiln.targets.cpu.runtime import parts
from kiln.targets.cpu.runtime.tma import RANK

SEEDS = (0, 1, 2)


def launched(main, *arrays, seeds=SEEDS):
    """Run a program under several schedules: fresh copies of the arrays, afterwards."""
    for seed in seeds:
        copies = [array.copy() for array in arrays]
        with kiln.target("cpu"):
            parts.set_seed(seed)
            try:
                main(*copies)
            finally:
                parts.set_seed(0)
        yield copies


def loads(box: Box, at: tuple[int, ...], offsets: tuple[int, ...] = ()):
    """A program that loads a box and writes what lies in shared memory then."""
    size = box.space

    @cute.kernel
    def kernel(map_: Map, out: cute.Tensor):
        t = arch.thread_idx()[0]
        shared, full = tile(box.space), arch.alloc_smem(cute.Int64, 1)
        for i in range(t, size, 32):
            shared[i] = cute.Uint8(0)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(full, box.bytes)
            nvgpu.tma.tma_load(
                map_.address(), shared.iterator.ir_value(), full.ir_value(), coordinates(*at),
                offsets=[cute.Int16(o).ir_value() for o in offsets],
            )  # fmt: skip
        arch.mbarrier_wait(full, 0)
        for i in range(t, size, 32):
            out[i] = shared[i]

    @cute.jit
    def main(tensor: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(tensor), out).launch(grid=1, block=32)

    return main, np.zeros(size, np.uint8)


BOXES = [
    (Box("f16", (64, 40), (64, 32), "128b"), (0, 8)),
    (Box("f16", (100, 40), (32, 16), "64b"), (80, 30)),
    (Box("u8", (48, 20, 5), (32, 8, 2), "32b"), (-16, -3, 4)),
    (Box("f32", (33, 7), (16, 4)), (20, 5)),
    (Box("f32", (33, 7), (16, 4), "128b", fill="nan"), (20, 5)),
]


@pytest.mark.parametrize(("box", "at"), BOXES)
def test_loads(box, at):
    memory = np.random.default_rng(1).integers(0, 256, box.memory, np.uint8)
    main, out = loads(box, at)
    for _, got in launched(main, memory, out):
        np.testing.assert_array_equal(got, box.load(memory, at))


def test_a_load_of_pixels():
    box, at, offsets = Box("f16", (8, 5, 4, 2), (8, 16), pixel_box=(-1, -1, -1, -1)), (0, -1, -1, 0), (2, 1)
    memory = np.random.default_rng(2).integers(0, 256, box.memory, np.uint8)
    main, out = loads(box, at, offsets)
    for _, got in launched(main, memory, out, seeds=(0, 1)):
        np.testing.assert_array_equal(got, box.load(memory, at, offsets))


def stores(box: Box, at: tuple[int, ...], reduction: str | None = None):
    """A program that fills shared memory and stores it twice from two blocks."""

    @cute.kernel
    def kernel(map_: Map, source: cute.Tensor):
        t = arch.thread_idx()[0]
        shared = tile(box.space)
        for i in range(t, box.space, 32):
            shared[i] = source[i]
        arch.fence_proxy("async.shared", space="cta")
        arch.sync_threads()
        if t == 0:
            nvgpu.tma.tma_store(map_.address(), shared.iterator.ir_value(), coordinates(*at), reduction=reduction)
            arch.cp_async_bulk_commit_group()
            arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def main(tensor: cute.Tensor, source: cute.Tensor):
        kernel(box.encode(tensor), source).launch(grid=2, block=32)

    return main


def test_stores_and_reductions():
    box, at, r = Box("f32", (40, 9), (32, 8), "128b"), (16, 5), np.random.default_rng(3)
    memory = np.full(box.memory, 0, np.uint8)
    memory.view(np.float32)[:] = r.integers(0, 99, box.memory // 4)
    source = r.integers(0, 99, box.space // 4).astype(np.float32).view(np.uint8)
    for got, _ in launched(stores(box, at), memory, source):
        np.testing.assert_array_equal(got, box.store(memory, source, at))
    add = lambda old, new: (old.view(np.float32) + 2 * new.view(np.float32)).view(np.uint8)
    for got, _ in launched(stores(box, at, "add"), memory, source):
        np.testing.assert_array_equal(got, box.store(memory, source, at, add))


def test_multicast():
    """Two blocks load half of a tile each, for both."""
    box = Box("f16", (64, 32), (64, 16), "128b")

    @cute.kernel
    def kernel(map_: Map, out: cute.Tensor):
        t, rank = arch.thread_idx()[0], arch.block_idx_in_cluster()
        shared, full = tile(4096), arch.alloc_smem(cute.Int64, 1)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.cluster_arrive()
        arch.cluster_wait()
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(full, 4096)
            where = shared.iterator + rank * 2048
            nvgpu.tma.tma_load(
                map_.address(),
                where.ir_value(),
                full.ir_value(),
                coordinates(0, rank * 16),
                mask=cute.Int16(3).ir_value(),
            )
        arch.mbarrier_wait(full, 0)
        for i in range(t, 4096, 32):
            out[rank, i] = shared[i]
        arch.cluster_arrive()
        arch.cluster_wait()

    @cute.jit
    def main(tensor: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(tensor), out).launch(grid=2, block=32, cluster=(2, 1, 1))

    memory = np.random.default_rng(4).integers(0, 256, box.memory, np.uint8)
    whole = Box("f16", (64, 32), (64, 32), "128b").load(memory, (0, 0))
    for _, got in launched(main, memory, np.zeros((2, 4096), np.uint8), seeds=range(5)):
        np.testing.assert_array_equal(got, [whole, whole])


@pytest.mark.parametrize("many", [False, True], ids=["own half", "multicast"])
def test_loads_of_a_pair_signal_one_of_its_mbarriers(many):
    """Both CTAs of a pair load half of a tile; the mbarrier of the even one counts the bytes of both.

    With multicast the two even CTAs of a cluster of four load for all: the mbarrier of the pair that receives counts.
    """
    box, ctas = Box("f16", (64, 32), (64, 16), "128b"), 4 if many else 2

    @cute.kernel
    def kernel(map_: Map, out: cute.Tensor):
        t, rank = arch.thread_idx()[0], arch.block_idx_in_cluster()
        shared, full = tile(4096), arch.alloc_smem(cute.Int64, 1)
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.cluster_arrive()
        arch.cluster_wait()
        if t == 0:
            if rank % 2 == 0:
                arch.mbarrier_arrive_and_expect_tx(full, 8192 if many else 4096)
            leader = arch.map_dsmem_ptr(full, rank & ~1)
            if not many or rank % 2 == 0:
                part = rank // 2 if many else rank
                at = shared.iterator + part * 2048
                given = {"mask": cute.Int16(15).ir_value()} if many else {}
                place = coordinates(0, part * 16)
                nvgpu.tma.tma_load(map_.address(), at.ir_value(), leader.ir_value(), place, cta_group=2, **given)
        if rank % 2 == 0:
            arch.mbarrier_wait(full, 0)
        arch.cluster_arrive()
        arch.cluster_wait()
        for i in range(t, 4096, 32):
            out[rank, i] = shared[i]

    @cute.jit
    def main(tensor: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(tensor), out).launch(grid=ctas, block=32, cluster=(ctas, 1, 1))

    memory = np.random.default_rng(4).integers(0, 256, box.memory, np.uint8)
    whole = Box("f16", (64, 32), (64, 32), "128b").load(memory, (0, 0))
    for _, got in launched(main, memory, np.zeros((ctas, 4096), np.uint8), seeds=range(3)):
        for rank in range(ctas):
            mine = slice(0, 4096) if many else slice(2048 * rank, 2048 * rank + 2048)
            np.testing.assert_array_equal(got[rank, mine], whole[mine])


def editing(where: str):
    """A program that copies a map, moves it to another row, publishes it and loads through it."""
    box = Box("u32", (32, 8), (32, 4))

    @cute.kernel
    def kernel(map_: Map, workspace: cute.Tensor, tensor: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        shared, full = tile(512), arch.alloc_smem(cute.Int64, 1)
        copy = cute.make_tensor(arch.alloc_smem(cute.Int64, 16, 128), cute.make_layout(16))
        given = cute.make_tensor(
            cute.make_ptr(cute.Int64, cute.Int64(map_.number()), cute.AddressSpace.gmem), cute.make_layout(16)
        )
        edited = copy if where == "smem" else workspace
        if t < 16:
            edited[t] = given[t]
        if t == 0:
            arch.mbarrier_init(full, 1)
            arch.mbarrier_init_fence()
        arch.sync_threads()
        if t == 0:
            there = (tensor.iterator + 32 * 2).toint()
            nvgpu.tma.tensor_map_replace(edited.iterator.ir_value(), "global_address", cute.Int64(there).ir_value())
            nvgpu.tma.tensor_map_replace(edited.iterator.ir_value(), "global_dim", cute.Int32(3).ir_value(), 1)
        arch.sync_warp()
        if where == "smem":
            nvgpu.tma.tensor_map_publish(workspace.iterator.ir_value(), copy.iterator.ir_value())
        else:
            nvgpu.tma.tensor_map_release()
        nvgpu.tma.tensor_map_acquire(workspace.iterator.ir_value())
        if t == 0:
            arch.mbarrier_arrive_and_expect_tx(full, 512)
            nvgpu.tma.tma_load(
                workspace.iterator.ir_value(), shared.iterator.ir_value(), full.ir_value(), coordinates(0, 1)
            )
        arch.mbarrier_wait(full, 0)
        for i in range(t, 512, 32):
            out[i] = shared[i]

    @cute.jit
    def main(tensor: cute.Tensor, workspace: cute.Tensor, out: cute.Tensor):
        kernel(box.encode(tensor), workspace, tensor, out).launch(grid=1, block=32)

    return main


@pytest.mark.parametrize("where", ["smem", "gmem"])
def test_maps_are_edited(where):
    numbers, space, main = np.arange(256, dtype=np.uint32), np.zeros(32, np.int64), editing(where)
    start = -space.ctypes.data % 128 // 8
    want = np.zeros((4, 32), np.uint32)
    want[:2] = numbers.reshape(8, 32)[3:5]
    run = lambda numbers, out: main(numbers, space[start : start + 16], out)
    for _, out in launched(run, numbers, np.zeros(512, np.uint8)):
        np.testing.assert_array_equal(out.view(np.uint32).reshape(4, 32), want)


def fails(change: str) -> str:
    """The message of a program with a mistake."""
    box = Box("f16", (64, 16), (64, 8))
    if change == "interleave":
        box = Box("f16", (8, 16, 8), (8, 8, 1), interleave="16b")

    @cute.kernel
    def kernel(map_: Map, tensor: cute.Tensor):
        shared, full = tile(2048), arch.alloc_smem(cute.Int64, 1)
        where = tensor.iterator.ir_value() if change == "no map" else map_.address()
        at = {"rank": (0, 0, 0), "start": (4, 0), "start of a store": (-1, 0), "interleave": (0, 0, 0)}.get(
            change, (0, 0)
        )
        target = shared.iterator + {"alignment": 16, "room": 2176}.get(change, 0)
        if arch.thread_idx()[0] == 0:
            if change in ("reduction", "start of a store"):
                reduction = "xor" if change == "reduction" else None
                nvgpu.tma.tma_store(where, target.ir_value(), coordinates(*at), reduction=reduction)
            else:
                mask = cute.Int16(2).ir_value() if change == "mask" else None
                nvgpu.tma.tma_load(where, target.ir_value(), full.ir_value(), coordinates(*at), mask=mask)

    @cute.jit
    def main(tensor: cute.Tensor):
        kernel(box.encode(tensor), tensor).launch(grid=1, block=32)

    with kiln.target("cpu"), pytest.raises(DSLUserCodeRuntimeError) as caught:
        main(np.zeros(box.memory, np.uint8))
    return str(caught.value)


def test_mistakes_are_faults():
    assert "not a tensor map" in fails("no map")
    assert "the tensor map has 2 modes" in fails("rank")
    assert "there was none before" in refused_copy(RANK, "TMA load")[0]
    assert "16 bytes past a multiple of 128" in fails("alignment")
    assert "no such reduction of f16" in fails("reduction")
    message = fails("interleave")
    assert "an interleaved layout (16b, 32b), or is stored to and has elements with padding" in message
    assert "encode it with interleave none" in message
    assert "blocks that a cluster of 1 does not have" in fails("mask")
    message = fails("start")
    assert "TMA load: the box starts at 4 in the contiguous mode, whose elements have 16 bits: 8 bytes from" in message
    assert "start at a multiple of 8 elements" in message
    assert Path(__file__).name in message
    assert "TMA store: the box starts at -1" in fails("start of a store")
    assert re.search(r"the box takes 1024 bytes of shared memory, and the block has \d+ from", fails("room"))
