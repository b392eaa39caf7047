"""DLPack capsules of Kiln's tensors: other libraries share their memory, which lives as long as they hold it."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from ...base_dsl.diagnostics import type_error
from ...hardware import driver
from ...interop.arguments import plan
from ...interop.arguments.arrays import DLTensor
from .arrays import dlpack_type

if TYPE_CHECKING:
    from .arrays import Array

_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_OWN = b"dltensor"
_VERSIONED = b"dltensor_versioned"
_READ_ONLY = 1


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("context", ctypes.c_uint64), ("deleter", _DELETER)]


class _Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_uint64),
        ("deleter", _DELETER),
        ("flags", ctypes.c_uint64),
        ("tensor", DLTensor),
    ]


_held: dict[int, Any] = {}
"""What capsules in use keep alive, by the address of their contents."""


@_DELETER
def _delete(address: int) -> None:
    _held.pop(address, None)


_api: Any = ctypes.PyDLL(None)
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule: int) -> None:
    """Free a capsule that nobody took, with its contents. It is passed as an address: it is no object any more."""
    for name in (_OWN, _VERSIONED):
        if _api.PyCapsule_IsValid(capsule, name):
            _held.pop(_api.PyCapsule_GetPointer(capsule, name), None)


def capsule(array: Array, versioned: bool) -> Any:
    """Return a capsule of an array's memory."""
    device = device_of(array)
    kind = dlpack_type(array.dtype)
    if kind < 0:
        raise type_error(
            f"DLPack has no element type for {array.dtype.__name__}",
            "set element_type to one of the same width that it has",
        )
    if array.readonly and not versioned:
        raise BufferError("the memory is read-only, which DLPack can say since version 1.0: ask for max_version=(1, 0)")
    rank = len(array.shape)
    numbers = (ctypes.c_int64 * (2 * rank))(*array.shape, *array.strides)
    tensor = DLTensor(
        data=array.address,
        device=device[0],
        device_number=device[1],
        rank=rank,
        type=kind,
        shape=ctypes.addressof(numbers),
        strides=ctypes.addressof(numbers) + 8 * rank,
        offset=0,
    )
    record = (
        _Versioned(1, 0, 0, _delete, _READ_ONLY if array.readonly else 0, tensor)
        if versioned
        else _Managed(tensor, 0, _delete)
    )
    where = ctypes.addressof(record)
    _held[where] = (record, numbers, array.keep)
    return _api.PyCapsule_New(where, _VERSIONED if versioned else _OWN, ctypes.cast(_destroy, ctypes.c_void_p))


def device_of(array: Array) -> tuple[int, int]:
    """Return DLPack's kind and number of the device of an array."""
    if array.device != "cuda":
        return plan.CPU, 0
    return plan.CUDA, driver.device_of(array.address) or 0
