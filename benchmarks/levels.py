# pyright: reportAttributeAccessIssue=false, reportOptionalMemberAccess=false, reportIndexIssue=false
"""A TMA pipeline written with primitives, with atoms and as tasks: `out = 2 x`, side by side in one run.

    python benchmarks/levels.py [--save] [--check]

The three kernels have the same tiles, stages, warps and grid; `torch.add(x, x)` is beside them. `--check` computes a
small matrix and compares, on the CPU target as well (`kiln run --target cpu`).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from results import Page, Table

import kiln
import kiln.cute as cute
from kiln import Float16, Int64, measure, pipeline, utils
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack
from kiln.experimental import cuda
from kiln.experimental import primitives as prims
from kiln.experimental.task_scheduling import (
    MemoryResource,
    PipelineConfig,
    SmemAllocation,
    SmemAllocator,
    StageInfo,
    Task,
    TaskLocalVariable,
    TaskManager,
    consumer_work,
    domain_loop,
    producer_work,
    schedule,
)

ROWS, COLUMNS, STAGES, CONSUMERS = 64, 64, 6, 4
"""The tile, the stages of the pipeline, and the warps that empty them; one more warp fills them."""
BYTES, THREADS = ROWS * COLUMNS * 2, 32 * (1 + CONSUMERS)
VECTORS = ROWS * COLUMNS // 8 // (32 * CONSUMERS)
"""Vectors of 8 elements of a tile for each thread that empties stages."""
SMEM = kiln.AddressSpace.smem
SPEED = Table(
    "out = 2 x of f16",
    ("MiB", "torch us", "primitives us", "atoms us", "tasks us", "primitives / atoms", "tasks / atoms"),
)
PAGE = Page(__file__, "A TMA pipeline at three levels", SPEED)


def tiles_of(x: Any) -> Any:
    """Return the number of tiles of a matrix with COLUMNS columns."""
    return x.shape[0] // ROWS


@cute.jit
def doubled(tile: kiln.Array, out: kiln.Array, number: kiln.Int32, stage: kiln.Int32):
    """Write twice the elements of a stage, as vectors of 16 bytes, by the warps that empty stages."""
    t = cute.arch.thread_idx()[0] - 32
    for i in kiln.range_constexpr(VECTORS):
        unit = t + 32 * CONSUMERS * i
        value = tile.load(stage * (ROWS * COLUMNS) + unit * 8, 8, alignment=16)
        out.store(value + value, number * (ROWS * COLUMNS) + unit * 8, alignment=16)


# --- primitives ------------------------------------------------------------------------------------------------------


@cute.kernel
def with_primitives(desc: kiln.GridConstant[cuda.TensorMap], out: kiln.Array, tiles: kiln.Int32):
    tile = kiln.Array(Float16, STAGES * ROWS * COLUMNS, space=SMEM, alignment=128)
    full = kiln.Array(Int64, STAGES, space=SMEM)
    empty = kiln.Array(Int64, STAGES, space=SMEM)
    warp, (first, step) = cute.arch.warp_idx(), (cute.arch.block_idx()[0], cute.arch.grid_dim()[0])
    if warp == 0:
        if prims.elect_sync():
            for s in kiln.range_constexpr(STAGES):
                prims.mbarrier_init(full.subview(s), 1)
                prims.mbarrier_init(empty.subview(s), CONSUMERS)
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync(0)
    stage, phase = kiln.Int32(0), kiln.Int32(0)
    for number in range(first, tiles, step):
        if warp == 0:
            while not prims.mbarrier_try_wait_parity(empty.subview(stage), phase ^ 1):
                pass
            if prims.elect_sync():
                prims.mbarrier_arrive_expect_tx(full.subview(stage), BYTES)
                where = tile.subview(stage * ROWS * COLUMNS)
                prims.cp_async_bulk_tensor_shared_cta_global(where, desc, (0, number * ROWS), full.subview(stage))
        else:
            while not prims.mbarrier_try_wait_parity(full.subview(stage), phase):
                pass
            doubled(tile, out, number, stage)
            prims.bar_warp_sync(0xFFFFFFFF)
            if prims.elect_sync():
                prims.mbarrier_arrive(empty.subview(stage))
        stage = stage + 1
        if stage == STAGES:
            stage = kiln.Int32(0)
            phase = phase ^ 1


@cute.jit
def primitives(x: cute.Tensor, out: cute.Tensor, ctas: kiln.Int32):
    desc = cuda.create_tensor_map_tiled_from_view(x, box_dims=(ROWS, COLUMNS), stride_order=(1, 0))
    with_primitives(desc, out, tiles_of(x)).launch(grid=ctas, block=THREADS)


# --- atoms -----------------------------------------------------------------------------------------------------------


@cute.kernel
def with_atoms(atom: cute.CopyAtom, boxes: cute.Tensor, layout: cute.Layout, out: cute.Tensor, tiles: kiln.Int32):
    tile = utils.SmemAllocator().allocate_tensor(Float16, layout, 128)
    warp, (first, step) = cute.arch.warp_idx(), (cute.arch.block_idx()[0], cute.arch.grid_dim()[0])
    sources = cute.local_tile(boxes, (ROWS, COLUMNS), (None, 0))
    near, far = cpasync.tma_partition(
        atom, 0, cute.make_layout(1), cute.group_modes(tile, 0, 2), cute.group_modes(sources, 0, 2)
    )
    group = lambda count: pipeline.CooperativeGroup(pipeline.Agent.Thread, count)
    pipe = pipeline.PipelineTmaAsync.create(
        num_stages=STAGES, producer_group=group(1), consumer_group=group(CONSUMERS), tx_count=BYTES
    )
    producer, consumer = pipe.make_participants()
    staged = cute.make_tensor(tile.iterator, cute.make_layout((8, ROWS * COLUMNS // 8, STAGES)))
    target = cute.make_tensor(out.iterator, cute.make_layout((8, ROWS * COLUMNS // 8, tiles)))
    if warp == 0:
        for number in range(first, tiles, step):
            handle = producer.acquire_and_advance()
            cute.copy(atom, far[None, number], near[None, handle.index], tma_bar_ptr=handle.barrier)
    else:
        t = cute.arch.thread_idx()[0] - 32
        for number in range(first, tiles, step):
            handle = consumer.wait_and_advance()
            for i in kiln.range_constexpr(VECTORS):
                value = staged[None, t + 32 * CONSUMERS * i, handle.index].load()
                target[None, t + 32 * CONSUMERS * i, number].store(value + value)
            handle.release()


@cute.jit
def atoms(x: cute.Tensor, out: cute.Tensor, ctas: kiln.Int32):
    layout = cute.make_layout((ROWS, COLUMNS, STAGES), stride=(COLUMNS, 1, ROWS * COLUMNS))
    one = cute.make_layout((ROWS, COLUMNS), stride=(COLUMNS, 1))
    atom, boxes = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, one, (ROWS, COLUMNS))
    with_atoms(atom, boxes, layout, out, tiles_of(x)).launch(grid=ctas, block=THREADS)


# --- tasks -----------------------------------------------------------------------------------------------------------


@dataclass
class Matrix(MemoryResource):
    row: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()  # noqa: RUF009

    def __post_init__(self):
        self.row = TaskLocalVariable(dtype=kiln.Int32, default=kiln.Int32(0))

    @consumer_work(returns=row)
    @cute.jit
    def next_rows(self, info: StageInfo) -> kiln.Int32:
        return info.loop_offset * ROWS


@dataclass
class Tile(MemoryResource):
    desc: Any = field(init=False, default=None)
    stage: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()  # noqa: RUF009

    def __init__(self, desc, **kwargs):
        super().__init__(**kwargs)
        self.desc, self.piece = desc, SmemAllocation("tile", dtype=Float16, count=STAGES * ROWS * COLUMNS)
        self.stage = TaskLocalVariable(dtype=kiln.Int32, default=kiln.Int32(0))

    def get_smem_requirements(self):
        return [self.piece]

    @producer_work
    @cute.jit
    def load(self, info: StageInfo, row: kiln.Int32):
        if prims.elect_sync():
            where = kiln.Array(info.context.smem_base.data_ptr() + self.piece.offset, dtype=Float16)
            place = where.subview(info.stage_idx * ROWS * COLUMNS)
            prims.cp_async_bulk_tensor_shared_cta_global(place, self.desc, (0, row), info.barrier)

    @consumer_work(returns=stage)
    @cute.jit
    def ready(self, info: StageInfo) -> kiln.Int32:
        return info.stage_idx


@dataclass
class Output(MemoryResource):
    out: Any = field(init=False, default=None)
    tile: Any = field(init=False, default=None)

    def __init__(self, out, tile, **kwargs):
        super().__init__(**kwargs)
        self.out, self.tile = out, tile

    @producer_work
    @cute.jit
    def store(self, info: StageInfo, stage: kiln.Int32):
        tile = kiln.Array(info.context.smem_base.data_ptr() + self.tile.piece.offset, dtype=Float16)
        doubled(tile, self.out, info.loop_offset, stage)


@cute.kernel
def with_tasks(desc: kiln.GridConstant[cuda.TensorMap], out: kiln.Array, tiles: kiln.Int32):
    group = lambda count: pipeline.CooperativeGroup(pipeline.Agent.Thread, count)
    config = PipelineConfig.create_tma_async_pipeline_cfg(
        num_stages=STAGES, num_bytes=BYTES, producer_group=group(1), consumer_group=group(CONSUMERS)
    )
    matrix, tile = Matrix(name="matrix"), Tile(desc.get_ptr(), name="tile", pipeline_config=config)
    output, memory = Output(out, tile, name="output"), SmemAllocator()
    memory.add_resource(tile)
    memory.compute_layout()
    first, step = cute.arch.block_idx()[0], cute.arch.grid_dim()[0]

    @schedule
    def load(matrix, tile):
        with domain_loop(first, tiles, step):
            row = matrix.next_rows()
            tile.acquire()
            tile.load(row)
            tile.commit()

    @schedule
    def store(tile, output):
        with domain_loop(first, tiles, step):
            tile.wait()
            output.store(tile.ready())
            tile.release()

    tasks = [
        Task(
            name="load",
            src_resources=[matrix],
            dst_resources=[tile],
            warp_idx=0,
            num_warps=1,
            schedule=load(matrix, tile),
        ),
        Task(
            name="store",
            src_resources=[tile],
            dst_resources=[output],
            warp_idx=1,
            num_warps=CONSUMERS,
            schedule=store(tile, output),
        ),
    ]
    graph = {tile: [matrix], output: [tile]}  # pyright: ignore[reportUnhashable]
    manager = TaskManager(tasks=tasks, resource_dependency_graph=graph, smem_allocator=memory)
    manager.setup_resources_and_tasks()
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync(0)
    manager.run()


@cute.jit
def tasks(x: cute.Tensor, out: cute.Tensor, ctas: kiln.Int32):
    desc = cuda.create_tensor_map_tiled_from_view(x, box_dims=(ROWS, COLUMNS), stride_order=(1, 0))
    with_tasks(desc, out, tiles_of(x)).launch(grid=ctas, block=THREADS)


LEVELS = {"primitives": primitives, "atoms": atoms, "tasks": tasks}


def prepared(rows: int) -> tuple[Any, Any, list[Any]]:
    """Return a matrix, its result, and both as arguments of kernels."""
    x = torch.randn(rows, COLUMNS, device="cuda", dtype=torch.float16)
    out = torch.zeros_like(x)
    return x, out, [from_dlpack(t, assumed_align=128).mark_layout_dynamic(leading_dim=1) for t in (x, out)]


def gpu_time(run: Any) -> float:
    """Return the microseconds of a call on the GPU."""
    return measure.measure(run, effort=measure.QUICK).us


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    ctas = 2 if args.check else 2 * utils.HardwareInfo().get_device_multiprocessor_count()
    for size in [20 * ROWS] if args.check else [1 << 17, 1 << 20, 1 << 23]:
        x, out, arguments = prepared(size)
        times: dict[str, float] = {}
        if not args.check:
            times["torch"] = gpu_time(partial(torch.add, x, x, out=out))
        for name, function in LEVELS.items():
            compiled = cute.compile(function, *arguments, ctas)
            out.zero_()
            compiled(*arguments, ctas)
            torch.testing.assert_close(out, x + x, rtol=0, atol=0)
            if not args.check:
                times[name] = gpu_time(partial(compiled, *arguments, ctas))
        if not args.check:
            ratios = [times[name] / times["atoms"] for name in ("primitives", "tasks")]
            mib = x.numel() * 4 >> 20
            SPEED.add(mib, *(f"{times[n]:.1f}" for n in ("torch", *LEVELS)), *(f"{r:.3f}" for r in ratios))
    PAGE.finish(args.save)


if __name__ == "__main__":
    main()
