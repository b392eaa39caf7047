"""The arrays kernels are called with: numpy's and torch's, taken as they lie."""

from __future__ import annotations

from typing import Any

from ..base_dsl.diagnostics import DSLUserCodeTypeError
from ..cute.runtime import from_dlpack

WIDEST = 16
"""Bytes of the widest access."""


def is_torch(x: Any) -> bool:
    """Whether an array is a torch tensor."""
    return type(x).__module__.partition(".")[0] == "torch"


def itemsize(x: Any) -> int:
    """Bytes of an element."""
    return x.element_size() if is_torch(x) else x.itemsize


def strides(x: Any) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(x.stride()) if is_torch(x) else tuple(s // x.itemsize for s in x.strides)


def address(x: Any) -> int:
    """Where the first element lies."""
    return x.data_ptr() if is_torch(x) else x.__array_interface__["data"][0]


def broadcast_to(x: Any, shape: tuple[int, ...]) -> Any:
    """A view of an array of a larger shape: repeated modes have stride 0."""
    if tuple(x.shape) == tuple(shape):
        return x  # numpy gives modes of extent 1 the stride 0
    if is_torch(x):
        return x.broadcast_to(shape)
    import numpy as np

    return np.broadcast_to(x, shape)


def empty(like: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """A new array of the same kind, in the same memory; `dtype` is the framework's, None for the same."""
    if is_torch(like):
        import torch

        return torch.empty(shape, dtype=like.dtype if dtype is None else dtype, device=like.device)
    import numpy as np

    return np.empty(shape, like.dtype if dtype is None else dtype)


def contiguous(x: Any) -> Any:
    """A copy with the last mode contiguous."""
    if is_torch(x):
        return x.contiguous()
    import numpy as np

    return np.ascontiguousarray(x)


def stream_of(x: Any) -> int:
    """The handle of the stream that work on an array belongs to; 0, the default stream, where there is none."""
    if is_torch(x) and x.device.type == "cuda":
        import torch

        return torch.cuda.current_stream(x.device).cuda_stream
    return 0


def leading_mode(x: Any, modes: tuple[int, ...]) -> int | None:
    """The one of some modes along which elements are adjacent; the last of several."""
    found = [m for m in modes if strides(x)[m] == 1]
    longer = [m for m in found if x.shape[m] != 1]
    return (longer or found or [None])[-1]


def access_width(x: Any, leading: int) -> int:
    """How many elements along the leading mode can be accessed at once everywhere, at most `WIDEST` bytes' worth."""
    size = itemsize(x)
    width = max(1, WIDEST // size)
    other = [abs(s) for m, s in enumerate(strides(x)) if m != leading and x.shape[m] != 1]
    while width > 1 and (address(x) % (width * size) or x.shape[leading] % width or any(s % width for s in other)):
        width //= 2
    return width


def dynamic(x: Any, leading: int | None, width: int) -> Any:
    """An array as an argument whose extents and strides may differ from call to call; static without a leading mode."""
    tensor = from_dlpack(x, assumed_align=width * itemsize(x))
    return tensor if leading is None else tensor.mark_layout_dynamic(leading_dim=leading)


def signature(x: Any) -> Any:
    """All that a kernel depends on of an array but its contents and where exactly it lies."""
    if x is None:
        return None
    if is_torch(x):
        return x.dtype, x.shape, x.stride(), x.data_ptr() % WIDEST, x.device
    return x.dtype, x.shape, x.strides, address(x) % WIDEST


def refusal(message: str, hint: str = "") -> Exception:
    """The error of a call that cannot be made."""
    return DSLUserCodeTypeError(message, hint=hint)


def require(condition: bool, message: str, hint: str = "") -> None:
    """Refuse arguments."""
    if not condition:
        raise refusal(message, hint)
