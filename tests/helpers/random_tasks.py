"""Random graphs of tasks, pipelined resources and groups, with what the same tasks compute one after another."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import kiln
from kiln import cute, pipeline
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
    WorkAttr,
    consumer_work,
    domain_loop,
    producer_work,
    schedule,
)

WORDS = 64
"""The words of a stage: one for each thread of two warps, or two for each thread of one."""


# --- what a graph is -------------------------------------------------------------------------------------------------


@dataclass
class Edge:
    """A resource in shared memory: the task that fills it, and those that empty it."""

    name: str
    producer: int
    consumers: list[int]
    stages: int
    by_tma: bool


@dataclass
class Node:
    """A task: its warps, the edges it reads and fills, and how it treats them."""

    warps: int
    sources: list[Edge] = field(default_factory=list)
    targets: list[Edge] = field(default_factory=list)
    merge: PipelineGroupMode | None = None
    forks: bool = False
    tries: bool = False
    releases_first: bool = False
    stores: bool = False


@dataclass
class Graph:
    """Tasks in an order in which each comes after those it reads from."""

    nodes: list[Node]
    edges: list[Edge]
    iterations: int
    is_dynamic: bool

    @property
    def threads(self) -> int:
        """The threads of the CTA."""
        return 32 * sum(node.warps for node in self.nodes)


def random_graph(seed: int) -> Graph:
    """Return a graph of 2 to 6 tasks without cycles."""
    choose = random.Random(seed)
    nodes = [Node(choose.choice((1, 2)), tries=choose.random() < 0.5) for _ in range(choose.randint(2, 6))]
    edges: list[Edge] = []
    same = choose.randint(1, 3) if choose.random() < 0.7 else 0
    for number, node in enumerate(nodes[:-1]):
        count = choose.choice((1, 1, 2))
        # a task without sources may fill its edges by bulk copies, one warp issues them
        by_tma = not node.sources and choose.random() < 0.5
        node.warps = 1 if by_tma else node.warps
        for _ in range(count):
            later = range(number + 1, len(nodes))
            consumers = sorted(choose.sample(later, min(len(later), choose.choice((1, 1, 1, 2)))))
            edge = Edge(f"e{len(edges)}", number, consumers, same or choose.randint(1, 4), by_tma)
            edges.append(edge)
            node.targets.append(edge)
            for consumer in consumers:
                nodes[consumer].sources.append(edge)
    for node in nodes:
        node.stores = not node.targets or choose.random() < 0.3
        node.releases_first = choose.random() < 0.5
        if _grouped(node.sources) and all(len(e.consumers) == 1 for e in node.sources) and choose.random() < 0.8:
            node.merge = choose.choice((PipelineGroupMode.Merge, PipelineGroupMode.FusedMerge))
    for node in nodes:
        merged = any(nodes[c].merge is not None for edge in node.targets for c in edge.consumers)
        kinds = {edge.by_tma for edge in node.targets}
        node.forks = _grouped(node.targets) and len(kinds) == 1 and not merged and choose.random() < 0.7
    return Graph(nodes, edges, choose.randint(1, 7), choose.random() < 0.5)


def _grouped(edges: list[Edge]) -> bool:
    return len(edges) > 1 and len({edge.stages for edge in edges}) == 1


def reference(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Return what each task stores in each iteration if the tasks run one after another."""
    out = np.zeros((len(graph.nodes), graph.iterations, WORDS), np.int32)
    totals: dict[str, np.ndarray] = {edge.name: np.zeros(WORDS, np.int32) for edge in graph.edges}
    words = np.arange(WORDS)
    with np.errstate(over="ignore"):
        for i in range(graph.iterations):
            held: dict[str, np.ndarray] = {}
            for number, node in enumerate(graph.nodes):
                read = [held[edge.name][(5 * words + 3) % WORDS] for edge in node.sources] or [x[i]]
                value = np.zeros(WORDS, np.int32)
                for place, part in enumerate(read):
                    value = value + np.int32(place + 1) * part
                for edge in node.targets:
                    if edge.by_tma:
                        held[edge.name] = x[i]
                    else:
                        totals[edge.name] = totals[edge.name] * np.int32(3) + value
                        held[edge.name] = totals[edge.name]
                if node.stores:
                    out[number, i] = value + np.int32(i)
    return out


# --- the kernel ------------------------------------------------------------------------------------------------------


def _two() -> tuple[TaskLocalVariable, TaskLocalVariable]:
    made = [TaskLocalVariable(dtype=kiln.Int32, default=kiln.Int32(0)) for _ in range(2)]
    return made[0], made[1]


@dataclass(kw_only=True)
class Rows(MemoryResource):
    """The rows of the input in global memory."""

    x: Any
    first: kiln.Constexpr[Any]
    low: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()
    high: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()

    def __post_init__(self) -> None:
        self.low, self.high = _two()

    @consumer_work(returns=(low, high))
    @cute.jit
    def read(self, info: StageInfo, *, first: kiln.Constexpr[int]):
        t = cute.arch.thread_idx()[0] - first
        return self.x[info.loop_offset, t], self.x[info.loop_offset, (t + 32) % WORDS]


class Stages(MemoryResource):
    """An edge: stages of words in shared memory."""

    low = TaskLocalVariable.uninitialized()
    high = TaskLocalVariable.uninitialized()

    def __init__(self, edge: Edge, x: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.low, self.high = _two()
        self.x, self.edge, self.copied_by_first = x, edge, False
        self.allocation = SmemAllocation(edge.name, dtype=kiln.Int32, count=WORDS * edge.stages)
        self.total_low = self.total_high = kiln.Int32(0)

    def get_smem_requirements(self):
        return [self.allocation]

    def memory(self, info: StageInfo) -> Any:
        start = info.context.smem_base.data_ptr() + self.allocation.offset
        return kiln.Array(start, dtype=kiln.Int32, shape=(WORDS * self.allocation.count,)).subview(
            info.stage_idx * WORDS
        )

    @producer_work
    @cute.jit
    def copy(self, info: StageInfo) -> None:
        if prims.elect_sync():
            source = self.x.iterator + info.loop_offset * WORDS
            prims.cp_async_bulk_shared_cluster_global(self.memory(info), source, info.barrier, 4 * WORDS)

    @producer_work
    @cute.jit
    def put(self, info: StageInfo, low: Any, high: Any, *, first: kiln.Constexpr[int], warps: kiln.Constexpr[int]):
        t, memory = cute.arch.thread_idx()[0] - first, self.memory(info)
        self.total_low, self.total_high = self.total_low * 3 + low, self.total_high * 3 + high
        memory[t] = self.total_low
        if kiln.const_expr(warps == 1):
            memory[t + 32] = self.total_high

    @consumer_work(returns=(low, high))
    @cute.jit
    def take(self, info: StageInfo, *, first: kiln.Constexpr[int]):
        t, memory = cute.arch.thread_idx()[0] - first, self.memory(info)
        return memory[(5 * t + 3) % WORDS], memory[(5 * (t + 32) + 3) % WORDS]


@dataclass(kw_only=True)
class Sums(MemoryResource):
    """What a task makes of its sources, and stores in global memory."""

    out: Any
    number: kiln.Constexpr[int]
    low: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()
    high: kiln.Constexpr[TaskLocalVariable] = TaskLocalVariable.uninitialized()

    def __post_init__(self) -> None:
        self.low, self.high = _two()

    @consumer_work(returns=(low, high), work_attrs=WorkAttr.AUXILIARY)
    @cute.jit
    def add(self, info: StageInfo, *parts: Any):
        low, high = kiln.Int32(0), kiln.Int32(0)
        for place in kiln.range_constexpr(len(parts) // 2):
            low, high = low + (place + 1) * parts[2 * place], high + (place + 1) * parts[2 * place + 1]
        return low, high

    @producer_work
    @cute.jit
    def store(self, info: StageInfo, low: Any, high: Any, *, first: kiln.Constexpr[int], warps: kiln.Constexpr[int]):
        t = cute.arch.thread_idx()[0] - first
        self.out[self.number, info.loop_offset, t] = low + info.loop_offset
        if kiln.const_expr(warps == 1):
            self.out[self.number, info.loop_offset, t + 32] = high + info.loop_offset


def _config(graph: Graph, edge: Edge) -> PipelineConfig:
    group = lambda count: pipeline.CooperativeGroup(pipeline.Agent.Thread, count)
    consumers = 32 * sum(graph.nodes[number].warps for number in edge.consumers)
    if edge.by_tma:
        return PipelineConfig.create_tma_async_pipeline_cfg(
            num_stages=edge.stages, num_bytes=4 * WORDS, producer_group=group(1), consumer_group=group(consumers)
        )
    producers = 32 * graph.nodes[edge.producer].warps
    return PipelineConfig.create_async_async_pipeline_cfg(
        num_stages=edge.stages, producer_group=group(producers), consumer_group=group(consumers)
    )


def build(graph: Graph, x: Any, out: Any, n: Any) -> TaskManager:
    """Return the manager of a graph's tasks, in a kernel."""
    rows = Rows(name="rows", x=x, first=0)
    made = {e.name: Stages(e, x, name=e.name, pipeline_config=_config(graph, e)) for e in graph.edges}
    memory = SmemAllocator()
    tasks, dependencies, warp = [], {}, 0
    for number, node in enumerate(graph.nodes):
        sums = Sums(name=f"sums{number}", out=out, number=number)
        sources = [made[e.name] for e in node.sources]
        targets = [made[e.name] for e in node.targets]
        merge = PipelineGroup(name="m", members=sources, mode=node.merge) if node.merge is not None else None
        fork = PipelineGroup(name="f", members=targets, mode=PipelineGroupMode.Fork) if node.forks else None
        if fork is not None and targets[0].edge.by_tma:  # one copy fills the buffer of all members
            for other in targets[1:]:
                other.allocation, other.copied_by_first = targets[0].allocation, True
        reads_rows = not sources and (node.stores or not all(e.by_tma for e in node.targets))
        begin = [rows] if reads_rows or not sources else sources
        recorded = _record(graph, node, rows if reads_rows else None, sources, targets, sums, merge, fork, 32 * warp, n)
        ends = [*targets, *([sums] if node.stores else [])]
        used = begin if sources or reads_rows else []
        tasks.append(
            Task(
                name=f"task{number}", src_resources=used, dst_resources=ends, warp_idx=warp, num_warps=node.warps,
                schedule=recorded,
            )
        )  # fmt: skip
        for end in ends:
            dependencies[end] = list(used)
        warp += node.warps
    for resource in made.values():
        memory.add_resource(resource)
    memory.compute_layout()
    return TaskManager(tasks=tasks, resource_dependency_graph=dependencies, smem_allocator=memory)


def _record(
    graph: Graph,
    node: Node,
    rows: Any,
    sources: Any,
    targets: Any,
    sums: Any,
    merge: Any,
    fork: Any,
    first: int,
    n: Any,
) -> Any:
    how = {"first": first, "warps": node.warps}

    @schedule
    def body():
        with domain_loop(0, n if graph.is_dynamic else graph.iterations, 1):
            parts: list[Any] = list(rows.read(first=first)) if rows is not None else []
            for source in sources:
                if node.tries:
                    source.try_wait()
                source.wait()
            for source in sources:
                parts += source.take(first=first)
            if node.releases_first:
                _release(merge, sources)
            low, high = sums.add(*parts) if parts else (0, 0)
            if fork is not None:  # all members first: they may share a buffer
                _acquire(node, targets)
            for target in targets:
                if fork is None:
                    _acquire(node, [target])
                if target.edge.by_tma:
                    if not target.copied_by_first:
                        target.copy()
                else:
                    target.put(low, high, **how)
                if fork is None:
                    target.commit()
            if fork is not None:
                fork.commit()
            if node.stores:
                sums.store(low, high, **how)
            if not node.releases_first:
                _release(merge, sources)

    return body()


def _acquire(node: Node, targets: Any) -> None:
    for target in targets:
        if node.tries:
            target.try_acquire()
        target.acquire()


def _release(merge: Any, sources: Any) -> None:
    if merge is not None:
        merge.release()
    else:
        for source in sources:
            source.release()


def program(graph: Graph) -> Any:
    """Return the jit function of a graph: `f(x, out, iterations)`."""

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor, n: kiln.Int32):
        manager = build(graph, x, out, n)
        manager.setup_resources_and_tasks()
        prims.fence_mbarrier_init()
        prims.barrier_cta_sync(0)
        manager.run()

    @cute.jit
    def main(x: cute.Tensor, out: cute.Tensor, n: kiln.Int32):
        kernel(x, out, n).launch(grid=1, block=graph.threads)

    return main
