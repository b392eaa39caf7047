"""Symbolic extents and strides that several arguments share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kiln
from kiln import Float32, cute
from kiln.cute.runtime import make_fake_compact_tensor, make_fake_tensor

GENERIC = cute.AddressSpace.generic


@cute.jit
def copy(a: cute.Tensor, b: cute.Tensor):
    for i in range(cute.size(a)):
        b[i] = a[i]


@cute.jit
def first(pair: Any, c: cute.Tensor):
    c[0, 0] = pair[0][0] + pair[1][0]


def array(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def vector(n: Any) -> Any:
    return make_fake_compact_tensor(Float32, (n,), memspace=GENERIC)


def test_one_symbol_is_one_number():
    n = cute.sym_int()
    compiled = cute.compile(copy, vector(n), vector(n))
    out = np.zeros(8, np.float32)
    for _ in range(30):  # also once native code takes the calls
        compiled(array(8), out)
    assert (out == 1).all()
    for _ in range(30):
        with pytest.raises(kiln.DSLBaseError, match="extent of mode 0 of argument 'b' is 4.*argument 'a' is 8"):
            compiled(array(8), array(4))


def test_other_symbols_are_other_numbers():
    compiled = cute.compile(copy, vector(cute.sym_int()), vector(cute.sym_int()))
    compiled(array(3), array(5))


def test_symbols_are_known_by_name_too():
    compiled = cute.compile(copy, vector(cute.sym_int(symbol="n")), vector(cute.sym_int(64, symbol="n")))
    compiled(array(4), array(4))
    with pytest.raises(kiln.DSLBaseError, match="one symbol"):
        compiled(array(4), array(5))


def test_extents_and_strides_inside_structures():
    m, n = cute.sym_int(), cute.sym_int()
    matrix = make_fake_tensor(Float32, (m, n), (n, 1), memspace=GENERIC)  # the extent is the stride: compact
    compiled = cute.compile(first, [vector(m), vector(n)], matrix)
    out = array(3, 4)
    compiled([array(3), array(4)], out)
    assert out[0, 0] == 2
    for pair, c, says in (
        ([array(3), array(5)], out, "extent of mode 1 of argument 'c' is 4.*'pair' is 5"),
        ([array(2), array(4)], out, "extent of mode 0 of argument 'c' is 3.*'pair' is 2"),
        ([array(3), array(4)], array(3, 8)[:, :4], "stride of mode 0 of argument 'c' is 8"),
    ):
        with pytest.raises(kiln.DSLBaseError, match=says):
            compiled(pair, c)


def test_on_the_nvidia_target(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    n = cute.sym_int()
    with kiln.target("nvidia"):
        compiled = cute.compile(copy, vector(n), vector(n))
    assert "one symbol" in compiled.__mlir__
