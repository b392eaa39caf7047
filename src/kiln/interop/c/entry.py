# pyright: reportReturnType=false
"""Native code of exported objects: it runs a function, reads arguments from C, and writes the messages of errors.

Arguments come from C (an array of pointers to them), as the slots of compiled code, or from a framework
(`tvm_ffi/exported_arguments.py`). What is particular to a function is its `Function`, which Python writes into the
object; the code is the same in all.
"""

from __future__ import annotations

from ...native import Fn, Library, Ptr, address, atomic_load, compare_exchange, local, native, ref, text
from ...native.types import Array, i32, i64, size_of, struct, u8, u64
from ...targets.host.call_context import FAULT, MEMORY_FAULT, TEXT, Context
from ...targets.host.exported import ILLEGAL_ADDRESS, LAUNCH_FAILED, REFUSED, RULES, Code
from ...targets.host.libc import free, malloc, memcpy, pthread_self, write
from ...targets.host.text_buffer import Text, begin, put, put_form, put_number
from ..arguments import plan
from ..arguments.plan import ArrayRecord, GroupRecord, IntegerRecord, Plan, RealRecord, Record
from ..arguments.planned_calls import following

ANYTHING = 0
"""The kind of a record of a parameter that was compiled in: nothing is passed for it."""
ROOM = 1024
"""Bytes of the text of an error."""
WRONG_COUNT = -1000
"""The status for too few or too many arguments; -1 - n is that for argument n, if it does not match."""


@struct
class Function:
    """An exported function."""

    plan: Ptr[Plan]
    """The plan of calls from C, without names and addresses of Python."""
    full_plan: Ptr[Plan]
    """The plan of calls from frameworks, which also pass None."""
    names: Ptr[Ptr]
    full_names: Ptr[Ptr]
    signature: Ptr
    code: Ptr[Code]
    """The code for the host, or null."""
    module: Ptr
    """What the target of GPUs loads, or null; the next functions are that target's."""
    choose: Fn[[Ptr, Ptr[Text], Ptr[i32]], Ptr[Code]]
    unload: Fn[[Ptr], i32]
    explain: Fn[[Ptr[Text], i32], None]
    assertion: Fn[[Ptr, Ptr[Text]], bool]
    enter: Fn[[i32, Ptr[Text]], i32]
    leave: Fn[[], None]
    has: Fn[[u64], bool]
    """Whether memory belongs to a GPU; for null, whether there is a GPU."""
    fail: Fn[[Ptr, Ptr], None]
    """TVM-FFI's functions, once they were looked up (`tvm_ffi/exported.py`)."""
    stream: Fn[[i32, i32], u64]
    make_text: Fn[[Ptr, Ptr], i32]
    torch: Ptr
    """A `Registration` (`torch/exported.py`), or null."""
    xla: Ptr
    """An `XlaFunction` (`jax/exported.py`), or null."""


@struct
class CModule:
    """The handle of a function in C programs."""

    function: Ptr


entry: Library = Library("aot", prefix="kiln_aot_", passes=1, opt=1, small=True)


# --- messages --------------------------------------------------------------------------------------------------------


@entry.export
def say(message: Ptr[Text], words: Ptr) -> None:
    """Append a text. Entry points call it rather than contain its code."""
    put(message, words)


@entry.export
def say_integer(message: Ptr[Text], number: i64) -> None:
    """Append an integer."""
    put_number(message, number)


@entry.export
def name_argument(function: Ptr[Function], names: Ptr[Ptr], number: i64, message: Ptr[Text]) -> None:
    """Begin a message about an argument: argument 1 (x) of scale(...):"""
    put(message, text("argument "))
    put_number(message, number + 1)
    put(message, text(" ("))
    put(message, names[number])
    put(message, text(") of "))
    put(message, function.signature)
    put(message, text(": "))


@entry.export
def say_number(message: Ptr[Text], what: Ptr, mode: i64, number: i64) -> None:
    """Say, for example: its extent 0 is 126, expected"""
    put(message, what)
    if mode >= 0:
        put(message, text(" "))
        put_number(message, mode)
    put(message, text(" is "))
    put_number(message, number)
    put(message, text(", expected "))


@entry.export
def say_leaf(message: Ptr[Text], what: Ptr, mode: i64, leaf: i64, kind: i64, number: i64) -> None:
    """Say that an extent or stride is not as a leaf demands."""
    say_number(message, what, mode, leaf)
    if kind == plan.STATIC:
        put_number(message, number)
    elif leaf < 0 or number == 1:
        put(message, text("0 to 2^63 - 1") if kind == plan.DYNAMIC64 else text("0 to 2^31 - 1"))
    else:
        put(message, text("a multiple of "))
        put_number(message, number)


@native
def bad_leaf(kind: i64, number: i64, leaf: i64) -> bool:
    """Return whether a leaf rejects an extent or stride."""
    if kind == plan.STATIC:
        return leaf != number
    if leaf < 0 or (kind == plan.DYNAMIC32 and leaf > 0x7FFFFFFF):
        return True
    return number > 1 and leaf % number != 0


@native
def say_rule(message: Ptr[Text], rule: Ptr[u8], mode: i64, value: i64) -> None:
    """Say which rule of tensor maps is broken: the letters before the bar choose its numbers."""
    numbers = local(i64, 8)
    count = i64(0)
    while rule[count] != ord("|") and count < 8:
        numbers[count] = mode if rule[count] == ord("m") else value
        count += 1
    put_form(message, Ptr(rule) + (count + 1), numbers)


@native
def read_report(function: Ptr[Function], code: Ptr[Code], record: Ptr[Context], message: Ptr[Text]) -> i32:
    """Read and free the report of compiled code. Returns the status.

    Prints the text of the report, and writes the message of an error.
    """
    status = i32(0)
    if record.status & TEXT != 0 and record.text != None:
        write(1, record.text, record.text_size)
        free(record.text)
    if record.status & FAULT != 0:
        site = code.sites + (record.site & (MEMORY_FAULT - 1))
        status = site.status
        numbers = Ptr[i64](ref(record).arguments)
        if record.site & MEMORY_FAULT != 0:
            status = i32(ILLEGAL_ADDRESS)
            put(message, text("memory that is not there was accessed"))
        elif record.details != None or record.stop != 0:
            status = i32(LAUNCH_FAILED)
            put(message, text("threads of a kernel wait for ever, or it was stopped"))
            free(record.details)
        elif site.kind == REFUSED:
            status = i32(numbers[0])
            if not function.assertion(code, message):
                put(message, site.form)
                function.explain(message, status)
        elif site.kind == RULES:
            put(message, site.form)
            if numbers[0] >= 1 and numbers[0] <= site.rule_count:
                say_rule(message, Ptr[u8](site.rules[numbers[0] - 1]), numbers[1], numbers[2])
        else:
            put_form(message, site.form, numbers)
            if site.kernel != None:
                put(message, text(" (kernel "))
                put(message, site.kernel)
                for axis in range(3):
                    put(message, text(", block (") if axis == 0 else text(", "))
                    put_number(message, i64(record.block[axis]))
                for axis in range(3):
                    put(message, text("), thread (") if axis == 0 else text(", "))
                    put_number(message, i64(record.thread[axis]))
                put(message, text("))"))
    free(record)
    return status


# --- running ---------------------------------------------------------------------------------------------------------


HOST = 1
GPU = 2
"""The memory that the tensors of a call are in; 0 if it is not known."""


@native
def is_for_gpu(function: Ptr[Function], slots: Ptr, where: i32) -> bool:
    """Return whether a call runs on a GPU: with code for both, the memory of the first tensor decides."""
    if function.code == None or function.module == None:
        return function.code == None
    if where != 0:
        return where == GPU
    record = function.plan.records
    header = function.plan
    mask = u64(0)
    for _ in range(header.record_count):
        if record.kind == plan.ARRAY and mask == 0:
            mask = Ptr[u64](slots + record.slot)[0]
        record = following(record)
    return function.has(mask)


@entry.export
def run(function: Ptr[Function], slots: Ptr, where: i32, message: Ptr[Text]) -> i32:
    """Run the code on slots. Returns 0, or a status after writing a message."""
    code = function.code
    if is_for_gpu(function, slots, where):
        status = local(i32)
        status[0] = 0
        code = function.choose(function.module, message, status)
        if code == None:
            return status[0]
    record = code.entry(slots)
    if record == None:
        return 0
    return read_report(function, code, Ptr[Context](record), message)


@struct
class ThreadError:
    """The message of the last failed call of a thread. Each thread has one, which stays, as others walk the list."""

    next: Ptr
    thread: u64
    text: Array[u8, ROOM]


errors = entry.variable("errors", u64)
"""The list of messages."""


@entry.export
def last_error(function: Ptr[Function], module: Ptr) -> Ptr:
    """Return the message of the last failed call of this thread, of any function in the file; null without memory.

    A thread may have the number of one that ended, and then finds its message until a call of its own fails.
    """
    first = atomic_load(errors.place, "acquire")
    thread = pthread_self()
    each = Ptr[ThreadError](Ptr(first))
    while each != None:
        if each.thread == thread:
            return Ptr(ref(each).text)
        each = Ptr[ThreadError](each.next)
    each = Ptr[ThreadError](malloc(size_of(ThreadError)))
    if each == None:
        return None
    each.thread = thread
    each.text[0] = 0
    done = False
    while not done:
        each.next = Ptr(first)
        first, done = compare_exchange(errors.place, first, address(each))
    return Ptr(ref(each).text)


@entry.export
def keep(message: Ptr[Text]) -> Ptr:
    """Keep a message for `last_error`. Returns where it is."""
    place = last_error(None, None)
    if place == None:
        return text("there is no memory for the text of the error")
    memcpy(place, message.memory, ROOM)
    return place


# --- calls from C ----------------------------------------------------------------------------------------------------


@native
def take_struct(record: Ptr[ArrayRecord], argument: Ptr, place: Ptr[u64], message: Ptr[Text]) -> bool:
    """Read a tensor from its C structure: address, dynamic extents, dynamic strides."""
    where = Ptr[u64](argument)[0]
    place[0] = where
    if where & record.alignment != 0:
        say_number(message, text("its address modulo the alignment"), -1, i64(where & record.alignment))
        put(message, text("0, a multiple of "))
        put_number(message, i64(record.alignment) + 1)
        return False
    offset = i64(8)
    out = place + 1
    leaf = record.leaves
    for number in range(2 * record.rank):
        if leaf.kind != plan.STATIC:
            value = i64(0)
            if leaf.kind == plan.DYNAMIC64:
                offset = (offset + 7) & -8
                value = Ptr[i64](argument + offset)[0]
                offset += 8
            else:
                value = i64(Ptr[i32](argument + offset)[0])
                offset += 4
            if bad_leaf(leaf.kind, leaf.number, value):
                is_extent = number < record.rank
                what = text("its extent") if is_extent else text("its stride")
                mode = number if is_extent else number - record.rank
                say_leaf(message, what, mode, value, leaf.kind, leaf.number)
                return False
            out[0] = u64(value)
            out += 1
        leaf += 1
    return True


@native
def take_bytes(bytes_: i64, argument: Ptr, place: Ptr[u64]) -> bool:
    """Read a number of `bytes_` bytes."""
    place[0] = 0
    memcpy(place, argument, bytes_)
    return True


@native
def take_numbers(record: Ptr[GroupRecord], argument: Ptr, slots: Ptr) -> Ptr:
    """Read numbers of one type, one after another. Returns where they end."""
    element = record.elements
    at = argument
    for _ in range(record.count):
        if element.kind == plan.GROUP:
            at = take_numbers(Ptr[GroupRecord](element), at, slots)
        elif element.kind != ANYTHING:
            bytes_ = number_bytes(element)
            take_bytes(bytes_, at, Ptr[u64](slots + element.slot))
            at = at + bytes_
        element = following(element)
    return at


@native
def number_bytes(record: Ptr[Record]) -> i64:
    """Return the bytes of a number in C."""
    if record.kind == plan.INTEGER:
        return i64(address(Ptr[IntegerRecord](record).typed))
    return Ptr[RealRecord](record).bytes


@native
def take_from_c(record: Ptr[Record], argument: Ptr, slots: Ptr, message: Ptr[Text]) -> bool:
    """Read an argument, given a pointer to it; False with a message."""
    kind = record.kind
    place = Ptr[u64](slots + record.slot)
    if argument == None:
        put(message, text("its address is null"))
        return False
    if kind == plan.ARRAY:
        return take_struct(Ptr[ArrayRecord](record), argument, place, message)
    if kind == plan.GROUP:
        take_numbers(Ptr[GroupRecord](record), argument, slots)
        return True
    if kind == plan.STREAM:
        return take_bytes(8, argument, place)
    return take_bytes(number_bytes(record), argument, place)


@entry.export
def call(function: Ptr[Function], arguments: Ptr[Ptr], count: i64) -> i32:
    """Call with pointers to the arguments.

    Returns 0, a CUresult, or a negative number if an argument does not match.
    """
    message = local(Text)
    memory = local(u8, ROOM)
    begin(message, memory, ROOM)
    header = function.plan
    slots = Ptr(local(u8, header.slots_bytes))
    record = header.records
    status = i32(0)
    if count != header.count:
        put(message, function.signature)
        say_number(message, text(": the number of arguments"), -1, count)
        put_number(message, header.count)
        status = i32(WRONG_COUNT)
    else:
        for number in range(header.record_count):
            if record.kind == plan.AMBIENT:
                Ptr[u64](slots + record.slot)[0] = 0
            else:
                if not take_from_c(record, arguments[number], slots, message):
                    problem = local(Text)
                    named = local(u8, ROOM)
                    begin(problem, named, ROOM)
                    name_argument(function, function.names, number, problem)
                    put(problem, memory)
                    keep(problem)
                    return i32(-1 - number)
            record = following(record)
        return call_taken(function, slots)
    keep(message)
    return status


@entry.export
def call_taken(function: Ptr[Function], slots: Ptr) -> i32:
    """Call with arguments that match, in their slots. Returns 0, or a status."""
    message = local(Text)
    memory = local(u8, ROOM)
    begin(message, memory, ROOM)
    status = run(function, slots, 0, message)
    if status != 0:
        keep(message)
    return status


@entry.export
def packed(function: Ptr[Function], arguments: Ptr[Ptr], count: i32) -> i32:
    """Call with pointers to the arguments and one more, to an int32_t for the status."""
    status = call(function, arguments, i64(count) - 1)
    if count > 0 and arguments[count - 1] != None:
        Ptr[i32](arguments[count - 1])[0] = status
    return status


@struct
class Failure:
    """The error of a call with slots; the caller frees it."""

    status: i64
    text: Array[u8, ROOM]


@entry.export
def call_slots(function: Ptr[Function], slots: Ptr) -> Ptr:
    """Call with the slots themselves, as compiled code is called. Returns null, or a `Failure`."""
    message = local(Text)
    memory = local(u8, ROOM)
    begin(message, memory, ROOM)
    status = run(function, slots, 0, message)
    if status == 0:
        return None
    failure = Ptr[Failure](malloc(size_of(Failure)))
    if failure != None:
        failure.status = i64(status)
        memcpy(ref(failure).text, memory, ROOM)
    return failure


@entry.export
def load(function: Ptr[Function], module: Ptr[CModule]) -> i32:
    """Load the code for the current device."""
    if module != None:
        module.function = function
    if function.module == None:
        return 0
    if function.code != None:
        if not function.has(0):
            return 0  # the host's code serves
    message = local(Text)
    memory = local(u8, ROOM)
    status = local(i32)
    begin(message, memory, ROOM)
    status[0] = 0
    if function.choose(function.module, message, status) == None:
        keep(message)
    return status[0]


@entry.export
def unload(function: Ptr[Function], module: Ptr[CModule]) -> i32:
    """Unload the code; a later call loads it again."""
    if module != None:
        module.function = None
    if function.module == None:
        return 0
    return function.unload(function.module)


# --- in place of parts that need a process with Kiln ------------------------------------------------------------------

unguarded: Library = Library("unguarded", prefix="kiln_cpu_", passes=0, opt=0)


@unguarded.export
def guarded(called: Fn[[Ptr], None], argument: Ptr, name: Ptr, caught: Ptr) -> i32:
    """Call a function. Signals are left to the program: an access outside memory ends it, as in C."""
    called(argument)
    return 0
