"""Metaprogramming: Python objects decide what a kernel is made of, and leave no trace in it.

Run it with `kiln run examples/epilogue.py`.

An epilogue is what a kernel does to each sum before it is written. It is a Python object passed as a Constexpr: the
kernel calls its method, the call is inlined, and another epilogue makes another kernel.
"""

import numpy as np

import kiln
import kiln.cute as cute
from kiln import Constexpr, Float32, const_expr
from kiln.cute.runtime import from_dlpack


class Epilogue:
    """Scale."""

    def __init__(self, scale: float):
        self.scale = scale

    @cute.jit
    def apply(self, x):
        return x * self.scale


class ReluEpilogue(Epilogue):
    """Scale, then clamp negative values to zero."""

    @cute.jit
    def apply(self, x):  # pyright: ignore[reportIncompatibleVariableOverride]
        scaled = super().apply(x)
        return scaled if scaled > 0.0 else 0.0


@cute.kernel
def row_sums_kernel(rows: cute.Tensor, sums: cute.Tensor, epilogue: Constexpr, unroll: Constexpr, debug: Constexpr):
    row, _, _ = cute.arch.thread_idx()
    total = Float32(0.0)
    if const_expr(unroll):
        for column in kiln.range_constexpr(cute.size(rows, mode=[1])):
            total += rows[row, column]
    else:
        for column in range(cute.size(rows, mode=[1])):
            total += rows[row, column]
    if const_expr(debug is not None):
        debug(row, total)
    sums[row] = epilogue.apply(total)


@cute.jit
def row_sums(
    rows: cute.Tensor, sums: cute.Tensor, epilogue: Constexpr, unroll: Constexpr = False, debug: Constexpr = None
):
    threads = cute.size(rows, mode=[0])
    row_sums_kernel(rows, sums, epilogue, unroll, debug).launch(grid=(1, 1, 1), block=(threads, 1, 1))


def describe(compiled):
    """What is left in the program of the Python it was made from."""
    loops, prints, calls = (compiled.__mlir__.count(word) for word in ("scf.for", "cute.printf", "call @"))
    return f"{loops} loops, {prints} printfs, {calls} calls"


if __name__ == "__main__":
    rows = np.array([[1, 2, 3], [-4, 5, -6], [7, -8, 9]], np.float32)
    sums = np.zeros(3, np.float32)
    tensors = from_dlpack(rows), from_dlpack(sums)

    for epilogue in (Epilogue(0.5), ReluEpilogue(0.5)):  # two kernels
        row_sums(*tensors, epilogue)
        print(f"{type(epilogue).__name__}: {sums.tolist()}")

    debug = lambda row, total: cute.printf("row {} adds up to {}", row, total)
    row_sums(*tensors, Epilogue(1.0), debug=debug)

    relu = ReluEpilogue(0.5)
    print("a loop:     ", describe(cute.compile(row_sums, *tensors, relu)))
    print("unrolled:   ", describe(cute.compile(row_sums, *tensors, relu, unroll=True)))
    print("with debug: ", describe(cute.compile(row_sums, *tensors, relu, debug=debug)))
