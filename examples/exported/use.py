"""Calls libscale.so (`export.py`) from PyTorch, JAX, TVM-FFI and by ctypes, as many of them as are installed, in one
process that knows nothing of Kiln.

python use.py libscale.so
"""

import ctypes
import importlib.util
import sys


def use_in_torch(path: str) -> str:
    """The library registers an operator: scale(Tensor x, float by) -> Tensor."""
    import torch

    torch.ops.load_library(path)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.arange(24.0, device=device).reshape(3, 8)
    assert torch.equal(torch.ops.examples.scale(x, 3.0), 3 * x)
    return device


def use_in_jax(path: str) -> str:
    """The library has a handler for XLA: inputs and outputs are arrays, numbers are attributes."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    platform = jax.default_backend()
    handler = jax.ffi.pycapsule(ctypes.CDLL(path).kiln_xla_scale)
    jax.ffi.register_ffi_target("scale", handler, platform="CUDA" if platform == "gpu" else platform)

    @jax.jit
    def f(x):
        return jax.ffi.ffi_call("scale", jax.ShapeDtypeStruct(x.shape, x.dtype))(x, by=np.float32(2)) + 1

    x = jnp.arange(24.0).reshape(3, 8)
    assert (f(x) == 2 * x + 1).all()
    return platform


def use_in_tvm_ffi(path: str) -> str:
    """The library has a function of TVM-FFI's, which takes arrays of any framework with DLPack."""
    import numpy as np
    import tvm_ffi

    module = tvm_ffi.load_module(path)
    x, y = np.arange(24, dtype=np.float32).reshape(3, 8), np.zeros((3, 8), np.float32)
    module.scale(x, y, 5.0)
    assert (y == 5 * x).all()
    return module.get_function_doc("scale") or ""


def use_by_ctypes(path: str) -> str:
    """As C programs do (`use.c`)."""

    class Matrix(ctypes.Structure):
        _fields_ = [("data", ctypes.c_void_p), ("shape", ctypes.c_int32 * 2), ("stride", ctypes.c_int64)]

    x, y = (ctypes.c_float * 8)(*range(8)), (ctypes.c_float * 8)()
    given = [Matrix(ctypes.addressof(memory), (2, 4), 4) for memory in (x, y)]
    call = ctypes.CDLL(path).cute_dsl_scale_wrapper
    assert call(None, ctypes.byref(given[0]), ctypes.byref(given[1]), ctypes.c_float(3)) == 0
    assert list(y) == [3 * number for number in x]
    return "host"


if __name__ == "__main__":
    for package, use in (
        ("torch", use_in_torch),
        ("jax", use_in_jax),
        ("tvm_ffi", use_in_tvm_ffi),
        ("ctypes", use_by_ctypes),
    ):
        if importlib.util.find_spec(package):
            print(f"{package}: {use(sys.argv[1])}", flush=True)
    assert "kiln" not in sys.modules
