"""Tensors of 8-bit floats for programs that keep them in torch tensors of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy
from ..base_dsl.typing import Float8E4M3FN, Float8E5M2

__all__ = ["is_fp8_dtype"]


def is_fp8_dtype(dtype: object) -> bool:
    """Return whether `dtype` is Float8E4M3FN or Float8E5M2."""
    return dtype in (Float8E4M3FN, Float8E5M2)


if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, {"create_cute_tensor_for_fp8": "..torch"})
