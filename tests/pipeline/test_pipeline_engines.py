"""Pipelines that engines fill and empty: bytes that arrive at mbarriers, groups of copies, releases in a cluster."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute, pipeline
from kiln.cute import arch
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack
from kiln.pipeline.arrivals import Arrival, ThreadArrival
from kiln.pipeline.multicast import releases

ROUNDS = 7


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def group(arrivals: Any) -> pipeline.CooperativeGroup:
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, arrivals)


def aligned(*shape: int) -> np.ndarray:
    """Zeros at an address that bulk copies can take."""
    memory = np.zeros(np.prod(shape) + 4, np.float32)
    return memory[(-memory.ctypes.data // 4) % 4 :][: np.prod(shape)].reshape(shape)


def launch(kernel: Any, x: np.ndarray, y: np.ndarray, threads: int, **more: Any) -> None:
    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=more.get("cluster", 1), block=threads, **more)

    f(from_dlpack(x, assumed_align=16), from_dlpack(y, assumed_align=16))


@pytest.mark.parametrize(("shape", "modes"), [((2, 2), (1, 1)), ((2, 1), (1, 1)), ((4, 2), (1, 0)), ((4, 2), (0, 1))])
@pytest.mark.parametrize("stages", [1, 3])
def test_bytes_fill_buffers_until_the_whole_row_and_column_released_them(shape, modes, stages):
    """Each block fills its own buffers, but waits for the consumers of all blocks that would be filled with them."""
    blocks = shape[0] * shape[1]
    sharing = (shape[1] if modes[0] else 1) + (shape[0] if modes[1] else 1) - 1

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        lane, warp, block = arch.lane_idx(), arch.warp_idx(), arch.block_idx_in_cluster()
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout((32, stages)), 128)
        producer, consumer = pipeline.PipelineTmaAsync.create(
            num_stages=stages,
            producer_group=group(1),
            consumer_group=group(sharing),
            tx_count=128,
            cta_layout_vmnk=cute.make_layout((1, *shape, 1)),
            mcast_mode_mn=modes,
        ).make_participants()
        atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), kiln.Float32)
        if warp == 0:
            for i in range(kiln.Int32(ROUNDS)):
                buffer = producer.acquire_and_advance()
                with arch.elect_one():
                    cute.copy(atom, x[i, block, None], ring[None, buffer.index], mbar_ptr=buffer.barrier)
                buffer.commit()
            producer.tail()
        else:
            for i in range(kiln.Int32(ROUNDS)):
                buffer = consumer.wait_and_advance(consumer.try_wait())
                y[i, block, lane] = ring[31 - lane, buffer.index]
                buffer.release()
        arch.cluster_arrive()
        arch.cluster_wait()

    x, y = aligned(ROUNDS, blocks, 32), aligned(ROUNDS, blocks, 32)
    x[:] = np.arange(x.size).reshape(x.shape)
    with kiln.sanitize():
        launch(kernel, x, y, 64, cluster=(*shape, 1))
    np.testing.assert_array_equal(y, x[..., ::-1])


@pytest.mark.parametrize("waits", [True, False])
def test_a_warp_releases_what_all_its_threads_have_read(waits, monkeypatch):
    """One thread releases for its warp. The others may be behind it: without a meeting of the warp the engine could overtake them."""
    if not waits:
        monkeypatch.setattr(pipeline.PipelineTmaAsync, "consumer_release", pipeline.PipelineAsync.consumer_release)

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout((32, 2)), 128)
        producer, consumer = pipeline.PipelineTmaAsync.create(
            num_stages=2, producer_group=group(1), consumer_group=group(1), tx_count=128
        ).make_participants()
        atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), kiln.Float32)
        for i in range(kiln.Int32(ROUNDS)):
            if warp == 0:
                buffer = producer.acquire_and_advance()
                with arch.elect_one():
                    cute.copy(atom, x[i, None], ring[None, buffer.index], mbar_ptr=buffer.barrier)
            else:
                buffer = consumer.wait_and_advance()
                y[i, lane] = ring[31 - lane, buffer.index]
                buffer.release()

    x, y = aligned(ROUNDS, 32), aligned(ROUNDS, 32)
    x[:] = np.arange(x.size).reshape(x.shape)
    with kiln.sanitize():
        if waits:
            launch(kernel, x, y, 64)
            np.testing.assert_array_equal(y, x[:, ::-1])
        else:
            with pytest.raises(kiln.DSLBaseError, match="race"):
                launch(kernel, x, y, 64)


@pytest.mark.parametrize("counts_peers", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (2, 2)])
def test_tiles_go_to_the_row_and_the_column(shape, counts_peers):
    """As in a product: each block loads its part of the row's tile of A and of the column's tile of B, for all who share it."""
    rows, columns = shape
    stages, rounds = 2, 5

    @cute.kernel
    def kernel(load_a, a, load_b, b, y: cute.Tensor, layout: kiln.Constexpr):
        lane, warp = arch.lane_idx(), arch.make_warp_uniform(arch.warp_idx())
        rank = arch.make_warp_uniform(arch.block_idx_in_cluster())
        blocks = cute.make_layout((1, *shape, 1))
        _, m, n, _ = blocks.get_flat_coord(rank)
        smem = kiln.utils.SmemAllocator()
        tile_a, tile_b = (smem.allocate_tensor(kiln.Float32, layout, 128) for _ in range(2))
        peers = 1 if counts_peers else rows + columns - 1
        producer, consumer = pipeline.PipelineTmaAsync.create(
            num_stages=stages,
            producer_group=group(1),
            consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Warp, 2 * peers),
            tx_count=2 * 32 * 4 * 4,
            cta_layout_vmnk=blocks,
            enable_multicast_signaling=counts_peers,
        ).make_participants()
        mask_a = cpasync.create_tma_multicast_mask(blocks, (0, m, n, 0), 2)
        mask_b = cpasync.create_tma_multicast_mask(blocks, (0, m, n, 0), 1)
        parts = []
        for atom, tensor, tile, coord, sharing, which in (
            (load_a, a, tile_a, n, columns, m), (load_b, b, tile_b, m, rows, n)
        ):  # fmt: skip
            tiles = cute.local_tile(tensor, (32, 4), (which, None))
            parts += cpasync.tma_partition(
                atom, coord, cute.make_layout(sharing), cute.group_modes(tile, 0, 2), cute.group_modes(tiles, 0, 2)
            )
        to_a, of_a, to_b, of_b = parts
        if warp == 0:
            for i in range(kiln.Int32(rounds)):
                buffer = producer.acquire_and_advance()
                where = {"tma_bar_ptr": buffer.barrier}
                cute.copy(load_a, of_a[(None, i)], to_a[(None, buffer.index)], **where, mcast_mask=mask_a)
                cute.copy(load_b, of_b[(None, i)], to_b[(None, buffer.index)], **where, mcast_mask=mask_b)
                buffer.commit()
            producer.tail()
        else:
            for i in range(kiln.Int32(rounds)):
                buffer = consumer.wait_and_advance(consumer.try_wait())
                for k in kiln.range_constexpr(2):
                    column = 2 * (warp - 1) + k
                    y[i, rank, column, lane] = (
                        tile_a[lane, column, buffer.index] * 1000 + tile_b[lane, column, buffer.index]
                    )
                buffer.release()

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, y: cute.Tensor):
        layout = cute.make_layout((32, 4, stages), stride=(4, 1, 128))
        op, one = cpasync.CopyBulkTensorTileG2SMulticastOp(), cute.slice_(layout, (None, None, 0))
        load_a, from_a = cpasync.make_tiled_tma_atom(op, a, one, (32, 4), columns)
        load_b, from_b = cpasync.make_tiled_tma_atom(op, b, one, (32, 4), rows)
        kernel(load_a, from_a, load_b, from_b, y, layout).launch(
            grid=(rows, columns, 1), block=96, cluster=(rows, columns, 1)
        )

    a, b = aligned(32 * rows, 4 * rounds), aligned(32 * columns, 4 * rounds)
    y = aligned(rounds, rows * columns, 4, 32)
    a[:], b[:] = (np.random.default_rng(n).integers(0, 900, x.shape) for n, x in enumerate((a, b)))
    with kiln.sanitize():
        f(*(from_dlpack(x, assumed_align=16) for x in (a, b, y)))
    for rank in range(rows * columns):
        m, n = rank % rows, rank // rows
        for i in range(rounds):
            left, right = (x[32 * at : 32 * at + 32, 4 * i : 4 * i + 4].T for x, at in ((a, m), (b, n)))
            np.testing.assert_array_equal(y[i, rank], left * 1000 + right)


def test_buffers_of_several_kinds_of_consumers():
    """Threads are one kind; the tensor cores of other GPUs, the other one, are played by threads here."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout((32, 2)), 128)
        pipe = pipeline.PipelineTmaMultiConsumersAsync.create(
            num_stages=2,
            producer_group=group(1),
            consumer_group_umma=group(1),
            consumer_group_async=pipeline.CooperativeGroup(pipeline.Agent.Warp, 1),
            tx_count=128,
        )
        assert pipe.sync_object_empty.arrive_count == 33
        producer, consumer = pipe.make_participants()
        atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), kiln.Float32)
        for i in range(kiln.Int32(ROUNDS)):
            if warp == 0:
                buffer = producer.acquire_and_advance()
                with arch.elect_one():
                    cute.copy(atom, x[i, None], ring[None, buffer.index], mbar_ptr=buffer.barrier)
            else:
                buffer = consumer.wait_and_advance()
                y[i, lane] = ring[31 - lane, buffer.index]
                arch.sync_warp()
                buffer.release(pipeline.PipelineOp.AsyncThread)
                with arch.elect_one():
                    pipe.sync_object_empty_async.arrive(buffer.index)

    x, y = aligned(ROUNDS, 32), aligned(ROUNDS, 32)
    x[:] = np.arange(x.size).reshape(x.shape)
    with kiln.sanitize():
        launch(kernel, x, y, 64)
    np.testing.assert_array_equal(y, x[:, ::-1])


@pytest.mark.parametrize(("shape", "modes"), [((2, 4), (1, 1)), ((4, 4), (1, 0)), ((2, 3), (0, 1)), ((1, 1), (1, 1))])
def test_a_warp_releases_once_in_every_block_of_its_row_and_column(shape, modes):
    blocks = shape[0] * shape[1]

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        to, signals = releases(cute.make_layout((1, *shape, 1)), None, modes)
        if signals:
            y[arch.block_idx_in_cluster(), 0 if to is None else to] += 1.0

    y = np.zeros((blocks, blocks), np.float32)
    launch(kernel, y, y, 32, cluster=(*shape, 1))
    for mine in range(blocks):
        for other in range(blocks):
            (m, n), (m2, n2) = divmod(mine, shape[0])[::-1], divmod(other, shape[0])[::-1]
            assert y[mine, other] == (mine == other or (m == m2 and modes[0] == 1) or (n == n2 and modes[1] == 1))


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_stores_empty_buffers(stages):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        lane = arch.lane_idx()
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout((32, stages)), 128)
        pipe = pipeline.PipelineTmaStore.create(num_stages=stages, producer_group=group(32))
        atom = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), kiln.Float32)
        for i in range(kiln.Int32(ROUNDS)):
            ring[31 - lane, i % stages] = x[i, lane]
            arch.fence_view_async_shared()
            arch.sync_warp()
            with arch.elect_one():
                cute.copy(atom, ring[None, i % stages], y[i, None])
            pipe.producer_commit()  # by all: without copies there is nothing to wait for
            pipe.producer_acquire()
            arch.sync_warp()
        pipe.producer_tail()

    x, y = aligned(ROUNDS, 32), aligned(ROUNDS, 32)
    x[:] = np.arange(x.size).reshape(x.shape)
    with kiln.sanitize():
        launch(kernel, x, y, 32)
    np.testing.assert_array_equal(y, x[:, ::-1])


@pytest.mark.parametrize(("stages", "races"), [(2, False), (3, True)])
def test_a_fence_of_stores_and_barriers_by_number(stages, races):
    """A fence for two stages frees one of two buffers; one for three does not."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout((32, 2)), 128)
        fence = pipeline.TmaStoreFence(stages)
        atom = cute.make_copy_atom(cpasync.CopyBulkS2GOp(), kiln.Float32)
        for i in range(kiln.Int32(ROUNDS)):
            if warp == 1:
                ring[31 - lane, i % 2] = x[i, lane]
                arch.fence_view_async_shared()
                pipeline.arrive(1, 64)
                pipeline.wait(2, 64)
            else:
                pipeline.wait_unaligned(1, 64)
                with arch.elect_one():
                    cute.copy(atom, ring[None, i % 2], y[i, None])
                fence.arrive_and_wait()
                pipeline.arrive_unaligned(2, 64)
        if warp == 0:
            fence.tail()

    x, y = aligned(ROUNDS, 32), aligned(ROUNDS, 32)
    x[:] = np.arange(x.size).reshape(x.shape)
    expected = pytest.raises(Exception, match="read here by a bulk store") if races else contextlib.nullcontext()
    with expected, kiln.sanitize():
        launch(kernel, x, y, 64)
    if not races:
        np.testing.assert_array_equal(y, x[:, ::-1])


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_groups_of_copies_fill_buffers(stages):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        thread = arch.thread_idx()[0]
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout((64, stages)), 128)
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), kiln.Float32, num_bits_per_copy=32)
        pipe = pipeline.PipelineCpAsyncGroups.create(num_stages=stages)
        filling, reading = pipe.make_participants()
        source, target = cute.local_tile(x, (ROUNDS, 1), (0, thread)), cute.local_tile(ring, (1, stages), (thread, 0))
        for i in range(kiln.Int32(ROUNDS + stages - 1)):
            if i >= stages - 1:
                reading.wait()
            if i < ROUNDS:
                cute.copy(atom, source[i, None], target[None, filling.acquire().index])
            filling.commit()
            filling.advance()
            if i >= stages - 1:
                y[i - (stages - 1), thread] = ring[63 - thread, reading.current_handle().index]
                reading.release()
                reading.advance()
        filling.tail()

    x, y = aligned(ROUNDS, 64), aligned(ROUNDS, 64)
    x[:] = np.arange(x.size).reshape(x.shape)
    with kiln.sanitize():
        launch(kernel, x, y, 64)
    np.testing.assert_array_equal(y, x[:, ::-1])


class WarpArrival(ThreadArrival):
    """Lane 0 arrives for its warp."""

    def arrive(self, barrier: Any, mask: Any) -> None:
        arch.sync_warp()
        with arch.elect_one():
            super().arrive(barrier, mask)


class PipelineOfWarps(pipeline.PipelineAsync):
    _PRODUCER: Arrival = WarpArrival()
    _CONSUMER: Arrival = WarpArrival()


@pytest.mark.parametrize("counted", [1, 32])
def test_a_pipeline_is_a_row_of_two_kinds_of_arrival(counted):
    """Another kind needs no other change; counted in threads nobody would ever arrive."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        lane, warp = arch.lane_idx(), arch.warp_idx()
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout((32, 2)), 128)
        producer, consumer = PipelineOfWarps.create(
            num_stages=2, producer_group=group(counted), consumer_group=group(counted)
        ).make_participants()
        for i in range(kiln.Int32(ROUNDS)):
            if warp == 0:
                buffer = producer.acquire_and_advance()
                ring[lane, buffer.index] = x[i, lane]
                buffer.commit()
            else:
                buffer = consumer.wait_and_advance()
                y[i, lane] = ring[31 - lane, buffer.index]
                buffer.release()

    x, y = aligned(ROUNDS, 32), aligned(ROUNDS, 32)
    x[:] = np.arange(x.size).reshape(x.shape)
    if counted == 1:
        with kiln.sanitize():
            launch(kernel, x, y, 64)
        np.testing.assert_array_equal(y, x[:, ::-1])
        return
    with pytest.raises(kiln.DSLBaseError, match="deadlock"):
        launch(kernel, x, y, 64)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("PipelineTmaAsync.create(num_stages=2, **sides, tx_count=0)", "tx_count is 0.*bytes of all copies"),
        ("PipelineTmaAsync.create(num_stages=2, **sides, tx_count=1 << 20)", "tx_count is 1048576"),
        ("PipelineTmaAsync.create(num_stages=0, **sides, tx_count=16)", "num_stages of a pipeline is 0.*at least 1"),
        (
            "PipelineTmaAsync.create(num_stages=2, **sides, tx_count=16, cta_layout_vmnk=cute.make_layout((2, 2)))",
            r"\(V, M, N, K\)",
        ),
        ("PipelineCpAsync.create(num_stages=2, **sides, producer_mask=1).producer_commit(state)", "their own block"),
        ("PipelineCpAsyncGroups.create(num_stages=1)", "num_stages of a pipeline is 1.*at least 2"),
        ("PipelineCpAsyncGroups.create(num_stages=2).consumer_try_wait(state)", "cannot be asked"),
        ("PipelineCpAsyncGroups.create(num_stages=2).producer_get_barrier(state)", "has no barrier"),
        ("PipelineTmaStore.create(num_stages=True)", "num_stages of a pipeline is True"),
        (
            "PipelineTmaMultiConsumersAsync.create(num_stages=2, tx_count=16, producer_group=sides['producer_group'], "
            "consumer_group_umma=sides['consumer_group'], consumer_group_async=sides['consumer_group'])"
            ".consumer_release(state, pipeline.PipelineOp.TmaLoad)",
            "released by TmaLoad",
        ),
        ("TmaStoreFence(-1)", "num_stages of a pipeline is -1"),
        ("TmaStoreFence(2).arrive_and_drop()", "cannot leave its own TMA stores"),
        ("CooperativeGroup(pipeline.Agent.Thread, 1.5)", "size of a CooperativeGroup is 1.5"),
    ],
)
def test_refused(statement, says):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        sides = {"producer_group": group(1), "consumer_group": group(32 / 32)}
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 2)
        exec(f"pipeline.{statement}", {"pipeline": pipeline, "cute": cute, "sides": sides, "state": state})

    with pytest.raises(kiln.DSLUserCodeError, match=f"(?s){says}"):
        launch(kernel, aligned(4), aligned(4), 32)
