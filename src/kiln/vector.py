"""Functions of vectors (`cutlass.Vector`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._support import lazy
from .base_dsl.diagnostics import type_error
from .base_dsl.typing import Boolean, Int32, Integer
from .cute.tensor.tensor_ssa import TensorSSA, full, full_like, where

__dir__ = lazy.listing(__name__)
__all__ = ["broadcast_to", "create_mask", "full", "full_like", "outerproduct", "where"]


def broadcast_to(src: TensorSSA, target_shape: object, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Return a vector repeated along the modes that are missing in front, or of extent 1."""
    return src.broadcast_to(tuple(target_shape) if isinstance(target_shape, list) else target_shape)


def outerproduct(a: TensorSSA, b: TensorSSA, acc: Any = None, *, loc: object = None, ip: object = None) -> TensorSSA:
    """Return the outer product, a[i] b[j], of shape (len(a), len(b)), added to `acc` if given."""
    if len(a.shape) != 1 or len(b.shape) != 1:
        raise type_error(f"outerproduct() takes vectors of one mode, got shapes {a.shape} and {b.shape}")
    outer = a.reshape((a.numel(), 1)) * b.reshape((1, b.numel()))
    return outer if acc is None else outer + acc


def create_mask(
    shape: int | Sequence[int], sizes: int | Integer | Sequence[int | Integer], *, loc: object = None, ip: object = None
) -> TensorSSA:
    """Return a vector of Booleans that hold where each coordinate is below the size of its mode.

    Args:
        shape: the extents of the vector, static.
        sizes: how many elements of each mode hold, numbers of the program or Python's; below 0 none, past the end all.
    """
    extents = (shape,) if isinstance(shape, int) else tuple(shape)
    counts = tuple(sizes) if isinstance(sizes, Sequence) else (sizes,)
    if len(extents) != len(counts):
        raise type_error(f"create_mask() got sizes {counts} for a vector of shape {extents}", "one size for each mode")
    mask = full(extents, Boolean(True))
    for mode, (extent, count) in enumerate(zip(extents, counts, strict=True)):
        inside = TensorSSA.from_elements(list(range(extent)), Int32) < full((extent,), Int32(count))
        along = tuple(extent if i == mode else 1 for i in range(len(extents)))
        inside = inside.reshape(along).broadcast_to(extents)
        mask = where(mask, inside, full(extents, Boolean(False)))
    return mask
