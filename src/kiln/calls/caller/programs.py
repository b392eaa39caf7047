"""Recorded calls (`calls/program.py`): the key of a call, and repeating a program on the arrays of another.

A key is words. Each argument is told by a word that says what it is, then

    an array       element type, device and rank, address modulo 16 bytes, extents, strides
    None           nothing more
    a number       its value: an integer, or the bits of a float; True and False by their addresses
    a string       its length and bytes
    a tuple, list  how many, then its elements
    a function     code and globals by their addresses, defaults, how many cells, then what they hold
    a constant     its address: types, and objects of types that were introduced as such

Arguments with names follow those without, each after the address of its name. A float of one of the names that were
said to be numbers is told by its sign, and whether it is 0, 1 or no number: programs take its value from each call.
"""

from __future__ import annotations

from ...mlir import ir
from ...targets.lowering.builder import int_type, ptr_type
from .. import plan, program
from .arrays import READ
from .body import Body
from .world import ARRAYS, CONSTANTS, World

_NONE, _INTEGER, _REAL, _STRING, _TUPLE, _LIST, _FUNCTION, _CONSTANT, _NUMBER, _NOTHING = range(3, 13)
_ALIGNMENT = 16
_MOST_MODES, _MOST_TEXT = 8, 64
_KEY_WORDS = 384
_ROOM = 4 + 2 * _MOST_MODES
"""Words that the longest single entry of a key takes."""
NOT_FORESEEN = 1

# what is known of a call while it is made, in words
_CURSOR, _COUNT, _NUMBERS, _STREAM, _DEVICE, _HELD = range(6)
"""The end of the key, how many arrays and numbers there are, of the first array the function that tells the stream, and the
device; how many tuples are held of what is in lists, which another thread may change."""
_MOST_HELD = 8
_HOLDS = 8
_OBJECTS = _HOLDS + _MOST_HELD
_ADDRESSES = _OBJECTS + program.MOST_REGISTERS
_VALUES = _ADDRESSES + program.MOST_REGISTERS
_KEY = _VALUES + program.MOST_NUMBERS
_STATE_WORDS = _KEY + _KEY_WORDS


def build(module: ir.Module) -> None:
    """Add the functions to a module."""
    _key(module)
    _key_function(module)
    _key_call(module)
    _call_key(module)
    _launch(module)
    _repeat(module)
    _results(module)
    _call_recorded(module)


def _put(c: Body, state: ir.Value, *words: ir.Value) -> ir.Value:
    """Words at the end of the key; the new end."""
    cursor = c.pointer(state, _CURSOR)
    for number, word in enumerate(words):
        c.store(word, c.gep(cursor, int_type(64), number), 8)
    return _move(c, state, c.gep(cursor, int_type(64), len(words)))


def _move(c: Body, state: ir.Value, cursor: ir.Value) -> ir.Value:
    c.store(cursor, c.gep(state, int_type(64), _CURSOR), 8)
    return cursor


# --- keys ------------------------------------------------------------------------------------------------------------


def _key(module: ir.Module) -> None:
    """`kiln_key(value, state, top)`: 1 if a value is known; it is told in the key. Arrays only come with `top`: not inside of
    functions, and not where a function expects none, for what it does may depend on what is in them."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_key", [ptr, ptr, i32], [i32])
    value, state, top = c.arguments
    about = c.alloca(i64, READ.COUNT)
    overflow, size = c.alloca(i32), c.alloca(i64)
    no, yes, failed = c.block(), c.block(), c.block()
    end = c.gep(state, i64, _STATE_WORDS - _ROOM)
    c.require(c.compare("ule", c.as_word(c.pointer(state, _CURSOR)), c.as_word(end)), no)
    world, kind = World(c), c.pointer(value, 1)
    array, none, integer, real, truth, text, sequence, function, constant = (
        c.block(), c.block(), c.block(), c.block(), c.block(), c.block(), c.block(i64), c.block(), c.block(),
    )  # fmt: skip
    for number in range(ARRAYS):
        c.when(c.is_(kind, world.pointer(f"array type {number}")), array)
    c.when(c.is_(kind, world.pointer("ndarray")), array)
    c.when(c.is_(value, world.pointer("none")), none)
    for name, block in (("int", integer), ("float", real), ("bool", truth), ("str", text), ("function", function)):
        c.when(c.is_(kind, world.pointer(name)), block)
    c.when(c.is_(kind, world.pointer("tuple")), sequence, c.i64(_TUPLE))
    c.when(c.is_(kind, world.pointer("list")), sequence, c.i64(_LIST))
    c.when(c.is_(kind, world.pointer("type")), constant)
    for number in range(CONSTANTS):
        c.when(c.is_(kind, world.pointer(f"constant type {number}")), constant)
    c.goto(no)

    c.at(array)
    c.require(c.equals(top, 1), no)
    c.require(c.equals(c.result("kiln_read", i32, value, about), 1), no)
    count, rank, address = c.word(state, _COUNT), c.word(about, READ.RANK), c.word(about, READ.ADDRESS)
    c.require(c.compare("ule", rank, c.i64(_MOST_MODES)), no)
    c.require(c.compare("ult", count, c.i64(program.MOST_REGISTERS)), no)
    cursor = _put(
        c, state, c.word(about, READ.KIND), c.word(about, READ.TYPE), c.word(about, READ.FACTS),
        c.binary("andi", address, c.i64(_ALIGNMENT - 1)),
    )  # fmt: skip
    modes = c.binary("muli", rank, c.i64(8))
    c.call("memcpy", [ptr], [cursor, c.pointer(about, READ.SHAPE), modes])
    cursor = c.gep(cursor, i64, rank)
    c.call("memcpy", [ptr], [cursor, c.pointer(about, READ.STRIDES), modes])
    _move(c, state, c.gep(cursor, i64, rank))
    c.store(value, c.gep(c.gep(state, i64, _OBJECTS), ptr, count), 8)
    c.store(address, c.gep(c.gep(state, i64, _ADDRESSES), i64, count), 8)
    c.store(c.binary("addi", count, c.i64(1)), c.gep(state, i64, _COUNT), 8)
    first = c.block()
    c.branch(c.equals(count, 0), first, yes)
    c.at(first)
    c.store(c.word(about, READ.STREAM), c.gep(state, i64, _STREAM), 8)
    c.store(c.word(about, READ.DEVICE), c.gep(state, i64, _DEVICE), 8)
    c.goto(yes)

    c.at(none)
    _put(c, state, c.i64(_NONE))
    c.goto(yes)

    c.at(integer)
    found = c.result("PyLong_AsLongLongAndOverflow", i64, value, overflow)
    c.require(c.equals(c.load(i32, overflow), 0), no)
    _put(c, state, c.i64(_INTEGER), found)
    c.goto(yes)

    c.at(real)
    found = c.result("PyFloat_AsDouble", ir.F64Type.get(), value)
    _put(c, state, c.i64(_REAL), c.value("llvm.bitcast", i64, (found,)))
    c.goto(yes)

    c.at(truth)
    c.goto(constant)
    c.at(constant)
    _put(c, state, c.i64(_CONSTANT), c.as_word(value))
    c.goto(yes)

    c.at(text)
    letters = c.result("PyUnicode_AsUTF8AndSize", ptr, value, size)
    c.require(c.negation(c.is_null(letters)), failed)
    length = c.load(i64, size)
    c.require(c.compare("ule", length, c.i64(_MOST_TEXT)), no)
    cursor = _put(c, state, c.i64(_STRING), length)
    words = c.binary("shrui", c.binary("addi", length, c.i64(7)), c.i64(3))
    wide = c.block()
    c.branch(c.equals(words, 0), yes, wide)
    c.at(wide)
    c.store(c.i64(0), c.gep(cursor, i64, c.binary("subi", words, c.i64(1))), 8)  # what the last word is filled up with
    c.call("memcpy", [ptr], [cursor, letters, length])
    _move(c, state, c.gep(cursor, i64, words))
    c.goto(yes)

    (tag,) = c.at(sequence)
    for_list, hold, too_many, items = c.block(), c.block(), c.block(), c.block(ptr)
    c.when(c.equals(tag, _LIST), for_list)
    c.goto(items, value)
    c.at(for_list)
    made = c.result("PyList_AsTuple", ptr, value)
    c.require(c.negation(c.is_null(made)), failed)
    held = c.word(state, _HELD)
    c.branch(c.compare("ult", held, c.i64(_MOST_HELD)), hold, too_many)
    c.at(too_many)
    c.call("Py_DecRef", [], [made])
    c.goto(no)
    c.at(hold)
    c.store(made, c.gep(c.gep(state, i64, _HOLDS), ptr, held), 8)
    c.store(c.binary("addi", held, c.i64(1)), c.gep(state, i64, _HELD), 8)
    c.goto(items, made)
    (found,) = c.at(items)
    count = c.result("PyTuple_Size", i64, found)
    _put(c, state, tag, count)
    head, body = c.block(i64), c.block()
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, count), body, yes)
    c.at(body)
    item = c.result("PyTuple_GetItem", ptr, found, index)
    c.require(c.equals(c.result("kiln_key", i32, item, state, top), 1), no)
    c.goto(head, c.binary("addi", index, c.i64(1)))

    c.at(function)
    c.give(c.result("kiln_key_function", i32, value, state))

    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(yes)
    c.give(c.i32(1))
    c.at(no)
    c.give(c.i32(0))


def _key_function(module: ir.Module) -> None:
    """`kiln_key_function(function, state)`: the same for a Python function."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_key_function", [ptr, ptr], [i32])
    value, state = c.arguments
    no, yes, failed = c.block(), c.block(), c.block()
    c.require(c.is_null(c.result("PyFunction_GetKwDefaults", ptr, value)), no)
    code, names = (c.result(f"PyFunction_Get{what}", ptr, value) for what in ("Code", "Globals"))
    _put(c, state, c.i64(_FUNCTION), c.as_word(code), c.as_word(names))
    defaults = c.result("PyFunction_GetDefaults", ptr, value)
    some, without, closure = c.block(), c.block(), c.block()
    c.branch(c.is_null(defaults), without, some)
    c.at(some)
    c.require(c.equals(c.result("kiln_key", i32, defaults, state, c.i32(0)), 1), no)
    c.goto(closure)
    c.at(without)
    _put(c, state, c.i64(_NOTHING))
    c.goto(closure)
    c.at(closure)
    cells = c.result("PyFunction_GetClosure", ptr, value)
    open_, closed = c.block(), c.block()
    c.branch(c.is_null(cells), open_, closed)
    c.at(open_)
    _put(c, state, c.i64(_NOTHING))
    c.goto(yes)
    c.at(closed)
    count = c.result("PyTuple_Size", i64, cells)
    _put(c, state, c.i64(_TUPLE), count)
    head, body = c.block(i64), c.block()
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, count), body, yes)
    c.at(body)
    held = c.result("PyCell_Get", ptr, c.result("PyTuple_GetItem", ptr, cells, index))
    c.require(c.negation(c.is_null(held)), failed)  # an empty cell
    known = c.result("kiln_key", i32, held, state, c.i32(0))
    c.call("Py_DecRef", [], [held])  # its cell keeps it
    c.require(c.equals(known, 1), no)
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(yes)
    c.give(c.i32(1))
    c.at(no)
    c.give(c.i32(0))


def _key_call(module: ir.Module) -> None:
    """`kiln_key_call(holder, arguments, how many are positional, names, state)`: 1 if a call has a key. In any case
    `kiln_let_go(state)` follows when the call is over."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_key_call", [ptr, ptr, i64, ptr, ptr], [i32])
    holder, arguments, positional, names, state = c.arguments
    no, yes = c.block(), c.block()
    for word in (_COUNT, _NUMBERS, _STREAM, _DEVICE, _HELD):
        c.store(c.i64(0), c.gep(state, i64, word), 8)
    _move(c, state, c.gep(state, i64, _KEY))
    _put(c, state, positional)
    positions = c.word(c.byte_gep(c.result("PyTuple_GetItem", ptr, holder, c.i64(2)), plan.BYTES_DATA))
    head, body, named = c.block(i64), c.block(), c.block()
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, positional), body, named)
    c.at(body)
    last = c.select(c.compare("slt", index, c.i64(63)), index, c.i64(63))
    may = c.binary("andi", c.binary("shrui", positions, last), c.i64(1))
    known = c.result("kiln_key", i32, c.pointer(arguments, index), state, c.value("arith.trunci", i32, (may,)))
    c.require(c.equals(known, 1), no)
    c.goto(head, c.binary("addi", index, c.i64(1)))

    c.at(named)
    c.require(c.negation(c.is_null(names)), yes)
    count = c.result("PyTuple_Size", i64, names)
    special, arrays = (c.result("PyTuple_GetItem", ptr, holder, c.i64(n)) for n in (1, 3))
    head, body, plain, more = c.block(i64), c.block(), c.block(), c.block()
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, count), body, yes)
    c.at(more)
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(body)
    name = c.result("PyTuple_GetItem", ptr, names, index)
    value = c.pointer(arguments, c.binary("addi", positional, index))
    end = c.gep(state, i64, _STATE_WORDS - _ROOM)
    c.require(c.compare("ule", c.as_word(c.pointer(state, _CURSOR)), c.as_word(end)), no)
    _put(c, state, c.as_word(name))
    look, number, array, other = c.block(), c.block(), c.block(), c.block()
    c.branch(c.is_(c.pointer(value, 1), World(c).pointer("float")), look, plain)
    c.at(look)
    _find(c, special, name, number, other)

    c.at(number)
    found = c.result("PyFloat_AsDouble", ir.F64Type.get(), value)
    numbers = c.word(state, _NUMBERS)
    c.require(c.compare("ult", numbers, c.i64(program.MOST_NUMBERS)), no)
    c.store(found, c.gep(c.gep(state, i64, _VALUES), i64, numbers), 8)
    c.store(c.binary("addi", numbers, c.i64(1)), c.gep(state, i64, _NUMBERS), 8)
    bits = c.value("llvm.bitcast", i64, (found,))
    size = c.binary("andi", bits, c.i64((1 << 63) - 1))
    told = c.select(c.compare("slt", bits, c.i64(0)), c.i64(4), c.i64(3))
    told = c.select(c.equals(size, 0), c.i64(2), told)
    told = c.select(c.equals(bits, 0x3FF << 52), c.i64(1), told)
    told = c.select(c.compare("ugt", size, c.i64(0x7FF << 52)), c.i64(5), told)
    _put(c, state, c.i64(_NUMBER), told)
    c.goto(more)

    c.at(plain)
    _find(c, arrays, name, array, other)
    for block, may in ((array, 1), (other, 0)):
        c.at(block)
        c.require(c.equals(c.result("kiln_key", i32, value, state, c.i32(may)), 1), no)
        c.goto(more)
    c.at(yes)
    c.give(c.i32(1))
    c.at(no)
    c.give(c.i32(0))


def _find(c: Body, names: ir.Value, name: ir.Value, yes: ir.Block, no: ir.Block) -> None:
    """Go on according to whether a tuple has a name."""
    ptr, i64 = ptr_type(), int_type(64)
    count = c.result("PyTuple_Size", i64, names)
    head, body = c.block(i64), c.block()
    c.goto(head, c.i64(0))
    (place,) = c.at(head)
    c.branch(c.compare("slt", place, count), body, no)
    c.at(body)
    c.when(c.is_(c.result("PyTuple_GetItem", ptr, names, place), name), yes)
    c.goto(head, c.binary("addi", place, c.i64(1)))


def _as_bytes(c: Body, state: ir.Value) -> ir.Value:
    start = c.gep(state, int_type(64), _KEY)
    size = c.binary("subi", c.word(state, _CURSOR), c.as_word(start))
    return c.result("PyBytes_FromStringAndSize", ptr_type(), start, size)


def _call_key(module: ir.Module) -> None:
    """`kiln_call_key(module, arguments, how many are positional, names)`: the first argument is the holder."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_call_key", [ptr, ptr, i64, ptr], [ptr])
    _, arguments, positional, names = c.arguments
    state = c.alloca(i64, _STATE_WORDS)
    no = c.block()
    rest, count = c.gep(arguments, ptr, 1), c.binary("subi", positional, c.i64(1))
    c.require(c.equals(c.result("kiln_key_call", i32, c.pointer(arguments), rest, count, names, state), 1), no)
    key = _as_bytes(c, state)
    c.call("kiln_let_go", [], [state])
    c.give(key)
    c.at(no)
    c.call("kiln_let_go", [], [state])
    none = World(c).pointer("none")
    c.call("Py_IncRef", [], [none])
    c.give(none)


# --- programs --------------------------------------------------------------------------------------------------------


def _launch(module: ir.Module) -> None:
    """`kiln_launch(step, state, stream, slots)`: 1 after a launch, 0 with an error."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    f32, f64 = ir.F32Type.get(), ir.F64Type.get()
    c = Body(module, "kiln_launch", [ptr, ptr, i64, ptr], [i32])
    step, state, stream, slots = c.arguments
    c.call("memcpy", [ptr], [slots, c.pointer(step, program.L_SLOTS), c.word(step, program.L_BYTES)])
    count = c.word(step, program.L_COUNT)
    head, body, more, call = c.block(i64, ptr), c.block(), c.block(i64), c.block()
    c.goto(head, c.i64(0), c.gep(step, i64, program.L_PATCHES))
    index, patch = c.at(head)
    c.branch(c.compare("slt", index, count), body, call)
    c.at(body)
    kind, place = c.word(patch, 1), c.word(patch, 2)
    address, given, single, double = c.block(), c.block(), c.block(), c.block()
    c.when(c.equals(kind, program.ADDRESS), address)
    c.when(c.equals(kind, program.STREAM), given)
    c.branch(c.equals(kind, program.NUMBER32), single, double)
    c.at(address)
    c.goto(more, c.binary("addi", c.word(c.gep(state, i64, _ADDRESSES), place), c.word(patch, 3)))
    c.at(given)
    c.goto(more, stream)
    c.at(single)
    value = c.load(f64, c.gep(c.gep(state, i64, _VALUES), i64, place), 8)
    short = c.value("arith.truncf", f32, (value,))
    c.goto(more, c.wide(c.value("llvm.bitcast", i32, (short,))))
    c.at(double)
    c.goto(more, c.word(c.gep(state, i64, _VALUES), place))
    (word,) = c.at(more)
    c.store(word, c.byte_gep(slots, c.word(patch)), 8)
    c.goto(head, c.binary("addi", index, c.i64(1)), c.gep(patch, i64, 4))

    c.at(call)
    done, failed = c.block(), c.block()
    c.run_code(c.pointer(step, program.L_ENTRY), slots, c.pointer(step, program.L_REPORT), done, failed)
    c.at(done)
    c.give(c.i32(1))
    c.at(failed)
    c.give(c.i32(0))


def _item(c: Body, state: ir.Value, item: ir.Value) -> ir.Value:
    """The object that a pair of words names."""
    kept, held, have = c.block(), c.block(), c.block(ptr_type())
    c.branch(c.equals(c.word(item), program.REGISTER), held, kept)
    c.at(kept)
    c.goto(have, c.pointer(item, 1))
    c.at(held)
    c.goto(have, c.pointer(c.gep(state, int_type(64), _OBJECTS), c.word(item, 1)))
    return c.at(have)[0]


def _repeat(module: ir.Module) -> None:
    """`kiln_repeat(program, state)`: make all steps and give the result; null with an error, NOT_FORESEEN before any step."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_repeat", [ptr, ptr], [ptr])
    header, state = c.arguments
    handle, about = c.alloca(i64), c.alloca(i64, READ.COUNT)

    def memory(size: ir.Value, element: ir.Type) -> ir.Value:
        attributes = {"elem_type": ir.TypeAttr.get(element), "alignment": ir.IntegerAttr.get(i64, 16)}
        return c.value("llvm.alloca", ptr, (size,), attributes)

    slots = memory(c.word(header, program.SLOT_BYTES), int_type(8))
    items = memory(c.binary("addi", c.word(header, program.ITEMS), c.i64(1)), ptr)
    given = c.word(state, _COUNT)
    objects, addresses = (c.gep(state, i64, place) for place in (_OBJECTS, _ADDRESSES))
    unknown, done, failed = c.block(), c.block(), c.block()
    c.require(c.equals(c.result("kiln_stream_of", i32, c.gep(state, i64, _STREAM), handle), 1), unknown)
    stream = c.load(i64, handle)
    count = c.word(header, program.STEPS)
    head, body, more, call, launch = c.block(i64, ptr), c.block(), c.block(), c.block(), c.block()
    c.goto(head, c.i64(0), c.gep(header, i64, program.HEADER))
    index, step = c.at(head)
    c.branch(c.compare("slt", index, count), body, done)
    c.at(more)
    c.goto(head, c.binary("addi", index, c.i64(1)), c.gep(step, i64, c.word(step, program.SIZE)))
    c.at(body)
    c.branch(c.equals(c.word(step, program.KIND), program.LAUNCH), launch, call)
    c.at(launch)
    c.branch(c.equals(c.result("kiln_launch", i32, step, state, stream, slots), 1), more, failed)

    c.at(call)
    passed = c.word(step, program.C_COUNT)
    each, one, made = c.block(i64), c.block(), c.block()
    c.goto(each, c.i64(0))
    (place,) = c.at(each)
    c.branch(c.compare("slt", place, passed), one, made)
    c.at(one)
    pair = c.gep(c.gep(step, i64, program.C_ITEMS), i64, c.binary("shli", place, c.i64(1)))
    following = c.binary("addi", place, c.i64(1))
    c.store(_item(c, state, pair), c.gep(items, ptr, following), 8)
    c.goto(each, following)
    c.at(made)
    free = c.binary("ori", c.word(step, program.C_POSITIONAL), c.i64(-(1 << 63)))  # the place before them may be used
    result = c.result(
        "PyObject_Vectorcall", ptr, c.pointer(step, program.C_FUNCTION), c.gep(items, ptr, 1), free,
        c.pointer(step, program.C_NAMES),
    )  # fmt: skip
    c.require(c.negation(c.is_null(result)), failed)
    register = c.word(step, program.C_REGISTER)
    drop, keep = c.block(), c.block()
    c.branch(c.compare("slt", register, c.i64(0)), drop, keep)
    c.at(drop)
    c.call("Py_DecRef", [], [result])
    c.goto(more)
    c.at(keep)
    c.store(result, c.gep(objects, ptr, register), 8)
    c.store(c.binary("addi", register, c.i64(1)), c.gep(state, i64, _COUNT), 8)
    strange = c.block()
    c.require(c.equals(c.result("kiln_read", i32, result, about), 1), strange)
    c.store(c.word(about, READ.ADDRESS), c.gep(addresses, i64, register), 8)
    c.goto(more)
    c.at(strange)  # an array of a type that is not known: Python tells where it lies
    where = c.result("kiln_leave", ptr, c.pointer(header, program.ADDRESS_OF), result, c.null(), c.i64(0), c.null())
    c.require(c.negation(c.is_null(where)), failed)
    c.store(c.result("PyLong_AsUnsignedLongLongMask", i64, where), c.gep(addresses, i64, register), 8)
    c.call("Py_DecRef", [], [where])
    c.goto(more)

    c.at(done)
    result = c.result("kiln_results", ptr, header, state)
    c.call("kiln_drop", [], [state, given])
    c.give(result)
    c.at(failed)
    c.call("kiln_drop", [], [state, given])
    c.give(c.null())
    c.at(unknown)
    c.give(c.as_pointer(c.i64(NOT_FORESEEN)))


def _results(module: ir.Module) -> None:
    """`kiln_results(program, state)`: what a call gives, with a new reference. `kiln_drop(state, first)`: let go of the arrays
    that were made, the registers from `first` on. `kiln_let_go(state)`: of all that is held."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_drop", [ptr, i64], [])
    state, first = c.arguments
    _drop(c, c.gep(state, i64, _OBJECTS), first, c.word(state, _COUNT))
    c = Body(module, "kiln_let_go", [ptr], [])
    (state,) = c.arguments
    _drop(c, c.gep(state, i64, _HOLDS), c.i64(0), c.word(state, _HELD))

    c = Body(module, "kiln_results", [ptr, ptr], [ptr])
    header, state = c.arguments
    count = c.word(header, program.RESULTS)
    items = c.gep(header, i64, c.word(header, program.RESULTS_AT))
    single, several, no = c.block(), c.block(), c.block()
    c.branch(c.compare("slt", count, c.i64(0)), single, several)
    c.at(single)
    found = _item(c, state, items)
    c.call("Py_IncRef", [], [found])
    c.give(found)
    c.at(several)
    made = c.result("PyTuple_New", ptr, count)
    c.require(c.negation(c.is_null(made)), no)
    head, body, done = c.block(i64), c.block(), c.block()
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, count), body, done)
    c.at(body)
    found = _item(c, state, c.gep(items, i64, c.binary("shli", index, c.i64(1))))
    c.call("Py_IncRef", [], [found])
    c.call("PyTuple_SetItem", [i32], [made, index, found])
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(done)
    c.give(made)
    c.at(no)
    c.give(c.null())


def _drop(c: Body, objects: ir.Value, first: ir.Value, end: ir.Value) -> None:
    """Let go of some objects, and return."""
    head, body, done = c.block(int_type(64)), c.block(), c.block()
    c.goto(head, first)
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, end), body, done)
    c.at(body)
    c.call("Py_DecRef", [], [c.pointer(objects, index)])
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(done)
    c.give()


def _call_recorded(module: ir.Module) -> None:
    """A program is kept while the call lasts: guards and steps may run Python, and other threads run during launches."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_call_recorded", [ptr, ptr, i64, ptr], [ptr])
    self_, arguments, positional, names = c.arguments
    state = c.alloca(i64, _STATE_WORDS)
    leave, let_go, failed, over = c.block(), c.block(), c.block(), c.block()
    holder = c.load(ptr, c.byte_gep(self_, World(c).word("recorded slot")), 8)
    c.require(c.negation(c.is_null(holder)), leave)
    c.require(c.equals(c.result("kiln_key_call", i32, holder, arguments, positional, names, state), 1), over)
    key = _as_bytes(c, state)
    c.require(c.negation(c.is_null(key)), failed)
    found = c.result("PyDict_GetItemWithError", ptr, c.result("PyTuple_GetItem", ptr, holder, c.i64(0)), key)
    c.call("Py_DecRef", [], [key])
    c.require(c.negation(c.is_null(found)), failed)
    c.call("Py_IncRef", [], [found])
    held = c.load(ptr, c.byte_gep(found, World(c).word("program slot")), 8)
    header = c.byte_gep(held, plan.BYTES_DATA)
    c.require(c.equals(c.result("kiln_guards", i32, c.pointer(header, program.GUARDS)), 1), let_go)
    result = c.result("kiln_repeat", ptr, header, state)
    c.require(c.compare("ne", c.as_word(result), c.const(i64, NOT_FORESEEN)), let_go)
    c.call("Py_DecRef", [], [found])
    c.call("kiln_let_go", [], [state])
    c.give(result)
    c.at(let_go)
    c.call("Py_DecRef", [], [found])
    c.goto(over)
    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(over)
    c.at(over)
    c.call("kiln_let_go", [], [state])
    c.goto(leave)
    c.at(leave)
    python = World(c).pointer("recorded python")
    c.give(c.result("kiln_leave", ptr, python, *c.arguments))
