"""MMAs of sm_107: what becomes of operands in the collector buffers, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import kiln
from kiln import Float16, Float32, cute, utils
from kiln.base_dsl.diagnostics import DSLNotImplemented, DSLUserCodeTypeError
from kiln.cute.nvgpu import OperandMajorMode, tcgen05
from kiln.cute.runtime import from_dlpack
from kiln.utils import rubin_helpers, sm100

K, ONE = OperandMajorMode.K, tcgen05.CtaGroup.ONE
FILL, LAST, DISCARD = tcgen05.CollectorOp.FILL, tcgen05.CollectorOp.LASTUSE, tcgen05.CollectorOp.DISCARD
M, N, DEPTH = 256, 64, 32


def mma(a=DISCARD, b=DISCARD):
    return rubin_helpers.make_trivial_tiled_mma(
        Float16, Float16, K, K, Float32, ONE, (128, N, 16), a_collector_op=a, b_collector_op=b
    )


@cute.kernel
def _kernel(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
    """D = A B of two tiles along M, the second of which takes B from the collector buffer."""
    t = cute.arch.thread_idx()[0]
    smem = utils.SmemAllocator()
    plain, keep, reuse = mma(), mma(b=FILL), mma(b=LAST)
    tiler = (M, N, DEPTH)
    left = smem.allocate_tensor(
        Float16, (layout := sm100.make_smem_layout_a(plain, tiler, Float16, 1)).outer, 128, layout.inner
    )
    right = smem.allocate_tensor(
        Float16, (layout := sm100.make_smem_layout_b(plain, tiler, Float16, 1)).outer, 128, layout.inner
    )
    for tensor, source, rows in ((left, a, M), (right, b, N)):
        for i in range(t, rows * DEPTH, 128):
            row, k = i // DEPTH, i % DEPTH
            tensor[(row % min(rows, 128), k % 16), row // 128, k // 16, 0] = source[row, k]
    held = smem.allocate_array(kiln.Int32, 1)
    done = smem.allocate_array(kiln.Int64, 1)
    if cute.arch.warp_idx() == 0:
        cute.arch.alloc_tmem(128, held)
        with cute.arch.elect_one():
            cute.arch.mbarrier_init(done, 1)
            cute.arch.mbarrier_init_fence()
    cute.arch.fence_view_async_shared()
    cute.arch.sync_threads()
    tmem = cute.arch.retrieve_tmem_ptr(Float32, 16, held)
    acc = cute.make_tensor(tmem, plain.make_fragment_C(plain.partition_shape_C((M, N))).layout)
    fa, fb = plain.make_fragment_A(left), plain.make_fragment_B(right)
    if cute.arch.warp_idx() == 0:
        for k in kiln.range_constexpr(2):
            for m, tiled in enumerate((keep, reuse)):
                tiled.set(tcgen05.Field.ACCUMULATE, k > 0)
                part = acc[None, m, 0]
                cute.gemm(tiled, part, fa[None, m, k, 0], fb[None, 0, k, 0], part)
        with cute.arch.elect_one():
            tcgen05.commit(done)
    cute.arch.mbarrier_wait(done, 0)
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition.x64), Float32)
    for m in kiln.range_constexpr(2):
        tile = acc[((None, None), m, 0)]
        copy = tcgen05.make_tmem_copy(load, tile).get_slice(t)
        registers = cute.make_rmem_tensor(copy.partition_D(cute.make_identity_tensor((128, N))).shape, Float32)
        cute.copy(copy, copy.partition_S(tile), registers)
        for n in kiln.range_constexpr(N):
            d[m * 128 + t, n] = registers[n]
    cute.arch.fence_view_async_tmem_load()
    cute.arch.sync_threads()
    if cute.arch.warp_idx() == 0:
        cute.arch.dealloc_tmem(tmem, 128)


@cute.jit
def _launch(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
    _kernel(a, b, d).launch(grid=1, block=128)


def _arrays():
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (rows, DEPTH)).astype(np.float16) for rows in (M, N))
    return a, b, np.zeros((M, N), np.float32)


def test_b_is_kept_for_the_next_mma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_107a")
    a, b, d = _arrays()
    with kiln.target("cpu"):
        _launch(*map(from_dlpack, (a, b, d)))
    np.testing.assert_array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)


@needs_ptxas
def test_instructions() -> None:
    arrays = [from_dlpack(x) for x in _arrays()]
    ptx = compile_for(_launch, *arrays, arch="sm_107a").executable.artifacts["ptx"]
    assert ptx.count(".collector::b::fill") == ptx.count(".collector::b::lastuse") == 2
    with pytest.raises(
        DSLNotImplemented, match=r"tcgen05.mma with .collector::b needs sm_107a or sm_107f.* compiled for sm_100a"
    ):
        compile_for(_launch, *arrays, arch="sm_100a")


def test_what_is_not_documented_is_refused() -> None:
    fp8, fp4 = kiln.Float8E4M3FN, kiln.Float4E2M1FN
    scaled = rubin_helpers.make_blockscaled_trivial_tiled_mma
    with pytest.raises(DSLNotImplemented, match="MmaF8F6F4Op with K = 64"):
        rubin_helpers.make_trivial_tiled_mma(fp8, fp8, K, K, Float32, ONE, (128, 64, 64))
    with pytest.raises(DSLNotImplemented, match="MmaMXF4NVF4Op with K = 128"):
        scaled(fp4, fp4, K, K, fp8, 16, ONE, (128, 64, 128))
    with pytest.raises(DSLNotImplemented, match="scale factors of FloatNV8E5M3FNU"):
        scaled(fp4, fp4, K, K, kiln.FloatNV8E5M3FNU, 16, ONE, (128, 64, 64))
    with pytest.raises(DSLUserCodeTypeError, match="b_collector_op is 'fill'"):
        mma(b="fill")
    assert scaled(fp4, fp4, K, K, fp8, 16, ONE, (128, 64, 64)).shape_mnk == (128, 64, 64)
    assert utils.sm107.make_trivial_tiled_mma is rubin_helpers.make_trivial_tiled_mma
