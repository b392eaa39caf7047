# pyright: reportReturnType=false
"""CPython's C API, as far as native code uses it: functions that 3.9 and later export, and the head of every object."""

from __future__ import annotations

from ...native import Fn, Ptr, address, extern, f64, i32, i64, local, native, struct, u64
from ...native.functions import Function


@struct
class Object:
    """The head of every Python object."""

    count: u64
    kind: Ptr[Object]


@extern
def PyLong_AsLongLongAndOverflow(value: Ptr[Object], overflow: Ptr[i32]) -> i64: ...
@extern
def PyLong_AsUnsignedLongLongMask(value: Ptr[Object]) -> u64: ...
@extern
def PyLong_AsDouble(value: Ptr[Object]) -> f64: ...
@extern
def PyLong_FromLongLong(value: i64) -> Ptr[Object]: ...
@extern
def PyLong_FromUnsignedLongLong(value: u64) -> Ptr[Object]: ...
@extern
def PyFloat_AsDouble(value: Ptr[Object]) -> f64: ...
@extern
def PyFloat_FromDouble(value: f64) -> Ptr[Object]: ...
@extern
def PyBool_FromLong(value: i64) -> Ptr[Object]: ...
@extern
def PyBytes_FromStringAndSize(data: Ptr, size: u64) -> Ptr[Object]: ...
@extern
def PyNumber_Long(value: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyErr_Occurred() -> Ptr[Object]: ...
@extern
def PyErr_Clear() -> None: ...
@extern
def PyObject_GetAttr(value: Ptr[Object], name: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyObject_IsTrue(value: Ptr[Object]) -> i32: ...
@extern
def PyObject_CallNoArgs(function: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyObject_VectorcallDict(
    function: Ptr[Object], arguments: Ptr[Ptr[Object]], count: u64, named: Ptr[Object]
) -> Ptr[Object]: ...
@extern
def PyFunction_GetCode(function: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyFunction_GetGlobals(function: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyFunction_GetDefaults(function: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyFunction_GetKwDefaults(function: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyFunction_GetClosure(function: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyUnicode_AsUTF8AndSize(text: Ptr[Object], size: Ptr[u64]) -> Ptr: ...
@extern
def PyTuple_New(count: i64) -> Ptr[Object]: ...
@extern
def PyTuple_SetItem(value: Ptr[Object], index: i64, item: Ptr[Object]) -> i32: ...
@extern
def PyTuple_Size(value: Ptr[Object]) -> i64: ...
@extern
def PyTuple_GetItem(value: Ptr[Object], index: i64) -> Ptr[Object]: ...
@extern
def PyList_AsTuple(value: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyDict_GetItemWithError(value: Ptr[Object], key: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyDict_New() -> Ptr[Object]: ...
@extern
def PyDict_SetItem(value: Ptr[Object], key: Ptr[Object], item: Ptr[Object]) -> i32: ...
@extern
def PyCell_Get(cell: Ptr[Object]) -> Ptr[Object]: ...
@extern
def PyEval_SaveThread() -> Ptr: ...
@extern
def PyEval_RestoreThread(thread: Ptr) -> None: ...
@extern
def PyGILState_Ensure() -> i32: ...
@extern
def PyGILState_Release(state: i32) -> None: ...
@extern
def PyWeakref_NewRef(value: Ptr[Object], callback: Ptr[Object]) -> Ptr[Object]: ...
@extern
def Py_IncRef(value: Ptr[Object]) -> None: ...
@extern
def Py_DecRef(value: Ptr[Object]) -> None: ...


API = tuple(name for name, value in list(globals().items()) if isinstance(value, Function))


@extern
def memcpy(to: Ptr, source: Ptr, size: u64) -> Ptr: ...
@extern
def memset(to: Ptr, value: i32, size: u64) -> Ptr: ...


FREE_BEFORE = 1 << 63
"""PY_VECTORCALL_ARGUMENTS_OFFSET: the callee may use the place before the arguments."""


VECTORCALL_OFFSET = 56
FLAGS = 168
HAS_VECTORCALL = 1 << 11
"""Offsets of `tp_vectorcall_offset` and `tp_flags` in a type, and a flag; checked before native code relies on them."""


@native
def vectorcall(function: Ptr[Object], arguments: Ptr[Ptr[Object]], count: u64, names: Ptr[Object]) -> Ptr[Object]:
    """Do what PyObject_Vectorcall does, which Python 3.10 does not export."""
    if names == None:
        return PyObject_VectorcallDict(function, arguments, count, None)
    kind = Ptr(function.kind)
    if Ptr[u64](kind + FLAGS)[0] & HAS_VECTORCALL != 0:
        call = Ptr[u64](Ptr(function) + Ptr[u64](kind + VECTORCALL_OFFSET)[0])[0]
        if call != 0:
            return Fn[[Ptr[Object], Ptr[Ptr[Object]], u64, Ptr[Object]], Ptr[Object]](call)(
                function, arguments, count, names
            )
    named = PyDict_New()
    result = Ptr[Object](None)
    positional = i64(count & (FREE_BEFORE - 1))
    if named == None:
        return None
    good = True
    for number in range(PyTuple_Size(names)):
        good = good and PyDict_SetItem(named, PyTuple_GetItem(names, number), arguments[positional + number]) == 0
    if good:
        result = PyObject_VectorcallDict(function, arguments, count, named)
    Py_DecRef(named)
    return result


@native
def call_python(
    python: Ptr[Object], first: Ptr[Object], arguments: Ptr[Ptr[Object]], positional: i64, names: Ptr[Object]
) -> Ptr[Object]:
    """Call a Python function with `first` before the other arguments, which are as METH_FASTCALL passes them."""
    count = positional
    if names != None:
        count += PyTuple_Size(names)
    passed = local(Ptr[Object], count + 2)
    passed[1] = first
    memcpy(passed + 2, arguments, 8 * u64(count))
    return vectorcall(python, passed + 1, u64(positional + 1) | FREE_BEFORE, names)


@native
def decref_all(objects: Ptr[Ptr[Object]], count: i64) -> None:
    """Drop references to some objects, which may be null."""
    for number in range(count):
        Py_DecRef(objects[number])


@native
def execute(entry: Fn[[Ptr], Ptr], slots: Ptr, report: Ptr[Object]) -> bool:
    """Run compiled code without the GIL. Its report is passed to `report`; False if that raises."""
    thread = PyEval_SaveThread()
    record = entry(slots)
    PyEval_RestoreThread(thread)
    if record == None:
        return True
    number = PyLong_FromUnsignedLongLong(address(record))
    if number == None:
        return False
    returned = call_python(report, number, None, 0, None)
    Py_DecRef(number)
    Py_DecRef(returned)
    return returned != None


@native
def whole_number(value: Ptr[Object], number: Ptr[i64]) -> bool:
    """Read an int. Returns whether it fits 64 bits."""
    overflow = local(i32)
    number[0] = PyLong_AsLongLongAndOverflow(value, overflow)
    return overflow[0] == 0
