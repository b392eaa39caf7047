# pyright: reportReturnType=false
"""Arrays: numpy's by their fields, others' through DLPack's C functions, prepared ones by their passports.

Each way gives (address, extents, strides in elements); one function checks them against a record and writes the leaves.
"""

from __future__ import annotations

from ...native import Array, Fn, Ptr, address, i32, i64, inline, local, native, ref, struct, u32, u64
from . import plan
from .cpython import (
    Object,
    Py_IncRef,
    PyBytes_FromStringAndSize,
    PyErr_Clear,
    PyLong_FromUnsignedLongLong,
    memcpy,
)
from .plan import DYNAMIC64, EXACT, READONLY, STATIC, ArrayRecord, PassportHead
from .process import ARRAYS, PREPARED, ArrayType, at, calls, world

_INT32_MAX = (1 << 31) - 1
WRITEABLE = 0x400
"""numpy's flag."""


@struct
class NumpyType:
    first: Array[u64, 3]
    told: u64
    """What tells it from others (see `plan.numpy_type`)."""


@struct
class NumpyArray:
    """The same in numpy 1 and 2, and checked before it is relied on."""

    count: u64
    kind: Ptr[Object]
    data: u64
    rank: i32
    shape: Ptr[i64]
    strides: Ptr[i64]
    """In bytes."""
    base: Ptr[Object]
    dtype: Ptr[NumpyType]
    flags: i32


@struct
class DLTensor:
    data: u64
    device: u32
    device_number: u32
    rank: i32
    type: u32
    shape: Ptr[i64]
    strides: Ptr[i64]
    offset: u64


@struct
class About:
    """All there is to know about an array."""

    kind: u64
    """TENSOR or NUMPY."""
    type: u64
    facts: u64
    """Its device or whether it can be written to, and its rank."""
    address: u64
    rank: i64
    shape: Ptr[i64]
    strides: Ptr[i64]
    stream: Fn[[i32, i32, Ptr[u64]], i32]
    """Tells the stream of the device; null for numpy's."""
    device: u64


TENSOR, NUMPY = 1, 2


# --- as arguments ----------------------------------------------------------------------------------------------------


@native
def leading_mode(shape: Ptr[i64], strides: Ptr[i64], rank: i64) -> i64:
    """As Python finds it: of several modes of stride 1, the last whose extent is not 1, or else the last; -1 for none."""
    found = i64(-1)
    for mode in range(rank):
        if strides[mode] == 1:
            if found < 0 or shape[mode] != 1 or shape[found] == 1:
                found = mode
    return found


@inline
def is_dynamic_leaf(leaf, number):
    """Whether a number may be that of a dynamic leaf."""
    divides = leaf.number == 1 or u64(number) % u64(leaf.number) == 0
    return divides and (number <= _INT32_MAX or leaf.kind == DYNAMIC64)


@native
def fit(record: Ptr[ArrayRecord], where: u64, shape: Ptr[i64], strides: Ptr[i64], place: Ptr[u64]) -> bool:
    """Whether an array of the record's rank fits; its leaves are written.

    Neither factor of a product exceeds the limit, so products of limited ones fit a word. The strides of an array without
    elements say nothing: that is left to Python.
    """
    rank, limit, exact = record.rank, record.limit, record.flags & EXACT != 0
    if where & record.alignment != 0:
        return False
    if exact and leading_mode(shape, strides, rank) != record.leading:
        return False
    place[0] = where
    out, leaf, total = Ptr[i64](place + 1), record.leaves, i64(1)
    for mode in range(rank):
        number = shape[mode]
        if number < 1 or number > limit:
            return False
        total *= number
        if total > limit:
            return False
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
    for mode in range(rank):
        number, last = strides[mode], shape[mode] - 1
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
            out[0] = number
            out += 1
        leaf += 1
    return True


@inline
def allowed(record, readonly, device):
    """Whether memory of this kind may come."""
    flags = record.flags
    agree = readonly == (flags & READONLY != 0)
    fits = agree or not (flags & EXACT != 0 or readonly)
    return fits and device < 64 and (record.devices >> device) & 1 != 0


@native
def take_prepared(record: Ptr[ArrayRecord], value: Ptr[Object], slot: u64, place: Ptr[u64]) -> bool:
    held = at(value, slot)
    if held == None:
        return False
    if held.kind != world.place.bytes_type:
        return False
    passport, rank = Ptr[PassportHead](Ptr(held) + plan.BYTES_DATA), record.rank
    shape = passport.layout
    strides = shape + rank
    if passport.signature == record.signature:
        leaves = Ptr[u64](strides + rank)
        for number in range(record.words):
            place[number] = leaves[number]
        return True
    element = passport.element
    if record.flags & EXACT != 0 or (element != record.element and element != record.other_element):
        return False
    if passport.rank != rank or not allowed(record, passport.only_read != 0, passport.device):
        return False
    return fit(record, passport.address, shape, strides, place)


@native
def take_numpy(record: Ptr[ArrayRecord], array: Ptr[NumpyArray], place: Ptr[u64]) -> bool:
    rank, shift = i64(array.rank), record.shift
    if rank != record.rank or array.dtype.told != record.numpy:
        return False
    if not allowed(record, array.flags & WRITEABLE == 0, u64(plan.CPU)):
        return False
    strides, rest = local(i64, plan.MAX_RANK), (i64(1) << shift) - 1
    for mode in range(rank):
        stride = array.strides[mode]
        if stride & rest != 0:
            return False
        strides[mode] = stride >> shift
    return fit(record, array.data, array.shape, strides, place)


@native
def read_tensor(known: Ptr[ArrayType], value: Ptr[Object], tensor: Ptr[DLTensor]) -> bool:
    """Whether an array of a known type is one of the numbers that lie in memory, and where they are."""
    if Ptr[u64](Ptr(at(value, known.inner)) + known.bits)[0] & known.refused != 0:
        return False
    if known.read(value, tensor) != 0:
        PyErr_Clear()
        return False
    return True


@native
def take_tensor(record: Ptr[ArrayRecord], value: Ptr[Object], known: Ptr[ArrayType], place: Ptr[u64]) -> bool:
    tensor = local(DLTensor)
    if not read_tensor(known, value, tensor):
        return False
    if i64(tensor.type) != record.dlpack or i64(tensor.rank) != record.rank:
        return False
    if not allowed(record, False, u64(tensor.device)):
        return False
    if tensor.rank != 0 and tensor.strides == None:  # compact, in old producers
        return False
    return fit(record, tensor.data + tensor.offset, tensor.shape, tensor.strides, place)


@native
def take_array(record: Ptr[ArrayRecord], value: Ptr[Object], place: Ptr[u64]) -> bool:
    known, kind = world.place, value.kind
    if kind == known.ndarray:
        return take_numpy(record, Ptr[NumpyArray](value), place)
    for number in range(PREPARED):
        if kind == known.prepared[number].type:
            return take_prepared(record, value, known.prepared[number].slot, place)
    for number in range(ARRAYS):
        if kind == known.arrays[number].type:
            return take_tensor(record, value, known.arrays[number], place)
    return False


@native
def take_ambient(value: Ptr[Object], place: Ptr[u64]) -> bool:
    """The stream of the device of an array, for a parameter that is not passed."""
    about = local(About)
    if not read_array(value, about):
        return False
    return about.kind == TENSOR and stream_of(about.stream, about.device, place)


# --- by themselves ---------------------------------------------------------------------------------------------------


@calls.export
def read_array(value: Ptr[Object], about: Ptr[About]) -> bool:
    """Whether a value is an array of a known type, and what there is to know about it."""
    known, kind = world.place, value.kind
    if kind == known.ndarray:
        array = Ptr[NumpyArray](value)
        rank = i64(array.rank)
        about.kind = NUMPY
        about.type = array.dtype.told
        about.facts = u64(rank) | u64(array.flags & WRITEABLE) << 8
        about.address = array.data
        about.rank = rank
        about.shape = array.shape
        about.strides = array.strides
        about.stream = None
        about.device = plan.CPU
        return True
    for number in range(ARRAYS):
        if kind == known.arrays[number].type:
            tensor = local(DLTensor)
            if not read_tensor(known.arrays[number], value, tensor):
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
            about.stream = known.arrays[number].stream
            about.device = device
            return True
    return False


@calls.export
def stream_of(ask: Fn[[i32, i32, Ptr[u64]], i32], device: u64, place: Ptr[u64]) -> bool:
    """Whether the stream is known that a framework is working on; 0 for the host's memory."""
    place[0] = 0
    if u32(device) == plan.CPU:
        return True
    if ask == None:  # a framework that does not tell
        return False
    if ask(i32(device), i32(device >> 32), place) != 0:
        PyErr_Clear()
        return False
    return True


@inline
def describe_array(about, out, alignment: int):
    """What a kernel depends on of an array, in words: kind and type, device and rank, the address modulo some bytes, extents, strides
    (numpy's in bytes). Gives where they end."""
    size = 8 * u64(about.rank)
    out[0] = about.kind
    out[1] = about.type
    out[2] = about.facts
    out[3] = about.address & (alignment - 1)
    memcpy(out + 4, about.shape, size)
    memcpy(out + 4 + about.rank, about.strides, size)
    return out + 4 + 2 * about.rank


_DESCRIBED_ARRAYS, DESCRIBED_RANK = 16, 8


@inline
def give_none():
    Py_IncRef(world.place.none)
    return world.place.none


@calls.export
def describe(module: Ptr[Object], arrays: Ptr[Ptr[Object]], count: i64) -> Ptr[Object]:
    """All that a kernel depends on of some arrays, as bytes; None if one of them is of a type that is not known here. None in
    place of an array is a word of ones."""
    about, buffer = local(About), local(u64, _DESCRIBED_ARRAYS * (4 + 2 * DESCRIBED_RANK))
    if count > _DESCRIBED_ARRAYS:
        return give_none()
    end = ref(buffer)[0]
    for number in range(count):
        value = arrays[number]
        if value == world.place.none:
            end[0] = (1 << 64) - 1
            end += 1
        else:
            if not read_array(value, about):
                return give_none()
            if about.rank > DESCRIBED_RANK:
                return give_none()
            end = describe_array(about, end, plan.DESCRIBED_ALIGNMENT)
    return PyBytes_FromStringAndSize(buffer, address(end) - address(buffer))


@calls.export
def address_of(module: Ptr[Object], array: Ptr[Object]) -> Ptr[Object]:
    """Where an array lies; None for what cannot be read."""
    about = local(About)
    if read_array(array, about):
        return PyLong_FromUnsignedLongLong(about.address)
    return give_none()


@calls.export
def stream(module: Ptr[Object], array: Ptr[Object]) -> Ptr[Object]:
    """The handle of the stream that the framework of an array works on; None for what cannot be read."""
    about, handle = local(About), local(u64)
    if read_array(array, about) and stream_of(about.stream, about.device, handle):
        return PyLong_FromUnsignedLongLong(handle[0])
    return give_none()
