# pyright: reportReturnType=false
"""Arrays of JAX: they have no C functions, so their own methods are called, of which each takes a fraction of a microsecond.

What does not change is kept: arrays of a kind share the objects that tell type and shape (`aval`), device (`_sharding`) and order of axes (`_pjrt_layout`). Python
says once what three such objects mean. And an array stays where it is once it is there: one that was read before is only asked whether it was deleted.
"""

from __future__ import annotations

from ...native import Array, Library, Ptr, address, i32, i64, local, native, ref, struct, u32, u64
from .arrays import DLTensor
from .cpython import (
    FREE_BEFORE,
    Object,
    Py_DecRef,
    PyErr_Clear,
    PyErr_Occurred,
    PyLong_AsUnsignedLongLongMask,
    PyObject_CallNoArgs,
    PyObject_GetAttr,
    PyWeakref_NewRef,
    vectorcall,
)
from .process import world

KINDS, RANK, SEEN = 64, 8, 256
SPREAD = 0x9E3779B97F4A7C15
"""Multiplied by it, addresses that differ little differ in their first bits."""


@struct
class Kind:
    """What three objects mean: they are kept alive."""

    aval: Ptr[Object]
    sharding: Ptr[Object]
    layout: Ptr[Object]
    device: u32
    device_number: u32
    type: u32
    """DLPack's."""
    rank: i32
    shape: Array[i64, RANK]
    strides: Array[i64, RANK]


@struct
class Seen:
    """An array that was read, if the reference, a weak one, still leads to it."""

    array: Ptr[Object]
    reference: Ptr[Object]
    kind: Ptr[Kind]
    data: u64


@struct
class Jax:
    """Names of attributes, methods of the class of arrays, kinds of arrays, and arrays by their addresses."""

    aval: Ptr[Object]
    sharding: Ptr[Object]
    layout: Ptr[Object]
    is_ready: Ptr[Object]
    wait: Ptr[Object]
    pointer: Ptr[Object]
    is_deleted: Ptr[Object]
    count: i64
    kinds: Array[Kind, KINDS]
    seen: Array[Seen, SEEN]


reading = Library("jax_arrays", prefix="kiln_", passes=1, opt=1)
jax = reading.variable("jax", Jax)


@native
def ask(method: Ptr[Object], array: Ptr[Object]) -> Ptr[Object]:
    """Call a method without arguments."""
    given = local(Ptr[Object], 2)
    given[1] = array
    return vectorcall(method, given + 1, u64(1) | FREE_BEFORE, None)


@native
def find(aval: Ptr[Object], sharding: Ptr[Object], layout: Ptr[Object]) -> Ptr[Kind]:
    known = jax.place
    for number in range(known.count):
        kind = ref(known.kinds)[number]
        if kind.aval == aval and kind.sharding == sharding and kind.layout == layout:
            return kind
    return None


@native
def kind_of(array: Ptr[Object]) -> Ptr[Kind]:
    known, found = jax.place, Ptr[Kind](None)
    aval = PyObject_GetAttr(array, known.aval)
    sharding = PyObject_GetAttr(array, known.sharding)
    layout = PyObject_GetAttr(array, known.layout)
    if aval != None and sharding != None and layout != None:
        found = find(aval, sharding, layout)
    Py_DecRef(aval)  # null is fine; what was found is kept
    Py_DecRef(sharding)
    Py_DecRef(layout)
    return found


@native
def is_finished(array: Ptr[Object]) -> bool:
    """Whether the array is there; it is waited for. JAX does not say which stream it works on."""
    known = jax.place
    ready = ask(known.is_ready, array)
    if ready == None:
        return False
    Py_DecRef(ready)
    if ready == world.place.true:
        return True
    waited = ask(known.wait, array)
    Py_DecRef(waited)
    return waited != None


@native
def describe(kind: Ptr[Kind], data: u64, tensor: Ptr[DLTensor]) -> None:
    tensor.data = data
    tensor.device = kind.device
    tensor.device_number = kind.device_number
    tensor.rank = kind.rank
    tensor.type = kind.type
    tensor.shape = kind.shape
    tensor.strides = kind.strides
    tensor.offset = 0


@native
def place_of(array: Ptr[Object]) -> Ptr[Seen]:
    return ref(jax.place.seen)[i64(address(array) * u64(SPREAD) >> u64(56))]


@native
def was_seen(array: Ptr[Object], tensor: Ptr[DLTensor]) -> bool:
    """Whether an array was read before and is still there. Others may run while it is asked, and see other arrays in its place."""
    seen = place_of(array)
    if seen.array != array:
        return False
    kind, data, found = seen.kind, seen.data, PyObject_CallNoArgs(seen.reference)
    Py_DecRef(found)  # the caller holds the array
    if found != array:
        return False
    describe(kind, data, tensor)
    deleted = ask(jax.place.is_deleted, array)
    Py_DecRef(deleted)
    if deleted != world.place.false:
        PyErr_Clear()
        return False
    return True


@native
def see(array: Ptr[Object], kind: Ptr[Kind], data: u64) -> None:
    """Remember an array."""
    seen, reference = place_of(array), PyWeakref_NewRef(array, None)
    if reference == None:
        PyErr_Clear()
        return
    before = seen.reference
    seen.array = array
    seen.reference = reference
    seen.kind = kind
    seen.data = data
    Py_DecRef(before)  # null is fine


@reading.export
def read_jax(array: Ptr[Object], tensor: Ptr[DLTensor]) -> i32:
    """As DLPack's `dltensor_from_py_object_no_sync`: 0, and what there is to know of an array."""
    if was_seen(array, tensor):
        return 0
    where = ask(jax.place.pointer, array)
    if where == None:  # it was deleted; JAX ends the process if it is then asked for other things
        PyErr_Clear()
        return 1
    data = PyLong_AsUnsignedLongLongMask(where)
    Py_DecRef(where)
    kind = kind_of(array)
    if kind == None or PyErr_Occurred() != None:
        PyErr_Clear()
        return 1
    aval = kind.aval
    if not is_finished(array) or kind.aval != aval:  # others run while an array is waited for, and may forget a kind
        PyErr_Clear()
        return 1
    describe(kind, data, tensor)
    see(array, kind, data)
    return 0
