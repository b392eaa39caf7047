"""Pointers that libraries define by themselves, of a type of the `cute` dialect and an address."""

from __future__ import annotations

import ctypes

import cutlass._mlir.dialects.cute as dialect
import numpy as np
import pytest

from kiln import Float32, Int32, cute
from kiln.base_dsl.diagnostics import DSLBaseError


class OwnPointer(cute.typing.Pointer):
    def __init__(self, address, dtype, alignment=4):
        self._address = ctypes.c_void_p(address)
        self._element = dtype
        self._align = alignment

    def __get_mlir_types__(self):
        return [dialect.PtrType.get(self._element.mlir_type, dialect.AddressSpace.generic, self._align)]

    def __c_pointers__(self):
        return [ctypes.addressof(self._address)]

    def __new_from_mlir_values__(self, values):
        return values[0]


@cute.jit
def scaled(x: cute.Pointer, y: cute.Pointer, n: Int32):
    a, b = (cute.make_tensor(p, cute.make_layout(n)) for p in (x, y))
    for i in range(n):
        b[i] = a[i] * 2


@pytest.mark.parametrize(("kind", "dtype"), [(Float32, np.float32), (Int32, np.int32)])
def test_own_pointers_are_pointers(kind, dtype):
    x, y = np.arange(1, 6).astype(dtype), np.zeros(5, dtype)
    arguments = [OwnPointer(a.ctypes.data, kind) for a in (x, y)]
    cute.compile(scaled, *arguments, 5)(*arguments, 4)
    assert y.tolist() == [2, 4, 6, 8, 0]
    with pytest.raises((DSLBaseError, ValueError), match="alignment 3"):
        cute.compile(scaled, OwnPointer(x.ctypes.data, kind, 3), arguments[1], 5)


def test_subscripts_are_elements():
    """`p[i]` is the element i elements on, as in C; what would go by coordinates or without end is refused."""

    @cute.kernel
    def kernel(x: cute.Tensor, y: cute.Tensor):
        t, _, _ = cute.arch.thread_idx()
        y.iterator[t] = x.iterator[t + 1] + (x.iterator + 2)[0]
        for wrong in ((0, 1), True):
            with pytest.raises(TypeError, match="tensors have coordinates"):
                x.iterator[wrong]
        with pytest.raises(TypeError, match="not iterable"):
            list(x.iterator)

    @cute.jit
    def f(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=1, block=4)

    x, y = np.arange(5, dtype=np.float32), np.zeros(4, np.float32)
    cute.compile(f, x, y, target="cpu")(x, y)
    assert y.tolist() == [3, 4, 5, 6]
