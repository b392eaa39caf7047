# pyright: reportReturnType=false
"""Numbers and streams: taking them from Python objects, and giving results back."""

from __future__ import annotations

from ...native import Ptr, f32, f64, i32, i64, local, native, u64
from . import plan
from .cpython import (
    Object,
    Py_DecRef,
    Py_IncRef,
    PyBool_FromLong,
    PyErr_Clear,
    PyErr_Occurred,
    PyFloat_AsDouble,
    PyFloat_FromDouble,
    PyLong_AsDouble,
    PyLong_AsUnsignedLongLongMask,
    PyLong_FromLongLong,
    PyLong_FromUnsignedLongLong,
    PyNumber_Long,
    PyObject_GetAttr,
    whole_number,
)
from .plan import IntegerRecord, Plan, RealRecord
from .process import STREAMS, at, world


@native
def plain_number(value: Ptr[Object], typed: Ptr, plain: Ptr[Ptr[Object]]) -> bool:
    """The Python number of a value, which may come with the numeric type; whether it did."""
    plain[0] = value
    if value.kind != Ptr[Object](typed):
        return False
    slot = world.place.number_slot
    plain[0] = at(value, slot) if slot != 0 else Ptr[Object](None)
    return True


@native
def type_bit(value: Ptr[Object]) -> i64:
    """Which of Python's types of numbers a value has; 0 for another, or for none."""
    if value == None:
        return 0
    kind, known = value.kind, world.place
    if kind == known.int_type:
        return plan.INT
    if kind == known.float_type:
        return plan.FLOAT
    if kind == known.bool_type:
        return plan.BOOL
    return 0


@native
def take_integer(record: Ptr[IntegerRecord], value: Ptr[Object], place: Ptr[i64]) -> bool:
    plain, number = local(Ptr[Object]), local(i64)
    typed = plain_number(value, record.typed, plain)
    allowed = i64(plan.INT | plan.BOOL) if typed else record.types & (plan.INT | plan.BOOL)
    if type_bit(plain[0]) & allowed == 0 or not whole_number(plain[0], number):
        return False
    found = number[0]
    if found < record.least or found > record.greatest:
        return False
    if record.hole != 0 and not typed and found == i64(i32(found)):
        return False
    place[0] = found
    return True


@native
def take_real(record: Ptr[RealRecord], value: Ptr[Object], place: Ptr[u64]) -> bool:
    """A float too large for 32 bits is left to Python, which refuses it."""
    plain = local(Ptr[Object])
    typed = plain_number(value, record.typed, plain)
    bit = type_bit(plain[0]) & (i64(plan.TYPED) if typed else record.types)
    if bit == 0:
        return False
    number = PyFloat_AsDouble(plain[0]) if bit == plan.FLOAT else PyLong_AsDouble(plain[0])
    if bit != plan.FLOAT and PyErr_Occurred() != None:
        PyErr_Clear()
        return False
    if record.bytes != 4:
        Ptr[f64](place)[0] = number
        return True
    short = f32(number)
    if short - short != 0 and number - number == 0:  # it became infinite
        return False
    place[0] = 0
    Ptr[f32](place)[0] = short
    return True


@native
def take_stream(value: Ptr[Object], place: Ptr[u64]) -> bool:
    known, kind = world.place, value.kind
    for number in range(STREAMS):
        if kind == known.streams[number].type:
            attribute = known.streams[number].attribute
            handle = PyNumber_Long(value) if attribute == None else PyObject_GetAttr(value, attribute)
            if handle != None:
                place[0] = PyLong_AsUnsignedLongLongMask(handle)
                Py_DecRef(handle)
            if PyErr_Occurred() != None:
                PyErr_Clear()
                return False
            return True
    return False


@native
def result_of(header: Ptr[Plan], slots: Ptr) -> Ptr[Object]:
    """What the call returns to Python; null if there is no memory for it."""
    kind, place = header.result & 0xFF, slots + header.result_at
    if kind == plan.NO_RESULT:
        value = Ptr[Object](header.value)
        Py_IncRef(value)
        return value
    if kind == plan.REAL32:
        return PyFloat_FromDouble(f64(Ptr[f32](place)[0]))
    if kind == plan.REAL64:
        return PyFloat_FromDouble(Ptr[f64](place)[0])
    bits = Ptr[u64](place)[0]
    if kind == plan.TRUTH:
        return PyBool_FromLong(i64(bits & 1))
    above = (64 - 8 * (header.result >> 8)) & 63  # an integer of so many bytes: what lies above them is undefined
    if kind == plan.SIGNED:
        return PyLong_FromLongLong(i64(bits << u64(above)) >> above)
    return PyLong_FromUnsignedLongLong((bits << u64(above)) >> u64(above))
