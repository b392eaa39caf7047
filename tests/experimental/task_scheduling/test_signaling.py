# pyright: reportUnhashable=false
"""Pipelines between MMA tasks (`umma_umma`), and tasks of several warps of which the first signals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute, pipeline
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.experimental import cuda
from kiln.experimental import primitives as prims
from kiln.experimental.task_scheduling import (
    MemoryResource,
    PipelineConfig,
    SignalingThreads,
    SmemAllocation,
    SmemAllocator,
    StageInfo,
    Task,
    TaskManager,
    consumer_work,
    domain_loop,
    producer_work,
    schedule,
)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def threads(size=1):
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, size)


def task(name, warp, sources, targets, body, warps=1):
    return Task(
        name=name, src_resources=sources, dst_resources=targets, warp_idx=warp, num_warps=warps, schedule=schedule(body)()
    )  # fmt: skip


# --- an edge between two tasks of the tensor cores -------------------------------------------------------------------

TILES, N = 5, 16
"""Tiles of 128 x 16 of A; columns of D."""


@dataclass(kw_only=True)
class Operand(MemoryResource):
    """Tiles of A in tensor memory, 8 columns each: copied from shared memory, and read by MMAs."""

    near: Any
    base: Any

    @producer_work
    @cute.jit
    def copy(self, info: StageInfo) -> None:
        source = prims.Tcgen05SmemDesc.build(self.near.subview(info.loop_offset * 128 * 16), 128, 256)
        if prims.elect_sync():
            place = prims.TmemAddr(self.base + N + 8 * info.stage_idx)
            prims.tcgen05_cp(prims.S2TCopyMode.S2T_128x256b[0], place.as_ptr(kiln.Int32), source)

    @consumer_work
    @cute.jit
    def ready(self, info: StageInfo) -> None:
        pass


@dataclass(kw_only=True)
class Accumulator(MemoryResource):
    out: Any
    near_b: Any
    base: Any

    @producer_work
    @cute.jit
    def add(self, info: StageInfo) -> None:
        b = prims.Tcgen05SmemDesc.build(self.near_b, 128, 256)
        how = prims.Tcgen05InstrDesc.build(c_dtype=kiln.Float32, n_dim=N, m_dim=128)
        if prims.elect_sync():
            a = prims.TmemAddr(self.base + N + 8 * (info.loop_offset % 2)).as_ptr(kiln.Float16)
            d = prims.TmemAddr(self.base).as_ptr(kiln.Float32)
            prims.tcgen05_mma(prims.Tcgen05MMAKind.F16, prims.CTAGroup.CTA_1, d, a, b, how, info.loop_offset > 0)

    @consumer_work
    @cute.jit
    def store(self, info: StageInfo) -> None:
        warp = arch.warp_idx() % 4
        place = prims.make_tmem_ptr_from_warp_row_col(prims.TmemAddr(self.base), warp, 0, kiln.Float32)
        found = prims.tcgen05_ld("32x32b", place, num=N)
        prims.tcgen05_wait("load")
        for column in kiln.range_constexpr(N):
            self.out[32 * warp + arch.lane_idx(), column] = found[column]


@dataclass(kw_only=True)
class End(MemoryResource):
    @producer_work
    @cute.jit
    def done(self, info: StageInfo) -> None:
        pass


@cute.kernel
def products(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    tx, warp = arch.thread_idx()[0], arch.warp_idx()
    near_a = kiln.Array(kiln.Float16, TILES * 128 * 16, space=kiln.AddressSpace.smem, alignment=128)
    near_b = kiln.Array(kiln.Float16, N * 16, space=kiln.AddressSpace.smem, alignment=128)
    holder = kiln.Array(kiln.Int32, 1, space=kiln.AddressSpace.smem)
    if tx < 128:
        for k in kiln.range_constexpr(16):  # 8 rows of 16 bytes lie together; pieces of a row are 128 bytes apart
            at = tx // 8 * 128 + k // 8 * 64 + tx % 8 * 8 + k % 8
            for tile in kiln.range_constexpr(TILES):
                near_a[tile * 128 * 16 + at] = a[tile, tx, k]
            if tx < N:
                near_b[at] = b[tx, k]
    prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space=prims.SharedSpace.shared_cta)
    if warp == 0:
        prims.tcgen05_alloc(holder, 32, group=prims.CTAGroup.CTA_1)
        prims.tcgen05_relinquish_alloc_permit()
    prims.barrier_cta_sync(0)
    base = kiln.Int32(holder[0])
    operand = Operand(
        name="operand", near=near_a, base=base,
        pipeline_config=PipelineConfig.create_umma_umma_pipeline_cfg(
            num_stages=2, producer_group=threads(), consumer_group=threads()
        ),
    )  # fmt: skip
    accumulator = Accumulator(
        name="accumulator", out=out, near_b=near_b, base=base,
        pipeline_config=PipelineConfig.create_umma_async_pipeline_cfg(
            num_stages=1, producer_group=threads(), consumer_group=threads(128)
        ),
    )  # fmt: skip
    end = End(name="end")
    allocator = SmemAllocator()
    for resource in (operand, accumulator):
        allocator.add_resource(resource)
    allocator.compute_layout()

    def copy():
        with domain_loop(0, TILES, 1):
            operand.acquire()
            operand.copy()
            operand.commit()

    def multiply():
        accumulator.acquire()
        with domain_loop(0, TILES, 1):
            operand.wait()
            operand.ready()
            accumulator.add()
            operand.release()
        accumulator.commit()

    def store():
        accumulator.wait()
        accumulator.store()
        end.done()
        accumulator.release()

    tasks = [
        task("copy", 0, [], [operand], copy), task("multiply", 1, [operand], [accumulator], multiply),
        task("store", 4, [accumulator], [end], store, warps=4),
    ]  # fmt: skip
    graph = {operand: [], accumulator: [operand], end: [accumulator]}
    manager = TaskManager(tasks=tasks, resource_dependency_graph=graph, smem_allocator=allocator)
    manager.setup_resources_and_tasks()
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync(0)
    manager.run()
    prims.tcgen05_fence("before_thread_sync")
    prims.barrier_cta_sync(0)
    if warp == 0:
        prims.tcgen05_dealloc(prims.make_tmem_ptr(holder[0], kiln.Int8), 32)


@cute.jit
def multiply_tiles(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    products(a, b, out).launch(grid=1, block=256)


def test_tensor_cores_hand_stages_to_tensor_cores():
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, shape).astype(np.float16) for shape in ((TILES, 128, 16), (N, 16)))
    out = np.zeros((128, N), np.float32)
    with kiln.sanitize():
        multiply_tiles(a, b, out)
    np.testing.assert_array_equal(out, np.einsum("tmk,nk->mn", a.astype(np.float32), b.astype(np.float32)))


@needs_ptxas
def test_both_sides_of_such_an_edge_commit():
    arrays = np.zeros((TILES, 128, 16), np.float16), np.zeros((N, 16), np.float16), np.zeros((128, N), np.float32)
    ptx = compile_for(multiply_tiles, *(from_dlpack(x) for x in arrays), arch="sm_100a").artifacts["ptx"]
    assert ptx.count("tcgen05.commit.cta_group::1") == 3  # operand.commit(), operand.release(), accumulator.commit()


# --- a task whose first warp announces the bytes that all of them copy -----------------------------------------------


@dataclass(kw_only=True)
class Rows(MemoryResource):
    """Tiles of 8 x 64 elements, 4 rows by each of two warps."""

    desc: Any
    out: Any

    def __post_init__(self) -> None:
        self.piece = SmemAllocation("rows", dtype=kiln.Float16, count=2 * 8 * 64)

    def get_smem_requirements(self):
        return [self.piece]

    def memory(self, info):
        start = info.context.smem_base.data_ptr() + self.piece.offset
        return kiln.Array(start, dtype=kiln.Float16, shape=(2 * 8, 64))

    @producer_work
    @cute.jit
    def load(self, info: StageInfo) -> None:
        row = 4 * (arch.warp_idx() % 2)
        if prims.elect_sync():
            prims.cp_async_bulk_tensor_shared_cta_global(
                self.memory(info).subview((8 * info.stage_idx + row) * 64), self.desc, (0, 8 * info.loop_offset + row),
                info.barrier,
            )  # fmt: skip

    @consumer_work
    @cute.jit
    def store(self, info: StageInfo) -> None:
        for row in kiln.range_constexpr(8):
            pair = self.memory(info)[8 * info.stage_idx + row, 2 * arch.lane_idx() : 2]
            self.out[8 * info.loop_offset + row, 2 * arch.lane_idx() : 2] = pair + pair


@cute.kernel
def double_rows(desc: kiln.GridConstant[cuda.TensorMap], out: kiln.Array, leader: kiln.Constexpr[Any]):
    config = PipelineConfig.create_tma_async_pipeline_cfg(
        num_stages=2, num_bytes=8 * 64 * 2, producer_group=threads(), consumer_group=threads(),
        producer_signaling_threads=leader,
    )  # fmt: skip
    rows, end, allocator = (
        Rows(name="rows", desc=desc.get_ptr(), out=out, pipeline_config=config),
        End(name="end"),
        SmemAllocator(),
    )
    allocator.add_resource(rows)
    allocator.compute_layout()
    tiles = out.shape[0] // 8

    def load():
        with domain_loop(0, tiles, 1):
            rows.acquire()
            rows.load()
            rows.commit()

    def store():
        with domain_loop(0, tiles, 1):
            rows.wait()
            rows.store()
            end.done()
            rows.release()

    tasks = [task("load", 0, [], [rows], load, warps=2), task("store", 2, [rows], [end], store)]
    manager = TaskManager(tasks=tasks, resource_dependency_graph={rows: [], end: [rows]}, smem_allocator=allocator)
    manager.setup_resources_and_tasks()
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync(0)
    manager.run()


@cute.jit
def double(x: cute.Tensor, out, leader: kiln.Constexpr[Any]):
    desc = cuda.create_tensor_map_tiled_from_view(x, box_dims=(4, 64), stride_order=(1, 0))
    double_rows(desc, out, leader).launch(grid=1, block=96)


def test_the_first_warp_of_a_task_announces_the_bytes_of_all():
    memory = np.zeros(40 * 64 + 8, np.float16)
    x = memory[-memory.ctypes.data % 16 // 2 :][: 40 * 64].reshape(40, 64)
    x[:] = np.arange(x.size).reshape(x.shape) % 1000
    out = np.zeros_like(x)
    with kiln.sanitize():
        double(from_dlpack(x, assumed_align=16), out, SignalingThreads.TaskWarpLeader)
    np.testing.assert_array_equal(out, 2 * x)
