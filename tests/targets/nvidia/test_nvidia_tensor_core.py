"""Tensor-core operations for GPUs that are not there: the PTX says what was asked for, and ptxas takes it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from nvidia_testing import compile_for, needs_ptxas

import cutlass.cute as cute
from kiln.base_dsl.diagnostics import DSLNotImplemented

sys.path.insert(0, str(Path(__file__).parent.parent / "cpu"))
from kernel_testing import launcher
from test_tensor_core import CASES, NUMPY, mma_kernel


def arrays(*dtypes):
    return [cute.runtime.from_dlpack(np.zeros(4096, dtype), assumed_align=16) for dtype in dtypes]


@needs_ptxas
@pytest.mark.parametrize(("a_kind", "b_kind", "k", "d_kind"), CASES)
def test_mma(a_kind, b_kind, k, d_kind):
    kernel, m = mma_kernel(a_kind, b_kind, k, d_kind)
    register = np.float64 if a_kind == "f64" else np.int32
    function = launcher(kernel, 4, grid=1, block=32)
    compiled = compile_for(function, *arrays(register, register, NUMPY[d_kind], NUMPY[d_kind]))
    kind = {"i32": "s32"}.get(d_kind, d_kind)
    assert f"mma.sync.aligned.m{m}n8k{k}.row.col.{kind}.{a_kind}.{b_kind}.{kind}" in compiled.executable.artifacts["ptx"]


@needs_ptxas
def test_8_bit_floats_need_sm_89():
    kernel, _ = mma_kernel("e4m3", "e4m3", 32, "f32")
    function = launcher(kernel, 4, grid=1, block=32)
    with pytest.raises(DSLNotImplemented, match="sm_89"):
        compile_for(function, *arrays(np.int32, np.int32, np.float32, np.float32), arch="sm_80")
