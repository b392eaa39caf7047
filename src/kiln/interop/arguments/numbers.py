# pyright: reportReturnType=false
"""Numbers and streams: reading them from Python objects, and returning results."""

from __future__ import annotations

from ...native import Ptr, f32, f64, i32, i64, local, native, u64
from . import cpython, plan
from .cpython import Object
from .plan import IntegerRecord, Plan, RealRecord
from .process import STREAMS, at, process


@native
def plain_number(value: Ptr[Object], typed: Ptr, plain: Ptr[Ptr[Object]]) -> bool:
    """Find the Python number in a value, which may have the numeric type `typed`. Returns whether it has."""
    plain[0] = value
    if value.kind != Ptr[Object](typed):
        return False
    slot = process.place.number_slot
    plain[0] = at(value, slot) if slot != 0 else Ptr[Object](None)
    return True


@native
def type_bit(value: Ptr[Object]) -> i64:
    """Return the bit of a value's Python type (see `plan.INT`); 0 for other types and null."""
    if value == None:
        return 0
    kind = value.kind
    types = process.place
    if kind == types.int_type:
        return plan.INT
    if kind == types.float_type:
        return plan.FLOAT
    if kind == types.bool_type:
        return plan.BOOL
    return 0


@native
def take_integer(record: Ptr[IntegerRecord], value: Ptr[Object], place: Ptr[i64]) -> bool:
    """Read an integer within the bounds of its record. Returns whether it matched."""
    plain = local(Ptr[Object])
    number = local(i64)
    typed = plain_number(value, record.typed, plain)
    allowed = i64(plan.INT | plan.BOOL) if typed else record.types & (plan.INT | plan.BOOL)
    if type_bit(plain[0]) & allowed == 0 or not cpython.whole_number(plain[0], number):
        return False
    integer = number[0]
    if integer < record.least or integer > record.greatest:
        return False
    if record.hole != 0 and not typed and integer == i64(i32(integer)):
        return False
    place[0] = integer
    return True


@native
def take_real(record: Ptr[RealRecord], value: Ptr[Object], place: Ptr[u64]) -> bool:
    """Read a float. Returns whether it matched. One too large for 32 bits is left to Python, which refuses it."""
    plain = local(Ptr[Object])
    typed = plain_number(value, record.typed, plain)
    bit = type_bit(plain[0]) & (i64(plan.TYPED) if typed else record.types)
    if bit == 0:
        return False
    number = cpython.PyFloat_AsDouble(plain[0]) if bit == plan.FLOAT else cpython.PyLong_AsDouble(plain[0])
    if bit != plan.FLOAT and cpython.PyErr_Occurred() != None:
        cpython.PyErr_Clear()
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
    """Read the handle of a stream of a registered type. Returns whether it matched."""
    types = process.place
    kind = value.kind
    for number in range(STREAMS):
        if kind == types.streams[number].type:
            attribute = types.streams[number].attribute
            handle = cpython.PyNumber_Long(value) if attribute == None else cpython.PyObject_GetAttr(value, attribute)
            if handle != None:
                place[0] = cpython.PyLong_AsUnsignedLongLongMask(handle)
                cpython.Py_DecRef(handle)
            if cpython.PyErr_Occurred() != None:
                cpython.PyErr_Clear()
                return False
            return True
    return False


@native
def result_of(header: Ptr[Plan], slots: Ptr) -> Ptr[Object]:
    """Return the result of a call as a Python object; null if there is no memory for it."""
    kind = header.result & 0xFF
    place = slots + header.result_at
    if kind == plan.NO_RESULT:
        value = Ptr[Object](header.value)
        cpython.Py_IncRef(value)
        return value
    if kind == plan.REAL32:
        return cpython.PyFloat_FromDouble(f64(Ptr[f32](place)[0]))
    if kind == plan.REAL64:
        return cpython.PyFloat_FromDouble(Ptr[f64](place)[0])
    bits = Ptr[u64](place)[0]
    if kind == plan.TRUTH:
        return cpython.PyBool_FromLong(i64(bits & 1))
    above = (64 - 8 * (header.result >> 8)) & 63  # bits above the bytes of an integer are undefined
    if kind == plan.SIGNED:
        return cpython.PyLong_FromLongLong(i64(bits << u64(above)) >> above)
    return cpython.PyLong_FromUnsignedLongLong((bits << u64(above)) >> u64(above))
