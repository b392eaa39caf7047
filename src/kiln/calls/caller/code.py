"""The native code that takes calls from Python, built with the MLIR bindings once and kept in the disk cache.

`kiln_call_compiled`  `__call__` of a compiled function: one plan
`kiln_call_jit`       `__call__` of a jit function: plans of several specializations, each with guards
`kiln_call_recorded`  `__call__` of a function of the kernel library: programs by keys
`kiln_call_key`       such a key
`kiln_describe`       what arrays are, as bytes: a key for plans of programs
`kiln_address`        where an array lies
`kiln_stream`         the stream a framework is working on

The first three take a call as CPython's METH_FASTCALL | METH_KEYWORDS does, with the GIL held. `calls/plan.py` says
what is in a plan. What is not foreseen goes to a Python function; no error is raised here.
"""

from __future__ import annotations

from ...base_dsl import guards
from ...mlir import context, ir
from ...targets.lowering.builder import declare, global_, int_type, parsed_type, ptr_type
from .. import plan
from . import arrays, programs, values
from .body import Body
from .world import WORLD, WORLD_WORDS, World

_SHARED = {
    "kiln_read": (("ptr", "ptr"), "i32"), "kiln_stream_of": (("ptr", "ptr"), "i32"), "kiln_guards": (("ptr",), "i32"),
    "kiln_leave": (("ptr", "ptr", "ptr", "i64", "ptr"), "ptr"),
}  # fmt: skip
"""What the second part uses of the first."""
EXPORTS = (
    ("kiln_call_compiled", "kiln_call_jit", "kiln_describe", "kiln_address", "kiln_stream", WORLD, *_SHARED),
    ("kiln_call_recorded", "kiln_call_key"),
)
"""What others see of each part."""
NOT_FORESEEN = 1
"""What `kiln_run` returns for a call that it cannot make."""

API = (
    ("PyLong_AsLongLongAndOverflow", ("ptr", "ptr"), "i64"),
    ("PyLong_AsUnsignedLongLongMask", ("ptr",), "i64"),
    ("PyLong_AsDouble", ("ptr",), "f64"),
    ("PyLong_FromLongLong", ("i64",), "ptr"),
    ("PyLong_FromUnsignedLongLong", ("i64",), "ptr"),
    ("PyFloat_AsDouble", ("ptr",), "f64"),
    ("PyFloat_FromDouble", ("f64",), "ptr"),
    ("PyBool_FromLong", ("i64",), "ptr"),
    ("PyBytes_FromStringAndSize", ("ptr", "i64"), "ptr"),
    ("PyNumber_Long", ("ptr",), "ptr"),
    ("PyErr_Occurred", (), "ptr"),
    ("PyErr_Clear", (), ""),
    ("PyObject_GetAttr", ("ptr", "ptr"), "ptr"),
    ("PyObject_IsTrue", ("ptr",), "i32"),
    ("PyObject_CallNoArgs", ("ptr",), "ptr"),
    ("PyObject_Call", ("ptr", "ptr", "ptr"), "ptr"),
    ("PyObject_Vectorcall", ("ptr", "ptr", "i64", "ptr"), "ptr"),
    ("PyFunction_GetCode", ("ptr",), "ptr"),
    ("PyFunction_GetGlobals", ("ptr",), "ptr"),
    ("PyFunction_GetDefaults", ("ptr",), "ptr"),
    ("PyFunction_GetKwDefaults", ("ptr",), "ptr"),
    ("PyFunction_GetClosure", ("ptr",), "ptr"),
    ("PyUnicode_AsUTF8AndSize", ("ptr", "ptr"), "ptr"),
    ("PyTuple_New", ("i64",), "ptr"),
    ("PyTuple_SetItem", ("ptr", "i64", "ptr"), "i32"),
    ("PyTuple_Size", ("ptr",), "i64"),
    ("PyTuple_GetItem", ("ptr", "i64"), "ptr"),
    ("PyList_AsTuple", ("ptr",), "ptr"),
    ("PyDict_New", (), "ptr"),
    ("PyDict_SetItem", ("ptr", "ptr", "ptr"), "i32"),
    ("PyDict_GetItemWithError", ("ptr", "ptr"), "ptr"),
    ("PyCell_Get", ("ptr",), "ptr"),
    ("PyEval_SaveThread", (), "ptr"),
    ("PyEval_RestoreThread", ("ptr",), ""),
    ("Py_IncRef", ("ptr",), ""),
    ("Py_DecRef", ("ptr",), ""),
)
"""What is used of CPython: functions that it exports since 3.9 or longer."""


def build(part: int) -> ir.Module:
    """A part of it, as a module of `func`, `cf`, `arith` and `llvm` operations: 0: all but 1: what only the kernel library
    needs."""
    with context(), ir.Location.unknown():
        types = {"ptr": ptr_type(), "i32": int_type(32), "i64": int_type(64), "f64": ir.F64Type.get()}
        module = ir.Module.create()
        of_c = (("memcpy", ("ptr", "ptr", "i64"), "ptr"), ("memset", ("ptr", "i32", "i64"), "ptr"))
        for name, inputs, result in (*API, *of_c):
            declare(module, name, [types[i] for i in inputs], [types[result]] if result else [])
        zero = None if part else ir.Attribute.parse("#llvm.zero")
        global_(module, WORLD, parsed_type(f"!llvm.array<{WORLD_WORDS} x i64>"), zero, linkage="external")
        if part:
            for name, (inputs, result) in _SHARED.items():
                declare(module, name, [types[i] for i in inputs], [types[result]])
            programs.build(module)
            return module
        values.build(module)
        arrays.build(module)
        _take(module)
        _leave(module)
        _run(module)
        _guards(module)
        _order(module)
        _call_compiled(module)
        _call_jit(module)
        return module


def _take(module: ir.Module) -> None:
    """`kiln_take(record, value, slots)`: 1 if an argument is one that the record describes; its leaves are in the slots.

    What a list holds is another thread's to drop while the call runs, so a tuple of it is held: before the slots.
    """
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_take", [ptr, ptr, ptr], [i32])
    record, value, slots = c.arguments
    overflow = c.alloca(i32)
    no, failed = c.block(), c.block()
    kind = c.word(record, plan.KIND)
    place = c.byte_gep(slots, c.word(record, plan.SLOT))
    for number, name in (
        (plan.ARRAY, "kiln_take_array"), (plan.INTEGER, "kiln_take_integer"), (plan.REAL, "kiln_take_real"),
        (plan.STREAM, "kiln_take_stream"), (plan.AMBIENT, "kiln_take_ambient"),
    ):  # fmt: skip
        found, more = c.block(), c.block()
        c.branch(c.equals(kind, number), found, more)
        c.at(found)
        c.give(c.result(name, i32, record, value, place))
        c.at(more)
    same, number, group = c.block(), c.block(), c.block()
    c.when(c.equals(kind, plan.SAME), same)
    c.when(c.equals(kind, plan.NUMBER), number)
    c.when(c.equals(kind, plan.GROUP), group)
    c.goto(no)
    c.at(same)
    c.give(c.value("arith.extui", i32, (c.is_(value, c.pointer(record, plan.BODY)),)))

    c.at(number)
    c.require(c.is_(c.pointer(value, 1), World(c).pointer("int")), no)
    found = c.result("PyLong_AsLongLongAndOverflow", i64, value, overflow)
    equal = c.both(c.equals(c.load(i32, overflow), 0), c.compare("eq", found, c.word(record, plan.BODY)))
    c.give(c.value("arith.extui", i32, (equal,)))

    c.at(group)
    kind = c.pointer(value, 1)
    c.require(c.is_(kind, c.pointer(record, plan.BODY)), no)
    count = c.word(record, plan.BODY + 1)
    hold = c.word(record, plan.BODY + 2)
    for_list, items = c.block(), c.block(ptr)
    c.when(c.compare("ne", hold, c.i64(0)), for_list)
    c.goto(items, value)
    c.at(for_list)
    held = c.result("PyList_AsTuple", ptr, value)
    c.store(held, c.byte_gep(slots, hold), 8)
    c.require(c.negation(c.is_null(held)), failed)
    c.goto(items, held)
    (value,) = c.at(items)
    c.require(c.compare("eq", c.result("PyTuple_Size", i64, value), count), no)
    head, body, done = c.block(i64, ptr), c.block(), c.block()
    c.goto(head, c.i64(0), c.gep(record, i64, plan.BODY + 3))
    index, child = c.at(head)
    c.branch(c.compare("slt", index, count), body, done)
    c.at(body)
    item = c.result("PyTuple_GetItem", ptr, value, index)
    c.require(c.equals(c.result("kiln_take", i32, child, item, slots), 1), no)
    c.goto(head, c.binary("addi", index, c.i64(1)), c.gep(child, i64, c.word(child, plan.SIZE)))
    c.at(done)
    c.give(c.i32(1))
    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(no)
    c.give(c.i32(0))


def _run(module: ir.Module) -> None:
    """`kiln_run(plan, arguments)`: take the arguments and make the call; its result, null after an error, NOT_FORESEEN."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_run", [ptr, ptr], [ptr])
    header, arguments = c.arguments
    no = c.block()
    held = c.word(header, plan.HELD_BYTES)
    memory = c.value(
        "llvm.alloca", ptr, (c.binary("addi", held, c.word(header, plan.SLOTS_BYTES)),),
        {"elem_type": ir.TypeAttr.get(int_type(8)), "alignment": ir.IntegerAttr.get(i64, 16)},
    )  # fmt: skip
    slots = c.byte_gep(memory, held)
    c.call("memset", [ptr], [memory, c.i32(0), held])
    count = c.word(header, plan.RECORDS)
    head, body, call = c.block(i64, ptr), c.block(), c.block()
    c.goto(head, c.i64(0), c.gep(header, i64, plan.HEADER))
    index, record = c.at(head)
    c.branch(c.compare("slt", index, count), body, call)
    c.at(body)
    ambient = c.equals(c.word(record, plan.KIND), plan.AMBIENT)
    place = c.select(ambient, c.word(record, plan.BODY), index)
    taken = c.result("kiln_take", i32, record, c.pointer(arguments, place), slots)
    c.require(c.equals(taken, 1), no)
    c.goto(head, c.binary("addi", index, c.i64(1)), c.gep(record, i64, c.word(record, plan.SIZE)))

    c.at(call)
    owner = c.pointer(header, plan.OWNER)
    c.call("Py_IncRef", [], [owner])  # other threads run during the call: they may drop the code
    ready, failed = c.block(), c.block()
    c.run_code(c.pointer(header, plan.ENTRY), slots, c.pointer(header, plan.REPORT), ready, failed)
    c.at(ready)
    result = c.result("kiln_result", ptr, header, slots)
    end = c.block(ptr)
    c.call("Py_DecRef", [], [owner])
    c.goto(end, result)
    c.at(failed)
    c.call("Py_DecRef", [], [owner])
    c.goto(end, c.null())
    c.at(no)
    c.goto(end, c.as_pointer(c.i64(NOT_FORESEEN)))
    (result,) = c.at(end)
    head, body, done = c.block(ptr), c.block(), c.block()
    c.goto(head, memory)
    (place,) = c.at(head)
    c.branch(c.compare("ult", c.as_word(place), c.as_word(slots)), body, done)
    c.at(body)
    c.call("Py_DecRef", [], [c.load(ptr, place, 8)])  # null is fine
    c.goto(head, c.gep(place, i64, 1))
    c.at(done)
    c.give(result)


def _guards(module: ir.Module) -> None:
    """`kiln_guards(table)`: 1 if all hold; a table is their number, then the guards."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_guards", [ptr], [i32])
    (table,) = c.arguments
    yes, no, failed = c.block(), c.block(), c.block()
    count = c.word(table)
    head, body, more = c.block(i64, ptr), c.block(), c.block()
    c.goto(head, c.i64(0), c.gep(table, i64, 1))
    index, guard = c.at(head)
    c.branch(c.compare("slt", index, count), body, yes)
    c.at(more)
    c.goto(head, c.binary("addi", index, c.i64(1)), c.gep(guard, i64, 4))

    c.at(body)
    kind, owner, key, wanted = (c.word(guard), *(c.pointer(guard, n) for n in (1, 2, 3)))
    kinds = (guards.IN_DICT, guards.IS_WORD, guards.IN_CELL, guards.IS_ZERO, guards.IS_TRUE, guards.ALL_OF)
    places = {number: c.block() for number in kinds}
    for number, place in places.items():
        c.when(c.equals(kind, number), place)
    c.goto(no)

    c.at(places[guards.IN_DICT])
    found = c.result("PyDict_GetItemWithError", ptr, owner, key)
    same, missing = c.block(), c.block()
    c.branch(c.is_(found, wanted), same, failed)
    c.at(same)
    c.branch(c.is_null(found), missing, more)
    c.at(missing)
    c.branch(c.is_null(c.result("PyErr_Occurred", ptr)), more, failed)

    c.at(places[guards.IN_CELL])
    found = c.result("PyCell_Get", ptr, owner)
    c.require(c.negation(c.is_null(found)), failed)
    c.call("Py_DecRef", [], [found])  # its owner keeps it
    c.branch(c.is_(found, wanted), more, no)

    c.at(places[guards.IS_WORD])
    c.branch(c.is_(c.pointer(owner), wanted), more, no)

    c.at(places[guards.IS_ZERO])
    c.branch(c.equals(c.word(owner), 0), more, no)

    c.at(places[guards.ALL_OF])
    c.branch(c.equals(c.result("kiln_guards", i32, owner), 1), more, no)

    c.at(places[guards.IS_TRUE])
    found = c.result("PyObject_CallNoArgs", ptr, owner)
    c.require(c.negation(c.is_null(found)), failed)
    truth = c.result("PyObject_IsTrue", i32, found)
    c.call("Py_DecRef", [], [found])
    c.branch(c.equals(truth, 1), more, failed)

    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(yes)
    c.give(c.i32(1))
    c.at(no)
    c.give(c.i32(0))


def _order(module: ir.Module) -> None:
    """`kiln_order(plan, arguments, how many are positional, names of the others, ordered)`: 1 if there is one for each
    parameter; they are in `ordered` then."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_order", [ptr, ptr, i64, ptr, ptr], [i32])
    header, arguments, positional, names, ordered = c.arguments
    no = c.block()
    count = c.word(header, plan.COUNT)
    keywords = c.result("PyTuple_Size", i64, names)
    c.require(c.compare("eq", c.binary("addi", positional, keywords), count), no)
    parameters = c.pointer(header, plan.NAMES)
    for first, limit, given in ((None, positional, True), (positional, count, False)):
        head, body, done = c.block(i64), c.block(), c.block()
        c.goto(head, c.i64(0) if first is None else first)
        (index,) = c.at(head)
        c.branch(c.compare("slt", index, limit), body, done)
        c.at(body)
        value = c.pointer(arguments, index) if given else c.null()
        c.store(value, c.gep(ordered, ptr, index), 8)
        c.goto(head, c.binary("addi", index, c.i64(1)))
        c.at(done)
    each, one, done = c.block(i64), c.block(), c.block()
    c.goto(each, c.i64(0))
    (number,) = c.at(each)
    c.branch(c.compare("slt", number, keywords), one, done)
    c.at(one)
    name = c.result("PyTuple_GetItem", ptr, names, number)
    head, look, found = c.block(i64), c.block(), c.block()
    c.goto(head, positional)
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, count), look, no)  # no parameter of this very name is left
    c.at(look)
    c.when(c.is_(c.pointer(parameters, index), name), found)
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(found)
    place = c.gep(ordered, ptr, index)
    c.require(c.is_null(c.load(ptr, place, 8)), no)
    c.store(c.pointer(arguments, c.binary("addi", positional, number)), place, 8)
    c.goto(each, c.binary("addi", number, c.i64(1)))
    c.at(done)
    c.give(c.i32(1))
    c.at(no)
    c.give(c.i32(0))


def _leave(module: ir.Module) -> None:
    """`kiln_leave(function, first, arguments, how many, names)`: call a Python function with one more argument at first."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_leave", [ptr, ptr, ptr, i64, ptr], [ptr])
    python, first, arguments, positional, names = c.arguments
    no, failed = c.block(), c.block(ptr)
    given = c.result("PyTuple_New", ptr, c.binary("addi", positional, c.i64(1)))
    c.require(c.negation(c.is_null(given)), no)
    c.call("Py_IncRef", [], [first])
    c.call("PyTuple_SetItem", [i32], [given, c.i64(0), first])
    head, body, done = c.block(i64), c.block(), c.block()
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, positional), body, done)
    c.at(body)
    value, following = c.pointer(arguments, index), c.binary("addi", index, c.i64(1))
    c.call("Py_IncRef", [], [value])
    c.call("PyTuple_SetItem", [i32], [given, following, value])
    c.goto(head, following)

    c.at(done)
    some, go = c.block(), c.block(ptr)
    c.when(c.negation(c.is_null(names)), some)
    c.goto(go, c.null())
    c.at(some)
    named = c.result("PyDict_New", ptr)
    nothing = c.block()
    c.require(c.negation(c.is_null(named)), nothing)
    count = c.result("PyTuple_Size", i64, names)
    head, body, lost = c.block(i64), c.block(), c.block()
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    ready = c.block()
    c.branch(c.compare("slt", index, count), body, ready)
    c.at(ready)
    c.goto(go, named)
    c.at(body)
    name = c.result("PyTuple_GetItem", ptr, names, index)
    value = c.pointer(arguments, c.binary("addi", positional, index))
    c.require(c.equals(c.result("PyDict_SetItem", i32, named, name, value), 0), lost)
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(lost)
    c.call("Py_DecRef", [], [named])
    c.goto(nothing)
    c.at(nothing)
    c.goto(failed, given)

    (keywords,) = c.at(go)
    result = c.result("PyObject_Call", ptr, python, given, keywords)
    c.call("Py_DecRef", [], [given])
    c.call("Py_DecRef", [], [keywords])  # null is fine
    c.give(result)
    (held,) = c.at(failed)
    c.call("Py_DecRef", [], [held])
    c.goto(no)
    c.at(no)
    c.give(c.null())


def _slot(c: Body, self_: ir.Value, which: str, otherwise: ir.Block) -> ir.Value:
    """What the slot of a callable holds."""
    held = c.load(ptr_type(), c.byte_gep(self_, World(c).word(f"{which} slot")), 8)
    c.require(c.negation(c.is_null(held)), otherwise)
    return held


def _make(c: Body, header: ir.Value, unfit: ir.Block) -> ir.Value:
    """Make a call by a plan; its result, or go to `unfit`. The function's arguments are those of METH_FASTCALL."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    _, arguments, positional, names = c.arguments
    run, keywords = c.block(ptr), c.block()
    c.when(c.negation(c.is_null(names)), keywords)
    c.require(c.compare("eq", positional, c.word(header, plan.COUNT)), unfit)
    c.goto(run, arguments)
    c.at(keywords)
    count = c.word(header, plan.COUNT)
    ordered = c.value("llvm.alloca", ptr, (count,), {"elem_type": ir.TypeAttr.get(ptr)})
    c.require(c.equals(c.result("kiln_order", i32, header, arguments, positional, names, ordered), 1), unfit)
    c.goto(run, ordered)
    (given,) = c.at(run)
    result = c.result("kiln_run", ptr, header, given)
    c.require(c.compare("ne", c.as_word(result), c.const(i64, NOT_FORESEEN)), unfit)
    return result


def _give_to_python(c: Body, which: str) -> None:
    python = World(c).pointer(f"{which} python")
    c.give(c.result("kiln_leave", ptr_type(), python, *c.arguments))


def _call_compiled(module: ir.Module) -> None:
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_call_compiled", [ptr, ptr, i64, ptr], [ptr])
    leave = c.block()
    held = _slot(c, c.arguments[0], "compiled", leave)
    header = c.byte_gep(held, plan.BYTES_DATA)
    c.require(c.equals(c.result("kiln_guards", i32, c.pointer(header, plan.GUARDS)), 1), leave)
    c.give(_make(c, header, leave))
    c.at(leave)
    _give_to_python(c, "compiled")


def _call_jit(module: ir.Module) -> None:
    """The candidates are tried in order. The slot holds a tuple: how many they are, guards for all of them and the addresses
    of their plans, and what owns these; it is kept while the call lasts, as guards may run Python."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_call_jit", [ptr, ptr, i64, ptr], [ptr])
    leave = c.block()
    held = _slot(c, c.arguments[0], "jit", leave)
    c.call("Py_IncRef", [], [held])
    candidates = c.byte_gep(c.result("PyTuple_GetItem", ptr, held, c.i64(0)), plan.BYTES_DATA)
    head, body, more, none = c.block(i64), c.block(), c.block(), c.block()
    c.require(c.equals(c.result("kiln_guards", i32, c.pointer(candidates, 1)), 1), none)
    c.goto(head, c.i64(0))
    (index,) = c.at(head)
    c.branch(c.compare("slt", index, c.word(candidates)), body, none)
    c.at(more)
    c.goto(head, c.binary("addi", index, c.i64(1)))
    c.at(body)
    header = c.pointer(candidates, c.binary("addi", index, c.i64(2)))
    c.require(c.equals(c.result("kiln_guards", i32, c.pointer(header, plan.GUARDS)), 1), more)
    result = _make(c, header, more)
    c.call("Py_DecRef", [], [held])
    c.give(result)
    c.at(none)
    c.call("Py_DecRef", [], [held])
    c.goto(leave)
    c.at(leave)
    _give_to_python(c, "jit")
