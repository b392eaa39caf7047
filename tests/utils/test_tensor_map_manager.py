"""Tensor maps that kernels edit: tensors of several shapes are copied with the maps of one atom."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from grouped_copies import GMEM, SHAPES, SMEM, TILE, copier

import kiln
from kiln import cute, utils
from kiln.base_dsl.diagnostics import DSLUserCodeTypeError
from kiln.base_dsl.sanitizing import SanitizerError
from kiln.cute.nvgpu import cpasync
from kiln.cute.runtime import from_dlpack
from kiln.targets.nvidia import codegen


@dataclass(frozen=True)
class Named(utils.TensorMapManager):
    """A manager that a program has made its own."""

    name: str = "mine"


def aligned(count: int, dtype: type, alignment: int = 128) -> np.ndarray:
    memory = np.zeros(count * np.dtype(dtype).itemsize + alignment, np.uint8)
    return memory[-memory.ctypes.data % alignment :][: count * np.dtype(dtype).itemsize].view(dtype)


def check(launch) -> None:
    """Copy matrices of all shapes, and compare."""
    rng = np.random.default_rng(1)
    given = [aligned(m * n, np.float32) for m, n in SHAPES]
    found = [aligned(m * n, np.float32) for m, n in SHAPES]
    for array in given:
        array[:] = rng.integers(1, 99, array.size)
    shapes = np.array(SHAPES, np.int32)
    places = np.array([[a.ctypes.data, b.ctypes.data] for a, b in zip(given, found)], np.int64)
    any_x, any_y = (aligned(16 * 32, np.float32).reshape(16, 32) for _ in range(2))
    tensors = [from_dlpack(array, assumed_align=16).mark_layout_dynamic(leading_dim=1) for array in (any_x, any_y)]
    words = aligned(32, np.int64).reshape(2, 16)
    with kiln.target("cpu"), kiln.sanitize():
        launch(*tensors, from_dlpack(shapes), from_dlpack(places), from_dlpack(words, assumed_align=128))
    for (m, n), a, b in zip(SHAPES, given, found):
        wanted = np.zeros((m, n), np.float32)
        wanted[: TILE[0], : TILE[1]] = a.reshape(m, n)[: TILE[0], : TILE[1]]
        np.testing.assert_array_equal(b.reshape(m, n), wanted)
    assert not any_y.any()


@pytest.mark.parametrize("manager", [utils.TensorMapManager, Named])
@pytest.mark.parametrize("mode", [GMEM, SMEM])
def test_a_kernel_copies_tensors_of_several_shapes(mode, manager):
    check(copier(mode, manager))


def test_a_map_that_is_edited_where_none_was():
    with pytest.raises(SanitizerError, match="reads edited.*, which nobody has written"):
        check(copier(SMEM, begins_elsewhere=True))


def test_a_map_of_bytes_becomes_one_of_fp4():
    """A map of Uint8 takes a matrix of twice as many columns of 4 bits; what lies outside of it is zero."""
    rows, columns = 12, 32  # of fp4, 16 bytes; the tile has 16 rows of 32 bytes

    @cute.kernel
    def kernel(load, source, given: cute.Tensor, out: cute.Tensor, map_: cute.Tensor, layout: kiln.Constexpr):
        smem = utils.SmemAllocator()
        tile, full = smem.allocate_tensor(kiln.Uint8, layout, 128), smem.allocate_array(kiln.Int64, 1)
        thread = cute.arch.thread_idx()[0]
        if thread == 0:
            cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.sync_threads()
        manages = utils.TensorMapManager(GMEM, 128)
        place = manages.get_tensormap_ptr(map_.iterator)
        manages.init_tensormap_from_atom(load, place, 0)
        manages.fence_tensormap_initialization()
        narrow = cute.make_tensor(
            cute.recast_ptr(given.iterator, dtype=kiln.Float4E2M1FN),
            cute.make_layout((kiln.Int32(rows), kiln.Int32(columns)), stride=(kiln.Int32(2 * TILE[1]), 1)),
        )
        manages.update_tensormap((narrow,), (load,), (place,), 0, (None,))
        manages.fence_tensormap_update(place)
        parts = (cute.group_modes(x, 0, 2) for x in (tile, cute.local_tile(source, TILE, (0, 0))))
        shared, of = cpasync.tma_partition(load, 0, cute.make_layout(1), *parts)
        with cute.arch.elect_one():
            cute.arch.mbarrier_arrive_and_expect_tx(full, TILE[0] * TILE[1])
        used = manages.get_tensormap_ptr(place, cute.AddressSpace.generic)
        cute.copy(load, of, shared, tma_bar_ptr=full, tma_desc_ptr=used)
        cute.arch.mbarrier_wait(full, 0)
        for row in range(TILE[0]):
            out[row, thread] = tile[row, thread]

    @cute.jit
    def launch(any_x: cute.Tensor, given: cute.Tensor, out: cute.Tensor, map_: cute.Tensor):
        layout = cute.make_layout(TILE, stride=(TILE[1], 1))
        load, source = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), any_x, layout, TILE)
        kernel(load, source, given, out, map_, layout).launch(grid=1, block=32)

    any_x, given, out = (aligned(TILE[0] * TILE[1], np.uint8).reshape(TILE) for _ in range(3))
    given[:] = np.random.default_rng(2).integers(1, 256, TILE)
    out[:] = 77
    tensors = [from_dlpack(array, assumed_align=16) for array in (any_x, given, out)]
    with kiln.target("cpu"), kiln.sanitize():
        launch(*tensors, from_dlpack(aligned(16, np.int64), assumed_align=128))
    wanted = np.zeros(TILE, np.uint8)
    wanted[:rows, : columns // 2] = given[:rows, : columns // 2]
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.skipif(codegen.ptxas_version() is None, reason="there is no ptxas")
@pytest.mark.parametrize("mode", [GMEM, SMEM])
def test_instructions_that_edit_maps(mode):
    fake = cute.runtime.make_fake_compact_tensor
    stride_one = [
        fake(kiln.Float32, (cute.sym_int(), cute.sym_int(divisibility=4)), stride_order=(1, 0), assumed_align=16)
        for _ in range(2)
    ]
    rest = [
        fake(kiln.Int32, (3, 2)),
        fake(kiln.Int64, (3, 2)),
        fake(kiln.Int64, (2, 16), stride_order=(1, 0), assumed_align=128),
    ]
    ptx = cute.compile(copier(mode), *stride_one, *rest, target="nvidia", options="--gpu-arch sm_90a").__ptx__
    space = ".shared::cta" if mode is SMEM else ".global"
    assert ptx.count(f"tensormap.replace.tile.global_address{space}.b1024.b64") == 2
    assert ptx.count(f"tensormap.replace.tile.global_dim{space}.b1024.b32") == 4
    assert ptx.count(f"tensormap.replace.tile.global_stride{space}.b1024.b64") == 2
    assert ("tensormap.cp_fenceproxy" in ptx) == (mode is SMEM)
    assert ("fence.proxy.tensormap::generic.release.gpu" in ptx) == (mode is GMEM)
    assert ptx.count("fence.proxy.tensormap::generic.acquire.gpu") == 2


def test_what_is_refused():
    with pytest.raises(DSLUserCodeTypeError, match="tensormap_update_mode is 'SMEM'"):
        utils.TensorMapManager("SMEM", 128)
    with pytest.raises(DSLUserCodeTypeError, match="a map has 128 bytes"):
        utils.TensorMapManager(GMEM, 64)

    def refused(words, act):
        @cute.kernel
        def kernel(atom, x: cute.Tensor):
            act(atom, x)

        @cute.jit
        def launch(x: cute.Tensor):
            layout = cute.make_layout(TILE, stride=(TILE[1], 1))
            atom, _ = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, TILE)
            kernel(atom, x).launch(grid=1, block=32)

        x = cute.runtime.make_fake_compact_tensor(kiln.Float32, (16, 32), stride_order=(1, 0), assumed_align=16)
        with pytest.raises(DSLUserCodeTypeError, match=words):
            cute.compile(launch, x, target="cpu")

    manages = utils.TensorMapManager(GMEM)
    update = cpasync.update_tma_descriptor
    refused("takes a pointer to a tensor map, got", lambda atom, x: cpasync.copy_tensormap(atom, x))
    refused("is to become one of Int32", lambda atom, x: update(atom, cute.recast_tensor(x, kiln.Int32), x.iterator))
    refused("a tensor map of 2 modes is to become one of", lambda atom, x: update(atom, x[None, 0], x.iterator))
    refused("as many of each", lambda atom, x: manages.update_tensormap((x,), (atom, atom), (x.iterator,), 0, (None,)))
    refused(
        "is in global memory, not in smem", lambda _, x: manages.get_tensormap_ptr(x.iterator, cute.AddressSpace.smem)
    )
    refused("takes a tensor map in smem", lambda _, x: cpasync.cp_fence_tma_desc_release(x.iterator, x.iterator))
