"""Arithmetic on values of numeric types as operations of `arith` and `math`.

Every function takes IR values together with their numeric type, so that nothing asks MLIR for a type, and a vector
length `n` (None: scalars); the same code serves scalars and one-dimensional vectors. Narrow floats (below 16 bits, and
tf32) are computed in Float32 and rounded back.

Narrow floats are converted through Float32 with `arith.extf` and `arith.truncf`: a target that has instructions for
them uses those, others run `expand.expand_narrow_floats`. The rounding is to nearest even and saturating either way.
"""

from __future__ import annotations

import functools
from typing import Any

from .. import trace
from ..bindings import context, ir
from ..trace import emit_value
from .meta import TYPES, FloatMeta, IntegerMeta


def ir_type(t: Any, n: int | None = None) -> ir.Type:
    """Return the IR type of a scalar or a vector of `n` elements."""
    if n is not None:
        return t.vector_type(n)
    return t._ir_type or t.mlir_type


def constant(t: Any, value: bool | int | float, n: int | None = None) -> ir.Value:
    """Return a value of type `t` (already rounded or wrapped to it), in every element of a vector."""
    if n is None:
        return trace.constant(t._ir_type or t.mlir_type, value)
    current = trace.current()
    if current is None:
        raise trace.outside_use("a constant of the program", True)
    function = current.function
    vector = t.vector_type(n)
    cached = function.constants.get((vector, repr(value)))
    if cached is None:
        if isinstance(t, FloatMeta):
            element = ir.FloatAttr.get(t.mlir_type, float(value))
        elif t.width > 64:
            element = ir.Attribute.parse(f"{int(value)} : {t.mlir_type}")
        else:
            element = ir.IntegerAttr.get(t.mlir_type, _as_signed(int(value), t.width))
        attribute = ir.DenseElementsAttr.get_splat(vector, element)
        at_start = ir.InsertionPoint.at_block_begin(function.entry)
        cached = ir.Operation.create(
            "arith.constant", (vector,), (), {"value": attribute}, None, 0, ir.Location.unknown(), at_start
        ).result
        function.constants[vector, repr(value)] = cached
    return cached


def _as_signed(value: int, width: int) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


@functools.cache
def _attributes(text: str) -> dict[str, ir.Attribute]:
    name, _, value = text.partition("=")
    return {name: ir.Attribute.parse(value, context())}


def float_attributes() -> dict[str, ir.Attribute] | None:
    """Return the flags of float operations: none, unless the language says so with `fastmath = "contract"` or the like.

    This is the only place they come from. Contraction of a*b+c is a choice of the language or the target, not ours.
    """
    current = trace.current()
    flags = getattr(current.dsl, "fastmath", None) if current is not None else None
    return _attributes(f"fastmath=#arith.fastmath<{flags}>") if flags else None


INTEGER_OPS = {name: f"arith.{name}i" for name in ("add", "sub", "mul", "and", "or", "xor")}


def integer(name: str, t: object, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    """Emit add, sub, mul, and, or, xor: they wrap, and signs do not matter."""
    return emit_value(INTEGER_OPS[name], ir_type(t, n), (a, b))


def integer_floordiv(
    t: Any, a: ir.Value, b: ir.Value, n: int | None = None, *, nonneg: bool = False, divisor: int | None = None
) -> ir.Value:
    """Emit a division rounding down. `nonneg`: neither side is negative. `divisor`: the value of `b`, if known."""
    vt = ir_type(t, n)
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        # LLVM does not find this for a dividend of unknown sign: floordivsi by 2**k stays 6 instructions.
        op = "arith.shrui" if nonneg or t._zero_extends else "arith.shrsi"
        return emit_value(op, vt, (a, constant(t, divisor.bit_length() - 1, n)))
    if nonneg or t._zero_extends:
        return emit_value("arith.divui", vt, (a, b))
    if divisor == -1:  # the smallest integer divided by -1 is undefined in LLVM; negation wraps
        return emit_value("arith.subi", vt, (constant(t, 0, n), a))
    if t.width <= 64:
        return emit_value("arith.floordivsi", vt, (a, b))
    # upstream expands floordivsi with constants of 64 bits: wrong beyond
    quotient = emit_value("arith.divsi", vt, (a, b))
    remainder = emit_value("arith.subi", vt, (a, emit_value("arith.muli", vt, (quotient, b))))
    one_less = emit_value("arith.subi", vt, (quotient, constant(t, 1, n)))
    return select(t, _rounded_up(t, remainder, b, n), one_less, quotient, n)


def integer_division(t: Any, a: ir.Value, b: ir.Value, n: int | None = None, *, divisor: int | None = None) -> ir.Value:
    """Emit a division rounding toward zero. `divisor`: the value of `b`, if known."""
    if t._zero_extends or divisor == -1:
        return integer_floordiv(t, a, b, n, divisor=divisor)
    return emit_value("arith.divsi", ir_type(t, n), (a, b))


def integer_mod(
    t: Any, a: ir.Value, b: ir.Value, n: int | None = None, *, nonneg: bool = False, divisor: int | None = None
) -> ir.Value:
    """Emit the remainder of the division rounding down: it has the sign of the divisor."""
    vt = ir_type(t, n)
    if divisor is not None and divisor > 0 and divisor & (divisor - 1) == 0:
        return emit_value("arith.andi", vt, (a, constant(t, divisor - 1, n)))
    if nonneg or t._zero_extends:
        return emit_value("arith.remui", vt, (a, b))
    if divisor in (1, -1):
        return constant(t, 0, n)
    remainder = emit_value("arith.remsi", vt, (a, b))
    zero = constant(t, 0, n)
    if divisor is not None:
        # the sign of the divisor is known: add it where the remainder has the other sign
        wrong = integer_compare("lt" if divisor > 0 else "gt", t, remainder, zero, n)
    else:
        wrong = _rounded_up(t, remainder, b, n)
    return emit_value("arith.addi", vt, (remainder, select(t, wrong, b, zero, n)))


def _rounded_up(t: object, remainder: ir.Value, b: ir.Value, n: int | None) -> ir.Value:
    """Return whether a division toward zero rounded up: the remainder is nonzero and has not the divisor's sign."""
    zero = constant(t, 0, n)
    inexact = integer_compare("ne", t, remainder, zero, n)
    signs = emit_value("arith.xori", ir_type(t, n), (remainder, b))
    differ = integer_compare("lt", t, signs, zero, n)
    return emit_value("arith.andi", ir_type(TYPES["Boolean"], n), (inexact, differ))


SIGNED_AMOUNT = "signed_amount"
"""The attribute of shifts whose amount may be negative, where Python raises: for targets that report it."""


def shift_left(
    t: Any, a: ir.Value, amount: ir.Value, n: int | None = None, *, may_be_negative: bool = False
) -> ir.Value:
    """Return `a << amount`; everything is shifted out from `amount == width` on (a bare shift is undefined there),
    and by a negative amount, which is a large one as an unsigned number."""
    vt = ir_type(t, n)
    inside = compare_ir("arith.cmpi", _ULT, amount, constant(t, t.width, n), n)
    shifted = emit_value("arith.shli", vt, (a, amount), _amount_attributes(may_be_negative))
    return select(t, inside, shifted, constant(t, 0, n), n)


def shift_right(
    t: Any, a: ir.Value, amount: ir.Value, n: int | None = None, *, nonneg: bool = False, may_be_negative: bool = False
) -> ir.Value:
    """Emit `a >> amount` rounding down; 0 or -1 from `amount == width` on, and by a negative amount. `nonneg`: `a` is
    not negative."""
    vt = ir_type(t, n)
    attributes = _amount_attributes(may_be_negative)
    if t._zero_extends or nonneg:
        inside = compare_ir("arith.cmpi", _ULT, amount, constant(t, t.width, n), n)
        return select(t, inside, emit_value("arith.shrui", vt, (a, amount), attributes), constant(t, 0, n), n)
    clamped = emit_value("arith.minui", vt, (amount, constant(t, t.width - 1, n)))
    return emit_value("arith.shrsi", vt, (a, clamped), attributes)


def _amount_attributes(may_be_negative: bool) -> dict[str, ir.Attribute] | None:
    current = trace.current()
    is_program = current is not None and current.functions and current.function.kind != "native"
    return _attributes(f"{SIGNED_AMOUNT}=unit") if may_be_negative and is_program else None


_EQ, _NE, _SLT, _SLE, _SGT, _SGE, _ULT, _ULE, _UGT, _UGE = range(10)
_SIGNED = {"eq": _EQ, "ne": _NE, "lt": _SLT, "le": _SLE, "gt": _SGT, "ge": _SGE}
_UNSIGNED = {"eq": _EQ, "ne": _NE, "lt": _ULT, "le": _ULE, "gt": _UGT, "ge": _UGE}
# Ordered (false for NaN) but for `!=`, which is true: Python's meaning.
_ORDERED = {"eq": 1, "gt": 2, "ge": 3, "lt": 4, "le": 5, "ne": 13}


@functools.cache
def _predicate(number: int) -> dict[str, ir.Attribute]:
    return _attributes(f"predicate={number} : i64")


def compare_ir(op: str, predicate: int, a: ir.Value, b: ir.Value, n: int | None) -> ir.Value:
    """Return a bare `arith.cmpi` or `arith.cmpf`."""
    boolean = TYPES["Boolean"]
    return emit_value(op, ir_type(boolean, n), (a, b), _predicate(predicate))


def integer_compare(name: str, t: Any, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    """Emit a comparison; `name` is lt, le, gt, ge, eq or ne."""
    return compare_ir("arith.cmpi", (_UNSIGNED if t._zero_extends else _SIGNED)[name], a, b, n)


def integer_min(t: Any, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    return emit_value("arith.minui" if t._zero_extends else "arith.minsi", ir_type(t, n), (a, b))


def integer_max(t: Any, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    return emit_value("arith.maxui" if t._zero_extends else "arith.maxsi", ir_type(t, n), (a, b))


def integer_abs(t: Any, a: ir.Value, n: int | None = None) -> ir.Value:
    return a if t._zero_extends else emit_value("math.absi", ir_type(t, n), (a,))


def integer_power(t: object, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    """Return `a ** b` for an exponent that is not negative."""
    return emit_value("math.ipowi", ir_type(t, n), (a, b))


FLOAT_OPS = {
    "add": "arith.addf",
    "sub": "arith.subf",
    "mul": "arith.mulf",
    "truediv": "arith.divf",
    "rem": "arith.remf",
    "min": "arith.minnumf",
    "max": "arith.maxnumf",
    "minimum": "arith.minimumf",
    "maximum": "arith.maximumf",
    "pow": "math.powf",
}


def floating(name: str, t: Any, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    """Return an operation on two floats. `min` and `max` ignore a NaN, `minimum` and `maximum` pass it on; `rem` has
    the sign of the dividend; `floordiv` and `mod` round down as Python's do."""
    compute = t._compute
    if t.width == 16 and name in ("mod", "floordiv"):
        compute = TYPES["Float32"]  # the steps on the way would round
    if compute is not t:
        a = convert(a, t, compute, n)
        b = convert(b, t, compute, n)
        return convert(floating(name, compute, a, b, n), compute, t, n)
    if name == "mod":
        return _float_mod(t, a, b, n)
    if name == "floordiv":
        return _float_floordiv(t, a, b, n)
    return emit_value(FLOAT_OPS[name], ir_type(t, n), (a, b), float_attributes())


def float_unary(op: str, t: Any, a: ir.Value, n: int | None = None) -> ir.Value:
    """Return an operation on one float, for example `math.absf`."""
    compute = t._compute
    if compute is not t:
        return convert(float_unary(op, compute, convert(a, t, compute, n), n), compute, t, n)
    return emit_value(op, ir_type(t, n), (a,), float_attributes())


def _float_remainder(t: object, a: ir.Value, b: ir.Value, n: int | None) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the remainder with the dividend's sign; whether it is nonzero; whether its sign is not the divisor's."""
    zero = constant(t, 0.0, n)
    remainder = emit_value("arith.remf", ir_type(t, n), (a, b))
    inexact = compare_ir("arith.cmpf", _ORDERED["ne"], remainder, zero, n)
    boolean = ir_type(TYPES["Boolean"], n)
    signs = float_compare("lt", t, remainder, zero, n), float_compare("lt", t, b, zero, n)
    wrong = emit_value("arith.andi", boolean, (inexact, emit_value("arith.xori", boolean, signs)))
    return remainder, inexact, wrong


def _float_mod(t: object, a: ir.Value, b: ir.Value, n: int | None) -> ir.Value:
    vt = ir_type(t, n)
    remainder, inexact, wrong = _float_remainder(t, a, b, n)
    adjusted = select(t, wrong, emit_value("arith.addf", vt, (remainder, b)), remainder, n)
    return select(t, inexact, adjusted, emit_value("math.copysign", vt, (constant(t, 0.0, n), b)), n)


def _float_floordiv(t: object, a: ir.Value, b: ir.Value, n: int | None) -> ir.Value:
    """Emit `//` through the exact remainder, as Python does: floor(a / b) is too large where a / b rounds up."""
    vt = ir_type(t, n)
    zero = constant(t, 0.0, n)
    one = constant(t, 1.0, n)
    remainder, _, wrong = _float_remainder(t, a, b, n)
    exact = emit_value("arith.divf", vt, (emit_value("arith.subf", vt, (a, remainder)), b))
    exact = select(t, wrong, emit_value("arith.subf", vt, (exact, one)), exact, n)
    down = emit_value("math.floor", vt, (exact,))
    missed = float_compare("gt", t, emit_value("arith.subf", vt, (exact, down)), constant(t, 0.5, n), n)
    down = select(t, missed, emit_value("arith.addf", vt, (down, one)), down, n)
    quotient = emit_value("arith.divf", vt, (a, b))
    signed_zero = emit_value("math.copysign", vt, (zero, quotient))
    down = select(t, float_compare("eq", t, exact, zero, n), signed_zero, down, n)
    return select(t, float_compare("eq", t, b, zero, n), quotient, down, n)


def float_compare(name: str, t: Any, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    compute = t._compute
    if compute is not t:
        a = convert(a, t, compute, n)
        b = convert(b, t, compute, n)
    return compare_ir("arith.cmpf", _ORDERED[name], a, b, n)


def compare(name: str, t: object, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    """Return a comparison of two values of type `t`; the result is a Boolean."""
    return (integer_compare if isinstance(t, IntegerMeta) else float_compare)(name, t, a, b, n)


def select(t: object, condition: ir.Value, a: ir.Value, b: ir.Value, n: int | None = None) -> ir.Value:
    """Return `a` where the condition (scalar, or a vector beside vectors) holds, else `b`."""
    return emit_value("arith.select", ir_type(t, n), (condition, a, b))


def negate(t: object, a: ir.Value, n: int | None = None) -> ir.Value:
    if isinstance(t, FloatMeta):
        return float_unary("arith.negf", t, a, n)
    return emit_value("arith.subi", ir_type(t, n), (constant(t, 0, n), a))


def invert(t: Any, a: ir.Value, n: int | None = None) -> ir.Value:
    """Return all bits flipped; for Boolean, the negation."""
    return emit_value("arith.xori", ir_type(t, n), (a, constant(t, 1 if t.is_boolean else -1, n)))


_NATIVE_SOURCES = ("Float64", "Float32")


def convert(value: ir.Value, source: object, target: object, n: int | None = None, *, nonneg: bool = False) -> ir.Value:
    """Return `value` of type `source` as a value of type `target`.

    Integers wrap; floats round to nearest even; a float becomes an integer by dropping the fraction, and saturates
    (NaN gives 0) once a target has lowered it; anything but zero is True. `nonneg`: an integer known not to be
    negative.
    """
    if source is target:
        return value
    if isinstance(source, FloatMeta):
        if isinstance(target, FloatMeta):
            return _float_to_float(value, source, target, n)
        return _float_to_integer(value, source, target, n)
    if isinstance(target, FloatMeta):
        return _integer_to_float(value, source, target, n, nonneg)
    return _integer_to_integer(value, source, target, n, nonneg)


def _integer_to_integer(value: ir.Value, source: Any, target: Any, n: int | None, nonneg: bool) -> ir.Value:
    if target.is_boolean:
        return integer_compare("ne", source, value, constant(source, 0, n), n)
    if source.width == target.width:
        return value  # signless in the IR
    if source.width > target.width:
        op = "arith.trunci"
    else:
        op = "arith.extui" if nonneg or source._zero_extends else "arith.extsi"
    return emit_value(op, ir_type(target, n), (value,))


def _integer_to_float(value: ir.Value, source: Any, target: Any, n: int | None, nonneg: bool) -> ir.Value:
    compute = target._compute
    op = "arith.uitofp" if nonneg or source._zero_extends else "arith.sitofp"
    if target is TYPES["BFloat16"] and source.width > 8:
        compute = TYPES["Float32"]  # what both code generators do, stated
    converted = emit_value(op, ir_type(compute, n), (value,))
    return converted if compute is target else _float_to_float(converted, compute, target, n)


def _float_to_integer(value: ir.Value, source: Any, target: Any, n: int | None) -> ir.Value:
    compute = source._compute
    if compute is not source:
        value = _float_to_float(value, source, compute, n)
    if target.is_boolean:
        return compare_ir("arith.cmpf", _ORDERED["ne"], value, constant(compute, 0.0, n), n)
    op = "arith.fptosi" if target.signed else "arith.fptoui"
    return emit_value(op, ir_type(target, n), (value,))


def _float_to_float(value: ir.Value, source: Any, target: Any, n: int | None) -> ir.Value:
    if source is target:
        return value
    float32 = TYPES["Float32"]
    if source._compute is not source and target is not float32:
        # narrow to anything: exact in Float32
        return _float_to_float(_float_to_float(value, source, float32, n), float32, target, n)
    if target._compute is not target and source.__name__ not in _NATIVE_SOURCES:
        value = _float_to_float(value, source, float32, n)
        source = float32
    if source.width == target.width and source._compute is source and target._compute is target:
        # Float16 and BFloat16 do not contain each other
        return _float_to_float(_float_to_float(value, source, float32, n), float32, target, n)
    widening = source.width < target.width or (target is float32 and source._compute is not source)
    return emit_value("arith.extf" if widening else "arith.truncf", ir_type(target, n), (value,))


def bitcast(value: ir.Value, source: object, target: object, n: int | None = None) -> ir.Value:
    """Return the same bits as another type of the same width."""
    if source is target:
        return value
    tf32 = TYPES["TFloat32"]
    float32 = TYPES["Float32"]
    # MLIR's tf32 is 19 bits wide: its bits are those of the f32 with the same value
    if source is tf32:
        return bitcast(convert(value, tf32, float32, n), float32, target, n)
    if target is tf32:
        return convert(bitcast(value, source, float32, n), float32, tf32, n)
    if ir_type(source) == ir_type(target):
        return value
    return emit_value("arith.bitcast", ir_type(target, n), (value,))
