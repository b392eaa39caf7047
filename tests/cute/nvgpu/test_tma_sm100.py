"""TMA of sm_100 on the CPU target: pairs of CTAs, rows by their numbers, elements with padding, 32-byte swizzle atoms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute, pipeline
from kiln.cute import arch
from kiln.cute.nvgpu import CtaGroup, cpasync, tcgen05
from kiln.cute.runtime import from_dlpack

GATHER, SCATTER = cpasync.CopyBulkTensor2DGather4G2SOp, cpasync.CopyBulkTensor2DScatter4S2GOp


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"), kiln.sanitize():
        yield


def aligned(shape: Any, dtype: Any = np.float32) -> np.ndarray:
    memory = np.zeros(int(np.prod(shape)) * np.dtype(dtype).itemsize + 64, np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : memory.size - 64 + start].view(dtype)[: np.prod(shape)].reshape(shape)


def given(x: np.ndarray) -> Any:
    return from_dlpack(x, assumed_align=32)


def group(size: int = 1) -> pipeline.CooperativeGroup:
    return pipeline.CooperativeGroup(pipeline.Agent.Thread, size)


def one_barrier(bytes_: int) -> Any:
    """An mbarrier for so many bytes, which one warp waits for."""
    barrier = arch.alloc_smem(kiln.Int64, 1)
    with arch.elect_one():
        arch.mbarrier_init(barrier, 1)
        arch.mbarrier_arrive_and_expect_tx(barrier, bytes_)
    arch.mbarrier_init_fence()
    arch.sync_warp()
    return barrier


@pytest.mark.parametrize(("shape", "multicast"), [((2, 1), False), ((2, 2), True), ((4, 1), True)])
def test_the_leader_of_a_pair_counts_the_bytes_of_both(shape, multicast):
    """Each CTA loads its part; with multicast it goes to all CTAs of its row (2 x 2) or column (4 x 1), whose own
    leaders count it. Only leaders announce bytes and wait; cluster barriers stand for MMAs that read the stages."""
    blocks = shape[0] * shape[1]
    mode, parts = (2, shape[1]) if shape[1] > 1 else (1, shape[0] // 2)
    stages, rounds = 2, 3

    @cute.kernel
    def kernel(atom: Any, source: Any, y: cute.Tensor):
        layout, rank = cute.tiled_divide(cute.make_layout((*shape, 1)), (2,)), arch.block_idx_in_cluster()
        here = layout.get_flat_coord(rank)
        ring = kiln.utils.SmemAllocator().allocate_tensor(kiln.Float32, cute.make_layout((32, parts, stages)), 128)
        producer, consumer = pipeline.PipelineTmaUmma.create(
            num_stages=stages, producer_group=group(), consumer_group=group(), tx_count=2 * 128 * parts,
            cta_layout_vmnk=layout,
        ).make_participants()  # fmt: skip
        mask = cpasync.create_tma_multicast_mask(layout, here, mode) if multicast else None
        for i in kiln.range_constexpr(rounds):
            handle = producer.current_handle()
            producer._pipeline.producer_acquire(producer._state, True)
            producer.advance()
            part = ring[None, here[mode], i % stages] if multicast else ring[None, 0, i % stages]
            cute.copy(atom, source[None, rank, i], part, tma_bar_ptr=handle.barrier, mcast_mask=mask)
            if rank % 2 == 0:
                consumer.wait()
            consumer.advance()
            arch.cluster_arrive()
            arch.cluster_wait()
            for p in range(parts):
                y[arch.lane_idx(), p, rank, i] = ring[arch.lane_idx(), p, i % stages]
            arch.cluster_arrive()
            arch.cluster_wait()

    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor):
        kind = cpasync.CopyBulkTensorTileG2SMulticastOp if multicast else cpasync.CopyBulkTensorTileG2SOp
        atom, source = cpasync.make_tiled_tma_atom(kind(CtaGroup.TWO), x, cute.make_layout((32, 1, 1)), (32, 1, 1))
        kernel(atom, source, y).launch(grid=(*shape, 1), block=32, cluster=(*shape, 1))

    x, y = aligned((rounds, blocks, 32)), aligned((rounds, blocks, parts, 32))
    x[:] = np.arange(x.size).reshape(x.shape)
    f(given(x.transpose(2, 1, 0)), given(y.transpose(3, 2, 1, 0)))
    for rank in range(blocks):
        row, column = rank % shape[0], rank // shape[0]
        for p in range(parts):
            other = rank if not multicast else p * shape[0] + row if mode == 2 else 2 * p + row % 2 + column * shape[0]
            np.testing.assert_array_equal(y[:, rank, p], x[:, other])


class _Gather(cpasync.CopyBulkTensorTileG2SOp):
    """Loads by rows, as libraries define them by the operations of the dialect."""

    def _to_ir(self) -> Any:
        from cutlass._mlir.dialects import cute_nvgpu

        return cute_nvgpu.GatherScatterTmaLoadEnum.sm_100


@pytest.mark.parametrize("by_columns", [False, True])
def test_rows_from_a_tensor_beside_the_coordinates(by_columns):
    """The tensor of the rows is partitioned as the coordinate tensor; a transposed view goes by its columns."""
    from cutlass._mlir.dialects import cute_nvgpu

    rows, columns, tile = 24, 128, 8
    order = (1, 0) if by_columns else (0, 1)
    kind = tcgen05.SmemLayoutAtomKind.MN_SW128 if by_columns else tcgen05.SmemLayoutAtomKind.K_SW128

    def turned(pair):
        return tuple(pair[i] for i in order)

    def staged():
        return cute.tile_to_shape(
            tcgen05.make_smem_layout_atom(kind, kiln.Float16), turned((tile, columns)), turned((0, 1))
        )

    def rows_of(indices, shape):
        return cute.make_tensor(indices.iterator, cute.make_layout(shape, stride=turned((1, 0))))

    @cute.kernel
    def kernel(load: Any, source: Any, indices: cute.Tensor, y: cute.Tensor):
        layout = staged()
        smem = kiln.utils.SmemAllocator()
        shared = smem.allocate_tensor(kiln.Float16, layout.outer, 1024, swizzle=layout.inner)
        barrier = one_barrier(tile * columns * 2)
        cut = [cute.zipped_divide(t, turned((tile, columns))) for t in (source, rows_of(indices, source.shape))]
        s, g, numbers = cpasync.tma_partition(load, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cut)
        here = (None, turned((1, 0)))  # the second eight rows of the list
        cute.copy(load, [g[here], numbers[here]], s, tma_bar_ptr=barrier)
        arch.mbarrier_wait(barrier, 0)
        for i in range(arch.lane_idx(), tile * columns, 32):
            y[i % tile, i // tile] = shared[turned((i % tile, i // tile))]

    @cute.jit
    def f(x: cute.Tensor, indices: cute.Tensor, y: cute.Tensor):
        x = cute.make_tensor(x.iterator, cute.select(x.layout, mode=list(order)))
        tiler = turned((tile, columns))
        values = cute.composition(cute.make_identity_layout(x.shape), tiler)
        trait, source = cute_nvgpu.atom_make_non_exec_2d_gather4_tma_load(
            x.value, rows_of(indices, x.shape).layout, staged(), values, _Gather()._to_ir(), num_multicast=1
        )
        assert isinstance(trait, cute_nvgpu.CopyAtomNonExec2DGather4TmaLoadType)
        atom = cute.CopyAtom(_Gather(), cpasync.CopyBulkTensorTileG2SNonExecTrait(trait))
        kernel(atom, source, indices, y).launch(grid=1, block=32)

    x, y, indices = aligned((rows, columns), np.float16), aligned((tile, columns), np.float16), aligned((16,), np.int32)
    x[:] = np.arange(x.size).reshape(x.shape) % 1999
    indices[8:] = [3, 3, 23, 0, 30, 7, 8, 2]
    f(given(x), given(indices), given(y))
    want = np.stack([x[r] if r < rows else np.zeros_like(x[0]) for r in indices[8:]])
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_by_their_numbers(dtype):
    rows, columns, tile = 24, 128, 8
    kind = kiln.Float32 if dtype == np.float32 else kiln.Float16
    width = 128 // np.dtype(dtype).itemsize

    @cute.kernel
    def kernel(load: Any, source: Any, store: Any, target: Any, indices: cute.Tensor):
        atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, kind)
        staged = cute.tile_to_shape(atom, (tile, columns), (0, 1))
        smem = kiln.utils.SmemAllocator()
        shared = smem.allocate_tensor(kind, staged.outer, 1024, swizzle=staged.inner)
        barrier = one_barrier(tile * columns * kind.width // 8)
        parts = [cute.local_tile(t, (tile, columns), (0, 0)) for t in (source, target)]
        grouped = [cute.group_modes(t, 0, 2) for t in (shared, *parts)]
        s, g = cpasync.tma_partition(load, 0, cute.make_layout(1), grouped[0], grouped[1])
        _, d = cpasync.tma_partition(store, 0, cute.make_layout(1), grouped[0], grouped[2])
        assert cute.size(s, mode=[0]) == tile * columns and load.trait.facts.values == 4 * width
        cute.copy(load, g, s, tma_bar_ptr=barrier, row_indices=indices[None, 0])
        arch.mbarrier_wait(barrier, 0)
        cute.copy(store, s, d, row_indices=[indices[i, 1] for i in range(tile)])
        arch.cp_async_bulk_commit_group()
        arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor, indices: cute.Tensor):
        atom = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.K_SW128, kind)
        staged = cute.tile_to_shape(atom, (tile, columns), (0, 1))
        pairs = [cpasync.make_tiled_tma_atom(op(), t, staged, (tile, columns)) for op, t in ((GATHER, x), (SCATTER, y))]
        kernel(*pairs[0], *pairs[1], indices).launch(grid=1, block=32)

    x, y, indices = aligned((rows, columns), dtype), aligned((rows, columns), dtype), aligned((2, tile), np.int32)
    x[:] = np.arange(x.size).reshape(x.shape) % 1999
    indices[0], indices[1] = [3, 3, 23, 0, 30, 7, 8, 2], [5, 1, 23, 99, 2, 20, 21, 22]
    f(given(x), given(y), given(indices.T))
    want = np.zeros_like(y)
    for source, target in zip(*indices):
        if target < rows:
            want[target] = x[source] if source < rows else 0
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("dtype", [kiln.Float4E2M1FN, kiln.Float6E3M2FN])
def test_narrow_elements_take_a_byte_of_shared_memory_each(dtype):
    """`internal_type=Uint8` of a tensor of 4 or 6 bits: 16 elements fill 8 or 12 of 16 bytes."""
    rows, columns, filled = 8, 256, 2 * dtype.width

    @cute.kernel
    def kernel(atom: Any, source: Any, y: cute.Tensor):
        shared = kiln.utils.SmemAllocator().allocate_tensor(
            kiln.Uint8, cute.make_layout((rows, 128), stride=(128, 1)), 1024
        )
        barrier = one_barrier(rows * 8 * filled)  # without padding
        part = cute.local_tile(source, (rows, 128), (0, 1))
        s, g = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(part, 0, 2)
        )
        cute.copy(atom, g, s, tma_bar_ptr=barrier)
        arch.mbarrier_wait(barrier, 0)
        for i in range(rows):
            for j in range(4):
                y[i, 32 * j + arch.lane_idx()] = shared[i, 32 * j + arch.lane_idx()]

    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor):
        layout = cute.make_layout((rows, 128), stride=(128, 1))
        narrow = cute.make_tensor(
            cute.recast_ptr(x.iterator, dtype=dtype), cute.make_layout((rows, columns), stride=(columns, 1))
        )
        op = cpasync.CopyBulkTensorTileG2SOp()
        atom, source = cpasync.make_tiled_tma_atom(op, narrow, layout, (rows, 128), internal_type=kiln.Uint8)
        assert atom.trait.facts.element == f"16u{dtype.width}_align16b" and atom.trait.facts.bytes == rows * 128
        kernel(atom, source, y).launch(grid=1, block=32)

    x, y = aligned((rows, 16 * filled), np.uint8), aligned((rows, 128), np.uint8)
    x[:] = np.random.default_rng(3).integers(0, 256, x.shape)
    f(given(x), given(y))
    np.testing.assert_array_equal(y.reshape(rows, 8, 16)[:, :, :filled], x[:, 8 * filled :].reshape(rows, 8, filled))


def test_swizzle_of_pieces_of_32_bytes():
    """An MN-major operand of 32-bit elements, as tf32 MMAs read it: S<2,5,2>."""
    columns = 16

    @cute.kernel
    def kernel(atom: Any, source: Any, y: cute.Tensor):
        kind = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.MN_SW128_32B, kiln.Float32)
        staged = cute.tile_to_shape(kind, (64, columns), (0, 1))
        assert str(staged.inner) == "S<2,5,2>"
        smem = kiln.utils.SmemAllocator()
        shared = smem.allocate_tensor(kiln.Float32, staged.outer, 1024, swizzle=staged.inner)
        barrier = one_barrier(64 * columns * 4)
        part = cute.local_tile(source, (64, columns), (0, 0))
        s, g = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(part, 0, 2)
        )
        cute.copy(atom, g, s, tma_bar_ptr=barrier)
        arch.mbarrier_wait(barrier, 0)
        for i in range(columns):
            for j in range(2):
                y[32 * j + arch.lane_idx(), i] = shared[32 * j + arch.lane_idx(), i]

    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor):
        kind = tcgen05.make_smem_layout_atom(tcgen05.SmemLayoutAtomKind.MN_SW128_32B, kiln.Float32)
        op, staged = cpasync.CopyBulkTensorTileG2SOp(), cute.tile_to_shape(kind, (64, columns), (0, 1))
        atom, source = cpasync.make_tiled_tma_atom(op, x, staged, (64, columns))
        assert atom.trait.facts.swizzle == "128b_32b"
        kernel(atom, source, y).launch(grid=1, block=32)

    x, y = aligned((columns, 64)), aligned((columns, 64))
    x[:] = np.arange(x.size).reshape(x.shape)
    f(given(x.T), given(y.T))
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(("dtype", "by_threads"), [(np.float16, False), (np.float32, False), (np.float16, True)])
def test_maps_that_a_kernel_makes(dtype, by_threads):
    """One kernel makes the maps of groups of rows whose bounds only the device knows; the next one copies with them.

    `by_threads`: each thread makes one, not each CTA.
    """
    rows, columns, tile = (3, 0, 8, 5), 64, 4
    kind = kiln.Float32 if dtype == np.float32 else kiln.Float16
    ends = aligned(4, np.int32)
    ends[:] = np.cumsum(rows)
    op, layout = cpasync.CopyBulkTensorTileG2SOp(), lambda: cute.make_layout((tile, 32), stride=(32, 1))

    @cute.kernel
    def make(x: cute.Tensor, ends: cute.Tensor, maps: cute.Tensor):
        number = arch.thread_idx()[0] if by_threads else arch.block_idx()[0]
        if number < len(rows):
            make_one(x, ends, maps, number)

    @cute.jit
    def make_one(x: cute.Tensor, ends: cute.Tensor, maps: cute.Tensor, number: kiln.Int32):
        first = kiln.Int32(0)
        if number > 0:
            first = ends[number - 1]
        part = cute.make_tensor(
            x.iterator + first * columns, cute.make_layout((ends[number] - first, columns), stride=(columns, 1))
        )
        atom, _ = cpasync.make_tiled_tma_atom(op, part, layout(), (tile, 32))
        cpasync.copy_tensormap(atom, cute.make_tensor(maps[number, None].iterator.align(128), 16).iterator)

    @cute.kernel
    def use(atom: Any, source: Any, maps: cute.Tensor, y: cute.Tensor):
        number = arch.block_idx()[0]
        shared = kiln.utils.SmemAllocator().allocate_tensor(kind, layout(), 128)
        barrier = one_barrier(tile * 32 * kind.width // 8)
        part = cute.local_tile(source, (tile, 32), (1, 1))
        s, g = cpasync.tma_partition(
            atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(part, 0, 2)
        )
        map_ = maps[number, None].iterator.align(128)
        cpasync.fence_tma_desc_acquire(map_)
        cute.copy(atom, g, s, tma_bar_ptr=barrier, tma_desc_ptr=map_)
        arch.mbarrier_wait(barrier, 0)
        for i in range(tile):
            y[number, i, arch.lane_idx()] = shared[i, arch.lane_idx()]

    @cute.jit
    def f(x: cute.Tensor, ends: cute.Tensor, maps: cute.Tensor, y: cute.Tensor):
        make(x, ends, maps).launch(grid=1 if by_threads else len(rows), block=32)
        atom, source = cpasync.make_tiled_tma_atom(op, x, layout(), (tile, 32))
        use(atom, source, maps, y).launch(grid=len(rows), block=32)

    x, y, maps = aligned((16, columns), dtype), aligned((4, tile, 32), dtype), aligned(80, np.int64)
    maps = maps[-maps.ctypes.data % 128 // 8 :][:64].reshape(4, 16)
    x[:] = np.arange(x.size).reshape(x.shape) % 509
    f(given(x), given(ends), from_dlpack(maps, assumed_align=128), given(y))
    for number, end in enumerate(ends):
        group = np.zeros((8, columns), dtype)
        group[: rows[number]] = x[end - rows[number] : end]
        np.testing.assert_array_equal(y[number], group[tile:, 32:])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda x: cpasync.make_tiled_tma_atom(GATHER(), x, cute.make_layout((2, 32)), (2, 32)), "four rows of a matrix"),
        (
            lambda x: cpasync.make_tiled_tma_atom(
                GATHER(), x, cute.make_layout((8, 32), stride=(32, 1)), (8, 32), num_multicast=2
            ),
            "num_multicast=2",
        ),
        (lambda x: cpasync.CopyBulkTensorTileG2SOp(2), "cta_group is 2"),
        (
            lambda x: cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileG2SOp(), x, cute.make_layout((2, 32)), (2, 32), gmem_coord_tensor=x
            ),
            "takes no gmem_coord_tensor",
        ),
        (
            lambda x: cpasync.make_tiled_tma_atom(
                cpasync.CopyBulkTensorTileG2SOp(),
                cute.make_tensor(
                    cute.recast_ptr(x.iterator, dtype=kiln.Float6E2M3FN), cute.make_layout((8, 128), stride=(128, 1))
                ),
                cute.make_layout((8, 64), stride=(64, 1)), (8, 64), internal_type=kiln.Uint8,
            ),
            "rows of a box have 128 elements of 6 bits",
        ),
    ],
)  # fmt: skip
def test_refused(make, says):
    @cute.jit
    def f(x: cute.Tensor):
        make(x)

    with pytest.raises(kiln.DSLUserCodeError, match=f"(?s){says}"):
        f(given(aligned((32, 64))))


def copied(op, beside, **options):
    """A copy of eight rows by the coordinate tensor and what lies beside it."""

    @cute.kernel
    def kernel(load: Any, source: Any, indices: cute.Tensor):
        shared = kiln.utils.SmemAllocator().allocate_tensor(
            kiln.Float32, cute.make_layout((8, 32), stride=(32, 1)), 128
        )
        one = cute.make_layout(1)
        s, g = cpasync.tma_partition(load, 0, one, cute.group_modes(shared, 0, 2), cute.group_modes(source, 0, 2))
        cute.copy(load, [g, *beside(g, indices)], s, tma_bar_ptr=one_barrier(1024), **options)

    @cute.jit
    def f(x: cute.Tensor, indices: cute.Tensor):
        load, source = cpasync.make_tiled_tma_atom(op, x, cute.make_layout((8, 32), stride=(32, 1)), (8, 32))
        kernel(load, cute.local_tile(source, (8, 32), (0, 0)), indices).launch(grid=1, block=32)

    f(given(aligned((32, 64))), given(aligned((16,), np.int32)))


@pytest.mark.parametrize(
    ("op", "beside", "options", "says"),
    [
        (cpasync.CopyBulkTensorTileG2SOp(), lambda g, i: [i], {}, "the source is 2 tensors"),
        (GATHER(), lambda g, i: [i, i], {}, "the source is 3 tensors"),
        (GATHER(), lambda g, i: [i], {"row_indices": range(8)}, "the source is 2 tensors"),
        (GATHER(), lambda g, i: [g], {}, "the rows of a copy are a tensor in memory"),
        (GATHER(), lambda g, i: [cute.make_tensor(i.iterator, cute.make_layout(128))], {}, "rows for other boxes"),
    ],
)
def test_rows_refused(op, beside, options, says):
    with pytest.raises(kiln.DSLUserCodeError, match=says):
        copied(op, beside, **options)
