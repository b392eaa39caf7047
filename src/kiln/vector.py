"""Functions of vectors (`cutlass.Vector`)."""

from __future__ import annotations

from typing import Any

from ._support import lazy
from .base_dsl.diagnostics import type_error
from .cute.tensor.tensor_ssa import TensorSSA, full_like

__dir__ = lazy.listing(__name__)
__all__ = ["broadcast_to", "full_like", "outerproduct"]


def broadcast_to(src: TensorSSA, target_shape: object, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Return a vector repeated along the modes that are missing in front, or of extent 1."""
    return src.broadcast_to(tuple(target_shape) if isinstance(target_shape, list) else target_shape)


def outerproduct(a: TensorSSA, b: TensorSSA, acc: Any = None, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Return the outer product, a[i] b[j], of shape (len(a), len(b)), added to `acc` if given."""
    if len(a.shape) != 1 or len(b.shape) != 1:
        raise type_error(f"outerproduct() takes vectors of one mode, got shapes {a.shape} and {b.shape}")
    outer = a.reshape((a.numel(), 1)) * b.reshape((1, b.numel()))
    return outer if acc is None else outer + acc
