"""Conversions between floats, for every number of 8 and 16 bits: one at a time and as vectors, to every float type."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute, utils
from kiln.cute.nvgpu import CopyUniversalOp, cpasync
from kiln.cute.runtime import from_dlpack
from kiln.targets.nvidia import codegen

NARROW = [kiln.Float8E4M3FN, kiln.Float8E4M3, kiln.Float8E5M2, kiln.Float8E4M3B11FNUZ, kiln.Float8E8M0FNU]
SOURCES = [*NARROW, kiln.Float16, kiln.BFloat16]
TARGETS = [*NARROW, kiln.Float16, kiln.BFloat16, kiln.Float32, kiln.Float64]
SIXTEEN = {kiln.Float16: (10, -14, 65504.0), kiln.BFloat16: (7, -126, (2 - 2.0**-7) * 2.0**127)}
"""Bits of the mantissa, the smallest exponent, the largest number."""


def values(t: Any) -> np.ndarray:
    """All numbers of a type, by their bits."""
    return widened(np.arange(1 << t.width, dtype=f"u{max(t.width // 8, 1)}").view(t.numpy_dtype))


def widened(x: np.ndarray) -> np.ndarray:
    """As float64; numpy warns of signalling NaN."""
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


@functools.cache
def numbers(t: Any) -> tuple[np.ndarray, np.ndarray]:
    """The finite numbers from 0 up, and whether the bits of each are even."""
    half = values(t)[: 1 << (t.width - int(t.signed))]
    finite = np.isfinite(half)
    return half[finite], np.arange(len(half))[finite] % 2 == 0


def rounded(t: Any, x: np.ndarray) -> np.ndarray:
    """The nearest number of a type, from the table of all: ties to even (up, of powers of two).

    Beyond the largest number: the largest, in types of less than 16 bits. NaN where there is none: the largest.
    """
    table, even = numbers(t)
    size = np.abs(x)
    low = np.clip(np.searchsorted(table, size, "right") - 1, 0, len(table) - 2)
    below, above = table[low], table[low + 1]
    with np.errstate(invalid="ignore"):
        to_below, to_above = size - below, above - size  # exact: these have few bits
    up = (to_above < to_below) | ((to_above == to_below) & (even[low + 1] | (not t.signed)))
    found = np.where(size >= table[-1], table[-1], np.where(up & (size > table[0]), above, below))
    if t.width == 16:
        limit = table[-1] + (table[-1] - table[-2]) / 2
        found = np.where(size >= limit, np.inf, found)
    elif not t.signed:
        found = np.where(x < 0, np.nan, found)
    found = np.where(np.signbit(x) & t.signed, -found, found)
    found = np.where(np.isnan(x), table[-1] if t._format.nan == "none" else np.nan, found)
    return np.where(found == 0, 0.0, found) if t._format.nan == "negative_zero" else found


@functools.cache
def converted(source: Any, target: Any) -> tuple[np.ndarray, np.ndarray]:
    """Every number of a type converted to another, by elements and by vectors of 16."""
    count = 1 << source.width
    x = np.arange(count, dtype=f"u{source.width // 8}").reshape(-1, 16)
    storage = target.numpy_dtype if target.width > 8 else np.uint8
    one, many = np.zeros(x.shape, storage), np.zeros(x.shape, storage)

    @cute.jit
    def f(x: cute.Tensor, one: cute.Tensor, many: cute.Tensor):
        for i in range(x.shape[0]):
            row = x[i, None]
            many[i, None].store(row.load().to(target))
            for j in kiln.range_constexpr(16):
                one[i, j] = row[j].to(target)

    def typed(array: np.ndarray, t: Any) -> Any:
        tensor = from_dlpack(array)
        tensor.element_type = t
        return tensor

    f(typed(x, source), typed(one, target), typed(many, target))
    made = [widened(a.view(target.numpy_dtype)).reshape(-1) for a in (one, many)]
    return made[0], made[1]


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert np.array_equal(got, want, equal_nan=True)
    number = ~np.isnan(want)
    assert np.array_equal(np.signbit(got[number]), np.signbit(want[number]))


@pytest.mark.quick(10)
@pytest.mark.parametrize("source", SOURCES, ids=str)
@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_every_number(source: Any, target: Any):
    one, many = converted(source, target)
    exact = values(source)
    want = exact if target.width >= 32 or source is target else rounded(target, exact)
    same(one, want)
    same(many, want)


def halfway_and_beside(t: Any) -> np.ndarray:
    """Numbers of 32 bits that lie halfway between two of a type, one step beside that, and at the ends."""
    mantissa, smallest, largest = SIXTEEN[t]
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 16, 2000, dtype=np.uint16)
    bits = widened(bits.view(t.numpy_dtype))
    bits = bits[np.isfinite(bits) & (np.abs(bits) < largest)]
    _, exponent = np.frexp(bits)
    step = 2.0 ** (np.maximum(exponent - 1, smallest) - mantissa)
    half = (bits + np.copysign(step / 2, bits)).astype(np.float32)
    ends = np.array([largest, largest * (1 + 2.0 ** -(mantissa + 2)), 2.0**smallest, 0, np.inf, np.nan], np.float32)
    made = np.concatenate(
        [half, np.nextafter(half, np.float32(0)), np.nextafter(half, np.float32(np.inf)), ends, -ends]
    )
    return np.concatenate([made, rng.integers(0, 1 << 32, 3000, dtype=np.uint64).astype(np.uint32).view(np.float32)])


@pytest.mark.parametrize("t", SIXTEEN, ids=str)
def test_halfway_between_numbers_of_sixteen_bits(t: Any):
    x = halfway_and_beside(t)
    x = np.resize(x, (len(x) // 16, 16))
    one, many = np.zeros(x.shape, t.numpy_dtype), np.zeros(x.shape, t.numpy_dtype)

    @cute.jit
    def f(x: cute.Tensor, one: cute.Tensor, many: cute.Tensor):
        for i in range(x.shape[0]):
            many[i, None].store(x[i, None].load().to(t))
            for j in kiln.range_constexpr(16):
                one[i, j] = x[i, j].to(t)

    f(*(from_dlpack(a) for a in (x, one, many)))
    want = rounded(t, widened(x))
    same(widened(one), want)
    same(widened(many), want)


def around(t: Any) -> np.ndarray:
    """Numbers of 32 bits: those of a type, halfway between them, one step beside those, and the ends."""
    table, _ = numbers(t)
    exact = np.concatenate([table, (table[1:] + table[:-1]) / 2, [table[-1] * 1.5, 1e30, 1e-40, np.inf]])
    exact = exact.astype(np.float32)
    beside = [np.nextafter(exact, np.float32(end)) for end in (0, np.inf)]
    made = np.concatenate([exact, *beside])
    return np.concatenate([made, -made, np.full(1, np.nan, np.float32)])


@pytest.mark.parametrize("t", [kiln.Float4E2M1FN, kiln.Float6E2M3FN, kiln.Float6E3M2FN], ids=str)
def test_below_eight_bits(t: Any):
    """All codes to wider floats, f32 and f16 to codes, as vectors and one at a time; 4 bits are packed in memory."""
    x = around(t)
    x = np.resize(x, (len(x) // 16 + 1, 16))
    bits = 4 if t.width == 4 else 8

    def storage(count: int) -> np.ndarray:
        return np.zeros((count, 2 * bits), np.uint8)

    def packed(codes: np.ndarray) -> np.ndarray:
        return codes[:, ::2] | codes[:, 1::2] << 4 if bits == 4 else codes

    def codes_of(stored: np.ndarray) -> np.ndarray:
        return np.stack([stored & 15, stored >> 4], 2).reshape(len(stored), 16) if bits == 4 else stored

    codes = packed(np.resize(np.arange(1 << t.width, dtype=np.uint8), (4, 16)))
    one, many, halves, copied = storage(len(x)), storage(len(x)), storage(len(x)), storage(4)
    wide = [np.zeros((4, 16), kind) for kind in ("f4", "f4", "f2", "f4")]

    @cute.jit
    def f(
        x: cute.Tensor, codes: cute.Tensor, one: cute.Tensor, many: cute.Tensor, halves: cute.Tensor,
        copied: cute.Tensor, w0: cute.Tensor, w1: cute.Tensor, w2: cute.Tensor, w3: cute.Tensor,
    ):  # fmt: skip
        for i in range(x.shape[0]):
            many[i, None].store(x[i, None].load().to(t))
            halves[i, None].store(x[i, None].load().to(kiln.Float16).to(t))
            for j in kiln.range_constexpr(16):
                one[i, j] = x[i, j].to(t)
        for i in range(4):
            row = codes[i, None].load()
            w0[i, None].store(row.to(kiln.Float32))
            w2[i, None].store(row.to(kiln.Float16))
            w3[i, None].store(row.to(kiln.BFloat16).to(kiln.Float32))
            registers = cute.make_rmem_tensor(16, t)
            cute.autovec_copy(codes[i, None], registers)
            cute.autovec_copy(registers, copied[i, None])
            for j in kiln.range_constexpr(16):
                w1[i, j] = codes[i, j].to(kiln.Float32)

    def typed(array: np.ndarray) -> Any:
        tensor = from_dlpack(array)
        tensor.element_type = t
        return tensor

    narrow = [typed(array) for array in (codes, one, many, halves, copied)]
    f(from_dlpack(x), *narrow, *(from_dlpack(array) for array in wide))
    with np.errstate(over="ignore"):
        rounded_halves = rounded(t, widened(x.astype(np.float16)))
    for got, want in ((one, rounded(t, widened(x))), (many, rounded(t, widened(x))), (halves, rounded_halves)):
        same(values(t)[codes_of(got)], want)
    np.testing.assert_array_equal(copied, codes)
    for array in wide:
        same(widened(array), values(t)[codes_of(codes)])


def test_llvm_bitcast_to_a_vector_of_4_bits():
    """Programs write it to pack what they rounded themselves: four codes of 4 bits of an i16, and back to one."""
    from cutlass._mlir import ir
    from cutlass._mlir.dialects import llvm, vector

    @cute.kernel
    def kernel(out: cute.Tensor, word: kiln.Int16, of_vector: kiln.Constexpr):
        given = word.ir_value()
        if kiln.const_expr(of_vector):
            given = vector.from_elements(ir.VectorType.get([1], kiln.Int16.mlir_type), [given])
        four = llvm.bitcast(ir.VectorType.get([4], kiln.Float4E2M1FN.mlir_type), given)
        values = cute.make_rmem_tensor(4, kiln.Float4E2M1FN)
        values.store(cute.TensorSSA(four, 4, kiln.Float4E2M1FN))
        out[0] = cute.recast_tensor(values, kiln.Int16)[0]
        back = llvm.bitcast(kiln.Int16.mlir_type, values.load().ir_value())
        out[1] = kiln.Int16(back)
        for i in kiln.range_constexpr(4):
            out[2 + i] = values[i].to(kiln.Float32).to(kiln.Int16)

    @cute.jit
    def run(out: cute.Tensor, word: kiln.Int16, of_vector: kiln.Constexpr = False):
        kernel(out, word, of_vector).launch(grid=1, block=1)

    for of_vector in (False, True):
        out = np.zeros(6, np.int16)
        with kiln.target("cpu"):
            run(from_dlpack(out), 0x7E53, of_vector)
        assert out.tolist() == [0x7E53, 0x7E53, 1, 3, -4, 6]  # codes 3, 5, 14, 7: 1.5, 3, -4, 6
        for arch in ("sm_90a", "sm_120a") if codegen.ptxas_version() is not None else ():
            options = f"--gpu-arch {arch}"
            cute.compile(run, from_dlpack(out), 3, of_vector, target="nvidia", options=options)


def test_packed_tensors_are_copied_and_recast():
    """4-bit elements through cp.async, shared memory, registers and bitcasts; compiled for GPUs with and without them."""
    t = kiln.Float4E2M1FN

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, bytes_: cute.Tensor):
        thread = cute.arch.thread_idx()[0]
        shared = utils.SmemAllocator().allocate_tensor(t, cute.make_layout((32, 32), stride=(32, 1)), 128)
        cute.copy(
            cute.make_copy_atom(cpasync.CopyG2SOp(), t, num_bits_per_copy=128), x[thread, None], shared[thread, None]
        )
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(0)
        registers = cute.make_rmem_tensor(32, t)
        wide = cute.make_copy_atom(CopyUniversalOp(), t, num_bits_per_copy=128)
        cute.copy(wide, shared[thread, None], registers)
        registers.store(registers.load().bitcast(kiln.Uint32).bitcast(t))
        seen = cute.recast_tensor(registers, kiln.Uint8)
        for i in kiln.range_constexpr(16):
            seen[i] = kiln.Uint8(seen[i] ^ 0x88)  # other signs
        cute.copy(wide, registers, y[thread, None])
        whole = cute.recast_tensor(x, kiln.Uint8)
        assert str(whole.layout) == str(cute.recast_layout(8, 4, x.layout)) == "(32,16):(16,1)"
        bytes_[thread] = whole[thread, 3]

    @cute.jit
    def function(x: cute.Tensor, y: cute.Tensor, bytes_: cute.Tensor):
        kernel(x, y, bytes_).launch(grid=1, block=32)

    x = np.random.default_rng(0).integers(0, 256, (32, 16), dtype=np.uint8)
    y, bytes_ = np.zeros_like(x), np.zeros(32, np.uint8)
    given = [from_dlpack(array, assumed_align=16) for array in (x, y)]
    for tensor in given:
        tensor.element_type = t
    with kiln.target("cpu"), kiln.sanitize():
        function(*given, from_dlpack(bytes_))
    np.testing.assert_array_equal(y, x ^ 0x88)
    np.testing.assert_array_equal(bytes_, x[:, 3])
    if codegen.ptxas_version() is not None:
        for arch in ("sm_80", "sm_120a"):
            options = f"--gpu-arch {arch}"
            cute.compile(function, *given, from_dlpack(bytes_), target="nvidia", options=options)
