# pyright: reportReturnType=false
"""Calls by plans (`plan.py`): the native `__call__` of jit and compiled functions.

They have the signature of METH_FASTCALL | METH_KEYWORDS and hold the GIL. A call that matches no plan goes to a Python
function; nothing is raised here.
"""

from __future__ import annotations

from ...base_dsl import guards as guarding
from ...native import Ptr, address, i64, local, native, ref, u8, u64
from . import cpython, plan
from .arrays import take_ambient, take_array
from .cpython import Object
from .devices import enter, following, leave_device
from .numbers import result_of, take_integer, take_real, take_stream
from .plan import Guards, Plan, Record
from .process import Role, at, calls, process

NO_MATCH = 1
"""A value in place of a result: no plan matches, and the call was not made."""


@native
def take(record: Ptr[Record], value: Ptr[Object], slots: Ptr) -> bool:
    """Read an argument into its slots. Returns whether it matches its record."""
    kind = record.kind
    place = Ptr[u64](slots + record.slot)
    if kind == plan.ARRAY:
        return take_array(Ptr[plan.ArrayRecord](record), value, place)
    if kind == plan.INTEGER:
        return take_integer(Ptr[plan.IntegerRecord](record), value, Ptr[i64](place))
    if kind == plan.REAL:
        return take_real(Ptr[plan.RealRecord](record), value, place)
    if kind == plan.STREAM:
        return take_stream(value, place)
    if kind == plan.AMBIENT:
        return take_ambient(value, place)
    if kind == plan.SAME:
        return address(value) == u64(Ptr[plan.ValueRecord](record).value)
    if kind == plan.NUMBER:
        number = local(i64)
        if value.kind != process.place.int_type or not cpython.whole_number(value, number):
            return False
        return number[0] == Ptr[plan.ValueRecord](record).value
    return kind == plan.GROUP and take_group(Ptr[plan.GroupRecord](record), value, slots)


@native
def take_group(record: Ptr[plan.GroupRecord], value: Ptr[Object], slots: Ptr) -> bool:
    """Read the elements of a tuple or list. Returns whether they match.

    Another thread may change a list during the call, so a tuple of its elements is held.
    """
    if value.kind != Ptr[Object](record.type):
        return False
    items = value
    if record.hold != 0:
        items = cpython.PyList_AsTuple(value)
        Ptr[Ptr[Object]](slots + record.hold)[0] = items
        if items == None:
            cpython.PyErr_Clear()
            return False
    count = record.count
    element = record.elements
    if cpython.PyTuple_Size(items) != count:
        return False
    for number in range(count):
        if not take(element, cpython.PyTuple_GetItem(items, number), slots):
            return False
        element = following(element)
    return True


@native
def call(header: Ptr[Plan], slots: Ptr) -> Ptr[Object]:
    """Call the compiled code and return its result; null after an error.

    The owner is kept during the call: other threads may drop it.
    """
    owner = Ptr[Object](header.owner)
    result = Ptr[Object](None)
    cpython.Py_IncRef(owner)
    entered = enter(header, slots)
    if cpython.execute(header.entry, slots, Ptr[Object](header.report)):
        result = result_of(header, slots)
    leave_device(entered)
    cpython.Py_DecRef(owner)
    return result


@native
def run(header: Ptr[Plan], arguments: Ptr[Ptr[Object]]) -> Ptr[Object]:
    """Read the arguments and make the call. Returns its result, null after an error, or NO_MATCH."""
    held = header.held_bytes
    memory = local(u8, held + header.slots_bytes)
    slots = Ptr(memory + held)
    if held != 0:
        cpython.memset(memory, 0, held)
    record = header.records
    result = Ptr[Object](NO_MATCH)
    left = header.record_count
    number = i64(0)
    while number < left:
        argument = number
        if record.kind == plan.AMBIENT:
            argument = Ptr[plan.ValueRecord](record).value
        if not take(record, arguments[argument], slots):
            break
        record = following(record)
        number += 1
    if number == left:
        result = call(header, slots)
    if held != 0:
        cpython.decref_all(Ptr[Ptr[Object]](memory), i64(held >> 3))
    return result


@native
def order(
    header: Ptr[Plan], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object], ordered: Ptr[Ptr[Object]]
) -> bool:
    """Put positional and keyword arguments in the order of parameters. Returns whether there is one for each."""
    count = header.count
    keywords = cpython.PyTuple_Size(names)
    if positional + keywords != count:
        return False
    for number in range(count):
        ordered[number] = arguments[number] if number < positional else Ptr[Object](None)
    for number in range(keywords):
        name = cpython.PyTuple_GetItem(names, number)
        place = positional
        while place < count and header.names[place] != name:
            place += 1
        if place == count or ordered[place] != None:  # no parameter of this very name is left
            return False
        ordered[place] = arguments[positional + number]
    return True


@native
def make(header: Ptr[Plan], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]) -> Ptr[Object]:
    """Make a call with positional and keyword arguments; returns as `run`."""
    if names == None:
        return run(header, arguments) if positional == header.count else Ptr[Object](NO_MATCH)
    ordered = local(Ptr[Object], header.count)
    if not order(header, arguments, positional, names, ordered):
        return Ptr[Object](NO_MATCH)
    return run(header, ordered)


@native
def holds(guard: Ptr[plan.GuardWords]) -> bool:
    """Return whether a guard holds; if not, a Python error may be set."""
    kind = guard.kind
    owner = Ptr[Object](guard.owner)
    expected = Ptr[Object](guard.expected)
    if kind == guarding.IN_DICT:
        value = cpython.PyDict_GetItemWithError(owner, Ptr[Object](guard.key))
        return value == expected and (value != None or cpython.PyErr_Occurred() == None)
    if kind == guarding.IS_WORD:
        return Ptr[u64](owner)[0] == address(expected)
    if kind == guarding.IS_ZERO:
        return Ptr[u64](owner)[0] == 0
    if kind == guarding.IN_CELL:
        value = cpython.PyCell_Get(owner)
        cpython.Py_DecRef(value)  # the cell keeps it; null is fine
        return value != None and value == expected
    if kind == guarding.ALL_OF:
        return guards_hold(Ptr[Guards](owner))
    value = cpython.PyObject_CallNoArgs(owner)
    if value == None:
        return False
    truth = cpython.PyObject_IsTrue(value)
    cpython.Py_DecRef(value)
    return truth == 1


@calls.export
def guards_hold(table: Ptr[Guards]) -> bool:
    """Return whether all guards of a table hold; clears errors."""
    for number in range(table.count):
        if not holds(table.guards[number]):
            cpython.PyErr_Clear()
            return False
    return True


@native
def call_by_plan(
    role: Ptr[Role], function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]
) -> Ptr[Object]:
    """Call a function that has one plan."""
    held = at(function, role.slot)
    if held != None:
        header = Ptr[Plan](Ptr(held) + plan.BYTES_DATA)
        if guards_hold(header.guards):
            result = make(header, arguments, positional, names)
            if address(result) != NO_MATCH:
                return result
    return cpython.call_python(role.python, function, arguments, positional, names)


@calls.export
def call_compiled(
    function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]
) -> Ptr[Object]:
    """Implement `__call__` of a compiled function."""
    return call_by_plan(ref(process.place).compiled, function, arguments, positional, names)


@calls.export
def call_wrapper(
    function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]
) -> Ptr[Object]:
    """Implement `__call__` of a framework's object that wraps a compiled function."""
    return call_by_plan(ref(process.place).wrapper, function, arguments, positional, names)


@calls.export
def call_jit(function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]) -> Ptr[Object]:
    """Implement `__call__` of a jit function: try the plans of its specialisations in order.

    Their owner is kept during the call, as guards may run Python.
    """
    role = process.place.jit
    result = Ptr[Object](NO_MATCH)
    held = at(function, role.slot)
    if held != None:
        cpython.Py_IncRef(held)
        candidates = Ptr[plan.Candidates](Ptr(cpython.PyTuple_GetItem(held, 0)) + plan.BYTES_DATA)
        if guards_hold(candidates.guards):
            for number in range(candidates.count):
                header = candidates.plans[number]
                if guards_hold(header.guards):
                    result = make(header, arguments, positional, names)
                    if address(result) != NO_MATCH:
                        break
        cpython.Py_DecRef(held)
    if address(result) != NO_MATCH:
        return result
    return cpython.call_python(role.python, function, arguments, positional, names)
