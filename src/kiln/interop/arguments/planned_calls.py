# pyright: reportReturnType=false
"""Calls by plans (`calls/plan.py`): `__call__` of jit and compiled functions.

They take a call as CPython's METH_FASTCALL | METH_KEYWORDS does, with the GIL held. What is not foreseen goes to a Python
function; no error is raised here.
"""

from __future__ import annotations

from ...base_dsl import guards as guarding
from ...native import Ptr, address, i64, local, native, ref, u8, u64
from . import plan
from .arrays import take_ambient, take_array
from .cpython import (
    Object,
    Py_DecRef,
    Py_IncRef,
    PyCell_Get,
    PyDict_GetItemWithError,
    PyErr_Clear,
    PyErr_Occurred,
    PyList_AsTuple,
    PyObject_CallNoArgs,
    PyObject_IsTrue,
    PyTuple_GetItem,
    PyTuple_Size,
    drop,
    execute,
    leave,
    memset,
    whole_number,
)
from .devices import enter, following, leave_device
from .numbers import result_of, take_integer, take_real, take_stream
from .plan import (
    ArrayRecord,
    Candidates,
    GroupRecord,
    Guards,
    GuardWords,
    IntegerRecord,
    Plan,
    RealRecord,
    Record,
    ValueRecord,
)
from .process import Role, at, calls, world

NOT_FORESEEN = 1
"""In place of a result: the call was not made."""


@native
def take(record: Ptr[Record], value: Ptr[Object], slots: Ptr) -> bool:
    """Whether an argument is one that a record describes; its leaves are in the slots."""
    kind, place = record.kind, Ptr[u64](slots + record.slot)
    if kind == plan.ARRAY:
        return take_array(Ptr[ArrayRecord](record), value, place)
    if kind == plan.INTEGER:
        return take_integer(Ptr[IntegerRecord](record), value, Ptr[i64](place))
    if kind == plan.REAL:
        return take_real(Ptr[RealRecord](record), value, place)
    if kind == plan.STREAM:
        return take_stream(value, place)
    if kind == plan.AMBIENT:
        return take_ambient(value, place)
    if kind == plan.SAME:
        return address(value) == u64(Ptr[ValueRecord](record).value)
    if kind == plan.NUMBER:
        number = local(i64)
        if value.kind != world.place.int_type or not whole_number(value, number):
            return False
        return number[0] == Ptr[ValueRecord](record).value
    return kind == plan.GROUP and take_group(Ptr[GroupRecord](record), value, slots)


@native
def take_group(record: Ptr[GroupRecord], value: Ptr[Object], slots: Ptr) -> bool:
    """What a list holds is another thread's to drop while the call runs, so a tuple of it is held: before the slots."""
    if value.kind != Ptr[Object](record.type):
        return False
    items = value
    if record.hold != 0:
        items = PyList_AsTuple(value)
        Ptr[Ptr[Object]](slots + record.hold)[0] = items
        if items == None:
            PyErr_Clear()
            return False
    count, element = record.count, record.elements
    if PyTuple_Size(items) != count:
        return False
    for number in range(count):
        if not take(element, PyTuple_GetItem(items, number), slots):
            return False
        element = following(element)
    return True


@native
def call(header: Ptr[Plan], slots: Ptr) -> Ptr[Object]:
    """Call the compiled code; null after an error. Other threads run during the call: they may drop the code."""
    owner, result = Ptr[Object](header.owner), Ptr[Object](None)
    Py_IncRef(owner)
    entered = enter(header, slots)
    if execute(header.entry, slots, Ptr[Object](header.report)):
        result = result_of(header, slots)
    leave_device(entered)
    Py_DecRef(owner)
    return result


@native
def run(header: Ptr[Plan], arguments: Ptr[Ptr[Object]]) -> Ptr[Object]:
    """Take the arguments and make the call: its result, null after an error, NOT_FORESEEN."""
    held = header.held_bytes
    memory = local(u8, held + header.slots_bytes)
    slots = Ptr(memory + held)
    if held != 0:
        memset(memory, 0, held)
    record, result, left = header.records, Ptr[Object](NOT_FORESEEN), header.record_count
    number = i64(0)
    while number < left:
        argument = number
        if record.kind == plan.AMBIENT:
            argument = Ptr[ValueRecord](record).value
        if not take(record, arguments[argument], slots):
            break
        record = following(record)
        number += 1
    if number == left:
        result = call(header, slots)
    if held != 0:
        drop(Ptr[Ptr[Object]](memory), i64(held >> 3))
    return result


@native
def order(
    header: Ptr[Plan], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object], ordered: Ptr[Ptr[Object]]
) -> bool:
    """Whether there is one argument for each parameter; they are in `ordered` then."""
    count, keywords = header.count, PyTuple_Size(names)
    if positional + keywords != count:
        return False
    for number in range(count):
        ordered[number] = arguments[number] if number < positional else Ptr[Object](None)
    for number in range(keywords):
        name, place = PyTuple_GetItem(names, number), positional
        while place < count and header.names[place] != name:
            place += 1
        if place == count or ordered[place] != None:  # no parameter of this very name is left
            return False
        ordered[place] = arguments[positional + number]
    return True


@native
def make(header: Ptr[Plan], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]) -> Ptr[Object]:
    """Make a call by a plan: as `run`."""
    if names == None:
        return run(header, arguments) if positional == header.count else Ptr[Object](NOT_FORESEEN)
    ordered = local(Ptr[Object], header.count)
    if not order(header, arguments, positional, names, ordered):
        return Ptr[Object](NOT_FORESEEN)
    return run(header, ordered)


@native
def holds(guard: Ptr[GuardWords]) -> bool:
    """Whether a guard holds; if not, there may be an error."""
    kind, owner, wanted = guard.kind, Ptr[Object](guard.owner), Ptr[Object](guard.wanted)
    if kind == guarding.IN_DICT:
        found = PyDict_GetItemWithError(owner, Ptr[Object](guard.key))
        return found == wanted and (found != None or PyErr_Occurred() == None)
    if kind == guarding.IS_WORD:
        return Ptr[u64](owner)[0] == address(wanted)
    if kind == guarding.IS_ZERO:
        return Ptr[u64](owner)[0] == 0
    if kind == guarding.IN_CELL:
        found = PyCell_Get(owner)
        Py_DecRef(found)  # the cell keeps it; null is fine
        return found != None and found == wanted
    if kind == guarding.ALL_OF:
        return guards_hold(Ptr[Guards](owner))
    found = PyObject_CallNoArgs(owner)
    if found == None:
        return False
    truth = PyObject_IsTrue(found)
    Py_DecRef(found)
    return truth == 1


@calls.export
def guards_hold(table: Ptr[Guards]) -> bool:
    """Whether all guards of a table hold; no error is left."""
    for number in range(table.count):
        if not holds(table.guards[number]):
            PyErr_Clear()
            return False
    return True


@native
def call_by_plan(
    role: Ptr[Role], function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]
) -> Ptr[Object]:
    held = at(function, role.slot)
    if held != None:
        header = Ptr[Plan](Ptr(held) + plan.BYTES_DATA)
        if guards_hold(header.guards):
            result = make(header, arguments, positional, names)
            if address(result) != NOT_FORESEEN:
                return result
    return leave(role.python, function, arguments, positional, names)


@calls.export
def call_compiled(
    function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]
) -> Ptr[Object]:
    """`__call__` of a compiled function: one plan."""
    return call_by_plan(ref(world.place).compiled, function, arguments, positional, names)


@calls.export
def call_door(function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]) -> Ptr[Object]:
    """`__call__` of what stands for a compiled function elsewhere: its plan."""
    return call_by_plan(ref(world.place).door, function, arguments, positional, names)


@calls.export
def call_jit(function: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]) -> Ptr[Object]:
    """`__call__` of a jit function: plans of several specializations, each with guards, are tried in order. What holds them is
    kept while the call lasts, as guards may run Python."""
    role, result = world.place.jit, Ptr[Object](NOT_FORESEEN)
    held = at(function, role.slot)
    if held != None:
        Py_IncRef(held)
        candidates = Ptr[Candidates](Ptr(PyTuple_GetItem(held, 0)) + plan.BYTES_DATA)
        if guards_hold(candidates.guards):
            for number in range(candidates.count):
                header = candidates.plans[number]
                if guards_hold(header.guards):
                    result = make(header, arguments, positional, names)
                    if address(result) != NOT_FORESEEN:
                        break
        Py_DecRef(held)
    if address(result) != NOT_FORESEEN:
        return result
    return leave(role.python, function, arguments, positional, names)
