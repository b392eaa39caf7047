# pyright: reportReturnType=false
"""Reads arrays: numpy's by their fields, others through DLPack's C functions, prepared ones by their argument records.

Each way finds address, extents and strides in elements; `fit` checks them against a record and writes the slots.
"""

from __future__ import annotations

from ...native import Array, Fn, Ptr, address, i32, i64, inline, local, native, ref, struct, u32, u64
from . import cpython, plan
from .cpython import Object
from .plan import (
    DYNAMIC64,
    EXACT,
    NOT_ALIGNED,
    NOT_ALIGNED_ROWS,
    NOT_WHOLE_VECTORS,
    READONLY,
    STATIC,
    UNCOUNTED,
    WRITTEN,
    ArgumentRecordHead,
    ArrayRecord,
)
from .process import ARRAYS, PREPARED, ArrayType, at, calls, process

_INT32_MAX = (1 << 31) - 1
VECTOR_BYTES = 16
WRITEABLE = 0x400
"""NPY_ARRAY_WRITEABLE"""


@struct
class NumpyType:
    """A numpy dtype."""

    head: Array[u64, 3]
    identity: u64
    """The word that tells it from others (see `plan.numpy_type`)."""


@struct
class NumpyArray:
    """A numpy array; the same in numpy 1 and 2, and checked before native code relies on it."""

    count: u64
    kind: Ptr[Object]
    data: u64
    rank: i32
    shape: Ptr[i64]
    strides: Ptr[i64]
    """The strides in bytes."""
    base: Ptr[Object]
    dtype: Ptr[NumpyType]
    flags: i32


@struct
class DLTensor:
    """DLPack's DLTensor."""

    data: u64
    device: u32
    device_number: u32
    rank: i32
    type: u32
    shape: Ptr[i64]
    strides: Ptr[i64]
    offset: u64


@struct
class ArrayFacts:
    """An array as native code reads it."""

    kind: u64
    """TENSOR or NUMPY."""
    type: u64
    facts: u64
    """Its rank, and above that its device (TENSOR) or whether it is writable (NUMPY)."""
    address: u64
    rank: i64
    shape: Ptr[i64]
    strides: Ptr[i64]
    stream: Fn[[i32, i32, Ptr[u64]], i32]
    """Finds the current stream of the device; null for numpy."""
    device: u64


TENSOR = 1
NUMPY = 2


# --- as arguments ----------------------------------------------------------------------------------------------------


@native
def leading_mode(shape: Ptr[i64], strides: Ptr[i64], rank: i64) -> i64:
    """Return the leading mode as Python finds it, or -1.

    Of several modes of stride 1 it is the last whose extent is not 1, else the last.
    """
    leading = i64(-1)
    for mode in range(rank):
        if strides[mode] == 1:
            if leading < 0 or shape[mode] != 1 or shape[leading] == 1:
                leading = mode
    return leading


@inline
def is_dynamic_leaf(leaf, number):
    """Return whether a dynamic leaf accepts a number."""
    divides = leaf.number == 1 or u64(number) % u64(leaf.number) == 0
    return divides and (number <= _INT32_MAX or leaf.kind == DYNAMIC64)


@native
def fit(record: Ptr[ArrayRecord], where: u64, shape: Ptr[i64], strides: Ptr[i64], place: Ptr[u64]) -> bool:
    """Write the slots of an array of the record's rank. Returns whether it matches the record.

    No factor exceeds the limit, so two of them multiplied fit a word. The strides of an array without elements mean
    nothing: Python takes it.
    """
    rank = record.rank
    limit = record.limit
    exact = record.flags & EXACT != 0
    if where & record.alignment != 0:
        return False
    if exact and leading_mode(shape, strides, rank) != record.leading:
        return False
    place[0] = where
    out = Ptr[i64](place + 1)
    leaf = record.leaves
    total = i64(1)
    for mode in range(rank):
        number = shape[mode]
        if number < 1 or number > limit:
            return False
        total *= number
        if total > limit:
            if record.flags & UNCOUNTED == 0:
                return False
            total = i64(1)
        if leaf.kind == STATIC:
            if number != leaf.number:
                return False
        else:
            if not is_dynamic_leaf(leaf, number):
                return False
            out[0] = number
            out += 1
        leaf += 1
    total = i64(0)
    steps = i64(0)
    for mode in range(rank):
        number = strides[mode]
        last = shape[mode] - 1
        if number < 0:
            return False
        if last != 0 and leaf.kind != DYNAMIC64:
            if number > limit:
                return False
            total += last * number
            if total > limit:
                return False
        if leaf.kind == STATIC:
            if number != leaf.number and (exact or last != 0):
                return False
        else:
            if (exact and number == 0) or not is_dynamic_leaf(leaf, number):
                return False
            steps |= number
            out[0] = number
            out += 1
        leaf += 1
    return is_no_more(record, where, steps, shape)


@inline
def is_no_more(record, where, steps, shape):
    """Return whether an array is none of those for which there is a stronger specialisation."""
    flags = record.flags
    in_elements = (i64(VECTOR_BYTES) >> record.shift) - 1
    rest = i64(1)
    if flags & (NOT_ALIGNED | NOT_ALIGNED_ROWS | NOT_WHOLE_VECTORS) != 0:
        if flags & NOT_ALIGNED != 0:
            rest = i64(where) & (VECTOR_BYTES - 1)
        elif flags & NOT_ALIGNED_ROWS != 0:
            rest = steps & in_elements
        else:
            rest = shape[record.leading] & in_elements
    return rest != 0


@inline
def allowed(record, readonly, device):
    """Return whether the record accepts memory of this kind."""
    flags = record.flags
    agree = readonly == (flags & READONLY != 0)
    fits = agree or not (flags & EXACT != 0 or readonly)
    return fits and device < 64 and (record.devices >> device) & 1 != 0


@native
def take_prepared(record: Ptr[ArrayRecord], value: Ptr[Object], slot: u64, place: Ptr[u64]) -> bool:
    """Read a prepared argument by its argument record. Returns whether it matches."""
    held = at(value, slot)
    if held == None:
        return False
    if held.kind != process.place.bytes_type:
        return False
    prepared = Ptr[ArgumentRecordHead](Ptr(held) + plan.BYTES_DATA)
    rank = record.rank
    shape = prepared.layout
    strides = shape + rank
    if prepared.signature == record.signature:
        leaves = Ptr[u64](strides + rank)
        for number in range(record.words):
            place[number] = leaves[number]
        return True
    element = prepared.element
    if record.flags & EXACT != 0 or (element != record.element and element != record.other_element):
        return False
    if prepared.rank != rank or not allowed(record, prepared.readonly != 0, prepared.device):
        return False
    return fit(record, prepared.address, shape, strides, place)


@native
def take_numpy(record: Ptr[ArrayRecord], array: Ptr[NumpyArray], place: Ptr[u64]) -> bool:
    """Read a numpy array. Returns whether it matches."""
    rank = i64(array.rank)
    shift = record.shift
    if rank != record.rank or array.dtype.identity != record.numpy:
        return False
    if not allowed(record, array.flags & WRITEABLE == 0, u64(plan.CPU)):
        return False
    strides = local(i64, plan.MAX_RANK)
    rest = (i64(1) << shift) - 1
    for mode in range(rank):
        stride = array.strides[mode]
        if stride & rest != 0:
            return False
        strides[mode] = stride >> shift
    return fit(record, array.data, array.shape, strides, place)


@native
def is_empty(tensor: Ptr[DLTensor]) -> bool:
    """Return whether an array has no elements. Only then may it have no memory: storage can be freed and not be there yet."""
    for mode in range(i64(tensor.rank)):
        if tensor.shape[mode] == 0:
            return True
    return False


@native
def read_tensor(kind: Ptr[ArrayType], value: Ptr[Object], tensor: Ptr[DLTensor]) -> bool:
    """Fill a DLTensor for an array of a registered type; False if it is not what lies in its memory."""
    if Ptr[u64](Ptr(at(value, kind.inner)) + kind.bits)[0] & kind.refused != 0:
        return False
    if kind.read(value, tensor) != 0:
        cpython.PyErr_Clear()
        return False
    return tensor.data + tensor.offset != 0 or is_empty(tensor)


@inline
def count_write(kind, value):
    """Count a write to an array of a registered type, if its framework counts writes to it."""
    inner = Ptr[u64](Ptr(value) + kind.inner)
    if kind.counted != 0 and Ptr[u64](Ptr(inner[0]) + kind.bits)[0] & kind.counted != 0:
        kind.count_write(inner)


@calls.export
def note_write(value: Ptr[Object]) -> None:
    """Count a write to an object, if it is an array whose framework counts them."""
    types = process.place
    if value == None:
        return
    for number in range(ARRAYS):
        if value.kind == types.arrays[number].type:
            count_write(types.arrays[number], value)


@native
def take_tensor(record: Ptr[ArrayRecord], value: Ptr[Object], kind: Ptr[ArrayType], place: Ptr[u64]) -> bool:
    """Read an array through its framework's DLPack functions. Returns whether it matches."""
    tensor = local(DLTensor)
    if not read_tensor(kind, value, tensor):
        return False
    if i64(tensor.type) != record.dlpack or i64(tensor.rank) != record.rank:
        return False
    if not allowed(record, False, u64(tensor.device)):
        return False
    if tensor.rank != 0 and tensor.strides == None:  # compact, in old producers
        return False
    if not fit(record, tensor.data + tensor.offset, tensor.shape, tensor.strides, place):
        return False
    if record.flags & WRITTEN != 0:
        count_write(kind, value)
    return True


@native
def take_array(record: Ptr[ArrayRecord], value: Ptr[Object], place: Ptr[u64]) -> bool:
    """Read an array of any registered type. Returns whether it matches."""
    types = process.place
    kind = value.kind
    if kind == types.ndarray:
        return take_numpy(record, Ptr[NumpyArray](value), place)
    for number in range(PREPARED):
        if kind == types.prepared[number].type:
            if not take_prepared(record, value, types.prepared[number].slot, place):
                return False
            slot = types.prepared[number].array_slot
            if record.flags & WRITTEN != 0 and slot != 0:
                note_write(at(value, slot))
            return True
    for number in range(ARRAYS):
        if kind == types.arrays[number].type:
            return take_tensor(record, value, types.arrays[number], place)
    return False


@native
def take_ambient(value: Ptr[Object], place: Ptr[u64]) -> bool:
    """Find the current stream of an array's device, for a parameter that is not passed."""
    about = local(ArrayFacts)
    if not read_array(value, about):
        return False
    return about.kind == TENSOR and stream_of(about.stream, about.device, place)


# --- descriptions ----------------------------------------------------------------------------------------------------


@calls.export
def read_array(value: Ptr[Object], about: Ptr[ArrayFacts]) -> bool:
    """Read an array of a registered type; False for other values."""
    types = process.place
    kind = value.kind
    if kind == types.ndarray:
        array = Ptr[NumpyArray](value)
        rank = i64(array.rank)
        about.kind = NUMPY
        about.type = array.dtype.identity
        about.facts = u64(rank) | u64(array.flags & WRITEABLE) << 8
        about.address = array.data
        about.rank = rank
        about.shape = array.shape
        about.strides = array.strides
        about.stream = None
        about.device = plan.CPU
        return True
    for number in range(ARRAYS):
        if kind == types.arrays[number].type:
            tensor = local(DLTensor)
            if not read_tensor(types.arrays[number], value, tensor):
                return False
            rank = i64(tensor.rank)
            if rank != 0 and tensor.strides == None:
                return False
            device = u64(tensor.device) | u64(tensor.device_number) << 32
            about.kind = TENSOR
            about.type = u64(tensor.type)
            about.facts = u64(rank) | device << 8
            about.address = tensor.data + tensor.offset
            about.rank = rank
            about.shape = tensor.shape
            about.strides = tensor.strides
            about.stream = types.arrays[number].stream
            about.device = device
            return True
    return False


@calls.export
def stream_of(ask: Fn[[i32, i32, Ptr[u64]], i32], device: u64, place: Ptr[u64]) -> bool:
    """Find the stream that a framework works on; 0 for host memory."""
    place[0] = 0
    if u32(device) == plan.CPU:
        return True
    if ask == None:  # a framework without such a function
        return False
    if ask(i32(device), i32(device >> 32), place) != 0:
        cpython.PyErr_Clear()
        return False
    return True


@inline
def describe_array(about, out, alignment: int):
    """Write everything about an array that a kernel may depend on. Returns where that ends.

    That is its kind, type, device and rank, the address modulo `alignment`, the extents, and the strides (numpy's in
    bytes).
    """
    size = 8 * u64(about.rank)
    out[0] = about.kind
    out[1] = about.type
    out[2] = about.facts
    out[3] = about.address & (alignment - 1)
    cpython.memcpy(out + 4, about.shape, size)
    cpython.memcpy(out + 4 + about.rank, about.strides, size)
    return out + 4 + 2 * about.rank


_DESCRIBED_ARRAYS = 16
DESCRIBED_RANK = 8


@inline
def return_none():
    """Return Python's None with a new reference."""
    cpython.Py_IncRef(process.place.none)
    return process.place.none


@calls.export
def describe(module: Ptr[Object], arrays: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """Return everything about some arrays that a kernel may depend on, as bytes; None if a type is not registered.

    None in place of an array is a word of ones.
    """
    about = local(ArrayFacts)
    buffer = local(u64, _DESCRIBED_ARRAYS * (4 + 2 * DESCRIBED_RANK))
    if count > _DESCRIBED_ARRAYS:
        return return_none()
    end = ref(buffer)[0]
    for number in range(count):
        value = arrays[number]
        if value == process.place.none:
            end[0] = (1 << 64) - 1
            end += 1
        else:
            if not read_array(value, about):
                return return_none()
            if about.rank > DESCRIBED_RANK:
                return return_none()
            end = describe_array(about, end, plan.DESCRIBED_ALIGNMENT)
    return cpython.PyBytes_FromStringAndSize(buffer, address(end) - address(buffer))


@calls.export
def address_of(module: Ptr[Object], array: Ptr[Object]) -> Ptr[Object]:
    """Return the address of an array, or None if it cannot be read."""
    about = local(ArrayFacts)
    if read_array(array, about):
        return cpython.PyLong_FromUnsignedLongLong(about.address)
    return return_none()


@calls.export
def stream(module: Ptr[Object], array: Ptr[Object]) -> Ptr[Object]:
    """Return the handle of the stream that an array's framework works on, or None if it cannot be read."""
    about = local(ArrayFacts)
    handle = local(u64)
    if read_array(array, about) and stream_of(about.stream, about.device, handle):
        return cpython.PyLong_FromUnsignedLongLong(handle[0])
    return return_none()
