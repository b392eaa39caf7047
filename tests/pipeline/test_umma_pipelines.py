"""Pipelines of the tensor cores of sm_100 and of cluster launch control: masks, counts, PTX."""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute, pipeline
from kiln.cute import arch
from kiln.cute.nvgpu import CtaGroup, cpasync
from kiln.cute.runtime import from_dlpack
from kiln.pipeline.multicast import consumers_mask, cta_group, is_leader, leader, pair_mask

SHAPES = [(m, n) for m in (1, 2, 3, 4) for n in (1, 2, 3, 4)]
FEW = [(1, 1), (2, 1), (2, 2), (4, 2), (4, 4)]


def group(size: Any = 1, agent: Any = pipeline.Agent.Thread) -> pipeline.CooperativeGroup:
    return pipeline.CooperativeGroup(agent, size)


def cluster_layout(shape: tuple[int, int], ctas: int) -> Any:
    return cute.tiled_divide(cute.make_layout((*shape, 1)), (ctas,))


def words(*shape: int) -> np.ndarray:
    """Zeros at an address that bulk copies can take."""
    memory = np.zeros(np.prod(shape) + 4, np.int32)
    return memory[(-memory.ctypes.data // 4) % 4 :][: np.prod(shape)].reshape(shape)


def launch(kernel: Any, x: np.ndarray, cluster: tuple[int, int, int], threads: int = 32) -> None:
    @cute.jit
    def f(x: cute.Tensor):
        kernel(x).launch(grid=cluster, block=threads, cluster=cluster)

    with kiln.target("cpu"):
        f(from_dlpack(x, assumed_align=16))


def sharing(rank: int, shape: tuple[int, int], ctas: int, modes: tuple[int, int]) -> int:
    """Return the mask of the CTAs that share a row or column with one, pairs counted whole, as CUTLASS pictures it."""
    mask = 0
    for other in range(shape[0] * shape[1]):
        (m, n), (m2, n2) = ((r % shape[0] // ctas, r // shape[0]) for r in (rank, other))
        shares = (m == m2 and modes[0]) or (n == n2 and modes[1]) or (m == m2 and n == n2)
        mask |= int(shares) << other
    return mask


@pytest.mark.parametrize("ctas", [1, 2])
@pytest.mark.parametrize("shape", SHAPES if os.environ.get("KILN_LONG_TESTS") else FEW)
def test_masks_of_clusters(shape, ctas):
    if shape[0] % ctas:
        pytest.skip("pairs are along M")
    blocks, modes = shape[0] * shape[1], ((1, 1), (1, 0), (0, 1), (0, 0))

    @cute.kernel
    def kernel(x: cute.Tensor):
        layout, rank = cluster_layout(shape, ctas), arch.block_idx_in_cluster()
        assert cta_group(layout) is CtaGroup(ctas)
        for i, mode in enumerate(modes):
            mask = consumers_mask(layout, mode)
            x[rank, i] = (1 << rank) if mask is None else mask
        if ctas == 2:
            x[rank, 4], x[rank, 5], x[rank, 6] = pair_mask(), leader(), kiln.Int32(is_leader())

    x = words(blocks, 7)
    launch(kernel, x, (*shape, 1))
    for rank in range(blocks):
        assert [int(w) for w in x[rank, :4]] == [sharing(rank, shape, ctas, mode) for mode in modes]
        if ctas == 2:
            assert x[rank, 4:].tolist() == [3 << (rank & ~1), rank & ~1, rank % 2 == 0]


_COMMIT = "tcgen05.commit.cta_group::{}.mbarrier::arrive::one.shared::cluster"
_ARRIVE = r"mbarrier\.arrive\.release\.\w+\.shared::cluster|mapa\.shared::cluster"


def traced(body: Any, shape: tuple[int, int], ctas: int) -> Any:
    """Compile a kernel for sm_100a, which ptxas assembles, and return its PTX."""

    @cute.kernel
    def kernel(x: cute.Tensor):
        body(cluster_layout(shape, ctas), x)

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=(*shape, 1), block=128, cluster=(*shape, 1))

    found = compile_for(main, from_dlpack(words(64), assumed_align=16), arch="sm_100a")
    return found.artifacts["ptx"]


def _tma_umma(layout: Any, x: cute.Tensor) -> None:
    pipe = pipeline.PipelineTmaUmma.create(
        num_stages=2, producer_group=group(), consumer_group=group(1, pipeline.Agent.Warp), tx_count=4096,
        cta_layout_vmnk=layout, enable_multicast_signaling=True, defer_sync=True,
    )  # fmt: skip
    assert pipe.sync_object_full.arrive_count == 1
    first = pipe.sync_object_full.barrier_storage
    assert (first.dtype, first.memspace) == (kiln.Int64, cute.AddressSpace.smem)
    rows, columns = cute.size(layout, mode=[1]), cute.size(layout, mode=[2])
    assert pipe.sync_object_empty.arrive_count == rows + columns - 1
    producer, consumer = pipe.make_participants()
    assert producer._PipelineProducer__state is producer._state  # as public programs read it
    handle = producer.acquire_and_advance(expected_tx=2048)
    consumer.wait_and_advance().release()
    handle.commit()  # nothing: TMA completes the stage
    producer.tail()


def _umma_async(layout: Any, x: cute.Tensor) -> None:
    pipe = pipeline.PipelineUmmaAsync.create(
        num_stages=2, producer_group=group(), consumer_group=group(128), cta_layout_vmnk=layout
    )
    assert (pipe.sync_object_full.arrive_count, pipe.sync_object_empty.arrive_count) == (1, 128)
    producer, consumer = pipe.make_participants()
    producer.acquire()
    producer.commit()
    producer.advance()
    consumer.wait_and_advance().release()
    producer.tail()


def _async_umma(layout: Any, x: cute.Tensor) -> None:
    pipe = pipeline.PipelineAsyncUmma.create(
        num_stages=1, producer_group=group(64), consumer_group=group(), cta_layout_vmnk=layout
    )
    assert (pipe.sync_object_full.arrive_count, pipe.sync_object_empty.arrive_count) == (64, 1)
    producer, consumer = pipe.make_participants()
    producer.acquire_and_advance().commit()
    consumer.wait_and_advance().release()
    producer.tail()


def _both(layout: Any, x: cute.Tensor) -> None:
    pipe = pipeline.PipelineTmaMultiConsumersAsync.create(
        num_stages=1, producer_group=group(), consumer_group_umma=group(), consumer_group_async=group(32), tx_count=16
    )
    assert pipe.sync_object_empty.arrive_count == 33
    state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 1)
    pipe.consumer_wait(state)
    pipe.consumer_release(state, pipeline.PipelineOp.TCGen05Mma)
    pipe.consumer_release(state, pipeline.PipelineOp.AsyncThread)


@needs_ptxas
@pytest.mark.parametrize(
    ("body", "shape", "ctas", "commits", "remote"),
    [
        (_tma_umma, (1, 1), 1, _COMMIT.format(1) + ".b64", False),
        (_tma_umma, (2, 1), 1, _COMMIT.format(1) + ".multicast::cluster.b64", False),
        (_tma_umma, (4, 2), 2, _COMMIT.format(2) + ".multicast::cluster.b64", False),
        (_umma_async, (2, 1), 1, _COMMIT.format(1) + ".b64", False),
        (_umma_async, (2, 2), 2, _COMMIT.format(2) + ".multicast::cluster.b64", True),
        (_async_umma, (1, 1), 1, _COMMIT.format(1) + ".b64", False),
        (_async_umma, (2, 1), 2, _COMMIT.format(2) + ".multicast::cluster.b64", True),
        (_both, (1, 1), 1, _COMMIT.format(1) + ".b64", False),
    ],
)
def test_arrivals_in_ptx(body, shape, ctas, commits, remote):
    """The kinds of commits and arrivals are those of programs that CuTe DSL compiled (`blackwell_programs.jsonl`)."""
    ptx = traced(body, shape, ctas)
    assert set(re.findall(r"tcgen05\.commit[\w.:]*", ptx)) == {commits}
    assert bool(re.search(_ARRIVE, ptx)) == remote
    assert ptx.count("elect.sync") >= 1


@pytest.mark.parametrize("ctas", [1, 2])
def test_answers_of_cluster_launch_control(ctas):
    """A copy of 16 bytes to all CTAs stands for the answer, which it resembles: CTA 0 requests for the cluster."""
    rounds = 5

    @cute.kernel
    def kernel(x: cute.Tensor):
        lane, rank = arch.lane_idx(), arch.block_idx_in_cluster()
        warp = arch.make_warp_uniform(arch.warp_idx())
        answer = kiln.utils.SmemAllocator().allocate_tensor(kiln.Int32, cute.make_layout((4, 2)), 128)
        layout = cluster_layout((ctas, 1), 1)
        pipe = pipeline.PipelineClcFetchAsync.create(
            num_stages=2, producer_group=group(), consumer_group=group(32 * ctas), tx_count=16, cta_layout_vmnk=layout,
            defer_sync=True,
        )  # fmt: skip
        pipeline.pipeline_init_arrive(cluster_shape_mn=layout, is_relaxed=True)
        pipeline.pipeline_init_wait(cluster_shape_mn=layout)
        op = cpasync.CopyBulkG2SMulticastOp() if ctas > 1 else cpasync.CopyBulkG2SOp()
        atom = cute.make_copy_atom(op, kiln.Int32)
        if warp == 0:
            if rank == 0:
                state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 2)
                for i in range(kiln.Int32(rounds)):
                    pipe.producer_acquire(state)
                    more = {"mcast_mask": kiln.Int16(3)} if ctas > 1 else {}
                    with arch.elect_one():
                        bar = pipe.producer_get_barrier(state)
                        cute.copy(atom, x[i, None], answer[None, state.index], mbar_ptr=bar, **more)
                    state.advance()
                pipe.producer_tail(state)
        else:
            state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 2)
            for i in range(kiln.Int32(rounds)):
                pipe.consumer_wait(state)
                if lane < 4:
                    x[rounds + ctas * i + rank, lane] = answer[lane, state.index] + rank
                arch.fence_view_async_shared()
                pipe.consumer_release(state)
                state.advance()
        arch.cluster_arrive()
        arch.cluster_wait()

    x = words(rounds * (1 + ctas), 4)
    x[:rounds] = np.arange(rounds * 4).reshape(rounds, 4)
    with kiln.sanitize():
        launch(kernel, x, (ctas, 1, 1), 64)
    for i in range(rounds):
        for rank in range(ctas):
            assert (x[rounds + ctas * i + rank] == x[i] + rank).all()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        (
            "PipelineTmaUmma.create(**sides, tx_count=16, cta_layout_vmnk=cute.make_layout((3, 1, 1, 1)))",
            "mode V has 3",
        ),
        (
            "PipelineUmmaAsync.create(**sides, cta_layout_vmnk=cute.make_layout((2, 2, 1, 1), stride=(2, 1, 4, 4)))",
            "ranks in the cluster differ by 1",
        ),
        ("PipelineAsyncUmma.create(**sides, cta_layout_vmnk=cute.make_layout((2, 2)))", r"\(V, M, N, K\)"),
        ("PipelineClcFetchAsync.create(**sides, tx_count=32)", "tx_count of PipelineClcFetchAsync is 32"),
        ("PipelineTmaUmma.create(**sides, tx_count=0)", "tx_count is 0"),
    ],
)
def test_refused(statement, says):
    @cute.kernel
    def kernel(x: cute.Tensor):
        sides = {"num_stages": 2, "producer_group": group(), "consumer_group": group()}
        exec(f"pipeline.{statement}", {"pipeline": pipeline, "cute": cute, "sides": sides})

    with pytest.raises(kiln.DSLUserCodeError, match=f"(?s){says}"):
        launch(kernel, words(4), (1, 1, 1))
