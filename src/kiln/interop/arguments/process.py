"""The state of the native engine in this process: types, offsets and functions of Python, which Python fills in."""

from __future__ import annotations

from ...native import Array, Fn, Library, Ptr, i32, inline, struct, u64
from .cpython import Object


@struct
class PreparedType:
    """A type of prepared arguments, and the slots in which an instance keeps its argument record and its array."""

    type: Ptr[Object]
    slot: u64
    array_slot: u64


@struct
class ArrayType:
    """A type of arrays that a framework's C functions read."""

    type: Ptr[Object]
    read: Fn[[Ptr[Object], Ptr], i32]
    """Fills a DLTensor; returns 0 on success."""
    stream: Fn[[i32, i32, Ptr[u64]], i32]
    """Finds the current stream of a device, given its type and number; returns 0 on success."""
    inner: u64
    """The offset at which an array points to its implementation, whose word of flags is at the offset `bits`.

    The memory of an array with a flag of `refused` does not hold its elements (lazy conjugation, a subclass, ...).
    """
    bits: u64
    refused: u64
    counted: u64
    """A flag of arrays whose framework counts writes to them; 0 without."""
    count_write: Fn[[Ptr[u64]], None]
    """Counts a write, given where the array points to its implementation."""


@struct
class StreamType:
    """A type of streams."""

    type: Ptr[Object]
    attribute: Ptr[Object]
    """The name of the attribute that is the handle; null: `int()` of the stream."""


@struct
class ConstantType:
    """A type of immutable objects, which keys of calls contain by address."""

    type: Ptr[Object]


@struct
class Role:
    """A class whose calls native code takes.

    An instance keeps its plans in `slot`; the method `python` takes the calls that match none of them.
    """

    slot: u64
    python: Ptr[Object]


DEVICES = 64


@struct
class Devices:
    """Functions of the CUDA driver, null unless there are several devices, and primary contexts that were retained."""

    cuCtxGetDevice: Fn[[Ptr[i32]], i32]
    cuPointerGetAttribute: Fn[[Ptr[i32], i32, u64], i32]
    cuDevicePrimaryCtxRetain: Fn[[Ptr[u64], i32], i32]
    cuCtxPushCurrent_v2: Fn[[u64], i32]
    cuCtxPopCurrent_v2: Fn[[Ptr[u64]], i32]
    contexts: Array[u64, DEVICES]


@struct
class Process:
    """Python's types and singletons, and the registered types of arguments. Unused entries of a table are null."""

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
    wrapper: Role
    recorded: Role
    prepared: Array[PreparedType, 3]
    arrays: Array[ArrayType, 6]
    streams: Array[StreamType, 8]
    constants: Array[ConstantType, 24]


PREPARED = 3
ARRAYS = 6
STREAMS = 8
CONSTANTS = 24

calls: Library = Library("calls", prefix="kiln_", passes=1, opt=1)
"""The code that every process needs."""
programs: Library = Library("programs", prefix="kiln_", passes=0, opt=1)
"""The code that only the kernel library needs."""
process = calls.variable("process", Process)


@inline
def at(value, offset):
    """Return the object in a slot of another one; null if the slot is empty."""
    return Ptr[Ptr[Object]](Ptr(value) + offset)[0]
