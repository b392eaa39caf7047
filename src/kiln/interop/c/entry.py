# pyright: reportReturnType=false
"""What an exported object does when one of its functions is called: read the arguments, run the code, tell what failed.

The arguments come from C (an array of pointers to them), as the slots that compiled code takes, or from a framework (`arguments.py`). All that is
particular to a function is in a `Function`, which Python writes into the object; the code here is the same in all.
"""

from __future__ import annotations

from ...native import (
    Array,
    Fn,
    Library,
    Ptr,
    address,
    atomic_load,
    compare_exchange,
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
from ...targets.host.call_context import FAULT, MEMORY_FAULT, TEXT, Context
from ...targets.host.exported import ILLEGAL_ADDRESS, LAUNCH_FAILED, REFUSED, RULES, Code
from ...targets.host.libc import free, malloc, memcpy, pthread_self, write
from ...targets.host.texts import Text, begin, put, put_form, put_number
from ..arguments import plan
from ..arguments.plan import ArrayRecord, GroupRecord, IntegerRecord, Plan, RealRecord, Record
from ..arguments.planned_calls import following

ANYTHING = 0
"""The kind of a record of what was compiled in: no more is known of it here."""
ROOM = 1024
"""Bytes of an error's text."""
WRONG_COUNT = -1000
"""The status where there are too few or too many arguments; -1 less its number is that of an argument that does not fit."""


@struct
class Function:
    """An exported function."""

    plan: Ptr[Plan]
    """With neither names nor anything of Python's."""
    full_plan: Ptr[Plan]
    """Of calls that pass None, too: those of frameworks."""
    names: Ptr[Ptr]
    full_names: Ptr[Ptr]
    signature: Ptr
    code: Ptr[Code]
    """What the host runs; null: nothing."""
    module: Ptr
    """What a GPU's target loads, and the functions that follow are its own; null: nothing."""
    choose: Fn[[Ptr, Ptr[Text], Ptr[i32]], Ptr[Code]]
    unload: Fn[[Ptr], i32]
    explain: Fn[[Ptr[Text], i32], None]
    assertion: Fn[[Ptr, Ptr[Text]], bool]
    enter: Fn[[i32, Ptr[Text]], i32]
    leave: Fn[[], None]
    has: Fn[[u64], bool]
    """Whether memory is a GPU's; of none, whether there is a GPU."""
    fail: Fn[[Ptr, Ptr], None]
    """TVM-FFI's functions, once they were looked for (`tvm_entry.py`)."""
    stream: Fn[[i32, i32], u64]
    make_text: Fn[[Ptr, Ptr], i32]
    torch: Ptr
    """What PyTorch is told of it (`torch_entry.py`)."""
    xla: Ptr
    """How XLA passes arguments (`xla_entry.py`)."""


@struct
class CModule:
    """What C programs hold of a function."""

    function: Ptr


entry = Library("aot", prefix="kiln_aot_", passes=1, opt=1, small=True)


# --- what went wrong -------------------------------------------------------------------------------------------------


@entry.export
def say(said: Ptr[Text], words: Ptr) -> None:
    """Append a text. Entry points call it rather than contain its code."""
    put(said, words)


@entry.export
def say_integer(said: Ptr[Text], number: i64) -> None:
    put_number(said, number)


@entry.export
def name_argument(function: Ptr[Function], names: Ptr[Ptr], number: i64, said: Ptr[Text]) -> None:
    put(said, text("argument "))
    put_number(said, number + 1)
    put(said, text(" ("))
    put(said, names[number])
    put(said, text(") of "))
    put(said, function.signature)
    put(said, text(": "))


@entry.export
def say_number(said: Ptr[Text], what: Ptr, mode: i64, found: i64) -> None:
    """For example: its extent 0 is 126, expected"""
    put(said, what)
    if mode >= 0:
        put(said, text(" "))
        put_number(said, mode)
    put(said, text(" is "))
    put_number(said, found)
    put(said, text(", expected "))


@entry.export
def say_leaf(said: Ptr[Text], what: Ptr, mode: i64, found: i64, kind: i64, number: i64) -> None:
    say_number(said, what, mode, found)
    if kind == plan.STATIC:
        put_number(said, number)
    elif found < 0 or number == 1:
        put(said, text("0 to 2^63 - 1") if kind == plan.DYNAMIC64 else text("0 to 2^31 - 1"))
    else:
        put(said, text("a multiple of "))
        put_number(said, number)


@native
def bad_leaf(kind: i64, number: i64, found: i64) -> bool:
    if kind == plan.STATIC:
        return found != number
    if found < 0 or (kind == plan.DYNAMIC32 and found > 0x7FFFFFFF):
        return True
    return number > 1 and found % number != 0


@native
def say_rule(said: Ptr[Text], rule: Ptr[u8], mode: i64, value: i64) -> None:
    numbers, count = local(i64, 8), i64(0)
    while rule[count] != ord("|") and count < 8:
        numbers[count] = mode if rule[count] == ord("m") else value
        count += 1
    put_form(said, Ptr(rule) + (count + 1), numbers)


@native
def tell_report(function: Ptr[Function], code: Ptr[Code], record: Ptr[Context], said: Ptr[Text]) -> i32:
    """Read and free what the code reported: print its text, and say what failed; its status."""
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
            put(said, text("memory that is not there was accessed"))
        elif record.details != None or record.stop != 0:
            status = i32(LAUNCH_FAILED)
            put(said, text("threads of a kernel wait for ever, or it was stopped"))
            free(record.details)
        elif site.kind == REFUSED:
            status = i32(numbers[0])
            if not function.assertion(code, said):
                put(said, site.form)
                function.explain(said, status)
        elif site.kind == RULES:
            put(said, site.form)
            if numbers[0] >= 1 and numbers[0] <= site.rule_count:
                say_rule(said, Ptr[u8](site.rules[numbers[0] - 1]), numbers[1], numbers[2])
        else:
            put_form(said, site.form, numbers)
            if site.kernel != None:
                put(said, text(" (kernel "))
                put(said, site.kernel)
                for axis in range(3):
                    put(said, text(", block (") if axis == 0 else text(", "))
                    put_number(said, i64(record.block[axis]))
                for axis in range(3):
                    put(said, text("), thread (") if axis == 0 else text(", "))
                    put_number(said, i64(record.thread[axis]))
                put(said, text("))"))
    free(record)
    return status


# --- running ---------------------------------------------------------------------------------------------------------


HOST, GPU = 1, 2
"""Where the tensors of a call are; 0: it is not known."""


@native
def is_for_gpu(function: Ptr[Function], slots: Ptr, where: i32) -> bool:
    """Where there is code for the host and for GPUs, the memory of the first tensor decides."""
    if function.code == None or function.module == None:
        return function.code == None
    if where != 0:
        return where == GPU
    record, header, found = function.plan.records, function.plan, u64(0)
    for _ in range(header.record_count):
        if record.kind == plan.ARRAY and found == 0:
            found = Ptr[u64](slots + record.slot)[0]
        record = following(record)
    return function.has(found)


@entry.export
def run(function: Ptr[Function], slots: Ptr, where: i32, said: Ptr[Text]) -> i32:
    """Run the code on slots: 0, or a status, and what there is to say."""
    code = function.code
    if is_for_gpu(function, slots, where):
        status = local(i32)
        status[0] = 0
        code = function.choose(function.module, said, status)
        if code == None:
            return status[0]
    record = code.entry(slots)
    if record == None:
        return 0
    return tell_report(function, code, Ptr[Context](record), said)


@struct
class Told:
    """What a thread was told of its last call that failed. Threads have one each, which stay: others may be looking for theirs."""

    next: Ptr
    thread: u64
    text: Array[u8, ROOM]


told = entry.variable("told", u64)


@entry.export
def last_error(function: Ptr[Function], module: Ptr) -> Ptr:
    """Where the text of the last call that failed in this thread is, of whichever function of the file; null: there is no memory.

    A thread that begins when another has ended may have its number, and finds its text until a call of its own fails."""
    first, thread = atomic_load(told.place, "acquire"), pthread_self()
    each = Ptr[Told](Ptr(first))
    while each != None:
        if each.thread == thread:
            return Ptr(ref(each).text)
        each = Ptr[Told](each.next)
    each = Ptr[Told](malloc(size_of(Told)))
    if each == None:
        return None
    each.thread = thread
    each.text[0] = 0
    done = False
    while not done:
        each.next = Ptr(first)
        first, done = compare_exchange(told.place, first, address(each))
    return Ptr(ref(each).text)


@entry.export
def keep(said: Ptr[Text]) -> Ptr:
    """Leave a text for who asks for it: where it is now."""
    place = last_error(None, None)
    if place == None:
        return text("there is no memory for the text of the error")
    memcpy(place, said.memory, ROOM)
    return place


# --- calls from C ----------------------------------------------------------------------------------------------------


@native
def take_struct(record: Ptr[ArrayRecord], given: Ptr, place: Ptr[u64], said: Ptr[Text]) -> bool:
    """A tensor as C's structure of its address and its dynamic extents and strides."""
    where = Ptr[u64](given)[0]
    place[0] = where
    if where & record.alignment != 0:
        say_number(said, text("its address modulo the alignment"), -1, i64(where & record.alignment))
        put(said, text("0, a multiple of "))
        put_number(said, i64(record.alignment) + 1)
        return False
    offset, out, leaf = i64(8), place + 1, record.leaves
    for number in range(2 * record.rank):
        if leaf.kind != plan.STATIC:
            found = i64(0)
            if leaf.kind == plan.DYNAMIC64:
                offset = (offset + 7) & -8
                found = Ptr[i64](given + offset)[0]
                offset += 8
            else:
                found = i64(Ptr[i32](given + offset)[0])
                offset += 4
            if bad_leaf(leaf.kind, leaf.number, found):
                is_extent = number < record.rank
                what = text("its extent") if is_extent else text("its stride")
                mode = number if is_extent else number - record.rank
                say_leaf(said, what, mode, found, leaf.kind, leaf.number)
                return False
            out[0] = u64(found)
            out += 1
        leaf += 1
    return True


@native
def take_bytes(bytes_: i64, given: Ptr, place: Ptr[u64]) -> bool:
    place[0] = 0
    memcpy(place, given, bytes_)
    return True


@native
def take_numbers(record: Ptr[GroupRecord], given: Ptr, slots: Ptr) -> Ptr:
    """Numbers of one type, one after the other; where they end."""
    element, at = record.elements, given
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
    if record.kind == plan.INTEGER:
        return i64(address(Ptr[IntegerRecord](record).typed))
    return Ptr[RealRecord](record).bytes


@native
def take_from_c(record: Ptr[Record], given: Ptr, slots: Ptr, said: Ptr[Text]) -> bool:
    kind, place = record.kind, Ptr[u64](slots + record.slot)
    if given == None:
        put(said, text("its address is null"))
        return False
    if kind == plan.ARRAY:
        return take_struct(Ptr[ArrayRecord](record), given, place, said)
    if kind == plan.GROUP:
        take_numbers(Ptr[GroupRecord](record), given, slots)
        return True
    if kind == plan.STREAM:
        return take_bytes(8, given, place)
    return take_bytes(number_bytes(record), given, place)


@entry.export
def call(function: Ptr[Function], arguments: Ptr[Ptr], count: i64) -> i32:
    """Call with pointers to the arguments: 0, a status of the driver, or a negative number for an argument that does not fit."""
    said, memory = local(Text), local(u8, ROOM)
    begin(said, memory, ROOM)
    header = function.plan
    slots, record, status = Ptr(local(u8, header.slots_bytes)), header.records, i32(0)
    if count != header.count:
        put(said, function.signature)
        say_number(said, text(": the number of arguments"), -1, count)
        put_number(said, header.count)
        status = i32(WRONG_COUNT)
    else:
        for number in range(header.record_count):
            if record.kind == plan.AMBIENT:
                Ptr[u64](slots + record.slot)[0] = 0
            else:
                if not take_from_c(record, arguments[number], slots, said):
                    problem, named = local(Text), local(u8, ROOM)
                    begin(problem, named, ROOM)
                    name_argument(function, function.names, number, problem)
                    put(problem, memory)
                    keep(problem)
                    return i32(-1 - number)
            record = following(record)
        return call_taken(function, slots)
    keep(said)
    return status


@entry.export
def call_taken(function: Ptr[Function], slots: Ptr) -> i32:
    """The same with arguments that fit, in their slots: 0, or a status."""
    said, memory = local(Text), local(u8, ROOM)
    begin(said, memory, ROOM)
    status = run(function, slots, 0, said)
    if status != 0:
        keep(said)
    return status


@entry.export
def packed(function: Ptr[Function], arguments: Ptr[Ptr], count: i32) -> i32:
    """The same; one more pointer is to where the status goes."""
    status = call(function, arguments, i64(count) - 1)
    if count > 0 and arguments[count - 1] != None:
        Ptr[i32](arguments[count - 1])[0] = status
    return status


@struct
class Failure:
    """What a call with slots tells of what failed; who gets it frees it."""

    status: i64
    text: Array[u8, ROOM]


@entry.export
def call_slots(function: Ptr[Function], slots: Ptr) -> Ptr:
    """Call with the slots themselves, as compiled code is called: null, or a `Failure`."""
    said, memory = local(Text), local(u8, ROOM)
    begin(said, memory, ROOM)
    status = run(function, slots, 0, said)
    if status == 0:
        return None
    told = Ptr[Failure](malloc(size_of(Failure)))
    if told != None:
        told.status = i64(status)
        memcpy(ref(told).text, memory, ROOM)
    return told


@entry.export
def load(function: Ptr[Function], module: Ptr[CModule]) -> i32:
    """Load what there is to load, for the current device."""
    if module != None:
        module.function = function
    if function.module == None:
        return 0
    if function.code != None:
        if not function.has(0):
            return 0  # the host serves
    said, memory, status = local(Text), local(u8, ROOM), local(i32)
    begin(said, memory, ROOM)
    status[0] = 0
    if function.choose(function.module, said, status) == None:
        keep(said)
    return status[0]


@entry.export
def unload(function: Ptr[Function], module: Ptr[CModule]) -> i32:
    """Give it back; a later call loads it again."""
    if module != None:
        module.function = None
    if function.module == None:
        return 0
    return function.unload(function.module)


# --- in place of parts that need a process of Kiln's -----------------------------------------------------------------

unguarded = Library("unguarded", prefix="kiln_cpu_", passes=0, opt=0)


@unguarded.export
def guarded(called: Fn[[Ptr], None], argument: Ptr, name: Ptr, caught: Ptr) -> i32:
    """Call a function. Signals are the program's own affair: an access outside memory ends it, as it would in C."""
    called(argument)
    return 0
