# pyright: reportReturnType=false
"""Arguments in TVM-FFI's form: `int call(void *handle, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result)`.

C++ programs, registries and other languages call compiled functions so, with or without the GIL. Arguments are read by
the call plan of the function; a call that does not match goes to a TVM-FFI function that Python made, which raises the
errors. Exported functions, and PyTorch's and XLA's entry points, read arguments by the same code.
"""

from __future__ import annotations

from ...native import Fn, Library, Ptr, address, assign, inline, local, native, ref
from ...native.types import Array, f32, f64, i32, i64, struct, u8, u32, u64
from ..arguments import cpython, plan
from ..arguments.arrays import DLTensor, allowed, fit
from ..arguments.cpython import Object
from ..arguments.devices import enter, leave_device
from ..arguments.plan import ArrayRecord, GroupRecord, IntegerRecord, Plan, RealRecord, Record, ValueRecord
from ..arguments.planned_calls import following, guards_hold
from ..arguments.process import process

NONE = 0
INT = 1
BOOL = 2
FLOAT = 3
OPAQUE = 4
DL_TENSOR = 7
TENSOR = 70
ARRAY = 71
LIST = 75
"""TVM-FFI's type indices."""


@struct
class Argument:
    """TVMFFIAny."""

    type: i32
    length: u32
    value: u64


@struct
class TensorObject:
    """TVM-FFI's object of a tensor."""

    head: Array[u64, 3]
    tensor: DLTensor


@struct
class ArrayObject:
    """TVM-FFI's object of an array or list."""

    head: Array[u64, 3]
    elements: Ptr[Argument]
    count: i64


@struct
class FunctionObject:
    """TVM-FFI's object of a function."""

    head: Array[u64, 3]
    call: Fn[[Ptr, Ptr[Argument], i32, Ptr[Argument]], i32]


@struct
class FunctionHandle:
    """The handle of a compiled function, a `bytes` object."""

    plan: Ptr[Plan]
    """Null if Python takes every call."""
    python: Ptr[FunctionObject]
    """Takes the same arguments in Python."""
    report: Ptr[FunctionObject]
    """Takes what compiled code returned, and raises its error."""
    stream: Fn[[i32, i32], u64]
    """Returns the stream that the caller's framework works on, given a device's type and number."""


tvm_ffi_library: Library = Library("tvm_ffi", prefix="kiln_")


@native
def read_tensor(argument: Ptr[Argument]) -> Ptr[DLTensor]:
    """Return the tensor of an argument, or null if it is no tensor."""
    if argument.type == TENSOR:
        return ref(Ptr[TensorObject](Ptr(argument.value))).tensor
    if argument.type == DL_TENSOR:
        return Ptr[DLTensor](Ptr(argument.value))
    return None


@native
def take_tensor(record: Ptr[ArrayRecord], argument: Ptr[Argument], place: Ptr[u64]) -> bool:
    """Read a tensor or pointer into its slots. Returns whether it matches its record."""
    if record.dlpack == plan.NO_ARRAY and (argument.type == OPAQUE or argument.type == INT):
        place[0] = argument.value
        return argument.value & record.alignment == 0
    tensor = read_tensor(argument)
    compact = local(i64, plan.MAX_RANK)
    if tensor == None:
        return False
    rank = i64(tensor.rank)
    if i64(tensor.type) != record.dlpack or rank != record.rank or not allowed(record, False, u64(tensor.device)):
        return False
    strides = tensor.strides
    if strides == None:
        strides = Ptr[i64](compact)
        step = i64(1)
        for number in range(rank):
            mode = rank - 1 - number
            compact[mode] = step
            step *= tensor.shape[mode]
    return fit(record, tensor.data + tensor.offset, tensor.shape, strides, place)


@native
def take_integer(record: Ptr[IntegerRecord], argument: Ptr[Argument], place: Ptr[i64]) -> bool:
    """Read an integer into its slot. Returns whether it matches its record."""
    kind = argument.type
    number = i64(argument.value)
    bit = i64(plan.INT) if kind == INT else i64(plan.BOOL) if kind == BOOL else i64(0)
    if record.types & bit == 0 or number < record.least or number > record.greatest:
        return False
    if record.hole != 0 and number == i64(i32(number)):
        return False
    place[0] = number
    return True


@native
def take_real(record: Ptr[RealRecord], argument: Ptr[Argument], place: Ptr[u64]) -> bool:
    """Read a float into its slot. Returns whether it matches its record. One too large for 32 bits does not."""
    kind = argument.type
    bit = i64(plan.FLOAT) if kind == FLOAT else i64(plan.INT) if kind == INT else i64(0)
    if record.types & bit == 0:
        return False
    number = ref(argument[0]).value
    wide = Ptr[f64](number)[0] if kind == FLOAT else f64(i64(argument.value))
    if record.bytes != 4:
        Ptr[f64](place)[0] = wide
        return True
    short = f32(wide)
    if short - short != 0 and wide - wide == 0:
        return False
    place[0] = 0
    Ptr[f32](place)[0] = short
    return True


@native
def take(record: Ptr[Record], argument: Ptr[Argument], slots: Ptr) -> bool:
    """Read an argument into its slots. Returns whether it matches its record."""
    kind = record.kind
    place = Ptr[u64](slots + record.slot)
    if kind == plan.ARRAY:
        return take_tensor(Ptr[ArrayRecord](record), argument, place)
    if kind == plan.INTEGER:
        return take_integer(Ptr[IntegerRecord](record), argument, Ptr[i64](place))
    if kind == plan.REAL:
        return take_real(Ptr[RealRecord](record), argument, place)
    if kind == plan.STREAM:
        place[0] = argument.value
        return argument.type == OPAQUE
    if kind == plan.SAME:
        return is_same(Ptr[Object](Ptr[ValueRecord](record).value), argument)
    if kind == plan.NUMBER:
        return argument.type == INT and i64(argument.value) == Ptr[ValueRecord](record).value
    return kind == plan.GROUP and take_group(Ptr[GroupRecord](record), argument, slots)


@native
def is_same(value: Ptr[Object], argument: Ptr[Argument]) -> bool:
    """Return whether an argument is the object known while tracing: None, True or False."""
    if argument.type == NONE:
        return value == process.place.none
    return argument.type == BOOL and value == (process.place.true if argument.value != 0 else process.place.false)


@native
def take_group(record: Ptr[GroupRecord], argument: Ptr[Argument], slots: Ptr) -> bool:
    """Read the elements of an array or list. Returns whether they match."""
    if argument.type != ARRAY and argument.type != LIST:
        return False
    array = Ptr[ArrayObject](Ptr(argument.value))
    element = record.elements
    if array.count != record.count:
        return False
    for number in range(record.count):
        if not take(element, array.elements + number, slots):
            return False
        element = following(element)
    return True


@native
def take_all(handle: Ptr[FunctionHandle], arguments: Ptr[Argument], count: i64, slots: Ptr) -> bool:
    """Fill the slots of a call. Returns whether its arguments match the plan."""
    header = handle.plan
    record = header.records
    if count != header.count:
        return False
    for number in range(header.record_count):
        if record.kind == plan.AMBIENT:
            tensor = read_tensor(arguments + Ptr[ValueRecord](record).value)
            if tensor == None:
                return False
            stream = u64(0)
            if tensor.device != plan.CPU:
                stream = handle.stream(i32(tensor.device), i32(tensor.device_number))
            Ptr[u64](slots + record.slot)[0] = stream
        else:
            if not take(record, arguments + number, slots):
                return False
        record = following(record)
    return True


@native
def valid(header: Ptr[Plan]) -> bool:
    """Return whether the guards of the plan hold; they read Python's objects."""
    if header.guards.count == 0:
        return True
    state = cpython.PyGILState_Ensure()
    hold = guards_hold(header.guards)
    cpython.PyGILState_Release(state)
    return hold


@native
def write_result(header: Ptr[Plan], slots: Ptr, result: Ptr[Argument]) -> None:
    """Write the result of a call."""
    kind = header.result & 0xFF
    place = slots + header.result_at
    if kind == plan.NO_RESULT:
        return
    bits = Ptr[u64](place)[0]
    wide = local(f64)
    if kind == plan.REAL32 or kind == plan.REAL64:
        wide[0] = f64(Ptr[f32](place)[0]) if kind == plan.REAL32 else Ptr[f64](place)[0]
        assign(result, type=FLOAT, value=Ptr[u64](wide)[0])
    elif kind == plan.TRUTH:
        assign(result, type=BOOL, value=bits & 1)
    else:
        above = (64 - 8 * (header.result >> 8)) & 63  # bits above the bytes of an integer are undefined
        raised = bits << u64(above)
        assign(result, type=INT, value=u64(i64(raised) >> above) if kind == plan.SIGNED else raised >> u64(above))


@inline
def pass_on(function, arguments, count, result):
    """Let another function take a call."""
    return function.call(Ptr(function), arguments, count, result)


@tvm_ffi_library.export
def call_by_tvm_ffi(handle: Ptr[Object], arguments: Ptr[Argument], count: i32, result: Ptr[Argument]) -> i32:
    """Call a compiled function. Returns 0, or -1 with the error in TVM-FFI's place."""
    about = Ptr[FunctionHandle](Ptr(handle) + plan.BYTES_DATA)
    header = about.plan
    if header == None:
        return pass_on(about.python, arguments, count, result)
    slots = Ptr(local(u8, header.slots_bytes))
    if not valid(header) or not take_all(about, arguments, i64(count), slots):
        return pass_on(about.python, arguments, count, result)
    entered = enter(header, slots)
    record = header.entry(slots)
    leave_device(entered)
    if record != None:
        report = local(Argument)
        assign(report, type=INT, length=0, value=address(record))
        status = pass_on(about.report, report, i32(1), result)
        if status != 0:
            return status
    write_result(header, slots, result)
    return 0
