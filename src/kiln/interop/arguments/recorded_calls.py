# pyright: reportReturnType=false
"""Recorded calls (`calls/program.py`): the key of a call, and repeating a program on the arrays of another.

A key is words. Each argument is told by a word that says what it is, then

    an array       element type, device and rank, address modulo 16 bytes, extents, strides
    None           nothing more
    a number       its value: an integer, or the bits of a float; True and False by their addresses
    a string       its length and bytes
    a tuple, list  how many, then its elements
    a function     code and globals by their addresses, defaults, how many cells, then what they hold
    a constant     its address: types, and objects of types that were introduced as such

Arguments with names follow those without, each after the address of its name. A float of one of the names that were
said to be numbers is told by its sign, and whether it is 0, 1 or no number: programs take its value from each call.

Last come the pairs of arrays, one of which may be written to, whose elements may have memory in common: how far apart they begin. With extents and
strides that decides it, so that what was refused, or allowed, once is so each time. Most calls have no such pair.
"""

from __future__ import annotations

from ...native import Array, Fn, Ptr, address, f32, f64, i32, i64, inline, local, native, ref, struct, u8, u64
from . import plan, program
from .arrays import DESCRIBED_RANK, TENSOR, About, describe_array, give_none, read_array, stream_of
from .cpython import (
    FREE_BEFORE,
    Object,
    Py_DecRef,
    Py_IncRef,
    PyBytes_FromStringAndSize,
    PyCell_Get,
    PyDict_GetItemWithError,
    PyErr_Clear,
    PyFloat_AsDouble,
    PyFunction_GetClosure,
    PyFunction_GetCode,
    PyFunction_GetDefaults,
    PyFunction_GetGlobals,
    PyFunction_GetKwDefaults,
    PyList_AsTuple,
    PyLong_AsUnsignedLongLongMask,
    PyTuple_GetItem,
    PyTuple_New,
    PyTuple_SetItem,
    PyTuple_Size,
    PyUnicode_AsUTF8AndSize,
    drop,
    execute,
    leave,
    memcpy,
    vectorcall,
    whole_number,
)
from .plan import Guards
from .planned_calls import NOT_FORESEEN, guards_hold
from .process import ARRAYS, CONSTANTS, at, programs, world
from .program import CallStep, Item, LaunchStep, ProgramHead, Step

NONE, INTEGER, REAL, STRING, TUPLE, LIST, FUNCTION, CONSTANT, NUMBER, NOTHING = range(3, 13)
ALIGNMENT = 16
MOST_TEXT = 64
KEY_WORDS = 512
ROOM = 4 + 2 * DESCRIBED_RANK
"""Words that the longest single entry of a key takes."""
MOST_HELD = 8
LARGEST = 16
"""Bytes that an element of numpy's has at most."""


@struct
class State:
    """What is known of a call while it is made."""

    end: Ptr[u64]
    """Of the key."""
    count: i64
    """Arrays."""
    numbers: i64
    stream: Fn[[i32, i32, Ptr[u64]], i32]
    """Of the first array: what tells its stream, and its device."""
    device: u64
    held: i64
    """Tuples of what is in lists, which another thread may change."""
    holds: Array[Ptr[Object], MOST_HELD]
    objects: Array[Ptr[Object], program.MOST_REGISTERS]
    addresses: Array[u64, program.MOST_REGISTERS]
    told: Array[Ptr[u64], program.MOST_REGISTERS]
    """Where in the key arrays are."""
    lows: Array[u64, program.MOST_REGISTERS]
    highs: Array[u64, program.MOST_REGISTERS]
    """Between which addresses their elements are."""
    writes: i64
    """Whether the argument that is told next is written to."""
    written: u64
    """Arrays that are, by bits."""
    values: Array[f64, program.MOST_NUMBERS]
    key: Array[u64, KEY_WORDS]


# --- keys ------------------------------------------------------------------------------------------------------------


@inline
def put(state, *words):
    """Words at the end of the key."""
    end = state.end
    for number, word in enumerate(words):
        end[number] = word
    state.end = end + len(words)


@inline
def has_room(state):
    return address(state.end) <= address(ref(state.key)[KEY_WORDS - ROOM])


@native
def is_array(kind: Ptr[Object]) -> bool:
    known = world.place
    if kind == known.ndarray:
        return True
    for number in range(ARRAYS):
        if kind == known.arrays[number].type:
            return True
    return False


@native
def is_constant(kind: Ptr[Object]) -> bool:
    known = world.place
    if kind == known.bool_type or kind == known.type_type:
        return True
    for number in range(CONSTANTS):
        if kind == known.constants[number].type:
            return True
    return False


@native
def tell(value: Ptr[Object], state: Ptr[State], may: bool) -> bool:
    """Tell a value in the key; whether it is known. Arrays come only where they `may`: not inside of functions, and not where a
    function expects none, for what it does may depend on what is in them."""
    if not has_room(state):
        return False
    known, kind = world.place, value.kind
    if is_array(kind):
        return may and tell_array(value, state)
    if value == known.none:
        put(state, NONE)
    elif kind == known.int_type:
        number = local(i64)
        if not whole_number(value, number):
            return False
        put(state, INTEGER, u64(number[0]))
    elif kind == known.float_type:
        real = local(f64)
        real[0] = PyFloat_AsDouble(value)
        put(state, REAL, Ptr[u64](real)[0])
    elif kind == known.str_type:
        return tell_text(value, state)
    elif kind == known.tuple_type:
        return tell_items(value, state, TUPLE, may)
    elif kind == known.list_type:
        made = PyList_AsTuple(value)
        if made == None:
            PyErr_Clear()
            return False
        if state.held == MOST_HELD:
            Py_DecRef(made)
            return False
        state.holds[state.held] = made
        state.held += 1
        return tell_items(made, state, LIST, may)
    elif kind == known.function_type:
        return tell_function(value, state)
    elif is_constant(kind):
        put(state, CONSTANT, address(value))
    else:
        return False
    return True


@native
def tell_array(value: Ptr[Object], state: Ptr[State]) -> bool:
    about, count = local(About), state.count
    if not read_array(value, about):
        return False
    if about.rank > DESCRIBED_RANK or count == program.MOST_REGISTERS:
        return False
    state.told[count] = state.end
    state.end = describe_array(about, state.end, ALIGNMENT)
    if state.writes != 0:
        state.written |= u64(1) << u64(count)
    state.objects[count] = value
    state.addresses[count] = about.address
    state.count = count + 1
    if count == 0:
        state.stream = about.stream
        state.device = about.device
    return True


@native
def tell_text(value: Ptr[Object], state: Ptr[State]) -> bool:
    size = local(u64)
    letters = PyUnicode_AsUTF8AndSize(value, size)
    if letters == None:
        PyErr_Clear()
        return False
    length = size[0]
    if length > MOST_TEXT:
        return False
    put(state, STRING, length)
    words = (length + 7) >> 3
    if words != 0:
        state.end[words - 1] = 0  # what the last word is filled up with
        memcpy(state.end, letters, length)
    state.end += words
    return True


@native
def tell_items(items: Ptr[Object], state: Ptr[State], tag: u64, may: bool) -> bool:
    """The elements of a tuple."""
    count = PyTuple_Size(items)
    put(state, tag, u64(count))
    for number in range(count):
        if not tell(PyTuple_GetItem(items, number), state, may):
            return False
    return True


@native
def tell_function(value: Ptr[Object], state: Ptr[State]) -> bool:
    if PyFunction_GetKwDefaults(value) != None:
        return False
    put(state, FUNCTION, address(PyFunction_GetCode(value)), address(PyFunction_GetGlobals(value)))
    defaults, cells = PyFunction_GetDefaults(value), PyFunction_GetClosure(value)
    if defaults == None:
        put(state, NOTHING)
    elif not tell(defaults, state, False):
        return False
    if cells == None:
        put(state, NOTHING)
        return True
    count = PyTuple_Size(cells)
    put(state, TUPLE, u64(count))
    for number in range(count):
        held = PyCell_Get(PyTuple_GetItem(cells, number))
        if held == None:  # an empty cell
            PyErr_Clear()
            return False
        Py_DecRef(held)  # its cell keeps it
        if not tell(held, state, False):
            return False
    return True


@native
def find_span(words: Ptr[u64], where: u64, low: Ptr[u64], high: Ptr[u64]) -> None:
    """Between which addresses the elements of an array are, that is told by some words and begins somewhere; or some more."""
    kind, rank = words[1], i64(words[2] & 0xFF)
    bytes_ = i64(LARGEST)
    factor = i64(1)
    if words[0] == TENSOR:  # bits and lanes, of DLPack; numpy's strides are in bytes
        bytes_ = i64((((kind >> 8) & 0xFF) * ((kind >> 16) & 0xFFFF) + 7) >> 3)
        factor = bytes_
    shape = Ptr[i64](words + 4)
    strides = shape + rank
    below, above = i64(0), bytes_
    for mode in range(rank):
        further = (shape[mode] - 1) * strides[mode] * factor
        if further < 0:
            below += further
        else:
            above += further
    low[0] = where + u64(below)
    high[0] = where + u64(above)


@native
def tell_meetings(state: Ptr[State]) -> bool:
    """Arrays that are written to, and others that may have memory in common with them."""
    count, written = state.count, state.written
    for number in range(count):
        find_span(state.told[number], state.addresses[number], ref(state.lows)[number], ref(state.highs)[number])
    for one in range(count):
        if (written >> u64(one)) & 1 != 0:
            low, high = state.lows[one], state.highs[one]
            for other in range(count):
                twice = other <= one and (written >> u64(other)) & 1 != 0
                if not twice and low < state.highs[other] and state.lows[other] < high:
                    if not has_room(state):
                        return False
                    put(state, u64(one << 8 | other), state.addresses[one] - state.addresses[other])
    return True


@native
def place_of(names: Ptr[Object], name: Ptr[Object]) -> i64:
    """Where a tuple has a name; -1 if it has not."""
    for number in range(PyTuple_Size(names)):
        if PyTuple_GetItem(names, number) == name:
            return number
    return -1


@native
def tell_number(value: Ptr[Object], state: Ptr[State]) -> bool:
    """A number that programs take from each call."""
    count, real = state.numbers, local(f64)
    if count == program.MOST_NUMBERS:
        return False
    real[0] = PyFloat_AsDouble(value)
    state.values[count] = real[0]
    state.numbers = count + 1
    bits = Ptr[u64](real)[0]
    size = bits & ((1 << 63) - 1)
    told = u64(3)
    if size > 0x7FF << 52:
        told = u64(5)
    elif bits == 0x3FF << 52:
        told = u64(1)
    elif size == 0:
        told = u64(2)
    elif size != bits:
        told = u64(4)
    put(state, NUMBER, told)
    return True


@native
def tell_call(
    holder: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object], state: Ptr[State]
) -> bool:
    """Whether a call has a key. In any case `let_go(state)` follows when the call is over."""
    state.count = 0
    state.numbers = 0
    state.stream = None
    state.device = 0
    state.held = 0
    state.written = 0
    state.end = state.key
    put(state, u64(positional))
    about = Ptr[u64](Ptr(PyTuple_GetItem(holder, 2)) + plan.BYTES_DATA)
    for number in range(positional):
        place = u64(number if number < 63 else i64(63))
        state.writes = i64((about[1] >> place) & 1)
        if not tell(arguments[number], state, (about[0] >> place) & 1 != 0):
            return False
    if names != None:
        if not tell_named(holder, arguments + positional, names, i64(about[2]), state):
            return False
    return tell_meetings(state) if state.written != 0 else True


@native
def tell_named(
    holder: Ptr[Object], given: Ptr[Ptr[Object]], names: Ptr[Object], written: i64, state: Ptr[State]
) -> bool:
    """Arguments with names. Of those that may be arrays the first `written` are written to."""
    special, arrays = PyTuple_GetItem(holder, 1), PyTuple_GetItem(holder, 3)
    for number in range(PyTuple_Size(names)):
        name, value = PyTuple_GetItem(names, number), given[number]
        if not has_room(state):
            return False
        put(state, address(name))
        if value.kind == world.place.float_type and place_of(special, name) >= 0:
            if not tell_number(value, state):
                return False
        else:
            place = place_of(arrays, name)
            state.writes = i64(1) if place >= 0 and place < written else i64(0)
            if not tell(value, state, place >= 0):
                return False
    return True


@inline
def key_of(state):
    return PyBytes_FromStringAndSize(state.key, address(state.end) - address(state.key))


@inline
def let_go(state):
    drop(state.holds, state.held)


@programs.export
def call_key(module: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]) -> Ptr[Object]:
    """The key of a call, or None; the first argument is the holder."""
    state, key = local(State), Ptr[Object](None)
    known = tell_call(arguments[0], arguments + 1, positional - 1, names, state)
    if known:
        key = key_of(state)
    let_go(state)
    return key if known else give_none()


# --- programs --------------------------------------------------------------------------------------------------------


@native
def launch(step: Ptr[LaunchStep], state: Ptr[State], stream: u64, slots: Ptr[u8]) -> bool:
    """Launch compiled code; False with an error."""
    memcpy(slots, step.slots, step.bytes)
    for number in range(step.count):
        patch = step.patches[number]
        kind, place, slot = patch.kind, patch.place, Ptr[u64](slots + patch.offset)
        if kind == program.ADDRESS:
            slot[0] = state.addresses[place] + u64(patch.further)
        elif kind == program.STREAM:
            slot[0] = stream
        elif kind == program.NUMBER32:
            slot[0] = 0
            Ptr[f32](slot)[0] = f32(state.values[place])
        else:
            Ptr[f64](slot)[0] = state.values[place]
    return execute(step.entry, slots, Ptr[Object](step.report))


@inline
def object_of(state, item):
    """The object that an item names."""
    return state.objects[item.value] if item.kind == program.REGISTER else Ptr[Object](item.value)


@native
def call_python(head: Ptr[ProgramHead], step: Ptr[CallStep], state: Ptr[State], given: Ptr[Ptr[Object]]) -> bool:
    """Call a Python function, which may make an array; False with an error."""
    for number in range(step.count):
        given[number + 1] = object_of(state, step.items[number])
    made = vectorcall(Ptr[Object](step.function), given + 1, step.positional | FREE_BEFORE, Ptr[Object](step.names))
    if made == None:
        return False
    register, about = step.register, local(About)
    if register < 0:
        Py_DecRef(made)
        return True
    state.objects[register] = made
    state.count = register + 1
    if read_array(made, about):
        state.addresses[register] = about.address
        return True
    # an array of a type that is not known: Python tells where it lies
    where = leave(Ptr[Object](head.address_of), made, None, 0, None)
    if where == None:
        return False
    state.addresses[register] = PyLong_AsUnsignedLongLongMask(where)
    Py_DecRef(where)
    return True


@native
def results(head: Ptr[ProgramHead], state: Ptr[State]) -> Ptr[Object]:
    """What a call gives, with a new reference."""
    count, item = head.result_count, Ptr[Item](Ptr(head) + head.results_at)
    if count < 0:
        found = object_of(state, item)
        Py_IncRef(found)
        return found
    made = PyTuple_New(count)
    if made != None:
        for number in range(count):
            found = object_of(state, item[number])
            Py_IncRef(found)
            PyTuple_SetItem(made, number, found)
    return made


@native
def repeat(head: Ptr[ProgramHead], state: Ptr[State]) -> Ptr[Object]:
    """Make all steps and give the result; null with an error, NOT_FORESEEN before any step."""
    stream, first = local(u64), state.count
    if not stream_of(state.stream, state.device, stream):
        return Ptr[Object](NOT_FORESEEN)
    slots, given = local(u8, head.slot_bytes), local(Ptr[Object], head.items + 1)
    step, left, result = head.steps, head.step_count, Ptr[Object](None)
    while left > 0:
        if step.kind == program.LAUNCH:
            if not launch(Ptr[LaunchStep](step), state, stream[0], slots):
                break
        elif not call_python(head, Ptr[CallStep](step), state, given):
            break
        step = Ptr[Step](Ptr(step) + step.size)
        left -= 1
    if left == 0:
        result = results(head, state)
    drop(ref(state.objects)[first], state.count - first)  # what was made
    return result


@native
def repeat_recorded(
    holder: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object], state: Ptr[State]
) -> Ptr[Object]:
    """As `repeat`. A program is kept while the call lasts: guards and steps may run Python, and other threads run during
    launches."""
    result = Ptr[Object](NOT_FORESEEN)
    if not tell_call(holder, arguments, positional, names, state):
        return result
    key = key_of(state)
    if key == None:
        PyErr_Clear()
        return result
    found = PyDict_GetItemWithError(PyTuple_GetItem(holder, 0), key)
    Py_DecRef(key)
    if found == None:
        PyErr_Clear()
        return result
    Py_IncRef(found)
    head = Ptr[ProgramHead](Ptr(at(found, world.place.program_slot)) + plan.BYTES_DATA)
    if guards_hold(Ptr[Guards](head.guards)):
        result = repeat(head, state)
    Py_DecRef(found)
    return result


@programs.export
def call_recorded(
    function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]
) -> Ptr[Object]:
    """`__call__` of a function of the kernel library: programs by keys."""
    role, state = world.place.recorded, local(State)
    holder = at(function, role.slot)
    if holder != None:
        result = repeat_recorded(holder, arguments, positional, names, state)
        let_go(state)
        if address(result) != NOT_FORESEEN:
            return result
    return leave(role.python, function, arguments, positional, names)
