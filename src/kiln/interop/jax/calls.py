# pyright: reportReturnType=false
"""The handler of this process, which XLA calls for all functions.

A call site names its function by a key of the contents. XLA calls from its own threads, without the GIL. Arrays are
dense, in the order of axes that the call site asked for; numbers are words in an attribute.
"""

from __future__ import annotations

from ...native import Library, Ptr, address, local, native, pointers, ref, text
from ...native.types import Array, f32, f64, i32, i64, struct, u8, u64
from ..arguments import cpython, plan
from ..arguments.arrays import fit
from ..arguments.cpython import Object
from ..arguments.devices import following
from ..arguments.plan import ArrayRecord, GroupRecord, IntegerRecord, Plan, RealRecord, Record
from ..arguments.process import process
from . import reader
from .reader import INTERNAL, INVALID_ARGUMENT, MAY_BE_CAPTURED, UNIMPLEMENTED, Frame, Values, Words

ARGUMENT, RESULT, NUMBER, STREAM = range(4)
"""Sources of a parameter's value."""


@struct
class Source:
    """The source of a leaf's value: its kind, and the index of the value there."""

    kind: i64
    index: i64
    mismatch: Ptr
    """The message if it does not match."""
    order: Array[i64, 8]
    """Which axis each mode of an array is."""
    major: Array[i64, 8]
    """The axes of an array, from the one with the largest stride on."""


@struct
class Call:
    """A compiled function as call sites with its key use it."""

    key: Array[u64, 4]
    next: Ptr[Call]
    """Another call of the same bucket."""
    plan: Ptr[Plan]
    report: Ptr[Object]
    """Takes what compiled code returned; returns the text of an error, or None."""
    sources: Array[Source, 0]


BUCKETS = 256
xla_library: Library = Library("xla", prefix="kiln_")
table = xla_library.variable("xla_calls", Array[u64, BUCKETS])
"""Lists of calls by the lowest bits of their keys."""
loader = xla_library.variable("xla_loader", u64)
"""A Python function that compiles the code that a call site carries. Returns None, or what is wrong."""


@xla_library.export
def xla_add(call: Ptr[Call]) -> None:
    """Add a call for good. One thread adds at a time, while others may be looking for calls."""
    place = ref(table.place)[i64(call.key[0] & (BUCKETS - 1))]
    call.next = Ptr[Call](Ptr(pointers.atomic_load(place, "relaxed")))
    pointers.atomic_store(place, address(call), "release")


@native
def find(key: Ptr[u64]) -> Ptr[Call]:
    """Return the call of a key, or null."""
    call = Ptr[Call](Ptr(pointers.atomic_load(ref(table.place)[i64(key[0] & (BUCKETS - 1))], "acquire")))
    while call != None:
        same = True
        for number in range(4):
            same = same and call.key[number] == key[number]
        if same:
            return call
        call = call.next
    return None


@native
def words_of(frame: Ptr[Frame], name: Ptr, length: u64) -> Ptr[Words]:
    """Return an attribute that is an array, or null."""
    number = reader.find_attribute(frame, name, length)
    if number < 0:
        return None
    return ref(frame).attributes.values[number]


@native
def take_array(record: Ptr[ArrayRecord], frame: Ptr[Frame], source: Ptr[Source], place: Ptr[u64]) -> bool:
    """Read an array into its slots. Returns whether it matches its record."""
    values = ref(frame).arguments
    if source.kind == RESULT:
        values = ref(frame).results
    buffer = values.buffers[source.index]
    rank = record.rank
    shape = local(i64, plan.MAX_RANK)
    strides = local(i64, plan.MAX_RANK)
    dense = local(i64, plan.MAX_RANK)
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
def take_number(record: Ptr[Record], number: u64, place: Ptr[u64]) -> bool:
    """Read a number into its slot. Returns whether it matches its record."""
    place[0] = number
    if record.kind == plan.INTEGER:
        bounds = Ptr[IntegerRecord](record)
        return i64(number) >= bounds.least and i64(number) <= bounds.greatest
    wide = local(u64)
    wide[0] = number
    if record.kind == plan.REAL and Ptr[RealRecord](record).bytes == 4:
        place[0] = 0
        Ptr[f32](place)[0] = f32(Ptr[f64](wide)[0])
    return True


@native
def take(
    record: Ptr[Record], frame: Ptr[Frame], numbers: Ptr[Words], sources: Ptr[Source], slots: Ptr, message: Ptr[Ptr]
) -> Ptr[Source]:
    """Read the leaves of a parameter. Returns the sources of the next one, or null with a message."""
    kind = record.kind
    place = Ptr[u64](slots + record.slot)
    source = sources
    if kind == plan.GROUP:
        group = Ptr[GroupRecord](record)
        element = group.elements
        left = group.count
        while left > 0 and source != None:
            source = take(element, frame, numbers, source, slots, message)
            element = following(element)
            left -= 1
        return source
    matches = True
    if kind == plan.SAME or kind == plan.NUMBER:
        return source  # known while tracing
    if source.kind == STREAM:
        place[0] = 0
        if record.kind == plan.AMBIENT or record.kind == plan.STREAM:
            if source.index != 0:  # not on the host
                matches = reader.stream_of(frame, place) == None
    elif source.kind == NUMBER:
        matches = numbers != None
        if matches:
            matches = u64(source.index) < numbers.count
            if matches:
                matches = take_number(record, numbers.data[source.index], place)
    else:
        matches = take_array(Ptr[ArrayRecord](record), frame, source, place)
    if not matches:
        message[0] = source.mismatch
        return None
    return source + 1


@native
def is_empty(values: Ptr[Values]) -> bool:
    """Return whether an array has no elements."""
    for number in range(values.count):
        buffer = values.buffers[number]
        for axis in range(buffer.rank):
            if buffer.dims[axis] == 0:
                return True
    return False


@native
def error_of(frame: Ptr[Frame], returned: Ptr[Object], code: i32) -> Ptr:
    """Return the error whose text a Python function returned, as bytes if an argument is wrong; null for None."""
    size = local(u64)
    error = Ptr(None)
    if returned == None:
        cpython.PyErr_Clear()
        error = reader.failure(frame, i32(INTERNAL), text("the call failed, and Python could not say how"))
    elif returned.kind == process.place.bytes_type:
        error = reader.failure(frame, i32(INVALID_ARGUMENT), Ptr(returned) + plan.BYTES_DATA)
    elif returned != process.place.none:
        error = reader.failure(frame, code, cpython.PyUnicode_AsUTF8AndSize(returned, size))
    cpython.Py_DecRef(returned)
    return error


@native
def reported_error(frame: Ptr[Frame], call: Ptr[Call], record: Ptr) -> Ptr:
    """Return the error that compiled code reported; null if it reported none."""
    state = cpython.PyGILState_Ensure()
    number = cpython.PyLong_FromUnsignedLongLong(address(record))
    error = error_of(frame, cpython.call_python(call.report, number, None, 0, None), i32(INTERNAL))
    cpython.Py_DecRef(number)
    cpython.PyGILState_Release(state)
    return error


@native
def run(frame: Ptr[Frame], call: Ptr[Call], numbers: Ptr[Words]) -> Ptr:
    """Read the arguments of a call and make it."""
    header = call.plan
    slots = Ptr(local(u8, header.slots_bytes))
    message = local(Ptr)
    record = header.records
    source = call.sources
    message[0] = text("a call without its arguments")
    for _ in range(header.record_count):
        if source == None:
            return reader.failure(frame, i32(INVALID_ARGUMENT), message[0])
        source = take(record, frame, numbers, source, slots, message)
        record = following(record)
    if source == None:
        return reader.failure(frame, i32(INVALID_ARGUMENT), message[0])
    reported = header.entry(slots)
    if reported == None:
        return None
    return reported_error(frame, call, reported)


@native
def load(frame: Ptr[Frame], code: Ptr[Words]) -> Ptr:
    """Let Python compile the code that a call site carries. Returns null, or an error."""
    state = cpython.PyGILState_Ensure()
    data = cpython.PyBytes_FromStringAndSize(Ptr(code.data), code.count)
    returned = cpython.call_python(Ptr[Object](Ptr(loader.value)), data, None, 0, None)
    error = error_of(frame, returned, i32(UNIMPLEMENTED))
    cpython.Py_DecRef(data)
    cpython.PyGILState_Release(state)
    return error


@native
def handle(frame: Ptr[Frame], traits: i32) -> Ptr:
    """Handle a call frame. Returns null, or an error."""
    if reader.is_question(frame, traits):
        return None
    key = words_of(frame, text("kiln_key"), u64(8))
    if key == None:
        return reader.failure(frame, i32(INVALID_ARGUMENT), text("a call of kiln's without the attribute kiln_key"))
    if key.count != 4:
        return reader.failure(frame, i32(INVALID_ARGUMENT), text("the attribute kiln_key has four words"))
    call = find(key.data)
    if call == None:
        code = words_of(frame, text("kiln_code"), u64(9))
        if code == None:
            message = text("this process has not compiled the kernel of this call: run what makes it here, too")
            return reader.failure(frame, i32(INVALID_ARGUMENT), message)
        error = load(frame, code)
        if error != None:
            return error
        call = find(key.data)
        if call == None:
            return reader.failure(frame, i32(INTERNAL), text("the code of this call is another one's"))
    if is_empty(ref(frame).arguments) or is_empty(ref(frame).results):
        return None
    return run(frame, call, words_of(frame, text("kiln_args"), u64(9)))


@xla_library.export
def xla_call(frame: Ptr[Frame]) -> Ptr:
    """Handle a call that may be captured into a CUDA graph. Returns null, or an error."""
    return handle(frame, i32(MAY_BE_CAPTURED))


@xla_library.export
def xla_call_uncaptured(frame: Ptr[Frame]) -> Ptr:
    """Handle a call that may not be captured. Returns null, or an error."""
    return handle(frame, i32(0))
