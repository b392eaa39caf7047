"""Matrix products of warp groups, run on the CPU target, against numpy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute, utils
from kiln.cute.nvgpu import OperandMajorMode, warpgroup
from kiln.cute.nvgpu.warpgroup import Field, OperandSource
from kiln.cute.runtime import from_dlpack
from kiln.utils import LayoutEnum, sm90

K, MN = OperandMajorMode.K, OperandMajorMode.MN
SMEM, RMEM = OperandSource.SMEM, OperandSource.RMEM
F16, BF16, F32, I32 = kiln.Float16, kiln.BFloat16, kiln.Float32, kiln.Int32
E4M3, E5M2, I8, U8 = kiln.Float8E4M3FN, kiln.Float8E5M2, kiln.Int8, kiln.Uint8
HOST: dict[Any, Any] = {
    F16: np.float16, BF16: ml_dtypes.bfloat16, F32: np.float32, I32: np.int32, E4M3: ml_dtypes.float8_e4m3fn,
    E5M2: ml_dtypes.float8_e5m2, I8: np.int8, U8: np.uint8,
}  # fmt: skip
CLASSES = {BF16: np.uint16, E4M3: np.uint8, E5M2: np.uint8}


@pytest.fixture(autouse=True)
def on_cpu():
    with kiln.target("cpu"):
        yield


@cute.jit
def fill(shared: cute.Tensor, values: cute.Tensor, thread: kiln.Int32, threads: kiln.Constexpr):
    for i in range(thread, cute.size(values), threads):
        shared[i] = values[i]


def steps_in_order(mma: Any, acc: Any, a: Any, b: Any, _t: Any) -> None:
    """All steps, the first of which overwrites the sums."""
    mma.set(Field.ACCUMULATE, False)
    for k in range(cute.size(a, mode=[2])):
        cute.gemm(mma, acc, a[None, None, k], b[None, None, k], acc)
        mma.set(Field.ACCUMULATE, True)


def product(
    a: Any,
    b: Any,
    sums: Any,
    majors: Any,
    tile: Any,
    atoms: Any,
    n: int,
    source: Any = SMEM,
    steps: Any = steps_in_order,
) -> Any:
    """A function that multiplies two matrices of the size of a tile."""
    m, _, k = tile
    threads = 128 * atoms[0] * atoms[1]
    orders = [LayoutEnum.ROW_MAJOR if major is K else LayoutEnum.COL_MAJOR for major in majors]

    @cute.kernel
    def kernel(mma: cute.TiledMma, mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, t: kiln.Int32):
        thread, _, _ = cute.arch.thread_idx()
        smem = utils.SmemAllocator()
        la, lb = sm90.make_smem_layout_a(orders[0], tile, a, 1), sm90.make_smem_layout_b(orders[1], tile, b, 1)
        sA = smem.allocate_tensor(a, la.outer, 1024, la.inner)[None, None, 0]
        sB = smem.allocate_tensor(b, lb.outer, 1024, lb.inner)[None, None, 0]
        fill(sA, mA, thread, threads)
        fill(sB, mB, thread, threads)
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.sync_threads()
        group = cute.arch.make_warp_uniform(thread // 128)
        thr = mma.get_slice(group * 128)
        left = mma.make_fragment_A(thr.partition_A(sA)) if source is SMEM else registers(mma, sA, thread)
        right = mma.make_fragment_B(thr.partition_B(sB))
        acc = thr.make_fragment_C(thr.partition_shape_C(tile[:2]))
        warpgroup.fence()
        steps(mma, acc, left, right, t)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        cute.autovec_copy(acc, mma.get_slice(thread).partition_C(mC))

    def registers(mma: Any, sA: Any, thread: Any) -> Any:
        part = mma.get_slice(thread).partition_A(sA)
        made = mma.make_fragment_A(part)
        cute.basic_copy(part, made)
        return made

    @cute.jit
    def launch(mA: cute.Tensor, mB: cute.Tensor, mC: cute.Tensor, t: kiln.Int32):
        mma = sm90.make_trivial_tiled_mma(a, b, majors[0], majors[1], sums, atoms, (64, n), source)
        kernel(mma, mA, mB, mC, t).launch(grid=1, block=threads)

    def run(left: np.ndarray, right: np.ndarray, t: int = 0) -> np.ndarray:
        out = np.zeros((left.shape[0], right.shape[0]), HOST[sums])
        launch(tensor(left, a), tensor(right, b), from_dlpack(out), t)
        return out

    return run


def tensor(x: np.ndarray, dtype: Any) -> Any:
    made = from_dlpack(x.view(CLASSES.get(dtype, x.dtype)), assumed_align=16)
    made.element_type = dtype
    return made


def numbers(shape: Any, dtype: Any, seed: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in any type."""
    low = 0 if dtype is U8 else -4
    return np.random.default_rng(seed).integers(low, 5, shape).astype(HOST[dtype])


CASES = [
    *((F16, F16, F32, (x, y), (128, 64, 64), (2, 1, 1), 64, SMEM) for x in (K, MN) for y in (K, MN)),
    (BF16, BF16, F32, (MN, MN), (64, 32, 32), (1, 1, 1), 32, SMEM),
    (F16, F16, F16, (K, MN), (64, 16, 16), (1, 1, 1), 16, SMEM),
    (F16, F16, F32, (K, K), (128, 48, 48), (1, 2, 1), 24, SMEM),
    (E4M3, E5M2, F32, (K, K), (64, 24, 128), (1, 1, 1), 24, SMEM),
    (E5M2, E4M3, F16, (K, K), (128, 16, 32), (1, 1, 1), 16, SMEM),
    (I8, U8, I32, (K, K), (64, 64, 64), (1, 1, 1), 32, SMEM),
    (F32, F32, F32, (K, K), (64, 40, 32), (1, 1, 1), 40, SMEM),
    (BF16, BF16, F32, (K, MN), (128, 64, 64), (2, 1, 1), 64, RMEM),
    (E4M3, E4M3, F32, (K, K), (64, 32, 64), (1, 1, 1), 32, RMEM),
    (U8, I8, I32, (K, K), (64, 16, 64), (1, 1, 1), 16, RMEM),
]


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(str(getattr(x, "name", getattr(x, "__name__", x))) for x in case)
)
def test_products(case: Any) -> None:
    a, b, _, _, (m, n, k), *_ = case
    left, right = numbers((m, k), a, 0), numbers((n, k), b, 1)
    wanted = left.astype(np.float64) @ right.astype(np.float64).T
    np.testing.assert_array_equal(product(*case)(left, right).astype(np.float64), wanted)


TILE: Any = (F16, F16, F32, (K, K), (64, 64, 64), (1, 1, 1), 64, SMEM)


@cute.jit
def restarted(mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, t: kiln.Int32):
    """Step k again and again; what came before step `t` is forgotten, and everything if it is none of the steps."""
    acc.fill(0)
    for k in range(4):
        if k == t:
            mma.set(Field.ACCUMULATE, False)
        cute.gemm(mma, acc, a[None, None, k], b[None, None, k], acc)
        mma.set(Field.ACCUMULATE, t < 4)


@pytest.mark.parametrize("t", [0, 2, 3, 4])
def test_the_flag_in_dynamic_control_flow(t: int) -> None:
    left, right = numbers((64, 64), F16, 2), numbers((64, 64), F16, 3)
    first = min(t, 3)
    wanted = left[:, 16 * first :].astype(np.float64) @ right[:, 16 * first :].astype(np.float64).T
    np.testing.assert_array_equal(product(*TILE, steps=restarted)(left, right, t), wanted)


@cute.jit
def whole(mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, t: kiln.Int32):
    acc.fill(1)
    warpgroup.fence()
    mma.set(Field.ACCUMULATE, True)
    cute.gemm(mma, acc, a, b, acc)


def test_one_call_for_all_steps() -> None:
    left, right = numbers((64, 64), F16, 4), numbers((64, 64), F16, 5)
    wanted = left.astype(np.float64) @ right.astype(np.float64).T + 1
    np.testing.assert_array_equal(product(*TILE, steps=whole)(left, right), wanted)
