"""Tensor maps made by hand: equal to those of TMA atoms, edited in kernels, and refused where no map exists."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest
from nvidia_testing import compile_for
from tensor_map_cases import TYPES, program, random_case

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute.nvgpu import cpasync, warpgroup
from kiln.cute.nvgpu.tma_atom import tma_trait
from kiln.cute.runtime import from_dlpack
from kiln.cute.tensor.pointer import Pointer
from kiln.experimental import cuda
from kiln.experimental import primitives as prims


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def aligned(shape, dtype=np.float16):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.zeros(size + 128, np.uint8)
    return memory[-memory.ctypes.data % 128 :][:size].view(dtype).reshape(shape)


@cute.kernel
def read_maps(
    first: kiln.GridConstant[cuda.TensorMap],
    second: kiln.GridConstant[cuda.TensorMap],
    atom: cute.CopyAtom,
    out: cute.Tensor,
):
    tx = cute.arch.thread_idx()[0]
    own = Pointer(tma_trait(atom, "test").address(), kiln.Int64, kiln.AddressSpace.generic).raw_ptr()
    out[0, tx], out[1, tx], out[2, tx] = first.get_ptr()[tx], second.get_ptr()[tx], own[tx]


@pytest.mark.parametrize("seed", range(3))
def test_maps_equal_those_of_atoms(seed):
    choose = random.Random(seed)
    kind, span = choose.choice([("s128b", 64), ("s64b", 32), ("s32b", 16)])
    rows, columns, box = 8 * choose.randint(1, 9), 8 * choose.randint(8, 20), 8 * choose.randint(1, 4)
    atoms = {"s128b": "K_SW128", "s64b": "K_SW64", "s32b": "K_SW32"}

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor):
        name = getattr(warpgroup.SmemLayoutAtomKind, atoms[kind])
        layout = cute.tile_to_shape(warpgroup.make_smem_layout_atom(name, kiln.Float16), (box, span), (0, 1))
        atom, _ = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), x, layout, (box, span))
        swizzle = cuda.TensorMapSwizzle.from_name(kind)
        raw = cuda.create_tensor_map_tiled(
            x.iterator.toint(), kiln.Float16, [x.shape[1], x.shape[0]], [x.shape[1] * 2 // 16], [span, box], swizzle=swizzle
        )  # fmt: skip
        view = cuda.create_tensor_map_tiled_from_view(x, (box, span), stride_order=(1, 0), swizzle=swizzle)
        assert raw.global_tx_bytes() == view.shared_storage_bytes == 2 * span * box
        read_maps(raw, view, atom, out).launch(grid=1, block=16)

    out = np.zeros((3, 16), np.int64)
    f(aligned((rows, columns)), out)
    np.testing.assert_array_equal(out[0], out[2])
    np.testing.assert_array_equal(out[1], out[2])


@pytest.mark.quick(3)
@pytest.mark.parametrize("seed", range(60))
def test_random_maps_equal_those_of_atoms(seed):
    """Types, 2 and 3 modes, padded rows, swizzles: by hand and from a view, the bytes are those of the atom's map."""
    case = random_case(seed)
    name = TYPES[case.dtype][0]
    memory = aligned((case.elements,), np.dtype(getattr(ml_dtypes, name, name)))
    out = np.zeros((4, 16), np.int64)
    program(case)(from_dlpack(memory, assumed_align=128), out)
    np.testing.assert_array_equal(out[1], out[3], err_msg=str(case))
    np.testing.assert_array_equal(out[2], out[3], err_msg=str(case))


def test_steps_fills_interleaves_and_replaced_fields():
    """A box takes every second element; a copy of the map in memory is shortened, and fills what it lacks."""

    @cute.kernel
    def kernel(desc: kiln.GridConstant[cuda.TensorMap], memory: cute.Tensor, out: cute.Tensor):
        tx = cute.arch.thread_idx()[0]
        tile = kiln.Array(kiln.Float16, (2, 4, 16), space=kiln.AddressSpace.smem, alignment=128)
        bar = kiln.Array(kiln.Int64, 1, space=kiln.AddressSpace.smem)
        edited = memory.iterator.raw_ptr()
        if tx == 0:
            for i in kiln.range_constexpr(16):
                edited[i] = desc.get_ptr()[i]
            prims.tensormap_replace(prims.TensormapField.GLOBAL_DIM, edited, new_value=3, ord=1)
            prims.mbarrier_init(bar, 1)
        how = {"from_proxy": prims.Proxy.GENERIC, "to_proxy": prims.Proxy.TENSORMAP}
        prims.fence_proxy_release(prims.MemScope.GPU, **how)
        prims.fence_mbarrier_init()
        prims.barrier_cta_sync(0)
        prims.fence_proxy_acquire(prims.MemScope.GPU, edited, 128, **how)
        if prims.elect_sync():
            prims.prefetch_tensormap(desc.get_ptr())
            prims.mbarrier_arrive_expect_tx(bar, 2 * desc.global_tx_bytes())
            prims.cp_async_bulk_tensor_shared_cta_global(tile, desc, (0, 0), bar)
            prims.cp_async_bulk_tensor_shared_cta_global(tile.subview(64), edited, (0, 0), bar)
        while not prims.mbarrier_try_wait_parity(bar, 0):
            pass
        for i in kiln.range_constexpr(4):
            out[tx + 32 * i] = tile.load(tx + 32 * i)

    @cute.jit
    def f(x: cute.Tensor, memory: cute.Tensor, out: cute.Tensor):
        desc = cuda.create_tensor_map_tiled_from_view(
            x, (8, 16), stride_order=(1, 0), traversal_strides=(2, 1), oob_fill="nan", l2_promotion="l2_256b"
        )
        kernel(desc, memory, out).launch(grid=1, block=32)

    x, out = aligned((8, 16)), np.zeros(128, np.float16)
    x[:] = np.arange(128).reshape(8, 16)
    memory = aligned((16,), np.int64)
    f(from_dlpack(x, assumed_align=128), from_dlpack(memory, assumed_align=128), out)
    np.testing.assert_array_equal(out[:64], x[::2].ravel())
    np.testing.assert_array_equal(out[64:96], x[:4:2].ravel())
    assert np.isnan(out[96:]).all()


def test_members_of_enumerations():
    """Atoms of 32 bytes are permuted within 128 bytes, and rows outside of the tensor are NaN."""

    @cute.kernel
    def kernel(desc: kiln.GridConstant[cuda.TensorMap], out: cute.Tensor):
        tx = cute.arch.thread_idx()[0]
        tile = kiln.Array(kiln.Float32, (8, 32), space=kiln.AddressSpace.smem, alignment=1024)
        bar = kiln.Array(kiln.Int64, 1, space=kiln.AddressSpace.smem)
        if tx == 0:
            prims.mbarrier_init(bar, 1)
        prims.fence_mbarrier_init()
        prims.bar_warp_sync(0xFFFFFFFF)
        if prims.elect_sync():
            prims.mbarrier_arrive_expect_tx(bar, desc.global_tx_bytes())
            prims.cp_async_bulk_tensor_shared_cta_global(tile, desc, (0, 2), bar)
        while not prims.mbarrier_try_wait_parity(bar, 0):
            pass
        for i in kiln.range_constexpr(8):
            out[i, tx] = tile[i, tx]

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor):
        swizzle = cuda.TensorMapSwizzle.s128b_atom_32b
        assert swizzle.to(prims.Tcgen05SmemSwizzle) is prims.Tcgen05SmemSwizzle.SWIZZLE_128B_ATOM_32B
        desc = cuda.create_tensor_map_tiled_from_view(
            x, (8, 32), stride_order=(1, 0), swizzle=swizzle, interleave=cuda.TensorMapInterleave.none,
            l2_promotion=cuda.TensorMapL2Promotion.l2_64b, oob_fill=cuda.TensorMapFloatOOBFill.nan,
            tma_format=cuda.TensorMapDataFormat.DEFAULT,
        )  # fmt: skip
        kernel(desc, out).launch(grid=1, block=32)

    x, out = aligned((8, 32), np.float32), np.zeros((8, 32), np.float32)
    x[:] = np.arange(256).reshape(8, 32)
    f(from_dlpack(x, assumed_align=128), out)
    wanted = np.full((8, 4, 8), np.nan, np.float32)
    for row in range(6):
        for atom in range(4):
            wanted[row, atom ^ row % 4] = x[row + 2, 8 * atom : 8 * atom + 8]
    np.testing.assert_array_equal(out, wanted.reshape(8, 32))


@pytest.mark.parametrize(("lower", "upper", "filter_at"), [((-1, -1), (-1, -1), (2, 0)), ((0, 0), (0, 0), (0, 0))])
def test_im2col_copies_take_the_pixels_of_a_filter(lower, upper, filter_at):
    """A column of 32 pixels begins inside of the first image and goes on into the second."""
    n, h, w, c, first = 2, 5, 6, 16, (1, 3, 0)  # the first pixel: w, h, n

    @cute.kernel
    def kernel(desc: kiln.GridConstant[cuda.TensorMap], out: cute.Tensor):
        tx = cute.arch.thread_idx()[0]
        tile = kiln.Array(kiln.Float16, (32, c), space=kiln.AddressSpace.smem, alignment=128)
        bar = kiln.Array(kiln.Int64, 1, space=kiln.AddressSpace.smem)
        if tx == 0:
            prims.mbarrier_init(bar, 1)
        prims.fence_mbarrier_init()
        prims.bar_warp_sync(0xFFFFFFFF)
        if prims.elect_sync():
            prims.mbarrier_arrive_expect_tx(bar, desc.global_tx_bytes())
            place = (0, first[0] + lower[0], first[1] + lower[1], first[2])
            prims.cp_async_bulk_tensor_shared_cta_global(tile, desc, place, bar, filter_at, mode="im2col")
        while not prims.mbarrier_try_wait_parity(bar, 0):
            pass
        for i in kiln.range_constexpr(c):
            out[tx, i] = tile[tx, i]

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor):
        strides = [c * 2 // 16, c * w * 2 // 16, c * w * h * 2 // 16]
        desc = cuda.create_tensor_map_im2col(
            x.iterator.toint(), kiln.Float16, [c, w, h, n], strides, lower, upper, c, 32
        )  # fmt: skip
        assert desc.global_tx_bytes() == 2 * 32 * c
        kernel(desc, out).launch(grid=1, block=32)

    x, out = aligned((n, h, w, c)), np.zeros((32, c), np.float16)
    x[:] = np.arange(x.size).reshape(x.shape)
    f(from_dlpack(x, assumed_align=128), out)
    pixels = [
        (i, y, z) for i in range(n) for y in range(lower[1], h + upper[1]) for z in range(lower[0], w + upper[0])
    ]  # fmt: skip
    start = pixels.index((first[2], first[1] + lower[1], first[0] + lower[0]))
    wanted = np.zeros_like(out)
    for row, (i, y, z) in enumerate(pixels[start : start + 32]):
        y, z = y + filter_at[1], z + filter_at[0]
        if 0 <= y < h and 0 <= z < w:
            wanted[row] = x[i, y, z]
    np.testing.assert_array_equal(out, wanted)


def test_maps_that_do_not_exist_are_refused():
    def refused(match, make):
        @cute.jit
        def f(x: cute.Tensor):
            make(x)

        with pytest.raises((DSLBaseError, ValueError), match=match):
            f(aligned((32, 64)))

    view = cuda.create_tensor_map_tiled_from_view
    refused("needs a stride_order", lambda x: view(x, (8, 8)))
    refused("stride_order", lambda x: view(x, (8, 8), stride_order=(1, 1)))
    refused("has 24 bytes", lambda x: view(x, (8, 12), stride_order=(1, 0)))
    refused("at most the 32", lambda x: view(x, (8, 64), stride_order=(1, 0), swizzle="s32b"))
    refused("box_dims", lambda x: view(x, (8, 512), stride_order=(1, 0)))
    refused("global_strides", lambda x: cuda.create_tensor_map_tiled(0, kiln.Float16, [8, 8], [], [8, 8]))
    refused("no TensorMapSwizzle", lambda x: view(x, (8, 8), stride_order=(1, 0), swizzle=3))
    how = {"swizzle": "s128b_atom_64b", "traversal_strides": (9, 1), "tma_format": 99, "oob_fill": "zero"}
    how |= {"interleave": "i8b", "l2_promotion": 64}
    said = ["Kiln encodes", "traversal_strides", "TensorMapDataFormat", "FloatOOBFill", "Interleave", "L2Promotion"]
    for name, match in zip(how, said, strict=True):
        refused(match, lambda x, name=name: view(x, (8, 8), stride_order=(1, 0), **{name: how[name]}))
    refused("a numeric type", lambda x: cuda.create_tensor_map_tiled(0, int, [8, 8], [1], [8, 8]))
    images = [16, 8, 8, 1], [2, 16, 128]
    refused("the corners", lambda x: cuda.create_tensor_map_im2col(0, kiln.Float16, *images, [-1], [-1], 16, 32))
    refused(
        "pixels_per_column", lambda x: cuda.create_tensor_map_im2col(0, kiln.Float16, *images, [0, 0], [0, 0], 16, 0)
    )


def test_default_formats_of_narrow_types():
    """Elements of less than a byte take a byte of shared memory each; types that hold several elements are packed."""

    @cute.jit
    def f(x: cute.Tensor):
        def made(dtype, box, pitch, **how):
            strides = [pitch // 16]
            return cuda.create_tensor_map_tiled(x.iterator.toint(), dtype, [128, 8], strides, [box, 8], **how)

        padded, packed = made(kiln.Float4E2M1FN, 128, 64), made(kiln.Float4E2M1FN, 128, 64, tma_format=2)
        assert (padded.shared_storage_bytes, padded.global_tx_bytes()) == (1024, 512)
        assert (packed.shared_storage_bytes, packed.global_tx_bytes()) == (512, 512)
        six = made(kiln.Float6E3M2FN, 128, 96)
        assert (six.shared_storage_bytes, six.global_tx_bytes(), six.shared_storage_dtype) == (1024, 768, kiln.Uint8)

    f(aligned((8, 128), np.uint8))


def test_the_address_of_a_map_is_not_taken_for_a_multiple_of_its_alignment():
    """The parameters of sm_90 start at 0x210 in their constant bank: `or` of an address and 8 * tid is no sum there."""
    case = random_case(0)
    memory = np.zeros(case.elements, getattr(ml_dtypes, TYPES[case.dtype][0], TYPES[case.dtype][0]))
    ptx = compile_for(program(case), memory, np.zeros((4, 16), np.int64), options="--keep-ptx").__ptx__
    assert ptx.count(".param .align 128 .b8") == 4
    assert "or.b64" not in ptx
    assert ptx.count("ld.param.b64") - 2 == 4  # words of the four maps, besides pointer and stride of `out`


def test_types_of_elements_by_the_drivers_numbers():
    kinds = cuda.TensorMapDataType
    assert cuda.get_dsl_type_to_tensormap_type(kiln.BFloat16) is kinds.bfloat16 == 9
    assert cuda.get_dsl_type_to_tensormap_type(kiln.Float8E4M3FN) is kinds.uint8
    assert [cuda.get_tensormap_type_to_dsl_type(kind) for kind in (kinds.tfloat32_ftz, kinds.f416u6_align16b)] == [
        kiln.TFloat32,
        kiln.Float6E3M2FN,
    ]
    for kind in kinds:
        dtype = cuda.get_tensormap_type_to_dsl_type(kind)
        assert cuda.get_tensormap_type_to_dsl_type(cuda.get_dsl_type_to_tensormap_type(dtype)) is dtype
    with pytest.raises(kiln.DSLUserCodeTypeError, match="no elements of type Int128"):
        cuda.get_dsl_type_to_tensormap_type(kiln.Int128)
