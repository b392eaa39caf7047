"""Conversions of 4- and 6-bit floats and block-scaled tiles on the hardware."""

from __future__ import annotations

from typing import Any

import block_scaled_cases
import ml_dtypes
import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack

torch = pytest.importorskip("torch")
TYPES = {
    kiln.Float4E2M1FN: ml_dtypes.float4_e2m1fn, kiln.Float6E2M3FN: ml_dtypes.float6_e2m3fn,
    kiln.Float6E3M2FN: ml_dtypes.float6_e3m2fn,
}  # fmt: skip


def run(function: Any, *arrays: np.ndarray) -> None:
    """Call a function on the GPU; the arrays are what it leaves."""
    tensors = [torch.from_numpy(array.copy()).cuda() for array in arrays]
    function(*(from_dlpack(tensor, assumed_align=16) for tensor in tensors))
    for array, tensor in zip(arrays, tensors, strict=True):
        array[...] = tensor.cpu().numpy()


@pytest.mark.parametrize("t", TYPES, ids=str)
def test_floats_below_8_bits(t: Any):
    """Rounded to codes, by instructions where the GPU has them, and widened again: eight at a time and one at a time."""

    @cute.kernel
    def kernel(x: cute.Tensor, codes: cute.Tensor, back: cute.Tensor):
        row = cute.arch.thread_idx()[0]
        made = cute.make_rmem_tensor(8, t)
        made.store(x[row, None].load().to(t))
        back[row, None].store(made.load().to(kiln.Float32))
        for i in kiln.range_constexpr(8):
            codes[row, i] = kiln.Uint8(x[row, i].to(t).to(kiln.Float32) == made[i].to(kiln.Float32))

    @cute.jit
    def function(x: cute.Tensor, codes: cute.Tensor, back: cute.Tensor):
        kernel(x, codes, back).launch(grid=1, block=64)

    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal(500) * 5, [0.0, -0.0, np.inf, -np.inf, 1e-30, 1e30, np.nan, 0.25, 0.75]])
    x = np.resize(x, (64, 8)).astype(np.float32)
    same, back = np.zeros((64, 8), np.uint8), np.zeros((64, 8), np.float32)
    run(function, x, same, back)
    limit = float(ml_dtypes.finfo(TYPES[t]).max)
    want = np.where(np.isnan(x), limit, np.clip(x, -limit, limit)).astype(TYPES[t]).astype(np.float32)
    np.testing.assert_array_equal(back, want)
    assert same.all()


@pytest.mark.parametrize("op", block_scaled_cases.OPS, ids=lambda op: type(op).__name__)
def test_block_scaled_tiles(op: Any):
    if torch.cuda.get_device_capability()[0] != 12:
        pytest.skip("mma.sync with block scales is of sm_120 and sm_121")
    block_scaled_cases.a_tile(run, op)
