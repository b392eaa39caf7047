"""mma.sync, ldmatrix, stmatrix, bulk copies and match against numpy, with fragments written down as the PTX manual does."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from kernel_testing import run, runs
from mma_cases import (
    CASES,
    NUMPY,
    a_places,
    b_places,
    c_places,
    elements_of,
    mma_kernel,
    random_matrix,
    shared,
    spread,
    vector_of,
)

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import CompilerDiagnosticError, DSLUserCodeRuntimeError
from kiln.cute import arch
from kiln.dialects import nvgpu
from kiln.mlir import ir

FEW = [(1, 0), (1, 1), (2, 2)]


@pytest.mark.quick(5)
@pytest.mark.parametrize(("a_kind", "b_kind", "k", "d_kind"), CASES)
def test_mma(a_kind, b_kind, k, d_kind):
    kernel, m = mma_kernel(a_kind, b_kind, k, d_kind)
    rng = np.random.default_rng(k)
    warps = 3
    a = random_matrix(a_kind, (warps, m, k), rng)
    b = random_matrix(b_kind, (warps, k, 8), rng)
    c = random_matrix(d_kind, (warps, m, 8), rng)
    register = None if a_kind == "f64" else np.int32
    arrays = [
        spread(a, lambda lane: a_places(a_kind, k, lane), warps, register),
        spread(b, lambda lane: b_places(b_kind, k, lane), warps, register),
        spread(c, lambda lane: c_places(a_kind, lane), warps, None),
    ]
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64)) + c.astype(np.float64)
    want = spread(exact, lambda lane: c_places(a_kind, lane), warps, None)
    tolerance = {"f32": 2e-6, "f16": 2e-3, "i32": 0, "f64": 1e-14}[d_kind]
    scale = np.abs(want).max()
    for *_, out in runs(kernel, *arrays, np.zeros_like(arrays[2]), block=32 * warps, schedules=FEW):
        np.testing.assert_allclose(out.astype(np.float64), want, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(("a_kind", "b_kind"), [("s8", "s8"), ("s8", "u8"), ("u8", "u8")])
def test_sums_of_bytes_wrap(a_kind, b_kind):
    """The largest products, added to sums at the ends of 32 bits."""
    kernel, _ = mma_kernel(a_kind, b_kind, 32, "i32")
    ends = {"s8": -128, "u8": 255}
    a, b = np.full(512, ends[a_kind], NUMPY[a_kind]), np.full(256, ends[b_kind], NUMPY[b_kind])
    c = np.resize(np.array([2**31 - 1, -(2**31), 0, 5], np.int32), 128)
    out = np.zeros(128, np.int32)
    run(kernel, a.view(np.int32), b.view(np.int32), c, out)
    exact = c.astype(np.int64) + 32 * ends[a_kind] * ends[b_kind]
    np.testing.assert_array_equal(out, exact.astype(np.uint64).astype(np.uint32).view(np.int32))


def test_mma_puts_every_element_in_its_place():
    """Unit matrices: each element of A alone, with B all different, so that an element out of place shows."""
    kernel, _ = mma_kernel("f16", "f16", 16, "f32")
    warps = 8
    for start in range(0, 256, warps):
        a = np.zeros((warps, 16, 16), np.float16)
        for w in range(warps):
            a[w].reshape(-1)[start + w] = 1
        b = np.broadcast_to(np.arange(128, dtype=np.float16).reshape(16, 8) + 1, (warps, 16, 8))
        arrays = [
            spread(a, lambda lane: a_places("f16", 16, lane), warps, np.int32),
            spread(b, lambda lane: b_places("f16", 16, lane), warps, np.int32),
            np.zeros(warps * 128, np.float32),
        ]
        out = np.zeros(warps * 128, np.float32)
        if start % 64 == 0:
            run(kernel, *arrays, out, block=32 * warps)
            want = spread(
                np.matmul(a.astype(np.float32), b.astype(np.float32)), lambda lane: c_places("f16", lane), warps, None
            )
            np.testing.assert_array_equal(out, want)


def test_infinities_and_nans_of_8_bit_floats():
    kernel, _ = mma_kernel("e5m2", "e5m2", 32, "f32")
    a, b = np.zeros((1, 16, 32), ml_dtypes.float8_e5m2), np.zeros((1, 32, 8), ml_dtypes.float8_e5m2)
    a[0, 3, 5], b[0, 5, 2], a[0, 4, 6] = np.inf, 2, np.nan
    arrays = [
        spread(a, lambda lane: a_places("e5m2", 32, lane), 1, np.int32),
        spread(b, lambda lane: b_places("e5m2", 32, lane), 1, np.int32),
        np.zeros(128, np.float32),
    ]
    out = np.zeros(128, np.float32)
    run(kernel, *arrays, out)
    with np.errstate(invalid="ignore"):
        want = spread(a.astype(np.float32) @ b.astype(np.float32), lambda lane: c_places("s8", lane), 1, None)
    np.testing.assert_array_equal(out, want)


@pytest.mark.parametrize(("a_kind", "k", "d_kind"), [("f16", 32, "f32"), ("bf16", 16, "f16"), ("tf32", 16, "f32")])
def test_shapes_the_hardware_does_not_have(a_kind, k, d_kind):
    kernel, _ = mma_kernel(a_kind, a_kind, k, d_kind)
    zero = np.zeros(4096, np.int32)
    c = np.zeros(4096, NUMPY[d_kind])
    with pytest.raises(CompilerDiagnosticError, match=f"there is no mma.sync m16n8k{k} of {a_kind}"):
        run(kernel, zero, zero, c, c)


# --- ldmatrix, stmatrix ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_and_stmatrix(count, transpose):
    """Rows anywhere in shared memory; every element is another number."""

    @cute.kernel
    def kernel(x: cute.Tensor, rows: cute.Tensor, out: cute.Tensor, back: cute.Tensor):
        tile, copy = shared(64 * 8, cute.Int16), shared(64 * 8, cute.Int16)
        t = arch.thread_idx()[0]
        for i in range(16):
            tile[i * 32 + t] = x[i * 32 + t]
            copy[i * 32 + t] = cute.Int16(0)
        arch.sync_warp()
        place = rows[t] * 8
        type_ = ir.VectorType.get([count], cute.Int32.mlir_type)
        pointer = (tile.iterator + place).ir_value()
        made = nvgpu.mma.ldmatrix(pointer, type_, count=count, transpose=transpose)
        for n, value in enumerate(elements_of(made, cute.Int32)):
            out[t * count + n] = value
        target = (copy.iterator + place).ir_value()
        nvgpu.mma.stmatrix(target, made, count=count, transpose=transpose)
        arch.sync_warp()
        for i in range(16):
            back[i * 32 + t] = copy[i * 32 + t]

    rng = np.random.default_rng(count)
    x = np.arange(512, dtype=np.int16) * 3 + 1
    rows = rng.permutation(64)[:32].astype(np.int32)
    matrices = x.reshape(64, 8)[rows].reshape(4, 8, 8)[:count]
    want = np.zeros((32, count, 2), np.int16)
    for lane in range(32):
        for j in range(count):
            for half in range(2):
                row, column = lane // 4, 2 * (lane % 4) + half
                want[lane, j, half] = matrices[j][(column, row) if transpose else (row, column)]
    copied = np.zeros((64, 8), np.int16)
    copied[rows[: 8 * count]] = x.reshape(64, 8)[rows[: 8 * count]]
    arrays = x, rows, np.zeros(32 * count, np.int32), np.zeros(512, np.int16)
    for _, _, out, back in runs(kernel, *arrays, schedules=FEW):
        np.testing.assert_array_equal(out.view(np.int16).reshape(32, count, 2), want)
        np.testing.assert_array_equal(back.reshape(64, 8), copied)


def test_a_gemm_of_matrix_loads_and_mma():
    """64x32x64 in f16: two warps, shared memory, ldmatrix for A and (transposed) for B."""
    m, n, k = 32, 16, 64

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor):
        left, right = shared(m * k, cute.Float16), shared(k * n, cute.Float16)
        t, lane, warp = arch.thread_idx()[0], arch.lane_idx(), arch.warp_idx()
        for i in range(m * k // 64):
            left[i * 64 + t] = a[i * 64 + t]
        for i in range(k * n // 64):
            right[i * 64 + t] = b[i * 64 + t]
        arch.sync_threads()
        sums = [vector_of([cute.Float32(0)] * 4, cute.Float32) for _ in range(n // 8)]
        four, two = (ir.VectorType.get([c], cute.Int32.mlir_type) for c in (4, 2))
        for step in kiln.range_constexpr(k // 16):
            # matrices: (rows 0-7, columns 0-7), (8-15, 0-7), (0-7, 8-15), (8-15, 8-15)
            row, column = warp * 16 + lane % 16, step * 16 + lane // 16 * 8
            pointer = (left.iterator + (row * k + column)).ir_value()
            x = nvgpu.mma.ldmatrix(pointer, four, count=4)
            for j in kiln.range_constexpr(n // 8):
                pointer = (right.iterator + ((step * 16 + lane % 16) * n + j * 8)).ir_value()
                y = nvgpu.mma.ldmatrix(pointer, two, count=2, transpose=True)
                sums[j] = nvgpu.mma.mma_sync((16, 8, 16), "f16", "f16", x, y, sums[j])
        for j in kiln.range_constexpr(n // 8):
            for i, value in enumerate(elements_of(sums[j], cute.Float32)):
                row = warp * 16 + lane // 4 + 8 * (i // 2)
                out[row * n + j * 8 + lane % 4 * 2 + i % 2] = value

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((m, k), (k, n)))
    want = a.astype(np.float64) @ b.astype(np.float64)
    for *_, out in runs(kernel, a.reshape(-1), b.reshape(-1), np.zeros(m * n, np.float32), block=64, schedules=FEW):
        np.testing.assert_allclose(out.reshape(m, n), want, rtol=1e-5, atol=1e-5)


# --- bulk copies -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_ring_of_bulk_copies(stages):
    """One thread loads tiles, a warp reads them, the results go back by bulk copies."""
    tiles = 7

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        ring, box = shared(32 * stages), shared(32)
        full, empty = arch.alloc_smem(cute.Int64, stages), arch.alloc_smem(cute.Int64, stages)
        t = arch.thread_idx()[0]
        if t == 0:
            for s in range(stages):
                arch.mbarrier_init(full + s, 1)
                arch.mbarrier_init(empty + s, 32)
        arch.mbarrier_init_fence()
        arch.sync_threads()
        if t == 32:
            for i in range(cute.Int32(tiles)):
                s, phase = i % stages, i // stages % 2
                arch.mbarrier_wait(empty + s, phase ^ 1)
                arch.mbarrier_arrive_and_expect_tx(full + s, 128)
                operands = ((ring.iterator + s * 32).ir_value(), (x.iterator + i * 32).ir_value())
                size = cute.Int32(128).ir_value()
                nvgpu.async_copy.bulk_load(*operands, size, (full + s).ir_value())
        if t < 32:
            for i in range(cute.Int32(tiles)):
                s, phase = i % stages, i // stages % 2
                arch.mbarrier_wait(full + s, phase)
                value = ring[s * 32 + 31 - t]
                arch.mbarrier_arrive(empty + s)
                if t == 0:
                    arch.cp_async_bulk_wait_group(0, read=True)
                arch.sync_warp()
                box[t] = value * 2
                arch.fence_view_async_shared()
                arch.sync_warp()
                if t == 0:
                    operands = ((out.iterator + i * 32).ir_value(), box.iterator.ir_value())
                    nvgpu.async_copy.bulk_store(*operands, cute.Int32(128).ir_value())
                    arch.cp_async_bulk_commit_group()

    x = np.arange(tiles * 32, dtype=np.int32)
    for _, out in runs(kernel, x, np.zeros_like(x), block=64):
        np.testing.assert_array_equal(out.reshape(tiles, 32), x.reshape(tiles, 32)[:, ::-1] * 2)


@pytest.mark.parametrize("kind", ["any", "all"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_match(kind, dtype):
    element = cute.Int32 if dtype is np.int32 else cute.Int64

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        value = element(x[b * 32 + t]).ir_value()
        mask = cute.Int32(-1).ir_value()
        out[b * 32 + t] = cute.Int32._make(nvgpu.warp.match(kind, value, mask))

    rows = np.array([np.arange(32) % 5, np.full(32, -7), np.arange(32)], dtype)
    if dtype is np.int64:
        rows = rows * (1 << 33)
    for _, out in runs(kernel, rows.reshape(-1), np.zeros(96, np.int32), grid=3, schedules=FEW):
        for row, got in zip(rows, out.view(np.uint32).reshape(3, 32), strict=True):
            same = [sum(1 << j for j in range(32) if row[j] == row[i]) for i in range(32)]
            want = same if kind == "any" else [0xFFFFFFFF if len(set(row)) == 1 else 0] * 32
            np.testing.assert_array_equal(got, np.array(want, np.uint32))


# --- runs of operations --------------------------------------------------------------------------------------------------


@cute.kernel
def chained(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, out: cute.Tensor):
    """Products whose results feed the next ones, with arithmetic, registers and branches between them."""
    t = arch.thread_idx()[0]
    lane = arch.lane_idx()
    tile = shared(2 * 64, cute.Int32)
    tile[t] = a[t]
    tile[64 + t] = a[64 + t]
    arch.sync_threads()
    left = vector_of([a[lane * 4 + n] for n in range(4)], cute.Int32)
    right = vector_of([b[lane * 2 + n] for n in range(2)], cute.Int32)
    sums = cute.make_rmem_tensor(8, cute.Float32)
    for n in kiln.range_constexpr(8):
        sums[n] = c[t * 4 + n % 4]
    factor = cute.Float32(lane % 3) - 1.0
    for step in kiln.range_constexpr(3):
        row = tile.iterator + (lane % 8 + 8 * step) * 4
        loaded = nvgpu.mma.ldmatrix(row.ir_value(), ir.VectorType.get([2], cute.Int32.mlir_type), count=2)
        for part in kiln.range_constexpr(2):
            start = vector_of([sums[part * 4 + n] for n in range(4)], cute.Float32)
            made = nvgpu.mma.mma_sync((16, 8, 16), "bf16", "bf16", left, loaded if step else right, start)  # fmt: skip
            for n, value in enumerate(elements_of(made, cute.Float32)):
                sums[part * 4 + n] = value * factor if step == 1 else value + sums[(part * 4 + n + 1) % 8]
    if lane % 2 == 0:
        sums[0] = sums[0] + 1.0
    for n in kiln.range_constexpr(8):
        out[t * 8 + n] = sums[n]


def test_a_run_does_what_its_operations_do_one_by_one(monkeypatch):
    from kiln.targets.cpu.passes import matrix_fusion as runs_of_operations

    rng = np.random.default_rng(3)

    def bits(count):
        return rng.standard_normal(2 * count).astype(ml_dtypes.bfloat16).view(np.int32)

    arrays = bits(128), bits(64), rng.standard_normal(256).astype(np.float32), np.zeros(512, np.float32)
    found = []
    original = runs_of_operations.fuse

    def fuse(x, operations):
        left = original(x, operations)
        found.append((len(operations), len(left)))
        return left

    monkeypatch.setattr(runs_of_operations, "fuse", fuse)
    together = [out.copy() for *_, out in runs(chained, *arrays, block=64, schedules=FEW)]
    assert (9, 0) in found  # all in runs
    monkeypatch.setattr(runs_of_operations, "fuse", lambda x, operations: list(range(len(operations))))
    alone = [out.copy() for *_, out in runs(chained, *arrays, block=64, schedules=FEW)]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all() and len(np.unique(one)) > 200


SHORT = {"ldmatrix, two in a run": 2, "ldmatrix": 1, "stmatrix": 0}


@pytest.mark.parametrize("loads", SHORT.values(), ids=SHORT)
def test_a_warp_of_which_lanes_have_ended(loads):
    """The PTX manual leaves undefined what matrix operations do then; addresses of those lanes are anything."""

    @cute.kernel
    def kernel(out: cute.Tensor):
        tile = shared(8 * 8, cute.Int16)
        t = arch.thread_idx()[0]
        if t >= 24:
            return
        type_ = ir.VectorType.get([4], cute.Int32.mlir_type)
        pointer = (tile.iterator + t % 8 * 8).ir_value()
        if kiln.const_expr(loads == 0):
            words = cute.full((4,), 1, cute.Int32).ir_value()
            nvgpu.mma.stmatrix(pointer, words, count=4)
        for n in kiln.range_constexpr(loads):
            words = nvgpu.mma.ldmatrix(pointer, type_, count=4)
            out[t * 2 + n] = elements_of(words, cute.Int32)[0]

    with pytest.raises(DSLUserCodeRuntimeError, match="matrix is executed by 24 lanes of a warp"):
        run(kernel, np.zeros(64, np.int32))
