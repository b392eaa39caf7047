"""Pointers made in Python of plain addresses, as parts of a program's own argument types."""

from __future__ import annotations

import numpy as np

import kiln
from kiln import cute
from kiln.cute.runtime import make_ptr


class Column:
    """An argument type of the user's: a pointer that passes the protocol on to its own."""

    def __init__(self, pointer):
        self.pointer = pointer

    def __c_pointers__(self):
        return self.pointer.__c_pointers__()

    def __get_mlir_types__(self):
        return self.pointer.__get_mlir_types__()

    def __extract_mlir_values__(self):
        return self.pointer.__extract_mlir_values__()

    def __new_from_mlir_values__(self, values):
        return Column(self.pointer.__new_from_mlir_values__(values))


def test_a_pointer_of_python_can_be_rebuilt_from_values():
    @cute.kernel
    def kernel(column: Column, out: cute.Tensor):
        t = cute.arch.thread_idx()[0]
        moved = cute.make_tensor(column.pointer + 4, cute.make_layout(4))
        out[t] = moved[t]

    @cute.jit
    def main(column: Column, out: cute.Tensor):
        kernel(column, out).launch(grid=1, block=4)

    x, out = np.arange(8, dtype=np.int32), np.zeros(4, np.int32)
    with kiln.target("cpu"):
        main(Column(make_ptr(cute.Int32, x.ctypes.data, cute.AddressSpace.gmem, assumed_align=4)), out)
    np.testing.assert_array_equal(out, x[4:])
