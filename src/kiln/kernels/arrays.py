"""The arrays kernels are called with: numpy's and torch's as they lie, others by way of DLPack."""

from __future__ import annotations

import functools
import sys
from typing import Any

from ..base_dsl import target as targets
from ..base_dsl.diagnostics import DSLUserCodeTypeError
from ..base_dsl.target import target_name
from ..cute.arrays import numpy_element_type, reading_natively, torch_element_type
from ..cute.pointer import AddressSpace, element_bits, make_ptr, natural_alignment
from ..cute.runtime import from_dlpack
from ..cute.tensor import TracedTensor

WIDEST = 16
"""Bytes of the widest access."""


def is_torch(x: Any) -> bool:
    """Whether an array is a torch tensor."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def known(x: Any) -> Any:
    """An array as one of numpy or torch, on the same memory."""
    import numpy as np

    if isinstance(x, np.ndarray) or is_torch(x):
        return x
    if isinstance(x, np.generic):
        return np.asarray(x)
    require(hasattr(x, "__dlpack__"), f"{type(x).__module__}.{type(x).__qualname__} is not an array", _ARRAYS)
    if "torch" in sys.modules or x.__dlpack_device__()[0] != 1:
        import torch

        return torch.from_dlpack(x)
    return np.from_dlpack(x)


_ARRAYS = "pass an array of numpy, torch, or any library that knows DLPack"


def as_given(result: Any, like: Any) -> Any:
    """A result as an array of the library that `like` is of, where that library knows DLPack."""
    import numpy as np

    if isinstance(like, (np.ndarray, np.generic)) or is_torch(like):
        return result
    if isinstance(result, tuple):
        return tuple(None if r is None else as_given(r, like) for r in result)
    space = getattr(like, "__array_namespace__", None)
    return space().from_dlpack(result) if space is not None else result


def _is_array(x: Any) -> bool:
    """Whether something can be taken as an array: numpy's scalars too."""
    return hasattr(x, "__dlpack__") or (hasattr(x, "__array_interface__") and hasattr(x, "dtype"))


def of_any_library(function: Any) -> Any:
    """Decorator: a function of arrays of numpy and torch that takes those of other libraries, by way of DLPack."""
    import numpy as np

    @functools.wraps(function)
    def call(*given: Any, **options: Any) -> Any:
        first = given[0] if given else None
        torch = sys.modules.get("torch")
        if isinstance(first, np.ndarray) or (torch is not None and isinstance(first, torch.Tensor)):
            return function(*given, **options)
        like = next((x for x in given if _is_array(x)), None)
        require(
            like is not None, f"{function.__name__} of {', '.join(type(x).__name__ for x in given)}: no arrays", _ARRAYS
        )
        taken = [known(x) if _is_array(x) else x for x in given]
        options = {name: known(x) if _is_array(x) else x for name, x in options.items()}
        return as_given(function(*taken, **options), like)

    return call


def element_type(x: Any) -> Any:
    """The type of the elements, as programs know it."""
    return torch_element_type(x.dtype) if is_torch(x) else numpy_element_type(x.dtype)


def framework_dtype(dtype: Any, like: Any) -> Any:
    """A type of programs as the dtype of the library that `like` is of."""
    if is_torch(like):
        from ..torch import dtype as torch_dtype

        return torch_dtype(dtype)
    import numpy as np

    return np.dtype(dtype.numpy_dtype)


def itemsize(x: Any) -> int:
    """Bytes of an element."""
    return x.element_size() if is_torch(x) else x.itemsize


def strides(x: Any) -> tuple[int, ...]:
    """Strides in elements."""
    return tuple(x.stride()) if is_torch(x) else tuple(s // x.itemsize for s in x.strides)


def address(x: Any) -> int:
    """Where the first element lies; 0 for None."""
    if x is None:
        return 0
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.data_ptr()
    return x.__array_interface__["data"][0]


def require_usable(x: Any, what: str, written: bool = False) -> None:
    """Refuse an array that the target in force cannot reach, or not write to."""
    on_gpu = is_torch(x) and x.device.type != "cpu"
    target = target_name()
    require(
        on_gpu == (target != "cpu") or (on_gpu and targets.cuda_is_host_memory) or not targets.get_target().launches(),
        f"{what} is in the memory of {x.device if on_gpu else 'the host'}, and programs run on the target {target!r}",
        hint='kiln.target("cpu") for arrays of the host, torch tensors on a CUDA device else',
    )
    if is_torch(x):
        require(x.device.type in ("cpu", "cuda"), f"{what} is on the device {x.device}")
        return
    require(not written or x.flags.writeable, f"{what} is read-only, and written to")
    require(
        all(s % x.itemsize == 0 for s in x.strides),
        f"{what} has strides of {x.strides} bytes, no whole elements of {x.itemsize}",
        hint="pass a copy: numpy.ascontiguousarray(x)",
    )


def pointer(place: Any, dtype: Any, width: int) -> Any:
    """Inside a program: where an array begins, given its address or itself, a multiple of `width` elements."""
    alignment = max(natural_alignment(dtype), min(WIDEST, width * element_bits(dtype) // 8))
    if isinstance(place, TracedTensor):
        return place.iterator.with_alignment(alignment)
    return make_ptr(dtype, place, AddressSpace.gmem, assumed_align=alignment)


def tensor(x: Any) -> Any:
    """An array as an argument that carries its own bounds."""
    return from_dlpack(x)


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


def maker(like: Any) -> Any:
    """A function of a shape and a type of the framework (None: the same) that makes arrays of the same kind."""
    if is_torch(like):
        import torch

        device, same, make = like.device, like.dtype, torch.empty
        return lambda shape, dtype: make(shape, dtype=same if dtype is None else dtype, device=device)
    return functools.partial(empty, like)


def named_type(like: Any, name: str) -> Any:
    """A type of the framework by its name."""
    if is_torch(like):
        import torch

        return getattr(torch, name)
    import numpy as np

    return np.dtype(name)


def empty_like(x: Any) -> Any:
    """A new contiguous array of the same kind, shape and type, in the same memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        # strides that torch keeps for dense tensors are those of `x`; others become contiguous
        return torch.empty_like(x, requires_grad=False)
    import numpy as np

    return np.empty(x.shape, x.dtype)


def assign(target: Any, values: Any) -> None:
    """Copy the elements of an array into another."""
    if is_torch(target):
        target.copy_(values)
    else:
        target[...] = values


def permuted(x: Any, order: list[int]) -> Any:
    """A view with the modes in another order."""
    return x.permute(order) if is_torch(x) else x.transpose(order)


def is_contiguous(x: Any) -> bool:
    """Whether elements lie without gaps in row-major order."""
    return x.is_contiguous() if is_torch(x) else x.flags.c_contiguous


def contiguous(x: Any) -> Any:
    """A copy with the last mode contiguous."""
    if is_torch(x):
        return x.contiguous()
    import numpy as np

    return np.ascontiguousarray(x)


def stream_of(x: Any) -> int:
    """The handle of the stream that work on an array belongs to; 0, the default stream, where there is none."""
    if is_torch(x) and x.is_cuda:
        torch = sys.modules["torch"]
        quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return quick(x.device.index) if quick is not None else torch.cuda.current_stream(x.device).cuda_stream
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
    """All that a kernel depends on of an array but its contents and where exactly it lies; None for None."""
    if x is None:
        return None
    native = reading_natively(x)
    if native is not None:
        found = native.describe(x)
        if found is not None:
            return found
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return x.dtype, x.shape, x.stride(), x.data_ptr() % WIDEST, x.device
    require(
        hasattr(x, "__array_interface__"), f"{type(x).__module__}.{type(x).__qualname__} beside numpy arrays", _ARRAYS
    )
    return x.dtype, x.shape, x.strides, x.flags.writeable, x.__array_interface__["data"][0] % WIDEST


def refusal(message: str, hint: str = "") -> Exception:
    """The error of a call that cannot be made."""
    return DSLUserCodeTypeError(message, hint=hint)


def require(condition: bool, message: str, hint: str = "") -> None:
    """Refuse arguments."""
    if not condition:
        raise refusal(message, hint)
