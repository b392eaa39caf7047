"""MMAs, matrix loads and stores and asynchronous copies on the CPU target, against numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute, utils
from kiln.cute import arch
from kiln.cute.nvgpu import MmaUniversalOp, cpasync, warp
from kiln.cute.runtime import from_dlpack
from kiln.mlir import context, ir

F16, BF16, F32, F64 = kiln.Float16, kiln.BFloat16, kiln.Float32, kiln.Float64
NUMPY: dict[Any, Any] = {
    F16: np.float16,
    BF16: ml_dtypes.bfloat16,
    F32: np.float32,
    F64: np.float64,
    kiln.Float8E4M3FN: ml_dtypes.float8_e4m3fn,
    kiln.Float8E5M2: ml_dtypes.float8_e5m2,
    kiln.Int8: np.int8,
    kiln.Uint8: np.uint8,
    kiln.Int32: np.int32,
}


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def aligned(shape: Any, dtype: Any) -> np.ndarray:
    count = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(count + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + count].view(dtype).reshape(shape)


def sample(shape: Any, dtype: Any, seed: int) -> np.ndarray:
    """Small integers: sums of their products are exact in every type of the tests."""
    made = aligned(shape, dtype)
    low = 0 if dtype is np.uint8 else -3
    made[:] = np.random.default_rng(seed).integers(low, 4, shape).astype(dtype)
    return made


def exact(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) @ b.astype(np.float64).T


def run_gemm(tiled_mma: Any, m: int, n: int, k: int, types: Any) -> None:
    """C = A B^T + C of one tile by one block, each thread with what partition_A/B/C give it."""
    a_type, b_type, c_type = (NUMPY[t] for t in types)
    a, b, c = sample((m, k), a_type, 0), sample((n, k), b_type, 1), sample((m, n), c_type, 2)
    expected = exact(a, b) + c.astype(np.float64)

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        thread = tiled_mma.get_slice(arch.thread_idx()[0])
        a_part, b_part, c_part = thread.partition_A(a), thread.partition_B(b), thread.partition_C(c)
        a_regs, b_regs, c_regs = (
            tiled_mma.make_fragment_A(a_part),
            tiled_mma.make_fragment_B(b_part),
            tiled_mma.make_fragment_C(c_part),
        )
        cute.basic_copy(a_part, a_regs)
        cute.basic_copy(b_part, b_regs)
        cute.basic_copy(c_part, c_regs)
        cute.gemm(tiled_mma, c_regs, a_regs, b_regs, c_regs)
        cute.basic_copy(c_regs, c_part)

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        kernel(a, b, c).launch(grid=(1, 1, 1), block=(tiled_mma.size, 1, 1))

    f(*(from_dlpack(x, assumed_align=16) for x in (a, b, c)))
    np.testing.assert_array_equal(c.astype(np.float64), expected)


OPS = [
    (warp.MmaF16BF16Op(F16, F32, (16, 8, 8)), (F16, F16, F32)),
    (warp.MmaF16BF16Op(F16, F16, (16, 8, 16)), (F16, F16, F16)),
    (warp.MmaF16BF16Op(BF16, F32, (16, 8, 16)), (BF16, BF16, F32)),
    (warp.MmaTF32Op((16, 8, 4)), (F32, F32, F32)),
    (warp.MmaTF32Op((16, 8, 8)), (F32, F32, F32)),
    (warp.MmaFP8Op(kiln.Float8E4M3FN, F32), (kiln.Float8E4M3FN, kiln.Float8E4M3FN, F32)),
    (warp.MmaFP8Op(kiln.Float8E5M2, F16, b_dtype=kiln.Float8E4M3FN), (kiln.Float8E5M2, kiln.Float8E4M3FN, F16)),
    (warp.MmaI8Op(kiln.Int8, shape_mnk=(16, 8, 32)), (kiln.Int8, kiln.Int8, kiln.Int32)),
    (warp.MmaI8Op(kiln.Uint8, kiln.Int8, shape_mnk=(16, 8, 16)), (kiln.Uint8, kiln.Int8, kiln.Int32)),
    (warp.MmaI8Op(kiln.Int8, kiln.Uint8, shape_mnk=(8, 8, 16)), (kiln.Int8, kiln.Uint8, kiln.Int32)),
    *((warp.MmaF64Op(shape), (F64, F64, F64)) for shape in ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16))),
]


@pytest.mark.quick(7)
@pytest.mark.parametrize(("op", "types"), OPS, ids=lambda x: str(x) if hasattr(x, "shape_mnk") else "")
def test_every_operation(op, types):
    m, n, k = op.shape_mnk
    run_gemm(cute.make_tiled_mma(op), m, 2 * n, 2 * k, types)


def of_ir(text: str) -> ir.Type:
    return ir.Type.parse(text, context())


class DerivedTrait(cute.atom.Trait):
    pass


@dataclass(frozen=True)
class DerivedOp(warp.WarpMmaOp):
    """An operation as libraries derive their own: its trait has an atom of a type of the IR."""

    shape_mnk: tuple[int, int, int]
    types: Callable[[], Iterable[object]]

    def _make_trait(self, *, loc: object = None, ip: object = None, **kwargs: object) -> DerivedTrait:
        shape = warp.mma._pack_shape(self.shape_mnk, loc=loc, ip=ip)
        return DerivedTrait(
            cute.make_atom(warp.mma._cute_nvgpu_ir.MmaAtomSM80Type.get(shape.type.attribute, *self.types()))
        )


@pytest.mark.parametrize(
    ("shape", "types", "in_ir"),
    [
        ((16, 8, 8), (F32, F32, F32), lambda: [t.mlir_type for t in (kiln.TFloat32, kiln.TFloat32, F32)]),
        (
            (16, 8, 32),
            (kiln.Float8E4M3FN, kiln.Float8E5M2, F32),
            lambda: [t.mlir_type for t in (kiln.Float8E4M3FN, kiln.Float8E5M2, F32)],
        ),
        ((16, 8, 32), (kiln.Int8, kiln.Uint8, kiln.Int32), lambda: map(of_ir, ("si8", "ui8", "i32"))),
    ],
)
def test_operations_that_libraries_derive(shape, types, in_ir):
    m, n, k = shape
    run_gemm(cute.make_tiled_mma(DerivedOp(shape, in_ir)), m, n, k, types)


def test_atoms_that_libraries_cannot_derive():
    half = F16.mlir_type
    with pytest.raises(kiln.DSLUserCodeTypeError, match="make_atom takes the type of an MMA"):
        cute.make_atom(None)
    with pytest.raises(kiln.DSLUserCodeTypeError, match="has no elements of the type index"):
        cute.make_tiled_mma(DerivedOp((16, 8, 16), lambda: [of_ir("index"), half, half]))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="no MMA of a warp has A of Float16 and B of Int8"):
        cute.make_tiled_mma(DerivedOp((16, 8, 16), lambda: [half, of_ir("si8"), half]))
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"has no shape \(16, 8, 64\)"):
        cute.make_tiled_mma(DerivedOp((16, 8, 64), lambda: [half, half, half]))

    class WithoutTrait(warp.WarpMmaOp):
        def __init__(self) -> None: ...
        def _make_trait(self) -> None: ...

    with pytest.raises(kiln.DSLUserCodeTypeError, match="WithoutTrait._make_trait returns no trait"):
        cute.make_tiled_mma(WithoutTrait())


@pytest.mark.parametrize(("atoms", "permutation"), [((2, 2, 1), (32, 32, 16)), ((1, 2, 1), None)])
def test_tiles_of_several_warps(atoms, permutation):
    tiled = cute.make_tiled_mma(warp.MmaF16BF16Op(F16, F32, (16, 8, 16)), atoms, permutation_mnk=permutation)
    run_gemm(tiled, 32, 32, 32, (F16, F16, F32))


@pytest.mark.parametrize("dtype", [F32, F64, kiln.Int32])
def test_one_thread_operations(dtype):
    four = cute.make_layout((4, 4), stride=(4, 1))
    tiled = cute.make_tiled_mma(
        MmaUniversalOp(dtype), cute.make_layout((4, 8, 1), stride=(8, 1, 0)), permutation_mnk=(four, None, None)
    )
    run_gemm(tiled, 32, 16, 3, (dtype, dtype, dtype))


def test_gemm_without_values_mode():
    a, b, c = sample((4, 3), np.float32, 0), sample((5, 3), np.float32, 1), sample((4, 5), np.float32, 2)
    expected = exact(a, b) + c

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        atom = cute.make_mma_atom(MmaUniversalOp(F32))
        d = cute.make_rmem_tensor((4, 5), F32)
        cute.gemm(atom, d, a, b, c)
        cute.basic_copy(d, c)

    f(from_dlpack(a), from_dlpack(b), from_dlpack(c))
    np.testing.assert_array_equal(c, expected)


def _smem_layout(major: str, swizzled: bool) -> Any:
    """(32, 32) of 16-bit elements, rows of 64 bytes."""
    plain = cute.make_layout((32, 32), stride=(32, 1) if major == "k" else (1, 32))
    return cute.make_composed_layout(cute.make_swizzle(2, 3, 3), 0, plain) if swizzled else plain


@pytest.mark.parametrize(("matrices", "swizzled"), [(4, True), (4, False), (2, True), (1, False)])
@pytest.mark.parametrize(("a_major", "b_major"), [("k", "k"), ("m", "n")])
def test_gemm_from_shared_memory(a_major, b_major, matrices, swizzled):
    """cp.async into shared memory, ldmatrix (transposed where K is not contiguous), mma, stmatrix."""
    m = n = k = 32
    a, b, c = sample((m, k), np.float16, 0), sample((n, k), np.float16, 1), aligned((m, n), np.float16)
    expected = exact(a, b)
    tiled_mma = cute.make_tiled_mma(warp.MmaF16BF16Op(F16, F32, (16, 8, 16)), (2, 2, 1), permutation_mnk=(32, 32, 16))

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        tid = arch.thread_idx()[0]
        smem = utils.SmemAllocator()
        sa = smem.allocate_tensor(F16, _smem_layout(a_major, swizzled), 128)
        sb = smem.allocate_tensor(F16, _smem_layout(b_major, swizzled), 128)
        sc = smem.allocate_tensor(F16, _smem_layout("k", swizzled), 128)
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(cpasync.LoadCacheMode.GLOBAL), F16, num_bits_per_copy=128)
        rows = cute.make_tiled_copy_tv(
            atom, cute.make_layout((32, 4), stride=(4, 1)), cute.make_layout((1, 8), stride=(8, 1))
        ).get_slice(tid)
        columns = cute.make_tiled_copy_tv(
            atom, cute.make_layout((4, 32), stride=(1, 4)), cute.make_layout((8, 1))
        ).get_slice(tid)
        for source, place, major in ((a, sa, a_major), (b, sb, b_major)):
            part = rows if major == "k" else columns
            cute.copy(part, part.partition_S(source), part.partition_D(place))
        arch.cp_async_commit_group()
        arch.cp_async_wait_group(0)
        arch.sync_threads()
        thread = tiled_mma.get_slice(tid)
        a_regs = tiled_mma.make_fragment_A(thread.partition_A(sa))
        b_regs = tiled_mma.make_fragment_B(thread.partition_B(sb))
        c_regs = tiled_mma.make_fragment_C(tiled_mma.partition_shape_C((m, n)))
        c_regs.fill(0.0)
        load_a = cute.make_tiled_copy_A(
            cute.make_copy_atom(warp.LdMatrix8x8x16bOp(a_major != "k", matrices), F16), tiled_mma
        ).get_slice(tid)
        load_b = cute.make_tiled_copy_B(
            cute.make_copy_atom(warp.LdMatrix8x8x16bOp(b_major != "k", matrices), F16), tiled_mma
        ).get_slice(tid)
        cute.copy(load_a, load_a.partition_S(sa), load_a.retile(a_regs))
        cute.copy(load_b, load_b.partition_S(sb), load_b.retile(b_regs))
        cute.gemm(tiled_mma, c_regs, a_regs, b_regs, c_regs)
        out = cute.make_fragment_like(c_regs, F16)
        out.store(c_regs.load().to(F16))
        store = cute.make_tiled_copy_C(
            cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, matrices), F16), tiled_mma
        ).get_slice(tid)
        cute.copy(store, store.retile(out), store.partition_D(sc))
        arch.sync_threads()
        plain = cute.make_tiled_copy_tv(
            cute.make_copy_atom(cute.nvgpu.CopyUniversalOp(), F16, num_bits_per_copy=128),
            cute.make_layout((32, 4), stride=(4, 1)),
            cute.make_layout((1, 8), stride=(8, 1)),
        ).get_slice(tid)
        cute.copy(plain, plain.partition_S(sc), plain.partition_D(c))

    @cute.jit
    def f(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        kernel(a, b, c).launch(grid=(1, 1, 1), block=(128, 1, 1))

    stored = [np.asfortranarray(x) if major != "k" else x for x, major in ((a, a_major), (b, b_major))]
    for given, wanted in zip(stored, (a, b)):
        np.testing.assert_array_equal(given, wanted)
    kept = [_placed(x) for x in stored]
    f(*(from_dlpack(x, assumed_align=16) for x in (*kept, c)))
    np.testing.assert_array_equal(c.astype(np.float64), expected)


def _placed(x: np.ndarray) -> np.ndarray:
    """The same array, in the same order, at an aligned address."""
    if x.flags.c_contiguous:
        made = aligned(x.shape, x.dtype)
    else:
        made = aligned(x.shape[::-1], x.dtype).T
    made[:] = x
    return made


@pytest.mark.parametrize("bits", [32, 64, 128])
def test_predicated_asynchronous_copies(bits):
    """Where the predicate is false, zeros are written, whatever was there."""
    x, out = sample((64,), np.float32, 0), aligned((64,), np.float32)
    values = bits // 32

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor, limit: kiln.Int32):
        tid = arch.thread_idx()[0]
        sx = utils.SmemAllocator().allocate_tensor(F32, cute.make_layout(64), 16)
        if tid == 0:
            sx.fill(7.0)
        arch.sync_threads()
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), F32, num_bits_per_copy=bits)
        threads = 64 // values // 2
        part = cute.make_tiled_copy_tv(atom, cute.make_layout(threads), cute.make_layout(values)).get_slice(tid)
        if tid < threads:
            source = part.partition_S(x)
            coords = part.partition_S(cute.make_identity_tensor(64))
            pred = cute.make_rmem_tensor((1, 2), kiln.Boolean)
            for i in kiln.range_constexpr(2):
                pred[0, i] = coords[(0, 0), i] < limit
            cute.copy(part, source, part.partition_D(sx), pred=pred)
        arch.cp_async_commit_group()
        arch.cp_async_wait_group(0)
        arch.sync_threads()
        if tid == 0:
            cute.basic_copy(sx, out)

    @cute.jit
    def f(x: cute.Tensor, out: cute.Tensor, limit: kiln.Int32):
        kernel(x, out, limit).launch(grid=(1, 1, 1), block=(32, 1, 1))

    f(from_dlpack(x, assumed_align=16), from_dlpack(out, assumed_align=16), 40)
    np.testing.assert_array_equal(out, np.where(np.arange(64) < 40, x, 0.0))


REFUSED = [
    ("shape", "C and D"),
    ("type", "Float16 elements of A"),
    ("alignment", "multiple of"),
    ("memory", "lies in smem"),
]


@pytest.mark.parametrize(("what", "says"), REFUSED)
def test_refused(what, says):
    @cute.kernel
    def kernel(x: cute.Tensor):
        tiled = cute.make_tiled_mma(warp.MmaF16BF16Op(F16, F32, (16, 8, 16)))
        a = cute.make_rmem_tensor(((2, 2, 2), 1, 1), F32 if what == "type" else F16)
        b = cute.make_rmem_tensor(((2, 2), 1, 1), F16)
        c = cute.make_rmem_tensor(((2, 2), 1, 2 if what == "shape" else 1), F32)
        if kiln.const_expr(what in ("shape", "type")):
            cute.gemm(tiled, c, a, b, c)
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), F32, num_bits_per_copy=128)
        if kiln.const_expr(what == "alignment"):
            place = utils.SmemAllocator().allocate_tensor(F32, cute.make_layout(4), 16)
            cute.copy(atom, cute.domain_offset((1,), x), place)
        if kiln.const_expr(what == "memory"):
            cute.copy(atom, x, cute.make_rmem_tensor(4, F32))

    @cute.jit
    def f(x: cute.Tensor):
        kernel(x).launch(grid=(1, 1, 1), block=(32, 1, 1))

    with pytest.raises(Exception, match=says):
        f(from_dlpack(aligned((4,), np.float32), assumed_align=16))


@pytest.mark.parametrize("matrices", [1, 2])
def test_transposed_matrices_of_bytes(matrices):
    """16x16 bytes in shared memory, transposed on the way to the registers of a warp."""
    rows = 16 * matrices
    source, out = aligned((rows, 16), np.int8), aligned((32, 8 * matrices), np.int8)
    source[:] = np.arange(rows * 16).reshape(rows, 16).astype(np.int8)

    @cute.kernel
    def kernel(source: cute.Tensor, out: cute.Tensor):
        lane = arch.thread_idx()[0]
        memory = utils.SmemAllocator().allocate_tensor(kiln.Int8, cute.make_layout((rows, 16), stride=(16, 1)), 128)
        if lane < rows:
            cute.autovec_copy(source[lane, None], memory[lane, None])
        arch.sync_threads()
        atom = cute.make_copy_atom(warp.LdMatrix16x16x8bOp(True, matrices), kiln.Int8)
        # as the atom numbers the bytes of a matrix: row by row
        flat = cute.make_tensor(memory.iterator, cute.make_layout(256 * matrices))
        copy = cute.make_tiled_copy(atom, atom.layout_dst_tv, (256 * matrices,)).get_slice(lane)
        held = cute.make_rmem_tensor(((8 * matrices,), 1), kiln.Int8)
        cute.copy(copy, copy.partition_S(flat), held)
        for i in range(8 * matrices):
            out[lane, i] = held[i]

    @cute.jit
    def f(source: cute.Tensor, out: cute.Tensor):
        kernel(source, out).launch(grid=(1, 1, 1), block=(32, 1, 1))

    f(from_dlpack(source, assumed_align=16), from_dlpack(out))
    for lane in range(32):
        for i in range(8 * matrices):
            matrix, column, row = i // 8, lane // 4 + 8 * (i // 4 % 2), 4 * (lane % 4) + i % 4
            assert out[lane, i] == source[16 * matrix + row, column]


def test_matrices_of_bytes_are_refused_as_they_are():
    for options in ((False, 1), (True, 4)):
        with pytest.raises(TypeError, match="transposed"):
            warp.LdMatrix16x16x8bOp(*options)
    with pytest.raises(TypeError, match="16 bits"):
        cute.make_copy_atom(warp.LdMatrix16x16x8bOp(True, 1), F16)


def test_accumulators_as_operand_with_repeated_values():
    """A C of one MMA along K, divided by 2 to serve as A of a deeper MMA too, has each value twice: once is meant."""
    mma = cute.make_tiled_mma(warp.MmaF16BF16Op(F16, F32, (16, 8, 8)))
    a, b = sample((16, 8), np.float16, 0), sample((8, 8), np.float16, 1)
    expected = exact(exact(a, b), b)

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        thread = mma.get_slice(arch.thread_idx()[0])
        parts = thread.partition_A(a), thread.partition_B(b), thread.partition_C(c)
        a_regs, b_regs, first = (
            mma.make_fragment_A(parts[0]),
            mma.make_fragment_B(parts[1]),
            mma.make_fragment_C(parts[2]),
        )
        cute.basic_copy(parts[0], a_regs)
        cute.basic_copy(parts[1], b_regs)
        first.fill(0.0)
        cute.gemm(mma, first, a_regs, b_regs, first)
        divided = cute.logical_divide(first.layout, (None, None, 2))
        layout = cute.make_layout(
            ((divided.shape[0], divided.shape[2][0]), divided.shape[1], divided.shape[2][1]),
            stride=((divided.stride[0], divided.stride[2][0]), divided.stride[1], divided.stride[2][1]),
        )
        assert cute.size(layout, mode=[0]) == 8
        again = cute.make_rmem_tensor_like(cute.make_tensor(first.iterator, layout), F16)
        again.store(cute.make_tensor(first.iterator, layout).load().to(F16))
        second = mma.make_fragment_C(parts[2])
        second.fill(0.0)
        cute.gemm(mma, second, again, b_regs, second)
        cute.basic_copy(second, parts[2])

    @cute.jit
    def launch(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
        kernel(a, b, c).launch(grid=1, block=32)

    c = aligned((16, 8), np.float32)
    launch(*(from_dlpack(x, assumed_align=16) for x in (a, b, c)))
    np.testing.assert_array_equal(c, expected)
