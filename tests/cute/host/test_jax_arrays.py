"""Arrays of JAX are read by their own functions, as DLPack would tell them."""

import numpy as np
import pytest

from kiln.cute.host import arrays
from kiln.cute.runtime import from_dlpack

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")


def facts(array):
    return array.address, tuple(array.shape), tuple(array.strides), array.dtype, array.device


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 3), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_the_same_as_through_dlpack(shape, dtype, monkeypatch):
    x = jnp.ones(shape, dtype)
    through = facts(arrays._read_dlpack(x))
    monkeypatch.setattr(arrays, "_read_dlpack", None)  # not needed
    assert facts(arrays.read_array(x)) == through


def test_work_in_progress_is_waited_for():
    x = jax.jit(lambda x: (x @ x).sum(0))(jnp.ones((512, 512)))
    assert np.array_equal(np.from_dlpack(from_dlpack(x)), np.full(512, 512.0 * 512))


def test_what_jax_does_not_tell_is_asked_of_dlpack():
    x = jnp.zeros(4)
    x.delete()
    with pytest.raises(Exception, match="deleted"):
        from_dlpack(x)
