# pyright: reportReturnType=false
"""An exported function as a handler of XLA.

    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library.kiln_xla_NAME))

Arrays are row-major, as XLA passes them; inputs come first, then outputs; numbers are attributes named as the
parameters.
"""

from __future__ import annotations

from ...native import Library, Ptr, address, assign, local, native, ref, text
from ...native.types import f32, f64, i8, i16, i32, i64, struct, u8, u16, u32, u64
from ...targets.host.text_buffer import Text, begin, put_byte
from ..arguments import plan
from ..arguments.arrays import DLTensor
from ..c.entry import ROOM, Function, keep, name_argument, say
from ..tvm_ffi.exported_arguments import FAILED, Caller, perform, wrong_count
from ..tvm_ffi.reader import ARRAY, BOOL, DL_TENSOR, FLOAT, INT, NONE, OPAQUE, Argument, ArrayObject
from . import reader
from .reader import INTERNAL, INVALID_ARGUMENT, Buffer, Frame, Values

PASSED, MADE, NUMBER, STREAM, GROUP, NOTHING = range(6)
"""Where a parameter's value comes from: an argument, a result, an attribute, the stream, the next sources, nowhere."""
_SCALAR = 3
"""XLA's number of attributes that are scalars."""
_CODES = {
    1: (6, 8),
    2: (0, 8),
    3: (0, 16),
    4: (0, 32),
    5: (0, 64),
    6: (1, 8),
    7: (1, 16),
    8: (1, 32),
    9: (1, 64),
    10: (2, 16),
    11: (2, 32),
    12: (2, 64),
    15: (5, 64),
    16: (4, 16),
    18: (5, 128),
    19: (12, 8),
    20: (10, 8),
    33: (14, 8),
}
"""DLPack's codes and bits by XLA's element types."""
_INTEGERS = ((1, u8), (2, i8), (3, i16), (4, i32), (5, i64), (6, u8), (7, u16), (8, u32), (9, u64))
_REALS = ((11, f32), (12, f64))
"""XLA's types of numbers."""


@struct
class Source:
    """The source of a parameter's value."""

    kind: i64
    index: i64
    """The index of an array, or the number of elements of a group."""
    name: Ptr
    length: u64


@struct
class XlaFunction:
    """The arguments of a function as XLA passes them."""

    passed: i64
    outputs: i64
    numbers: i64
    """The number of attributes."""
    traits: i32
    on_host: i32
    on_gpu: i32
    sources: Ptr[Source]


@struct
class Scalar:
    """An attribute that is a number."""

    dtype: i32
    value: Ptr


@struct
class Reading:
    """The arguments of a call, while they are read."""

    source: Ptr[Source]
    arrays: Ptr[DLTensor]
    elements: Ptr[Argument]
    groups: Ptr[ArrayObject]
    device: u32
    device_number: i32
    """-1 if XLA has made it current."""
    stream: u64


xla_entry: Library = Library("aot_xla", prefix="kiln_aot_", passes=1, opt=1, small=True)


@native
def read_array(buffer: Ptr[Buffer], reading: Ptr[Reading], argument: Ptr[Argument]) -> None:
    """Read an array."""
    tensor = reading.arrays
    reading.arrays = tensor + 1
    tensor.data = buffer.data
    tensor.device = reading.device
    tensor.device_number = u32(reading.device_number)
    tensor.rank = i32(buffer.rank)
    tensor.type = 0
    for number, (code, bits) in _CODES.items():
        if buffer.dtype == number:
            tensor.type = u32(code | bits << 8 | 1 << 16)
    assign(tensor, shape=buffer.dims, strides=Ptr[i64](None), offset=0)
    assign(argument, type=DL_TENSOR, value=address(tensor))


@native
def read_number(frame: Ptr[Frame], source: Ptr[Source], argument: Ptr[Argument]) -> bool:
    """Read a number from its attribute; False if there is none that is a number."""
    attributes = ref(frame).attributes
    number = reader.find_attribute(frame, source.name, source.length)
    if number < 0:
        return False
    scalar = Ptr[Scalar](attributes.values[number])
    if attributes.types[number] != _SCALAR:
        return False
    argument.type = NONE
    for kind, typed in _INTEGERS:
        if scalar.dtype == kind:
            assign(argument, type=i32(BOOL) if kind == 1 else i32(INT), value=u64(i64(Ptr[typed](scalar.value)[0])))
    for kind, typed in _REALS:
        if scalar.dtype == kind:
            wide = local(f64)
            wide[0] = f64(Ptr[typed](scalar.value)[0])
            assign(argument, type=FLOAT, value=Ptr[u64](wide)[0])
    return argument.type != NONE


@native
def name_unknown(
    function: Ptr[Function], about: Ptr[XlaFunction], frame: Ptr[Frame], end: Ptr[Source], message: Ptr[Text]
) -> None:
    """Say which attribute belongs to no parameter: all parameters have theirs."""
    attributes = ref(frame).attributes
    for number in range(attributes.count):
        source = about.sources
        is_argument = False
        while source != end:
            if source.kind == NUMBER:
                is_argument = is_argument or reader.find_attribute(frame, source.name, source.length) == number
            source += 1
        if not is_argument:
            wrong_count(function, text("the number of attributes"), attributes.count, about.numbers, message)
            say(message, text(", and none is "))
            for letter in range(i64(attributes.names[number].length)):
                put_byte(message, attributes.names[number].start[letter])
            return


@native
def read_argument(frame: Ptr[Frame], reading: Ptr[Reading], argument: Ptr[Argument]) -> bool:
    """Read the next parameter; False if its attribute is missing."""
    source = reading.source
    reading.source = source + 1
    assign(argument, length=0, type=NONE, value=0)
    if source.kind == PASSED:
        read_array(ref(frame).arguments.buffers[source.index], reading, argument)
    elif source.kind == MADE:
        read_array(ref(frame).results.buffers[source.index], reading, argument)
    elif source.kind == NUMBER:
        return read_number(frame, source, argument)
    elif source.kind == STREAM:
        assign(argument, type=OPAQUE, value=reading.stream)
    elif source.kind == GROUP:
        group = reading.groups
        first = reading.elements
        assign(reading, groups=group + 1, elements=first + source.index)
        assign(group, elements=first, count=source.index)
        assign(argument, type=ARRAY, value=address(group))
        for number in range(source.index):
            if not read_argument(frame, reading, first + number):
                return False
    return True


@native
def is_alias(values: Ptr[Values], data: u64) -> bool:
    """Return whether one of the arrays has this memory."""
    for number in range(values.count):
        if values.buffers[number].data == data:
            return True
    return False


@native
def count_fits(function: Ptr[Function], about: Ptr[XlaFunction], frame: Ptr[Frame], message: Ptr[Text]) -> bool:
    """Return whether there are as many arrays as expected.

    Further results must alias inputs, to which the kernel writes.
    """
    passed = ref(frame).arguments
    results = ref(frame).results
    if passed.count != about.passed:
        wrong_count(function, text("the number of arrays that are passed"), passed.count, about.passed, message)
        return False
    if results.count < about.outputs:
        wrong_count(function, text("the number of results"), results.count, about.outputs, message)
        return False
    for number in range(about.outputs, results.count):
        if not is_alias(passed, results.buffers[number].data):
            wrong_count(
                function,
                text("the number of results that are no aliases of inputs"),
                results.count,
                about.outputs,
                message,
            )
            return False
    return True


@native
def find_device(about: Ptr[XlaFunction], frame: Ptr[Frame], reading: Ptr[Reading]) -> Ptr:
    """Find the stream, and by it whether the call is for a GPU. Returns null, or XLA's error."""
    assign(reading, stream=0, device=plan.CPU, device_number=0)
    if about.on_gpu == 0:
        return None
    error = reader.stream_of(frame, ref(reading).stream)
    if error == None:
        assign(reading, device=plan.CUDA, device_number=reader.device_of(frame))
        return None
    if about.on_host == 0:
        return error
    reader.drop_error(frame, error)
    return None


@native
def take(
    function: Ptr[Function], about: Ptr[XlaFunction], frame: Ptr[Frame], reading: Ptr[Reading], message: Ptr[Text]
) -> i32:
    """Read all arguments and call the function. Returns 0, or the error after writing its message."""
    header = function.full_plan
    caller = local(Caller)
    arrays = about.passed + about.outputs + 1
    arguments = local(Argument, header.count + 1)
    slots = Ptr(local(u8, header.slots_bytes))
    reading.source = about.sources
    reading.arrays = local(DLTensor, arrays)
    reading.elements = local(Argument, arrays)
    reading.groups = local(ArrayObject, header.count + 1)
    for number in range(header.count):
        source = reading.source
        if not read_argument(frame, reading, arguments + number):
            name_argument(function, function.full_names, number, message)
            say(message, text("there is no attribute "))
            say(message, source.name)
            say(message, text(" that is a number"))
            return 1
    if ref(frame).attributes.count != about.numbers:
        name_unknown(function, about, frame, reading.source, message)
        return 1
    assign(caller, stream=reading.stream, asks=0, enters=i32(1) if reading.device_number >= 0 else i32(0))
    return perform(function, arguments, slots, caller, message)


@xla_entry.export
def call_by_xla(function: Ptr[Function], frame: Ptr[Frame]) -> Ptr:
    """Handle a call frame. Returns null, or XLA's error."""
    message = local(Text)
    memory = local(u8, ROOM)
    reading = local(Reading)
    about = Ptr[XlaFunction](function.xla)
    if reader.is_question(frame, about.traits):
        return None
    begin(message, memory, ROOM)
    if not count_fits(function, about, frame, message):
        return reader.failure(frame, i32(INVALID_ARGUMENT), memory)
    error = find_device(about, frame, reading)
    if error != None:
        return error
    wrong = take(function, about, frame, reading, message)
    if wrong == 0:
        return None
    keep(message)
    return reader.failure(frame, i32(INTERNAL) if wrong == FAILED else i32(INVALID_ARGUMENT), memory)
