# pyright: reportReturnType=false
"""XLA's calling convention, `XLA_FFI_Error *handler(XLA_FFI_CallFrame *)`, as this process and exported objects read
it.

The structures are those of versions 0.1 to 0.3 of the interface.
"""

from __future__ import annotations

from ...native import Array, Fn, Ptr, i32, i64, local, native, ref, size_of, struct, u8, u64

METADATA, EXECUTE = 1, 3
"""A kind of extension of a frame, and a stage of execution."""
INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL = 3, 12, 13
"""XLA's error codes."""
MAJOR, MINOR = 0, 1
"""The version that handlers claim. XLA accepts older handlers; one newer than itself keeps the backend from
starting."""
MAY_BE_CAPTURED = 1
"""The trait of handlers that CUDA graphs may capture."""


@struct
class Extension:
    """An extension of a frame."""

    size: u64
    kind: i32
    next: Ptr
    metadata: Ptr[Metadata]


@struct
class Metadata:
    """What XLA asks a handler for when it is registered."""

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
    """In later versions: finds the number of the device, in place of a stream."""


@struct
class Buffer:
    """An array."""

    size: u64
    extension: Ptr
    dtype: i32
    data: u64
    rank: i64
    dims: Ptr[i64]


@struct
class Values:
    """The arguments, or the results."""

    size: u64
    extension: Ptr
    count: i64
    types: Ptr[i32]
    buffers: Ptr[Ptr[Buffer]]


@struct
class Span:
    """A string."""

    start: Ptr[u8]
    length: u64


@struct
class Words:
    """An attribute that is an array."""

    dtype: i32
    count: u64
    data: Ptr[u64]


@struct
class Attributes:
    """The attributes of a call site."""

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
    arguments.size = 28
    arguments.extension = None
    arguments.message = message
    arguments.code = code
    return frame.api.make_error(arguments)


@native
def stream_of(frame: Ptr[Frame], place: Ptr[u64]) -> Ptr:
    """Find the stream of a call. Returns null, or on the host XLA's error."""
    arguments = local(StreamArguments)
    arguments.size = 32
    arguments.extension = None
    arguments.context = frame.context
    arguments.stream = 0
    error = frame.api.stream(arguments)
    place[0] = arguments.stream
    return error


@native
def drop_error(frame: Ptr[Frame], error: Ptr) -> None:
    """Release an error of XLA."""
    drop = local(DropArguments)
    drop.size = 24
    drop.extension = None
    drop.error = error
    frame.api.drop_error(drop)


@native
def device_of(frame: Ptr[Frame]) -> i32:
    """Return the number of the GPU of a call, or -1 if XLA does not say."""
    arguments, api = local(StreamArguments), frame.api
    if api.size < size_of(Api) or api.device == None:
        return -1
    arguments.size = 28
    arguments.extension = None
    arguments.context = frame.context
    arguments.stream = 0
    error = api.device(arguments)
    if error != None:
        drop_error(frame, error)
        return -1
    return i32(arguments.stream)


@native
def is_question(frame: Ptr[Frame], traits: i32) -> bool:
    """Answer a call that only asks for the version of the interface; whether it did, or the stage is not execution."""
    extension = frame.extension
    if extension != None:
        if extension.kind == METADATA:
            metadata = extension.metadata
            metadata.major = MAJOR
            metadata.minor = MINOR
            metadata.traits = traits
            return True
    return frame.stage != EXECUTE


@native
def find_attribute(frame: Ptr[Frame], name: Ptr, length: u64) -> i64:
    """Return the index of an attribute, or -1."""
    attributes = ref(frame).attributes
    for number in range(attributes.count):
        found, same = attributes.names[number], False
        if found.length == length:
            same = True
            for place in range(i64(length)):
                same = same and found.start[place] == Ptr[u8](name)[place]
        if same:
            return number
    return -1
