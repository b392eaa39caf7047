"""Numbers and streams: taking them from Python objects, and giving results back."""

from __future__ import annotations

from ...mlir import ir
from ...targets.lowering.builder import int_type, ptr_type
from .. import plan
from .body import Body
from .world import STREAMS, World


def build(module: ir.Module) -> None:
    """Add the functions to a module."""
    _take_integer(module)
    _take_real(module)
    _take_stream(module)
    _result(module)


def _types(c: Body, record: ir.Value, value: ir.Value, no: ir.Block) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Go on if a record takes a value; the bit of its type, the plain value, and whether it came with a numeric type."""
    world, ptr, i64 = World(c), ptr_type(), int_type(64)
    kind = c.pointer(value, 1)
    typed, plain = c.block(), c.block(ptr, i64)
    c.when(c.is_(kind, c.pointer(record, plan.BODY + 1)), typed)
    c.goto(plain, value, c.word(record, plan.BODY))
    c.at(typed)
    slot = world.word("number slot")
    c.require(c.compare("ne", slot, c.i64(0)), no)
    inner = c.load(ptr, c.byte_gep(value, slot), 8)
    c.require(c.negation(c.is_null(inner)), no)
    c.goto(plain, inner, c.i64(plan.TYPED))
    value, types = c.at(plain)
    kind, bit = c.pointer(value, 1), c.i64(0)
    for name, number in (("int", plan.INT), ("bool", plan.BOOL), ("float", plan.FLOAT)):
        bit = c.select(c.is_(kind, world.pointer(name)), c.i64(number), bit)
    c.require(c.compare("ne", c.binary("andi", bit, types), c.i64(0)), no)
    return bit, value, c.equals(types, plan.TYPED)


def _take_integer(module: ir.Module) -> None:
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_take_integer", [ptr, ptr, ptr], [i32])
    record, value, place = c.arguments
    overflow = c.alloca(i32)
    no = c.block()
    bit, value, typed = _types(c, record, value, no)
    c.require(c.compare("ne", bit, c.i64(plan.FLOAT)), no)
    number = c.result("PyLong_AsLongLongAndOverflow", i64, value, overflow)
    c.require(c.equals(c.load(i32, overflow), 0), no)
    c.require(c.compare("sge", number, c.word(record, plan.BODY + 2)), no)
    c.require(c.compare("sle", number, c.word(record, plan.BODY + 3)), no)
    short = c.both(c.compare("sge", number, c.i64(-(1 << 31))), c.compare("slt", number, c.i64(1 << 31)))
    hole = c.compare("ne", c.word(record, plan.BODY + 4), c.i64(0))
    c.require(c.either(typed, c.negation(c.both(hole, short))), no)
    c.store(number, place, 8)
    c.give(c.i32(1))
    c.at(no)
    c.give(c.i32(0))


def _take_real(module: ir.Module) -> None:
    """A float too large for 32 bits is left to Python, which refuses it."""
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    f32, f64 = ir.F32Type.get(), ir.F64Type.get()
    c = Body(module, "kiln_take_real", [ptr, ptr, ptr], [i32])
    record, value, place = c.arguments
    no, failed, real, whole, have = c.block(), c.block(), c.block(), c.block(), c.block(f64)
    bit, value, _ = _types(c, record, value, no)
    c.branch(c.equals(bit, plan.FLOAT), real, whole)
    c.at(real)
    c.goto(have, c.result("PyFloat_AsDouble", f64, value))
    c.at(whole)
    number = c.result("PyLong_AsDouble", f64, value)
    c.require(c.is_null(c.result("PyErr_Occurred", ptr)), failed)
    c.goto(have, number)
    (number,) = c.at(have)
    single, double = c.block(), c.block()
    c.branch(c.equals(c.word(record, plan.BODY + 2), 4), single, double)
    c.at(double)
    c.store(number, place, 8)
    c.give(c.i32(1))
    c.at(single)
    short = c.value("arith.truncf", f32, (number,))
    bits, short_bits = c.value("llvm.bitcast", i64, (number,)), c.value("llvm.bitcast", i32, (short,))
    infinite = c.equals(c.binary("andi", short_bits, c.i32(0x7FFFFFFF)), 0x7F800000)
    was = c.equals(c.binary("andi", bits, c.i64((1 << 63) - 1)), 0x7FF << 52)
    c.require(c.either(c.negation(infinite), was), no)
    c.store(c.wide(short_bits), place, 8)
    c.give(c.i32(1))
    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(no)
    c.give(c.i32(0))


def _take_stream(module: ir.Module) -> None:
    ptr, i32, i64 = ptr_type(), int_type(32), int_type(64)
    c = Body(module, "kiln_take_stream", [ptr, ptr, ptr], [i32])
    record, value, place = c.arguments
    del record
    world, kind = World(c), c.pointer(value, 1)
    no, failed, known, have = c.block(), c.block(), c.block(ptr), c.block(ptr)
    for number in range(STREAMS):
        c.when(c.is_(kind, world.pointer(f"stream type {number}")), known, world.pointer(f"stream attribute {number}"))
    c.goto(no)
    (attribute,) = c.at(known)
    by_name, by_number = c.block(), c.block()
    c.branch(c.is_null(attribute), by_number, by_name)
    c.at(by_name)
    c.goto(have, c.result("PyObject_GetAttr", ptr, value, attribute))
    c.at(by_number)
    c.goto(have, c.result("PyNumber_Long", ptr, value))
    (handle,) = c.at(have)
    c.require(c.negation(c.is_null(handle)), failed)
    bits = c.result("PyLong_AsUnsignedLongLongMask", i64, handle)
    c.call("Py_DecRef", [], [handle])
    c.require(c.is_null(c.result("PyErr_Occurred", ptr)), failed)
    c.store(bits, place, 8)
    c.give(c.i32(1))
    c.at(failed)
    c.call("PyErr_Clear", [], [])
    c.goto(no)
    c.at(no)
    c.give(c.i32(0))


def _result(module: ir.Module) -> None:
    """`kiln_result(plan, slots)`: what the call returns to Python; null if there is no memory for it."""
    ptr, i64 = ptr_type(), int_type(64)
    f32, f64 = ir.F32Type.get(), ir.F64Type.get()
    c = Body(module, "kiln_result", [ptr, ptr], [ptr])
    header, slots = c.arguments
    told = c.word(header, plan.RESULT)
    kind = c.binary("andi", told, c.i64(0xFF))
    place = c.byte_gep(slots, c.word(header, plan.RESULT_AT))
    number = c.block()
    c.when(c.compare("ne", kind, c.i64(plan.NO_RESULT)), number)
    value = c.pointer(header, plan.VALUE)
    c.call("Py_IncRef", [], [value])
    c.give(value)
    c.at(number)
    bits = c.load(i64, place, 8)
    # an integer of so many bytes: what lies above them is undefined
    above = c.binary("subi", c.i64(64), c.binary("muli", c.binary("shrui", told, c.i64(8)), c.i64(8)))
    places = {number: c.block() for number in (plan.SIGNED, plan.REAL32, plan.REAL64, plan.TRUTH)}
    for wanted, block in places.items():
        c.when(c.equals(kind, wanted), block)
    whole = c.binary("shrui", c.binary("shli", bits, above), above)
    c.give(c.result("PyLong_FromUnsignedLongLong", ptr, whole))
    c.at(places[plan.SIGNED])
    whole = c.binary("shrsi", c.binary("shli", bits, above), above)
    c.give(c.result("PyLong_FromLongLong", ptr, whole))
    c.at(places[plan.REAL32])
    c.give(c.result("PyFloat_FromDouble", ptr, c.value("arith.extf", f64, (c.load(f32, place, 8),))))
    c.at(places[plan.REAL64])
    c.give(c.result("PyFloat_FromDouble", ptr, c.load(f64, place, 8)))
    c.at(places[plan.TRUTH])
    c.give(c.result("PyBool_FromLong", ptr, c.binary("andi", bits, c.i64(1))))
