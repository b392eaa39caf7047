# pyright: reportReturnType=false
"""Recorded calls (`program.py`): the key of a call, and repeating a program on the arrays of another call.

A key is a sequence of words. Each argument begins with a word for its kind, then follow

    an array       element type, device and rank, address modulo 16 bytes, extents, strides
    None           nothing
    a number       its value: an integer, or the bits of a float; True and False by address
    a string       its length and bytes
    a tuple, list  its length and elements
    a function     addresses of code and globals, defaults, the number of cells and their contents
    a constant     its address: types, and objects of types registered as constants

Keyword arguments follow the positional ones, each after the address of its name. A float whose parameter is registered
as a number is represented by its sign and whether it is 0, 1 or NaN, or 0 or infinite in 32 bits: programs take its value
from each call.

Last come the pairs of arrays, one of which may be written to, that may overlap: the distance of their addresses. With
extents and strides that decides whether they overlap, so a call is refused or accepted alike each time. Most calls have
no such pair.
"""

from __future__ import annotations

from ...native import Array, Fn, Ptr, address, assign, f32, f64, i32, i64, inline, local, native, ref, struct, u8, u64
from . import cpython, plan, program
from .arrays import DESCRIBED_RANK, TENSOR, ArrayFacts, describe_array, note_write, read_array, return_none, stream_of
from .cpython import Object
from .plan import Guards
from .planned_calls import NO_MATCH, guards_hold
from .process import ARRAYS, CONSTANTS, at, process, programs
from .program import CallStep, Item, LaunchStep, ProgramHead, Step

NONE, INTEGER, REAL, STRING, TUPLE, LIST, FUNCTION, CONSTANT, NUMBER, NOTHING = range(3, 13)
ALIGNMENT = 16
MAX_STRING = 64
KEY_WORDS = 512
ENTRY_WORDS = 4 + 2 * DESCRIBED_RANK
"""The most words that one entry of a key needs."""
MAX_HELD = 8
MAX_ELEMENT = 16
"""The most bytes of a numpy element."""


@struct
class State:
    """The key of a call and its arrays, while it is made."""

    end: Ptr[u64]
    """The end of the key."""
    count: i64
    """The number of arrays."""
    numbers: i64
    stream: Fn[[i32, i32, Ptr[u64]], i32]
    """The function that finds the current stream of the first array's framework."""
    device: u64
    held: i64
    """How many tuples of list elements are held: another thread may change a list."""
    holds: Array[Ptr[Object], MAX_HELD]
    objects: Array[Ptr[Object], program.MOST_REGISTERS]
    addresses: Array[u64, program.MOST_REGISTERS]
    described: Array[Ptr[u64], program.MOST_REGISTERS]
    """Where in the key the arrays are."""
    lows: Array[u64, program.MOST_REGISTERS]
    highs: Array[u64, program.MOST_REGISTERS]
    """The address ranges of their elements."""
    writes: i64
    """Whether the next argument is written to."""
    written: u64
    """A bit for each array that is."""
    values: Array[f64, program.MOST_NUMBERS]
    key: Array[u64, KEY_WORDS]


# --- keys ------------------------------------------------------------------------------------------------------------


@inline
def put(state, *words):
    """Append words to the key."""
    end = state.end
    for number, word in enumerate(words):
        end[number] = word
    state.end = end + len(words)


@inline
def has_room(state):
    return address(state.end) <= address(ref(state.key)[KEY_WORDS - ENTRY_WORDS])


@native
def is_array(kind: Ptr[Object]) -> bool:
    types = process.place
    if kind == types.ndarray:
        return True
    for number in range(ARRAYS):
        if kind == types.arrays[number].type:
            return True
    return False


@native
def is_constant(kind: Ptr[Object]) -> bool:
    types = process.place
    if kind == types.bool_type or kind == types.type_type:
        return True
    for number in range(CONSTANTS):
        if kind == types.constants[number].type:
            return True
    return False


@native
def add_value(value: Ptr[Object], state: Ptr[State], arrays_allowed: bool) -> bool:
    """Append a value to the key of a call; False if it has no key.

    Arrays are allowed where a function expects them. Elsewhere, as in closures, what the function does may depend on
    their contents.
    """
    if not has_room(state):
        return False
    types = process.place
    kind = value.kind
    if is_array(kind):
        return arrays_allowed and add_array(value, state)
    if value == types.none:
        put(state, NONE)
    elif kind == types.int_type:
        number = local(i64)
        if not cpython.whole_number(value, number):
            return False
        put(state, INTEGER, u64(number[0]))
    elif kind == types.float_type:
        real = local(f64)
        real[0] = cpython.PyFloat_AsDouble(value)
        put(state, REAL, Ptr[u64](real)[0])
    elif kind == types.str_type:
        return add_string(value, state)
    elif kind == types.tuple_type:
        return add_items(value, state, TUPLE, arrays_allowed)
    elif kind == types.list_type:
        items = cpython.PyList_AsTuple(value)
        if items == None:
            cpython.PyErr_Clear()
            return False
        if state.held == MAX_HELD:
            cpython.Py_DecRef(items)
            return False
        state.holds[state.held] = items
        state.held += 1
        return add_items(items, state, LIST, arrays_allowed)
    elif kind == types.function_type:
        return add_function(value, state)
    elif is_constant(kind):
        put(state, CONSTANT, address(value))
    else:
        return False
    return True


@native
def add_array(value: Ptr[Object], state: Ptr[State]) -> bool:
    about = local(ArrayFacts)
    count = state.count
    if not read_array(value, about):
        return False
    if about.rank > DESCRIBED_RANK or count == program.MOST_REGISTERS:
        return False
    state.described[count] = state.end
    state.end = describe_array(about, state.end, ALIGNMENT)
    if state.writes != 0:
        state.written |= u64(1) << u64(count)
    state.objects[count] = value
    state.addresses[count] = about.address
    state.count = count + 1
    if count == 0:
        assign(state, stream=about.stream, device=about.device)
    return True


@native
def add_string(value: Ptr[Object], state: Ptr[State]) -> bool:
    size = local(u64)
    letters = cpython.PyUnicode_AsUTF8AndSize(value, size)
    if letters == None:
        cpython.PyErr_Clear()
        return False
    length = size[0]
    if length > MAX_STRING:
        return False
    put(state, STRING, length)
    words = (length + 7) >> 3
    if words != 0:
        state.end[words - 1] = 0  # padding of the last word
        cpython.memcpy(state.end, letters, length)
    state.end += words
    return True


@native
def add_items(items: Ptr[Object], state: Ptr[State], tag: u64, arrays_allowed: bool) -> bool:
    """Append the elements of a tuple."""
    count = cpython.PyTuple_Size(items)
    put(state, tag, u64(count))
    for number in range(count):
        if not add_value(cpython.PyTuple_GetItem(items, number), state, arrays_allowed):
            return False
    return True


@native
def add_function(value: Ptr[Object], state: Ptr[State]) -> bool:
    if cpython.PyFunction_GetKwDefaults(value) != None:
        return False
    put(state, FUNCTION, address(cpython.PyFunction_GetCode(value)), address(cpython.PyFunction_GetGlobals(value)))
    defaults = cpython.PyFunction_GetDefaults(value)
    cells = cpython.PyFunction_GetClosure(value)
    if defaults == None:
        put(state, NOTHING)
    elif not add_value(defaults, state, False):
        return False
    if cells == None:
        put(state, NOTHING)
        return True
    count = cpython.PyTuple_Size(cells)
    put(state, TUPLE, u64(count))
    for number in range(count):
        held = cpython.PyCell_Get(cpython.PyTuple_GetItem(cells, number))
        if held == None:  # an empty cell
            cpython.PyErr_Clear()
            return False
        cpython.Py_DecRef(held)  # its cell keeps it
        if not add_value(held, state, False):
            return False
    return True


@native
def find_span(words: Ptr[u64], where: u64, low: Ptr[u64], high: Ptr[u64]) -> None:
    """Find a range of addresses that contains the elements of a described array."""
    kind = words[1]
    rank = i64(words[2] & 0xFF)
    bytes_ = i64(MAX_ELEMENT)
    factor = i64(1)
    if words[0] == TENSOR:  # bits and lanes, of DLPack; numpy's strides are in bytes
        bytes_ = i64((((kind >> 8) & 0xFF) * ((kind >> 16) & 0xFFFF) + 7) >> 3)
        factor = bytes_
    shape = Ptr[i64](words + 4)
    strides = shape + rank
    below = i64(0)
    above = bytes_
    for mode in range(rank):
        further = (shape[mode] - 1) * strides[mode] * factor
        if further < 0:
            below += further
        else:
            above += further
    low[0] = where + u64(below)
    high[0] = where + u64(above)


@native
def add_overlaps(state: Ptr[State]) -> bool:
    """Append the pairs of an array that is written to and another one that may overlap it."""
    count = state.count
    written = state.written
    for number in range(count):
        find_span(state.described[number], state.addresses[number], ref(state.lows)[number], ref(state.highs)[number])
    for one in range(count):
        if (written >> u64(one)) & 1 != 0:
            low = state.lows[one]
            high = state.highs[one]
            for other in range(count):
                twice = other <= one and (written >> u64(other)) & 1 != 0
                if not twice and low < state.highs[other] and state.lows[other] < high:
                    if not has_room(state):
                        return False
                    put(state, u64(one << 8 | other), state.addresses[one] - state.addresses[other])
    return True


@native
def place_of(names: Ptr[Object], name: Ptr[Object]) -> i64:
    """Return the index of a name in a tuple, or -1."""
    for number in range(cpython.PyTuple_Size(names)):
        if cpython.PyTuple_GetItem(names, number) == name:
            return number
    return -1


@native
def add_number(value: Ptr[Object], state: Ptr[State]) -> bool:
    """Append a number whose value programs take from each call."""
    count = state.numbers
    real = local(f64)
    if count == program.MOST_NUMBERS:
        return False
    real[0] = cpython.PyFloat_AsDouble(value)
    state.values[count] = real[0]
    state.numbers = count + 1
    bits = Ptr[u64](real)[0]
    size = bits & ((1 << 63) - 1)
    short = f32(real[0])
    category = u64(3) if size == bits else u64(4)
    if size > 0x7FF << 52:
        category = u64(5)
    elif short - short != 0:  # 6 and 7
        category += u64(3)
    elif bits == 0x3FF << 52:
        category = u64(1)
    elif size == 0:
        category = u64(2)
    elif short == 0:  # 8 and 9
        category += u64(5)
    put(state, NUMBER, category)
    return True


@native
def make_key(
    holder: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object], state: Ptr[State]
) -> bool:
    """Make the key of a call; False if it has none. Call `release(state)` afterwards in any case."""
    assign(state, count=0, numbers=0, stream=None, device=0, held=0, written=0, end=state.key)
    put(state, u64(positional))
    about = Ptr[u64](Ptr(cpython.PyTuple_GetItem(holder, 2)) + plan.BYTES_DATA)
    for number in range(positional):
        place = u64(number if number < 63 else i64(63))
        state.writes = i64((about[1] >> place) & 1)
        if not add_value(arguments[number], state, (about[0] >> place) & 1 != 0):
            return False
    if names != None:
        if not add_keywords(holder, arguments + positional, names, i64(about[2]), state):
            return False
    return add_overlaps(state) if state.written != 0 else True


@native
def add_keywords(
    holder: Ptr[Object], passed: Ptr[Ptr[Object]], names: Ptr[Object], written: i64, state: Ptr[State]
) -> bool:
    """Append keyword arguments. Of the parameters that may be arrays the first `written` are written to."""
    special = cpython.PyTuple_GetItem(holder, 1)
    arrays = cpython.PyTuple_GetItem(holder, 3)
    for number in range(cpython.PyTuple_Size(names)):
        name = cpython.PyTuple_GetItem(names, number)
        value = passed[number]
        if not has_room(state):
            return False
        put(state, address(name))
        if value.kind == process.place.float_type and place_of(special, name) >= 0:
            if not add_number(value, state):
                return False
        else:
            place = place_of(arrays, name)
            state.writes = i64(1) if place >= 0 and place < written else i64(0)
            if not add_value(value, state, place >= 0):
                return False
    return True


@inline
def key_of(state):
    return cpython.PyBytes_FromStringAndSize(state.key, address(state.end) - address(state.key))


@inline
def release(state):
    cpython.decref_all(state.holds, state.held)


@programs.export
def call_key(module: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]) -> Ptr[Object]:
    """Return the key of a call, or None; the first argument is the holder."""
    state = local(State)
    key = Ptr[Object](None)
    is_keyed = make_key(arguments[0], arguments + 1, positional - 1, names, state)
    if is_keyed:
        key = key_of(state)
    release(state)
    return key if is_keyed else return_none()


# --- programs --------------------------------------------------------------------------------------------------------


@native
def launch(step: Ptr[LaunchStep], state: Ptr[State], stream: u64, slots: Ptr[u8]) -> bool:
    """Launch compiled code; False after an error."""
    cpython.memcpy(slots, step.slots, step.bytes)
    for number in range(step.count):
        patch = step.patches[number]
        kind = patch.kind
        place = patch.place
        slot = Ptr[u64](slots + patch.offset)
        if kind == program.ADDRESS:
            slot[0] = state.addresses[place] + u64(patch.further)
        elif kind == program.STREAM:
            slot[0] = stream
        elif kind == program.NUMBER32:
            slot[0] = 0
            Ptr[f32](slot)[0] = f32(state.values[place])
        else:
            Ptr[f64](slot)[0] = state.values[place]
    return cpython.execute(step.entry, slots, Ptr[Object](step.report))


@inline
def object_of(state, item):
    """Return the object that an item refers to."""
    return state.objects[item.value] if item.kind == program.REGISTER else Ptr[Object](item.value)


@native
def call_python(head: Ptr[ProgramHead], step: Ptr[CallStep], state: Ptr[State], passed: Ptr[Ptr[Object]]) -> bool:
    """Call a Python function, which may make an array; False after an error."""
    for number in range(step.count):
        passed[number + 1] = object_of(state, step.items[number])
    result = cpython.vectorcall(
        Ptr[Object](step.function), passed + 1, step.positional | cpython.FREE_BEFORE, Ptr[Object](step.names)
    )
    if result == None:
        return False
    register = step.register
    about = local(ArrayFacts)
    if register < 0:
        cpython.Py_DecRef(result)
        return True
    state.objects[register] = result
    state.count = register + 1
    if read_array(result, about):
        state.addresses[register] = about.address
        return True
    # the type of the array is not registered: Python finds its address
    where = cpython.call_python(Ptr[Object](head.address_of), result, None, 0, None)
    if where == None:
        return False
    state.addresses[register] = cpython.PyLong_AsUnsignedLongLongMask(where)
    cpython.Py_DecRef(where)
    return True


@native
def results(head: Ptr[ProgramHead], state: Ptr[State]) -> Ptr[Object]:
    """Return the results of a call, with a new reference."""
    count = head.result_count
    item = Ptr[Item](Ptr(head) + head.results_at)
    if count < 0:
        value = object_of(state, item)
        cpython.Py_IncRef(value)
        return value
    tuple_ = cpython.PyTuple_New(count)
    if tuple_ != None:
        for number in range(count):
            value = object_of(state, item[number])
            cpython.Py_IncRef(value)
            cpython.PyTuple_SetItem(tuple_, number, value)
    return tuple_


@native
def repeat(head: Ptr[ProgramHead], state: Ptr[State]) -> Ptr[Object]:
    """Make all steps. Returns the result, null after an error, or NO_MATCH before any step was made."""
    stream = local(u64)
    first = state.count
    if not stream_of(state.stream, state.device, stream):
        return Ptr[Object](NO_MATCH)
    slots = local(u8, head.slot_bytes)
    passed = local(Ptr[Object], head.items + 1)
    step = head.steps
    left = head.step_count
    result = Ptr[Object](None)
    while left > 0:
        if step.kind == program.LAUNCH:
            if not launch(Ptr[LaunchStep](step), state, stream[0], slots):
                break
        elif not call_python(head, Ptr[CallStep](step), state, passed):
            break
        step = Ptr[Step](Ptr(step) + step.size)
        left -= 1
    written = head.written
    place = i64(0)
    while written != 0:
        if written & 1 != 0:
            note_write(state.objects[place])
        written >>= 1
        place += 1
    if left == 0:
        result = results(head, state)
    cpython.decref_all(ref(state.objects)[first], state.count - first)  # the arrays that were made
    return result


@native
def repeat_recorded(
    holder: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object], state: Ptr[State]
) -> Ptr[Object]:
    """Find the program of a call and repeat it; returns as `repeat`.

    The program is kept during the call: guards and steps may run Python, and other threads run during launches.
    """
    result = Ptr[Object](NO_MATCH)
    if not make_key(holder, arguments, positional, names, state):
        return result
    key = key_of(state)
    if key == None:
        cpython.PyErr_Clear()
        return result
    program = cpython.PyDict_GetItemWithError(cpython.PyTuple_GetItem(holder, 0), key)
    cpython.Py_DecRef(key)
    if program == None:
        cpython.PyErr_Clear()
        return result
    cpython.Py_IncRef(program)
    head = Ptr[ProgramHead](Ptr(at(program, process.place.program_slot)) + plan.BYTES_DATA)
    if guards_hold(Ptr[Guards](head.guards)):
        result = repeat(head, state)
    cpython.Py_DecRef(program)
    return result


@programs.export
def call_recorded(
    function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]
) -> Ptr[Object]:
    """Implement `__call__` of a function of the kernel library."""
    role = process.place.recorded
    state = local(State)
    holder = at(function, role.slot)
    if holder != None:
        result = repeat_recorded(holder, arguments, positional, names, state)
        release(state)
        if address(result) != NO_MATCH:
            return result
    return cpython.call_python(role.python, function, arguments, positional, names)
