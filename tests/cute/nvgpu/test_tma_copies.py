# pyright: reportIndexIssue=false, reportOperatorIssue=false
"""Copies of tiles by TMA, on the CPU target: there and back, against numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from tracing_only import traced

import kiln
from kiln import BFloat16, Float8E4M3FN, Float16, Float32, Int16, Int32, Int64, TFloat32, Uint8, cute
from kiln.base_dsl.diagnostics import DSLUserCodeError
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.cute.nvgpu.warpgroup import SmemLayoutAtomKind as Kind
from kiln.cute.runtime import from_dlpack

LOAD = cpasync.CopyBulkTensorTileG2SOp()
MULTICAST = cpasync.CopyBulkTensorTileG2SMulticastOp()
STORE = cpasync.CopyBulkTensorTileS2GOp()
WIDTHS = {"INTER": 16, "SW32": 32, "SW64": 64, "SW128": 128}


def tiles(layout, dtype, tile, op=STORE, internal=None):
    """A program that loads each tile, shows what is in shared memory, and stores it."""
    bytes_ = tile[0] * tile[1] * dtype.width // 8

    @cute.kernel
    def kernel(load: cpasync.TmaInfo, store: cpasync.TmaInfo, seen: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        place = cute.arch.block_idx()[: cute.rank(seen)]
        barrier = cute.arch.alloc_smem(Int64, 1, 8)
        memory = cute.arch.alloc_smem(dtype, cute.cosize(layout), 1024)
        inner = layout.inner if isinstance(layout, cute.ComposedLayout) else None
        outer = layout.outer if isinstance(layout, cute.ComposedLayout) else layout
        shared = cute.make_tensor(cute.recast_ptr(memory, inner, dtype), outer)
        if t == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        source = cute.local_tile(load.tma_tensor, tile, place)
        target = cute.local_tile(store.tma_tensor, tile, place)
        part, source = cpasync.tma_partition(
            load.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(source, 0, 2)
        )
        stored, target = cpasync.tma_partition(
            store.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(target, 0, 2)
        )
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, bytes_)
        cute.copy(load.atom, source, part, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        mine = cute.local_tile(seen, tile, place)
        for i in kiln.range(t, tile[0] * tile[1], 32):
            mine[i] = shared[i]
        cute.copy(store.atom, stored, target)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0)

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, seen: cute.Tensor):
        load = cpasync.make_tiled_tma_atom(LOAD, x, layout, tile, internal_type=internal)
        store = cpasync.make_tiled_tma_atom(op, y, layout, tile, internal_type=internal)
        kernel(load, store, seen).launch(grid=cute.ceil_div((*x.shape, 1)[:3], (*tile, 1)), block=32)

    return launch


def argument(array, dtype, major, dynamic):
    x = from_dlpack(array, assumed_align=16)
    x.element_type = dtype
    return x.mark_layout_dynamic(leading_dim=1 if major == "K" else 0) if dynamic else x


def arrays(shape, tile, major, dtype):
    """Numbers, as large an array for what is stored, and one of whole tiles for what was seen; all of a major mode."""
    kind = {Float8E4M3FN: ml_dtypes.float8_e4m3fn, BFloat16: ml_dtypes.bfloat16}.get(dtype) or np.dtype(
        dtype.__name__.lower()
    )
    whole = tuple(-(-s // t) * t for s, t in zip(shape, (*tile, 1), strict=False))

    def empty(shape, fill):
        order = {"K": (1, 0), "M": (0, 1)}[major]
        outer_first = (
            [*range(2, len(shape))[::-1], *reversed(order)] if major == "M" else [*range(2, len(shape))[::-1], 0, 1]
        )
        a = np.zeros([shape[i] for i in outer_first], kind)
        return (a + fill).astype(kind).transpose(np.argsort(outer_first))

    x = empty(shape, 0)
    x[...] = (np.arange(x.size) % 251 - 99).reshape(shape).astype(kind)
    return x, empty(shape, 7), empty(whole, 5)


@pytest.mark.parametrize(
    ("shape", "tile", "major", "dtype", "kind", "dynamic"),
    [
        ((100, 72), (32, 64), "K", Float16, "SW128", False),
        ((104, 70), (64, 32), "M", Float16, "SW32", True),
        ((72, 40), (64, 16), "M", Float16, "SW128", False),
        ((68, 20), (32, 16), "M", Float32, "SW128_32B", True),
        ((33, 144), (16, 128), "K", BFloat16, "SW64", True),
        ((70, 48, 3), (16, 32), "K", Float32, "SW128", True),
        ((64, 50, 2), (32, 8), "M", Float8E4M3FN, "SW32", True),
        ((20, 24), (8, 8), "K", Float16, "INTER", False),
        ((40, 100), (32, 64), "K", Int32, None, True),
        ((64, 32), (8, 32), "K", Int16, None, False),
        ((1, 72), (8, 64), "K", Float16, "SW128", False),
    ],
)
def test_there_and_back(shape, tile, major, dtype, kind, dynamic):
    if kind is None:
        layout = cute.make_layout(tile, stride=(tile[1], 1))
    else:
        atom = warpgroup.make_smem_layout_atom(Kind[f"{'MN' if major == 'M' else 'K'}_{kind}"], dtype)
        layout = cute.tile_to_shape(atom, tile, (0, 1) if major == "K" else (1, 0))
    x, y, seen = arrays(shape, tile, major, dtype)
    given = [argument(a, dtype, major, dynamic) for a in (x, y, seen)]
    cute.compile(tiles(layout, dtype, tile), *given, target="cpu")(*given)
    assert np.array_equal(x.astype(np.float32), y.astype(np.float32))
    wanted = np.zeros(seen.shape, np.float32)
    wanted[tuple(map(slice, shape))] = x.astype(np.float32)
    assert np.array_equal(seen.astype(np.float32), wanted)


@pytest.mark.parametrize(("dtype", "internal"), [(Float16, Uint8), (Float16, Int32), (Float32, TFloat32)])
def test_maps_of_another_element_type(dtype, internal):
    """Extents, boxes and coordinates along the contiguous mode are counted in elements of the map."""
    tile = (8, 32)
    x, y, seen = arrays((20, 72), tile, "K", dtype)
    given = [argument(a, dtype, "K", True) for a in (x, y, seen)]
    layout = cute.make_layout(tile, stride=(tile[1], 1))
    cute.compile(tiles(layout, dtype, tile, internal=internal), *given, target="cpu")(*given)
    assert np.array_equal(x, y)
    assert np.array_equal(seen[:20, :72], x)


@pytest.mark.parametrize(("kind", "combine"), [("ADD", np.add), ("MIN", np.minimum), ("XOR", np.bitwise_xor)])
def test_reductions(kind, combine):
    op = cpasync.CopyReduceBulkTensorTileS2GOp(cpasync.ReductionKind[kind])
    tile = (16, 32)
    x, y, seen = arrays((20, 40), tile, "K", Int32)
    y[...] = np.arange(y.size).reshape(y.shape)
    wanted = combine(x, y)
    given = [argument(a, Int32, "K", True) for a in (x, y, seen)]
    layout = cute.make_layout(tile, stride=(tile[1], 1))
    cute.compile(tiles(layout, Int32, tile, op), *given, target="cpu")(*given)
    assert np.array_equal(y, wanted)


def test_two_blocks_share_a_tile():
    """Each of two blocks loads half of a tile into both; the result of each is the whole tile."""
    tile, blocks = (64, 64), 2
    layout = cute.tile_to_shape(warpgroup.make_smem_layout_atom(Kind.K_SW128, Float16), tile, (0, 1))

    @cute.kernel
    def kernel(load: cpasync.TmaInfo, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        rank = cute.arch.block_idx_in_cluster()
        barrier = cute.arch.alloc_smem(Int64, 1, 8)
        memory = cute.arch.alloc_smem(Float16, cute.cosize(layout), 1024)
        shared = cute.make_tensor(cute.recast_ptr(memory, layout.inner, Float16), layout.outer)
        if t == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, 64 * 64 * 2)
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        tiled = cute.local_tile(load.tma_tensor, tile, (0, 0))
        part, tiled = cpasync.tma_partition(
            atom=load.atom,
            cta_coord=rank,
            cta_layout=cute.make_layout(blocks),
            smem_tensor=cute.group_modes(shared, 0, 2),
            gmem_tensor=cute.group_modes(tiled, 0, 2),
        )
        mask = cute.make_layout_image_mask(cute.make_layout((1, blocks, 1)), (0, rank, 0), 1)
        cute.copy(load.atom, tiled, part, tma_bar_ptr=barrier, mcast_mask=mask)
        cute.arch.mbarrier_wait(barrier, 0)
        for i in kiln.range(t, 64 * 64, 32):
            y[i, rank] = shared[i]
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        load = cpasync.make_tiled_tma_atom(MULTICAST, x, layout, tile, num_multicast=blocks)
        kernel(load, y).launch(grid=blocks, block=32, cluster=blocks)

    x = np.arange(64 * 64).reshape(64, 64).astype(np.float16)
    y = np.zeros((2, 64 * 64), np.float16).T
    given = [from_dlpack(a, assumed_align=16) for a in (x, y)]
    cute.compile(launch, *given, target="cpu")(*given)
    for block in range(blocks):
        assert np.array_equal(y[:, block].reshape(64, 64).T, x)


def test_six_modes_and_dynamic_strides():
    """More modes than a map has, folded by the common divisor of strides that are known when the program runs."""
    tile = (8, 32)
    layout = cute.make_layout(tile, stride=(32, 1))

    @cute.kernel
    def kernel(load: cpasync.TmaInfo, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        c, d, e = cute.arch.block_idx()
        barrier = cute.arch.alloc_smem(Int64, 1, 8)
        shared = cute.make_tensor(cute.arch.alloc_smem(Int16, 256, 128), layout)
        if t == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, 512)
        cute.arch.sync_threads()
        tiled = cute.local_tile(load.tma_tensor[None, None, 1, c, d, e], tile, (0, 0))
        part, tiled = cpasync.tma_partition(
            load.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(tiled, 0, 2)
        )
        cute.copy(load.atom, tiled, part, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        for i in kiln.range(t, 256, 32):
            y[i % 8, i // 8, c, d, e] = shared[i]

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor):
        load = cpasync.make_tiled_tma_atom(LOAD, x, layout, tile)
        kernel(load, y).launch(grid=(3, 2, 4), block=32)

    x = np.arange(2 * 3 * 4 * 6 * 8 * 32).astype(np.int16).reshape(2, 3, 6, 4, 8, 32)[:, :, ::3]
    x = x.transpose(4, 5, 0, 1, 2, 3)
    y = np.zeros((8, 32, 3, 2, 4), np.int16)
    given = [from_dlpack(a, assumed_align=16).mark_layout_dynamic(leading_dim=n) for a, n in ((x, 1), (y, 4))]
    cute.compile(launch, *given, target="cpu")(*given)
    assert np.array_equal(y, x[:, :, 1])


@pytest.mark.parametrize("step", [64, 24])
def test_boxes_at_dynamic_offsets(step):
    """Of an offset only 16 bytes are known; a run on the CPU target finds that an address is no multiple of 128."""
    tile = (8, 8)
    layout = cute.make_layout(tile, stride=(8, 1))

    @cute.kernel
    def kernel(load: cpasync.TmaInfo, y: cute.Tensor, n: Int32):
        t, _, _ = cute.arch.thread_idx()
        barrier = cute.arch.alloc_smem(Int64, 1, 8)
        offset = cute.assume(n * step, divby=8)
        shared = cute.make_tensor(cute.arch.alloc_smem(Float16, 256, 128) + offset, layout)
        if t == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, 128)
        cute.arch.sync_threads()
        whole = cute.local_tile(load.tma_tensor, tile, (0, 0))
        part, places = cpasync.tma_partition(
            load.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(whole, 0, 2)
        )
        cute.copy(load.atom, places, part, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        y[t // 8, t % 8] = shared[t // 8, t % 8]

    @cute.jit
    def launch(x: cute.Tensor, y: cute.Tensor, n: Int32):
        kernel(cpasync.make_tiled_tma_atom(LOAD, x, layout, tile), y, n).launch(grid=1, block=64)

    x = np.arange(64).reshape(8, 8).astype(np.float16)
    y = np.zeros((8, 8), np.float16)
    given = [from_dlpack(a, assumed_align=16) for a in (x, y)]
    compiled = cute.compile(launch, *given, Int32(1), target="cpu")
    if step % 64:
        with pytest.raises(kiln.DSLBaseError, match="48 bytes past a multiple of 128"):
            compiled(*given, 1)
    else:
        compiled(*given, 1)
        assert np.array_equal(y, x)


def copying(body, op=LOAD, shared_type=Float16, alignment=128, tile=(8, 64)):
    """Trace a kernel with an atom, a tile in shared memory, its place, and an mbarrier."""
    layout = cute.make_layout(tile, stride=(tile[1], 1))

    @cute.kernel
    def kernel(info: cpasync.TmaInfo, x: cute.Tensor):
        barrier = cute.arch.alloc_smem(Int64, 1, 8)
        shared = cute.make_tensor(cute.arch.alloc_smem(shared_type, cute.cosize(layout), alignment), layout)
        tiled = cute.group_modes(cute.local_tile(info.tma_tensor, tile, (None, None)), 0, 2)
        part, places = cpasync.tma_partition(info.atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), tiled)
        body(info.atom, places, part, barrier, x)

    @cute.jit
    def launch(x: cute.Tensor):
        kernel(cpasync.make_tiled_tma_atom(op, x, layout, tile), x).launch(grid=1, block=32)

    x = from_dlpack(np.zeros((64, 256), np.float16), assumed_align=16).mark_layout_dynamic(leading_dim=1)
    return traced(launch, x)


REFUSED = {
    "no mbarrier": (lambda a, g, s, b, x: cute.copy(a, g[None, 0, 0], s), {}, "needs an mbarrier"),
    "no mask": (
        lambda a, g, s, b, x: cute.copy(a, g[None, 0, 0], s, tma_bar_ptr=b), {"op": MULTICAST}, "needs a mask of them"
    ),
    "mask": (
        lambda a, g, s, b, x: cute.copy(a, g[None, 0, 0], s, tma_bar_ptr=b, mcast_mask=0), {"op": MULTICAST}, "mcast_mask is 0x0"
    ),
    "direction": (
        lambda a, g, s, b, x: cute.copy(a, s, g[None, 0, 0], tma_bar_ptr=b), {}, "the source of this copy is a coordinate tensor"
    ),
    "direction of a store": (
        lambda a, g, s, b, x: cute.copy(a, g[None, 0, 0], s), {"op": STORE}, "the destination of this copy is a coordinate tensor"
    ),
    "a tensor in global memory": (
        lambda a, g, s, b, x: cute.copy(a, x, s, tma_bar_ptr=b), {}, "is a coordinate tensor, got a tensor in"
    ),
    "start": (
        lambda a, g, s, b, x: cute.copy(a, cute.domain_offset(((4, 0),), g[None, 0, 0]), s, tma_bar_ptr=b), {},
        "starts at the coordinate .4,0.: .* 8 bytes from the tensor's start, and boxes start at multiples of 16 bytes"
    ),
    "several tiles": (lambda a, g, s, b, x: cute.copy(a, g[None, 0, None], s, tma_bar_ptr=b), {}, "is copied by boxes of 512 elements"),
    "types": (
        lambda a, g, s, b, x: cute.copy(a, g[None, 0, 0], s, tma_bar_ptr=b), {"shared_type": BFloat16}, "has BFloat16 elements"
    ),
    "alignment": (
        lambda a, g, s, b, x: cute.copy(a, g[None, 0, 0], s, tma_bar_ptr=b), {"alignment": 64}, "is only known to be to 64"
    ),
    "keyword": (lambda a, g, s, b, x: cute.copy(a, s, g[None, 0, 0], tma_bar_ptr=b), {"op": STORE}, "takes no 'tma_bar_ptr'"),
    "an identity tensor": (
        lambda a, g, s, b, x: cute.copy(a, cute.make_identity_tensor((8, 64, 1)), s, tma_bar_ptr=b), {}, "for a tensor map of 2 modes"
    ),
    "prefetch of memory": (lambda a, g, s, b, x: cute.prefetch(a, x), {}, "is a coordinate tensor"),
    "prefetch of no atom": (lambda a, g, s, b, x: cpasync.prefetch_descriptor(g), {}, "takes an atom of make_tiled_tma_atom"),
    "another tile": (
        lambda a, g, s, b, x: cpasync.tma_partition(a, 0, cute.make_layout(1), s, cute.group_modes(g, 0, 2)), {}, "they are the same tile"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_copies_that_are_refused(case):
    body, options, message = REFUSED[case]
    with pytest.raises(DSLUserCodeError, match=message) as failure:
        copying(body, **options)
    assert "lambda" in str(failure.value)  # the line is shown


def test_a_copy_elects_a_thread_and_computes_before():
    def body(atom, places, part, barrier, x):
        policy = Int64(0x1234)
        place = places[None, cute.arch.block_idx()[0], 0]
        cute.copy(atom, place, part, tma_bar_ptr=barrier, mcast_mask=0, cache_policy=policy)
        cute.prefetch(atom, place)
        cpasync.prefetch_descriptor(atom)

    text = copying(body)
    inside = text.split("elect_one")[1].split("scf.if")[1].split("}\n")[0]
    assert "hint = true" in inside
    assert "multicast" not in text
    assert "muli" not in inside
    assert "tensor_map_address" not in inside
    assert text.count("cute_nvgpu.tma_load") == text.count("cute_nvgpu.tma_prefetch") == 1
    assert "cute_nvgpu.tensor_map_prefetch" in text


def test_a_copy_by_a_thread_that_was_chosen_already():
    def body(atom, places, part, barrier, x):
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, 1024)
            cute.copy(atom, places[None, 0, 0], part, tma_bar_ptr=barrier)
        cute.copy(atom, places[None, 1, 0], part, tma_bar_ptr=barrier)

    assert copying(body).count("cute_nvgpu.elect_one") == 2


def test_a_map_elsewhere_takes_the_place_of_the_atoms_own():
    def body(atom, places, part, barrier, x):
        where = cute.make_ptr(Int64, 1 << 20, cute.AddressSpace.generic, assumed_align=128)
        cute.copy(atom, places[None, 0, 0], part, tma_bar_ptr=barrier, tma_desc_ptr=where)

    assert "tensor_map_address" not in copying(body)


def test_atoms_go_through_control_flow():
    """Blocks choose between the maps of two tensors."""
    tile = (8, 64)
    layout = cute.make_layout(tile, stride=(64, 1))

    @cute.kernel
    def kernel(first: cpasync.TmaInfo, second: cpasync.TmaInfo, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        block, _, _ = cute.arch.block_idx()
        barrier = cute.arch.alloc_smem(Int64, 1, 8)
        shared = cute.make_tensor(cute.arch.alloc_smem(Int16, 512, 128), layout)
        if t == 0:
            cute.arch.mbarrier_init(barrier, 1)
            cute.arch.mbarrier_init_fence()
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, 1024)
        cute.arch.sync_threads()
        atom, place = first.atom, first.tma_tensor
        for i in kiln.range(block):
            if i > 0:
                atom, place = second.atom, second.tma_tensor
        part, place = cpasync.tma_partition(
            atom,
            0,
            cute.make_layout(1),
            cute.group_modes(shared, 0, 2),
            cute.group_modes(cute.local_tile(place, tile, (0, 0)), 0, 2),
        )
        cute.copy(atom, place, part, tma_bar_ptr=barrier)
        cute.arch.mbarrier_wait(barrier, 0)
        for i in kiln.range(t, 512, 32):
            y[i, block] = shared[i]

    @cute.jit
    def launch(x: cute.Tensor, z: cute.Tensor, y: cute.Tensor):
        atoms = [cpasync.make_tiled_tma_atom(LOAD, a, layout, tile) for a in (x, z)]
        kernel(atoms[0], atoms[1], y).launch(grid=3, block=32)

    x = np.arange(512, dtype=np.int16).reshape(tile)
    z, y = -x, np.zeros((512, 3), np.int16)
    given = [from_dlpack(a, assumed_align=16).mark_layout_dynamic(leading_dim=1) for a in (x, z, y)]
    cute.compile(launch, *given, target="cpu")(*given)
    for block, wanted in enumerate((x, x, z)):
        assert np.array_equal(y[:, block].reshape(64, 8).T, wanted)


def test_multicast_masks():
    cluster = cute.make_layout((1, 4, 2, 1))
    assert cpasync.create_tma_multicast_mask(cluster, (0, 1, 1, 0), 2) == 0b100010
    assert cpasync.create_tma_multicast_mask(cluster, (0, 1, 1, 0), 1) == 0b11110000
