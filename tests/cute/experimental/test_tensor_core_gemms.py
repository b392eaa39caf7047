"""GEMMs with `cute.experimental`: tiles by TMA, MMAs of sm_100, epilogues, with maps of the launch and of the kernel."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nvidia_testing import needs_ptxas

import kiln
from kiln import cute, utils
from kiln.cute import experimental as ext
from kiln.cute.experimental.host_runtime import QueryDeviceWorkspaceFunc
from kiln.cute.experimental.program import WorkspaceNeeded
from kiln.cute.nvgpu import tcgen05
from kiln.cute.runtime import from_dlpack
from kiln.utils import blackwell_helpers as sm100
from kiln.utils import blockscaled_layout

Kind = ext.OperationTypeEnum
F16, F32 = kiln.Float16, kiln.Float32
SMEM, TMEM, RMEM = cute.AddressSpace.smem, cute.AddressSpace.tmem, cute.AddressSpace.rmem
TILE = (128, 32, 32)
STAGES, STORES = 2, 2
WARPS = 6


def aligned(shape: Any, dtype: Any = np.float16, seed: int | None = None) -> np.ndarray:
    """An array at an address that TMA takes; small integers, or zeros."""
    memory = np.zeros(int(np.prod(shape)) + 128, dtype)
    start = -memory.ctypes.data % 128 // memory.itemsize
    found = memory[start : start + int(np.prod(shape))].reshape(shape)
    if seed is not None:
        found[:] = np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)
    return found


def tensor(x: np.ndarray) -> Any:
    """A row-major (rows, columns, 1) argument of dynamic layout."""
    made = from_dlpack(x, assumed_align=16).mark_layout_dynamic(leading_dim=1)
    return made.mark_compact_shape_dynamic(mode=1, divisibility=8)


class Gemm:
    """D = A B^T with one tile for each CTA; `pair`: two CTAs compute a tile of 256 rows, with multicast."""

    def __init__(self, pair: bool = False) -> None:
        self.pair, self.ctas = pair, 2 if pair else 1
        self.tile = (TILE[0] * self.ctas, *TILE[1:])

    @ext.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
        tiles = cute.tiled_divide(d, (TILE[0], TILE[1]))
        grid = (cute.round_up(tiles.shape[1], self.ctas), tiles.shape[2], 1)
        self.kernel(a, b, d).launch(grid=grid, block=32 * WARPS, cluster=(self.ctas, 1, 1))

    @ext.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
        majors = [utils.LayoutEnum.from_tensor(x).mma_major_mode() for x in (a, b)]
        layout = utils.LayoutEnum.from_tensor(d)
        mma = sm100.make_trivial_tiled_mma(F16, *majors, F32, tcgen05.CtaGroup(self.ctas), self.tile[:2])
        m, n, _ = cute.arch.block_idx()
        thread, warp = cute.arch.thread_idx()[0], cute.arch.make_warp_uniform(cute.arch.warp_idx())
        v = m % self.ctas
        cluster = cute.tiled_divide(cute.make_layout((self.ctas, 1, 1)), (self.ctas,))

        a_tiles = cute.zipped_divide(a, (TILE[0], TILE[2]))[(None, None), (m, None)]
        b_tiles = cute.zipped_divide(b, (TILE[1] // self.ctas, TILE[2]))[(None, None), (n * self.ctas + v, None)]
        d_tile = cute.zipped_divide(d, TILE[:2])[(None, None), (m, n)]
        buffer_a = ext.allocate(F16, SMEM, sm100.make_smem_layout_a(mma, self.tile, F16, STAGES), alignment=1024)
        buffer_b = ext.allocate(F16, SMEM, sm100.make_smem_layout_b(mma, self.tile, F16, STAGES), alignment=1024)
        accs = ext.allocate(F32, TMEM, ext.make_tmem_layout_acc(mma, self.tile, 1), alignment=16, is2cta=self.pair)
        epi = sm100.compute_epilogue_tile_shape(TILE, self.pair, layout, F16)
        buffer_d = ext.allocate(F16, SMEM, sm100.make_smem_layout_epi(F16, layout, epi, STORES), alignment=1024)
        acc = cute.flat_divide(accs[(None, None), 0, 0, 0], epi)
        load = sm100.get_tmem_load_op(TILE, layout, F16, F32, epi, self.pair)
        t2r = tcgen05.make_tmem_copy(load, acc[None, None, 0, 0])
        r2s = cute.make_tiled_copy_D(cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), F16), t2r)
        parts = cute.flat_divide(d_tile, epi)
        registers = ext.make_t2r_rmem_layout(t2r, parts, thread)
        loaded, stored = ext.allocate(F32, RMEM, registers), ext.allocate(F16, RMEM, registers)

        kind = Kind.SM100_MMA_2SM_SS if self.pair else Kind.SM100_MMA_1SM_SS
        if kiln.const_expr(self.pair):
            tma = Kind.SM100_TMA_LOAD_2SM_MULTICAST
            full = ext.TMAToUMMAPipeline.create_with_mask(
                num_stages=STAGES, tma_operation_type=tma, mma_operation_type=kind, cluster_layout_vmnk=cluster
            )
        else:
            full = ext.TMAToUMMAPipeline.create(num_stages=STAGES, mma_operation_type=kind)
        done = ext.UMMAtoAsyncPipeline.create(
            num_stages=1, mma_operation_type=kind, consumer=Kind.SM100_COPY_T2R, consumer_arv_count=128 * self.ctas,
            cluster_layout_vmnk=cluster,
        )  # fmt: skip
        out = ext.TMAStorePipeline(stages=STORES, arv_count=128, barrier_id=1, tma_warp_id=0)
        steps = cute.size(a_tiles, mode=[2])
        if warp == 5:
            for k in kiln.range(steps):
                token, stage = full.producer_acquire_and_get_stage()
                mbar = ext.get_mbarrier(token)
                for name, tiles, buffer, mode in (("A", a_tiles, buffer_a, 2), ("B", b_tiles, buffer_b, 1)):
                    v_map = ext.get_cta_v_map_ab(a if name == "A" else b, self.tile, mma, name)
                    source, target = tiles[None, None, k], buffer[None, None, None, stage]
                    if kiln.const_expr(self.pair):
                        ext.tma_load_multicast(
                            source, target, mbar, vmnk_layout=cluster, cta_v_map=v_map, tma_operation_type=tma,
                            multicast_mode=mode,
                        )  # fmt: skip
                    else:
                        ext.tma_load(source, target, mbar, cta_v_map=v_map)
                if v == 0:
                    full.producer_commit()
                full.producer_state = ext.pipeline_advance_iterator(full.raw_pipeline, full.producer_state)
            full.producer_tail()
        if warp == 4 and v == 0:
            atom = cute.make_mma_atom(mma.op)
            atom.set(tcgen05.Field.ACCUMULATE, False)
            done.producer_acquire()
            for _ in kiln.range(steps):
                _, stage = full.consumer_wait_and_get_stage()
                for k in kiln.range_constexpr(TILE[2] // 16):
                    operands = [x[None, None, k, stage] for x in (buffer_a, buffer_b)]
                    ext.dot(atom, *(cute.append_ones(x, up_to_rank=3) for x in operands), accs[None, None, None, 0])
                    atom.set(tcgen05.Field.ACCUMULATE, True)
                full.consumer_release_and_advance()
            done.producer_commit_and_advance()
        if warp < 4:
            done.consumer_wait()
            for i in range(cute.size(acc, mode=[3])):
                ext.partition_and_copy(t2r.get_slice(thread), acc[None, None, 0, i], loaded)
                stored.store(loaded.load().to(F16))
                out.acquire_sync()
                buffer = buffer_d[None, None, out.get_index()]
                ext.partition_and_copy(r2s.get_slice(thread), stored, buffer)
                out.commit_sync()
                if warp == 0:
                    ext.tma_store(buffer, parts[None, None, 0, i], cta_v_map=ext.get_cta_v_map_c(d, epi))
                out.release_advance()
            out.tail()
            done.consumer_release_and_advance()


@pytest.mark.parametrize("pair", [False, True])
def test_gemm_of_ragged_matrices(pair):
    """One CTA without, and a pair with the sanitizer, which looks at a pair's arrivals in the other CTA."""
    m, n, k = (136, 40, 72) if not pair else (264, 40, 72)
    a, b, d = aligned((m, k), seed=1), aligned((n, k), seed=2), aligned((m, n))
    arguments = [tensor(x) for x in (a, b, d)]
    with kiln.target("cpu"), kiln.sanitize() if pair else nullcontext():
        ext.compile(Gemm(pair), *arguments)(*arguments)
    np.testing.assert_array_equal(d, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16))


class Products:
    """Several products with the loops of the package; the kernel loads the addresses of the matrices."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape

    def tensor(self, addresses: Any, number: Any, rows: int, columns: int) -> Any:
        pointer = cute.make_ptr(F16, addresses[number], mem_space=cute.AddressSpace.gmem, assumed_align=16)
        return cute.make_tensor(pointer, cute.make_layout((rows, columns), stride=(columns, 1)))

    @ext.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
        m, n, _ = self.shape
        self.kernel(a, b, d).launch(grid=(cute.ceil_div(m, TILE[0]), cute.ceil_div(n, TILE[1]), 1), block=32 * WARPS)

    @ext.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
        (rows, columns, depth), K = self.shape, tcgen05.OperandMajorMode.K
        mma = sm100.make_trivial_tiled_mma(F16, K, K, F32, tcgen05.CtaGroup.ONE, TILE[:2])
        m, n, _ = cute.arch.block_idx()
        warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
        buffer_a = ext.allocate(F16, SMEM, sm100.make_smem_layout_a(mma, TILE, F16, STAGES), alignment=1024)
        buffer_b = ext.allocate(F16, SMEM, sm100.make_smem_layout_b(mma, TILE, F16, STAGES), alignment=1024)
        accs = ext.allocate(F32, TMEM, ext.make_tmem_layout_acc(mma, TILE, 2), alignment=16)
        kind = Kind.SM100_MMA_1SM_SS
        full = ext.TMAToUMMAPipeline.create(num_stages=STAGES, mma_operation_type=kind)
        done = ext.UMMAtoAsyncPipeline.create(
            num_stages=2, mma_operation_type=kind, consumer=Kind.SM100_COPY_T2R, consumer_arv_count=128
        )
        out = ext.TMAStorePipeline(stages=STORES, arv_count=128, barrier_id=1, tma_warp_id=0)
        steps = cute.ceil_div(depth, TILE[2])
        for i in range(cute.size(a)):
            if warp == 5:
                left, right = self.tensor(a, i, rows, depth), self.tensor(b, i, columns, depth)
                a_tiles = cute.zipped_divide(left, (TILE[0], TILE[2]))[(None, None), (m, None)]
                b_tiles = cute.zipped_divide(right, (TILE[1], TILE[2]))[(None, None), (n, None)]
                maps = [ext.get_cta_v_map_ab(x, TILE, mma, name) for x, name in ((left, "A"), (right, "B"))]
                for k in kiln.range(steps):
                    token, stage = full.producer_acquire_and_get_stage()
                    mbar = ext.get_mbarrier(token)
                    ext.tma_load(a_tiles[None, None, k], buffer_a[None, None, None, stage], mbar, cta_v_map=maps[0])
                    ext.tma_load(b_tiles[None, None, k], buffer_b[None, None, None, stage], mbar, cta_v_map=maps[1])
                    full.producer_commit_and_advance()
            if warp == 4:
                _, stage = done.producer_acquire_and_get_stage()
                full, _ = ext.mainloop_mma(
                    mma, buffer_a, buffer_b, accs[None, None, None, stage], 0, steps, TILE[2] // 16, full, full
                )
                done.producer_commit_and_advance()
            if warp < 4:
                _, stage = done.consumer_wait_and_get_stage()
                acc, result = accs[(None, None), 0, 0, stage], self.tensor(d, i, rows, columns)
                out = ext.epilogue_tma_store(TILE, False, acc, result, (m, n), out, 0, lambda x: x * 2)
                done.consumer_release_and_advance()


def addresses(arrays: list[np.ndarray]) -> Any:
    return from_dlpack(np.array([x.ctypes.data for x in arrays], np.int64), assumed_align=8)


def test_kernels_write_maps_of_tensors_that_only_they_know():
    """One step along K for each product: a map is written for every stage of the pipeline."""
    shape, count = (136, 40, 24), 5
    m, n, k = shape
    a = [aligned((m, k), seed=i) for i in range(count)]
    b = [aligned((n, k), seed=9 + i) for i in range(count)]
    d = [aligned((m, n)) for _ in range(count)]
    arguments = [addresses(x) for x in (a, b, d)]
    program = Products(shape)
    with kiln.target("cpu"), kiln.sanitize():
        compiled = ext.compile(program, *arguments)
        needed = compiled.get_aux_func(QueryDeviceWorkspaceFunc, kernel=program.kernel)(*arguments)
        assert needed.size_in_bytes % 128 == 127 and needed.size_in_bytes // 128 % 4 == 0  # of 2 x 2 CTAs
        compiled(*arguments, from_dlpack(np.empty(needed.size_in_bytes, np.uint8)))
        for x, y, z in zip(a, b, d, strict=True):
            product = (x.astype(np.float32) @ y.astype(np.float32).T).astype(np.float16)
            np.testing.assert_array_equal(z, 2 * product)
        with pytest.raises(kiln.base_dsl.diagnostics.DSLUserCodeTypeError, match=r"needs \(workspace\)"):
            compiled(*arguments)
        with pytest.raises(WorkspaceNeeded, match="no memory for them"):
            cute.compile(program, *arguments)
    with pytest.raises(kiln.base_dsl.diagnostics.DSLUserCodeTypeError, match="QueryDeviceWorkspaceFunc of a int"):
        QueryDeviceWorkspaceFunc(3)


class ScaledGemm:
    """D = (A SFA) (B SFB)^T of one tile: E4M3 with a scale factor for 32 elements along K."""

    tile = (128, 128, 128)

    @ext.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, d: cute.Tensor):
        self.kernel(a, b, sfa, sfb, d).launch(grid=1, block=128)

    @ext.kernel
    def kernel(self, a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, d: cute.Tensor):
        E4M3, UE8M0, K = kiln.Float8E4M3FN, kiln.Float8E8M0FNU, tcgen05.OperandMajorMode.K
        tile, one = self.tile, tcgen05.CtaGroup.ONE
        mma = sm100.make_blockscaled_trivial_tiled_mma(E4M3, K, K, UE8M0, 32, one, tile[:2])
        thread, warp = cute.arch.thread_idx()[0], cute.arch.make_warp_uniform(cute.arch.warp_idx())
        wholes = {"A": a, "B": b}
        for name, x, scales in (("SFA", a, sfa), ("SFB", b, sfb)):
            wholes[name] = cute.make_tensor(scales.iterator, blockscaled_layout.tile_atom_to_shape_SF(x.shape, 32))
        layouts = {
            "A": sm100.make_smem_layout_a(mma, tile, E4M3, 1), "B": sm100.make_smem_layout_b(mma, tile, E4M3, 1),
            "SFA": blockscaled_layout.make_smem_layout_sfa(mma, tile, 32, 1),
            "SFB": blockscaled_layout.make_smem_layout_sfb(mma, tile, 32, 1),
        }  # fmt: skip
        buffers = {
            name: ext.allocate(UE8M0 if "S" in name else E4M3, SMEM, layouts[name], alignment=1024) for name in layouts
        }
        accs = ext.allocate(F32, TMEM, ext.make_tmem_layout_acc(mma, tile, 1), alignment=16)
        scales = {}
        for name, of in (("SFA", "make_tmem_layout_sfa"), ("SFB", "make_tmem_layout_sfb")):
            one_stage = cute.slice_(layouts[name], (None, None, None, 0))
            layout = getattr(blockscaled_layout, of)(mma, tile, 32, one_stage)
            scales[name] = ext.allocate(UE8M0, TMEM, layout, alignment=16)
        s2t = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(one), UE8M0)
        kind = Kind.SM100_MMA_1SM_SS
        full = ext.TMAToUMMAPipeline.create(num_stages=1, mma_operation_type=kind)
        done = ext.UMMAtoAsyncPipeline.create(
            num_stages=1, mma_operation_type=kind, consumer=Kind.SM100_COPY_T2R, consumer_arv_count=128
        )
        if warp == 0:
            token, _ = full.producer_acquire_and_get_stage()
            for name, whole in wholes.items():
                part = (tile[0 if name in ("A", "SFA") else 1], tile[2])
                source = cute.zipped_divide(whole, part)[(None, None), (0, 0)]
                v_map = ext.get_cta_v_map_ab(whole, tile, mma, name)
                ext.tma_load(source, buffers[name][None, None, None, 0], ext.get_mbarrier(token), cta_v_map=v_map)
            full.producer_commit_and_advance()
        if warp == 1:
            full.consumer_wait()
            for name, target in scales.items():
                compact = cute.filter_zeros(target)
                tiled = tcgen05.make_s2t_copy(s2t, compact)
                tiler = cute.core._pack_tile(tiled.tiler_mn)
                source = cute.filter_zeros(buffers[name])[None, None, None, 0]
                first = kiln.Int32(0)
                ext.copy(
                    ext.partition(source, first, layout_tv=tiled.layout_src_tv_tiled, tiler=tiler),
                    ext.partition(compact, first, layout_tv=tiled.layout_dst_tv_tiled, tiler=tiler),
                    copy_atom=s2t,
                )
            atom = cute.make_mma_atom(mma.op)
            atom.set(tcgen05.Field.ACCUMULATE, False)
            for k in kiln.range_constexpr(4):
                x, y = (cute.append_ones(buffers[name][None, None, k, 0], up_to_rank=3) for name in "AB")
                factors = [scales[name][None, None, k] for name in ("SFA", "SFB")]
                ext.dot_block_scaled(atom, x, factors[0], y, factors[1], accs[None, None, None, 0])
                atom.set(tcgen05.Field.ACCUMULATE, True)
            full.consumer_release_and_advance()
            done.producer_commit_and_advance()
        done.consumer_wait()
        acc = accs[(None, None), 0, 0, 0]
        load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x128), F32)
        t2r = tcgen05.make_tmem_copy(load, acc)
        loaded = cute.make_rmem_tensor(ext.make_t2r_rmem_layout(t2r, d, thread), F32)
        ext.partition_and_copy(t2r.get_slice(thread), acc, loaded)
        cute.autovec_copy(loaded, t2r.get_slice(thread).partition_D(d))
        done.consumer_release_and_advance()


def test_gemm_with_scale_factors():
    """The maps of the scale factors have a layout that the kernel computes from the shape of A and B."""
    rng = np.random.default_rng(5)
    a, b = (aligned((128, 128), ml_dtypes.float8_e4m3fn, seed=s) for s in (1, 2))
    sfa, sfb = (aligned((32, 4, 4), np.uint8) for _ in range(2))
    for x in (sfa, sfb):
        x[:] = rng.integers(126, 130, x.shape)
    d = aligned((128, 128), np.float32)
    operands = [from_dlpack(x.view(np.uint8), assumed_align=16) for x in (a, b, sfa, sfb)]
    for x, dtype in zip(operands, [kiln.Float8E4M3FN] * 2 + [kiln.Float8E8M0FNU] * 2, strict=True):
        x.element_type = dtype
    operands = [x.mark_layout_dynamic(leading_dim=1) for x in operands[:2]] + operands[2:]
    with kiln.target("cpu"):
        ScaledGemm()(*operands, from_dlpack(d, assumed_align=16))

    def scaled(x: np.ndarray, factors: np.ndarray) -> np.ndarray:
        by_row = np.exp2(factors.astype(np.float64) - 127).transpose(1, 0, 2).reshape(128, 4)
        return x.astype(np.float64) * np.repeat(by_row, 32, axis=1)

    np.testing.assert_array_equal(d, scaled(a, sfa) @ scaled(b, sfb).T)


@needs_ptxas
def test_ptxas_assembles_both_kinds_of_maps():
    matrices = [tensor(aligned(shape)) for shape in ((256, 64), (64, 64), (256, 64))]
    options = {"target": "nvidia", "options": "--gpu-arch sm_100a"}
    ptx = ext.compile(Gemm(pair=True), *matrices, **options).artifacts["ptx"]
    assert "tcgen05.alloc.cta_group::2" in ptx and ".multicast::cluster" in ptx
    assert ptx.count("align 128 .b8") == 3  # tensor maps of A, B and D
    ptx = ext.compile(Products((128, 32, 32)), *(addresses([np.empty(1)] * 2) for _ in range(3)), **options).artifacts[
        "ptx"
    ]
    assert "tensormap.replace" in ptx and "fence.proxy.tensormap::generic.acquire" in ptx
