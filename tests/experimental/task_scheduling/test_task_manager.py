"""Tasks, resources and schedules: what they compute, and what is refused while tracing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute, pipeline, utils
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.kernel_trace import KernelTrace
from kiln.experimental import primitives as prims
from kiln.experimental.task_scheduling import (
    MemoryResource,
    PipelineConfig,
    PipelineGroup,
    PipelineGroupMode,
    SmemAllocation,
    SmemAllocator,
    StageInfo,
    Task,
    TaskLocalVariable,
    TaskManager,
    TileSchedulerConfig,
    WorkAttr,
    WorkQueue,
    consumer_work,
    domain_loop,
    producer_work,
    schedule,
    when_true,
    work_tile_loop,
)


@dataclass(kw_only=True)
class Source(MemoryResource):
    x: Any
    word: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()
    odd: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()

    def __post_init__(self) -> None:
        self.word = TaskLocalVariable(dtype=kiln.Int32, default=kiln.Int32(0))
        self.odd = TaskLocalVariable(dtype=kiln.Boolean, default=kiln.Boolean(False))

    @consumer_work(returns=(word, odd))
    @cute.jit
    def read(self, info: StageInfo, *, stride: kiln.Constexpr[int] = 32):
        value = self.x[info.loop_offset * stride + cute.arch.lane_idx()]
        return value, info.loop_offset % 2 == 1


@dataclass
class Tile(MemoryResource):
    memory: Any = field(init=False, default=None)
    total: Any = field(init=False, default=None)
    word: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.word = TaskLocalVariable(dtype=kiln.Int32, default=kiln.Int32(0))
        self.allocation = SmemAllocation(f"{self.name} memory", dtype=kiln.Int32, count=2 * 32)
        self.total = kiln.Int32(0)

    def get_smem_requirements(self):
        return [self.allocation]

    @producer_work(work_attrs=WorkAttr.AUXILIARY)
    @cute.jit
    def open(self, info: StageInfo) -> None:
        start = info.context.smem_base.data_ptr() + self.allocation.offset
        self.memory = kiln.Array(start, dtype=kiln.Int32, shape=(64,), addrspace=3)

    @consumer_work(work_attrs=WorkAttr.AUXILIARY)
    @cute.jit
    def open_to_read(self, info: StageInfo) -> None:
        self.memory = kiln.Array(
            info.context.smem_base.data_ptr() + self.allocation.offset, dtype=kiln.Int32, shape=(64,)
        )

    @producer_work
    @cute.jit
    def fill(self, info: StageInfo, value: kiln.Int32) -> None:
        self.memory[info.stage_idx * 32 + cute.arch.lane_idx()] = value

    @producer_work
    @cute.jit
    def negate(self, info: StageInfo) -> None:
        at = info.stage_idx * 32 + cute.arch.lane_idx()
        self.memory[at] = -self.memory[at]

    @consumer_work(returns=word)
    @cute.jit
    def sum(self, info: StageInfo) -> kiln.Int32:
        self.total = self.total + self.memory[info.stage_idx * 32 + (cute.arch.lane_idx() + 1) % 32]
        return self.total


@dataclass(kw_only=True)
class Target(MemoryResource):
    out: Any

    @producer_work
    @cute.jit
    def write(self, info: StageInfo, first: kiln.Int32, second: kiln.Int32) -> None:
        self.out[info.loop_offset, cute.arch.lane_idx()] = first * 1000 + second


def threads(count=32):
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, count)


def build(x, out, n, *, change="", traced=None, task_traced=None):
    """Two producer tasks fill a tile each, one negates odd ones; a consumer sums both and releases them together."""
    config = lambda: PipelineConfig.create_async_async_pipeline_cfg(
        num_stages=2, producer_group=threads(), consumer_group=threads(96 if change == "count" else 32)
    )
    source, target = Source(name="source", x=x), Target(name="target", out=out)
    tiles = [Tile(name=name, pipeline_config=config()) for name in ("a", "b")]
    both = PipelineGroup(name="both", members=tiles, mode=PipelineGroupMode.Merge)
    allocator = SmemAllocator()
    for tile in tiles:
        allocator.add_resource(tile)
    allocator.compute_layout()

    @schedule
    def load(source, tile):
        tile.open()
        with domain_loop(0, n, 1):
            value, odd = source.read()
            tile.try_acquire()
            tile.acquire()
            tile.fill(value)
            with when_true(odd):
                tile.negate()
            if change != "bracket":
                tile.commit()

    @schedule
    def store(a, b, both, target):
        a.open_to_read()
        b.open_to_read()
        with domain_loop(0, n, 1) as d:
            with d.first_iter():
                pass
            for tile in (a, b):
                tile.wait()
            first, second = a.sum(), b.sum()
            target.write(first, second=second)
            both.release()

    loads = [
        Task(
            name=f"load {tile.name}", src_resources=[source], dst_resources=[tile],
            warp_idx=1 if change == "warps" else number, num_warps=1, schedule=load(source, tile), **(task_traced or {}),
        )
        for number, tile in enumerate(tiles)
    ]  # fmt: skip
    sources = tiles[:1] if change == "role" else tiles
    last = Task(
        name="store", src_resources=sources, dst_resources=[target], warp_idx=2, num_warps=1,
        num_registers=40 if change == "registers" else None, schedule=store(*tiles, both, target),
    )  # fmt: skip
    graph = {tiles[0]: [source], tiles[1]: [source], target: tiles}  # pyright: ignore[reportUnhashable]
    if change == "edge":
        graph[target] = [*tiles, source]
    tasks = [*loads, last]
    return TaskManager(tasks=tasks, resource_dependency_graph=graph, smem_allocator=allocator, **(traced or {}))


def program(change="", **traced):
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor, n: kiln.Int32):
        manager = build(x, out, n, change=change, **traced)
        manager.setup_resources_and_tasks()
        prims.fence_mbarrier_init()
        prims.barrier_cta_sync(0)
        manager.run()

    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor, n: kiln.Int32):
        kernel(x, out, n).launch(grid=1, block=96)

    return main


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def test_tasks_hand_stages_over():
    x, out = np.arange(5 * 32, dtype=np.int32), np.zeros((5, 32), np.int32)
    with kiln.sanitize():
        program()(x, out, 5)
    sums = np.cumsum(x.reshape(5, 32) * np.array([1, -1, 1, -1, 1])[:, None], axis=0)
    np.testing.assert_array_equal(out, 1001 * np.roll(sums, -1, axis=1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("bracket", "task 'load a' calls a.acquire\\(\\) without commit"),
        ("role", "task 'store' calls b.wait\\(\\), and 'b' is not in its src_resources"),
        ("edge", "the edge 'source' -> 'target' of the dependency graph belongs to no task"),
        ("count", "consumer_group of 'a' has 96 arrivals, and its tasks \\('store'\\) have 1 warps"),
        ("warps", "warp 1 belongs to the tasks 'load a' and 'load b'"),
        ("registers", "different num_registers"),
    ],
)
def test_wrong_tasks_are_refused(change, message):
    with pytest.raises(DSLBaseError, match=message):
        program(change)(np.zeros(32, np.int32), np.zeros((1, 32), np.int32), 1)


ITERATION = ["ProducerTryAcquire", "ProducerAcquire", "ProducerWork", "ProducerCommit"]


@pytest.mark.parametrize(
    ("traced", "load", "store"),
    [
        ({}, [], []),
        (
            {"traced": {"iket_enable_profiling": True, "iket_profiling_resources": frozenset({"a"})}},
            ["load a", "a ProducerWork", *[f"a {stage}" for stage in ITERATION]],
            ["store", "a ConsumerWork", "a ConsumerWait", "a ConsumerWork"],
        ),
        (
            {"traced": {"iket_enable_profiling": True, "iket_profiling_stages": {"CONSUMER_WAIT", "ProducerCommit"}}},
            ["load a", "a ProducerCommit"],
            ["store", "a ConsumerWait", "b ConsumerWait"],
        ),
        ({"task_traced": {"iket_enable_profiling": True, "iket_profiling_stages": frozenset()}}, ["load a"], []),
    ],
)
def test_operations_of_tasks_are_ranges_of_a_trace(traced, load, store):
    with KernelTrace("ranges") as recorded:
        program(**traced)(np.arange(32, dtype=np.int32), np.zeros((1, 32), np.int32), 1)
    traces = recorded.traces()
    assert len(traces) == bool(traced)
    for warp, names in ((0, load), (2, store)) if traces else ():
        track = next(n for n, track in enumerate(traces[0].tracks) if track.warp == warp)
        assert [event.name for event in traces[0].on(track) if event.kind == "range"] == names


def test_unknown_stages_are_refused():
    options = {"iket_enable_profiling": True, "iket_profiling_stages": {"ConsumerSleep"}}
    with pytest.raises(DSLBaseError, match="iket_profiling_stages of TaskManager has 'consumersleep'"):
        program(traced=options)(np.zeros(32, np.int32), np.zeros((1, 32), np.int32), 1)
    options = {"iket_profiling_resources": "a"}
    with pytest.raises(DSLBaseError, match="iket_profiling_resources of task 'load a' is 'a'"):
        program(task_traced=options)(np.zeros(32, np.int32), np.zeros((1, 32), np.int32), 1)


class Rows(Task):
    def __init__(self, lengths, **kwargs):
        super().__init__(**kwargs)
        self.lengths = lengths

    @cute.jit
    def length(self, tile):
        return self.lengths[tile[0]]


@dataclass(kw_only=True)
class Counter(MemoryResource):
    out: Any

    @producer_work
    @cute.jit
    def count(self, info: StageInfo) -> None:
        tile, _, _ = info.work_tile.tile_idx
        if cute.arch.thread_idx()[0] == 0:
            self.out[tile] = self.out[tile] + info.loop_offset


@cute.kernel
def persistent(lengths: cute.Tensor, out: cute.Tensor, params: Any):
    queue = WorkQueue(
        name="queue",
        tile_scheduler_config=TileSchedulerConfig.create_static_persistent_tile_scheduler_params(
            tile_scheduler_params=params
        ),
    )
    counter = Counter(name="counter", out=out)

    @schedule
    def walk(counter, queue):
        with work_tile_loop(queue, skip_if=lambda work: work.tile_idx[0] == 2) as loop:
            with loop.skippable(), domain_loop(0, Rows.length, 2) as d:
                counter.count()
                with d.last_iter():
                    counter.count()
            queue.wait()
            queue.get_and_advance_work_tile()
            queue.release()

    task = Rows(
        lengths=lengths, name="walk", src_resources=[queue], dst_resources=[counter], warp_idx=0, num_warps=1,
        schedule=walk(counter, queue),
    )  # fmt: skip
    manager = TaskManager(tasks=[task], resource_dependency_graph={counter: [queue]})  # pyright: ignore[reportUnhashable]
    manager.setup_resources_and_tasks()
    manager.run()


def test_tiles_with_domains_of_their_own():
    @cute.jit
    def main(lengths: cute.Tensor, out: cute.Tensor):
        params = utils.PersistentTileSchedulerParams((5, 1, 1), (1, 1, 1))
        persistent(lengths, out, params).launch(grid=(1, 1, 2), block=32)

    lengths, out = np.array([5, 0, 9, 2, 7], np.int32), np.zeros(5, np.int32)
    main(lengths, out)
    assert out.tolist() == [0 + 2 + 4 + 4, 0, 0, 0, 2 + 4 + 6 + 6]


def test_a_task_that_runs_itself_is_refused():
    """TaskManager would not call its method, and the task would do something else than it says."""

    class Own(Rows):
        def _run_task_body_persistent(self, context=None):
            raise AssertionError

    with pytest.raises(DSLBaseError, match=r"Own\._run_task_body_persistent would run the task in its own way"):
        Own(1, src_resources=[], dst_resources=[], warp_idx=0, num_warps=1, schedule=None, name="own")
