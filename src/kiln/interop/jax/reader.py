# pyright: reportReturnType=false
"""Calls by XLA's convention: `XLA_FFI_Error *handler(XLA_FFI_CallFrame *)`, one handler for all functions of the process.

A call site names its function by the key of its contents. XLA calls from its own threads, without the GIL. Arrays are dense, in the order of
axes that the call site asked for; numbers are words in an attribute. The offsets are those of version 0.1 to 0.3 of the interface.
"""

from __future__ import annotations

from ...native import (
    Array,
    Fn,
    Library,
    Ptr,
    address,
    atomic_load,
    atomic_store,
    f32,
    f64,
    i32,
    i64,
    local,
    native,
    ref,
    size_of,
    struct,
    text,
    u8,
    u64,
)
from ..arguments import plan
from ..arguments.arrays import fit
from ..arguments.cpython import (
    Object,
    Py_DecRef,
    PyBytes_FromStringAndSize,
    PyErr_Clear,
    PyGILState_Ensure,
    PyGILState_Release,
    PyLong_FromUnsignedLongLong,
    PyUnicode_AsUTF8AndSize,
)
from ..arguments.cpython import leave as call_python
from ..arguments.plan import ArrayRecord, GroupRecord, IntegerRecord, Plan, RealRecord, Record
from ..arguments.planned_calls import following
from ..arguments.process import world

METADATA, EXECUTE = 1, 3
"""A kind of extension of a frame, and a stage."""
INVALID_ARGUMENT, UNIMPLEMENTED, INTERNAL = 3, 12, 13
MAJOR, MINOR = 0, 1
"""What handlers claim: the offsets are those of 0.1 to 0.3. XLA takes older handlers, and one that is newer than itself keeps the whole backend from starting."""
MAY_BE_CAPTURED = 1


@struct
class Extension:
    size: u64
    kind: i32
    next: Ptr
    metadata: Ptr[Metadata]


@struct
class Metadata:
    size: u64
    version_size: u64
    version_extension: Ptr
    major: i32
    minor: i32
    traits: i32


@struct
class ErrorArguments:
    size: u64
    extension: Ptr
    message: Ptr
    code: i32


@struct
class DropArguments:
    size: u64
    extension: Ptr
    error: Ptr


@struct
class StreamArguments:
    size: u64
    extension: Ptr
    context: Ptr
    stream: u64


@struct
class Api:
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
    """In later versions: gives the number of the device in place of a stream."""


@struct
class Buffer:
    size: u64
    extension: Ptr
    dtype: i32
    data: u64
    rank: i64
    dims: Ptr[i64]


@struct
class Values:
    """Arguments, or results."""

    size: u64
    extension: Ptr
    count: i64
    types: Ptr[i32]
    buffers: Ptr[Ptr[Buffer]]


@struct
class Span:
    start: Ptr[u8]
    length: u64


@struct
class Words:
    """An array as an attribute."""

    dtype: i32
    count: u64
    data: Ptr[u64]


@struct
class Attributes:
    size: u64
    extension: Ptr
    count: i64
    types: Ptr[i32]
    names: Ptr[Ptr[Span]]
    values: Ptr[Ptr[Words]]


@struct
class Frame:
    size: u64
    extension: Ptr[Extension]
    api: Ptr[Api]
    context: Ptr
    stage: i32
    arguments: Values
    results: Values
    attributes: Attributes


@struct
class Source:
    """Where a parameter's value comes from."""

    kind: i64
    index: i64
    refused: Ptr
    """What to say if it does not fit."""
    order: Array[i64, 8]
    """Of an array: which axis each mode is."""
    major: Array[i64, 8]
    """Its axes, from the one with the largest stride on."""


ARGUMENT, RESULT, NUMBER, STREAM = range(4)


@struct
class Call:
    """What call sites of one key do."""

    key: Array[u64, 4]
    next: Ptr[Call]
    """Another one, of the same bucket."""
    plan: Ptr[Plan]
    report: Ptr[Object]
    """Takes what compiled code returned, and tells the error's text, or None."""
    sources: Array[Source, 0]


BUCKETS = 256
doors = Library("xla", prefix="kiln_")
known = doors.variable("xla_calls", Array[u64, BUCKETS])
"""Calls by the lowest bits of their keys."""
loader = doors.variable("xla_loader", u64)
"""A Python function that takes the code that a call site carries and makes its call known, or tells what is wrong."""


@doors.export
def xla_add(call: Ptr[Call]) -> None:
    """Make a call known, for good. Others may be looking for calls meanwhile; one at a time adds."""
    place = ref(known.place)[i64(call.key[0] & (BUCKETS - 1))]
    call.next = Ptr[Call](Ptr(atomic_load(place, "relaxed")))
    atomic_store(place, address(call), "release")


@native
def find(key: Ptr[u64]) -> Ptr[Call]:
    call = Ptr[Call](Ptr(atomic_load(ref(known.place)[i64(key[0] & (BUCKETS - 1))], "acquire")))
    while call != None:
        same = True
        for number in range(4):
            same = same and call.key[number] == key[number]
        if same:
            return call
        call = call.next
    return None


@native
def failure(frame: Ptr[Frame], code: i32, message: Ptr) -> Ptr:
    arguments = local(ErrorArguments)
    arguments.size = 28
    arguments.extension = None
    arguments.message = message
    arguments.code = code
    return frame.api.make_error(arguments)


@native
def words_of(frame: Ptr[Frame], length: u64, last: u8) -> Ptr[Words]:
    """The attribute whose name has this length and last letter; null: none."""
    attributes = ref(frame).attributes
    for number in range(attributes.count):
        name = attributes.names[number]
        if name.length == length:
            if name.start[i64(length) - 1] == last:
                return attributes.values[number]
    return None


@native
def take_array(record: Ptr[ArrayRecord], frame: Ptr[Frame], source: Ptr[Source], place: Ptr[u64]) -> bool:
    values = ref(frame).arguments
    if source.kind == RESULT:
        values = ref(frame).results
    buffer, rank = values.buffers[source.index], record.rank
    shape, strides, dense = local(i64, plan.MAX_RANK), local(i64, plan.MAX_RANK), local(i64, plan.MAX_RANK)
    if source.index >= values.count or buffer.rank != rank:
        return False
    step = i64(1)
    for number in range(rank):
        axis = source.major[rank - 1 - number]
        dense[axis] = step
        step *= buffer.dims[axis]
    for mode in range(rank):
        axis = source.order[mode]
        shape[mode] = buffer.dims[axis]
        strides[mode] = dense[axis]
    return fit(record, buffer.data, shape, strides, place)


@native
def stream_of(frame: Ptr[Frame], place: Ptr[u64]) -> Ptr:
    """Find the stream of a call: null, or XLA's error, on the host."""
    asked = local(StreamArguments)
    asked.size = 32
    asked.extension = None
    asked.context = frame.context
    asked.stream = 0
    error = frame.api.stream(asked)
    place[0] = asked.stream
    return error


@native
def device_of(frame: Ptr[Frame]) -> i32:
    """The number of the GPU that a call is for; -1: XLA does not say."""
    asked, api = local(StreamArguments), frame.api
    if api.size < size_of(Api) or api.device == None:
        return -1
    asked.size = 28
    asked.extension = None
    asked.context = frame.context
    asked.stream = 0
    error = api.device(asked)
    if error != None:
        drop_error(frame, error)
        return -1
    return i32(asked.stream)


@native
def drop_error(frame: Ptr[Frame], error: Ptr) -> None:
    drop = local(DropArguments)
    drop.size = 24
    drop.extension = None
    drop.error = error
    frame.api.drop_error(drop)


@native
def take_number(record: Ptr[Record], number: u64, place: Ptr[u64]) -> bool:
    if record.kind == plan.INTEGER:
        whole = Ptr[IntegerRecord](record)
        place[0] = number
        return i64(number) >= whole.least and i64(number) <= whole.greatest
    wide = local(u64)
    wide[0] = number
    place[0] = number
    if record.kind == plan.REAL and Ptr[RealRecord](record).bytes == 4:
        place[0] = 0
        Ptr[f32](place)[0] = f32(Ptr[f64](wide)[0])
    return True


@native
def take(
    record: Ptr[Record], frame: Ptr[Frame], numbers: Ptr[Words], sources: Ptr[Source], slots: Ptr, refused: Ptr[Ptr]
) -> Ptr[Source]:
    """Take what a record describes from its sources: those that follow, or null, with what to say in `refused`."""
    kind, place, source = record.kind, Ptr[u64](slots + record.slot), sources
    if kind == plan.GROUP:
        group = Ptr[GroupRecord](record)
        element, left = group.elements, group.count
        while left > 0 and source != None:
            source = take(element, frame, numbers, source, slots, refused)
            element = following(element)
            left -= 1
        return source
    taken = True
    if kind == plan.SAME or kind == plan.NUMBER:
        return source  # what was known while tracing
    if source.kind == STREAM:
        place[0] = 0
        if record.kind == plan.AMBIENT or record.kind == plan.STREAM:
            if source.index != 0:  # not on the host
                taken = stream_of(frame, place) == None
    elif source.kind == NUMBER:
        taken = numbers != None
        if taken:
            taken = u64(source.index) < numbers.count
            if taken:
                taken = take_number(record, numbers.data[source.index], place)
    else:
        taken = take_array(Ptr[ArrayRecord](record), frame, source, place)
    if not taken:
        refused[0] = source.refused
        return None
    return source + 1


@native
def is_empty(values: Ptr[Values]) -> bool:
    """Whether an array has no elements."""
    for number in range(values.count):
        buffer = values.buffers[number]
        for axis in range(buffer.rank):
            if buffer.dims[axis] == 0:
                return True
    return False


@native
def told(frame: Ptr[Frame], text_or_none: Ptr[Object], code: i32) -> Ptr:
    """The error of a text that a Python function returned, of an argument if it is bytes; null for None."""
    size, error = local(u64), Ptr(None)
    if text_or_none == None:
        PyErr_Clear()
        error = failure(frame, i32(INTERNAL), text("the call failed, and Python could not say how"))
    elif text_or_none.kind == world.place.bytes_type:
        error = failure(frame, i32(INVALID_ARGUMENT), Ptr(text_or_none) + plan.BYTES_DATA)
    elif text_or_none != world.place.none:
        error = failure(frame, code, PyUnicode_AsUTF8AndSize(text_or_none, size))
    Py_DecRef(text_or_none)
    return error


@native
def tell(frame: Ptr[Frame], call: Ptr[Call], record: Ptr) -> Ptr:
    """The error that compiled code reported; null if it was no error."""
    state = PyGILState_Ensure()
    number = PyLong_FromUnsignedLongLong(address(record))
    error = told(frame, call_python(call.report, number, None, 0, None), i32(INTERNAL))
    Py_DecRef(number)
    PyGILState_Release(state)
    return error


@native
def run(frame: Ptr[Frame], call: Ptr[Call], numbers: Ptr[Words]) -> Ptr:
    header = call.plan
    slots, refused = Ptr(local(u8, header.slots_bytes)), local(Ptr)
    record, source = header.records, call.sources
    refused[0] = text("a call without its arguments")
    for _ in range(header.record_count):
        if source == None:
            return failure(frame, i32(INVALID_ARGUMENT), refused[0])
        source = take(record, frame, numbers, source, slots, refused)
        record = following(record)
    if source == None:
        return failure(frame, i32(INVALID_ARGUMENT), refused[0])
    reported = header.entry(slots)
    if reported == None:
        return None
    return tell(frame, call, reported)


@native
def is_question(frame: Ptr[Frame], traits: i32) -> bool:
    """Whether a call only asks for the version of the interface, which is answered, or is for another stage than execution."""
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
def handle(frame: Ptr[Frame], traits: i32) -> Ptr:
    if is_question(frame, traits):
        return None
    key = words_of(frame, u64(8), u8(ord("y")))
    if key == None:
        return failure(frame, i32(INVALID_ARGUMENT), text("a call of kiln's without the attribute kiln_key"))
    if key.count != 4:
        return failure(frame, i32(INVALID_ARGUMENT), text("the attribute kiln_key has four words"))
    call = find(key.data)
    if call == None:
        code = words_of(frame, u64(9), u8(ord("e")))
        if code == None:
            return failure(
                frame,
                i32(INVALID_ARGUMENT),
                text("this process has not compiled the kernel of this call: run what makes it here, too"),
            )
        state = PyGILState_Ensure()
        data = PyBytes_FromStringAndSize(Ptr(code.data), code.count)
        error = told(frame, call_python(Ptr[Object](Ptr(loader.value)), data, None, 0, None), i32(UNIMPLEMENTED))
        Py_DecRef(data)
        PyGILState_Release(state)
        if error != None:
            return error
        call = find(key.data)
        if call == None:
            return failure(frame, i32(INTERNAL), text("the code of this call is another one's"))
    if is_empty(ref(frame).arguments) or is_empty(ref(frame).results):
        return None
    return run(frame, call, words_of(frame, u64(9), u8(ord("s"))))


@doors.export
def xla_call(frame: Ptr[Frame]) -> Ptr:
    """Null, or XLA's error. It may be captured into a CUDA graph."""
    return handle(frame, i32(MAY_BE_CAPTURED))


@doors.export
def xla_call_uncaptured(frame: Ptr[Frame]) -> Ptr:
    """The same for call sites that may not."""
    return handle(frame, i32(0))
