"""Atomic additions of vectors, and choices between vectors."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from nvidia_testing import compile_for

import kiln
from kiln import cute
from kiln.cute import arch
from kiln.cute.runtime import from_dlpack

CASES = [
    ("Float32", np.float32, 2),
    ("Float32", np.float32, 4),
    ("Float16", np.float16, 4),
    ("BFloat16", ml_dtypes.bfloat16, 8),
]


@pytest.mark.parametrize("raw", [False, True], ids=["tensor_ssa", "ir_value"])
@pytest.mark.parametrize(("name", "dtype", "count"), CASES)
def test_each_element_is_added(name, dtype, count, raw):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        values = x.load()
        arch.red(
            y.iterator, values.ir_value() if kiln.const_expr(raw) else values, op="add", sem="relaxed", scope="gpu"
        )

    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=2, block=4)

    x, y = np.arange(1, count + 1).astype(dtype), np.zeros(count, dtype)
    with kiln.target("cpu"):
        f(from_dlpack(x, assumed_align=x.itemsize), from_dlpack(y, assumed_align=y.itemsize))
    np.testing.assert_array_equal(y.astype(np.float32), 8 * np.arange(1, count + 1))


@pytest.mark.parametrize("holds", [0, 1])
def test_select_of_vectors(holds):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor, n: kiln.Int32):
        y.store(kiln.select_(n > 0, x.load(), x.load() + 4.0))
        with pytest.raises(kiln.DSLBaseError, match="of one shape"):
            kiln.select_(n > 0, x.load(), kiln.Float32(1.0))

    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor, n: kiln.Int32):
        kernel(x, y, n).launch(grid=1, block=1)

    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    with kiln.target("cpu"):
        f(from_dlpack(x), from_dlpack(y), holds)
    np.testing.assert_array_equal(y, x if holds else x + 4)


@pytest.mark.parametrize(("arch_name", "expected"), [("sm_90a", "add.v4.f32"), ("sm_80", "add.f32")])
def test_one_instruction_from_sm_90_on(arch_name, expected):
    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        arch.red(y.iterator, x.load(), op="add")

    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=1, block=32)

    fake = cute.runtime.make_fake_compact_tensor(kiln.Float32, (4,), stride_order=(0,), assumed_align=16)
    compiled = compile_for(f, fake, fake, arch=arch_name, options="--keep-ptx")
    assert f"atom.relaxed.gpu.global.{expected}" in compiled.__ptx__
