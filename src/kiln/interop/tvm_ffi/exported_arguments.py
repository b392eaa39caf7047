# pyright: reportReturnType=false
"""Calls of exported functions by frameworks, as `c/entry.py` for C.

Each entry point brings the arguments into TVM-FFI's form. They are read by the function's plan, with the code of
`reader.py`; where one does not match, native code writes the error that Python raises in a process with Kiln.
"""

from __future__ import annotations

from ...native import Array, Library, Ptr, assign, i32, i64, local, native, struct, text, u8, u64
from ...targets.host.exported import ARGUMENTS_DISAGREE
from ...targets.host.text_buffer import Text, begin, put_real
from ..arguments import plan
from ..arguments.arrays import DLTensor, allowed
from ..arguments.plan import ArrayRecord, GroupRecord, IntegerRecord, RealRecord, Record
from ..arguments.planned_calls import following
from ..c import entry
from ..c.entry import Function, say, say_integer, say_number
from . import reader
from .reader import INT, NONE, Argument

SHAPE = 69
"""TVM-FFI's type of shapes."""


@struct
class ShapeObject:
    """TVM-FFI's object of a shape."""

    head: Array[u64, 3]
    extents: Ptr[i64]
    count: i64


@struct
class Caller:
    """The circumstances of a call besides its arguments, and what reading the arguments finds out."""

    stream: u64
    """The stream of the caller's framework."""
    asks: i32
    """1: ask TVM-FFI for the stream."""
    enters: i32
    """1: make the GPU of the tensors current."""
    device: i32
    """The number of the first tensor's GPU, or -1."""
    where: i32
    """HOST and GPU bits of all tensors."""
    empty: i32
    """1: a tensor has no elements."""


OTHER_KIND = 1
UNFIT = 2
FAILED = 3
"""Errors of a call: an argument of another kind, one that does not match, a launch that failed."""
TYPES = (
    "int",
    "uint",
    "float",
    "pointer",
    "bfloat",
    "complex",
    "bool",
    "float8_e3m4_",
    "float8_e4m3_",
    "float8_e4m3b11fnuz_",
    "float8_e4m3fn_",
    "float8_e4m3fnuz_",
    "float8_e5m2_",
    "float8_e5m2fnuz_",
    "float8_e8m0fnu_",
    "float6_e2m3fn_",
    "float6_e3m2fn_",
    "float4_e2m1fn_",
)
"""Names of DLPack's type codes."""

KINDS = {
    NONE: "None",
    INT: "an integer",
    reader.BOOL: "a boolean",
    reader.FLOAT: "a float",
    reader.OPAQUE: "a pointer",
    reader.DL_TENSOR: "a tensor",
    reader.TENSOR: "a tensor",
    8: "a string",
    11: "a string",
    65: "a string",
    SHAPE: "a shape",
    reader.ARRAY: "a tuple",
    reader.LIST: "a list",
    78: "an integer of more than 64 bits",
}
"""Names of arguments in messages, by TVM-FFI's type indices."""

arguments: Library = Library("aot_arguments", prefix="kiln_aot_", passes=1, opt=1, small=True)


@native
def put_type(message: Ptr[Text], type_: i64) -> None:
    """Append a type, for example: float32"""
    for code, name in enumerate(TYPES):
        if type_ & 255 == code:
            say(message, text(name))
    say_integer(message, (type_ >> 8) & 255)
    if type_ >> 16 != 1:
        say(message, text(" x "))
        say_integer(message, type_ >> 16)


@native
def explain_tensor(record: Ptr[ArrayRecord], tensor: Ptr[DLTensor], message: Ptr[Text]) -> None:
    """Say why a tensor does not match."""
    rank = i64(tensor.rank)
    if i64(tensor.type) != record.dlpack:
        say(message, text("its elements are "))
        put_type(message, i64(tensor.type))
        say(message, text(", expected "))
        put_type(message, record.dlpack)
        return
    if rank != record.rank:
        say_number(message, text("its rank"), -1, rank)
        say_integer(message, record.rank)
        return
    if tensor.device >= 64 or (record.devices >> u64(tensor.device)) & 1 == 0:
        host = text("it is on the host, expected a CUDA device")
        gpu = text("it is on a GPU, expected the host")
        say(message, host if record.devices >> plan.CUDA & 1 != 0 else gpu)
        return
    where = tensor.data + tensor.offset
    if where & record.alignment != 0:
        say_number(message, text("its address modulo the alignment"), -1, i64(where & record.alignment))
        say(message, text("0, a multiple of "))
        say_integer(message, i64(record.alignment) + 1)
        return
    for mode in range(rank):
        leaf = record.leaves + mode
        if entry.bad_leaf(leaf.kind, leaf.number, tensor.shape[mode]):
            entry.say_leaf(message, text("its extent"), mode, tensor.shape[mode], leaf.kind, leaf.number)
            return
    if tensor.strides != None:
        for mode in range(rank):
            leaf = record.leaves + (rank + mode)
            matters = leaf.kind != plan.STATIC or tensor.shape[mode] > 1
            if matters and entry.bad_leaf(leaf.kind, leaf.number, tensor.strides[mode]):
                entry.say_leaf(message, text("its stride"), mode, tensor.strides[mode], leaf.kind, leaf.number)
                return
    if where == 0:
        say(message, text("its address is null, expected that of its elements"))
        return
    explain_size(record, tensor, message)


@native
def explain_size(record: Ptr[ArrayRecord], tensor: Ptr[DLTensor], message: Ptr[Text]) -> None:
    """Say that a tensor has too many elements, or that they lie too far apart, as `fit` found.

    No factor exceeds the limit.
    """
    total = i64(1)
    for mode in range(record.rank):
        if total <= record.limit:
            total *= tensor.shape[mode]
    what = text("the number of its elements")
    if record.flags & plan.UNCOUNTED != 0:
        total = i64(0)
    if total <= record.limit and tensor.strides != None:
        total = i64(0)
        for mode in range(record.rank):
            if record.leaves[record.rank + mode].kind != plan.DYNAMIC64 and total <= record.limit:
                stride = tensor.strides[mode]
                total = record.limit + 1 if stride > record.limit else total + (tensor.shape[mode] - 1) * stride
        what = text("the offset of its last element")
    say_number(message, what, -1, total)
    say(message, text("at most "))
    say_integer(message, record.limit)


@native
def say_kind(message: Ptr[Text], argument: Ptr[Argument], expected: Ptr) -> i32:
    """Say, for example: it is a string, expected a tensor"""
    say(message, text("it is "))
    is_named = False
    for kind, name in KINDS.items():
        if argument.type == kind:
            say(message, text(name))
            is_named = True
    if not is_named:
        say(message, text("of TVM-FFI's type "))
        say_integer(message, i64(argument.type))
    say(message, text(", expected "))
    say(message, expected)
    return OTHER_KIND


@native
def note_place(caller: Ptr[Caller], tensor: Ptr[DLTensor]) -> None:
    """Note the device of a tensor."""
    if tensor.device == plan.CUDA or tensor.device == plan.CUDA_MANAGED:
        caller.where |= entry.GPU
        if caller.device < 0:
            caller.device = i32(tensor.device_number)
    elif tensor.device == plan.CPU:
        caller.where |= entry.HOST


@native
def is_empty(record: Ptr[ArrayRecord], tensor: Ptr[DLTensor]) -> bool:
    """Return whether a tensor matches but for having no elements."""
    if i64(tensor.type) != record.dlpack or i64(tensor.rank) != record.rank:
        return False
    if not allowed(record, False, u64(tensor.device)):
        return False
    empty = False
    for mode in range(record.rank):
        leaf = record.leaves + mode
        if entry.bad_leaf(leaf.kind, leaf.number, tensor.shape[mode]):
            return False
        empty = empty or tensor.shape[mode] == 0
    return empty


@native
def take_any(record: Ptr[Record], argument: Ptr[Argument], slots: Ptr, caller: Ptr[Caller], message: Ptr[Text]) -> i32:
    """Read an argument into its slots. Returns 0, or the error after writing its message."""
    kind = record.kind
    place = Ptr[u64](slots + record.slot)
    if kind == plan.ARRAY:
        array = Ptr[ArrayRecord](record)
        tensor = reader.read_tensor(argument)
        if tensor != None:
            note_place(caller, tensor)
        if reader.take_tensor(array, argument, place) and (place[0] != 0 or array.dlpack == plan.NO_ARRAY):
            return 0
        if tensor != None and is_empty(array, tensor):
            caller.empty = 1
            return 0
        if tensor == None:
            return say_kind(message, argument, text("a pointer") if array.dlpack == plan.NO_ARRAY else text("a tensor"))
        explain_tensor(array, tensor, message)
        return UNFIT
    if kind == plan.INTEGER:
        if reader.take_integer(Ptr[IntegerRecord](record), argument, Ptr[i64](place)):
            return 0
        if argument.type == INT or argument.type == reader.BOOL:
            say_number(message, text("it"), -1, i64(argument.value))
            say_integer(message, Ptr[IntegerRecord](record).least)
            say(message, text(" to "))
            say_integer(message, Ptr[IntegerRecord](record).greatest)
            return UNFIT
        return say_kind(message, argument, text("an integer"))
    if kind == plan.REAL:
        if reader.take_real(Ptr[RealRecord](record), argument, place):
            return 0
        if argument.type == reader.FLOAT:
            say(message, text("it is "))
            put_real(message, i64(argument.value))
            say(message, text(", expected a number that 32 bits hold"))
            return UNFIT
        return say_kind(message, argument, text("a number"))
    if kind == plan.STREAM:
        if argument.type == reader.OPAQUE or argument.type == NONE:
            place[0] = argument.value if argument.type == reader.OPAQUE else u64(0)
            return 0
        return say_kind(message, argument, text("a stream"))
    if kind == plan.GROUP:
        return take_tuple(Ptr[GroupRecord](record), argument, slots, caller, message)
    if kind == entry.ANYTHING or (kind == plan.SAME and argument.type == NONE):
        return 0
    return say_kind(message, argument, text("None"))


@native
def take_tuple(
    record: Ptr[GroupRecord], argument: Ptr[Argument], slots: Ptr, caller: Ptr[Caller], message: Ptr[Text]
) -> i32:
    """Read the elements of a tuple, list or shape; returns as `take_any`."""
    if argument.type != reader.ARRAY and argument.type != reader.LIST and argument.type != SHAPE:
        return say_kind(message, argument, text("a tuple, a list or a shape"))
    array = Ptr[reader.ArrayObject](Ptr(argument.value))
    element = record.elements
    if array.count != record.count:
        say_number(message, text("its length"), -1, array.count)
        say_integer(message, record.count)
        return UNFIT
    for number in range(record.count):
        extent = local(Argument)
        each = array.elements + number
        if argument.type == SHAPE:
            assign(extent, type=INT, value=u64(Ptr[ShapeObject](array).extents[number]))
            each = extent
        status = take_any(element, each, slots, caller, message)
        if status != 0:
            return status
        element = following(element)
    return 0


@native
def take_all(
    function: Ptr[Function], arguments: Ptr[Argument], slots: Ptr, caller: Ptr[Caller], message: Ptr[Text]
) -> i32:
    """Fill the slots of a call. Returns 0, or the error after writing its message."""
    header = function.full_plan
    record = header.records
    for number in range(header.record_count):
        if record.kind == plan.AMBIENT:
            stream = caller.stream
            if caller.asks != 0 and caller.device >= 0 and function.stream != None:
                stream = function.stream(i32(plan.CUDA), caller.device)
            Ptr[u64](slots + record.slot)[0] = stream
        else:
            problem = local(Text)
            named = local(u8, entry.ROOM)
            begin(problem, named, entry.ROOM)
            wrong = take_any(record, arguments + number, slots, caller, problem)
            if wrong != 0:
                say(message, text("Mismatched "))
                entry.name_argument(function, function.full_names, number, message)
                say(message, named)
                return wrong
        record = following(record)
    if caller.where == entry.HOST | entry.GPU and function.code != None:
        say(message, function.signature)
        say(message, text(": some tensors are on the host and others on a GPU, expected all on one of them"))
        return UNFIT
    return 0


@arguments.export
def perform(
    function: Ptr[Function], arguments: Ptr[Argument], slots: Ptr, caller: Ptr[Caller], message: Ptr[Text]
) -> i32:
    """Call a function with as many arguments as its plan has. Returns 0, or the error after writing its message.

    A call with a tensor without elements does nothing.
    """
    assign(caller, device=-1, where=0, empty=0)
    wrong = take_all(function, arguments, slots, caller, message)
    if wrong != 0:
        return wrong
    if caller.empty != 0:
        return 0
    entered = i32(0)
    status = i32(0)
    if function.module != None and caller.enters != 0 and caller.device >= 0:
        entered = function.enter(caller.device, message)
    if entered < 0:
        return FAILED
    status = entry.run(function, slots, entry.GPU if caller.where & entry.GPU != 0 else caller.where, message)
    if entered > 0:
        function.leave()
    if status == ARGUMENTS_DISAGREE:
        return UNFIT
    return i32(FAILED) if status != 0 else i32(0)


@native
def wrong_count(function: Ptr[Function], what: Ptr, count: i64, expected: i64, message: Ptr[Text]) -> None:
    """Say, for example: scale(...): the number of arguments is 2, expected 3"""
    say(message, function.signature)
    say(message, text(": "))
    say_number(message, what, -1, count)
    say_integer(message, expected)
