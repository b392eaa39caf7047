"""What native code knows of this process: types, offsets and functions, in memory that Python fills."""

from __future__ import annotations

from ...native import Array, Fn, Library, Ptr, i32, inline, struct, u64
from .cpython import Object


@struct
class PreparedType:
    type: Ptr[Object]
    slot: u64


@struct
class ArrayType:
    type: Ptr[Object]
    read: Fn[[Ptr[Object], Ptr], i32]
    """Fills a DLTensor; 0 if it could."""
    stream: Fn[[i32, i32, Ptr[u64]], i32]
    """Tells the stream of a device, by its kind and number; 0 if it could."""
    inner: u64
    """Where an array holds a pointer to a record, and where a word of bits is in there: with one of `refused` the array is
    something else than what lies in memory."""
    bits: u64
    refused: u64


@struct
class StreamType:
    type: Ptr[Object]
    attribute: Ptr[Object]
    """The name of the handle; null: `int()` of the stream."""


@struct
class ConstantType:
    type: Ptr[Object]


@struct
class Role:
    """Of a class whose calls native code takes: where its instances keep what is known, and who takes the other calls."""

    slot: u64
    python: Ptr[Object]


DEVICES = 64


@struct
class Devices:
    """The driver's functions of these names, where there are several devices; else null. Primary contexts that were retained, by device."""

    cuCtxGetDevice: Fn[[Ptr[i32]], i32]
    cuPointerGetAttribute: Fn[[Ptr[i32], i32, u64], i32]
    cuDevicePrimaryCtxRetain: Fn[[Ptr[u64], i32], i32]
    cuCtxPushCurrent_v2: Fn[[u64], i32]
    cuCtxPopCurrent_v2: Fn[[Ptr[u64]], i32]
    contexts: Array[u64, DEVICES]


@struct
class World:
    """Addresses of Python's types, of None, True and False; types of arguments, at the end of each list there may be room for more."""

    int_type: Ptr[Object]
    bool_type: Ptr[Object]
    float_type: Ptr[Object]
    str_type: Ptr[Object]
    list_type: Ptr[Object]
    tuple_type: Ptr[Object]
    bytes_type: Ptr[Object]
    type_type: Ptr[Object]
    function_type: Ptr[Object]
    none: Ptr[Object]
    true: Ptr[Object]
    false: Ptr[Object]
    ndarray: Ptr[Object]
    devices: Devices
    number_slot: u64
    program_slot: u64
    compiled: Role
    jit: Role
    door: Role
    recorded: Role
    prepared: Array[PreparedType, 3]
    arrays: Array[ArrayType, 6]
    streams: Array[StreamType, 8]
    constants: Array[ConstantType, 24]


PREPARED, ARRAYS, STREAMS, CONSTANTS = 3, 6, 8, 24

calls = Library("calls", prefix="kiln_", passes=1, opt=1)
"""What every process needs."""
programs = Library("programs", prefix="kiln_", passes=0, opt=1)
"""What only the kernel library needs."""
world = calls.variable("world", World)


@inline
def at(value, offset):
    """The object that another one holds in a slot; null: none."""
    return Ptr[Ptr[Object]](Ptr(value) + offset)[0]
