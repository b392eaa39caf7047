# pyright: reportUnhashable=false
"""Stages that are reused in place, shared by two consumers, got ahead of time; and checks of schedules."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from nvidia_testing import compile_for

import kiln
from kiln import cute, pipeline, utils
from kiln.base_dsl.diagnostics import DSLBaseError, DSLWarning
from kiln.cute.runtime import from_dlpack
from kiln.experimental import primitives as prims
from kiln.experimental.task_scheduling import (
    MemoryResource,
    PdlLaunchBarrier,
    PdlWaitBarrier,
    PipelineConfig,
    PipelineType,
    SignalingThreads,
    SmemAllocation,
    SmemAllocator,
    StageInfo,
    Task,
    TaskLocalVariable,
    TaskManager,
    TileSchedulerConfig,
    TileSchedulerType,
    TmemAllocation,
    TmemAllocator,
    WorkQueue,
    consumer_work,
    domain_loop,
    producer_work,
    schedule,
    work_tile_loop,
)


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def threads(size=32):
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, size)


@dataclass(kw_only=True)
class Words(MemoryResource):
    """Stages of a word for each lane."""

    word: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()

    def __post_init__(self) -> None:
        self.word = TaskLocalVariable(dtype=kiln.Int32, default_factory=lambda: kiln.Int32(0))
        stages = self.pipeline_config.num_stages if self.pipeline_config else 1
        self.allocation = SmemAllocation(self.name, 128 * stages, 128)

    def get_smem_requirements(self):
        return [self.allocation]

    def memory(self, info):
        start = info.context.smem_base.data_ptr() + self.allocation.offset
        return kiln.Array(start, dtype=kiln.Int32, shape=(32,)).subview(32 * info.stage_idx + cute.arch.lane_idx())

    @producer_work
    @cute.jit
    def put(self, info: StageInfo) -> None:
        self.memory(info)[0] = 100 * info.loop_offset + cute.arch.lane_idx() + info.loop_step

    @producer_work
    @cute.jit
    def write(self, info: StageInfo, word: kiln.Int32) -> None:
        self.memory(info)[0] = 3 * word + 1

    @consumer_work(returns=word)
    @cute.jit
    def read(self, info: StageInfo) -> kiln.Int32:
        return self.memory(info)[0]

    @consumer_work
    @cute.jit
    def double(self, info: StageInfo) -> None:
        self.memory(info)[0] = 2 * self.memory(info)[0]


@dataclass(kw_only=True)
class Out(MemoryResource):
    out: Any

    @producer_work
    @cute.jit
    def store(self, info: StageInfo, word: kiln.Int32) -> None:
        self.out[info.loop_offset, cute.arch.lane_idx()] = word


def config(stages=1, consumers=32, producer_op=pipeline.PipelineOp.AsyncThread, **how):
    groups = {"producer_group": threads(), "consumer_group": threads(consumers)}
    kind = {"pipeline_type": PipelineType.AsyncAsync, "async_producer_op": producer_op}
    return PipelineConfig(num_stages=stages, num_bytes=None, **groups, **kind, **how)


def task(name, warp, sources, targets, body, **how):
    return Task(sources, targets, warp, 1, name=name, schedule=schedule(body)(), **how)


def run(build, n=5, warps=2, cluster=1):
    """Return what the tasks that `build(out)` returns, with their graph, store."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tasks, graph, resources, *more = build(out)
        memory = SmemAllocator()
        for resource in resources:
            memory.add_resource(resource)
        memory.compute_layout()
        block = memory.allocate()  # the manager would do it, and takes it as it is
        manager = TaskManager(tasks, graph, smem_allocator=memory, **(more[0] if more else {}))
        manager.setup_resources_and_tasks()
        assert memory.smem_base is block
        prims.fence_mbarrier_init()
        prims.barrier_cluster_arrive_relaxed()
        prims.barrier_cluster_wait()
        manager.run()

    @cute.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=cluster, block=32 * warps, cluster=(cluster, 1, 1))

    out = np.zeros((n, 32), np.int32)
    with kiln.sanitize():
        main(out)
    return out


LANES = np.arange(32)


def test_a_buffer_is_reused_in_place():
    """The producer reads what the consumer left in the one stage, and writes the next words."""

    def build(out):
        words, end = Words(name="words", pipeline_config=config()), Out(name="end", out=out)

        def produce():
            with domain_loop(0, 5, 1) as d:
                words.acquire()
                with d.first_iter():
                    words.put()
                word = words.read()
                words.write(word=word)
                words.commit()

        def consume():
            with domain_loop(0, 5, 1):
                words.wait()
                words.double()
                word = words.read()
                end.store(word)
                words.release()

        tasks = [task("produce", 0, [], [words], produce), task("consume", 1, [words], [end], consume)]
        return tasks, {words: [words], end: [words]}, [words]

    wanted, word = [], LANES + 1
    for _ in range(5):
        word = 2 * (3 * word + 1)
        wanted.append(word)
    np.testing.assert_array_equal(run(build), wanted)


def fills(words, n=5):
    def body():
        with domain_loop(0, n, 1):
            words.acquire()
            words.put()
            words.commit()

    return body


def test_one_task_waits_and_another_one_releases():
    """A task waits for the words and says so by a proxy; the task that waits for the proxy reads and releases them."""

    def build(out):
        words, proxy = (Words(name=name, pipeline_config=config(2)) for name in ("words", "proxy"))
        end = Out(name="end", out=out)

        def sync():
            with domain_loop(0, 5, 1):
                words.wait()
                proxy.acquire()
                proxy.put()
                proxy.commit()

        def use():
            with domain_loop(0, 5, 1):
                proxy.wait()
                word = words.read()
                end.store(word)
                words.release()
                proxy.release()

        tasks = [
            task("fill", 0, [], [words], fills(words)), task("sync", 1, [words], [proxy], sync),
            task("use", 2, [proxy, words], [end], use),
        ]  # fmt: skip
        return tasks, {words: [], proxy: [words], end: [proxy]}, [words, proxy]

    np.testing.assert_array_equal(run(build, warps=3), 100 * np.arange(5)[:, None] + LANES + 1)


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("side", ["wait", "acquire"])
def test_stages_are_got_ahead_of_time(side, stages):
    """Two stages are held at once: the next is got before the last is handed over."""

    def build(out):
        words = Words(name="words", pipeline_config=config(stages, **{f"advance_on_{side}": True}))
        end = Out(name="end", out=out)

        def consume():
            with domain_loop(0, 6, 1):
                words.wait()
                word = words.read()
                end.store(word)
                words.release()

        def ahead():
            words.wait()
            with domain_loop(0, 5, 1):
                word = words.read()
                words.wait()
                end.store(word)
                words.release()
            words.release()

        def ahead_producer():
            words.acquire()
            with domain_loop(0, 5, 1):
                words.put()
                words.acquire()
                words.commit()
            words.commit()

        bodies = (fills(words, 6), ahead) if side == "wait" else (ahead_producer, consume)
        tasks = [task("fill", 0, [], [words], bodies[0]), task("use", 1, [words], [end], bodies[1])]
        return tasks, {words: [], end: [words]}, [words]

    n = 5
    found = run(build, n=6)
    np.testing.assert_array_equal(found[:n], 100 * np.arange(n)[:, None] + LANES + 1)


class Lanes(Task):
    """A task with values of its own: a first word for each lane, and a domain by CTA."""

    def __init__(self, first, **how):
        super().__init__(**how)
        self.first = first
        self.start = kiln.Int32(0)

    def init_variables(self, context=None):
        super().init_variables(context)
        assert context is not None
        self.start = self.first + cute.arch.lane_idx()

    def make_task_cache(self):
        return (self.start,)

    def get_domain(self, tile):
        self.start += 1000
        return 3 + tile[0]


@dataclass(kw_only=True)
class Cached(MemoryResource):
    """Words that work reads of its task."""

    word: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()
    bounds: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()

    def __post_init__(self) -> None:
        self.word, self.bounds = (TaskLocalVariable(dtype=kiln.Int32) for _ in range(2))
        self.word.default = kiln.Int32(-1)
        self.bounds.default = kiln.Int32(-2)

    @consumer_work(returns="word")
    @cute.jit
    def read(self, info: StageInfo) -> kiln.Int32:
        return info.task_cache[0]

    @consumer_work(returns=("bounds",))
    @cute.jit
    def told(self, info: StageInfo):
        assert info.loop_offset is None
        return (10 * info.loop_start + info.loop_end + 100 * info.work_tile.tile_idx[0],)


@dataclass(kw_only=True)
class Row(MemoryResource):
    out: Any
    row: int

    @producer_work
    @cute.jit
    def store(self, info: StageInfo, word: kiln.Int32) -> None:
        self.out[self.row, cute.arch.lane_idx()] = word


def test_a_task_prepares_values_for_its_work():
    """Work reads them where StageInfo has the task's cache; bounds of the loop are known before and after it, too."""

    def build(out):
        cached, end = Cached(name="cached"), Out(name="end", out=out)
        rows = [Row(name=f"row {row}", out=out, row=row) for row in (3, 4)]

        @schedule
        def body():
            before = cached.told()[0]
            rows[0].store(before)
            with domain_loop(0, Lanes.get_domain, 1):
                end.store(cached.read())
            rows[1].store(cached.told()[0])

        lanes = Lanes(7, src_resources=[cached], dst_resources=[end, *rows], warp_idx=0, num_warps=1, schedule=body())
        labels = {(cached, end): {"read"}}
        return [lanes], {end: [cached], **{r: [cached] for r in rows}}, [], {"dma_consumer_release_labels": labels}

    found = run(build, warps=1)
    np.testing.assert_array_equal(found, [LANES + 1007] * 3 + [np.full(32, 3)] * 2)


@dataclass(kw_only=True)
class Stage(MemoryResource):
    """The stage that its task is on of other words."""

    words: Any
    word: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()

    def __post_init__(self) -> None:
        self.word = TaskLocalVariable(dtype=kiln.Int32, default_factory=lambda: kiln.Int32(0))

    @consumer_work(returns="word")
    @cute.jit
    def read(self, info: StageInfo) -> kiln.Int32:
        assert self.words.state_src is self.words
        with pytest.raises(DSLBaseError, match="is on no stage of 'words'"):
            _ = self.words.producer_state
        return 10 * info.loop_offset + self.words.consumer_work_stage


@pytest.mark.parametrize("how", [{}, {"advance_on_wait": True}])
def test_work_knows_the_stage_of_another_resource(how):
    def build(out):
        words = Words(name="words", pipeline_config=config(3, **how))
        stage, end = Stage(name="stage", words=words), Out(name="end", out=out)

        def consume():
            with domain_loop(0, 5, 1):
                words.wait()
                end.store(stage.read())
                words.release()

        tasks = [task("fill", 0, [], [words], fills(words)), task("use", 1, [words, stage], [end], consume)]
        return tasks, {words: [], end: [words, stage]}, [words]

    np.testing.assert_array_equal(run(build)[:, 0], [0, 11, 22, 30, 41])


def test_columns_and_bytes_of_allocators():
    columns, (a, b, c, d) = TmemAllocator(), (TmemAllocation(name, n) for name, n in zip("abcd", (8, 16, 4, 32)))
    for each in (a, b, c, d):
        columns.add(each)
    columns.add_alias_group([[b, c], [d]])
    columns.compute_layout()
    assert [x.offset for x in (a, b, c, d)] == [0, 8, 24, 8]
    assert columns.total == columns.total_tmem_columns == 40
    a.offset = 64
    assert a.offset == 64
    memory, words = SmemAllocator(), Words(name="words", pipeline_config=config(3))
    memory.add_resource(words)
    word = memory.add_tmem_ptr(SmemAllocation("tmem", dtype=kiln.Int32))
    memory.compute_layout()
    assert memory.tmem_ptr_alloc is word
    assert memory.barrier_smem_bytes == 3 * 16
    assert memory.total == memory.total_smem_bytes == 3 * 128 + 16 + 3 * 16  # the barriers begin at a multiple of 16
    with pytest.raises(DSLBaseError, match="not allocated yet"):
        memory.get_typed_ptr(word, kiln.Int32)


def test_copies_arrive_for_a_task():
    """With AsyncLoad `commit` takes effect when the thread's `cp.async` copies are there."""

    @dataclass(kw_only=True)
    class Copied(Words):
        source: Any

        @producer_work
        @cute.jit
        def copy(self, info: StageInfo) -> None:
            source = self.source.iterator + info.loop_offset * 32 + cute.arch.lane_idx()
            prims.cp_async_shared_global(self.memory(info), source, 4, "ca")

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        words = Copied(
            name="words", source=x, pipeline_config=config(2, producer_op=pipeline.PipelineOp.AsyncLoad)
        )  # fmt: skip
        end = Out(name="end", out=out)

        def fill():
            with domain_loop(0, 5, 1):
                words.acquire()
                words.copy()
                words.commit()

        def use():
            with domain_loop(0, 5, 1):
                words.wait()
                word = words.read()
                end.store(word)
                words.release()

        memory = SmemAllocator()
        memory.add_resource(words)
        memory.compute_layout()
        tasks = [task("fill", 0, [], [words], fill), task("use", 1, [words], [end], use)]
        manager = TaskManager(tasks, {words: [], end: [words]}, smem_allocator=memory)
        manager.setup_resources_and_tasks()
        prims.fence_mbarrier_init()
        prims.barrier_cta_sync(0)
        manager.run()

    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor):
        kernel(x, out).launch(grid=1, block=64)

    x, out = np.arange(160, dtype=np.int32).reshape(5, 32), np.zeros((5, 32), np.int32)
    with kiln.sanitize():
        main(x, out)
    np.testing.assert_array_equal(out, x)


def test_a_task_of_one_cta():
    def build(out):
        words, end = Words(name="words", pipeline_config=config()), Out(name="end", out=out)

        def use():
            with domain_loop(0, 5, 1):
                words.wait()
                word = words.read()
                end.store(word)
                words.release()

        only = {"run_only_on_cta_id": 1}
        tasks = [task("fill", 0, [], [words], fills(words), **only), task("use", 1, [words], [end], use, **only)]
        return tasks, {words: [], end: [words]}, [words]

    np.testing.assert_array_equal(run(build, cluster=2), 100 * np.arange(5)[:, None] + LANES + 1)


def test_the_last_iteration_of_a_loop_that_counts_down():
    def build(out):
        end = Words(name="end"), Out(name="out", out=out)

        def body():
            with domain_loop(4, 0, -2) as d:
                with d.last_iter():
                    end[1].store(kiln.Int32(7))

        return [task("count", 0, [], [end[1]], body)], {end[1]: []}, []

    found = run(build)
    assert found[2].tolist() == [7] * 32
    assert not found[[0, 1, 3, 4]].any()


# --- what is refused -------------------------------------------------------------------------------------------------


def parts():
    a, b = (Words(name=name, pipeline_config=config()) for name in "ab")
    return a, b, Out(name="end", out=None)


def use(source, target, n=5):
    def body():
        with domain_loop(0, n, 1):
            source.wait()
            word = source.read()
            target.store(word)
            source.release()

    return body


def _engines():
    """A consumer releases what TMA stores from before the copy is issued."""
    a, _, end = parts()
    how = {"num_stages": 1, "num_bytes": 16, "producer_group": threads(1), "consumer_group": threads()}
    b = Words(name="b", pipeline_config=PipelineConfig.create_tma_async_pipeline_cfg(**how))

    def early():
        with domain_loop(0, 5, 1):
            a.wait()
            a.read()
            a.release()
            b.acquire()
            b.put()
            b.commit()

    tasks = [
        task("fill", 0, [], [a], fills(a)),
        task("copy", 1, [a], [b], early),
        task("use", 2, [b], [end], use(b, end)),
    ]
    return tasks, {a: [], b: [a], end: [b]}


def _values():
    a, _, end = parts()
    kept = []

    def fill():
        with domain_loop(0, 5, 1):
            a.acquire()
            a.put()
            a.commit()

    def other():
        with domain_loop(0, 5, 1):
            a.wait()
            kept.append(a.read())
            a.release()

    schedule(other)()

    def body():
        with domain_loop(0, 5, 1):
            a.wait()
            end.store(kept[0])
            a.read()
            a.release()

    return [task("fill", 0, [], [a], fill), task("use", 1, [a], [end], body)], {a: [], end: [a]}


def _queues():
    end = Out(name="end", out=None)
    params = utils.PersistentTileSchedulerParams((1, 1, 1), (1, 1, 1))
    kind = TileSchedulerType.StaticPersistent
    tiles = TileSchedulerConfig(tile_scheduler_type=kind, tile_scheduler_params=params)
    queue = WorkQueue(name="queue", tile_scheduler_config=tiles)

    def body():
        with work_tile_loop(queue), domain_loop(0, 3, 1):
            end.store(kiln.Int32(0))
            queue.get_and_advance_work_tile()

    return [task("walk", 0, [queue], [end], body)], {end: [queue]}


def _layouts():
    a, b, end = parts()
    a.pipeline_config, b.pipeline_config = config(cta_layout_vmnk=(1, 1, 1, 1)), config(cta_layout_vmnk=(2, 1, 1, 1))

    def middle():
        with domain_loop(0, 5, 1):
            a.wait()
            b.acquire()
            b.put()
            b.commit()
            a.release()

    tasks = [
        task("fill", 0, [], [a], fills(a)),
        task("pass", 1, [a], [b], middle),
        task("use", 2, [b], [end], use(b, end)),
    ]
    return tasks, {a: [], b: [a], end: [b]}


def _grids(late):
    before, after, end = PdlWaitBarrier(name="before"), PdlLaunchBarrier(name="after"), Out(name="end", out=None)

    def body():
        after.launch_griddep()
        end.store(kiln.Int32(0))
        if late:
            before.wait_griddep()

    targets = [after, end]
    return [task("only", 0, [before] if late else [], targets, body)], {after: [], end: [before] if late else []}


def _alone():
    a, _, end = parts()

    def body():
        with domain_loop(0, 5, 1):
            word = a.read()
            end.store(word)
            a.release()

    def waits():
        with domain_loop(0, 5, 1):
            a.wait()

    tasks = [task("fill", 0, [], [a], fills(a)), task("sync", 1, [a], [], waits), task("use", 2, [a], [end], body)]
    return tasks, {a: [], end: [a]}


def _in_place():
    a, _, end = parts()
    a.pipeline_config = None

    def body():
        word = a.read()
        end.store(word)

    return [task("use", 0, [a], [end], body)], {a: [a], end: [a]}


def _registers():
    end = Out(name="end", out=None)

    def body():
        end.store(kiln.Int32(0))

    tasks = [Task([], [end], 4 * n, 4, name=f"t{n}", schedule=schedule(body)(), num_registers=248) for n in range(3)]
    return tasks, {end: []}


@pytest.mark.parametrize(
    ("match", "build"),
    [
        (r"'copy' calls b.put\(\) after a.release\(\) \(edge 'a' -> 'b'\)", _engines),
        (r"'use' passes a.word to end.store\(\), and no work before it returns that", _values),
        (r"'walk' calls queue.get_and_advance_work_tile\(\) in a domain block", _queues),
        (r"different cta_layout_vmnk \('a': \(1, 1, 1, 1\), 'b': \(2, 1, 1, 1\)\)", _layouts),
        (r"'only' calls launch_griddep\(\) and no task waits", lambda: _grids(False)),
        (r"'only' calls launch_griddep\(\) and waits later", lambda: _grids(True)),
        (r"'use' calls a.read\(\) on a stage that it does not hold", _alone),
        ("the edge 'a' -> 'a' of the dependency graph", _in_place),
        ("the tasks ask for 95232 registers", _registers),
    ],
)
def test_schedules_that_go_wrong_are_refused(match, build):
    @cute.kernel
    def kernel(out: cute.Tensor):
        TaskManager(*build())

    @cute.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=1, block=32)

    with pytest.raises(DSLBaseError, match=match):
        main(np.zeros(1, np.int32))


def test_checks_become_warnings_and_memory_is_bounded():
    a, _, end = parts()
    memory = SmemAllocator()
    memory.add_resource(a)
    memory.compute_layout()
    tasks = [task("fill", 0, [], [a], fills(a)), task("use", 1, [a], [end], use(a, end))]
    with pytest.raises(DSLBaseError, match="take 144 bytes of shared memory"):
        TaskManager(tasks, {a: [], end: [a]}, smem_allocator=memory, smem_capacity_bytes=143)
    with pytest.warns(DSLWarning, match="is not in the dependency graph"):
        TaskManager(tasks, {end: [a], a: []} | {end: []} if False else {a: []}, skip_validation=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TaskManager(tasks, {a: [], end: [a]}, smem_allocator=memory, smem_capacity_bytes=144)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("interleave_stride", lambda: config(interleave_stride=2)),
        (
            "producer_op of a config of the kind tma_async",
            lambda: PipelineConfig.create_tma_async_pipeline_cfg(
                1, 16, threads(1), threads(), producer_op=pipeline.PipelineOp.AsyncLoad
            ),
        ),
        ("pipeline_type of a pipeline config is 'tma'", lambda: PipelineConfig(1, 16, None, None, pipeline_type="tma")),
        (
            "tile_scheduler_type is 'clc'",
            lambda: TileSchedulerConfig(tile_scheduler_type="clc", tile_scheduler_params=0),
        ),
        ("by position", lambda: PipelineConfig.create_async_async_pipeline_cfg(*range(9))),
        ("the step of a domain_loop", lambda: schedule(lambda: domain_loop(0, 3, 0))()),
    ],
)
def test_operands_that_mean_nothing_are_refused(match, call):
    with pytest.raises(DSLBaseError, match=match):
        call()
    with pytest.raises(TypeError):
        TaskManager([], {}, verbos=True)  # pyright: ignore[reportCallIssue]


def test_conditions_outside_their_loop_are_refused():
    end = Out(name="end", out=None)

    def body():
        with domain_loop(0, 3, 1) as d:
            end.store(0)
        with d.first_iter():
            end.store(0)

    with pytest.raises(DSLBaseError, match="a first block is opened outside its loop"):
        schedule(body)()


def test_threads_that_wait_may_be_others_than_those_that_release():
    made = config(cta_layout_vmnk=(2, 1, 1, 1), consumer_wait_signaling_threads=SignalingThreads.CtaLeader)
    assert made.leads(False) is True
    with kiln.target("cpu"), pytest.raises(Exception, match=r"kernel|trace|jit"):
        made.leads(False, waiting=True)  # asks which CTA this is, which only a kernel can


@dataclass(kw_only=True)
class Numbers(MemoryResource):
    out: Any
    next: Any = None

    @producer_work
    @cute.jit
    def count(self, info: StageInfo, *, row: kiln.Constexpr[int]) -> None:
        self.next = self.next + 1
        self.out[row, cute.arch.lane_idx()] = self.next


def test_what_a_task_sets_in_a_resource_is_its_own():
    def build(out):
        numbers = Numbers(name="numbers", out=out, next=kiln.Int32(10))

        def counts(row):
            def body():
                with domain_loop(0, 3 + row, 1):
                    numbers.count(row=row)

            return body

        tasks = [task(f"t{row}", row, [], [numbers], counts(row)) for row in range(2)]
        return tasks, {numbers: []}, []

    assert run(build, n=2).tolist() == [[13] * 32, [14] * 32]


def test_tasks_ask_for_their_registers():
    @cute.kernel
    def kernel(out: cute.Tensor):
        end = Out(name="end", out=out)

        def body():
            with domain_loop(0, 1, 1):
                end.store(kiln.Int32(1))

        counts = (40, 40, 232)  # 384 threads start with 168
        tasks = [
            Task([], [end], 4 * n, 4, name=f"t{n}", schedule=schedule(body)(), num_registers=count)
            for n, count in enumerate(counts)
        ]
        manager = TaskManager(tasks, {end: []})
        manager.setup_resources_and_tasks()
        manager.run()

    @cute.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=1, block=384, min_blocks_per_mp=1)

    ptx = compile_for(main, from_dlpack(np.zeros((1, 32), np.int32))).artifacts["ptx"]
    assert re.search(r"setmaxnreg\.dec\.sync\.aligned\.u32\s+40", ptx)
    assert re.search(r"setmaxnreg\.inc\.sync\.aligned\.u32\s+232", ptx)
