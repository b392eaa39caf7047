"""Iterators: all that a tensor needs of what its layout leads into is in the protocol, shown with a kind of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute.runtime import from_dlpack
from kiln.cute.tensor.iterator import TensorIterator


class Descriptor(TensorIterator):
    """Like a matrix descriptor of the tensor cores: 64 bits whose low 14 hold an address in units of 16 bytes."""

    __slots__ = ("_word",)

    holds = "descriptors"
    dtype = kiln.Float16
    memspace = cute.AddressSpace.smem
    alignment = 16

    def __init__(self, word: Any) -> None:
        self._word = kiln.Int64(word)

    def moved(self, offset: Any) -> Descriptor:
        return Descriptor((self._word & ~0x3FFF) | ((self._word + offset) & 0x3FFF))

    def element(self, offset: Any) -> Any:
        return self.moved(offset)._word

    def __str__(self) -> str:
        return "descriptor<f16>"

    def __extract_mlir_values__(self) -> list[Any]:
        return [self._word.ir_value()]

    def __new_from_mlir_values__(self, values: Any) -> Descriptor:
        return Descriptor(values[0])

    def __kiln_static_key__(self) -> Any:
        return Descriptor


HIGH = 5 << 32
LAYOUT = "((2,2),3):((1,8),2)"


def descriptors(start: Any = HIGH + 7, shape: Any = ((2, 2), 3), stride: Any = ((1, 8), 2)) -> Any:
    return cute.make_tensor(Descriptor(start), cute.make_layout(shape, stride=stride))


def expected(offset: int) -> int:
    return HIGH | (7 + offset & 0x3FFF)


def written(f: Any, count: int, *args: Any) -> list[int]:
    """What a traced function writes to an array."""
    out = np.zeros(count, np.int64)
    f(from_dlpack(out), *args)
    return out.tolist()


@pytest.fixture(autouse=True)
def _cpu():
    with kiln.target("cpu"):
        yield


def test_it_is_what_its_iterator_says():
    @cute.jit
    def f(out: cute.Tensor):
        t = descriptors()
        assert str(t) == f"tensor<descriptor<f16> o {LAYOUT}>"
        assert t.type == f'!cute.tensor<"descriptor<f16>", "{LAYOUT}">'
        assert t.element_type is kiln.Float16 and t.memspace is cute.AddressSpace.smem
        assert isinstance(t.iterator, Descriptor) and isinstance(t, cute.Tensor)
        assert str(cute.make_tensor(t.iterator, t.layout)) == str(cute.make_tensor(t, t.layout)) == str(t)

    f(from_dlpack(np.zeros(1)))


def test_elements_slices_and_tiles():
    @cute.jit
    def f(out: cute.Tensor, i: kiln.Int32):
        t = descriptors()
        out[0] = t[0]
        out[1] = t[(1, 1), 2]
        out[2] = t[i]  # (1, 0), 1
        out[3] = t[(None, 1), None][i]  # of (2, 3)
        out[4] = cute.local_tile(t, (2, 1), (1, 2))[1]
        out[5] = cute.domain_offset(((0, 1), 1), t)[0]
        out[6] = cute.composition(t, cute.make_layout(12))[11]
        out[7] = cute.group_modes(cute.zipped_divide(t, (2, 3)), 0, 2)[6]
        out[8] = descriptors(HIGH + 0x3FFF)[1]  # the address does not run into the other fields

    assert written(f, 9, 5) == [*map(expected, [0, 13, 3, 13, 13, 10, 13, 8]), HIGH]


def test_control_flow_carries_it():
    @cute.jit
    def f(out: cute.Tensor, n: kiln.Int32, stride: kiln.Int32):
        t = descriptors(HIGH + 7, (4,), (stride,))
        for i in range(n):
            out[i] = t[0]
            t = cute.domain_offset((1,), t)
        if n > 2:
            t = descriptors(HIGH, (4,), (stride + 1,))
        out[3] = t[1]

    assert written(f, 4, 3, 2) == [*map(expected, [0, 2, 4]), HIGH + 3]
    assert written(f, 4, 1, 2) == [expected(0), 0, 0, expected(4)]


def test_kinds_do_not_mix():
    @cute.jit
    def f(out: cute.Tensor, n: kiln.Int32):
        t = cute.make_tensor(0, cute.make_layout(4))
        if n > 2:
            t = descriptors(0, 4, 1)
        out[0] = kiln.Int64(t[1])

    with pytest.raises(kiln.DSLUserCodeError, match="'t'"):
        written(f, 1, 3)


def test_printed(capfd):
    @cute.jit
    def f(out: cute.Tensor):
        t = descriptors(7, (2,), (1,))
        cute.printf("{}", t)
        cute.print_tensor(t)

    f(from_dlpack(np.zeros(1)))
    said = capfd.readouterr().out
    assert "descriptor<f16> o (2):(1) = \n  ( 7, 8 )" in said
    assert "tensor(descriptor<f16> o (2):(1), data=\n       [ 7, ],\n       [ 8, ])" in said


TENSOR_MEMORY = "cute.make_tensor(cute.make_ptr(kiln.Float32, 64, cute.AddressSpace.tmem), cute.make_layout(4))"


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("descriptors().load()", r"load\(\) needs memory .* the tensor holds descriptors"),
        ("descriptors().fill(0)", r"fill\(\) needs memory"),
        ("descriptors()[0] = 1", "writing an element needs memory"),
        ("cute.recast_tensor(descriptors(), kiln.Int8)", "recast_tensor needs memory"),
        ("cute.autovec_copy(descriptors(), out)", "its source holds descriptors"),
        ("cute.autovec_copy(out, descriptors())", "its destination holds descriptors"),
        ("cute.autovec_copy(out, cute.make_identity_tensor((1,)))", "its destination holds coordinates"),
        (f"{TENSOR_MEMORY}[0]", "a load or store needs memory .* tensor memory"),
        (f"{TENSOR_MEMORY}[0] = 1.0", "a load or store needs memory .* tensor memory"),
        (f"{TENSOR_MEMORY}.load()", "tensor memory"),
        ("cute.make_tensor(out.iterator, cute.make_identity_layout((2, 3)))[1, 2]", r"gives coordinates: \(1,2\)"),
        ("cute.make_tensor(out.iterator, cute.make_identity_layout((2, 3)))[1, None]", "gives coordinates"),
        ("cute.make_tensor(object(), 4)", "pointer or a coordinate, got object"),
    ],
)
def test_refused(statement, message):
    space = {"cute": cute, "kiln": kiln, "descriptors": descriptors}

    @cute.jit
    def f(out: cute.Tensor):
        exec(statement, {**space, "out": out})

    with pytest.raises(kiln.DSLUserCodeError, match=message):
        f(from_dlpack(np.zeros(1, np.float32)))
