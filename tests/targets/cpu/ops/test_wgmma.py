"""Products of a warpgroup on the CPU target, against the plain definition, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_testing import asm, run, runs
from wgmma_testing import SUMS, Case, operands, product_kernel, spread, spread_a, values

from kiln import cute
from kiln.cute import arch
from kiln.dialects.nvgpu import definitions, wgmma
from kiln.targets.cpu.faults import WarpGroupFault
from kiln.targets.cpu.runtime.deadlock_report import DeadlockFault


def check(case: Case, accumulate: bool = True, spread_exponents: bool = False) -> None:
    a, b = operands(case, spread_exponents)
    rng = np.random.default_rng(9)
    c = (rng.standard_normal((64, case.n)) * 4).astype(SUMS[case.sums][1])
    registers = spread_a(case, a)
    out = np.zeros((128, case.n // 2), c.dtype)
    given = spread(case.n, c)
    run(product_kernel(case, accumulate), case.image(a, b), registers, given, out, block=128)
    start = c if accumulate else np.zeros_like(c)
    wanted = definitions.wgmma(
        case.a_type, case.b_type, case.sums, values(case.a_type, a), values(case.b_type, b), start
    )
    np.testing.assert_array_equal(out, spread(case.n, wanted))


@pytest.mark.quick(7)
@pytest.mark.parametrize(
    "case",
    [
        Case("f16", "f16", "f32", 64),
        Case("f16", "f16", "f16", 24, swizzle="none"),
        Case("bf16", "bf16", "f32", 256, swizzle="64b"),
        Case("tf32", "tf32", "f32", 40, swizzle="32b"),
        Case("e4m3", "e5m2", "f32", 128),
        Case("e5m2", "e4m3", "f16", 8),
        Case("s8", "u8", "s32", 32),
        Case("u8", "s8", "s32", 16, swizzle="none"),
        Case("f16", "f16", "f32", 64, "mn", "mn"),
        Case("bf16", "bf16", "f32", 32, "mn", "k", "64b"),
        Case("f16", "f16", "f32", 96, "k", "mn", "32b"),
        Case("f16", "f16", "f32", 72, "mn", "mn", "none"),
        Case("f16", "f16", "f32", 16, a_in_registers=True),
        Case("tf32", "tf32", "f32", 8, a_in_registers=True),
        Case("e4m3", "e4m3", "f32", 16, a_in_registers=True),
        Case("s8", "s8", "s32", 8, a_in_registers=True),
    ],
    ids=str,
)
@pytest.mark.parametrize("any_bits", [False, True])
def test_a_product(case, any_bits):
    check(case, spread_exponents=any_bits, accumulate=not any_bits)


@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32", "e4m3", "e5m2"])
def test_terms_that_are_not_finite_and_sums_that_are_tiny_or_too_large(kind):
    """One row each has an infinity, a number that is none, large and small numbers; the others are plain."""
    case = Case(kind, kind, "f32", 16)
    a, b = operands(case)
    exponent, fraction = {"f16": (5, 10), "bf16": (8, 7), "tf32": (8, 23), "e4m3": (4, 3), "e5m2": (5, 2)}[kind]
    infinite = ((1 << exponent) - 1) << fraction
    a[1, 3], a[2, 0], a[3, 5] = infinite, infinite | 1 << (fraction - 1), infinite | 1 << (fraction + exponent)
    a[4], a[5], a[6] = infinite - 1 - (kind == "e4m3"), 1 << fraction, 1
    b[3, 4], b[5, 4] = 0, 0
    b[:, 7] = infinite - 1 - (kind == "e4m3")
    b[:, 9] = 1
    c = np.zeros((64, 16), np.float32)
    c[8, 2], c[9, 3], c[10], c[11] = np.inf, np.nan, 3e38, 1e-44
    out = np.zeros((128, 8), np.float32)
    run(product_kernel(case, True), case.image(a, b), spread_a(case, a), spread(16, c), out, block=128)
    with np.errstate(invalid="ignore"):
        wanted = definitions.wgmma(kind, kind, "f32", values(kind, a), values(kind, b), c)
    np.testing.assert_array_equal(out, spread(16, wanted))
    assert np.isnan(wanted).any() and np.isinf(wanted).any()


def shared(bytes_: int):
    return arch.alloc_smem(cute.Int32, bytes_ // 4, 1024)


GIVEN = {"n": 8, "k": 16, "a_type": "f16", "b_type": "f16", "a_major": "k", "b_major": "k"}


def descriptors(smem, tiles: int = 1):
    """Of A (64 x 16, 128b of which a quarter is used) and B (8 x 16) behind it."""
    return (
        wgmma.matrix_descriptor(smem.ir_value(), 16, 1024, "128b"),
        wgmma.matrix_descriptor((smem + 2048 * tiles).ir_value(), 16, 1024, "128b"),
    )


def add(descriptor, count):
    return (cute.Int64(descriptor) + cute.Int64(count)).ir_value()


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_two_warp_groups_with_groups_in_flight(ahead):
    """Each multiplies four k blocks of its own rows, again and again, while up to so many groups are not complete."""
    rounds = 6

    @cute.kernel
    def kernel(image: cute.Tensor, d: cute.Tensor):
        smem = shared(24576)
        words = cute.make_tensor(smem, cute.make_layout(6144))
        t, group = arch.thread_idx()[0], arch.thread_idx()[0] // 128
        if t < 256:
            for i in range(cute.Int32(24)):
                words[i * 256 + t] = image[i * 256 + t]
            arch.fence_view_async_shared()
        arch.barrier(barrier_id=1, number_of_threads=288)
        if t < 256:
            a, b = descriptors(smem, 2)
            mine = add(a, group * 512)
            sums = cute.make_rmem_tensor(4, cute.Float32)
            sums.fill(0.0)
            wgmma.wgmma_fence()
            for i in range(cute.Int32(rounds)):
                step = (i % 4) * 2
                wgmma.wgmma(sums.iterator.ir_value(), add(mine, step), add(b, step), (i != 0).ir_value(), **GIVEN)
                wgmma.wgmma_commit()
                wgmma.wgmma_wait(ahead)
            wgmma.wgmma_wait(0)
            for i in range(4):
                d[t, i] = sums[i]

    rng = np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((128, 64), (64, 8)))
    memory = np.zeros(12288, np.float16)
    for matrix, start in ((a, 0), (b.T, 16384)):
        descriptor = definitions.matrix_descriptor(start, 16, 1024, "128b")
        for (row, k), value in np.ndenumerate(matrix):
            memory[definitions.operand_address(descriptor, "k", 16, row, k) // 2] = value
    wanted = np.zeros((128, 8), np.float32)
    for i in range(rounds):
        k = slice(i % 4 * 16, i % 4 * 16 + 16)
        wanted = definitions.wgmma("f16", "f16", "f32", a[:, k], b[k], wanted)
    wanted = np.concatenate([spread(8, wanted[:64]), spread(8, wanted[64:])])
    for _, d in runs(kernel, memory.view(np.int32), np.zeros((256, 4), np.float32), block=288):
        np.testing.assert_array_equal(d, wanted)


def one_product(who):
    """A kernel in which threads for which `who(t)` holds execute a product and wait for it."""

    @cute.kernel
    def kernel(d: cute.Tensor):
        smem = shared(12288)
        t = arch.thread_idx()[0]
        a, b = descriptors(smem)
        sums = cute.make_rmem_tensor(4, cute.Float32)
        if who(t):
            wgmma.wgmma(sums.iterator.ir_value(), a, b, cute.Boolean(False).ir_value(), **GIVEN)
            wgmma.wgmma_commit()
            wgmma.wgmma_wait(0)
        d[t] = sums[0]

    return kernel


def test_ptx_around_a_product():
    @cute.kernel
    def kernel(d: cute.Tensor):
        smem = shared(12288)
        words = cute.make_tensor(smem, cute.make_layout(3072))
        t = arch.thread_idx()[0]
        for i in range(cute.Int32(24)):
            words[i * 128 + t] = 0x3C003C00  # ones
        arch.fence_view_async_shared()
        arch.sync_threads()
        a, b = descriptors(smem)
        sums = cute.make_rmem_tensor(4, cute.Float32)
        asm(None, [], "wgmma.fence.sync.aligned;", "")
        wgmma.wgmma(sums.iterator.ir_value(), a, b, cute.Boolean(False).ir_value(), **GIVEN)
        asm(None, [], "wgmma.commit_group.sync.aligned;", "")
        asm(None, [], "wgmma.wait_group.sync.aligned 0;", "")
        d[t] = sums[3]

    for (d,) in runs(kernel, np.zeros(128, np.float32), block=128, schedules=[(1, 0), (1, 3)]):
        np.testing.assert_array_equal(d, np.full(128, 16.0, np.float32))


def test_a_warp_group_that_does_not_come_as_a_whole():
    with pytest.raises(DeadlockFault, match=r"not executed by the whole warpgroup: warps 5, 7 did not come"):
        run(one_product(lambda t: (t < 128) | ((t // 32) % 2 == 0)), np.zeros(256, np.float32), block=256)


def test_operands_differ_between_warps():
    @cute.kernel
    def kernel(d: cute.Tensor):
        smem = shared(16384)
        t = arch.thread_idx()[0]
        a, b = descriptors(smem)
        sums = cute.make_rmem_tensor(4, cute.Float32)
        wgmma.wgmma(sums.iterator.ir_value(), add(a, t // 96), b, cute.Boolean(False).ir_value(), **GIVEN)
        wgmma.wgmma_commit()
        wgmma.wgmma_wait(0)
        d[t] = sums[0]

    with pytest.raises(
        WarpGroupFault, match=r"wgmma m64n8k16 is executed with operands that differ between the threads"
    ):
        run(kernel, np.zeros(128, np.float32), block=128)


def test_an_operand_outside_shared_memory():
    @cute.kernel
    def kernel(d: cute.Tensor):
        smem = shared(8192)
        a, b = descriptors(smem)
        sums = cute.make_rmem_tensor(4, cute.Float32)
        wgmma.wgmma(sums.iterator.ir_value(), a, b, cute.Boolean(False).ir_value(), **GIVEN)
        wgmma.wgmma_commit()
        wgmma.wgmma_wait(0)
        d[arch.thread_idx()[0]] = sums[0]

    with pytest.raises(WarpGroupFault, match=r"has an operand that does not lie in the block's shared memory"):
        run(kernel, np.zeros(128, np.float32), block=128)
