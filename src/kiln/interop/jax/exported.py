# pyright: reportReturnType=false
"""An exported function as a handler of XLA's: `jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library.kiln_xla_NAME))`.

Arrays are row-major, as XLA passes them; inputs come first, then outputs; numbers are attributes with the names of the parameters.
"""

from __future__ import annotations

from ...native import (
    Library,
    Ptr,
    address,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    local,
    native,
    ref,
    struct,
    text,
    u8,
    u16,
    u32,
    u64,
)
from ...targets.host.texts import Text, begin, put_byte
from ..arguments import plan
from ..arguments.arrays import DLTensor
from ..c.entry import ROOM, Function, keep, name_argument, say
from ..tvm_ffi.exported_arguments import FAILED, Caller, perform, wrong_count
from ..tvm_ffi.reader import ARRAY, BOOL, DL_TENSOR, FLOAT, INT, NONE, OPAQUE, Argument, ArrayObject
from .reader import (
    INTERNAL,
    INVALID_ARGUMENT,
    Buffer,
    Frame,
    Values,
    device_of,
    drop_error,
    failure,
    is_question,
    stream_of,
)

PASSED, MADE, NUMBER, STREAM, GROUP, NOTHING = range(6)
"""Where a parameter's value comes from: an array that is passed, one that is a result, an attribute, XLA's stream, those that follow, nowhere."""
_SCALAR = 3
"""A kind of attribute."""
_CODES = {
    1: (6, 8), 2: (0, 8), 3: (0, 16), 4: (0, 32), 5: (0, 64), 6: (1, 8), 7: (1, 16), 8: (1, 32), 9: (1, 64), 10: (2, 16), 11: (2, 32),
    12: (2, 64), 15: (5, 64), 16: (4, 16), 18: (5, 128), 19: (12, 8), 20: (10, 8), 33: (14, 8),
}  # fmt: skip
"""DLPack's codes and bits by XLA's element types."""
_INTEGERS = ((1, u8), (2, i8), (3, i16), (4, i32), (5, i64), (6, u8), (7, u16), (8, u32), (9, u64))
_REALS = ((11, f32), (12, f64))
"""XLA's types of numbers."""


@struct
class Source:
    kind: i64
    index: i64
    """Of an array; of a group, how many there are."""
    name: Ptr
    length: u64


@struct
class XlaDoor:
    """How XLA passes arguments."""

    passed: i64
    made: i64
    numbers: i64
    """Attributes: as many as there are sources of that kind."""
    traits: i32
    on_host: i32
    on_gpu: i32
    sources: Ptr[Source]


@struct
class Scalar:
    """A number as an attribute."""

    dtype: i32
    value: Ptr


@struct
class Reading:
    """What was read of a call so far."""

    source: Ptr[Source]
    arrays: Ptr[DLTensor]
    elements: Ptr[Argument]
    groups: Ptr[ArrayObject]
    device: u32
    device_number: i32
    """-1: XLA has made it the current one."""
    stream: u64


xla_entry = Library("aot_xla", prefix="kiln_aot_", passes=1, opt=1, small=True)


@native
def read_array(buffer: Ptr[Buffer], reading: Ptr[Reading], argument: Ptr[Argument]) -> None:
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
    tensor.shape = buffer.dims
    tensor.strides = Ptr[i64](None)
    tensor.offset = 0
    argument.type = DL_TENSOR
    argument.value = address(tensor)


@native
def is_named(start: Ptr[u8], name: Ptr, length: u64) -> bool:
    for number in range(i64(length)):
        if start[number] != Ptr[u8](name)[number]:
            return False
    return True


@native
def read_number(frame: Ptr[Frame], source: Ptr[Source], argument: Ptr[Argument]) -> bool:
    """An attribute; False if there is none that is a number."""
    attributes = ref(frame).attributes
    for number in range(attributes.count):
        name = attributes.names[number]
        if name.length == source.length and is_named(name.start, source.name, source.length):
            scalar = Ptr[Scalar](attributes.values[number])
            if attributes.types[number] != _SCALAR:
                return False
            argument.type = NONE
            for kind, typed in _INTEGERS:
                if scalar.dtype == kind:
                    argument.type = i32(BOOL) if kind == 1 else i32(INT)
                    argument.value = u64(i64(Ptr[typed](scalar.value)[0]))
            for kind, typed in _REALS:
                if scalar.dtype == kind:
                    wide = local(f64)
                    wide[0] = f64(Ptr[typed](scalar.value)[0])
                    argument.type = FLOAT
                    argument.value = Ptr[u64](wide)[0]
            return argument.type != NONE
    return False


@native
def name_unknown(
    function: Ptr[Function], door: Ptr[XlaDoor], frame: Ptr[Frame], end: Ptr[Source], said: Ptr[Text]
) -> None:
    """Say which attribute is no parameter's: all parameters have theirs."""
    attributes = ref(frame).attributes
    for number in range(attributes.count):
        name, source, known = attributes.names[number], door.sources, False
        while source != end:
            if source.kind == NUMBER and source.length == name.length:
                known = known or is_named(name.start, source.name, source.length)
            source += 1
        if not known:
            wrong_count(function, text("the number of attributes"), attributes.count, door.numbers, said)
            say(said, text(", and none is "))
            for letter in range(i64(name.length)):
                put_byte(said, name.start[letter])
            return


@native
def read_argument(frame: Ptr[Frame], reading: Ptr[Reading], argument: Ptr[Argument]) -> bool:
    """The next parameter; False if its attribute is not there."""
    source = reading.source
    reading.source = source + 1
    argument.length = 0
    argument.type = NONE
    argument.value = 0
    if source.kind == PASSED:
        read_array(ref(frame).arguments.buffers[source.index], reading, argument)
    elif source.kind == MADE:
        read_array(ref(frame).results.buffers[source.index], reading, argument)
    elif source.kind == NUMBER:
        return read_number(frame, source, argument)
    elif source.kind == STREAM:
        argument.type = OPAQUE
        argument.value = reading.stream
    elif source.kind == GROUP:
        group, first = reading.groups, reading.elements
        reading.groups = group + 1
        reading.elements = first + source.index
        group.elements = first
        group.count = source.index
        argument.type = ARRAY
        argument.value = address(group)
        for number in range(source.index):
            if not read_argument(frame, reading, first + number):
                return False
    return True


@native
def is_alias(values: Ptr[Values], data: u64) -> bool:
    for number in range(values.count):
        if values.buffers[number].data == data:
            return True
    return False


@native
def count_fits(function: Ptr[Function], door: Ptr[XlaDoor], frame: Ptr[Frame], said: Ptr[Text]) -> bool:
    """Whether there are as many arrays as there should be. Results beyond the outputs have the memory of inputs that the kernel writes to."""
    passed, made = ref(frame).arguments, ref(frame).results
    if passed.count != door.passed:
        wrong_count(function, text("the number of arrays that are passed"), passed.count, door.passed, said)
        return False
    if made.count < door.made:
        wrong_count(function, text("the number of results"), made.count, door.made, said)
        return False
    for number in range(door.made, made.count):
        if not is_alias(passed, made.buffers[number].data):
            wrong_count(
                function, text("the number of results that are no aliases of inputs"), made.count, door.made, said
            )
            return False
    return True


@native
def where_it_runs(door: Ptr[XlaDoor], frame: Ptr[Frame], reading: Ptr[Reading]) -> Ptr:
    """Find the stream, and so whether a GPU is meant: null, or XLA's error."""
    reading.stream = 0
    reading.device = plan.CPU
    reading.device_number = 0
    if door.on_gpu == 0:
        return None
    error = stream_of(frame, ref(reading).stream)
    if error == None:
        reading.device = plan.CUDA
        reading.device_number = device_of(frame)
        return None
    if door.on_host == 0:
        return error
    drop_error(frame, error)
    return None


@native
def take(function: Ptr[Function], door: Ptr[XlaDoor], frame: Ptr[Frame], reading: Ptr[Reading], said: Ptr[Text]) -> i32:
    """Read all arguments and call the function: 0, or what is wrong."""
    header, caller = function.full_plan, local(Caller)
    arrays = door.passed + door.made + 1
    given, slots = local(Argument, header.count + 1), Ptr(local(u8, header.slots_bytes))
    reading.source = door.sources
    reading.arrays = local(DLTensor, arrays)
    reading.elements = local(Argument, arrays)
    reading.groups = local(ArrayObject, header.count + 1)
    for number in range(header.count):
        source = reading.source
        if not read_argument(frame, reading, given + number):
            name_argument(function, function.full_names, number, said)
            say(said, text("there is no attribute "))
            say(said, source.name)
            say(said, text(" that is a number"))
            return 1
    if ref(frame).attributes.count != door.numbers:
        name_unknown(function, door, frame, reading.source, said)
        return 1
    caller.stream = reading.stream
    caller.asks = 0
    caller.enters = i32(1) if reading.device_number >= 0 else i32(0)
    return perform(function, given, slots, caller, said)


@xla_entry.export
def call_by_xla(function: Ptr[Function], frame: Ptr[Frame]) -> Ptr:
    """Null, or XLA's error."""
    said, memory, reading, door = local(Text), local(u8, ROOM), local(Reading), Ptr[XlaDoor](function.xla)
    if is_question(frame, door.traits):
        return None
    begin(said, memory, ROOM)
    if not count_fits(function, door, frame, said):
        return failure(frame, i32(INVALID_ARGUMENT), memory)
    error = where_it_runs(door, frame, reading)
    if error != None:
        return error
    wrong = take(function, door, frame, reading, said)
    if wrong == 0:
        return None
    keep(said)
    return failure(frame, i32(INTERNAL) if wrong == FAILED else i32(INVALID_ARGUMENT), memory)
