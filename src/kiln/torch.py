"""The bridge to PyTorch: tensors for programs, and kernels as operators. `kiln/interop/torch` implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .base_dsl import packages as _packages

try:
    _packages.load("torch")
except ModuleNotFoundError:
    raise ModuleNotFoundError("kiln.torch needs PyTorch: pip install 'kiln-dsl[torch]'", name="torch") from None

from .interop.torch.tensors import *  # noqa: F403

if TYPE_CHECKING:
    from .interop.torch.operators import Operator


def op(name: str, function: Any, **options: Any) -> Operator:
    """Make a kernel an operator of PyTorch, `namespace::name`: see `Operator` in `interop/torch/operators.py`."""
    from .interop.torch.operators import Operator

    return Operator(name, function, **options)
