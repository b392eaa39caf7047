"""Matrix products of warpgroups as the language makes them: operations, their order, and the flag that control flow carries."""

from __future__ import annotations

from typing import Any

import pytest
from ir_testing import check, traced

import kiln
from kiln import cute, utils
from kiln.cute.nvgpu import OperandMajorMode, warpgroup
from kiln.cute.nvgpu.warpgroup import Field, OperandSource
from kiln.utils import LayoutEnum, sm90

F16, BF16, F32, I8, I32 = kiln.Float16, kiln.BFloat16, kiln.Float32, kiln.Int8, kiln.Int32
E4M3, E5M2, TF32 = kiln.Float8E4M3FN, kiln.Float8E5M2, kiln.TFloat32
K, MN = OperandMajorMode.K, OperandMajorMode.MN
SMEM, RMEM = OperandSource.SMEM, OperandSource.RMEM
ACCUMULATE = Field.ACCUMULATE


def module_of(
    body: Any,
    a: Any = F16,
    b: Any = None,
    sums: Any = F32,
    majors: Any = (K, K),
    tile: Any = (64, 64, 64),
    n: int = 64,
    source: Any = SMEM,
) -> str:
    """The module of a kernel with operands of a tile in shared memory: `body(mma, thr, sA, sB, t)` says what it does."""
    b = b or a

    @cute.kernel
    def kernel(mma: cute.TiledMma, t: kiln.Int32):
        smem = utils.SmemAllocator()
        layouts = [LayoutEnum.ROW_MAJOR if major is K else LayoutEnum.COL_MAJOR for major in majors]
        la, lb = sm90.make_smem_layout_a(layouts[0], tile, a, 2), sm90.make_smem_layout_b(layouts[1], tile, b, 2)
        sA = smem.allocate_tensor(a, la.outer, 1024, la.inner)
        sB = smem.allocate_tensor(b, lb.outer, 1024, lb.inner)
        body(mma, mma.get_slice(cute.arch.thread_idx()[0]), sA, sB, t)

    @cute.jit
    def launch(t: kiln.Int32):
        mma = sm90.make_trivial_tiled_mma(a, b, majors[0], majors[1], sums, (1, 1, 1), (64, n), source)
        kernel(mma, t).launch(grid=1, block=128)

    return traced(launch, 1)


def products(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if '"cute_nvgpu.wgmma"' in line]


@pytest.mark.parametrize(
    ("a", "b", "sums", "majors", "names"),
    [
        (F16, F16, F32, (K, K), 'a_major = "k", a_type = "f16", b_major = "k", b_type = "f16", k = 16'),
        (F16, F16, F16, (MN, K), 'a_major = "mn", a_type = "f16", b_major = "k", b_type = "f16", k = 16'),
        (BF16, BF16, F32, (MN, MN), 'a_major = "mn", a_type = "bf16", b_major = "mn", b_type = "bf16", k = 16'),
        (E4M3, E5M2, F32, (K, K), 'a_major = "k", a_type = "e4m3", b_major = "k", b_type = "e5m2", k = 32'),
        (I8, kiln.Uint8, I32, (K, K), 'a_major = "k", a_type = "s8", b_major = "k", b_type = "u8", k = 32'),
        (F32, F32, F32, (K, K), 'a_major = "k", a_type = "tf32", b_major = "k", b_type = "tf32", k = 8'),
    ],
)
def test_one_product_for_each_place_and_step(a: Any, b: Any, sums: Any, majors: Any, names: str) -> None:
    def body(mma: Any, thr: Any, sA: Any, sB: Any, _t: Any) -> None:
        rA, rB = mma.make_fragment_A(thr.partition_A(sA)), mma.make_fragment_B(thr.partition_B(sB))
        acc = cute.make_rmem_tensor(mma.partition_shape_C((128, 128)), sums)
        assert acc.layout.shape == ((2, 2, 8), 2, 2)
        warpgroup.fence()
        cute.gemm(mma, acc, rA[None, None, None, 1], rB[None, None, None, 1], acc)
        warpgroup.commit_group()
        warpgroup.wait_group(0)

    text = module_of(body, a, b, sums, majors, (128, 128, 64))
    found = products(text)
    assert len(found) == 2 * 2 * 64 // (256 // a.width)
    assert all(names in line and "n = 64" in line for line in found)
    check(text, "wgmma_fence\nnot: wgmma_commit\ncute_nvgpu.wgmma\nnot: wgmma_fence\nwgmma_commit\nwgmma_wait")


def test_steps_along_k_come_last() -> None:
    """The products of one step are of different sums, so that none waits for the one before."""

    def body(mma: Any, thr: Any, sA: Any, sB: Any, _t: Any) -> None:
        rA, rB = mma.make_fragment_A(thr.partition_A(sA)), mma.make_fragment_B(thr.partition_B(sB))
        acc = mma.make_fragment_C(mma.partition_shape_C((64, 64)))
        cute.gemm(mma, acc, rA[None, None, None, 0], rB[None, None, None, 0], acc)

    sums = [line.partition("(")[2].partition(",")[0] for line in products(module_of(body, n=32))]
    assert len(sums) == 8 and sums[0] != sums[1] and sums[0::2] == [sums[0]] * 4


def test_a_in_registers() -> None:
    def body(mma: Any, thr: Any, sA: Any, sB: Any, _t: Any) -> None:
        rB = mma.make_fragment_B(thr.partition_B(sB))
        rA = thr.make_fragment_A(thr.partition_A(sA[None, None, 0]))
        assert rA.memspace is cute.AddressSpace.rmem and rA.shape == ((2, 2, 2), 1, 4) and rA.element_type is BF16
        other = thr.make_fragment_A(mma.partition_shape_A((64, 64)))
        assert other.shape == rA.shape
        acc = thr.make_fragment_C(thr.partition_shape_C((64, 64)))
        cute.gemm(mma, acc, rA, rB[None, None, None, 0], acc)

    found = products(module_of(body, BF16, majors=(K, MN), source=RMEM))
    assert len(found) == 4
    assert all(
        '!cute.ptr<bf16, "rmem"' in line and 'a_major = "k"' in line and 'b_major = "mn"' in line for line in found
    )


def test_sums_become_a_in_registers() -> None:
    """The sums of 16 columns lie as A of the next product does: as attention uses them."""

    def body(mma: Any, thr: Any, sA: Any, sB: Any, _t: Any) -> None:
        rB = mma.make_fragment_B(thr.partition_B(sB))
        acc = thr.make_fragment_C(thr.partition_shape_C((64, 64)))
        operand = cute.make_rmem_tensor(cute.make_layout(((2, 2, 2), 1, 4), stride=((1, 2, 4), 0, 8)), F16)
        cute.make_tensor(operand.iterator, acc.layout).store(acc.load().to(F16))
        rows = cute.make_tensor(acc.iterator, cute.make_layout((2, (2, 8)), stride=(2, (1, 4))))
        rows[1, None].fill(0)
        cute.make_tensor(acc.iterator + 4, 4).fill(1)
        cute.recast_tensor(operand, kiln.Uint32)[0, 0, 1] = kiln.Uint32(0)
        walk(mma, acc, operand, rB[None, None, None, 0])

    @cute.jit
    def walk(mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor):
        for k in kiln.range(cute.size(a, mode=[2]), unroll_full=True):
            mma.set(ACCUMULATE, k != 0)
            cute.gemm(mma, acc, a[None, None, k], b[None, None, k], acc)

    check(
        module_of(body, source=RMEM),
        """
        scf.for %k = %zero to %four
        %flag = arith.cmpi ne, %k, %zero
        "cute_nvgpu.wgmma"(%d, %a, %b, %flag)
        """,
    )


# --- the flag --------------------------------------------------------------------------------------------------------


def run_flagged(walk: Any) -> str:
    def body(mma: Any, thr: Any, sA: Any, sB: Any, t: Any) -> None:
        rA, rB = mma.make_fragment_A(thr.partition_A(sA)), mma.make_fragment_B(thr.partition_B(sB))
        walk(mma, thr.make_fragment_C(thr.partition_shape_C((64, 64))), rA[None, None, 0, 0], rB[None, None, 0, 0], t)

    return module_of(body)


def test_the_flag_is_a_field_of_atoms_and_of_tiled_mmas() -> None:
    def walk(mma: Any, acc: Any, a: Any, b: Any, t: Any) -> None:
        atom = cute.make_mma_atom(mma.op)
        assert atom.get(ACCUMULATE) is False
        atom.set(ACCUMULATE, True)
        cute.gemm(atom, acc, a, b, acc)
        mma.set(ACCUMULATE, kiln.Boolean(False))
        cute.gemm(mma, acc, a, b, acc)
        mma.set(ACCUMULATE, False)
        assert mma.get(ACCUMULATE) is False and atom.get(ACCUMULATE) is True
        cute.mma_atom_call(atom, acc[None, 0, 0], a[None, 0], b[None, 0], acc[None, 0, 0])
        mma.set(ACCUMULATE, t > 3)
        cute.gemm(mma, acc, a, b, acc)
        cute.gemm(mma.with_(accumulate=False), acc, a, b, acc)

    text = run_flagged(walk)
    check(
        text,
        """
        "cute_nvgpu.wgmma"(%d, %a, %b, %true)
        "cute_nvgpu.wgmma"(%d, %a1, %b1, %false)
        "cute_nvgpu.wgmma"(%d, %a2, %b2, %true)
        %more = arith.cmpi sgt
        "cute_nvgpu.wgmma"(%d, %a3, %b3, %more)
        "cute_nvgpu.wgmma"(%d, %a4, %b4, %false)
        """,
    )
    assert "%true = arith.constant true" in text and "%false = arith.constant false" in text


def test_the_flag_through_loops_and_branches() -> None:
    @cute.jit
    def walk(mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, t: kiln.Int32):
        mma.set(ACCUMULATE, False)
        for i in range(t):
            cute.gemm(mma, acc, a, b, acc)
            mma.set(ACCUMULATE, True)
            if i == 3:
                mma.set(ACCUMULATE, False)
        cute.gemm(mma, acc, a, b, acc)
        left = t
        while left > 0:
            mma.set(ACCUMULATE, left > 2)
            left -= 1
        cute.gemm(mma, acc, a, b, acc)

    check(
        run_flagged(walk),
        """
        %after = scf.for %i = %zero to %t step %one iter_args(%flag = %false) -> (i1)
        "cute_nvgpu.wgmma"(%d, %a, %b, %flag)
        %next = scf.if
        scf.yield %false
        scf.yield %true
        scf.yield %next
        "cute_nvgpu.wgmma"(%d, %a1, %b1, %after)
        %last:2 = scf.while
        "cute_nvgpu.wgmma"(%d, %a2, %b2, %last#1)
        """,
    )


def test_a_loop_that_leaves_the_flag_alone_carries_nothing() -> None:
    @cute.jit
    def walk(mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, t: kiln.Int32):
        mma.set(ACCUMULATE, True)
        for _ in range(t):
            cute.gemm(mma, acc, a, b, acc)
        assert mma.get(ACCUMULATE) is True

    text = run_flagged(walk)
    assert "iter_args" not in text
    check(text, 'scf.for\n"cute_nvgpu.wgmma"(%d, %a, %b, %true)')


# --- what is refused -------------------------------------------------------------------------------------------------


def f16(
    shape: Any = (64, 64, 16), sums: Any = F32, source: Any = SMEM, a: Any = K, b: Any = K, dtype: Any = F16
) -> Any:
    return lambda: warpgroup.MmaF16BF16Op(dtype, sums, shape, source, a, b)


WRONG_OPERATIONS = {
    "MmaF16BF16Op: there is no wgmma m64n12k16 of f16 and f16 with accumulators in f32 .*n8 to n256 in steps of 8, k16": f16((64, 12, 16)),
    "there is no wgmma m64n64k8 of f16": f16((64, 64, 8)),
    "there is no wgmma m128n64k16": f16((128, 64, 16)),
    "with accumulators in f16 .*accumulators: f32": f16(dtype=BF16, sums=F16),
    "with accumulators in float": f16(sums=float),
    "MmaF16BF16Op does not take Float32": f16(dtype=F32),
    r"instruction_shape of MmaF16BF16Op is \(64, 64\)": f16((64, 64)),
    "a_src of MmaF16BF16Op is 'smem'": f16(source="smem"),
    "b_major_mode of MmaF16BF16Op is 'k'": f16(b="k"),
    "MmaF8Op of Float16": lambda: warpgroup.MmaF8Op(E4M3, F16, F32, (64, 64, 32), SMEM, K, K),
    "with accumulators in bf16": lambda: warpgroup.MmaF8Op(E4M3, E4M3, BF16, (64, 64, 32), SMEM, K, K),
    "MmaF8Op of Float8E5M2 with B N-major": lambda: warpgroup.MmaF8Op(E4M3, E5M2, F32, (64, 64, 32), SMEM, K, MN),
    "MmaI8Op of Int8 with A M-major": lambda: warpgroup.MmaI8Op(I8, I8, I32, (64, 64, 32), SMEM, MN, K),
    "m64n40k32 of s8": lambda: warpgroup.MmaI8Op(I8, I8, I32, (64, 40, 32), SMEM, K, K),
    "MmaTF32Op of TFloat32 with B N-major": lambda: warpgroup.MmaTF32Op((64, 64, 8), SMEM, K, MN),
    "there is no WGMMA of Float16 and BFloat16": lambda: sm90.make_trivial_tiled_mma(F16, BF16, K, K, F32, (1, 1, 1), (64, 64)),
    "there is no WGMMA of Float64": lambda: sm90.make_trivial_tiled_mma(
        kiln.Float64, kiln.Float64, K, K, kiln.Float64, (1, 1, 1), (64, 64)
    ),
    "tiler_mn is 64": lambda: sm90.make_trivial_tiled_mma(F16, F16, K, K, F32, (1, 1, 1), 64),
    r"wait_group\(8\)": lambda: warpgroup.wait_group(8),
    r"wait_group\(True\)": lambda: warpgroup.wait_group(True),
    "a WGMMA has no field 'scale'": lambda: cute.make_mma_atom(f16()()).set("scale", 1),
}  # fmt: skip


@pytest.mark.parametrize("rule", WRONG_OPERATIONS)
def test_operations_that_there_are_not(rule: str) -> None:
    with pytest.raises(TypeError, match=rule):
        WRONG_OPERATIONS[rule]()


def test_registers_have_no_major_mode() -> None:
    assert (
        cute.make_mma_atom(f16(source=RMEM, a=MN)()).tv_layout_A == cute.make_mma_atom(f16(source=RMEM)()).tv_layout_A
    )


def _strided(mma: Any, acc: Any, a: Any, b: Any, t: Any) -> None:
    rows = cute.make_tensor(acc.iterator, cute.make_layout(((2, 2, 8), 1, 1), stride=((2, 1, 4), 0, 0)))
    cute.gemm(mma, rows, a, b, rows)


WRONG_CALLS = {
    "C and D are the same tensor": lambda mma, acc, a, b, t: cute.gemm(mma, acc, a, b, mma.make_fragment_C(acc.shape)),
    "32 values of C of a call from registers in a row, got the layout": _strided,
    "takes Float32 elements of C, got Float16": lambda mma, acc, a, b, t: (
        lambda wrong: cute.gemm(mma, wrong, a, b, wrong)
    )(cute.make_rmem_tensor(acc.shape, F16)),
    "takes A by descriptors of shared memory, got tensor<ptr<f32, rmem": lambda mma, acc, a, b, t: cute.gemm(
        mma, acc, cute.make_rmem_tensor((8, 1), F32), b, acc
    ),
    "takes B by descriptors of shared memory, got 3": lambda mma, acc, a, b, t: cute.mma_atom_call(
        mma, acc[None, 0, 0], a[None, 0], 3, acc[None, 0, 0]
    ),
    r"one call of a WGMMA takes 32 values of C, got the shape \(\(2,2,8\),1,2\)": lambda mma, acc, a, b, t: cute.mma_atom_call(
        mma, mma.make_fragment_C(((2, 2, 8), 1, 2)), a[None, 0], b[None, 0], acc[None, 0, 0]
    ),
    "takes A MN-major, and its descriptor is K-major": lambda mma, acc, a, b, t: cute.gemm(
        cute.make_mma_atom(f16(a=MN)()), acc, a, b, acc
    ),
    "recast_tensor needs memory that has addresses, and the tensor holds descriptors": lambda mma, acc, a, b, t: cute.recast_tensor(a, F32),
    "holds descriptors of matrices in shared memory": lambda mma, acc, a, b, t: a.load(),
}  # fmt: skip


@pytest.mark.parametrize("rule", WRONG_CALLS)
def test_calls_that_cannot_be_made(rule: str) -> None:
    with pytest.raises(TypeError, match=rule):
        run_flagged(WRONG_CALLS[rule])
