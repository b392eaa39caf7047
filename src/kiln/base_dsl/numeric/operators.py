"""Python's operators on typed scalars: find the common type, then compute on the host or emit operations.

Operands are passed on as Python scalars of the common type or IR-valued scalars of that type, so that what is known (a
divisor, a shift count, a zero) can be used. Facts about integers (`nonneg`, `divisibility`) are kept up to date here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .. import trace
from ..bindings import ir
from ..diagnostics import DSLUserCodeRuntimeError, error, type_error
from ..trace import constant, emit_value
from . import emit, host
from .emit import convert as emit_convert
from .meta import INTEGERS, TYPES, FloatMeta, IntegerMeta, NumericMeta
from .operands import PLAIN, as_numeric, is_ir_value_class, plain_scalar, refuse_complex
from .promotion import common_type, float_of, holding_both, operand_type, refuse_packed, weak_type


def convert(x: Any, t: Any) -> Any:
    """Return a typed scalar as what `t(x)` is."""
    s = type(x)
    if t._initializes:
        return x if s is t else t(x)
    value = x._value
    if type(value) in PLAIN:
        return t._lift(value if s is t else host.cast(t, value))
    if s is t:
        return x
    if isinstance(s, IntegerMeta):
        nonneg = x.nonneg
        result = emit_convert(value, s, t, nonneg=nonneg)
        if isinstance(t, IntegerMeta) and not t.is_boolean:
            divisibility = x._divisibility
            if t.width > s.width:
                return t._make(result, nonneg, divisibility)
            # cut off at a power of two: only the powers of two in the divisor survive
            return t._make(result, False, divisibility & -divisibility)
        return t._make(result)
    return t._make(emit_convert(value, s, t))


def operand(x: Any, t: Any) -> Any:
    """Return an operand of any kind as a Python scalar of type `t`, or an IR-valued scalar of type `t`."""
    s = type(x)
    if not isinstance(s, NumericMeta):
        return host.cast(t, x)
    if type(x._value) in PLAIN:
        return x._value if s is t else host.cast(t, x._value)
    return x if s is t else convert(x, t)


def ir_operand(x: Any, t: Any) -> ir.Value:
    if type(x) not in PLAIN:
        return x._value
    return integer_constant(t, x) if isinstance(t, IntegerMeta) else constant(t._ir_type or t.mlir_type, x)


def integer_constant(t: Any, value: int) -> ir.Value:
    """Return `trace.constant`, found by the numeric type first: hashing an IR type is slow."""
    active = trace.state.trace
    if active is None:
        raise trace.outside_use("a constant of the program", True)
    constants = active.functions[-1].constants
    cached = constants.get((t, value))
    if cached is None:
        cached = constants[t, value] = constant(t._ir_type or t.mlir_type, value)
    return cached


def arithmetic_type(t: Any) -> Any:
    """Return the type of arithmetic: Int32 for Boolean."""
    return INTEGERS[32, True] if t.is_integer and t.is_boolean else t


def typed_operand(value: host.Plain, t: object) -> Any:
    """Return a Python scalar as a plain typed value beside a value of type `t`."""
    own = arithmetic_type(operand_type(t, value))
    return own._make(host.cast(own, value))


def check_chosen(what: str, t: Any, *values: object) -> None:
    """Refuse Python numbers that type `t` would change, where a program chooses between values."""
    for value in values:
        plain = None if isinstance(type(value), NumericMeta) else plain_scalar(value)
        if plain is not None and not host.keeps(t, plain):
            raise type_error(
                f"{what}: {type(plain).__name__} {plain} is no value of {t.__name__}, the type it would have",
                host.keeping(t, plain),
            )


def meet(a: object, b: object, of_python: Callable[[Any, host.Plain], Any] = operand_type) -> Any:
    """Return the common type of a typed scalar with anything, or None if that is not a number.

    `of_python` says what it is beside a Python scalar: `operand_type` in arithmetic, `weak_type` where one of the two
    is chosen.
    """
    s = type(b)
    if isinstance(s, NumericMeta):
        return common_type(type(a), s)
    plain = plain_scalar(b)
    return None if plain is None else of_python(type(a), plain)


_BITWISE = frozenset(("and", "or", "xor"))


def binary(name: str, a: Any, b: Any, reflected: bool = False) -> Any:
    """Return `a name b` (or the other way round) for a typed scalar `a`."""
    t = type(a)
    if type(b) is not t:
        t = meet(a, b)
        if t is None:
            return NotImplemented
        if type(b) not in PLAIN and not isinstance(type(b), NumericMeta):
            b = plain_scalar(b)
    if isinstance(t, IntegerMeta):
        if name == "truediv":
            t = float_of(t)
        elif t.is_boolean and name not in _BITWISE:
            t = INTEGERS[32, True]
    elif name in _BITWISE:
        return NotImplemented
    elif t._format is None:
        refuse_packed(t)
    # `operand`, without the call where nothing is to be done
    x = a if type(a) is t and type(a._value) not in PLAIN else operand(a, t)
    y = b if type(b) is t and type(b._value) not in PLAIN else operand(b, t)
    if reflected:
        x, y = y, x
    if type(x) in PLAIN and type(y) in PLAIN:
        return t._make(host.binary(name, t, x, y))
    if isinstance(t, IntegerMeta):
        return INTEGER[name](t, x, y)
    return t._make(emit.floating(name, t, ir_operand(x, t), ir_operand(y, t)))


# x and y are Python ints or IR-valued scalars of type t, at least one of them the latter.


def _nonneg(x: Any) -> bool:
    return x >= 0 if type(x) in PLAIN else x._nonneg


def _divisibility(x: Any) -> int:
    return abs(int(x)) if type(x) in PLAIN else x._divisibility


_BY_OPERATOR = 4
"""The frames from `emit_value` to the user of an operator, which calls `binary`, which calls the functions below."""


def _emit(op: str, t: Any, x: Any, y: Any) -> ir.Value:
    left = integer_constant(t, x) if type(x) in PLAIN else x._value
    right = integer_constant(t, y) if type(y) in PLAIN else y._value
    return emit_value(op, t._ir_type or t.mlir_type, (left, right), None, _BY_OPERATOR + 1)


def _add(t: Any, x: Any, y: Any) -> Any:
    if type(x) in PLAIN:
        x, y = y, x
    if type(y) in PLAIN:
        if y == 0:
            return x
        return t._make(_emit("arith.addi", t, x, y), x._nonneg and y >= 0, math.gcd(x._divisibility, y))
    result = emit_value("arith.addi", t._ir_type or t.mlir_type, (x._value, y._value), None, _BY_OPERATOR)
    return t._make(result, x._nonneg and y._nonneg, math.gcd(x._divisibility, y._divisibility))


def _sub(t: Any, x: Any, y: Any) -> Any:
    if type(y) in PLAIN and y == 0:
        return x
    return t._make(_emit("arith.subi", t, x, y), False, math.gcd(_divisibility(x), _divisibility(y)))


def _mul(t: Any, x: Any, y: Any) -> Any:
    if type(x) in PLAIN:
        x, y = y, x
    if type(y) in PLAIN:
        if y == 1:
            return x
        if y == 0:
            return t._lift(0)
        return t._make(_emit("arith.muli", t, x, y), x._nonneg and y >= 0, x._divisibility * abs(y))
    result = emit_value("arith.muli", t._ir_type or t.mlir_type, (x._value, y._value), None, _BY_OPERATOR)
    return t._make(result, x._nonneg and y._nonneg, x._divisibility * y._divisibility)


def _divisor(y: Any, what: str) -> int | None:
    """Return the divisor where it is known. A kernel divides by 0 when it runs, as it would by a number that is not
    known: the quotient may be one that nobody reads."""
    if type(y) not in PLAIN:
        return None
    if y == 0:
        active = trace.current()
        if active is not None and active.function.kind == "kernel":
            return None
        raise error(DSLUserCodeRuntimeError, f"integer {what} by zero", hint="the divisor is a constant 0")
    return y


def _floordiv(t: Any, x: object, y: object) -> Any:
    divisor = _divisor(y, "division")
    if divisor == 1:
        return x
    nonneg = _nonneg(x) and _nonneg(y)
    result = emit.integer_floordiv(t, ir_operand(x, t), ir_operand(y, t), nonneg=nonneg, divisor=divisor)
    multiple = _divisibility(x)
    exact = multiple // divisor if divisor and divisor > 0 and multiple % divisor == 0 else 1
    return t._make(result, nonneg, exact)


def _mod(t: Any, x: Any, y: Any) -> Any:
    divisor = _divisor(y, "modulo")
    if divisor is not None and _divisibility(x) % divisor == 0:
        return t._lift(0)
    nonneg = _nonneg(x) and _nonneg(y)
    result = emit.integer_mod(t, ir_operand(x, t), ir_operand(y, t), nonneg=nonneg, divisor=divisor)
    # the remainder has the sign of the divisor
    return t._make(result, _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))


def _power_of_two_part(x: object) -> int:
    divisibility = _divisibility(x)
    return divisibility & -divisibility


def _common_power_of_two(x: object, y: object) -> int:
    """Return the largest power of two that both are known to be multiples of; a known 0 is one of all."""
    return min((part for part in (_power_of_two_part(x), _power_of_two_part(y)) if part), default=1)


def _and(t: Any, x: Any, y: Any) -> Any:
    multiple = max(_power_of_two_part(x), _power_of_two_part(y), 1)
    return t._make(_emit("arith.andi", t, x, y), _nonneg(x) or _nonneg(y), multiple)


def _or(t: Any, x: Any, y: Any) -> Any:
    return t._make(_emit("arith.ori", t, x, y), _nonneg(x) and _nonneg(y), _common_power_of_two(x, y))


def _xor(t: Any, x: Any, y: Any) -> Any:
    return t._make(_emit("arith.xori", t, x, y), _nonneg(x) and _nonneg(y), _common_power_of_two(x, y))


def _min(t: Any, x: Any, y: Any) -> Any:
    result = emit.integer_min(t, ir_operand(x, t), ir_operand(y, t))
    return t._make(result, _nonneg(x) and _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))


def _max(t: Any, x: Any, y: Any) -> Any:
    result = emit.integer_max(t, ir_operand(x, t), ir_operand(y, t))
    return t._make(result, _nonneg(x) or _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))


INTEGER = {
    "add": _add,
    "sub": _sub,
    "mul": _mul,
    "floordiv": _floordiv,
    "mod": _mod,
    "and": _and,
    "or": _or,
    "xor": _xor,
    "min": _min,
    "max": _max,
}


def shift(name: str, a: Any, amount: Any) -> Any:
    """Shift: the result has the common type of both sides; bits shifted beyond its width are lost, so that one may
    become its sign."""
    s = type(amount)
    if not isinstance(s, IntegerMeta):
        amount = plain_scalar(amount)
        if amount is None or isinstance(amount, float):
            return NotImplemented
    t = arithmetic_type(meet(a, amount))
    x = operand(a, t)
    count = amount._value if isinstance(s, IntegerMeta) else amount
    if type(count) in PLAIN:
        if count < 0:
            raise ValueError("negative shift count")
        return _shift_by_constant(name, t, x, int(count))
    assert isinstance(s, IntegerMeta)
    count = emit_convert(count, s, t, nonneg=amount.nonneg)
    may_be_negative = not amount.nonneg
    if name == "lshift":
        result = emit.shift_left(t, ir_operand(x, t), count, may_be_negative=may_be_negative)
        return t._make(result, False, _divisibility(x))
    nonneg = _nonneg(x)
    result = emit.shift_right(t, ir_operand(x, t), count, nonneg=nonneg, may_be_negative=may_be_negative)
    return t._make(result, nonneg)


def _shift_by_constant(name: str, t: Any, x: Any, amount: int) -> Any:
    if type(x) in PLAIN:
        return t._make(host.binary(name, t, x, amount))
    if amount == 0:
        return x
    if name == "lshift":
        if amount >= t.width:
            return t._lift(0)
        return t._make(_emit("arith.shli", t, x, amount), False, x._divisibility << amount)
    if amount >= t.width:
        if x.nonneg:
            return t._lift(0)
        amount = t.width - 1
    multiple = x._divisibility
    exact = multiple >> amount if multiple % (1 << amount) == 0 else 1
    return t._make(_emit("arith.shrui" if x.nonneg else "arith.shrsi", t, x, amount), x._nonneg, exact)


_LARGEST_UNROLLED_POWER = 64


def power(base: object, exponent: Any, modulus: object = None) -> Any:
    """Return `base ** exponent` for a typed base; `pow(base, exponent, modulus)` of numbers that are known."""
    if modulus is not None:
        return _power_modulo(base, exponent, modulus)
    s = type(exponent)
    if not isinstance(s, NumericMeta):
        exponent = plain_scalar(exponent)
        if exponent is None:
            return NotImplemented
    plain = exponent._value if isinstance(s, NumericMeta) else exponent
    t = arithmetic_type(meet(base, exponent))
    if type(plain) is int or type(plain) is bool:
        return _power_by_constant(base, int(plain), t)
    x = operand(base, t)
    y = operand(exponent, t)
    if isinstance(t, FloatMeta):
        if type(x) in PLAIN and type(y) in PLAIN:
            return t._make(host.binary("pow", t, x, y))
        if type(y) in PLAIN and y == 0.5:
            return t._make(emit.float_unary("math.sqrt", t, ir_operand(x, t)))
        return t._make(emit.floating("pow", t, ir_operand(x, t), ir_operand(y, t)))
    if not exponent.nonneg:
        raise type_error(
            f"an integer to the power of a dynamic {s.__name__}: Python gives a float for a negative exponent, "
            "so the type of the result is not known",
            "make the exponent unsigned (Uint32(n)) for an integer result, or the base a float (Float32(x))",
        )
    return t._make(emit.integer_power(t, ir_operand(x, t), ir_operand(y, t)), _nonneg(x))


def _power_modulo(base: Any, exponent: Any, modulus: Any) -> Any:
    typed = [x for x in (base, exponent, modulus) if isinstance(type(x), NumericMeta)]
    numbers: Any = [
        x._value if isinstance(type(x), NumericMeta) else plain_scalar(x) for x in (base, exponent, modulus)
    ]
    if any(type(x._value) not in PLAIN for x in typed):
        raise type_error(
            "pow() with a modulus takes numbers that are known when compiling, and one of these is only known when the program runs",
            "write a ** b % m, which wraps around where a ** b does not fit its type",
        )
    t = type(base)
    for x in (exponent, modulus):
        t = arithmetic_type(meet(t._make(t.zero), x))
    return t._make(host.wrap(t, pow(*numbers))) if isinstance(t, IntegerMeta) else NotImplemented


def _power_by_constant(base: object, exponent: int, t: Any) -> Any:
    """Return a power by repeated squaring, in type `t`."""
    if isinstance(t, IntegerMeta) and exponent < 0:
        t = float_of(t)
    x = operand(base, t)
    if type(x) in PLAIN:
        if isinstance(t, IntegerMeta) or abs(exponent) > _LARGEST_UNROLLED_POWER:
            return t._make(host.binary("pow", t, x, exponent))
        x = t._make(x)  # multiplied as a dynamic base is: the C library's pow may round otherwise
    if isinstance(t, FloatMeta) and abs(exponent) > _LARGEST_UNROLLED_POWER:
        return t._make(emit.floating("pow", t, x._value, constant(t.mlir_type, host.cast(t, exponent))))
    if exponent < 0:
        return 1.0 / _power_by_constant(x, -exponent, t)
    return power_by_squaring(x, exponent) if exponent else t._lift(host.cast(t, 1))


def power_by_squaring(x: Any, exponent: int) -> Any:
    """Return a positive power of anything that can be multiplied, by repeated squaring."""
    result: Any = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if exponent:
            x = x * x
    return result


def _comparison_type(a: Any, b: Any) -> Any:
    """Return the type in which two numbers are compared: integers in one that has all values of both."""
    s = type(a)
    t = type(b)
    if isinstance(s, IntegerMeta) and isinstance(t, IntegerMeta):
        if s.is_boolean or t.is_boolean:
            return t if s.is_boolean else s
        if s.signed != t.signed and a.nonneg and b.nonneg:
            return INTEGERS[max(s.width, t.width), False]
        return holding_both(s, t)
    return meet(a, b, operand_type if isinstance(s, FloatMeta) else weak_type)


def compare(name: str, a: object, b: object) -> Any:
    """Return a comparison as a Boolean; `name` is lt, le, gt, ge, eq or ne."""
    t = type(a)
    if type(b) is not t:
        t = _comparison_type(a, b)
        if t is None:
            if is_ir_value_class(type(b)):
                return compare(name, a, as_numeric(b))
            refuse_complex(b)
            return NotImplemented
        if type(b) not in PLAIN and not isinstance(type(b), NumericMeta):
            b = plain_scalar(b)
    if isinstance(t, FloatMeta) and t._format is None:
        refuse_packed(t)
    x = operand(a, t)
    y = operand(b, t)
    boolean = TYPES["Boolean"]
    if type(x) in PLAIN and type(y) in PLAIN:
        return boolean._make(host.COMPARE[name](x, y))
    return boolean._make(emit.compare(name, t, ir_operand(x, t), ir_operand(y, t)))


def extremum(name: str, a: Any, b: Any) -> Any:
    """Return the min or max of two numbers, at least one of them typed."""
    if not isinstance(type(a), NumericMeta):
        a, b = b, a
    t = meet(a, b, weak_type)
    if t is None:
        return NotImplemented
    s = type(b)
    if isinstance(t, IntegerMeta) and isinstance(s, IntegerMeta) and type(a)._zero_extends != s._zero_extends:
        if not (a.nonneg and b.nonneg):
            return select(compare("lt" if name == "min" else "gt", a, b), a, b)
    if type(b) not in PLAIN and not isinstance(s, NumericMeta):
        b = plain_scalar(b)
    check_chosen(f"{name}()", t, b)
    x = operand(a, t)
    y = operand(b, t)
    if type(x) in PLAIN and type(y) in PLAIN:
        return t._make(host.binary(name, t, x, y))
    if isinstance(t, IntegerMeta):
        return INTEGER[name](t, x, y)
    return t._make(emit.floating(name, t, ir_operand(x, t), ir_operand(y, t)))


def select(condition: Any, if_true: object, if_false: object) -> Any:
    """Return `if_true` where the condition holds, else `if_false`, in their common type. Both are computed already."""
    a, b = (if_true, if_false) if isinstance(type(if_true), NumericMeta) else (if_false, if_true)
    plain = condition._value if isinstance(type(condition), NumericMeta) else condition
    if not isinstance(type(a), NumericMeta):
        if type(plain) in PLAIN:
            return if_true if plain else if_false
        a = as_numeric(a)
    t = meet(a, b, weak_type)
    if t is None:
        raise TypeError(f"cannot choose between {type(if_true).__name__} and {type(if_false).__name__}")
    check_chosen("a choice", t, if_true, if_false)
    if type(plain) in PLAIN:
        chosen = operand(if_true if plain else if_false, t)
        return t._make(chosen) if type(chosen) in PLAIN else chosen
    x = operand(if_true, t)
    y = operand(if_false, t)
    result = emit.select(t, TYPES["Boolean"](condition)._value, ir_operand(x, t), ir_operand(y, t))
    if isinstance(t, IntegerMeta):
        return t._make(result, _nonneg(x) and _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))
    return t._make(result)
