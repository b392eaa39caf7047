"""Arguments that do not fit a function compiled with `--enable-tvm-ffi`: ValueError, with all that TVM-FFI's own error names."""

from __future__ import annotations

import numpy as np
import pytest

import kiln
from kiln import Float32, Int32, cute
from kiln.cute.runtime import make_fake_compact_tensor, make_fake_tensor


@cute.jit
def copy(n: Int32, a: cute.Tensor, b: cute.Tensor):
    for i in range(n):
        b[i] = a[i]


def array(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def fake(*extents, **more):
    return make_fake_compact_tensor(Float32, extents, memspace=cute.AddressSpace.generic, **more)


@pytest.fixture(autouse=True)
def _on_the_cpu():
    with kiln.target("cpu"):
        yield


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (array(4), "Mismatched b.shape[0]: the extent of mode 0 is 4, not 8"),
        (array(16)[::2], "Mismatched b.strides[0]: the stride of mode 0 is 2, not 1"),
        (array(8, 1), "it has 2 modes"),
        (array(8, dtype=np.float16), "its elements are Float16"),
    ],
)
def test_what_does_not_fit_is_a_value_error(wrong, why):
    compiled = cute.compile(copy, 1, fake(cute.sym_int()), fake(8), options="--enable-tvm-ffi")
    compiled(8, array(8), array(8))
    for _ in range(12):  # also once native code takes the calls
        with pytest.raises(ValueError, match="Mismatched") as caught:
            compiled(8, array(8), wrong)
        message = str(caught.value)
        assert (
            "argument #2 ('b') when calling `copy(n: Int32, a: Tensor([?], Float32), b: Tensor([8], Float32))`"
            in message
        )
        assert why in message
        assert "expected a tensor of Float32 (generic, align 4) with layout (8):(1)" in message


def test_another_kind_of_argument_is_a_type_error():
    compiled = cute.compile(copy, 1, fake(8), fake(8), options="--enable-tvm-ffi")
    with pytest.raises(TypeError, match="argument 'a' of copy takes Tensor and got the int 5"):
        compiled(8, 5, array(8))


def test_symbols_that_differ_are_a_value_error():
    n = cute.sym_int()
    compiled = cute.compile(copy, 1, fake(n), fake(n), options="--enable-tvm-ffi")
    for _ in range(12):
        with pytest.raises(ValueError, match=r"calling `copy\(.*extent of mode 0 of argument 'b' is 4.*'a' is 8"):
            compiled(1, array(8), array(4))


@pytest.mark.parametrize("kind", [ValueError, TypeError, RuntimeError, AssertionError, kiln.DSLUserCodeValueError])
def test_without_the_option_it_is_an_error_of_all_classes_that_others_raise(kind):
    compiled = cute.compile(copy, 1, fake(8), fake(8))
    with pytest.raises(kind, match="(?s)argument 'b' of copy is a tensor.*the extent of mode 0 is 4, not 8"):
        compiled(8, array(8), array(4))
    with pytest.raises(kiln.DSLUserCodeTypeError, match="argument 'b' of copy takes Tensor and got") as caught:
        compiled(8, array(8), 3.0)
    assert not isinstance(caught.value, kiln.DSLUserCodeValueError)  # another kind of argument
    n = cute.sym_int()
    compiled = cute.compile(copy, 1, fake(n), fake(n))
    with pytest.raises(kind, match="extent of mode 0 of argument 'b' is 4.*'a' is 8"):
        compiled(1, array(8), array(4))


def test_errors_of_the_driver_are_runtime_errors():
    assert issubclass(kiln.DSLCudaRuntimeError, RuntimeError)


def test_host_memory_is_refused_where_a_gpu_is_meant(child, tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "program.py").write_text(
        "import torch, cutlass, cutlass.cute as cute\n"
        "@cute.jit\n"
        "def f(x: cute.Tensor): x[0] = 3.0\n"
        "fake = cute.runtime.make_fake_tensor(cutlass.Float32, (8,), stride=(1,))\n"
        "g = cute.compile(f, fake, options='--enable-tvm-ffi')\n"
        "x = torch.ones(8, device='cuda')\n"
        "g(x)\n"
        "for _ in range(12):\n"
        "    try: g(torch.ones(8))\n"
        "    except ValueError as e: assert 'memory of the host' in str(e), e\n"
        "    else: raise SystemExit('accepted')\n"
        "print(x[0].item())\n"
    )
    done = child("-m", "kiln", "run", "--target", "cpu", "program.py")
    assert done.stdout == "3.0\n", done.stdout + done.stderr


def test_a_fake_tensor_in_global_memory_takes_arrays_of_the_host_without_served_cuda():
    compiled = cute.compile(copy, 1, make_fake_tensor(Float32, (8,), (1,)), fake(8))
    out = np.zeros(8, np.float32)
    compiled(8, array(8), out)
    assert (out == 1).all()
