# pyright: reportReturnType=false
"""XLA's calling convention, `XLA_FFI_Error *handler(XLA_FFI_CallFrame *)`, for this process and for exported objects.

The structures are those of versions 0.1 to 0.3 of the interface.
"""

from __future__ import annotations

from ...native import Array, Fn, Ptr, assign, i32, i64, local, native, ref, size_of, struct, u8, u64

METADATA = 1
EXECUTE = 3
"""XLA_FFI_Extension_Metadata and XLA_FFI_ExecutionStage_EXECUTE."""
INVALID_ARGUMENT = 3
UNIMPLEMENTED = 12
INTERNAL = 13
"""XLA's error codes."""
MAJOR = 0
MINOR = 1
"""The version that handlers claim.

XLA accepts older handlers; a handler newer than XLA itself keeps the backend from starting.
"""
MAY_BE_CAPTURED = 1
"""The trait of handlers that CUDA graphs may capture."""


@struct
class Extension:
    """XLA_FFI_Extension_Base, and the metadata of an extension of that kind."""

    size: u64
    kind: i32
    next: Ptr
    metadata: Ptr[Metadata]


@struct
class Metadata:
    """XLA_FFI_Metadata: what XLA asks a handler for when it is registered."""

    size: u64
    version_size: u64
    version_extension: Ptr
    major: i32
    minor: i32
    traits: i32


@struct
class ErrorArguments:
    """The arguments of `make_error`."""

    size: u64
    extension: Ptr
    message: Ptr
    code: i32


@struct
class DropArguments:
    """The arguments of `drop_error`."""

    size: u64
    extension: Ptr
    error: Ptr


@struct
class StreamArguments:
    """The arguments of `stream` and `device`."""

    size: u64
    extension: Ptr
    context: Ptr
    stream: u64


@struct
class Api:
    """XLA_FFI_Api: the functions that XLA offers a handler."""

    size: u64
    extension: Ptr
    version_size: u64
    version_extension: Ptr
    major: i32
    minor: i32
    internal: Ptr
    make_error: Fn[[Ptr[ErrorArguments]], Ptr]
    error_text: Ptr
    drop_error: Fn[[Ptr[DropArguments]], None]
    add_handler: Ptr
    stream: Fn[[Ptr[StreamArguments]], Ptr]
    between: Array[u64, 12]
    device: Fn[[Ptr[StreamArguments]], Ptr]
    """Later versions: finds the number of the device, in place of a stream."""


@struct
class Buffer:
    """XLA_FFI_Buffer: one array."""

    size: u64
    extension: Ptr
    dtype: i32
    data: u64
    rank: i64
    dims: Ptr[i64]


@struct
class Values:
    """XLA_FFI_Args or XLA_FFI_Rets: the arrays that a call passes, or those for its results."""

    size: u64
    extension: Ptr
    count: i64
    types: Ptr[i32]
    buffers: Ptr[Ptr[Buffer]]


@struct
class Span:
    """XLA_FFI_ByteSpan: a string."""

    start: Ptr[u8]
    length: u64


@struct
class Words:
    """XLA_FFI_Array: an attribute that is an array."""

    dtype: i32
    count: u64
    data: Ptr[u64]


@struct
class Attributes:
    """XLA_FFI_Attrs: the attributes of a call site."""

    size: u64
    extension: Ptr
    count: i64
    types: Ptr[i32]
    names: Ptr[Ptr[Span]]
    values: Ptr[Ptr[Words]]


@struct
class Frame:
    """XLA_FFI_CallFrame."""

    size: u64
    extension: Ptr[Extension]
    api: Ptr[Api]
    context: Ptr
    stage: i32
    arguments: Values
    results: Values
    attributes: Attributes


@native
def failure(frame: Ptr[Frame], code: i32, message: Ptr) -> Ptr:
    """Return an error of XLA."""
    arguments = local(ErrorArguments)
    assign(arguments, size=28, extension=None, message=message, code=code)
    return frame.api.make_error(arguments)


@native
def stream_of(frame: Ptr[Frame], place: Ptr[u64]) -> Ptr:
    """Find the stream of a call. Returns null, or on the host XLA's error."""
    arguments = local(StreamArguments)
    assign(arguments, size=32, extension=None, context=frame.context, stream=0)
    error = frame.api.stream(arguments)
    place[0] = arguments.stream
    return error


@native
def drop_error(frame: Ptr[Frame], error: Ptr) -> None:
    """Release an error of XLA."""
    drop = local(DropArguments)
    assign(drop, size=24, extension=None, error=error)
    frame.api.drop_error(drop)


@native
def device_of(frame: Ptr[Frame]) -> i32:
    """Return the number of the GPU of a call, or -1 if XLA does not say."""
    arguments = local(StreamArguments)
    api = frame.api
    if api.size < size_of(Api) or api.device == None:
        return -1
    assign(arguments, size=28, extension=None, context=frame.context, stream=0)
    error = api.device(arguments)
    if error != None:
        drop_error(frame, error)
        return -1
    return i32(arguments.stream)


@native
def is_question(frame: Ptr[Frame], traits: i32) -> bool:
    """Answer a call that only asks for the version of the interface.

    Returns whether it did, or whether the stage is not execution: in both cases nothing is to be run.
    """
    extension = frame.extension
    if extension != None:
        if extension.kind == METADATA:
            metadata = extension.metadata
            assign(metadata, major=MAJOR, minor=MINOR, traits=traits)
            return True
    return frame.stage != EXECUTE


@native
def find_attribute(frame: Ptr[Frame], name: Ptr, length: u64) -> i64:
    """Return the index of an attribute, or -1."""
    attributes = ref(frame).attributes
    for number in range(attributes.count):
        entry = attributes.names[number]
        same = False
        if entry.length == length:
            same = True
            for place in range(i64(length)):
                same = same and entry.start[place] == Ptr[u8](name)[place]
        if same:
            return number
    return -1
