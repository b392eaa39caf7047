"""Tensor memory and MMAs of Blackwell by primitives, on the CPU target and in PTX for sm_100a."""

from __future__ import annotations

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.experimental import cuda
from kiln.experimental import primitives as prims

N, BYTES = 16, 32
"""Columns of D; the bytes of a row of A and B: 16 elements of f16, 32 of e4m3."""


@cute.kernel
def products(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    """Compute A B of f16, then of the same bytes as e4m3 with scale factors of 1, and copy A to tensor memory."""
    tx, warp = arch.thread_idx()[0], arch.warp_idx()
    near_a = kiln.Array(kiln.Uint8, 128 * BYTES, space=kiln.AddressSpace.smem, alignment=128)
    near_b = kiln.Array(kiln.Uint8, N * BYTES, space=kiln.AddressSpace.smem, alignment=128)
    holder = kiln.Array(kiln.Int32, 1, space=kiln.AddressSpace.smem)
    bar = kiln.Array(kiln.Int64, 1, space=kiln.AddressSpace.smem)
    for row in kiln.range_constexpr(2):  # 8 rows of 16 bytes lie together; pieces of a row are 128 bytes apart
        for byte in kiln.range_constexpr(16):
            near_a[tx // 8 * 256 + row * 128 + tx % 8 * 16 + byte] = a[tx, 16 * row + byte]
            if tx < N:
                near_b[tx // 8 * 256 + row * 128 + tx % 8 * 16 + byte] = b[tx, 16 * row + byte]
    if tx == 0:
        prims.mbarrier_init(bar, 1)
    prims.fence_mbarrier_init()
    prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space=prims.SharedSpace.shared_cta)
    if warp == 0:
        prims.tcgen05_alloc(holder, 64, group=prims.CTAGroup.CTA_1)
        prims.tcgen05_relinquish_alloc_permit()
    prims.barrier_cta_sync(0)
    base = prims.TmemAddr(holder[0])
    d, d2, scales, copied = base, base + N, base + 2 * N, base + 2 * N + 8
    mine = prims.make_tmem_ptr_from_warp_row_col(scales, warp, scales.col_id, kiln.Int32)
    prims.tcgen05_st("32x32b", mine, kiln.Vector.from_elements((0x7F7F7F7F,) * 8, kiln.Int32))
    prims.tcgen05_wait(prims.Tcgen05Wait.STORE)
    prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
    prims.barrier_cta_sync(0)
    prims.tcgen05_fence("after_thread_sync")
    if warp == 0:
        desc_a = prims.Tcgen05SmemDesc.build(near_a, leading_byte_offset=128, stride_byte_offset=256)
        desc_b = prims.Tcgen05SmemDesc.build(near_b, 128, 256)
        half = prims.Tcgen05InstrDesc.build(c_dtype=kiln.Float32, n_dim=N, m_dim=128)
        eight = prims.Tcgen05MxInstrDesc.build(
            a_dtype=kiln.Float8E4M3FN, b_dtype=kiln.Float8E4M3FN, scale_format=1, n_dim=N, m_dim=128
        )
        if prims.elect_sync():
            where = prims.make_tmem_ptr(d, kiln.Float32)
            for again in kiln.range_constexpr(2):
                prims.tcgen05_mma(
                    prims.Tcgen05MMAKind.F16, prims.CTAGroup.CTA_1, where, desc_a, desc_b, half, again > 0
                )
            scale = prims.make_tmem_ptr(scales, kiln.Int32)
            prims.tcgen05_mma_block_scale(
                prims.MMABlockScaleKind.MXF8F6F4, "cta_1", d2.as_ptr(kiln.Float32), desc_a, desc_b, eight, False, scale,
                scale,
            )  # fmt: skip
            shape, multicast = prims.S2TCopyMode.S2T_128x128b
            prims.tcgen05_cp(shape, prims.make_tmem_ptr(copied, kiln.Int32), desc_a, multicast=multicast)
            prims.tcgen05_commit(bar)
    while not prims.mbarrier_try_wait_parity(bar, 0):
        pass
    prims.tcgen05_fence("after_thread_sync")
    for part in kiln.range_constexpr(3):
        start = (d, d2, copied)[part]
        count = 4 if part == 2 else N
        place = prims.make_tmem_ptr(prims.TmemAddr.from_row_col(32 * warp, start.col_id), kiln.Float32)
        found = prims.tcgen05_ld(prims.Tcgen05LdStShape.SHAPE_32X32B, place, num=count)
        prims.tcgen05_wait("load")
        for column in kiln.range_constexpr(count):
            out[part, tx, column] = found[column]
    prims.tcgen05_fence("before_thread_sync")
    prims.barrier_cta_sync(0)
    if warp == 0:
        prims.tcgen05_dealloc(prims.make_tmem_ptr(holder[0], kiln.Int8), 64)


@cute.jit
def main(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    products(a, b, out).launch(grid=1, block=128)


def test_products_and_tensor_memory():
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 0x3C, (rows, BYTES), dtype=np.uint8) for rows in (128, N))
    out = np.zeros((3, 128, N), np.float32)
    with kiln.target("cpu"), kiln.sanitize():
        main(a, b, out)
    half = [x.view(np.float16).astype(np.float64) for x in (a, b)]
    np.testing.assert_allclose(out[0], 2 * half[0] @ half[1].T, rtol=1e-5)
    eight = [_e4m3(x) for x in (a, b)]
    np.testing.assert_allclose(out[1], eight[0] @ eight[1].T, rtol=1e-5)
    np.testing.assert_array_equal(out[2, :, :4].view(np.uint8), a[:, :16])


@cute.kernel
def moved_addresses(out: cute.Tensor):
    """Write columns 5 elements and twice 7 on from column 64, of types of several widths."""
    for i, dtype in enumerate((kiln.Int8, kiln.Float16, kiln.Float32)):
        start = prims.make_tmem_ptr(kiln.Int32(3 << 16 | 64), dtype)
        out[i, 0] = (start.data_ptr() + 5).toint()
        out[i, 1] = start.subview(out[0, 0] * 0 + 7).subview(7).data_ptr().toint()


def test_pointers_into_tensor_memory_move_by_columns():
    out = np.zeros((3, 2), np.int32)
    with kiln.target("cpu"):
        cute.jit(lambda out: moved_addresses(out).launch(grid=1, block=1))(out)
    assert (out == [[3 << 16 | 69, 3 << 16 | 78]] * 3).all()


@cute.kernel
def shifted_products(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    """Compute A B in columns 0 to 15 with a shift of A after it, then the product of what A is then in 16 to 31."""
    tx, warp = arch.thread_idx()[0], arch.warp_idx()
    near_b = kiln.Array(kiln.Float16, N * 16, space=kiln.AddressSpace.smem, alignment=128)
    holder = kiln.Array(kiln.Int32, 1, space=kiln.AddressSpace.smem)
    bar = kiln.Array(kiln.Int64, 1, space=kiln.AddressSpace.smem)
    if tx < N:
        for k in kiln.range_constexpr(16):
            near_b[tx // 8 * 128 + k // 8 * 64 + tx % 8 * 8 + k % 8] = b[tx, k]
    if tx == 0:
        prims.mbarrier_init(bar, 1)
    prims.fence_mbarrier_init()
    prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space=prims.SharedSpace.shared_cta)
    if warp == 0:
        prims.tcgen05_alloc(holder, 64, group=prims.CTAGroup.CTA_1)
        prims.tcgen05_relinquish_alloc_permit()
    prims.barrier_cta_sync(0)
    base = prims.TmemAddr(holder[0])
    row = kiln.Vector.from_elements(tuple(a[tx, k] for k in range(16)), kiln.Float16).bitcast(kiln.Int32)
    prims.tcgen05_st("32x32b", prims.make_tmem_ptr_from_warp_row_col(base, warp, 2 * N, kiln.Int32), row)
    prims.tcgen05_wait(prims.Tcgen05Wait.STORE)
    prims.tcgen05_fence(prims.Tcgen05Fence.BEFORE_THREAD_SYNC)
    prims.barrier_cta_sync(0)
    prims.tcgen05_fence("after_thread_sync")
    if warp == 0:
        desc_b = prims.Tcgen05SmemDesc.build(near_b, 128, 256)
        half = prims.Tcgen05InstrDesc.build(c_dtype=kiln.Float32, n_dim=N, m_dim=128)
        if prims.elect_sync():
            there = (base + 2 * N).as_ptr(kiln.Float16)
            for n in kiln.range_constexpr(2):
                prims.tcgen05_mma(
                    prims.Tcgen05MMAKind.F16, prims.CTAGroup.CTA_1, (base + n * N).as_ptr(kiln.Float32), there, desc_b,
                    half, False, a_shift=n == 0,
                )  # fmt: skip
            prims.tcgen05_commit(bar)
    while not prims.mbarrier_try_wait_parity(bar, 0):
        pass
    prims.tcgen05_fence("after_thread_sync")
    place = prims.make_tmem_ptr(prims.TmemAddr.from_row_col(32 * warp, base.col_id), kiln.Float32)
    found = prims.tcgen05_ld(prims.Tcgen05LdStShape.SHAPE_32X32B, place, num=2 * N)
    prims.tcgen05_wait("load")
    for column in kiln.range_constexpr(2 * N):
        out[tx, column] = found[column]
    prims.tcgen05_fence("before_thread_sync")
    prims.barrier_cta_sync(0)
    if warp == 0:
        prims.tcgen05_dealloc(prims.make_tmem_ptr(holder[0], kiln.Int8), 64)


@cute.jit
def shifted_main(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
    shifted_products(a, b, out).launch(grid=1, block=128)


def test_a_shift_moves_rows_of_a_after_the_product():
    """Lane i gets lane i + 1, but for the last of each 32 lanes: so a B200 does it, says a public program."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (rows, 16)).astype(np.float16) for rows in (128, N))
    out = np.zeros((128, 2 * N), np.float32)
    with kiln.target("cpu"), kiln.sanitize():
        shifted_main(a, b, out)
    moved = np.where((np.arange(128) % 32 == 31)[:, None], a, np.roll(a, -1, axis=0))
    np.testing.assert_array_equal(out, np.hstack([x.astype(np.float32) @ b.astype(np.float32).T for x in (a, moved)]))


def _e4m3(codes: np.ndarray) -> np.ndarray:
    exponent, mantissa = codes.astype(np.int64) >> 3, codes & 7
    return np.where(exponent == 0, mantissa / 512, (1 + mantissa / 8) * 2.0 ** (exponent - 7))


@needs_ptxas
def test_ptx_of_tcgen05():
    arrays = np.zeros((128, BYTES), np.uint8), np.zeros((N, BYTES), np.uint8), np.zeros((3, 128, N), np.float32)
    ptx = compile_for(main, *(from_dlpack(x) for x in arrays), arch="sm_100a").artifacts["ptx"]
    for line in (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", "tcgen05.relinquish_alloc_permit.cta_group::1",
        "tcgen05.dealloc.cta_group::1.sync.aligned.b32", "tcgen05.mma.cta_group::1.kind::f16",
        "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale", "tcgen05.cp.cta_group::1.128x128b",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one", "tcgen05.ld.sync.aligned.32x32b.x16.b32",
        "tcgen05.st.sync.aligned.32x32b.x8.b32", "tcgen05.wait::ld.sync.aligned", "tcgen05.wait::st.sync.aligned",
        "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync",
    ):  # fmt: skip
        assert line in ptx, line


@cute.kernel
def of_enumerations(x: cute.Tensor):
    """Call each primitive that takes an enumeration which no other kernel here names."""
    near = kiln.Array(kiln.Int32, 512, space=kiln.AddressSpace.smem, alignment=1024)
    words = prims.ldmatrix(
        near, 2, prims.MMALayout.COL, shape=prims.LoadShape.M16N16, src_format=prims.LoadSrcFormat.B8
    )
    prims.stmatrix(near, words, prims.MMALayout.COL, shape=prims.StoreShape.M16N8)
    half = {"shape": prims.LoadShape.M8N16, "src_format": prims.LoadSrcFormat.B4X16_P64}
    prims.stmatrix(near, [prims.ldmatrix(near, 1, prims.MMALayout.ROW, **half)], prims.MMALayout.ROW)
    prims.red(prims.ReductionOp.MAX, prims.ReductionType.U32, x.iterator, 1, mem_order=prims.MemOrder.RELEASE)
    desc = prims.Tcgen05SmemDesc.build(near, 16, 1024, layout=prims.Tcgen05SmemSwizzle.SWIZZLE_128B)
    tf32 = prims.Tcgen05InstrDesc.build(
        c_dtype=kiln.Float32, a_dtype=kiln.TFloat32, b_dtype=kiln.TFloat32, n_dim=N, m_dim=128
    )
    fp4 = prims.Tcgen05MxOmmaInstrDesc.build(
        a_dtype=kiln.Float4E2M1FN, b_dtype=kiln.Float4E2M1FN, scale_format=0, n_dim=N, m_dim=128
    )
    prims.tcgen05_cp("128x128b", 0, desc, src_format=prims.Tcgen05CpSrcFormat.B6X16_P32)
    prims.tcgen05_mma(
        prims.Tcgen05MMAKind.TF32, prims.CTAGroup.CTA_1, 0, desc, desc, tf32, False, scale_input_d=3,
        collector_op=prims.Tcgen05MMACollectorOp.LASTUSE, write_disable_mask=(1, 2, 3, 4),
    )  # fmt: skip
    prims.tcgen05_mma_block_scale(
        prims.MMABlockScaleKind.MXF4NVF4, prims.CTAGroup.CTA_1, 0, desc, desc, fp4, False, 32, 64,
        scale_vec_size=prims.Tcgen05MMABlockScale.BLOCK16,
    )  # fmt: skip


@needs_ptxas
def test_members_of_enumerations_name_the_instructions():
    @cute.jit
    def main(x: cute.Tensor):
        of_enumerations(x).launch(grid=1, block=32)

    ptx = compile_for(main, from_dlpack(np.zeros(1, np.int32)), arch="sm_100a").artifacts["ptx"]
    for line in (
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8", "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b4x16_p64",
        "stmatrix.sync.aligned.m16n8.x2.trans.shared.b8", "red.release.gpu.max.u32",
        "tcgen05.cp.cta_group::1.128x128b.b8x16.b6x16_p32", "tcgen05.mma.cta_group::1.kind::tf32.collector::a::lastuse",
        "tcgen05.mma.cta_group::1.kind::mxf4nvf4.block_scale.block16",
    ):  # fmt: skip
        assert line in ptx, line


def test_descriptors_are_integers():
    """A branch chooses between a descriptor and an Int64; the result is an Int64."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        near = kiln.Array(kiln.Uint8, 64, space=kiln.AddressSpace.smem, alignment=16)
        made = kiln.Int64(5)
        if out[0] == 0:
            made = prims.Tcgen05SmemDesc.build(near, 16, 32)
        other = prims.Tcgen05SmemDesc.build(near, 16, 32).advance_start_address(32)
        out[1], out[2] = kiln.Int64(other - made), kiln.Int64(prims.Tcgen05InstrDesc.build(n_dim=16, m_dim=64))
        sixteen = kiln.Int32(16) + out[0].to(kiln.Int32)  # offsets may be numbers of the program
        moved = prims.Tcgen05SmemDesc.build(near, sixteen, kiln.Int32(32), base_offset=3)
        out[3] = kiln.Int64(moved - prims.Tcgen05SmemDesc.build(near, 16, 32, base_offset=3))

    @cute.jit
    def run(out: cute.Tensor):
        kernel(out).launch(grid=1, block=1)

    out = np.array([0, 0, 0, -1])
    with kiln.target("cpu"):
        run(out)
    assert out.tolist() == [0, 2, 2 << 17 | 4 << 24, 0]


def test_fields_of_descriptors():
    """What is built is read back, and lies at the bits that PTX says."""
    kinds = {"a_dtype": kiln.Float8E5M2, "b_dtype": kiln.Float8E4M3FN}

    @cute.kernel
    def kernel(out: cute.Tensor):
        near = kiln.Array(kiln.Uint8, 64, space=kiln.AddressSpace.smem, alignment=128)
        made = prims.Tcgen05InstrDesc.build(
            3, 1, 1, c_dtype=kiln.Float32, a_negate=1, b_major=1, n_dim=24, m_dim=64, max_shift=2, **kinds
        )
        scaled = prims.Tcgen05MxInstrDesc.build(
            b_sf_id=2, a_sf_id=1, scale_format=1, b_negate=1, a_major=1, n_dim=32, m_dim=128, k_dim=1, **kinds
        )
        memory = prims.Tcgen05SmemDesc.build(near, 48, 512, base_offset=5, layout=6)
        found = (
            made.sparse_id2, made.sparse_flag, made.saturate, made.c_format, made.a_format, made.b_format, made.a_negate,
            made.b_negate, made.a_major, made.b_major, made.n_dim, made.m_dim, made.max_shift, scaled.b_sf_id,
            scaled.scale_format, scaled.a_sf_id, scaled.k_dim, scaled.b_negate, scaled.a_major, scaled.m_dim,
            memory.leading_byte_offset, memory.stride_byte_offset, memory.version, memory.base_offset,
            memory.layout_type, made, scaled,
        )  # fmt: skip
        for i in kiln.range_constexpr(len(found)):
            out[i] = kiln.Int32(found[i])

    @cute.jit
    def run(out: cute.Tensor):
        kernel(out).launch(grid=1, block=1)

    out = np.zeros(27, np.int32)
    with kiln.target("cpu"):
        run(out)
    assert out[:25].tolist() == [3, 1, 1, 1, 1, 0, 1, 0, 0, 1, 24, 64, 2, 2, 1, 1, 1, 1, 1, 128, 48, 512, 1, 5, 6]
    bits = 3 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 7 | 1 << 13 | 1 << 16 | 3 << 17 | 4 << 24 | 2 << 30
    assert int(out[25]) & 0xFFFFFFFF == bits
    assert (
        int(out[26]) & 0xFFFFFFFF
        == 2 << 4 | 1 << 7 | 1 << 14 | 1 << 15 | 4 << 17 | 1 << 23 | 8 << 24 | 1 << 29 | 1 << 31
    )


@needs_ptxas
@pytest.mark.parametrize(("mode", "rows"), [("tile_gather4", 5), ("tile_scatter4", 5)])
def test_rows_are_gathered_and_scattered(mode, rows):
    @cute.kernel
    def kernel(desc: kiln.GridConstant[cuda.TensorMap]):
        near = kiln.Array(kiln.Int32, 128, space=kiln.AddressSpace.smem, alignment=128)
        bar = kiln.Array(kiln.Int64, 1, space=kiln.AddressSpace.smem)
        if kiln.const_expr(mode == "tile_gather4"):
            prims.cp_async_bulk_tensor_shared_cta_global(near, desc, tuple(range(rows)), bar, mode=mode)
        else:
            prims.cp_async_bulk_tensor_global_shared_cta(desc, near, tuple(range(rows)), mode=mode)

    @cute.jit
    def main(x: cute.Tensor):
        desc = cuda.create_tensor_map_tiled_from_view(x, box_dims=(1, 32), stride_order=(1, 0))
        kernel(desc).launch(grid=1, block=32)

    ptx = compile_for(main, from_dlpack(np.zeros((8, 32), np.int32), assumed_align=16), arch="sm_100a").artifacts["ptx"]
    assert mode.replace("_", "::") in ptx


@pytest.mark.parametrize(("group", "bits"), [(0, 0), (3, 3 << 29 | 3 << 4)])
def test_scale_factor_ids(group, bits):
    @cute.kernel
    def kernel(out: cute.Tensor):
        types = {"a_dtype": kiln.Float4E2M1FN, "b_dtype": kiln.Float4E2M1FN}
        made = prims.Tcgen05MxOmmaInstrDesc.build(**types, scale_format=0, n_dim=8, m_dim=128)
        out[0] = kiln.Int32(made.set_sf_ids(a_sf_id=group, b_sf_id=group))

    @cute.jit
    def run(out: cute.Tensor):
        kernel(out).launch(grid=1, block=1)

    out = np.zeros(1, np.int32)
    with kiln.target("cpu"):
        run(out)
    assert int(out[0]) & 0xFFFFFFFF == 1 << 7 | 1 << 10 | 1 << 17 | 8 << 24 | bits
