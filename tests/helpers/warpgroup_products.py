"""Products of a tile by warpgroups, as programs write them: for tests on the CPU target and on a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

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
BITS = {BF16: np.int16, E4M3: np.int8, E5M2: np.int8}


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

    def run(
        left: np.ndarray, right: np.ndarray, t: int = 0, to_device: Any = lambda x: x, to_host: Any = lambda x: x
    ) -> np.ndarray:
        out = to_device(np.zeros((left.shape[0], right.shape[0]), HOST[sums]))
        operands = [tensor(to_device(x.view(BITS.get(dtype, x.dtype))), dtype) for x, dtype in ((left, a), (right, b))]
        launch(*operands, from_dlpack(out), t)
        return to_host(out)

    return run


def tensor(x: Any, dtype: Any) -> Any:
    made = from_dlpack(x, assumed_align=16)
    made.element_type = dtype
    return made


def numbers(shape: Any, dtype: Any, seed: int) -> np.ndarray:
    """Small whole numbers, whose sums are exact in any type."""
    low = 0 if dtype is U8 else -4
    return np.random.default_rng(seed).integers(low, 5, shape).astype(HOST[dtype])


def exact(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    return left.astype(np.float64) @ right.astype(np.float64).T


def name_of(case: Any) -> str:
    return "-".join(str(getattr(x, "name", getattr(x, "__name__", x))) for x in case if not isinstance(x, tuple))


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


TILE: Any = (F16, F16, F32, (K, K), (64, 64, 64), (1, 1, 1), 64, SMEM)


@cute.jit
def restarted(mma: cute.TiledMma, acc: cute.Tensor, a: cute.Tensor, b: cute.Tensor, t: kiln.Int32):
    """Step k again and again; what came before step `t` is forgotten, and everything if it is none of the steps."""
    for k in range(4):
        if k == t:
            mma.set(Field.ACCUMULATE, False)
        cute.gemm(mma, acc, a[None, None, k], b[None, None, k], acc)
        mma.set(Field.ACCUMULATE, t < 4)
