"""Arrays of JAX are read by their own functions, as DLPack would tell them."""

import numpy as np
import pytest

import kiln
import kiln.cute as cute
from kiln import Float32
from kiln.cute.host import arrays, jax_arrays
from kiln.cute.runtime import from_dlpack
from kiln.interop.arguments import loading

jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")


def facts(array):
    return array.address, tuple(array.shape), tuple(array.strides), array.dtype, array.device


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 1, 3), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "bool"])
def test_the_same_as_through_dlpack(shape, dtype, monkeypatch):
    x = jnp.ones(shape, dtype)
    through = facts(arrays.read_dlpack(x))
    monkeypatch.setattr(arrays, "read_dlpack", None)  # not needed
    assert facts(arrays.read_array(x)) == through


def test_work_in_progress_is_waited_for():
    x = jax.jit(lambda x: (x @ x).sum(0))(jnp.ones((512, 512)))
    assert np.array_equal(np.from_dlpack(from_dlpack(x)), np.full(512, 512.0 * 512))


@cute.jit
def total(x: cute.Tensor):
    found = Float32(0.0)
    for i in range(cute.size(x)):
        found += x[i]
    return found


def ended(x, how):
    """Delete an array, or donate it to a function that overwrites it; then use freed memory for others."""
    if how == "delete":
        x.delete()
    else:
        jax.jit(lambda v: v * 0 - 7, donate_argnums=0)(x).block_until_ready()
    return [np.full(x.shape, 5, np.float32) for _ in range(8)]


@pytest.mark.parametrize("how", ["delete", "donate"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tensor_keeps_the_memory_of_an_array(how, dtype):
    x = jnp.ones(1 << 14, dtype)
    tensor = from_dlpack(x).mark_layout_dynamic()
    tensors = (tensor, from_dlpack(x).mark_layout_dynamic(), from_dlpack(tensor).mark_layout_dynamic())
    pointer = from_dlpack(x).iterator
    junk = ended(x, how)
    assert [float(total(t)) for t in tensors] == [1 << 14] * 3
    assert pointer.keep is not None and junk


def test_an_array_that_was_deleted_is_refused_by_name():
    x = jnp.ones(4)
    compiled = cute.compile(total, x)
    for _ in range(3):
        total(x)
    x.delete()
    for call in (lambda: from_dlpack(x), lambda: total(x), lambda: compiled(x), lambda: kiln.kernels.softmax(x)):
        with pytest.raises(
            kiln.DSLUserCodeTypeError, match=r"an array of JAX float32\[4\] that was deleted or donated"
        ):
            call()


def test_types_without_dlpack_are_refused_by_name():
    with pytest.raises(kiln.DSLUserCodeTypeError, match=r"ArrayImpl gives no memory by DLPack: .*S4"):
        from_dlpack(jnp.zeros(8, "int4"))


@pytest.fixture
def kinds():
    """What native code knows of them."""
    compiled = cute.compile(total, jnp.zeros(3))
    compiled(jnp.zeros(3))
    if loading.engine() is None:
        pytest.skip("Python takes all calls")
    if jax.version.__version_info__ < (0, 6):
        pytest.skip("arrays of this JAX are read by Python")
    assert jax_arrays._kinds is not None
    return compiled, jax_arrays._kinds


def test_native_code_reads_arrays_of_a_kind_that_was_seen(kinds, monkeypatch):
    compiled, known = kinds
    step = jax.jit(lambda x: x + 1)
    x = step(jnp.zeros(6))
    compiled(x)
    monkeypatch.setattr(compiled.source.dsl.caller, "learn_compiled", None)  # Python may not take the next calls
    for _ in range(3):
        x = step(x)
        assert compiled(x) == float(x.sum())
    x.delete()
    with pytest.raises(TypeError):  # a deleted one is Python's
        compiled(x)


def test_an_array_that_was_read_is_only_asked_whether_it_was_deleted(kinds, monkeypatch):
    compiled, known = kinds
    x, y = jnp.arange(5.0), jnp.arange(5.0)
    assert compiled(x) == compiled(x) == 10
    monkeypatch.setattr(compiled.source.dsl.caller, "learn_compiled", None)  # Python may not take the next calls
    before, known._table.pointer = known._table.pointer, id(chr)  # a function that fails
    try:
        assert compiled(x) == 10
        with pytest.raises(TypeError):
            compiled(y)
        x.delete()
        with pytest.raises(TypeError):
            compiled(x)
    finally:
        known._table.pointer = before
    monkeypatch.undo()
    for number in range(600):  # others come to lie where they lay
        assert compiled(jnp.full(5, float(number))) == 5 * number


def test_kinds_are_forgotten_in_turn(kinds):
    compiled, known = kinds
    for number in range(1, 80):
        x = jax.device_put(np.ones(number, np.float32))
        assert compiled(x) == compiled(x) == number
    assert known._table.count == len(known._kept) == 64
