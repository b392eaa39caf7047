"""Arrays: numpy's by their fields, others' through DLPack's C functions, prepared ones by their passports.

Each way gives (address, extents, strides in elements); one piece of code checks them against a record and writes the
leaves.
"""

from __future__ import annotations

from ...mlir import ir
from ...targets.lowering.builder import int_type, ptr_type
from .. import plan
from .body import Body
from .world import ARRAYS, PREPARED, World

_INT32_MAX = (1 << 31) - 1

# fields of numpy's arrays, in bytes: the same in numpy 1 and 2, and checked before they are relied on
NUMPY_DATA, NUMPY_RANK, NUMPY_SHAPE, NUMPY_STRIDES, NUMPY_DTYPE, NUMPY_FLAGS = 16, 24, 32, 40, 56, 64
WRITEABLE = 0x400


class TENSOR:
    """Fields of a DLTensor, and its size, in bytes."""

    DATA, DEVICE, DEVICE_NUMBER, RANK, TYPE, SHAPE, STRIDES, OFFSET, BYTES = 0, 8, 12, 16, 20, 24, 32, 40, 48


class READ:
    """The words that `kiln_read` writes about an array, and how many they are: KIND is TENSOR or NUMPY, FACTS tell its device or
    whether it can be written to, and its rank; STREAM is the function that tells the stream of a DEVICE, 0 for numpy's."""

    KIND, TYPE, FACTS, ADDRESS, RANK, SHAPE, STRIDES, STREAM, DEVICE, COUNT = range(10)
    TENSOR, NUMPY = 1, 2


def build(module: ir.Module) -> None:
    """Add the functions to a module."""
    _read(module)
    _fit(module)
    _divide_strides(module)
    _take_array(module)
    _describe(module)
    _address(module)
    _stream_of(module)
    _stream(module)
    _take_ambient(module)


def _divide_strides(module: ir.Module) -> None:
    """`kiln_divide_strides(strides, rank, shift, out)`: strides from bytes to elements; 0 if one is no multiple."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_divide_strides", [ptr, i64, i64, ptr], [i32])
    strides, rank, shift, out = c.arguments
    head, body, yes, no = c.block(i64), c.block(), c.block(), c.block()
    rest = c.binary("subi", c.binary("shli", c.i64(1), shift), c.i64(1))
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, rank), body, yes)
    c.at(body)
    stride = c.word(strides, index)
    c.require(c.equals(c.binary("andi", stride, rest), 0), no)
    c.store(c.binary("shrsi", stride, shift), c.gep(out, i64, index), 8)
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(yes)
    c.give(c.i32(1))
    c.at(no)
    c.give(c.i32(0))


def _fit(module: ir.Module) -> None:
    """`kiln_fit(record, address, extents, strides, slots)`: 1 if an array of the record's rank fits; its leaves are written."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_fit", [ptr, i64, ptr, ptr, ptr], [i32])
    record, address, shape, strides, place = c.arguments
    no, extents, yes = c.block(), c.block(), c.block()
    rank = c.word(record, plan.A_RANK)
    exact = c.has_bit(c.word(record, plan.A_FLAGS), plan.EXACT)
    c.require(c.equals(c.binary("andi", address, c.word(record, plan.A_ALIGNMENT)), 0), no)
    c.store(address, place, 8)
    leading = c.block()
    c.branch(exact, leading, extents)

    # the leading mode, as Python finds it: of several of stride 1, the last whose extent is not 1, or else the last
    c.at(leading)
    head, body, decided = c.block(i64, i64), c.block(), c.block()
    c.goto(head, c.i64(0), c.i64(-1))
    mode, found = c.at(head)
    c.branch(c.compare("slt", mode, rank), body, decided)
    c.at(body)
    one = c.equals(c.word(strides, mode), 1)
    before = c.word(shape, c.select(c.compare("slt", found, c.i64(0)), mode, found))
    better = c.either(
        c.compare("slt", found, c.i64(0)),
        c.either(c.compare("ne", c.word(shape, mode), c.i64(1)), c.equals(before, 1)),
    )
    c.goto(head, c.binary("addi", mode, c.i64(1)), c.select(c.both(one, better), mode, found))
    c.at(decided)
    c.branch(c.compare("eq", found, c.word(record, plan.A_LEADING)), extents, no)

    c.at(extents)
    end = c.gep(place, i64, 1)
    leaf = c.gep(record, i64, plan.A_LEAVES)
    limit = c.word(record, plan.A_LIMIT)
    for numbers, is_stride in ((shape, False), (strides, True)):
        head, body, done = c.block(i64, ptr, ptr, i64), c.block(), c.block()
        c.goto(head, c.i64(0), leaf, end, c.i64(0 if is_stride else 1))
        mode, this, out, total = c.at(head)
        c.branch(c.compare("slt", mode, rank), body, done)
        c.at(body)
        number, kind, wanted = c.word(numbers, mode), c.word(this), c.word(this, 1)
        static, dynamic, divided, fits = c.block(), c.block(), c.block(), c.block()
        # the strides of an array without elements say nothing: that is left to Python
        c.require(c.compare("sge", number, c.i64(0 if is_stride else 1)), no)
        # neither factor exceeds the limit, so the products of limited ones fit a word
        if is_stride:
            last = c.binary("subi", c.word(shape, mode), c.i64(1))
            ignored = c.either(c.equals(last, 0), c.equals(kind, plan.DYNAMIC64))
            c.require(c.either(ignored, c.compare("sle", number, limit)), no)
            step = c.select(ignored, c.i64(0), number)
            total = c.binary("addi", total, c.binary("muli", last, step))
        else:
            c.require(c.compare("sle", number, limit), no)
            total = c.binary("muli", total, number)
        c.require(c.compare("sle", total, limit), no)
        following = (c.binary("addi", mode, c.i64(1)), c.gep(this, i64, 2))
        c.branch(c.equals(kind, plan.STATIC), static, dynamic)
        c.at(static)
        same = c.compare("eq", number, wanted)
        if is_stride:
            same = c.either(same, c.both(c.negation(exact), c.equals(c.word(shape, mode), 1)))
        c.require(same, no)
        c.goto(head, *following, out, total)
        c.at(dynamic)
        if is_stride:
            c.require(c.negation(c.both(exact, c.equals(number, 0))), no)
        c.branch(c.equals(wanted, 1), fits, divided)
        c.at(divided)
        c.branch(c.equals(c.binary("remui", number, wanted), 0), fits, no)
        c.at(fits)
        short = c.compare("sle", number, c.i64(_INT32_MAX))
        c.require(c.either(short, c.equals(kind, plan.DYNAMIC64)), no)
        c.store(number, out, 8)
        c.goto(head, *following, c.gep(out, i64, 1), total)
        c.at(done)
        leaf, end = this, out
    c.goto(yes)
    c.at(yes)
    c.give(c.i32(1))
    c.at(no)
    c.give(c.i32(0))


def _take_array(module: ir.Module) -> None:
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_take_array", [ptr, ptr, ptr], [i32])
    record, value, place = c.arguments
    tensor = c.alloca(i64, TENSOR.BYTES // 8)
    elements = c.alloca(i64, plan.MAX_RANK)
    no, failed = c.block(), c.block()
    prepared, array, numpy, fit = c.block(i64), c.block(ptr), c.block(), c.block(i64, ptr, ptr)
    world, kind = World(c), c.pointer(value, 1)
    for number in range(PREPARED):
        c.when(c.is_(kind, world.pointer(f"prepared type {number}")), prepared, world.word(f"prepared slot {number}"))
    for number in range(ARRAYS):
        c.when(c.is_(kind, world.pointer(f"array type {number}")), array, world.pointer(f"array read {number}"))
    c.branch(c.is_(kind, world.pointer("ndarray")), numpy, no)

    address, shape, strides = c.at(fit)
    c.give(c.result("kiln_fit", i32, record, address, shape, strides, place))

    def allow(readonly: ir.Value, device: ir.Value) -> None:
        """Go on if memory of this kind may come."""
        flags = c.word(record, plan.A_FLAGS)
        wanted, exact = c.has_bit(flags, plan.READONLY), c.has_bit(flags, plan.EXACT)
        agree = c.compare("eq", readonly, wanted)
        c.require(c.either(agree, c.negation(c.either(exact, readonly))), no)
        c.require(c.compare("ult", device, c.i64(64)), no)
        c.require(c.has_bit(c.binary("shrui", c.word(record, plan.A_DEVICES), device), 1), no)

    (slot,) = c.at(prepared)
    held = c.load(ptr, c.byte_gep(value, slot), 8)
    c.require(c.negation(c.is_null(held)), no)
    c.require(c.is_(c.pointer(held, 1), World(c).pointer("bytes")), no)
    pass_ = c.byte_gep(held, plan.BYTES_DATA)
    rank = c.word(record, plan.A_RANK)
    shape = c.gep(pass_, i64, plan.LAYOUT)
    strides = c.gep(shape, i64, rank)
    other, copy = c.block(), c.block()
    c.branch(c.compare("eq", c.word(pass_, plan.SIGNATURE), c.word(record, plan.A_SIGNATURE)), copy, other)
    c.at(copy)
    leaves = c.gep(strides, i64, rank)
    count = c.word(record, plan.A_WORDS)
    head, body, done = c.block(i64), c.block(), c.block()
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, count), body, done)
    c.at(body)
    c.store(c.word(leaves, index), c.gep(place, i64, index), 8)
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(done)
    c.give(c.i32(1))
    c.at(other)
    c.require(c.negation(c.has_bit(c.word(record, plan.A_FLAGS), plan.EXACT)), no)
    element = c.word(pass_, plan.ELEMENT)
    same, also = (c.compare("eq", element, c.word(record, n)) for n in (plan.A_ELEMENT, plan.A_OTHER_ELEMENT))
    c.require(c.either(same, also), no)
    c.require(c.compare("eq", c.word(pass_, plan.RANK), rank), no)
    allow(c.compare("ne", c.word(pass_, plan.ONLY_READ), c.i64(0)), c.word(pass_, plan.DEVICE))
    c.goto(fit, c.word(pass_, plan.ADDRESS), shape, strides)

    c.at(numpy)
    rank = c.word(record, plan.A_RANK)
    c.require(c.compare("eq", c.wide(c.load(i32, c.byte_gep(value, NUMPY_RANK))), rank), no)
    dtype = c.load(ptr, c.byte_gep(value, NUMPY_DTYPE))
    c.require(c.compare("eq", c.load(i64, c.byte_gep(dtype, plan.NUMPY_TYPE)), c.word(record, plan.A_NUMPY)), no)
    writeable = c.binary("andi", c.load(i32, c.byte_gep(value, NUMPY_FLAGS)), c.i32(WRITEABLE))
    allow(c.equals(writeable, 0), c.i64(plan.CPU))
    strides = c.load(ptr, c.byte_gep(value, NUMPY_STRIDES))
    divided = c.result("kiln_divide_strides", i32, strides, rank, c.word(record, plan.A_SHIFT), elements)
    c.require(c.equals(divided, 1), no)
    shape = c.load(ptr, c.byte_gep(value, NUMPY_SHAPE))
    c.goto(fit, c.load(i64, c.byte_gep(value, NUMPY_DATA)), shape, elements)

    (read,) = c.at(array)
    c.require(c.equals(c.call_pointer(read, [value, tensor], i32), 0), failed)
    rank = c.word(record, plan.A_RANK)
    type_ = c.wide(c.load(i32, c.byte_gep(tensor, TENSOR.TYPE)))
    c.require(c.compare("eq", type_, c.word(record, plan.A_DLPACK)), no)
    c.require(c.compare("eq", c.wide(c.load(i32, c.byte_gep(tensor, TENSOR.RANK))), rank), no)
    allow(c.const(int_type(1), 0), c.wide(c.load(i32, c.byte_gep(tensor, TENSOR.DEVICE))))
    shape, strides = (c.load(ptr, c.byte_gep(tensor, n)) for n in (TENSOR.SHAPE, TENSOR.STRIDES))
    c.require(c.either(c.equals(rank, 0), c.negation(c.is_null(strides))), no)  # null: compact, in old producers
    address = c.binary(
        "addi", c.load(i64, c.byte_gep(tensor, TENSOR.DATA)), c.load(i64, c.byte_gep(tensor, TENSOR.OFFSET))
    )
    c.goto(fit, address, shape, strides)

    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(no)
    c.give(c.i32(0))


def _read(module: ir.Module) -> None:
    """`kiln_read(value, out)`: 1 if a value is an array of a known type; what there is to know about it is in `out`."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_read", [ptr, ptr], [i32])
    value, out = c.arguments
    tensor = c.alloca(i64, TENSOR.BYTES // 8)
    no, failed, array, numpy = c.block(), c.block(), c.block(ptr, ptr), c.block()

    def put(*words: tuple[int, ir.Value]) -> None:
        for number, word in words:
            c.store(word, c.gep(out, i64, number), 8)

    world, kind = World(c), c.pointer(value, 1)
    for number in range(ARRAYS):
        found = [world.pointer(f"array {of} {number}") for of in ("read", "stream")]
        c.when(c.is_(kind, world.pointer(f"array type {number}")), array, *found)
    c.branch(c.is_(kind, world.pointer("ndarray")), numpy, no)

    c.at(numpy)
    dtype = c.load(ptr, c.byte_gep(value, NUMPY_DTYPE))
    rank = c.wide(c.load(i32, c.byte_gep(value, NUMPY_RANK)))
    writeable = c.wide(c.binary("andi", c.load(i32, c.byte_gep(value, NUMPY_FLAGS)), c.i32(WRITEABLE)))
    put(
        (READ.KIND, c.i64(READ.NUMPY)), (READ.TYPE, c.load(i64, c.byte_gep(dtype, plan.NUMPY_TYPE))),
        (READ.FACTS, c.binary("ori", rank, c.binary("shli", writeable, c.i64(8)))),
        (READ.ADDRESS, c.load(i64, c.byte_gep(value, NUMPY_DATA))), (READ.RANK, rank),
        (READ.SHAPE, c.load(i64, c.byte_gep(value, NUMPY_SHAPE))), (READ.STRIDES, c.load(i64, c.byte_gep(value, NUMPY_STRIDES))),
        (READ.STREAM, c.i64(0)), (READ.DEVICE, c.i64(plan.CPU)),
    )  # fmt: skip
    c.give(c.i32(1))

    read, stream = c.at(array)
    c.require(c.equals(c.call_pointer(read, [value, tensor], i32), 0), failed)
    rank = c.wide(c.load(i32, c.byte_gep(tensor, TENSOR.RANK)))
    strides = c.load(ptr, c.byte_gep(tensor, TENSOR.STRIDES))
    c.require(c.either(c.equals(rank, 0), c.negation(c.is_null(strides))), no)
    device, number = (c.wide(c.load(i32, c.byte_gep(tensor, n))) for n in (TENSOR.DEVICE, TENSOR.DEVICE_NUMBER))
    where = c.binary("ori", device, c.binary("shli", number, c.i64(32)))
    put(
        (READ.KIND, c.i64(READ.TENSOR)), (READ.TYPE, c.wide(c.load(i32, c.byte_gep(tensor, TENSOR.TYPE)))),
        (READ.FACTS, c.binary("ori", rank, c.binary("shli", where, c.i64(8)))),
        (READ.ADDRESS, c.binary("addi", *(c.load(i64, c.byte_gep(tensor, n)) for n in (TENSOR.DATA, TENSOR.OFFSET)))),
        (READ.RANK, rank), (READ.SHAPE, c.load(i64, c.byte_gep(tensor, TENSOR.SHAPE))), (READ.STRIDES, c.as_word(strides)),
        (READ.STREAM, c.as_word(stream)), (READ.DEVICE, where),
    )  # fmt: skip
    c.give(c.i32(1))
    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(no)
    c.give(c.i32(0))


_DESCRIBED_ARRAYS, _DESCRIBED_RANK = 16, 8
_HEAD_WORDS = 4


def _describe(module: ir.Module) -> None:
    """`kiln_describe(module, arrays, how many)`: all that a kernel depends on of some arrays, as bytes; None if one of them
    is of a type that is not known here. Of each: kind and type, device and rank, the address modulo 128 bytes, extents, strides
    (numpy's in bytes). None in place of an array is a word of ones."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_describe", [ptr, ptr, i64], [ptr])
    _, given, count = c.arguments
    about = c.alloca(i64, READ.COUNT)
    buffer = c.alloca(i64, _DESCRIBED_ARRAYS * (_HEAD_WORDS + 2 * _DESCRIBED_RANK))
    no, done = c.block(), c.block()
    c.require(c.compare("sle", count, c.i64(_DESCRIBED_ARRAYS)), no)
    head, body, more, nothing = c.block(i64, ptr), c.block(), c.block(ptr), c.block()
    c.goto(head, c.i64(0), buffer)
    index, out = c.at(head)
    c.branch(c.compare("slt", index, count), body, done)
    (end,) = c.at(more)
    c.goto(head, c.binary("addi", index, c.i64(1)), end)
    c.at(nothing)
    c.store(c.i64(-1), out, 8)
    c.goto(more, c.gep(out, i64, 1))

    c.at(body)
    value = c.pointer(given, index)
    c.when(c.is_(value, World(c).pointer("none")), nothing)
    c.require(c.equals(c.result("kiln_read", i32, value, about), 1), no)
    rank = c.word(about, READ.RANK)
    c.require(c.compare("ule", rank, c.i64(_DESCRIBED_RANK)), no)
    address = c.binary("andi", c.word(about, READ.ADDRESS), c.i64(plan.DESCRIBED_ALIGNMENT - 1))
    told = [*(c.word(about, n) for n in (READ.KIND, READ.TYPE, READ.FACTS)), address]
    for number, word in enumerate(told):
        c.store(word, c.gep(out, i64, number), 8)
    end, size = c.gep(out, i64, _HEAD_WORDS), c.binary("muli", rank, c.i64(8))
    for numbers in (READ.SHAPE, READ.STRIDES):
        c.call("memcpy", [ptr], [end, c.pointer(about, numbers), size])
        end = c.gep(end, i64, rank)
    c.goto(more, end)

    c.at(done)
    size = c.binary("subi", c.as_word(out), c.as_word(buffer))
    c.give(c.result("PyBytes_FromStringAndSize", ptr, buffer, size))
    c.at(no)
    _give_none(c)


def _give_none(c: Body) -> None:
    none = World(c).pointer("none")
    c.call("Py_IncRef", [], [none])
    c.give(none)


def _address(module: ir.Module) -> None:
    """`kiln_address(module, array)`: an integer, or None for what cannot be read."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_address", [ptr, ptr], [ptr])
    about, no = c.alloca(i64, READ.COUNT), c.block()
    c.require(c.equals(c.result("kiln_read", i32, c.arguments[1], about), 1), no)
    c.give(c.result("PyLong_FromUnsignedLongLong", ptr, c.word(about, READ.ADDRESS)))
    c.at(no)
    _give_none(c)


def _stream_of(module: ir.Module) -> None:
    """`kiln_stream_of(where, place)`: 1 if the stream is known that a framework is working on, 0 for the host's memory; `where`
    are the words STREAM and DEVICE of an array."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_stream_of", [ptr, ptr], [i32])
    where, place = c.arguments
    c.store(c.i64(0), place, 8)
    device = c.gep(where, i64, READ.DEVICE - READ.STREAM)
    kind, number, ask = c.load(i32, device), c.load(i32, c.byte_gep(device, 4)), c.pointer(where)
    elsewhere, done, failed, no = c.block(), c.block(), c.block(), c.block()
    c.branch(c.equals(kind, plan.CPU), done, elsewhere)
    c.at(elsewhere)
    c.require(c.negation(c.is_null(ask)), no)  # a framework that does not tell
    c.require(c.equals(c.call_pointer(ask, [kind, number, place], i32), 0), failed)
    c.goto(done)
    c.at(done)
    c.give(c.i32(1))
    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(no)
    c.give(c.i32(0))


def _stream(module: ir.Module) -> None:
    """`kiln_stream(module, array)`: the handle of the stream, or None for what cannot be read."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_stream", [ptr, ptr], [ptr])
    about, handle, no = c.alloca(i64, READ.COUNT), c.alloca(i64), c.block()
    c.require(c.equals(c.result("kiln_read", i32, c.arguments[1], about), 1), no)
    c.require(c.equals(c.result("kiln_stream_of", i32, c.gep(about, i64, READ.STREAM), handle), 1), no)
    c.give(c.result("PyLong_FromUnsignedLongLong", ptr, c.load(i64, handle)))
    c.at(no)
    _give_none(c)


def _take_ambient(module: ir.Module) -> None:
    """The stream of the device of an array, for a parameter that is not passed."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_take_ambient", [ptr, ptr, ptr], [i32])
    _, value, place = c.arguments
    about, no = c.alloca(i64, READ.COUNT), c.block()
    c.require(c.equals(c.result("kiln_read", i32, value, about), 1), no)
    c.require(c.equals(c.word(about, READ.KIND), READ.TENSOR), no)
    c.give(c.result("kiln_stream_of", i32, c.gep(about, i64, READ.STREAM), place))
    c.at(no)
    c.give(c.i32(0))
