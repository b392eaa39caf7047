# pyright: reportReturnType=false
"""Reads arrays of JAX. They have no C functions, so native code calls their methods, a fraction of a microsecond each.

Arrays of one type, shape, device and order of axes share the objects `aval`, `_sharding` and `_pjrt_layout`; Python
registers once what three such objects mean. An array does not move once it is ready: for one that was read before,
native code only asks whether it was deleted.
"""

from __future__ import annotations

from ...native import Array, Library, Ptr, address, assign, i32, i64, local, native, ref, struct, u32, u64
from . import cpython
from .arrays import DLTensor
from .cpython import Object
from .process import process

KINDS = 64
RANK = 8
SEEN = 256
SPREAD = 0x9E3779B97F4A7C15
"""A multiplicative hash: addresses that differ little differ in the upper bits of the hash."""


@struct
class Kind:
    """The element type, device, extents and strides that `aval`, `_sharding` and `_pjrt_layout` of an array stand for.

    Python keeps the three objects alive.
    """

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
    """An array that was read before. It counts only while the weak reference leads to that very object."""

    array: Ptr[Object]
    reference: Ptr[Object]
    kind: Ptr[Kind]
    data: u64


@struct
class Jax:
    """Names of attributes, methods of the array class, kinds of arrays, and a hash table of arrays by address."""

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


reading: Library = Library("jax_arrays", prefix="kiln_", passes=1, opt=1)
jax = reading.variable("jax", Jax)


@native
def ask(method: Ptr[Object], array: Ptr[Object]) -> Ptr[Object]:
    """Call a method of an array without arguments."""
    passed = local(Ptr[Object], 2)
    passed[1] = array
    return cpython.vectorcall(method, passed + 1, u64(1) | cpython.FREE_BEFORE, None)


@native
def find(aval: Ptr[Object], sharding: Ptr[Object], layout: Ptr[Object]) -> Ptr[Kind]:
    """Return the registered kind of three objects, or null."""
    jax_types = jax.place
    for number in range(jax_types.count):
        kind = ref(jax_types.kinds)[number]
        if kind.aval == aval and kind.sharding == sharding and kind.layout == layout:
            return kind
    return None


@native
def kind_of(array: Ptr[Object]) -> Ptr[Kind]:
    """Return the registered kind of an array, or null."""
    jax_types = jax.place
    kind = Ptr[Kind](None)
    aval = cpython.PyObject_GetAttr(array, jax_types.aval)
    sharding = cpython.PyObject_GetAttr(array, jax_types.sharding)
    layout = cpython.PyObject_GetAttr(array, jax_types.layout)
    if aval != None and sharding != None and layout != None:
        kind = find(aval, sharding, layout)
    cpython.Py_DecRef(aval)  # null is fine; what was found is kept
    cpython.Py_DecRef(sharding)
    cpython.Py_DecRef(layout)
    return kind


@native
def is_finished(array: Ptr[Object]) -> bool:
    """Wait until an array is computed: JAX does not tell its stream. False after an error."""
    jax_types = jax.place
    ready = ask(jax_types.is_ready, array)
    if ready == None:
        return False
    cpython.Py_DecRef(ready)
    if ready == process.place.true:
        return True
    waited = ask(jax_types.wait, array)
    cpython.Py_DecRef(waited)
    return waited != None


@native
def describe(kind: Ptr[Kind], data: u64, tensor: Ptr[DLTensor]) -> None:
    """Fill a DLTensor."""
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
    """Return the entry of the hash table for an array."""
    return ref(jax.place.seen)[i64(address(array) * u64(SPREAD) >> u64(56))]


@native
def was_seen(array: Ptr[Object], tensor: Ptr[DLTensor]) -> bool:
    """Fill a DLTensor for an array that was read before and was not deleted. Returns whether it was.

    Other threads may run and replace the entry, so its fields are read first.
    """
    seen = place_of(array)
    if seen.array != array:
        return False
    kind = seen.kind
    data = seen.data
    referent = cpython.PyObject_CallNoArgs(seen.reference)
    cpython.Py_DecRef(referent)  # the caller holds the array
    if referent != array:
        return False
    describe(kind, data, tensor)
    deleted = ask(jax.place.is_deleted, array)
    cpython.Py_DecRef(deleted)
    if deleted != process.place.false:
        cpython.PyErr_Clear()
        return False
    return True


@native
def see(array: Ptr[Object], kind: Ptr[Kind], data: u64) -> None:
    """Enter an array into the hash table."""
    seen = place_of(array)
    reference = cpython.PyWeakref_NewRef(array, None)
    if reference == None:
        cpython.PyErr_Clear()
        return
    before = seen.reference
    assign(seen, array=array, reference=reference, kind=kind, data=data)
    cpython.Py_DecRef(before)  # null is fine


@reading.export
def read_jax(array: Ptr[Object], tensor: Ptr[DLTensor]) -> i32:
    """Do what DLPack's `dltensor_from_py_object_no_sync` does: fill a DLTensor and return 0."""
    if was_seen(array, tensor):
        return 0
    where = ask(jax.place.pointer, array)
    if where == None:  # it was deleted; asking for more would make JAX abort the process
        cpython.PyErr_Clear()
        return 1
    data = cpython.PyLong_AsUnsignedLongLongMask(where)
    cpython.Py_DecRef(where)
    kind = kind_of(array)
    if kind == None or cpython.PyErr_Occurred() != None:
        cpython.PyErr_Clear()
        return 1
    aval = kind.aval
    if not is_finished(array) or kind.aval != aval:  # another thread may replace the kind while this one waits
        cpython.PyErr_Clear()
        return 1
    describe(kind, data, tensor)
    see(array, kind, data)
    return 0
