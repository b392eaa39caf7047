"""Objects of other libraries that stand for arrays and have no memory are refused, each with what to use."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
import kiln.cute as cute
from kiln.cute.runtime import from_dlpack


@cute.kernel
def copy_kernel(x: cute.Tensor, y: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    y[t] = x[t]


@cute.jit
def copy(x: cute.Tensor, y: cute.Tensor):
    copy_kernel(x, y).launch(grid=1, block=4)


@cute.jit
def more(n: cute.Int32):
    return n + 1


@cute.jit
def first(values):
    return values[0]


CALLS = [
    lambda x: copy(x, np.zeros(4, np.float32)),
    lambda x: copy(np.zeros(4, np.float32), x),
    lambda x: more(x),
    lambda x: first((x, 1)),
    lambda x: from_dlpack(x),
    lambda x: cute.compile(copy, x, x),
    lambda x: kiln.kernels.softmax(x),
]


@pytest.mark.parametrize("call", CALLS)
def test_tracers_of_jax(call):
    jax = pytest.importorskip("jax")
    x = jax.numpy.arange(4.0)
    for trace in (jax.jit, jax.vmap, lambda f: jax.grad(lambda v: f(v).sum())):
        with pytest.raises(kiln.DSLUserCodeTypeError, match=r"(?s)tracer of JAX.*kiln\.jax\.cutlass_call"):
            trace(lambda v: (call(v), v)[1])(x[None] if trace is jax.vmap else x)


@pytest.mark.parametrize("call", CALLS[:-1])
def test_what_jax_has_besides_arrays(call):
    jax = pytest.importorskip("jax")
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"(?s)random keys.*jax\.random\.key_data"):
        call(jax.random.key(0))
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"(?s)ShapeDtypeStruct.*make_fake_tensor"):
        call(jax.ShapeDtypeStruct((4,), "float32"))


@pytest.mark.torch
@pytest.mark.parametrize("call", CALLS)
def test_proxies_of_torch_fx(call):
    torch = pytest.importorskip("torch")
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"(?s)Proxy of torch\.fx.*kiln\.torch\.op"):
        torch.fx.symbolic_trace(lambda v: (call(v), v)[1])


class Series:
    """As those of data frames: it can become an array, and is none."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype)

    def __getitem__(self, index):
        return self.values[index]


def test_what_can_become_an_array():
    series = Series([3.0, 1.0])
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"(?s)Series is passed as a tensor.*numpy\.asarray"):
        copy(series, np.zeros(4, np.float32))
    assert first(series) == 3  # an object of the program
