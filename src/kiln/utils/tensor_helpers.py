"""Tensors of 8-bit floats for programs that keep them in torch tensors of bytes."""

from __future__ import annotations

from typing import Any

from ..base_dsl.typing import Float8E4M3FN, Float8E5M2

__all__ = ["create_cute_tensor_for_fp8", "is_fp8_dtype"]


def is_fp8_dtype(dtype: Any) -> bool:
    """Whether elements are Float8E4M3FN or Float8E5M2."""
    return dtype in (Float8E4M3FN, Float8E5M2)


def create_cute_tensor_for_fp8(
    storage_tensor: Any,
    dtype: Any,
    leading_dim: int,
    source_f32_tensor: Any = None,
    assumed_align: int = 16,
    mark_dynamic_layout: bool = True,
) -> Any:
    """A tensor on the memory of a torch tensor, all of its layout dynamic but the stride 1 of the leading mode; static
    without `mark_dynamic_layout`.

    For 8-bit floats the torch tensor has bytes; `source_f32_tensor` gives their values, which are converted into it.
    """
    from ..cute.runtime import from_dlpack
    from ..torch import convert_cute_tensor

    tensor = from_dlpack(storage_tensor, assumed_align=assumed_align)
    if is_fp8_dtype(dtype):
        tensor.element_type = dtype
    if mark_dynamic_layout:
        tensor = tensor.mark_layout_dynamic(leading_dim=leading_dim)
    if is_fp8_dtype(dtype) and source_f32_tensor is not None:
        tensor = convert_cute_tensor(source_f32_tensor, tensor, dtype)
    return tensor
