"""Layouts and tensors with a static extent of 0: guards keep their kernels from elements, and tiles of 0 are refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import kiln
from kiln import cute
from kiln.cute.layout.leaf import LayoutError
from kiln.cute.runtime import from_dlpack

L = cute.make_layout
EMPTY = [L(0), L((0, 4)), L((4, 0)), L((0, 4), stride=(4, 1)), L((4, (0, 2))), L((3, 0, 2))]


@pytest.mark.parametrize("layout", EMPTY, ids=str)
def test_an_index_is_some_offset(layout):
    assert cute.size(layout) == 0
    for index in range(5):
        assert isinstance(layout(index), int)
        assert layout(cute.idx2crd(index, layout.shape)) == layout(index)


@pytest.mark.parametrize("layout", EMPTY, ids=str)
def test_an_empty_layout_has_no_tiles(layout):
    tile = tuple(2 for _ in range(cute.rank(layout)))
    divided = cute.zipped_divide(layout, tile)
    assert cute.size(divided, mode=[1]) == 0


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "ceil_div": (lambda: cute.ceil_div(4, 0), "an extent of 4 is divided into tiles of 0 elements"),
    "ceil_div of a shape": (lambda: cute.ceil_div((4, 8), (2, 0)), "an extent of 8 is divided into tiles of 0 elements"),
    "divide": (lambda: cute.zipped_divide(L((4, 4)), (0, 2)), "cannot be divided by the tiler 0:1.*no elements"),
    "complement": (lambda: cute.complement(L((0, 4)), 16), r"the complement of \(0,4\):\(1,0\) does not exist.*no elements"),
    "product": (lambda: cute.logical_product(L((4, 0)), L(2)), "cannot be repeated over 2:1.*no elements"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(LayoutError, match=message):
        call()


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (3, 0, 2)], ids=str)
def test_kernels_with_guards_do_nothing(shape):
    @cute.kernel
    def by_index(x: cute.Tensor):
        i = cute.arch.block_idx()[0] * 32 + cute.arch.thread_idx()[0]
        if i < cute.size(x):
            x[i] = x[i] + 1

    @cute.kernel
    def by_tiles(x: cute.Tensor, tile: cute.Shape):
        at = (None, cute.arch.block_idx()[0])
        block = cute.zipped_divide(x, tile)[at]
        places = cute.zipped_divide(cute.make_identity_tensor(x.shape), tile)[at]
        for i in kiln.range_constexpr(cute.size(block)):
            if cute.elem_less(places[i], x.shape):
                block[i] = block[i] * 2

    @cute.jit
    def f(x: cute.Tensor):
        by_index(x).launch(grid=1, block=32)
        by_tiles(x, tuple(2 for _ in range(cute.rank(x)))).launch(grid=2, block=32)

    f(from_dlpack(np.zeros(shape, np.float32)))
