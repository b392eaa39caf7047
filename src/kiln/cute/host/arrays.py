"""Reads arrays of other libraries: address, shape, strides, element type, device. No copies."""

from __future__ import annotations

import ctypes
import functools
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base_dsl import packages
from ...base_dsl.diagnostics import DSLUserCodeTypeError, frame_span, type_error, user_frame, warn_at
from ...base_dsl.numeric.meta import TYPES
from ...hardware import current as hardware
from ...interop.arguments import loading, plan
from ...interop.arguments.torch_layout import tensor_layout, write_counter
from . import unreadable
from .unreadable import is_jax_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...interop.arguments.engine import Engine


class Array(NamedTuple):
    """An array as memory. Strides are in elements. `keep` is the object that owns the memory."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: Any
    device: str
    """"cpu" or "cuda"."""
    readonly: bool
    keep: Any

    @property
    def has_memory(self) -> bool:
        """Whether its elements are in memory, if it has any. Those of PyTorch's fake tensors are not."""
        return self.address != 0 or 0 in self.shape


def read_array(x: Any) -> Array:
    """Return an array of any library that numpy, torch or the DLPack protocol knows."""
    kind = type(x)
    read = _readers.get(kind)
    if read is not None:
        return read(x)
    if has_mask(kind):
        raise type_error(
            f"{kind.__module__}.{kind.__qualname__} has a mask, which kernels do not know",
            "pass its values and its mask as two arrays, or its values with the masked ones filled in",
        )
    if kind.__module__ == "numpy" and hasattr(kind, "__array_interface__"):
        _readers[kind] = _read_numpy
        return _read_numpy(x)
    if is_torch_tensor(kind):
        _readers[kind] = _read_torch
        _holders[kind] = kind.untyped_storage
        return _read_torch(x)
    unreadable.check(x)
    if is_jax_array(kind):
        from .jax_arrays import hold, read_jax

        _readers[kind] = read_jax
        _holders[kind] = hold
        return read_jax(x)
    if hasattr(x, "__dlpack__"):
        return read_dlpack(x)
    if hasattr(x, "__cuda_array_interface__"):
        return _read_cuda_interface(x)
    if hasattr(x, "__array_interface__"):
        import numpy

        return _read_numpy(numpy.asarray(x))
    raise type_error(
        f"{kind.__module__}.{kind.__qualname__} has no DLPack protocol", "pass an array of numpy, torch, jax or cupy"
    )


_readers: dict[type, Callable[[Any], Array]] = {}
_holders: dict[type, Callable[[Any], Any]] = {}


def memory_of(x: object) -> Any:
    """Return what keeps the memory of an array that was read, where the array itself may let go of it; else None.

    JAX frees the memory of an array that is deleted or donated, PyTorch that of `x` after `x.data = y`.
    """
    hold = _holders.get(type(x))
    return None if hold is None else hold(x)


def has_mask(kind: type) -> bool:
    """Return whether a type is numpy's MaskedArray, torch's MaskedTensor or a subclass: some elements have no value."""
    return any(base.__name__ in ("MaskedArray", "MaskedTensor") for base in kind.__mro__)


def is_array(kind: type) -> bool:
    """Return whether values of a type are arrays that become tensors by themselves."""
    if hasattr(kind, "__dlpack__") and hasattr(kind, "__dlpack_device__"):
        return True
    return hasattr(kind, "__cuda_array_interface__") or (
        hasattr(kind, "__array_interface__") and not packages.is_numpy_scalar(kind)
    )


def is_torch_tensor(kind: type) -> bool:
    """Return whether a type is torch's Tensor or a subclass; torch is not imported for it."""
    torch = packages.loaded("torch")
    tensor = getattr(torch, "Tensor", None)
    return tensor is not None and issubclass(kind, tensor)


def _read_numpy(x: Any) -> Array:
    dtype = numpy_element_type(x.dtype)
    interface = x.__array_interface__
    size = x.itemsize
    strides = x.strides
    if any(s % size for s in strides):
        raise type_error(
            f"the array's strides {strides} (bytes) are not multiples of its element size {size}",
            "pass a copy: numpy.ascontiguousarray(x)",
        )
    strides = tuple(s // size for s in strides)
    address, readonly = interface["data"]
    return Array(address, x.shape, strides, dtype, "cpu", readonly, x)


@functools.lru_cache(maxsize=64)
def numpy_element_type(dtype: Any) -> Any:
    """Return the element type of a numpy dtype, ml_dtypes included."""
    name: str = dtype.name
    if dtype.byteorder not in "=|<":
        raise type_error(
            f"numpy's {dtype.str} has the other byte order", "convert it: x.astype(x.dtype.newbyteorder('='))"
        )
    for kind in TYPES.values():
        numpy_name = kind._numpy_name
        if numpy_name is not None and numpy_name.rstrip("_") == name:
            if kind.width < 8 and kind.width in (2, 4):
                raise type_error(
                    f"numpy keeps each {name} in a byte of its own, and {kind.__name__} elements are packed",
                    f"pack two to a byte into a uint8 array and set from_dlpack(x).element_type = {kind.__name__}",
                )
            return kind
    raise type_error(
        f"no element type corresponds to numpy's {name}", "convert it to numbers: x.astype(np.float32), for example"
    )


TORCH_NAMES = {
    "bool": "Boolean",
    "uint8": "Uint8",
    "uint16": "Uint16",
    "uint32": "Uint32",
    "uint64": "Uint64",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float32": "Float32",
    "float64": "Float64",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
    "float8_e8m0fnu": "Float8E8M0FNU",
    "float4_e2m1fn_x2": "Float4E2M1FN",
}


@functools.lru_cache(maxsize=64)
def torch_element_type(dtype: object) -> Any:
    """Return the element type of a torch dtype."""
    name = str(dtype).removeprefix("torch.")
    if name not in TORCH_NAMES:
        raise type_error(
            f"no element type corresponds to torch's {name}", "convert it: x.to(torch.float32), for example"
        )
    return TYPES[TORCH_NAMES[name]]


def torch_dtype(ty: object) -> Any:
    """Return the torch dtype of an element type. Two Float4E2M1FN make one element of torch's."""
    import torch

    type_name = "Float32" if ty is TYPES["TFloat32"] else getattr(ty, "__name__", ty)
    for name, name_of_type in TORCH_NAMES.items():
        if name_of_type == type_name and hasattr(torch, name):
            return getattr(torch, name)
    raise TypeError(f"torch has no dtype for {getattr(ty, '__name__', ty)}")


def _read_torch(x: object) -> Array:
    try:
        return _read_torch_fields(x)
    except (
        RuntimeError,
        ValueError,
        NotImplementedError,
    ) as reason:  # PyTorch's own, of a tensor that is none like others
        raise type_error(
            f"a {type(x).__qualname__} of torch cannot be read: {str(reason).splitlines()[0]}", _ELSEWHERE
        ) from None


_ELSEWHERE = (
    "pass the tensors it is made of; under torch.compile, torch.func and make_fx call an operator that you made with "
    "kiln.torch.op"
)


def _read_torch_fields(x: Any) -> Array:
    dtype = torch_element_type(x.dtype)
    device = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
    if device not in ("cpu", "cuda"):
        raise type_error(f"a torch tensor on the device {device!r}", "tensors live on the CPU or on a CUDA device")
    if x.layout is not sys.modules["torch"].strided:
        raise type_error(f"a torch tensor of layout {x.layout}", "pass a dense tensor: x.to_dense()")
    if x.is_neg():
        raise type_error("a torch tensor that stands for the negative of what is in memory", "pass x.resolve_neg()")
    if x.requires_grad and sys.modules["torch"].is_grad_enabled():
        _warn_of_gradients()
    shape = tuple(x.shape)
    strides = tuple(x.stride())
    if dtype.width == 4:
        shape, strides = unpacked(shape, strides, 2)
    address = torch_address(x)
    if not address and x.numel() and not is_fake(x):
        raise type_error(f"a {type(x).__qualname__} of torch has no memory of its own", _ELSEWHERE)
    return Array(address, shape, strides, dtype, device, False, x)


def is_fake(x: object) -> bool:
    """Return whether a tensor of torch is a FakeTensor: its elements are nowhere, but code can be compiled for it."""
    return hasattr(x, "fake_mode")


_warned: set[tuple[str, int]] = set()
"""Lines that were told about gradients."""


def _warn_of_gradients() -> None:
    """Warn, once for a line of the program, that autograd knows nothing of kernels."""
    frame = user_frame()
    place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<unknown>", 0)
    if place not in _warned:
        _warned.add(place)
        warn_at(
            frame_span(frame) if frame is not None else None,
            "a tensor that requires grad is passed to a kernel: autograd sees neither what the kernel reads nor what it "
            "writes; pass x.detach(), call it under torch.no_grad(), or make it an operator with a gradient (kiln.torch.op)",
        )


def note_write(x: Any) -> None:
    """Tell autograd that a kernel writes to an array, if it is a tensor of torch with a version."""
    if is_torch_tensor(type(x)) and not x.is_inference() and not is_fake(x):
        sys.modules["torch"].autograd.graph.increment_version(x)


def torch_address(x: Any) -> int:
    """Return the address of a torch tensor's first element; 0 for a fake tensor, which has no memory."""
    return 0 if is_fake(x) else x.data_ptr()


def unpacked(shape: tuple[int, ...], strides: tuple[int, ...], factor: int) -> tuple[Any, Any]:
    """Return the layout of elements of which `factor` lie in one stored element, along the mode with stride 1."""
    leading = find_leading(shape, strides)
    if leading is None:
        raise type_error(f"packed elements in strides {strides}: no mode has stride 1", "make the array contiguous")
    unpacked_shape = tuple(s * factor if i == leading else s for i, s in enumerate(shape))
    unpacked_strides = tuple(1 if i == leading else d * factor for i, d in enumerate(strides))
    return unpacked_shape, unpacked_strides


def find_leading(shape: tuple[int, ...], strides: tuple[int, ...]) -> int | None:
    """Return the mode of stride 1; of several, the last whose extent is not 1, or else the last."""
    leading: int | None = None
    for i, d in enumerate(strides):
        if d == 1 and (leading is None or shape[i] != 1 or shape[leading] == 1):
            leading = i
    return leading


class _Device(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int32), ("number", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = ctypes.c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_is = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is.restype = ctypes.c_int
_capsule_is.argtypes = [ctypes.py_object, ctypes.c_char_p]

_CPU = 1
_CUDA = 2
_CUDA_HOST = 3
_MANAGED = 13
_READ_ONLY = 1
_PADDED = 4
_CODES: dict[tuple[int, int], str] = {
    (6, 8): "Boolean",
    (4, 16): "BFloat16",
    (8, 8): "Float8E4M3",
    (9, 8): "Float8E4M3B11FNUZ",
    (10, 8): "Float8E4M3FN",
    (12, 8): "Float8E5M2",
    (14, 8): "Float8E8M0FNU",
    (15, 6): "Float6E2M3FN",
    (16, 6): "Float6E3M2FN",
    (17, 4): "Float4E2M1FN",
    **{(0, bits): f"Int{bits}" for bits in (4, 8, 16, 32, 64)},
    **{(1, bits): f"Uint{bits}" for bits in (4, 8, 16, 32, 64)},
    **{(2, bits): f"Float{bits}" for bits in (16, 32, 64)},
}


def dlpack_capsule(x: Any) -> Any:
    """Return the DLPack capsule of an array, which keeps its memory."""
    device = x.__dlpack_device__()[0]
    # -1: the producer need not wait for its stream; the launch is ordered by the stream it is given
    arguments: dict[str, Any] = {"stream": -1} if device == _CUDA else {}
    try:
        try:
            return x.__dlpack__(max_version=(1, 0), **arguments)
        except TypeError:
            return x.__dlpack__(**arguments)
    except Exception as reason:  # the other library's own
        kind = type(x)
        raise type_error(
            f"{kind.__module__}.{kind.__qualname__} gives no memory by DLPack: {type(reason).__name__}: {reason}",
            "pass an array of a type that DLPack knows, whose elements are in memory",
        ) from None


def read_dlpack(x: object) -> Array:
    capsule = dlpack_capsule(x)
    readonly = False
    if _capsule_is(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_capsule_pointer(capsule, b"dltensor_versioned"))
        if managed.major > 1:
            raise type_error(f"DLPack version {managed.major}.{managed.minor}: only versions 0 and 1 are known")
        tensor = managed.tensor
        readonly = bool(managed.flags & _READ_ONLY)
        if managed.flags & _PADDED and tensor.dtype.bits in (2, 4):
            raise type_error(
                f"the array keeps each element of {tensor.dtype.bits} bits in a byte of its own, and ours are packed",
                "pack them, and pass the bytes: from_dlpack(bytes).element_type = T",
            )
    elif _capsule_is(capsule, b"dltensor"):
        tensor = _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    else:
        raise type_error(
            f"__dlpack__() of {type(x).__qualname__} gave {capsule!r}",
            "DLPack's capsule is new, and is called dltensor",
        )
    code = (tensor.dtype.code, tensor.dtype.bits)
    if code not in _CODES:
        raise type_error(f"no element type corresponds to DLPack's type code {code[0]} of {code[1]} bits")
    dtype = TYPES[_CODES[code]]
    lanes = tensor.dtype.lanes
    if lanes != 1 and lanes * dtype.width != 8:  # elements of 4 bits come two to a byte
        raise type_error(
            f"the array's elements are vectors of {lanes} {dtype.__name__} (DLPack's lanes)",
            "pass an array of numbers, with a dimension more",
        )
    if tensor.device.kind not in (_CPU, _CUDA, _CUDA_HOST, _MANAGED):
        raise type_error(
            f"an array on DLPack's device type {tensor.device.kind}", "arrays live on the CPU or on a CUDA device"
        )
    rank = tensor.ndim
    if not 0 <= rank <= _MOST_MODES:
        raise type_error(f"a DLPack header says that the array has {rank} modes", f"arrays have 0 to {_MOST_MODES}")
    if rank and not tensor.shape:
        raise type_error(f"a DLPack header with {rank} modes has no extents: its pointer to them is null")
    shape = tuple(tensor.shape[i] for i in range(rank))
    strides = tuple(tensor.strides[i] for i in range(rank)) if tensor.strides else row_major(shape)
    address = (tensor.data or 0) + tensor.byte_offset
    _check_memory("a DLPack header", shape, strides, tensor.data or 0, address, dtype.width * lanes)
    if lanes > 1:
        shape, strides = unpacked(shape, strides, lanes)
    device = "cpu" if tensor.device.kind in (_CPU, _CUDA_HOST) else "cuda"
    return Array(address, shape, strides, dtype, device, readonly, (x, capsule))


_MOST_MODES = 64
"""The most modes of an array, as in numpy and PyTorch."""


def _check_memory(
    what: str, shape: tuple[int, ...], strides: tuple[int, ...], memory: int, address: int, bits: int
) -> None:
    """Raise an error for impossible extents and addresses, before they are used."""
    if any(extent < 0 for extent in shape):
        raise type_error(f"{what} says that the array's shape is {shape}", "extents are 0 or more")
    if len(strides) != len(shape):
        raise type_error(f"{what} has {len(shape)} extents and {len(strides)} strides")
    if 0 in shape:
        return
    if not memory:
        raise type_error(f"{what} of the shape {shape} has no memory: its pointer is null")
    reach = [(extent - 1) * step * bits // 8 for extent, step in zip(shape, strides)]
    first = address + sum(r for r in reach if r < 0)
    last = address + sum(r for r in reach if r > 0)
    if first < 0 or last >= 1 << 64:
        raise type_error(
            f"{what} says that elements lie from address {first:#x} to {last:#x}: the address is {address:#x}, "
            f"the shape {shape}, the strides {strides}",
            "addresses have 64 bits",
        )


def _read_cuda_interface(x: Any) -> Array:
    """Return an array that knows only CUDA's array interface (version 2 or 3)."""
    import numpy

    interface = x.__cuda_array_interface__
    if interface.get("mask") is not None:
        raise type_error(
            "the array has a mask, which kernels do not know", "pass its values and its mask as two arrays"
        )
    stored = numpy.dtype(interface["typestr"])
    shape = tuple(interface["shape"])
    steps = interface.get("strides")
    address, readonly = interface["data"]
    if steps is not None and any(step % stored.itemsize for step in steps):
        raise type_error(f"the array's strides {steps} (bytes) are not multiples of its element size {stored.itemsize}")
    strides = row_major(shape) if steps is None else tuple(step // stored.itemsize for step in steps)
    address = address or 0
    _check_memory("CUDA's array interface", shape, strides, address, address, 8 * stored.itemsize)
    return Array(address, shape, strides, numpy_element_type(stored), "cuda", bool(readonly), x)


def dlpack_type(dtype: object) -> int:
    """Return DLPack's type of an element type (code, bits, one lane) as it lies in a DLTensor; -1 if there is none."""
    for (code, bits), name in _CODES.items():
        if TYPES[name] is dtype:
            return code | bits << 8 | 1 << 16
    return -1


def introduce_array(native: Engine, kind: type) -> bool:
    """Register a type of arrays with native code; return whether it can read arrays of that type."""
    if kind in _native_kinds:
        return True
    if kind is getattr(packages.loaded("numpy"), "ndarray", None):
        native.add_numpy(kind)
    elif is_torch_tensor(kind) and kind.__name__ in ("Tensor", "Parameter") and not hardware.cuda_is_host_memory:
        functions = exchange_functions(kind)
        layout = tensor_layout()
        if functions is None:
            packages.without("torch records", "__dlpack_c_exchange_api__")
        if functions is None or layout is None:
            return False
        native.add_array(kind, *functions, *layout, *write_counter())
    elif is_jax_array(kind) and not hardware.cuda_is_host_memory:
        from .jax_arrays import introduce_jax

        if not introduce_jax(native, kind):
            return False
    else:
        return False
    _native_kinds.add(kind)
    return True


_native_kinds: set[type] = set()


def reading_natively(x: object) -> Engine | None:
    """Return the native caller if it is loaded and can read an array."""
    native = loading.loaded()
    return native if native is not None and introduce_array(native, type(x)) else None


def exchange_functions(kind: type) -> tuple[int, int] | None:
    """Return DLPack's C functions of an array type: to read one without a reference, and for its framework's stream."""
    offered = getattr(kind, "__dlpack_c_exchange_api__", None)
    if offered is None or not _capsule_is(offered, b"dlpack_exchange_api"):
        return None
    functions = _ExchangeFunctions.from_address(_capsule_pointer(offered, b"dlpack_exchange_api"))
    if functions.major != 1 or not functions.read:
        return None
    return functions.read, functions.stream


class _ExchangeFunctions(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("take", ctypes.c_void_p),
        ("give", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    ]


def numpy_type(dtype: Any) -> int:
    """Return the number by which native code compares the numpy dtype of an element type; -1 if there is none."""
    name = dtype._numpy_name
    numpy = packages.loaded("numpy")
    if name is None or numpy is None:
        return -1
    try:
        candidate = numpy.dtype(name.rstrip("_"))
        if numpy_element_type(candidate) is not dtype:
            return -1
    except (TypeError, DSLUserCodeTypeError):
        return -1
    return plan.numpy_type(candidate)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a compact array, last mode fastest."""
    strides: list[int] = []
    step = 1
    for s in reversed(shape):
        strides.append(step)
        step *= s
    return tuple(reversed(strides))
