"""A tile of the block-scaled warp MMA of sm_120 that tests on several targets multiply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

import kiln
from kiln import cute, utils
from kiln.cute.nvgpu import CopyUniversalOp, warp
from kiln.utils import blackwell_helpers, blockscaled_layout

F4, E4M3, E5M2 = kiln.Float4E2M1FN, kiln.Float8E4M3FN, kiln.Float8E5M2
UE8M0, F32 = kiln.Float8E8M0FNU, kiln.Float32
NVF4 = warp.MmaMXF4NVF4Op(F4, F32, E4M3)
OPS = [
    NVF4, warp.MmaMXF4Op(F4, F32, UE8M0), warp.MmaMXF8Op(E5M2, F32, UE8M0), warp.MmaMXF8F6F4Op(F4, E4M3, F32, UE8M0),
]  # fmt: skip
M, N, K = 128, 128, 128


def tiled(op: Any, tile: Any = (M, N, K)) -> Any:
    permutation = blackwell_helpers.get_permutation_mnk(tile, op.sf_vec_size, op.kind == "mxf8f6f4")
    return cute.make_tiled_mma(op, (2, 2, 1), permutation_mnk=permutation)


def tile_kernel(op: Any):
    """A CTA of four warps multiplies one tile; bytes of operands come as they lie in shared memory."""
    unpacks = [t is F4 and op.kind == "mxf8f6f4" for t in (op.a_dtype, op.b_dtype)]
    held = [kiln.Int8 if unpack else t for unpack, t in zip(unpacks, (op.a_dtype, op.b_dtype), strict=True)]

    def matrices(number: int) -> Any:
        if unpacks[number]:
            return cute.make_copy_atom(warp.LdMatrix8x16x8bOp(False, 4, 4), kiln.Int8)
        return cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), held[number])

    @cute.kernel
    def kernel(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor):
        thread, mma = cute.arch.thread_idx()[0], tiled(op)
        smem = utils.SmemAllocator()
        shared = [
            smem.allocate_tensor(held[0], cute.make_layout((M, K), stride=(K, 1)), 128),
            smem.allocate_tensor(held[1], cute.make_layout((N, K), stride=(K, 1)), 128),
            smem.allocate_tensor(
                op.sf_type, blockscaled_layout.sm120_make_smem_layout_sfa(mma, (M, N, K), op.sf_vec_size, 1), 128
            ),
            smem.allocate_tensor(
                op.sf_type, blockscaled_layout.sm120_make_smem_layout_sfb(mma, (M, N, K), op.sf_vec_size, 1), 128
            ),
        ]
        for source, target in zip((a, b, sfa, sfb), shared, strict=True):
            words = cute.make_tensor(
                cute.recast_ptr(target.iterator, dtype=kiln.Int32), cute.make_layout(cute.size(source))
            )
            for i in range(thread, cute.size(source), 128):
                words[i] = source[i]
        cute.arch.sync_threads()
        mine = mma.get_slice(thread)
        left, right = (
            mine.make_fragment_A(mine.partition_A(shared[0])),
            mine.make_fragment_B(mine.partition_B(shared[1])),
        )
        scales_a = blackwell_helpers.partition_fragment_SFA(shared[2][None, None, 0], mine, thread)
        scales_b = blackwell_helpers.partition_fragment_SFB(shared[3][None, None, 0], mine, thread)
        scales_a, scales_b = (cute.group_modes(x, 2, cute.rank(x)) for x in (scales_a, scales_b))
        for n, (make, fragment) in enumerate(((cute.make_tiled_copy_A, left), (cute.make_tiled_copy_B, right))):
            copy = make(matrices(n), mma)
            cute.copy(copy, copy.get_slice(thread).partition_S(shared[n]), copy.get_slice(thread).retile(fragment))
            if kiln.const_expr(unpacks[n]):
                bytes_ = cute.recast_tensor(fragment, kiln.Int8)
                for i in kiln.range_constexpr(cute.size(bytes_)):
                    bytes_[i] = kiln.Int8(bytes_[i] << 2)
        for x, fragment, layout, mode in (
            (shared[2], scales_a, blackwell_helpers.get_layoutSFA_TV(mma), 0),
            (shared[3], scales_b, blackwell_helpers.get_layoutSFB_TV(mma), 1),
        ):
            tiler = (mma.get_tile_size(mode), mma.get_tile_size(2))
            copy = cute.make_tiled_copy(cute.make_copy_atom(CopyUniversalOp(), op.sf_type), layout, tiler)
            part, registers = copy.get_slice(thread).partition_S(x)[None, None, None, 0], copy.retile(fragment)
            cute.copy(copy, cute.filter_zeros(part), cute.filter_zeros(registers))
        out = mine.partition_C(cute.make_tensor(c.iterator, cute.make_layout((M, N), stride=(N, 1))))
        sums = mma.make_fragment_C(out)
        sums.fill(0.0)
        for k in kiln.range_constexpr(cute.size(left, mode=[2])):
            pairs = ([left[None, None, k], scales_a[None, None, k]], [right[None, None, k], scales_b[None, None, k]])
            cute.gemm(mma, sums, *pairs, sums)
        cute.basic_copy(sums, out)

    @cute.jit
    def function(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, c: cute.Tensor):
        kernel(a, b, sfa, sfb, c).launch(grid=1, block=128)

    return function


_CODES = {F4: ml_dtypes.float4_e2m1fn, E4M3: ml_dtypes.float8_e4m3fn, E5M2: ml_dtypes.float8_e5m2}


def operand(rng: Any, dtype: Any, unpacked: bool) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of an operand in shared memory, and its numbers."""
    numbers = rng.choice([-3.0, -1.5, -1.0, 0.0, 0.5, 1.0, 2.0, 4.0], (128, K)).astype(_CODES[dtype])
    codes = numbers.view(np.uint8)
    if dtype is F4:
        codes = codes[:, ::2] | codes[:, 1::2] << 4
    if unpacked:  # 16 elements are 8 bytes, and 8 bytes follow that do not count
        codes = np.concatenate([codes.reshape(-1, 8), rng.integers(0, 256, (128 * K // 16, 8), dtype=np.uint8)], 1)
    return np.ascontiguousarray(codes).reshape(-1).view(np.int32), numbers.astype(np.float64)


def scales(rng: Any, op: Any) -> tuple[np.ndarray, np.ndarray]:
    """Scale factors as they lie in shared memory, and one for each element."""
    count = K // op.sf_vec_size
    values = rng.choice([0.5, 1.0, 2.0], (128, count))
    held = np.zeros(128 * count, np.float32)
    for row in range(128):
        for n in range(count):
            held[n // 4 * 512 + row % 32 * 16 + row // 32 * 4 + n % 4] = values[row, n]
    code = ml_dtypes.float8_e8m0fnu if op.sf_type is UE8M0 else ml_dtypes.float8_e4m3fn
    return held.astype(code).view(np.int32), np.repeat(values, op.sf_vec_size, 1)


def a_tile(run: Callable[..., None], op: Any) -> None:
    """Multiply a tile of numbers whose sums are exact; `run(function, *arrays)` calls a function on arrays."""
    rng = np.random.default_rng(3)
    narrow = op.kind == "mxf8f6f4"
    (a, left), (b, right) = (operand(rng, t, narrow and t is F4) for t in (op.a_dtype, op.b_dtype))
    (sfa, by_row), (sfb, by_column) = (scales(rng, op) for _ in range(2))
    c = np.zeros((M, N), np.float32)
    run(tile_kernel(op), a, b, sfa, sfb, c)
    np.testing.assert_array_equal(c, (left * by_row) @ (right * by_column).T)
