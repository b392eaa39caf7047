# pyright: reportAttributeAccessIssue=false, reportArgumentType=false
"""Products of warpgroups: the PTX says what was asked for, and in the machine code they run asynchronously, in registers."""

from __future__ import annotations

import os

import pytest
import sass
from nvidia_testing import compile_for, floats, needs_nvdisasm, needs_ptxas

import kiln
from kiln import cute, utils
from kiln.base_dsl.diagnostics import DSLArchitectureError, DSLOptimizationWarning
from kiln.cute import arch
from kiln.cute.nvgpu import warpgroup
from kiln.dialects import nvgpu
from kiln.hardware import mma_shapes

pytestmark = [needs_ptxas, pytest.mark.filterwarnings("error::kiln.DSLOptimizationWarning")]

W = nvgpu.wgmma
ELEMENTS = {
    "f16": cute.Float16, "bf16": cute.BFloat16, "tf32": cute.TFloat32, "e4m3": cute.Float8E4M3FN, "e5m2": cute.Float8E5M2, "s8": cute.Int8,
    "u8": cute.Uint8,
}  # fmt: skip
SUMS = {"f32": cute.Float32, "f16": cute.Float16, "s32": cute.Int32}


def descriptor(pointer, stride=1024):
    return cute.Int64._make(W.matrix_descriptor(pointer.ir_value(), 16, stride, "128b"))


def multiply(d, a, b, accumulate=True, *, n, kind="f16", second=None, a_major="k", b_major="k"):
    """One product; `a` is a descriptor or a tensor."""
    k = 256 // mma_shapes.BITS[kind]
    left = a.iterator.ir_value() if hasattr(a, "iterator") else cute.Int64(a).ir_value()
    flag = cute.Boolean(accumulate).ir_value()
    W.wgmma(
        d.iterator.ir_value(),
        left,
        cute.Int64(b).ir_value(),
        flag,
        n=n,
        k=k,
        a_type=kind,
        b_type=second or kind,
        a_major=a_major,
        b_major=b_major,
    )


def main_loop(kind, second, sums, n, *, in_registers=False, a_major="k", b_major="k", steps=4):
    """A kernel with a main loop of `steps` products a turn, the sums of which are written at the end."""
    k = 256 // mma_shapes.BITS[kind]

    @cute.kernel
    def kernel(out: cute.Tensor, turns: cute.Int32):
        t = arch.thread_idx()[0]
        a, b = (arch.alloc_smem(cute.Int8, rows * 128 * 2, 1024) for rows in (64, n))
        d = cute.make_rmem_tensor((n // 2,), SUMS[sums])
        d.fill(0)
        registers = cute.make_rmem_tensor((k // 2, steps), ELEMENTS[kind])
        first, last = descriptor(a), descriptor(b)
        for turn in range(turns):
            if kiln.const_expr(in_registers):
                words = cute.recast_tensor(registers, cute.Int32)
                for j in kiln.range_constexpr(cute.size(words)):
                    words[j] = t + turn + j
            W.wgmma_fence()
            for j in kiln.range_constexpr(steps):
                left = registers[None, j] if in_registers else first + turn % 2 * 512 + 2 * j
                right = last + turn % 2 * (8 * n) + 2 * j
                multiply(d, left, right, n=n, kind=kind, second=second, a_major=a_major, b_major=b_major)
            W.wgmma_commit()
            W.wgmma_wait(0 if in_registers else 1)
        W.wgmma_wait(0)
        for i in kiln.range_constexpr(n // 2):
            out[t, i] = d[i].to(cute.Float32)

    return kernel


def compiled(kernel, n, **options):
    @cute.jit
    def launch(out: cute.Tensor, turns: cute.Int32):
        kernel(out, turns).launch(grid=1, block=options.pop("block", 128), **options)

    return compile_for(launch, floats(256, n), 4)


CASES = [
    ("f16", "f16", "f32", 256, {}), ("f16", "f16", "f32", 64, {"a_major": "mn", "b_major": "mn"}), ("tf32", "tf32", "f32", 64, {}),
    ("e4m3", "e5m2", "f32", 128, {}), ("s8", "u8", "s32", 64, {}), ("f16", "f16", "f32", 64, {"in_registers": True}),
    ("bf16", "bf16", "f32", 128, {"in_registers": True, "b_major": "mn"}), ("e4m3", "e4m3", "f32", 64, {"in_registers": True}),
    ("s8", "s8", "s32", 64, {"in_registers": True}),
]  # fmt: skip
if os.environ.get("KILN_LONG_TESTS"):  # nothing that the code of those above does not have
    CASES += [
        ("f16", "f16", "f16", 128, {}), ("bf16", "bf16", "f32", 128, {"b_major": "mn"}), ("e5m2", "e4m3", "f16", 64, {}),
        ("u8", "s8", "s32", 256, {}), ("f16", "f16", "f32", 8, {}), ("tf32", "tf32", "f32", 8, {"in_registers": True}),
    ]  # fmt: skip


@pytest.mark.quick(2)
@needs_nvdisasm
@pytest.mark.parametrize(("kind", "second", "sums", "n", "options"), CASES)
def test_a_main_loop_is_products_and_addresses(kind, second, sums, n, options):
    made = compiled(main_loop(kind, second, sums, n, **options), n)
    (loop,) = sass.check_products(made, 4)
    assert len(loop.products) == 4 and loop.waits == 1
    k = 256 // mma_shapes.BITS[kind]
    name = {16: "HGMMA", 32: "HGMMA", 8: "IGMMA" if kind in ("s8", "u8") else "QGMMA"}[mma_shapes.BITS[kind]]
    assert all(i.name.startswith(f"{name}.64x{n}x{k}") for i in loop.products)
    ptx = made.executable.artifacts["ptx"]
    assert ptx.count(f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{sums}.{kind}.{second} ") == 4


# --- kernels in the language -----------------------------------------------------------------------------------------


def tile_of(mma, tile, stages):
    """Tensors of descriptors of A and B in shared memory, and sums, of a thread of a tiled product."""
    smem = utils.SmemAllocator()
    row = utils.LayoutEnum.ROW_MAJOR
    la = utils.sm90.make_smem_layout_a(row, tile, cute.Float16, stages)
    lb = utils.sm90.make_smem_layout_b(row, tile, cute.Float16, stages)
    sa = smem.allocate_tensor(cute.Float16, la.outer, 1024, la.inner)
    sb = smem.allocate_tensor(cute.Float16, lb.outer, 1024, lb.inner)
    group = arch.make_warp_uniform(arch.thread_idx()[0] // 128)
    mine = mma.get_slice(group * 128)
    sums = mma.make_fragment_C(mma.partition_shape_C(tile[:2]))
    return mma.make_fragment_A(mine.partition_A(sa)), mma.make_fragment_B(mine.partition_B(sb)), sums


def tiled(tile, groups=1):
    shape = (64, tile[1])
    mode = cute.nvgpu.OperandMajorMode.K
    return utils.sm90.make_trivial_tiled_mma(
        cute.Float16, cute.Float16, mode, mode, cute.Float32, (groups, 1, 1), shape
    )


@pytest.mark.quick(1)
@needs_nvdisasm
@pytest.mark.parametrize(("tile", "groups", "products"), [((128, 256, 64), 2, 4), ((128, 128, 64), 1, 8)])
def test_a_persistent_loop_with_an_epilogue(tile, groups, products):
    """Tiles in a `while`, k in a `for` whose first product does not accumulate, an epilogue that reads the sums."""
    stages = 4

    @cute.kernel
    def kernel(mma: cute.TiledMma, out: cute.Tensor, tiles: cute.Int32, steps: cute.Int32):
        t = arch.thread_idx()[0]
        ra, rb, sums = tile_of(mma, tile, stages)
        work = arch.block_idx()[0]
        while work < tiles:
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for k in range(steps):
                stage = k % stages
                warpgroup.fence()
                for j in kiln.range_constexpr(cute.size(ra, mode=[2])):
                    place = (None, None, j, stage)
                    cute.gemm(mma, sums, ra[place], rb[place], sums)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                warpgroup.wait_group(1)
            warpgroup.wait_group(0)
            for i in kiln.range_constexpr(cute.size(sums)):
                out[t, i] = sums[i]
            work += 132

    @cute.jit
    def launch(out: cute.Tensor, tiles: cute.Int32, steps: cute.Int32):
        kernel(tiled(tile, groups), out, tiles, steps).launch(grid=132, block=128 * groups, min_blocks_per_mp=1)

    made = compile_for(launch, floats(256, tile[0] * tile[1] // groups // 128), 4, 4)
    (loop,) = sass.check_products(made, products)
    assert len(loop.products) == products and loop.waits == 1


def attention(n, d, rows_in_order=True):
    """A kernel in the order of attention: the scores of the next block are computed beside the output of this one.

    `rows_in_order`: the output is scaled when its products are complete, as it has to be.
    """

    @cute.kernel
    def kernel(out: cute.Tensor, turns: cute.Int32):
        t = arch.thread_idx()[0]
        q, k, v = (descriptor(arch.alloc_smem(cute.Float16, rows * 64, 1024)) for rows in (64, n, n))
        scores, sums = (cute.make_rmem_tensor((size // 2,), cute.Float32) for size in (n, d))
        weights = cute.make_rmem_tensor((8, n // 16), cute.Float16)
        sums.fill(0.0)
        weights.fill(0.0)
        high = cute.Float32(-1e30)
        for _turn in range(turns):
            W.wgmma_fence()
            for j in kiln.range_constexpr(4):
                multiply(scores, q + 2 * j, k + 2 * j, j > 0, n=n)
            W.wgmma_commit()
            for j in kiln.range_constexpr(n // 16):
                multiply(sums, weights[None, j], v + 128 * j, n=d, b_major="mn")
            W.wgmma_commit()
            W.wgmma_wait(1)
            x = scores.load()
            highest = x.reduce(cute.ReductionOp.MAX, high, 0)
            scale, x = cute.math.exp2(high - highest), cute.math.exp2(x - highest)
            high = highest
            if kiln.const_expr(not rows_in_order):
                sums.store(sums.load() * scale)
            W.wgmma_wait(0)
            if kiln.const_expr(rows_in_order):
                sums.store(sums.load() * scale)
            weights.store(x.to(cute.Float16).reshape(weights.shape))
        for i in kiln.range_constexpr(d // 2):
            out[t, i] = sums[i] * high

    return kernel


@pytest.mark.quick(1)
@needs_nvdisasm
@pytest.mark.parametrize("n", [64, 192])
def test_sums_that_are_added_to_others_now_and_then(n):
    """As products of 8 bits are kept exact: twice the registers of the sums, and no copies of either. One fence before the loop."""

    @cute.kernel
    def kernel(out: cute.Tensor, turns: cute.Int32):
        t = arch.thread_idx()[0]
        a, b = (descriptor(arch.alloc_smem(cute.Int8, rows * 128, 1024)) for rows in (64, n))
        sums, part = (cute.make_rmem_tensor((n // 2,), cute.Float32) for _ in range(2))
        sums.fill(0)
        adds, count = cute.Boolean(False), cute.Int32(0)
        W.wgmma_fence()
        for turn in range(turns):
            for j in kiln.range_constexpr(4):
                multiply(part, a + 2 * j + turn, b + 2 * j, adds, n=n, kind="e4m3")
                adds = cute.Boolean(True)
            W.wgmma_commit()
            W.wgmma_wait(1)
            count += 4
            if count == 8:
                W.wgmma_wait(0)
                sums.store(sums.load() + part.load())
                count = cute.Int32(0)
                adds = cute.Boolean(False)
        W.wgmma_wait(0)
        for i in kiln.range_constexpr(n // 2):
            out[t, i] = sums[i] + part[i]

    made = compiled(kernel, n)
    (loop,) = sass.check_products(made, 4)
    assert len(loop.products) == 4 and loop.waits == 2
    (resources,) = made.executable.resources.values()
    assert resources.registers <= n + 32


@needs_nvdisasm
def test_the_order_of_attention():
    """Scores are read while products that add to the output are in flight, which are scaled when they are complete."""
    (loop,) = sass.check_products(compiled(attention(64, 128), 128), 8)
    assert len(loop.products) == 8 and loop.waits == 2
    assert [".tnspB" in i.operands for i in loop.products] == [False] * 4 + [True] * 4


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_products_that_wait_for_each_other_are_warned_of():
    with pytest.warns(
        DSLOptimizationWarning,
        match=r"kernel kernel: C7514: .*serialized.*; read accumulators after the warpgroup.wait_group",
    ) as seen:
        made = compiled(attention(64, 64, rows_in_order=False), 64)
    assert seen[0].filename == __file__
    assert any("C7514" in str(remark) and remark.kind == "wgmma" for remark in made.executable.remarks)


def test_a_missing_wait_is_warned_of():
    @cute.kernel
    def kernel(out: cute.Tensor, _turns: cute.Int32):
        sums = cute.make_rmem_tensor((32,), cute.Float32)
        a = descriptor(arch.alloc_smem(cute.Float16, 64 * 64, 1024))
        W.wgmma_fence()
        multiply(sums, a, a, False, n=64)
        W.wgmma_commit()
        out[arch.thread_idx()[0], 0] = sums[0]

    with pytest.warns(
        DSLOptimizationWarning, match=r"C7517: .*injected.*call warpgroup.wait_group\(\) before accumulators are used"
    ):
        compiled(kernel, 64)


@needs_nvdisasm
@pytest.mark.parametrize("least", [0, 1])
def test_requests_for_registers_need_a_number_of_blocks(least):
    @cute.kernel
    def kernel(out: cute.Tensor, _turns: cute.Int32):
        if arch.make_warp_uniform(arch.thread_idx()[0] // 128) == 0:
            arch.setmaxregister_decrease(40)
        else:
            arch.setmaxregister_increase(232)
            out[arch.thread_idx()[0], 0] = 1.0

    def made():
        return compiled(kernel, 64, block=384, min_blocks_per_mp=least)

    if least:
        text = made().executable.artifacts["sass"]
        assert "USETMAXREG.DEALLOC" in text and "USETMAXREG.TRY_ALLOC" in text
    else:
        with pytest.warns(
            DSLOptimizationWarning, match="C7508: 'setmaxnreg' ignored.*launch it with min_blocks_per_mp=1"
        ):
            made()


def test_other_architectures_have_no_products_of_warp_groups():
    function = main_loop("f16", "f16", "f32", 64)

    @cute.jit
    def launch(out: cute.Tensor):
        function(out, 1).launch(grid=1, block=128)

    for name in ("sm_80", "sm_90", "sm_100a"):
        with pytest.raises(DSLArchitectureError, match=f"wgmma needs sm_90a.*{name}"):
            compile_for(launch, floats(128, 64), arch=name)
