"""The arrays that kernels are called with: numpy's and torch's in place, others through DLPack."""

from __future__ import annotations

import ctypes
import functools
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...base_dsl import packages, sanitizing
from ...base_dsl import target as targets
from ...base_dsl.call_types import (
    AnyArray,  # noqa: F401  # for the families
    Array,
)
from ...base_dsl.diagnostics import DSLUserCodeTypeError
from ...cute.host import unreadable
from ...cute.host.addresses import make_ptr
from ...cute.host.arrays import has_mask, numpy_element_type, torch_address, torch_dtype, torch_element_type
from ...cute.runtime import from_dlpack
from ...cute.tensor.pointer import AddressSpace, element_bits, natural_alignment
from ...cute.tensor.tensor import TracedTensor
from ...hardware import current as hardware
from ...interop.arguments import program as call_program
from .problem import MAX_VECTOR_BYTES, TensorLayout

if TYPE_CHECKING:
    from typing import TypeGuard

    import numpy as np
    import torch

    from ... import Int64, cute


def is_torch(x: object) -> TypeGuard[torch.Tensor]:
    """Return whether an array is a torch tensor."""
    torch = packages.loaded("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def as_supported(x: Any) -> Array:
    """Return an array as one of numpy or torch on the same memory."""
    import numpy as np

    if isinstance(x, np.ndarray) or is_torch(x):
        return x
    if isinstance(x, np.generic):
        return np.asarray(x)
    if (reason := unreadable.reason(x)) is not None:
        raise refusal(*reason)
    require(hasattr(x, "__dlpack__"), f"{type(x).__module__}.{type(x).__qualname__} is not an array", ARRAYS)
    try:
        if packages.loaded("torch") is not None or x.__dlpack_device__()[0] != 1:
            import torch

            return torch.from_dlpack(x)
        return np.from_dlpack(x)
    except Exception as reason:  # an element type or a device that the library does not support
        raise DSLUserCodeTypeError(f"an array of {type(x).__qualname__}: {reason}", hint=ARRAYS) from None


ARRAYS = "pass an array of numpy, torch, or any library that knows DLPack"


def converted_like(result: Any, like: Any) -> Any:
    """Convert a result to an array of the library of `like`, if that library supports DLPack."""
    if type(like).__module__ == "numpy" or is_numpy(like) or is_torch(like):
        return result
    if isinstance(result, tuple):
        return tuple(None if r is None else converted_like(r, like) for r in result)
    space = getattr(like, "__array_namespace__", None)
    return space().from_dlpack(result) if space is not None else result


def is_numpy(x: object) -> TypeGuard[np.ndarray]:
    """Return whether an array is numpy's."""
    numpy = packages.loaded("numpy")
    return numpy is not None and isinstance(x, numpy.ndarray)


def is_number(x: object) -> bool:
    """Return whether a value is a numpy scalar, which looks like an array."""
    numpy = packages.loaded("numpy")
    return numpy is not None and isinstance(x, numpy.generic)


def is_array(x: object) -> bool:
    """Return whether a value can be taken as an array, numpy's scalars included."""
    if isinstance(x, type):
        return False
    return hasattr(x, "__dlpack__") or (hasattr(x, "__array_interface__") and hasattr(x, "dtype"))


def as_f32(number: float) -> float:
    """Return a number as f32 has it: one that is too large is infinite."""
    return ctypes.c_float(number).value


def require_array(x: object, function: str, parameter: str) -> None:
    """Raise if a value is neither an array nor None."""
    if x is not None and not is_numpy(x) and not is_torch(x):
        raise refusal(f"{function}: {parameter} is {type(x).__module__}.{type(x).__qualname__}, no array", ARRAYS)


def element_type(x: Array) -> type[cute.Numeric]:
    """Return the element type of an array."""
    try:
        return torch_element_type(x.dtype) if is_torch(x) else numpy_element_type(x.dtype)
    except DSLUserCodeTypeError:
        raise refusal(f"an array of {x.dtype}: kernels have no such elements") from None


def framework_dtype(dtype: cute.NumericMeta, like: Array) -> Any:
    """Return an element type as the dtype of the library of `like`."""
    return torch_dtype(dtype) if is_torch(like) else _library(like).dtype(dtype.numpy_dtype)


def itemsize(x: Any) -> int:
    """Return the bytes of an element."""
    return x.element_size() if is_torch(x) else x.itemsize


def strides(x: Any) -> tuple[int, ...]:
    """Return the strides in elements."""
    return tuple(x.stride()) if is_torch(x) else tuple(s // x.itemsize for s in x.strides)


def address(x: Any) -> int:
    """Return the address of the first element; 0 for None."""
    if x is None:
        return 0
    return torch_address(x) if is_torch(x) else x.__array_interface__["data"][0]


def require_materialized(x: Array, function: str) -> None:
    """Raise if the elements of an array are not what is in its memory."""
    require(not has_mask(type(x)), f"{function} of a masked array: its mask would be ignored", hint="x.filled(value)")
    require(
        not is_torch(x) or not (x.is_neg() or x.is_conj()),
        f"{function} of a tensor that stands for the negative or conjugate of what is in memory",
        hint="x.resolve_neg(), x.resolve_conj()",
    )
    require(
        not is_torch(x) or address(x) != 0 or x.numel() == 0,
        f"{function} of a {type(x).__qualname__} of torch that has no memory of its own",
        hint="x.clone()",
    )


def same_view(x: Array, y: Array) -> bool:
    """Return whether two arrays have the same elements in the same order."""
    one, other = ((address(z), itemsize(z), tuple(z.shape), strides(z)) for z in (x, y))
    return one == other


def span(x: Array) -> tuple[int, int]:
    """Return the addresses between which the elements of an array are."""
    first = address(x)
    size = itemsize(x)
    if 0 in x.shape:
        return first, first
    further = [(n - 1) * s * size for n, s in zip(x.shape, strides(x), strict=True)]
    return first + sum(min(0, n) for n in further), first + sum(max(0, n) for n in further) + size


def overlap(x: Array, y: Array) -> bool:
    """Return whether two arrays share memory of elements; False where that would take long to decide."""
    import numpy as np

    if 0 in (*x.shape, *y.shape):
        return False
    try:
        bytes_x = np.asarray(_Bytes(x))
        bytes_y = np.asarray(_Bytes(y))
        return np.shares_memory(bytes_x, bytes_y, max_work=10_000)  # type: ignore[call-overload]
    except np.exceptions.TooHardError:
        return False


class _Bytes:
    """The bytes of an array, described to numpy, which does not read them."""

    def __init__(self, x: Array) -> None:
        size = itemsize(x)
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "data": (address(x), True),
            "shape": (*x.shape, size),
            "strides": (*(s * size for s in strides(x)), 1),
        }


def require_usable(x: Any, what: str, written: bool = False) -> None:
    """Raise if the current target cannot read an array, or not write it."""
    on_gpu = is_torch(x) and x.device.type != "cpu"
    target = targets.get_target()
    require(
        on_gpu != target.on_host or (on_gpu and hardware.cuda_is_host_memory) or not target.launches(),
        f"{what} is in the memory of {x.device if on_gpu else 'the host'}, "
        f"and programs run on the target {target.name!r}",
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


def require_distinct_elements(x: Array, what: str) -> None:
    """Raise if some elements of an array to be written share memory."""
    require(
        all(s != 0 or n == 1 for s, n in zip(strides(x), x.shape, strict=True)) or 0 in x.shape,
        f"{what} has strides {strides(x)}: its elements lie apart",
    )


def pointer(place: cute.Tensor | Int64 | int, dtype: type[cute.Numeric], width: int) -> cute.Pointer:
    """Return the pointer of an array in a program, from its address or tensor, a multiple of `width` elements."""
    alignment = max(natural_alignment(dtype), min(MAX_VECTOR_BYTES, width * element_bits(dtype) // 8))
    if isinstance(place, TracedTensor):
        return place.iterator.with_alignment(alignment)
    return make_ptr(dtype, place, AddressSpace.gmem, assumed_align=alignment)


def tensor(x: Array) -> Any:
    """Return an array as an argument that carries its own bounds."""
    return from_dlpack(x)


# --- creating and changing arrays: what a recorded call repeats ------------------------------------------------------


def _create(function: Callable[..., Array], *arguments: object, **options: Any) -> Array:
    """Call a function that returns a new array, and record the call."""
    recorder = call_program.recorder()
    return function(*arguments, **options) if recorder is None else recorder.make(function, *arguments, **options)


def _modify(function: Callable[..., object], *arguments: object) -> None:
    """Call a function that changes its first argument, and record the call."""
    recorder = call_program.recorder()
    if recorder is None:
        function(*arguments)
    else:
        recorder.change(function, *arguments)


def _view(function: Callable[..., Array], x: Array, *arguments: object) -> Array:
    """Call a function that returns a view. A repeated call launches kernels on the view without creating it."""
    view = _create(function, x, *arguments)
    recorder = call_program.recorder()
    if recorder is not None:
        recorder.begins_in(view, x, address(view) - address(x))
    return view


def _library(x: Any) -> Any:
    """Return the module whose functions take an array: torch or numpy."""
    if is_torch(x):
        return sys.modules["torch"]
    import numpy as np

    return np


def broadcast_to(x: Array, shape: tuple[int, ...]) -> Array:
    """Return a view of a larger shape: repeated modes have stride 0."""
    # numpy gives modes of extent 1 the stride 0
    return x if tuple(x.shape) == tuple(shape) else _view(_library(x).broadcast_to, x, shape)


def broadcast_batches(x: Array, count: int) -> Array:
    """Return a view of `count` batches of an array (1, ...); the strides of other modes stay, also of extent 1."""
    if x.shape[0] == count:
        return x
    return _view(_library(x).broadcast_to if is_torch(x) else _numpy_broadcast_batches, x, (count, *x.shape[1:]))


def _numpy_broadcast_batches(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    return as_strided(x, shape, (0, *x.strides[1:]))


def as_strided(x: np.ndarray, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
    """Return a view of a numpy array with other extents and strides in bytes, of any type."""
    bits = x.view(f"u{x.itemsize}")  # numpy has no name for some element types
    return _library(x).lib.stride_tricks.as_strided(bits, shape, strides).view(x.dtype)


def with_batch(x: Array) -> Array:
    """Return a view with one more mode, of extent 1, in front."""
    return _view(operator.getitem, x, None)


def transposed(x: Array) -> Array:
    """Return a view with the last two modes exchanged."""
    return _view(_library(x).swapaxes, x, -1, -2)


def reshaped(x: Array, shape: tuple[int, ...]) -> Array:
    """Return a view of another shape; raise if there is none."""
    return _view(_library(x).Tensor.view if is_torch(x) else _numpy_reshaped, x, shape)


def _numpy_reshaped(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    view = x.reshape(shape)
    if not _library(x).may_share_memory(view, x):
        raise ValueError(f"an array of shape {x.shape} and strides {x.strides} has no view of shape {shape}")
    return view


def viewed(x: Array, dtype: object) -> Array:
    """Return a view of the same bytes as elements of another type of the same size, the framework's."""
    return _view(_library(x).Tensor.view if is_torch(x) else _library(x).ndarray.view, x, dtype)


def bits(x: Array) -> Array:
    """Return a view of an array of elements of 8 bits as bytes."""
    return viewed(x, _library(x).uint8)


def slices(x: Array) -> list[Array]:
    """Return views of an array along its first mode, which they keep."""
    return [_view(operator.getitem, x, slice(n, n + 1)) for n in range(x.shape[0])]


def split(x: Array, mode: int, count: int) -> Array:
    """Return a view with a mode divided into `count` equal parts: one more mode."""
    shape = tuple(x.shape)
    return reshaped(x, (*shape[:mode], count, shape[mode] // count, *shape[mode + 1 :]))


def part(x: Array, mode: int, which: slice | int | tuple[None] | None) -> Array:
    """Return a view of some of an array along a mode; of one element, or (None) with a mode of extent 1 before it."""
    return _view(operator.getitem, x, (*[slice(None)] * mode, which))


def repeated(x: Array, times: int, length: int) -> Array:
    """Return a copy with each element along the last mode repeated, of that length."""
    library = _library(x)
    copy = _create(library.repeat_interleave if is_torch(x) else library.repeat, x, times, -1)
    return part(copy, x.ndim - 1, slice(0, length))


def permuted(x: Array, order: list[int]) -> Array:
    """Return a view with the modes in another order."""
    library = _library(x)
    return _view(library.permute if is_torch(x) else library.transpose, x, tuple(order))


def writable_view(x: Array) -> Any:
    """Return a read-only numpy array as a writable one on the same memory, for kernels that only read it."""
    if not is_numpy(x) or x.flags.writeable:
        return x

    class Memory:
        keep = x
        __array_interface__ = {**x.__array_interface__, "data": (address(x), False), "strides": x.strides}

    view = _library(x).asarray(Memory())
    return view if view.dtype == x.dtype else view.view(x.dtype)


def alias(x: Any) -> Array:
    """Return another object that is the same array."""
    return x.detach() if is_torch(x) else x.view()


def empty(like: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return a new array of the library and device of `like`; `dtype` is the framework's, None for the same.

    While events are recorded it has zeros: the CTAs that would set its elements may not run, and others wait for numbers in it.
    """
    library = _library(like)
    dtype = like.dtype if dtype is None else dtype
    if sanitizing.EVENTS in sanitizing.kinds():
        return _create(library.zeros, shape, dtype=dtype, **({"device": like.device} if is_torch(like) else {}))
    if not is_torch(like):
        return _create(library.empty, shape, dtype)
    if 0 in shape:
        return _create(library.empty, shape, dtype=dtype, device=like.device)
    model = _model(tuple(shape), dtype, like.device)
    recorder = call_program.recorder()
    if recorder is None:
        return library.empty_like(model)
    return recorder.make(library.empty_like, model, constants=(model,))


@functools.lru_cache(maxsize=4096)
def _model(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Any:
    """Return a tensor with one element in memory: `torch.empty_like` of it takes half the time of `torch.empty`."""
    return sys.modules["torch"].empty((1,) * len(shape), dtype=dtype, device=device).expand(shape)


def dtype_named(like: Array, name: str) -> Any:
    """Return a dtype of the framework by its name."""
    library = _library(like)
    return getattr(library, name) if is_torch(like) else library.dtype(name)


def empty_like(x: Array) -> Array:
    """Return a new array of the same shape and type; strides of dense torch tensors are kept."""
    library = _library(x)
    return _create(library.empty_like, x) if is_torch(x) else _create(library.empty, x.shape, x.dtype)


def assign(target: Array, values: object) -> None:
    """Copy the elements of an array into another."""
    if is_torch(target):
        _modify(_library(target).Tensor.copy_, target, values)
    else:
        _modify(operator.setitem, target, ..., values)


def fill(target: Array, value: float) -> None:
    """Set all elements of an array."""
    if is_torch(target):
        _modify(_library(target).Tensor.fill_, target, value)
    else:
        _modify(operator.setitem, target, ..., value)


def contiguous(x: Array) -> Array:
    """Return a contiguous copy; the array itself if it is contiguous."""
    library = _library(x)
    return _create(library.Tensor.contiguous if is_torch(x) else library.ascontiguousarray, x)


def is_contiguous(x: Any) -> bool:
    """Return whether an array is contiguous in row-major order."""
    return x.is_contiguous() if is_torch(x) else x.flags.c_contiguous


def stream_of(x: Array) -> int:
    """Return the handle of the current stream of an array's device; 0, the default stream, without one."""
    if is_torch(x) and x.is_cuda:
        torch = sys.modules["torch"]
        quick = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return quick(x.device.index) if quick is not None else torch.cuda.current_stream(x.device).cuda_stream
    return 0


def layout_of(x: Array) -> TensorLayout:
    """Return the layout of an array."""
    return TensorLayout(element_type(x), tuple(x.shape), strides(x), address(x) % MAX_VECTOR_BYTES)


def dynamic(x: Array, leading: int | None, width: int) -> cute.Tensor:
    """Return an array as an argument with dynamic extents and strides; static without a leading mode."""
    tensor = from_dlpack(x, assumed_align=width * itemsize(x))
    return tensor if leading is None else tensor.mark_layout_dynamic(leading_dim=leading)


def power_of_two(n: int) -> int:
    """Return the least power of two that is not less than n."""
    return 1 << max(0, n - 1).bit_length()


def refusal(message: str, hint: str = "") -> Exception:
    """Return the error of a call with invalid arguments."""
    return DSLUserCodeTypeError(message, hint=hint)


def require(condition: bool, message: str, hint: str = "") -> None:
    """Raise if a condition on arguments does not hold."""
    if not condition:
        raise refusal(message, hint)
