"""Proofs, for the running PyTorch, of the C++ functions that native code calls by their symbols.

`python -m kiln.interop.torch.probe` loads all that native code uses of PyTorch and prints what it goes without, as
JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import TYPE_CHECKING, Any

import torch

from ...base_dsl import packages
from ..arguments.torch_layout import ProbeError, examples

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def prove_direct_calls(functions: Mapping[str, int], python_key: int, autocast_keys: int) -> None:
    """Compare functions about gradients, modes and autocast with PyTorch's Python API. Raises `ProbeError`.

    `functions` are addresses by the fields of `direct_calls.Direct`. Whether profilers are on has no counterpart to
    compare with: that function is only called.
    """
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    requires_grad = _function(functions, "requires_grad", ctypes.c_void_p)
    for tensor in examples():
        _compare("requires_grad", requires_grad(tensor._cdata), tensor.requires_grad)
    enabled = _function(functions, "grad_enabled")
    for mode, expected in ((torch.no_grad(), False), (torch.enable_grad(), True)):
        with mode:
            _compare("grad_enabled", enabled(), expected)
    included = _function(functions, "included", ctypes.c_int32)
    _compare("included", included(python_key), False)
    with TorchDispatchMode():
        _compare("included", included(python_key), True)
    excluded = _function(functions, "excluded", ctypes.c_uint64)
    for on in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            _compare("excluded", excluded(autocast_keys), not on and not torch.is_autocast_enabled("cuda"))
    has_modes = _function(functions, "has_modes")
    _compare("has_modes", has_modes(), False)
    with TorchFunctionMode():
        _compare("has_modes", has_modes(), True)
    _function(functions, "has_callbacks")()


def prove_writing(functions: Mapping[str, int]) -> None:
    """Compare functions about versions and inference mode with PyTorch's Python API. Raises `ProbeError`."""
    requires_grad = _function(functions, "requires_grad", ctypes.c_void_p)
    bump = functions["bump"]
    is_inference = _function(functions, "is_inference", ctypes.c_void_p)
    for tensor in examples():
        handle = ctypes.c_uint64(tensor._cdata)  # an at::Tensor is a pointer to its implementation
        _compare("requires_grad", requires_grad(tensor._cdata), tensor.requires_grad)
        _compare("is_inference", is_inference(ctypes.addressof(handle)), tensor.is_inference())
    tensor = torch.zeros(1)
    before = tensor._version
    handle = ctypes.c_uint64(tensor._cdata)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(bump)(ctypes.addressof(handle))
    _compare("bump", tensor._version, before + 1)
    inside = _function(functions, "in_inference")
    enabled = _function(functions, "grad_enabled")
    for on in (False, True):
        with torch.inference_mode(on), torch.set_grad_enabled(not on):
            _compare("in_inference", inside(), on)
            _compare("grad_enabled", enabled(), not on)


def _function(functions: Mapping[str, int], name: str, *arguments: Any) -> Callable[..., bool]:
    return ctypes.CFUNCTYPE(ctypes.c_bool, *arguments)(functions[name])


def _compare(name: str, returned: Any, expected: object) -> None:
    if returned != expected:
        raise ProbeError(f"the C++ function for {name} returns {returned}, and PyTorch says {expected}")


def main() -> int:
    from .dispatch import dispatcher

    direct = dispatcher()
    if direct is not None:
        _ = direct.is_direct
    print(json.dumps({"torch": torch.__version__, "without": packages.lacking}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
