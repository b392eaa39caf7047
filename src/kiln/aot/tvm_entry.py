# pyright: reportReturnType=false
"""What an exported object does when TVM-FFI calls one of its functions, as `entry.py` for C.

Arguments are read by the code that compiled functions of this process have for it (`calls/caller/tvm_ffi.py`); there Python says what
does not fit, here native code does.
"""

from __future__ import annotations

from ..calls import plan
from ..calls.caller.arrays import DLTensor
from ..calls.caller.plans import following
from ..calls.caller.tvm_ffi import (
    ARRAY,
    BOOL,
    INT,
    LIST,
    NO_ARRAY,
    NONE,
    OPAQUE,
    Argument,
    ArrayObject,
    give,
    read_tensor,
    take_integer,
    take_real,
    take_tensor,
)
from ..calls.plan import ArrayRecord, GroupRecord, IntegerRecord, RealRecord, Record, ValueRecord
from ..native import Array, Library, Ptr, i32, i64, inline, local, native, struct, text, u8, u64
from ..targets.host.exported import ARGUMENTS_DISAGREE
from ..targets.host.texts import Text, begin, put, put_form, put_number
from .entry import ANYTHING, ROOM, Function, bad_leaf, keep, name_argument, run, say_leaf, say_number

SHAPE = 69
"""TVM-FFI's type of shapes."""


@struct
class ShapeObject:
    head: Array[u64, 3]
    extents: Ptr[i64]
    count: i64


tvm_entry = Library("aot_tvm_ffi", prefix="kiln_aot_", passes=1, opt=1)


@native
def put_type(said: Ptr[Text], found: i64) -> None:
    numbers = local(i64, 3)
    numbers[0] = found & 255
    numbers[1] = (found >> 8) & 255
    numbers[2] = (found >> 16) & 0xFFFF
    put_form(said, text("DLPack's type code %d with %d bits, %d lanes"), numbers)


@native
def explain_tensor(record: Ptr[ArrayRecord], tensor: Ptr[DLTensor], said: Ptr[Text]) -> None:
    """Say why a tensor does not fit."""
    rank = i64(tensor.rank)
    if i64(tensor.type) != record.dlpack:
        put_type(said, i64(tensor.type))
        put(said, text(", expected "))
        put_type(said, record.dlpack)
        return
    if rank != record.rank:
        say_number(said, text("its rank"), -1, rank)
        put_number(said, record.rank)
        return
    if tensor.device >= 64 or (record.devices >> u64(tensor.device)) & 1 == 0:
        say_number(said, text("its DLPack device type"), -1, i64(tensor.device))
        put(said, text("a CUDA device (2)") if record.devices >> plan.CUDA & 1 != 0 else text("the host (1)"))
        return
    where = tensor.data + tensor.offset
    if where & record.alignment != 0:
        say_number(said, text("its address modulo the alignment"), -1, i64(where & record.alignment))
        put(said, text("0, a multiple of "))
        put_number(said, i64(record.alignment) + 1)
        return
    for mode in range(rank):
        leaf = record.leaves + mode
        if bad_leaf(leaf.kind, leaf.number, tensor.shape[mode]):
            say_leaf(said, text("its extent"), mode, tensor.shape[mode], leaf.kind, leaf.number)
            return
    if tensor.strides != None:
        for mode in range(rank):
            leaf = record.leaves + (rank + mode)
            if tensor.shape[mode] > 1 and bad_leaf(leaf.kind, leaf.number, tensor.strides[mode]):
                say_leaf(said, text("its stride"), mode, tensor.strides[mode], leaf.kind, leaf.number)
                return
    put(said, text("its layout is not the one that was compiled for, or it has no elements"))


@native
def take_any(record: Ptr[Record], given: Ptr[Argument], slots: Ptr, said: Ptr[Text]) -> i32:
    """0, or 1 for an argument of another kind, 2 for one that does not fit."""
    kind, place = record.kind, Ptr[u64](slots + record.slot)
    if kind == plan.ARRAY:
        array = Ptr[ArrayRecord](record)
        if take_tensor(array, given, place):
            return 0
        tensor = read_tensor(given)
        if tensor == None:
            say_number(said, text("its TVM-FFI type"), -1, i64(given.type))
            put(said, text("a pointer (4)") if array.dlpack == NO_ARRAY else text("a tensor (70, 7)"))
            return 1
        explain_tensor(array, tensor, said)
        return 2
    if kind == plan.INTEGER:
        if take_integer(Ptr[IntegerRecord](record), given, Ptr[i64](place)):
            return 0
        if given.type == INT or given.type == BOOL:
            say_number(said, text("it"), -1, i64(given.value))
            put_number(said, Ptr[IntegerRecord](record).least)
            put(said, text(" to "))
            put_number(said, Ptr[IntegerRecord](record).greatest)
            return 2
    elif kind == plan.REAL:
        if take_real(Ptr[RealRecord](record), given, place):
            return 0
    elif kind == plan.STREAM:
        if given.type == OPAQUE or given.type == NONE:
            place[0] = given.value if given.type == OPAQUE else u64(0)
            return 0
    elif kind == plan.NUMBER:
        if given.type == INT and i64(given.value) == Ptr[ValueRecord](record).value:
            return 0
    elif kind == plan.SAME:
        if given.type == NONE:
            return 0
    elif kind == ANYTHING:
        return 0
    elif kind == plan.GROUP:
        return take_tuple(Ptr[GroupRecord](record), given, slots, said)
    say_number(said, text("its TVM-FFI type"), -1, i64(given.type))
    put(said, text("another (1 int, 2 bool, 3 float, 4 pointer, 71 array)"))
    return 1


@native
def take_tuple(record: Ptr[GroupRecord], given: Ptr[Argument], slots: Ptr, said: Ptr[Text]) -> i32:
    if given.type != ARRAY and given.type != LIST and given.type != SHAPE:
        say_number(said, text("its TVM-FFI type"), -1, i64(given.type))
        put(said, text("a tuple, a list or a shape"))
        return 1
    array, element = Ptr[ArrayObject](Ptr(given.value)), record.elements
    if array.count != record.count:
        say_number(said, text("its length"), -1, array.count)
        put_number(said, record.count)
        return 2
    for number in range(record.count):
        extent = local(Argument)
        each = array.elements + number
        if given.type == SHAPE:
            extent.type = INT
            extent.value = u64(Ptr[ShapeObject](array).extents[number])
            each = extent
        status = take_any(element, each, slots, said)
        if status != 0:
            return status
        element = following(element)
    return 0


@inline
def refuse(function, kind, said):
    if function.fail != None:
        function.fail(kind, said.memory)
    keep(function, said)


@tvm_entry.export
def call_by_tvm_ffi(function: Ptr[Function], arguments: Ptr[Argument], count: i32, result: Ptr[Argument]) -> i32:
    """0, or -1: the error is where TVM-FFI keeps them."""
    said, memory, header = local(Text), local(u8, ROOM), function.tvm_plan
    begin(said, memory, ROOM)
    slots, record, device = Ptr(local(u8, header.slots_bytes)), header.records, i32(-1)
    if i64(count) != header.count:
        put(said, function.signature)
        say_number(said, text(": the number of arguments"), -1, i64(count))
        put_number(said, header.count)
        refuse(function, text("TypeError"), said)
        return -1
    for number in range(header.record_count):
        if record.kind == plan.AMBIENT:
            tensor, stream = read_tensor(arguments + Ptr[ValueRecord](record).value), u64(0)
            if tensor != None and tensor.device != plan.CPU and function.stream != None:
                stream = function.stream(i32(tensor.device), i32(tensor.device_number))
            Ptr[u64](slots + record.slot)[0] = stream
        else:
            given = arguments + number
            kind = take_any(record, given, slots, said)
            if kind != 0:
                problem, named = local(Text), local(u8, ROOM)
                begin(problem, named, ROOM)
                put(problem, text("Mismatched "))
                name_argument(function, function.tvm_names, number, problem)
                put(problem, memory)
                refuse(function, text("TypeError") if kind == 1 else text("ValueError"), problem)
                return -1
            if device < 0 and record.kind == plan.ARRAY:
                tensor = read_tensor(given)
                if tensor != None and (tensor.device == plan.CUDA or tensor.device == plan.CUDA_MANAGED):
                    device = i32(tensor.device_number)
        record = following(record)
    entered, status = i32(0), i32(0)
    if function.code == None and device >= 0:
        entered = function.enter(device, said)
    if entered < 0:
        status = 0 - entered
    else:
        status = run(function, slots, said)
        if entered > 0:
            function.leave()
    if status != 0:
        refuse(function, text("ValueError") if status == ARGUMENTS_DISAGREE else text("RuntimeError"), said)
        return -1
    give(header, slots, result)
    return 0
