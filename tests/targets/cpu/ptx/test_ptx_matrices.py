"""Inline PTX that multiplies and moves matrices, and copies in bulk."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm, runs

from kiln import cute
from kiln.base_dsl import trace as tracing
from kiln.cute import arch
from kiln.dialects.nvgpu import definitions
from kiln.mlir import ir

FEW = [(1, 0), (1, 1), (2, 2)]


def struct(kind, count):
    return ir.Type.parse(f"!llvm.struct<({', '.join([kind] * count)})>")


def parts(value, kind, count):
    return [
        tracing.emit_value(
            "llvm.extractvalue", ir.Type.parse(kind), (value,), {"position": ir.DenseI64ArrayAttr.get([n])}
        )
        for n in range(count)
    ]


def test_a_product_of_matrices_in_ptx():
    """C = A B by `ldmatrix`, `mma` and `stmatrix`, as CUDA programs write it; `movmatrix` transposes."""
    load_a = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {$0, $1, $2, $3}, [$4];"
    load_b = "ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {$0, $1}, [$2];"
    multiply = """{
        mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, {$10, $10, $10, $10};
    }"""
    i32, f32 = "i32", "f32"

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, turned: cute.Tensor):
        left, right, corner = (
            cute.make_tensor(arch.alloc_smem(cute.Float16, n, 128), cute.make_layout(n)) for n in (256, 128, 64)
        )
        t = arch.thread_idx()[0]
        for i in range(8):
            left[i * 32 + t] = a[i * 32 + t]
        for i in range(4):
            right[i * 32 + t] = b[i * 32 + t]
        arch.sync_warp()
        place = (left.iterator + (t % 16 * 16 + t // 16 * 8)).toint()
        x = parts(asm(struct(i32, 4), [place], load_a, "=r,=r,=r,=r,r"), i32, 4)
        y = parts(asm(struct(i32, 2), [(right.iterator + t % 16 * 8).toint()], load_b, "=r,=r,r"), i32, 2)
        zero = cute.Float32(0)
        made = asm(struct(f32, 4), [*x, *y, zero], multiply, "=f,=f,=f,=f,r,r,r,r,r,r,f")
        for n, value in enumerate(parts(made, f32, 4)):
            out[(t // 4 + n // 2 * 8) * 8 + t % 4 * 2 + n % 2] = cute.Float32._make(value)
        moved = asm(cute.Int32.mlir_type, [x[0]], "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;", "=r,r")
        row = (corner.iterator + t % 8 * 8).toint()
        asm(None, [row, moved], "stmatrix.sync.aligned.m8n8.x1.shared.b16 [$0], {$1};", "r,r")
        arch.sync_warp()
        for i in range(2):
            turned[i * 32 + t] = corner[i * 32 + t]

    rng = np.random.default_rng(5)
    a, b = (rng.integers(-8, 9, n).astype(np.float16) for n in (256, 128))
    arrays = a, b, np.zeros(128, np.float32), np.zeros(64, np.float16)
    for _, _, out, turned in runs(kernel, *arrays, schedules=FEW):
        want = a.reshape(16, 16).astype(np.float64) @ b.reshape(16, 8).astype(np.float64)
        np.testing.assert_array_equal(out.reshape(16, 8), want)
        np.testing.assert_array_equal(turned.reshape(8, 8), a.reshape(16, 16)[:8, :8].T)
    corner = a.reshape(16, 16)[:8, :8].copy()
    registers = [lane[0] for lane in definitions.ldmatrix([row.tobytes() for row in corner], 1)]
    rows = definitions.stmatrix([[register] for register in definitions.movmatrix(registers)], 1)
    np.testing.assert_array_equal(np.frombuffer(b"".join(rows), np.float16).reshape(8, 8), corner.T)


def _registers(matrix, rows, bits):
    """The registers of A (16 or 8 rows) or of B, as its columns: [lane, register], by the manual's tables of fragments."""
    per, k = 32 // bits, matrix.shape[1]
    made = np.zeros((32, rows // 8 * (k // (4 * per))), np.uint64)
    for lane in range(32):
        g, t = divmod(lane, 4)
        for register in range(made.shape[1]):
            row, block = g + 8 * (register % (rows // 8)), register // (rows // 8)
            for i in range(per):
                value = int(matrix[row, 4 * per * block + t * per + i]) & ((1 << bits) - 1)
                made[lane, register] |= np.uint64(value << bits * i)
    return made.astype(np.uint32).view(np.int32)


INTEGERS = [
    ("m16n8k64", "s4", "s4", ""), ("m16n8k64", "u4", "s4", ""), ("m16n8k32", "s4", "u4", ""), ("m8n8k32", "u4", "u4", ""),
    ("m16n8k64", "s4", "s4", "satfinite"), ("m16n8k32", "s8", "u8", "satfinite"), ("m16n8k256", "b1", "b1", "xor"),
    ("m16n8k256", "b1", "b1", "and"), ("m16n8k128", "b1", "b1", "xor"), ("m8n8k128", "b1", "b1", "and"),
]  # fmt: skip


@pytest.mark.quick(2)
@pytest.mark.parametrize(("shape", "a_type", "b_type", "how"), INTEGERS)
def test_products_of_narrow_integers(shape, a_type, b_type, how):
    m, n, k = map(int, shape.replace("m", "").replace("n", " ").replace("k", " ").split())
    bits = int(a_type[1:])
    counts = [m * k * bits // 1024, n * k * bits // 1024, m * n // 32]
    numbers = iter(range(100))
    places = [[f"${next(numbers)}" for _ in range(count)] for count in (counts[2], *counts)]
    names = ["{" + ", ".join(part) + "}" for part in places]
    types = f"row.col{'.satfinite' if how == 'satfinite' else ''}.s32.{a_type}.{b_type}.s32"
    text = f"mma.sync.aligned.{shape}.{types}{f'.{how}.popc' if bits == 1 else ''} {', '.join(names)};"
    constraints = ",".join(["=r"] * counts[2] + ["r"] * sum(counts))

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor, out: cute.Tensor):
        t = arch.thread_idx()[0]
        given = [x[t, i] for x, count in zip((a, b, c), counts) for i in range(count)]
        made = asm(struct("i32", counts[2]), given, text, constraints)
        for i, value in enumerate(parts(made, "i32", counts[2])):
            out[t, i] = cute.Int32._make(value)

    rng = np.random.default_rng(k)

    def drawn(rows, kind):
        signed = kind[0] == "s"
        return rng.integers(-(1 << bits - 1) if signed else 0, 1 << (bits - signed), (rows, k)).astype(np.int64)

    left, right = drawn(m, a_type), drawn(n, b_type)
    start = rng.choice([-(1 << 31), (1 << 31) - 1, 5], (m, n))  # many sums leave the range
    if how != "satfinite":
        want = (left[:, None, :] ^ right[None]).sum(-1) if how == "xor" else left @ right.T
        want = (want + start).astype(np.int32)
    else:
        want = np.clip(left @ right.T + start, -(1 << 31), (1 << 31) - 1)
    lanes = np.arange(32)[:, None]
    held = np.arange(counts[2])[None]
    rows, columns = lanes // 4 + 8 * (held // 2), lanes % 4 * 2 + held % 2
    arrays = _registers(left, m, bits), _registers(right, 8, bits), start[rows, columns].astype(np.int32)
    a_kind, b_kind = (f"b1.{how}", f"b1.{how}") if bits == 1 else (a_type, b_type)
    held_a = [[int(left[p]) & (1 << bits) - 1 for p in definitions.a_places(m, k, bits, lane)] for lane in range(32)]
    held_b = [
        [int(right[p[::-1]]) & (1 << bits) - 1 for p in definitions.b_places(k, bits, lane)] for lane in range(32)
    ]
    plain = definitions.mma_sync(
        (m, n, k), a_kind, b_kind, "s32", held_a, held_b, arrays[2].tolist(), how == "satfinite"
    )
    np.testing.assert_array_equal(plain, want[rows, columns])
    for *_, out in runs(kernel, *arrays, np.zeros((32, counts[2]), np.int32), schedules=FEW):
        np.testing.assert_array_equal(out, want[rows, columns])


@pytest.mark.parametrize("mask", [0b1111, 0b0101, 0b1000])
def test_a_bulk_copy_to_several_blocks(mask):
    """One block copies to the same place in each block of a mask, whose mbarriers expect the bytes."""
    text = (
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [$0], [$1], 64, [$2], $3;"
    )

    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        barrier = arch.alloc_smem(cute.Int64, 1)
        tile = cute.make_tensor(arch.alloc_smem(cute.Int32, 16, 16), cute.make_layout(16))
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        if t < 16:
            tile[t] = -1
        if t == 0:
            arch.mbarrier_init(barrier, 1)
        arch.mbarrier_init_fence()
        arch.cluster_arrive()
        arch.cluster_wait()
        if t == 0:
            if (mask >> b) & 1 != 0:
                arch.mbarrier_arrive_and_expect_tx(barrier, 64)
            if b == 1:
                operands = [tile.iterator.toint(), x.iterator.toint(), barrier.toint(), cute.Int16(mask)]
                asm(None, operands, text, "r,l,r,h")
        if (mask >> b) & 1 != 0:
            arch.mbarrier_wait(barrier, 0)
        arch.cluster_arrive()
        arch.cluster_wait()
        if t < 16:
            out[b * 16 + t] = tile[t]

    x = np.arange(16, dtype=np.int32) + 100
    for _, out in runs(kernel, x, np.zeros(64, np.int32), grid=4, cluster=(4, 1, 1)):
        want = [x if mask >> b & 1 else np.full(16, -1) for b in range(4)]
        np.testing.assert_array_equal(out.reshape(4, 16), want)


@pytest.mark.parametrize("rank", [0, 2])
def test_a_bulk_copy_between_blocks(rank):
    text = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"

    @cute.kernel
    def kernel(out: cute.Tensor):
        barrier = arch.alloc_smem(cute.Int64, 1)
        here, there = (cute.make_tensor(arch.alloc_smem(cute.Int32, 32, 16), cute.make_layout(32)) for _ in range(2))
        t, b = arch.thread_idx()[0], arch.block_idx()[0]
        here[t] = b * 1000 + t
        if t == 0:
            arch.mbarrier_init(barrier, 1)
            arch.mbarrier_arrive_and_expect_tx(barrier, 128)
        arch.fence_proxy("async.shared", space="cta")
        arch.cluster_arrive()
        arch.cluster_wait()
        if t == 0:
            to = (b + rank) % 4
            target = arch.map_dsmem_ptr(there.iterator, to).toint()
            signal = arch.map_dsmem_ptr(barrier, to).toint()
            asm(None, [target, here.iterator.toint(), cute.Int32(128), signal], text, "r,r,r,r")
        arch.mbarrier_wait(barrier, 0)
        out[b * 32 + t] = there[t]
        arch.cluster_arrive()
        arch.cluster_wait()

    for (out,) in runs(kernel, np.zeros(128, np.int32), grid=4, cluster=(4, 1, 1)):
        want = [[(b - rank) % 4 * 1000 + t for t in range(32)] for b in range(4)]
        np.testing.assert_array_equal(out.reshape(4, 32), want)


def test_scale_factors_may_be_vectors_of_one_register():
    """As CUTLASS writes them; 64 products of ones, scaled by 2 and 0.5."""
    mma = "mma.sync.aligned.kind::mxf4nvf4.block_scale.scale_vec::4X.m16n8k64.row.col.f32.e2m1.e2m1.f32.ue4m3"
    registers = "{$0, $1, $2, $3}, {$4, $4, $4, $4}, {$4, $4}, {$5, $5, $5, $5}"
    spellings = ("$6, {0, 0}, $7, {0, 0}", "{$6}, {$8, $8}, {$7}, {$8, $8}")

    @cute.kernel
    def kernel(out: cute.Tensor):
        ones, two, half = (cute.Int32(word).ir_value() for word in (0x22222222, 0x40404040, 0x30303030))
        operands = [ones, cute.Float32(0).ir_value(), two, half, cute.Int16(0).ir_value()]
        for number, scales in enumerate(spellings):
            given = operands if "$8" in scales else operands[:-1]
            constraints = "=f,=f,=f,=f,r,f,r,r" + ",h" * (len(given) - 4)
            made = asm(struct("f32", 4), given, f"{mma} {registers}, {scales};", constraints)
            for n, value in enumerate(parts(made, "f32", 4)):
                out[number, arch.thread_idx()[0], n] = cute.Float32._make(value)

    for (out,) in runs(kernel, np.zeros((2, 32, 4), np.float32), schedules=FEW[:1]):
        assert (out == 64).all()
