# pyright: reportUnhashable=false
"""Groups, blocks, dependent grids, launch control, pictures, and tasks that wait for each other."""

from __future__ import annotations

import re
import xml.dom.minidom
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas
from random_tasks import WORDS, Edge, Graph, Node, program, reference

import kiln
from kiln import cute, pipeline, utils
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.runtime import from_dlpack
from kiln.experimental import primitives as prims
from kiln.experimental.task_scheduling import (
    MemoryResource,
    PdlLaunchBarrier,
    PdlWaitBarrier,
    PipelineConfig,
    PipelineGroup,
    PipelineGroupMode,
    SignalingThreads,
    StageInfo,
    Task,
    TaskManager,
    TileSchedulerConfig,
    WorkQueue,
    consumer_work,
    domain_loop,
    producer_work,
    schedule,
    work_tile_loop,
)
from kiln.workbench.main import main as command


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def group(size=1):
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, size)


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["Merge", "FusedMerge", "Fork"])
@pytest.mark.parametrize("by_tma", [False, True])
def test_groups_share_barriers(mode, by_tma):
    """Two producers and a consumer that releases both at once; or a producer that fills two edges at once."""
    if mode == "Fork":
        edges = [Edge(f"e{n}", 0, [n + 1], 2, by_tma) for n in range(2)]
        nodes = [Node(1, targets=edges, forks=True), *(Node(n + 1, sources=[edges[n]], stores=True) for n in range(2))]
    else:
        edges = [Edge(f"e{n}", n, [2], 2, by_tma and n == 1) for n in range(2)]
        last = Node(2, sources=edges, merge=PipelineGroupMode[mode], stores=True)
        nodes = [Node(2, targets=edges[:1]), Node(1, targets=edges[1:]), last]
    graph = Graph(nodes, edges, 5, True)
    memory = np.zeros(5 * WORDS + 4, np.int32)
    x = memory[-memory.ctypes.data % 16 // 4 :][: 5 * WORDS].reshape(5, WORDS)
    x[:] = np.arange(x.size).reshape(x.shape)
    out = np.zeros((3, 5, WORDS), np.int32)
    with kiln.sanitize():
        program(graph)(from_dlpack(x, assumed_align=16), out, 5)
    np.testing.assert_array_equal(out, reference(graph, x))


@dataclass(kw_only=True)
class Part(MemoryResource):
    """A resource whose work does nothing: schedules of it are only checked."""

    @producer_work
    @cute.jit
    def fill(self, info: StageInfo) -> None:
        pass

    @consumer_work
    @cute.jit
    def drain(self, info: StageInfo) -> None:
        pass


def part(name, stages=1, pipelined=True):
    config = PipelineConfig.create_async_async_pipeline_cfg(
        num_stages=stages, producer_group=group(32), consumer_group=group(32)
    )
    return Part(name=name, pipeline_config=config if pipelined else None)


def task(name, warp, sources, targets, body):
    return Task(
        name=name, src_resources=sources, dst_resources=targets, warp_idx=warp, num_warps=1, schedule=schedule(body)()
    )


def fills(target, *, times=1, first=None):
    def body():
        with domain_loop(0, times, 1):
            if first is not None:
                first.wait()
                first.drain()
            target.acquire()
            target.fill()
            target.commit()
            if first is not None:
                first.release()

    return body


def empties(source, target=None, times=1):
    def body():
        with domain_loop(0, times, 1):
            source.wait()
            source.drain()
            if target is not None:
                target.fill()
            source.release()

    return body


def test_members_of_groups_are_not_handed_over_alone():
    a, b, end = part("a"), part("b"), part("end", pipelined=False)
    both = PipelineGroup(name="both", members=[a, b], mode=PipelineGroupMode.Merge)

    def alone():
        for one in (a, b):
            one.wait()
            one.drain()
        end.fill()
        both.release()
        a.release()

    tasks = [task("la", 0, [], [a], fills(a)), task("lb", 1, [], [b], fills(b)), task("s", 2, [a, b], [end], alone)]
    with pytest.raises(DSLBaseError, match=r"calls a before|calls a\.release\(\) before|task 's' calls a.release\(\)"):
        TaskManager(tasks=tasks, resource_dependency_graph={a: [], b: [], end: [a, b]})
    with pytest.raises(DSLBaseError, match="different numbers of stages"):
        PipelineGroup(name="g", members=[part("a"), part("b", 2)], mode=PipelineGroupMode.Merge)
    with pytest.raises(DSLBaseError, match="'b' of the pipeline group 'g' has no pipeline_config"):
        PipelineGroup(name="g", members=[a, part("b", pipelined=False)], mode=PipelineGroupMode.Fork)
    mma = PipelineConfig.create_tma_umma_pipeline_cfg(
        num_stages=1, num_bytes=16, producer_group=group(), consumer_group=group()
    )
    with pytest.raises(DSLBaseError, match="have consumers of the kinds async, umma"):
        PipelineGroup(name="g", members=[a, Part(name="m", pipeline_config=mma)], mode=PipelineGroupMode.FusedMerge)


# --- tasks that wait for each other ----------------------------------------------------------------------------------


def test_a_cycle_is_refused_with_its_tasks_and_edges():
    a, b = part("a"), part("b")
    tasks = [task("one", 0, [b], [a], fills(a, first=b)), task("two", 1, [a], [b], fills(b, first=a))]
    said = (
        r"task 'one' waits at b.wait\(\) for 'two' to commit \(edge 'a' -> 'b'\); "
        r"task 'two' waits at a.wait\(\) for 'one' to commit \(edge 'b' -> 'a'\)"
    )
    with pytest.raises(DSLBaseError, match=said):
        TaskManager(tasks=tasks, resource_dependency_graph={a: [b], b: [a]})


@pytest.mark.parametrize(("stages", "filled", "emptied"), [(1, 5, 2), (3, 2, 5)])
def test_loops_of_different_lengths_are_refused(stages, filled, emptied):
    a, end = part("a", stages), part("end", pipelined=False)
    tasks = [task("fill", 0, [], [a], fills(a, times=filled)), task("store", 1, [a], [end], empties(a, end, emptied))]
    said = "'fill' waits at a.acquire" if filled > emptied else "'store' waits at a.wait.. for 'fill' to commit"
    with pytest.raises(DSLBaseError, match=said):
        TaskManager(tasks=tasks, resource_dependency_graph={a: [], end: [a]})


def test_too_few_stages_are_refused():
    a, end = part("a", 1), part("end", pipelined=False)

    def ahead():
        a.acquire()
        a.acquire()
        a.fill()
        a.commit()
        a.commit()

    tasks = [task("fill", 0, [], [a], ahead), task("store", 1, [a], [end], empties(a, end, 2))]
    with pytest.raises(DSLBaseError, match=r"'fill' waits at a.acquire\(\) for 'store' to release \(edge 'a' -> 'end'"):
        TaskManager(tasks=tasks, resource_dependency_graph={a: [], end: [a]})


def test_resources_that_a_schedule_does_not_use_are_refused():
    a, b, end = part("a"), part("b"), part("end", pipelined=False)
    tasks = [task("fill", 0, [], [a, b], fills(a)), task("store", 1, [a], [end], empties(a, end))]
    with pytest.raises(DSLBaseError, match="resource 'b' of task 'fill' is not used by its schedule"):
        TaskManager(tasks=tasks, resource_dependency_graph={a: [], b: [], end: [a]})


# --- blocks, dependent grids and pictures ----------------------------------------------------------------------------


@dataclass(kw_only=True)
class Counters(MemoryResource):
    out: Any

    @producer_work
    @cute.jit
    def count(self, info: StageInfo, *, place: kiln.Constexpr[int]) -> None:
        if cute.arch.thread_idx()[0] == 0:
            self.out[place] = self.out[place] * 10 + info.loop_offset


def counting(out, seen=None):
    counters = Counters(name="counters", out=out)
    before, after = PdlWaitBarrier(name="before"), PdlLaunchBarrier(name="after")

    def body():
        before.wait_griddep()
        with domain_loop(1, 8, 1) as d:
            with d.first_iter():
                counters.count(place=0)
            with d.last_iter():
                counters.count(place=1)
            with d.every(3, start=1):
                counters.count(place=2)
        after.launch_griddep()

    tasks = [task("count", 0, [before], [counters, after], body)]
    manager = TaskManager(tasks=tasks, resource_dependency_graph={counters: [before], after: []})
    if seen is not None:
        seen.append(manager)
    manager.setup_resources_and_tasks()
    manager.run()


def test_blocks_dependent_grids_and_pictures(capsys):
    seen: list[TaskManager] = []

    @cute.kernel
    def kernel(out: cute.Tensor):
        counting(out, seen)

    @cute.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=1, block=32, use_pdl=True)

    out = np.zeros(3, np.int32)
    main(out)
    assert out.tolist() == [1, 7, 25]
    picture = seen[0].picture()
    drawn = xml.dom.minidom.parseString(picture).documentElement
    assert drawn is not None and drawn.tagName == "svg"
    for words in ("wait_griddep", "launch_griddep", "loop (1, 8, 1)", "every 3 from 1", "warp 0"):
        assert f">{words}<" in picture
    seen[0].print_and_verify()
    printed = capsys.readouterr().out
    assert printed.splitlines()[:3] == ["count: warps 0 to 0", "  before.wait_griddep()", "  loop (1, 8, 1)"]


def test_dependent_grids_in_ptx():
    @cute.kernel
    def kernel(out: cute.Tensor):
        counting(out)

    @cute.jit
    def main(out: cute.Tensor):
        kernel(out).launch(grid=1, block=32, use_pdl=True)

    ptx = compile_for(main, from_dlpack(np.zeros(3, np.int32))).artifacts["ptx"]
    assert ptx.index("griddepcontrol.wait") < ptx.index("griddepcontrol.launch_dependents")


# --- launch control --------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Tiles(MemoryResource):
    out: Any

    @producer_work
    @cute.jit
    def done(self, info: StageInfo) -> None:
        m, n, _ = info.work_tile.tile_idx
        if cute.arch.lane_idx() == 0:
            self.out[m, n] = self.out[m, n] + 1


def by_launch_control(ctas):
    """Return a program in which one task counts tiles and another one fetches them; with clusters, in the first CTA."""
    Params = utils.ClcDynamicPersistentTileSchedulerParams

    @cute.kernel
    def kernel(out: cute.Tensor, params: Any):
        answers = cute.arch.alloc_smem(kiln.Int128, 2)
        config = PipelineConfig.create_clc_fetch_async_pipeline_cfg(
            num_stages=2, num_bytes=16, producer_group=group(), consumer_group=group(2 * 32 * ctas),
            cta_layout_vmnk=(1, ctas, 1, 1), producer_signaling_threads=SignalingThreads.CtaLeader,
            consumer_signaling_threads=SignalingThreads.All,
        )  # fmt: skip
        how = TileSchedulerConfig.create_clc_dynamic_persistent_tile_scheduler_params(
            tile_scheduler_params=params, response_ptr=answers
        )
        queue = WorkQueue(name="queue", tile_scheduler_config=how, pipeline_config=config)
        tiles = Tiles(name="tiles", out=out)

        def work():
            with work_tile_loop(queue):
                tiles.done()
                advance()

        def fetch():
            with work_tile_loop(queue):
                queue.try_acquire()
                queue.acquire()
                queue.fetch_work_tile()
                queue.commit()
                advance()

        def advance():
            queue.try_wait()
            queue.wait()
            queue.get_and_advance_work_tile()
            queue.release()

        tasks = [task("work", 0, [queue], [tiles], work), task("fetch", 1, [queue], [queue], fetch)]
        manager = TaskManager(tasks=tasks, resource_dependency_graph={tiles: [queue], queue: [queue]})
        manager.setup_resources_and_tasks()
        prims.fence_mbarrier_init()
        prims.barrier_cluster_arrive_relaxed()
        prims.barrier_cluster_wait()
        manager.run()

    @cute.jit
    def main(out: cute.Tensor):
        params = Params((4, 3, 1), (ctas, 1, 1), 1, True)
        grid = utils.ClcDynamicPersistentTileScheduler.get_grid_shape(params)
        kernel(out, params).launch(grid=grid, block=64, cluster=(ctas, 1, 1))

    return main


@pytest.mark.parametrize("ctas", [1, 2])
def test_tiles_by_launch_control(ctas):
    out = np.zeros((4, 3), np.int32)
    main = by_launch_control(ctas)
    main(out)
    assert (out == 1).all()
    with kiln.sanitize():
        main(out)


@needs_ptxas
def test_answers_are_read_before_the_next_ones_are_written():
    """The async proxy writes them, so that a fence is between the reads and the arrival that gives the stage back."""
    out = from_dlpack(np.zeros((4, 3), np.int32))
    ptx = compile_for(by_launch_control(1), out, arch="sm_100a").artifacts["ptx"]
    answers = re.split(r"clusterlaunchcontrol\.query_cancel\.is_canceled", ptx)[1:]
    assert len(answers) == 2
    for rest in answers:
        assert 0 < rest.index("fence.proxy.async") < rest.index("mbarrier.arrive")


def test_schedules_are_drawn_by_the_command(tmp_path, capsys):
    program, picture = tmp_path / "program.py", tmp_path / "tasks.svg"
    program.write_text(
        """
import cutlass
import numpy as np
import cutlass.cute as cute
from cutlass.experimental.task_scheduling import MemoryResource, Task, TaskManager, domain_loop, producer_work, schedule

class Nothing(MemoryResource):
    @producer_work
    @cute.jit
    def idle(self, info):
        pass

@cute.kernel
def kernel(x: cute.Tensor):
    end = Nothing(name="end")

    @schedule
    def body():
        with domain_loop(0, 3, 1):
            end.idle()

    tasks = [Task(name="only", src_resources=[], dst_resources=[end], warp_idx=0, num_warps=1, schedule=body())]
    manager = TaskManager(tasks=tasks, resource_dependency_graph={end: []})
    manager.setup_resources_and_tasks()
    manager.run()
    x[0] = 1

@cute.jit
def main(x: cute.Tensor):
    kernel(x).launch(grid=1, block=32)

cutlass.cuda.initialize_cuda_context()  # nothing is launched: no driver is needed
main(np.zeros(1, np.int32))
"""
    )
    assert command(["inspect", "--quiet", "--tasks", str(picture), str(program)]) == 0, capsys.readouterr().err
    text = picture.read_text()
    assert ">only<" in text and ">idle<" in text and ">loop (0, 3, 1)<" in text
