"""The bridge to PyTorch: tensors for programs (`tensors.py`), and kernels as operators (`op`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl import packages as _packages

try:
    _packages.load("torch")
except ModuleNotFoundError:
    raise ModuleNotFoundError("kiln.torch needs PyTorch: pip install 'kiln-dsl[torch]'", name="torch") from None

from .tensors import *

if TYPE_CHECKING:
    from .operators import Operator


def op(name: str, function: Any, **options: Any) -> Operator:
    """A kernel as an operator of PyTorch, `namespace::name`: see `operators.Operator`."""
    from .operators import Operator

    return Operator(name, function, **options)
