"""Loads, stores, inline PTX and TMA primitives with orders, cache operators and modes; names of enumerations."""

from __future__ import annotations

import enum

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLBaseError
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.experimental import cuda
from kiln.experimental import primitives as prims


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def test_every_name_loads_from_its_module():
    for name, module in prims._PLACES.items():
        value = getattr(prims, name)
        assert value.__name__ == name or name in ("BarrierReduction", "CpAsyncModifier", "SaturationModeKind")
        if isinstance(value, type) and issubclass(value, enum.Enum):
            assert module.endswith(("names", "tcgen05"))


@cute.kernel
def of_accesses(x: kiln.Array, halves: cute.Tensor, out: kiln.Array):
    t = arch.thread_idx()[0]
    where = x.subview(4 * t)
    quad = prims.load_ext(where, count=4, cache_modifier=prims.LoadCacheModifier.CG)
    policy = kiln.Int64(0x12F0000000000000)
    near = kiln.Array(kiln.Int32, 128, space=kiln.AddressSpace.smem, alignment=16)
    prims.store_ext(quad, near.subview(4 * t))
    one = prims.load_ext(where, order=prims.MemOrder.ACQUIRE, scope=prims.MemScope.GPU)
    one += prims.load_ext(where, order=prims.MemOrder.VOLATILE) + prims.load_ext(where, order="weak")
    one += prims.load_ext(where, order="constant") + prims.load_ext(where, order="mmio")
    same = prims.match_sync(0xFFFFFFFF, t // 8, prims.MatchSync.ANY)
    one += (kiln.Uint32(same) >> t // 8 * 8).to(kiln.Int32) - 0xFF
    hinted = prims.load_ext(where, count=2, l2_cache_hint=policy, cache_modifier="cs")
    half = prims.load_ext(
        halves.iterator + t, dtype=kiln.Float16, l2_cache_hint=policy, evict=prims.L1EvictKind.EVICT_FIRST
    )
    prims.prefetch_l1(x)
    prims.prefetch_l2(x)
    prims.prefetchu(x)
    prims.ptx_add_comment("a comment of $the {program}")
    prims.store_ext(prims.load_ext(near.subview(4 * t), count=4).value, out.subview(8 * t))
    prims.store_ext(one, out.subview(8 * t + 4), order=prims.MemOrder.RELEASE, scope=prims.MemScope.GPU)
    prims.store_ext(hinted, out.subview(8 * t + 6), l2_cache_hint=policy)
    prims.store_ext(
        kiln.Int32(half), out.subview(8 * t + 5), cache_modifier=prims.StoreCacheModifier.WT, l2_cache_hint=policy
    )


@cute.jit
def accesses(x: cute.Tensor, halves: cute.Tensor, out: cute.Tensor):
    of_accesses(x, halves, out).launch(grid=1, block=32)


def aligned(*values):
    return [from_dlpack(value, assumed_align=16) for value in values]


def memory(shape, dtype):
    count = int(np.prod(shape))
    raw = np.zeros(count * np.dtype(dtype).itemsize + 16, np.uint8)
    return raw[-raw.ctypes.data % 16 :][: count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def test_loads_and_stores():
    x, halves, out = memory(128, np.int32), memory(32, np.float16), memory((32, 8), np.int32)
    x[:] = np.random.default_rng(0).integers(-1000, 1000, 128)
    halves[:] = np.arange(32)
    with kiln.sanitize():
        accesses(*aligned(x, halves, out))
    rows = x.reshape(32, 4)
    np.testing.assert_array_equal(out[:, :4], rows)
    np.testing.assert_array_equal(out[:, 4], 5 * rows[:, 0])
    np.testing.assert_array_equal(out[:, 5], halves)
    np.testing.assert_array_equal(out[:, 6:], rows[:, :2])


@cute.kernel
def of_inline_ptx(x: cute.Tensor, out: cute.Tensor):
    t = arch.thread_idx()[0]
    near = kiln.Array(kiln.Int32, 32, space=kiln.AddressSpace.smem)
    near[t] = 7
    prims.inline_ptx_hl("st.shared.b32 [{$r0}], {$r1};", read_only_args=[near.data_ptr() + t, x[t]], pred=t < 20)
    got = prims.inline_ptx_hl(
        "ld.shared.b32 {$w0}, [{$r0}];", write_only_types=[kiln.Int32], read_only_args=[near.subview(t)]
    )
    far = prims.inline_ptx_hl(
        "ld.global.b32 {$w0}, [{$r0}];", write_only_types=[kiln.Int32], read_only_args=[x.iterator + t]
    )
    out[t] = got + prims.inline_ptx("add.s32 {$w0}, {$r0}, 1;", write_only_types=[kiln.Int32], read_only_args=[far])


@cute.jit
def inline_ptx(x: cute.Tensor, out: cute.Tensor):
    of_inline_ptx(x, out).launch(grid=1, block=32)


def test_inline_ptx_takes_addresses():
    x, out = np.arange(100, 132, dtype=np.int32), np.zeros(32, np.int32)
    with kiln.sanitize():
        inline_ptx(x, out)
    np.testing.assert_array_equal(out, np.where(np.arange(32) < 20, x, 7) + x + 1)


@cute.kernel
def of_boxes(map_: kiln.GridConstant[cuda.TensorMap]):
    t = arch.thread_idx()[0]
    tile = kiln.Array(kiln.Int32, (4, 8), space=kiln.AddressSpace.smem, alignment=128)
    tile[t // 8, t % 8] = t
    prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space="shared_cta")
    prims.bar_warp_sync()
    if t == 0:
        prims.cp_async_bulk_tensor_prefetch(map_, (8, 4), mode=prims.TMALoadMode.TILE)
        prims.cp_async_bulk_tensor_reduce(map_, tile, prims.TMARedux.ADD, (8, 4), mode=prims.TMAStoreMode.TILE)
        prims.cp_async_bulk_tensor_reduce(map_, tile, "max", (0, 0), l2_cache_hint=kiln.Int64(0x12F0000000000000))
        prims.cp_async_bulk_commit_group()
        prims.cp_async_bulk_wait_group(0)


@cute.jit
def boxes(x: cute.Tensor):
    of_boxes(cuda.create_tensor_map_tiled_from_view(x, (4, 8))).launch(grid=1, block=32)


def test_boxes_are_reduced():
    x = memory((8, 16), np.int32)
    x[:] = np.arange(128).reshape(8, 16) % 20
    tile = np.arange(32).reshape(4, 8)
    wanted = x.copy()
    wanted[4:, 8:] += tile
    wanted[:4, :8] = np.maximum(wanted[:4, :8], tile)
    with kiln.sanitize():
        boxes(from_dlpack(x, assumed_align=16))
    np.testing.assert_array_equal(x, wanted)


@needs_ptxas
def test_gpus_have_them():
    arguments = aligned(memory(128, np.int32), memory(32, np.float16), memory((32, 8), np.int32))
    text = compile_for(accesses, *arguments).__ptx__
    for part in (
        "ld.cg.v2.b64", "ld.acquire.gpu.b32", "ld.volatile.b32", "ld.weak.b32",
        "ld.mmio.relaxed.sys.b32", "ld.cs.L2::cache_hint.v2.b32", "ld.L1::evict_first.L2::cache_hint.b16",
        "prefetch.L1", "prefetch.L2", "prefetchu.L1", "// a comment of the program",
        "st.L2::cache_hint.v2.b32", "st.wt.L2::cache_hint.b32", "st.release.gpu.b32",
    ):  # fmt: skip
        assert part in text
    compile_for(inline_ptx, np.zeros(32, np.int32), np.zeros(32, np.int32))
    text = compile_for(boxes, from_dlpack(memory((8, 16), np.int32), assumed_align=16)).__ptx__
    assert "cp.async.bulk.prefetch.tensor.2d" in text
    assert "cp.reduce.async.bulk.tensor.2d.global.shared::cta.max" in text


@pytest.mark.parametrize(
    ("match", "call"),
    [
        ("order is 'later'", lambda x, near: prims.load_ext(x, order="later")),
        ("cop is", lambda x, near: prims.load_ext(x, cache_modifier="lru")),
        ("one access", lambda x, near: prims.load_ext(x, count=8)),
        ("l2_cache_hint", lambda x, near: prims.load_ext(x, count=8, l2_cache_hint=1)),
        ("in shared memory with l2_cache_hint", lambda x, near: prims.store_ext(1, near, l2_cache_hint=1)),
        ("takes a Pointer or an Array", lambda x, near: prims.load_ext(7)),
        ("takes a Pointer or an Array", lambda x, near: prims.prefetch_l1(7)),
        ("takes a Pointer or an Array", lambda x, near: prims.prefetch_l2(7)),
        ("takes a Pointer or an Array", lambda x, near: prims.prefetchu(7)),
        ("has no operand", lambda x, near: prims.inline_ptx_hl("mov.b32 {$w0}, {$r0};")),
        ("mode is", lambda x, near: prims.cp_async_bulk_tensor_prefetch(x, (0, 0), mode=prims.TMALoadMode.TILE_GATHER4)),
        ("im2col_offsets", lambda x, near: prims.cp_async_bulk_tensor_prefetch(x, (0, 0), mode="im2col")),
        ("red_kind is 'mul'", lambda x, near: prims.cp_async_bulk_tensor_reduce(x, near, "mul", (0, 0))),
    ],
)  # fmt: skip
def test_what_they_do_not_take_is_refused(match, call):
    @cute.kernel
    def kernel(x: cute.Tensor):
        call(kiln.make_array_view(x), kiln.Array(kiln.Int32, 4, space=kiln.AddressSpace.smem))

    @cute.jit
    def main(x: cute.Tensor):
        kernel(x).launch(grid=1, block=1)

    with pytest.raises(DSLBaseError, match=match):
        main(np.zeros(32, np.int32))
