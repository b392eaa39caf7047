"""Python's operators on IR values, which the bindings' operations return."""

from __future__ import annotations

import numpy as np
import pytest
from cutlass._mlir.dialects import arith, llvm

import kiln
from kiln import Float32, Int32, Uint32, cute


@cute.jit
def of_values(x: cute.Tensor, y: cute.Tensor, f: cute.Tensor):
    bits = llvm.bitcast(Uint32.mlir_type, x[0].ir_value())
    other = llvm.bitcast(Uint32.mlir_type, x[1].ir_value())
    y[0] = bits & Int32(12)
    y[1] = Int32(7) ^ bits
    y[2] = (bits + other) * 2 - 1
    y[3] = 100 // bits + (-bits) + (bits << 2) + (64 >> other) + abs(~other)
    y[4] = Int32(5)
    if bits & 8:
        y[4] = Int32(6) if bits > other else Int32(7)
    count = Int32(0)
    for same in (bits == other, bits == 10, 4 == other, Int32(10) == bits, bits != other, bits == bits):
        if same:
            count = count * 2 + 1
        else:
            count = count * 2
    y[5] = count
    y[6] = Int32(1) if bits else Int32(0)
    y[7] = arith.addi(bits + other, bits - 1)
    value = llvm.bitcast(Float32.mlir_type, f[0].ir_value())
    f[1] = 1.5 - value / 2


def test_operators_compute_with_the_numbers():
    x, y, f = np.array([10, 3], np.int32), np.zeros(8, np.int32), np.array([5.0, 0.0], np.float32)
    of_values(x, y, f)
    expected = [10 & 12, 7 ^ 10, 25, 10 - 10 + 40 + 8 + 4, 6, 0b010111, 1, 22]
    assert y.tolist() == expected and f[1] == -1.0


@cute.jit
def of_a_pointer(x: cute.Tensor):
    _ = x.iterator.llvm_ptr + 1


def test_values_that_are_no_numbers_have_none():
    with pytest.raises(TypeError, match="unsupported operand"):
        of_a_pointer(np.zeros(2, np.int32))


def test_bits_of_an_ir_value():
    @cute.kernel
    def kernel(x: cute.Tensor, out: cute.Tensor):
        bits = x[0].ir_value()
        out[0] = Int32(1) if bits == 0x80000000 else Int32(0)
        out[1] = Int32(1) if 0x80000000 == bits else Int32(0)
        out[2] = Int32(1) if bits == 0x80000001 else Int32(0)
        out[3] = Int32(1) if x[0] == 0x80000000 else Int32(0)  # a typed number is compared as a number

    @cute.jit
    def launch(x: cute.Tensor, out: cute.Tensor):
        kernel(x, out).launch(grid=1, block=1)

    out = np.zeros(4, np.int32)
    with kiln.target("cpu"):
        launch(*map(cute.runtime.from_dlpack, (np.array([-(2**31)], np.int32), out)))
    assert out.tolist() == [1, 1, 0, 0]
