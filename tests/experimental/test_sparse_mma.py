"""MMAs with a sparse A (`tcgen05.mma.sp`): against numpy, in inline PTX, with wrong metadata, and for the sanitizer."""

from __future__ import annotations

import re

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas
from sanitizer_testing import found

import kiln
from kiln import cute
from kiln.base_dsl.diagnostics import DSLArchitectureError, DSLUserCodeRuntimeError
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack
from kiln.dialects import nvgpu
from kiln.dialects.nvgpu import definitions
from kiln.experimental import primitives as prims
from kiln.hardware import mma_shapes
from kiln.targets.cpu.faults import TensorMemoryFault

M, N, K = 128, 16, 32
INLINE = "{ .reg .pred p; setp.ne.b32 p, {$r5}, 0; tcgen05.mma.sp.cta_group::1.kind::f16 [{$r0}], {$r1}, {$r2}, [{$r3}], {$r4}, p; }"


def launcher(form: str = "", waits: bool = True):
    """A kernel that multiplies by two matrices A of f16, whose metadata are in neighbouring columns."""

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, metadata: cute.Tensor, out: cute.Tensor):
        tx, warp = arch.thread_idx()[0], arch.warp_idx()
        near_a = [kiln.Array(kiln.Uint8, M * K, space=kiln.AddressSpace.smem, alignment=128) for _ in (0, 1)]
        near_b = kiln.Array(kiln.Uint8, N * 2 * K, space=kiln.AddressSpace.smem, alignment=128)
        holder = kiln.Array(kiln.Int32, 1, space=kiln.AddressSpace.smem)
        bar = kiln.Array(kiln.Int64, 1, space=kiln.AddressSpace.smem)
        for part in kiln.range_constexpr(4):  # 8 rows of 16 bytes lie together, and then those that follow along K
            for byte in kiln.range_constexpr(16):
                which, piece = part // 2, part % 2
                near_a[which][tx // 8 * 256 + piece * 128 + tx % 8 * 16 + byte] = a[which, tx, 16 * piece + byte]
                if tx < N:
                    near_b[tx // 8 * 512 + part * 128 + tx % 8 * 16 + byte] = b[tx, 16 * part + byte]
        if tx == 0:
            prims.mbarrier_init(bar, 1)
        prims.fence_mbarrier_init()
        prims.fence_proxy(prims.Proxy.ASYNC_SHARED, space=prims.SharedSpace.shared_cta)
        if warp == 0:
            prims.tcgen05_alloc(holder, 64)
            prims.tcgen05_relinquish_alloc_permit()
        prims.barrier_cta_sync(0)
        base = prims.TmemAddr(holder[0])
        there = base + 2 * N
        mine = prims.make_tmem_ptr_from_warp_row_col(there, warp, there.col_id, kiln.Int32)
        words = (metadata[0, tx], metadata[1, tx])
        prims.tcgen05_st("32x32b", mine, kiln.Vector.from_elements(words, kiln.Int32))
        if kiln.const_expr(waits):
            prims.tcgen05_wait("store")
        prims.tcgen05_fence("before_thread_sync")
        prims.barrier_cta_sync(0)
        prims.tcgen05_fence("after_thread_sync")
        if warp == 0:
            desc_b = prims.Tcgen05SmemDesc.build(near_b, 128, 512)
            if prims.elect_sync():
                for which in kiln.range_constexpr(2):
                    desc_a = prims.Tcgen05SmemDesc.build(near_a[which], 128, 256)
                    idesc = prims.Tcgen05InstrDesc.build(
                        sparse_id2=which, sparse_flag=1, c_dtype=kiln.Float32, n_dim=N, m_dim=M
                    )
                    d = (base + which * N).as_ptr(kiln.Float32)
                    if kiln.const_expr(form):
                        operands = [base + which * N, desc_a, desc_b, there, idesc, kiln.Int32(0)]
                        arch.inline_ptx(form, read_only_args=operands)
                    else:
                        prims.tcgen05_mma_sp("f16", "cta_1", d, desc_a, desc_b, there.as_ptr(kiln.Int32), idesc, False)
                prims.tcgen05_commit(bar)
        while not prims.mbarrier_try_wait_parity(bar, 0):
            pass
        prims.tcgen05_fence("after_thread_sync")
        for which in kiln.range_constexpr(2):
            place = prims.make_tmem_ptr(prims.TmemAddr.from_row_col(32 * warp, (base + which * N).col_id), kiln.Float32)
            loaded = prims.tcgen05_ld("32x32b", place, num=N)
            prims.tcgen05_wait("load")
            for column in kiln.range_constexpr(N):
                out[which, tx, column] = loaded[column]
        prims.tcgen05_fence("before_thread_sync")
        prims.barrier_cta_sync(0)
        if warp == 0:
            prims.tcgen05_dealloc(prims.make_tmem_ptr(holder[0], kiln.Int8), 64)

    @cute.jit
    def main(a: cute.Tensor, b: cute.Tensor, metadata: cute.Tensor, out: cute.Tensor):
        kernel(a, b, metadata, out).launch(grid=1, block=128)

    return main


def operands(seed: int = 0):
    """Two sparse matrices A whole, their elements that are there, B, and metadata: a word for each lane."""
    rng = np.random.default_rng(seed)
    whole = rng.integers(-4, 5, (2, M, K)).astype(np.float16)
    b = rng.integers(-4, 5, (N, K)).astype(np.float16)
    there = np.sort(rng.permuted(np.tile(np.arange(4), (2, M, K // 4, 1)), axis=-1)[..., :2], axis=-1)
    chunks = whole.reshape(2, M, K // 4, 4)
    left = np.ones(chunks.shape, bool)
    np.put_along_axis(left, there, False, axis=-1)
    stored = np.take_along_axis(chunks, there, axis=-1).reshape(2, M, K // 2)
    chunks[left] = 0
    indices = there[..., 0] | there[..., 1] << 2
    words = np.zeros((2, M), np.uint32)
    for row in range(M):
        for chunk in range(8):  # the first 16 elements of rows r and r + 8 are in lane r, the others in lane r + 8
            lane = row // 16 * 16 + row % 8 + 8 * (chunk >= 4)
            words[:, lane] |= indices[:, row, chunk].astype(np.uint32) << (16 * (row % 16 >= 8) + 4 * (chunk % 4))
    return whole, stored, b, words.view(np.int32)


@pytest.mark.quick(1)
@pytest.mark.parametrize("form", ["", INLINE], ids=["primitive", "inline"])
def test_both_columns_of_metadata(form):
    whole, stored, b, words = operands()
    out = np.zeros((2, M, N), np.float32)
    with kiln.target("cpu"), kiln.sanitize():
        launcher(form)(stored.view(np.uint8), b.view(np.uint8), words, out)
    np.testing.assert_array_equal(out, whole.astype(np.float32) @ b.astype(np.float32).T)


def test_metadata_that_mean_nothing_are_a_fault():
    _, stored, b, words = operands()
    words[1, 8 + 2] ^= (words[1, 8 + 2] >> 16 & 15) << 16  # the index of elements 16 to 19 of row 10 becomes 0
    with kiln.target("cpu"), pytest.raises(TensorMemoryFault) as raised:
        launcher()(stored.view(np.uint8), b.view(np.uint8), words, np.zeros((2, M, N), np.float32))
    message = str(raised.value)
    assert "has metadata 0b0000 for elements 16 to 19 along K of row 10 of the CTA's A" in message
    assert "metadata of 4 elements are one of 0b0100, 0b1000" in message and "test_sparse_mma.py" in message


def test_the_sanitizer_sees_metadata_that_may_not_be_there_yet():
    _, stored, b, words = operands()
    out = np.zeros((2, M, N), np.float32)
    with kiln.target("cpu"):
        findings = found(launcher(waits=False), stored.view(np.uint8), b.view(np.uint8), words, out)
    assert {finding.space for finding in findings} == {"tensor"}
    assert any("issues a tcgen05.mma.sp whose metadata are" in str(finding) for finding in findings)


@needs_ptxas
def test_ptx():
    _, stored, b, words = operands()
    arrays = [
        from_dlpack(each) for each in (stored.view(np.uint8), b.view(np.uint8), words, np.zeros((2, M, N), np.float32))
    ]
    ptx = compile_for(launcher(), *arrays, arch="sm_100a").artifacts["ptx"]
    assert (
        len(
            re.findall(
                r"tcgen05\.mma\.sp\.cta_group::1\.kind::f16 \[%r\d+\], %rd\d+, %rd\d+, \[%r\d+\], \S+, p?%?\w+;", ptx
            )
        )
        == 2
    )
    with pytest.raises(DSLArchitectureError, match="tcgen05 needs"):
        compile_for(launcher(), *arrays, arch="sm_90a")


# --- mma.sp ----------------------------------------------------------------------------------------------------------

ROWS = [
    (row, shape[2], a, b, accumulator)
    for row in mma_shapes.SPARSE_MMA_ROWS
    for shape in row.shapes
    for a, b in sorted({(row.inputs[0], row.inputs[-1]), (row.inputs[-1], row.inputs[0])})
    for accumulator in row.accumulators
]
CASES = [
    (k, a, b, accumulator, selector)
    for _, k, a, b, accumulator in ROWS
    for selector in range(mma_shapes.sparse_selectors(a, k))
]
TYPES = {"f32": kiln.Float32, "f16": kiln.Float16, "s32": kiln.Int32}


def warp_launcher(k: int, a: str, b: str, accumulator: str, selector: int, form: str = ""):
    """A kernel of a warp that multiplies fragments which lanes load as words."""
    count = k * mma_shapes.BITS[a] // 128
    sums = TYPES[accumulator]

    @cute.kernel
    def kernel(left: cute.Tensor, right: cute.Tensor, start: cute.Tensor, metadata: cute.Tensor, out: cute.Tensor):
        lane = arch.thread_idx()[0]
        words = [kiln.Vector.from_elements(tuple(x[lane, i] for i in range(count)), kiln.Int32) for x in (left, right)]
        c = kiln.Vector.from_elements(tuple(start[lane, i] for i in range(4)), sums)
        if kiln.const_expr(form):
            held = c.bitcast(kiln.Int32)
            operands = [*(x[i] for x in words for i in range(count)), *(held[i] for i in range(held.numel()))]
            found = arch.inline_ptx(
                form, write_only_types=[kiln.Int32] * held.numel(), read_only_args=[*operands, metadata[lane]]
            )
            d = kiln.Vector.from_elements(tuple(found), kiln.Int32).bitcast(sums)
        else:
            made = nvgpu.mma.mma_sp(
                (16, 8, k), a, b, *(x.value for x in words), c.value, metadata[lane].ir_value(), selector
            )
            d = cute.TensorSSA(made, (4,), sums)
        for i in kiln.range_constexpr(4):
            out[lane, i] = d[i]

    @cute.jit
    def main(left: cute.Tensor, right: cute.Tensor, start: cute.Tensor, metadata: cute.Tensor, out: cute.Tensor):
        kernel(left, right, start, metadata, out).launch(grid=1, block=32)

    return main


def random_words(rng: np.random.Generator, type_: str, count: int) -> np.ndarray:
    """Words of 32 lanes with elements of a type: integers, or floats that are small integers."""
    bits = mma_shapes.BITS[type_]
    if type_ in ("s8", "u8", "s4", "u4"):
        return rng.integers(-(1 << 31), 1 << 31, (32, count)).astype(np.int32)
    numbers = rng.integers(-4, 5, (32, count * 32 // bits))
    if type_ == "f16":
        return numbers.astype(np.float16).view(np.int32)
    whole = numbers.astype(np.float32).view(np.uint32)
    if type_ == "tf32":
        return whole.view(np.int32)
    if type_ == "bf16":
        return (whole >> 16).astype(np.uint16).view(np.int32)
    codes = (
        rng.choice([0, 0x30, 0x38, 0x40, 0xB8, 0xC0], numbers.shape)
        if type_ == "e4m3"
        else numbers.astype(np.float16).view(np.uint16) >> 8
    )
    return codes.astype(np.uint8).view(np.int32)


def random_metadata(rng: np.random.Generator, type_: str) -> np.ndarray:
    indices = [4, 14] if type_ == "tf32" else [4, 8, 9, 12, 13, 14]
    nibbles = rng.choice(indices, (32, 8)).astype(np.uint64)
    return (nibbles << (4 * np.arange(8, dtype=np.uint64))).sum(1).astype(np.uint32).view(np.int32)


def elements(words: np.ndarray, type_: str) -> list[list[int]]:
    bits = mma_shapes.BITS[type_]
    return [
        [int(word) >> at & (1 << bits) - 1 for word in lane.view(np.uint32) for at in range(0, 32, bits)]
        for lane in words
    ]


def warp_operands(k: int, a: str, b: str, accumulator: str, selector: int):
    rng = np.random.default_rng(k + selector)
    count = k * mma_shapes.BITS[a] // 128
    left, right = (random_words(rng, type_, count) for type_ in (a, b))
    start = rng.integers(-9, 10, (32, 4)).astype({"f16": np.float16, "s32": np.int32}.get(accumulator, np.float32))
    metadata = random_metadata(rng, a)
    threads = 4 // mma_shapes.sparse_selectors(a, k)
    metadata[np.arange(32) % 4 // threads != selector] = 0  # of lanes that have none
    want = definitions.mma_sp(
        (16, 8, k), a, b, accumulator, elements(left, a), elements(right, b), start.tolist(),
        metadata.view(np.uint32).tolist(), selector,
    )  # fmt: skip
    return (left, right, start, metadata, np.zeros_like(start)), np.array(want)


@pytest.mark.quick(12)
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case)))
def test_fragments_of_a_warp(case):
    """Every type, shape and selector, against the definition in plain Python."""
    arrays, want = warp_operands(*case)
    with kiln.target("cpu"):
        warp_launcher(*case)(*arrays)
    np.testing.assert_array_equal(arrays[-1], want)


def ordered(code: str, d: int, count: int) -> str:
    """An instruction whose operands are D, A, B, C and metadata, as inline PTX names them."""
    group = lambda letter, first, size: "{" + ", ".join(f"{{${letter}{first + i}}}" for i in range(size)) + "}"
    registers = ", ".join((group("w", 0, d), group("r", 0, count), group("r", count, count), group("r", 2 * count, d)))
    return f"{code} {registers}, {{$r{2 * count + d}}}, 0;"


INLINE_MMA = {
    "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f16.f16.f16.f16": (32, "f16", "f16", "f16"),
    "mma.sp.sync.aligned.m16n8k64.row.col.s32.s8.u8.s32": (64, "s8", "u8", "s32"),
    "mma.sp::ordered_metadata.sync.aligned.m16n8k64.row.col.f32.e4m3.e5m2.f32": (64, "e4m3", "e5m2", "f32"),
}


@pytest.mark.parametrize("code", INLINE_MMA)
def test_fragments_in_inline_ptx(code):
    case = (*INLINE_MMA[code], 0)
    arrays, want = warp_operands(*case)
    form = ordered(code, 2 if case[3] == "f16" else 4, case[0] * mma_shapes.BITS[case[1]] // 128)
    with kiln.target("cpu"):
        warp_launcher(*case, form)(*arrays)
    np.testing.assert_array_equal(arrays[-1], want)


def test_dense_is_sparse_with_zeros():
    """A product of a sparse A by the primitive is that of the whole A in numpy."""
    rng = np.random.default_rng(3)
    whole, stored, _, _ = operands(3)
    whole, stored = whole[0, :16], stored[0, :16]
    b = rng.integers(-4, 5, (8, K)).astype(np.float16)
    chunks = whole.reshape(16, 8, 4)
    metadata = np.zeros(32, np.uint32)
    for row in range(16):
        for chunk in range(8):
            low, high = matching(chunks[row, chunk], stored[row, 2 * chunk : 2 * chunk + 2])
            metadata[row % 8 * 4 + chunk // 4] |= np.uint32((low | high << 2) << (16 * (row // 8) + 4 * (chunk % 4)))
    lanes = range(32)
    left = np.array([[stored[r, c] for r, c in definitions.a_places(16, 16, 16, lane)] for lane in lanes])
    right = np.array([[b[c, r] for r, c in definitions.b_places(K, 16, lane)] for lane in lanes])

    @cute.kernel
    def kernel(left: cute.Tensor, right: cute.Tensor, metadata: cute.Tensor, out: cute.Tensor):
        lane = arch.thread_idx()[0]
        x, y = (kiln.Vector.from_elements(tuple(t[lane, i] for i in range(8)), kiln.Float16) for t in (left, right))
        c = kiln.Vector.from_elements((kiln.Float32(0),) * 4, kiln.Float32)
        d = prims.mma_sp_sync(x, y, c, metadata[lane])
        for i in kiln.range_constexpr(4):
            out[lane, i] = d[i]

    @cute.jit
    def main(left: cute.Tensor, right: cute.Tensor, metadata: cute.Tensor, out: cute.Tensor):
        kernel(left, right, metadata, out).launch(grid=1, block=32)

    out = np.zeros((32, 4), np.float32)
    with kiln.target("cpu"):
        main(left, right, metadata.view(np.int32), out)
    want = whole.astype(np.float32) @ b.astype(np.float32).T
    for lane in lanes:
        assert [want[place] for place in definitions.c_places(16, lane)] == out[lane].tolist()


def matching(chunk: np.ndarray, stored: np.ndarray) -> tuple[int, int]:
    """Two places of a chunk that have the elements that are stored, and all that is not zero."""
    for low in range(4):
        for high in range(low + 1, 4):
            rest = [x for place, x in enumerate(chunk) if place not in (low, high)]
            if chunk[low] == stored[0] and chunk[high] == stored[1] and not any(rest):
                return low, high
    raise AssertionError((chunk, stored))


@pytest.mark.parametrize(
    ("a", "k", "accumulator", "index"),
    [("f16", 32, "f32", 0b0001), ("tf32", 8, "f32", 0b1001), ("s8", 64, "s32", 0b1010)],
)
def test_indices_of_a_warp_that_mean_nothing_are_a_fault(a, k, accumulator, index):
    arrays, _ = warp_operands(k, a, a, accumulator, 0)
    arrays[3][4] = arrays[3][4] & ~0xF0 | index << 4
    with (
        kiln.target("cpu"),
        pytest.raises(DSLUserCodeRuntimeError, match=r"(?s)mma.sp with metadata -?\d+.*each 4 bits are"),
    ):
        warp_launcher(k, a, a, accumulator, 0)(*arrays)


@needs_ptxas
@pytest.mark.parametrize(
    "case", [(*key, 0) for key in dict.fromkeys(case[:4] for case in CASES)], ids=lambda case: "-".join(map(str, case))
)
def test_ptxas_takes_every_type_and_shape(case):
    arrays, _ = warp_operands(*case)
    arch_name = "sm_89" if case[1] in ("e4m3", "e5m2") else "sm_80"
    ptx = compile_for(warp_launcher(*case), *map(from_dlpack, arrays), arch=arch_name).artifacts["ptx"]
    k, a, b, accumulator, _ = case
    assert f"mma.sp::ordered_metadata.sync.aligned.m16n8k{k}.row.col.{accumulator}.{a}.{b}.{accumulator} " in ptx
