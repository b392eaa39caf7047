"""A typed scalar: a plain Python value outside a trace, an IR value inside one.

An operation whose operands are all plain gives a plain value; with an IR value among them it emits operations.
`T(x)` inside a trace is always an IR value. Instances never change.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from typing import TYPE_CHECKING, Any

from .. import trace
from . import emit, host
from .convert import bitcast as emit_bitcast
from .convert import convert as emit_convert
from .meta import INTEGERS, TYPES, FloatMeta, IntegerMeta, NumericMeta
from .promotion import common_type, float_of, holding_both, type_of_python, weak_type

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from ...mlir import ir

_PLAIN = frozenset((int, float, bool))


class Numeric(metaclass=NumericMeta, abstract=True):
    """A scalar of a numeric type. `Numeric(x)`, `Integer(x)` and `Float(x)` choose the type as `from_python` does."""

    __slots__ = ("_value", "_buffer")

    _value: Any
    _buffer: Any

    def __new__(cls, value: Any = 0, *, loc: Any = None, ip: Any = None) -> Any:
        if ip is not None:
            with ip:
                return cls(value)
        if cls._abstract:
            return cls._of_family(value)
        if isinstance(value, Numeric):
            return convert(value, cls)
        if type(value) not in _PLAIN:
            value = _unwrap(value, cls)
            if isinstance(value, Numeric):
                return convert(value, cls)
        return cls._lift(host.cast(cls, value))

    @classmethod
    def _of_family(cls, value: Any) -> Any:
        made = as_numeric(value)
        if isinstance(made, cls):
            return convert(made, type(made))
        if cls is Float and isinstance(made, Integer):
            return convert(made, float_of(type(made)))
        raise TypeError(f"{cls.__name__} does not take a value of type {type(made).__name__}")

    @classmethod
    def _make(cls, value: Any) -> Self:
        """Wrap a plain value of the type, or an IR value of the type's IR type, without looking at it."""
        made = object.__new__(cls)
        made._value = value
        return made

    @classmethod
    def _lift(cls, value: host.Plain) -> Self:
        """A plain value as what `T(x)` is here: an IR value inside a function being traced."""
        current = trace.current()
        if current is None or not current.functions:
            return cls._make(value)
        return cls._make(trace.constant(cls._ir_type or cls.mlir_type, value))

    # -- looking at it -------------------------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """A Python scalar, or the IR value."""
        return self._value

    @property
    def dtype(self) -> Any:
        return type(self)

    @property
    def is_static(self) -> bool:
        """Whether the value is known while tracing."""
        return type(self._value) in _PLAIN

    def ir_value(self, *, loc: Any = None, ip: Any = None) -> ir.Value:
        """The IR value; a plain value becomes a constant."""
        value = self._value
        if type(value) in _PLAIN:
            trace.require(f"an IR value of {type(self).__name__}({value})")
            return trace.constant(type(self).mlir_type, value)
        return value

    def __str__(self) -> str:
        return host.text(type(self), self._value) if type(self._value) in _PLAIN else "?"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self._value, spec) if type(self._value) in _PLAIN else format("?", _width_of(spec))

    # -- conversions ---------------------------------------------------------------------------------------------

    def to(self, dtype: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """The value as another type. Integers wrap; a float to an integer drops the fraction and saturates."""
        if isinstance(dtype, NumericMeta):
            if dtype._abstract:
                raise TypeError(f".to() takes a type such as Int32 or Float32; {dtype.__name__} is a family of types")
            if ip is not None:
                with ip:
                    return convert(self, dtype)
            return convert(self, dtype)
        if dtype in _PLAIN:
            return dtype(self)
        if _is_ir_value_class(dtype):
            return self.ir_value(loc=loc, ip=ip)
        raise TypeError(f".to() takes a numeric type such as Int32 or Float32, got {dtype!r}")

    def bitcast(self, dtype: Any, *, loc: Any = None, ip: Any = None) -> Any:
        """The same bits as a value of another type of the same width."""
        own = type(self)
        if not isinstance(dtype, NumericMeta) or dtype._abstract:
            raise TypeError(f".bitcast() takes a numeric type such as Int32 or Float32, got {dtype!r}")
        if dtype.width != own.width:
            raise TypeError(
                f".bitcast() keeps the bits: {own.__name__} has {own.width}, {dtype.__name__} has {dtype.width}; "
                f".to({dtype.__name__}) converts the value"
            )
        if type(self._value) in _PLAIN:
            plain = host.from_bits(dtype, host.to_bits(own, self._value))
            return dtype._make(plain)
        return dtype._make(emit_bitcast(self._value, own, dtype))

    def _python(self, what: str, hint: str = "") -> Any:
        """The Python value; refused for a value that is not known while tracing."""
        if type(self._value) in _PLAIN:
            return self._value
        from ..diagnostics import DSLRuntimeError, error

        raise error(
            DSLRuntimeError,
            f"a dynamic {type(self).__name__} was used where Python needs {what}: "
            "its value is not known until the program runs",
            hint=hint or "pass the value as Constexpr if it is known when compiling, or keep the computation dynamic",
            depth=2,
        )

    def __bool__(self) -> bool:
        return bool(
            self._python(
                "a concrete bool",
                "decorate the enclosing function with @cute.jit (or @cute.kernel) so that its `if`, `while`, `and`, `or` "
                "and `not` take dynamic values; if the value is known when compiling, pass it as Constexpr and test "
                "cutlass.const_expr(...)",
            )
        )

    def __int__(self) -> int:
        return int(self._python("a concrete int", "convert with .to(Int32) or Int32(x) to stay dynamic"))

    def __float__(self) -> float:
        return float(self._python("a concrete float", "convert with .to(Float32) or Float32(x) to stay dynamic"))

    def __complex__(self) -> complex:
        return complex(self._python("a concrete complex number"))

    def __hash__(self) -> int:
        return hash(
            self._python(
                "a hashable value", "a dynamic value cannot be a dict key or a set element; use a Constexpr there"
            )
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        return (type(self), (self._python("to pickle it"),))

    # -- protocols of jit arguments ------------------------------------------------------------------------------

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [self.ir_value()]

    def __new_from_mlir_values__(self, values: Any) -> Self:
        (value,) = values
        return value if isinstance(value, type(self)) else type(self)._make(value)

    def __get_mlir_types__(self) -> list[ir.Type]:
        return [type(self).mlir_type]

    def __c_pointers__(self) -> list[int]:
        """The address of the value in memory, good for as long as this object lives."""
        buffer = getattr(self, "_buffer", None)
        if buffer is None:
            buffer = self._buffer = ctypes.create_string_buffer(type(self)._pack(self), 16)
        return [ctypes.addressof(buffer)]

    @classmethod
    def _pack(cls, value: Any) -> bytes:
        """A value (typed or Python) as one argument slot: 8 bytes, little endian, zero-padded (16 for 128 bits)."""
        if isinstance(value, Numeric):
            value = value._python("to pass it to a compiled function")
        try:
            return struct.pack(cls._struct_format, value)
        except (struct.error, OverflowError):
            plain = host.cast(cls, value)
        bits = host.to_bits(cls, plain)
        return bits.to_bytes(16 if cls.width > 64 else 8, "little")

    # -- operators -----------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        return _binary("add", self, other, False)

    def __radd__(self, other: Any) -> Any:
        return _binary("add", self, other, True)

    def __sub__(self, other: Any) -> Any:
        return _binary("sub", self, other, False)

    def __rsub__(self, other: Any) -> Any:
        return _binary("sub", self, other, True)

    def __mul__(self, other: Any) -> Any:
        return _binary("mul", self, other, False)

    def __rmul__(self, other: Any) -> Any:
        return _binary("mul", self, other, True)

    def __truediv__(self, other: Any) -> Any:
        return _binary("truediv", self, other, False)

    def __rtruediv__(self, other: Any) -> Any:
        return _binary("truediv", self, other, True)

    def __floordiv__(self, other: Any) -> Any:
        return _binary("floordiv", self, other, False)

    def __rfloordiv__(self, other: Any) -> Any:
        return _binary("floordiv", self, other, True)

    def __mod__(self, other: Any) -> Any:
        return _binary("mod", self, other, False)

    def __rmod__(self, other: Any) -> Any:
        return _binary("mod", self, other, True)

    def __divmod__(self, other: Any) -> Any:
        quotient = _binary("floordiv", self, other, False)
        return quotient if quotient is NotImplemented else (quotient, _binary("mod", self, other, False))

    def __rdivmod__(self, other: Any) -> Any:
        quotient = _binary("floordiv", self, other, True)
        return quotient if quotient is NotImplemented else (quotient, _binary("mod", self, other, True))

    def __pow__(self, other: Any) -> Any:
        return _power(self, other)

    def __rpow__(self, other: Any) -> Any:
        if type(other) not in _PLAIN:
            return NotImplemented
        return _power(_typed_weak(other, type(self)), self)

    def __lt__(self, other: Any) -> Any:
        return _compare("lt", self, other)

    def __le__(self, other: Any) -> Any:
        return _compare("le", self, other)

    def __gt__(self, other: Any) -> Any:
        return _compare("gt", self, other)

    def __ge__(self, other: Any) -> Any:
        return _compare("ge", self, other)

    def __eq__(self, other: Any) -> Any:
        return _compare("eq", self, other)

    def __ne__(self, other: Any) -> Any:
        return _compare("ne", self, other)

    def __pos__(self) -> Any:
        t = _arithmetic_type(type(self))
        return convert(self, t)

    def __neg__(self) -> Any:
        t = _arithmetic_type(type(self))
        x = convert(self, t)
        if type(x._value) in _PLAIN:
            return t._make(host.cast(t, -x._value))
        return t._make(emit.negate(t, x._value))


class Integer(Numeric, metaclass=IntegerMeta, width=32, abstract=True):
    """A scalar of an integer type.

    `nonneg` says the value is known not to be negative, `divisibility` that it is a known multiple: facts about
    indices and sizes, which assume (as C does) that the arithmetic on them does not overflow.
    """

    __slots__ = ("_nonneg", "_divisibility")

    _nonneg: bool
    _divisibility: int
    _is_dynamic_int_leaf = True

    @classmethod
    def _make(cls, value: Any, nonneg: bool = False, divisibility: int = 1) -> Self:
        made = object.__new__(cls)
        made._value = value
        made._nonneg = nonneg
        made._divisibility = divisibility
        return made

    @classmethod
    def _lift(cls, value: host.Plain) -> Self:
        current = trace.current()
        if current is None or not current.functions:
            return cls._make(value)
        return cls._make(trace.constant(cls._ir_type or cls.mlir_type, value), value >= 0, abs(int(value)))

    @property
    def nonneg(self) -> bool:
        """Whether the value is known not to be negative."""
        if self._nonneg or type(self)._zero_extends:
            return True
        return type(self._value) in _PLAIN and self._value >= 0

    @property
    def divisibility(self) -> int:
        """A number the value is known to be a multiple of (0: the value is zero)."""
        return abs(int(self._value)) if type(self._value) in _PLAIN else self._divisibility

    def _assume(self, *, nonneg: bool | None = None, divisibility: int | None = None) -> Self:
        """The same value with more known about it."""
        return self._make(
            self._value,
            self._nonneg if nonneg is None else nonneg,
            self._divisibility if divisibility is None else divisibility,
        )

    def __index__(self) -> int:
        return int(
            self._python(
                "a concrete int",
                "a list index, a range_constexpr bound or a static shape must be known when compiling: "
                "use a Constexpr, or cutlass.range for a dynamic loop",
            )
        )

    def __tvm_ffi_int__(self) -> int:
        return int(self._python("to pass it to a compiled function"))

    def __and__(self, other: Any) -> Any:
        return _binary("and", self, other, False)

    def __rand__(self, other: Any) -> Any:
        return _binary("and", self, other, True)

    def __or__(self, other: Any) -> Any:
        return _binary("or", self, other, False)

    def __ror__(self, other: Any) -> Any:
        return _binary("or", self, other, True)

    def __xor__(self, other: Any) -> Any:
        return _binary("xor", self, other, False)

    def __rxor__(self, other: Any) -> Any:
        return _binary("xor", self, other, True)

    def __lshift__(self, other: Any) -> Any:
        return _shift("lshift", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return NotImplemented if type(other) is not int else _shift("lshift", _typed_weak(other, type(self)), self)

    def __rshift__(self, other: Any) -> Any:
        return _shift("rshift", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return NotImplemented if type(other) is not int else _shift("rshift", _typed_weak(other, type(self)), self)

    def __invert__(self) -> Any:
        """All bits flipped; `~` of a Boolean is its negation."""
        t = type(self)
        if type(self._value) in _PLAIN:
            return t._make(not self._value if t.is_boolean else host.wrap(t, ~self._value))
        return t._make(emit.invert(t, self._value))

    def __abs__(self) -> Any:
        t = _arithmetic_type(type(self))
        x = convert(self, t)
        if x.nonneg:
            return x
        if type(x._value) in _PLAIN:
            return t._make(host.wrap(t, abs(x._value)))
        return t._make(emit.integer_abs(t, x._value), True, x._divisibility)

    def __round__(self, ndigits: int | None = None) -> Any:
        return convert(self, _arithmetic_type(type(self)))

    def __floor__(self) -> Any:
        return self.__round__()

    __ceil__ = __trunc__ = __floor__

    # -- leaves of layouts ---------------------------------------------------------------------------------------

    def _leaf_min(self, other: Any) -> Any:
        return _extremum("min", self, other)

    def _leaf_max(self, other: Any) -> Any:
        return _extremum("max", self, other)

    def _leaf_select(self, if_true: Any, if_false: Any) -> Any:
        """This value as a condition: `if_true` where it is not zero."""
        return select(self, if_true, if_false)


class Float(Numeric, metaclass=FloatMeta, width=32, abstract=True):
    """A scalar of a float type."""

    __slots__ = ()

    def __tvm_ffi_float__(self) -> float:
        return float(self._python("to pass it to a compiled function"))

    def __abs__(self) -> Any:
        t = type(self)
        if type(self._value) in _PLAIN:
            return t._make(abs(self._value))
        return t._make(emit.float_unary("math.absf", t, self._value))

    def _rounded(self, op: str, python: Callable[[float], int]) -> Any:
        """Rounded to an integer type as wide as the float (at least 32 bits)."""
        t = INTEGERS[64 if type(self).width == 64 else 32, True]
        if type(self._value) in _PLAIN:
            value = self._value
            return t._make(host.cast(t, python(value) if math.isfinite(value) else value))
        own = type(self)
        return convert(own._make(emit.float_unary(op, own, self._value)), t)

    def __round__(self, ndigits: int | None = None) -> Any:
        """Half to even. Without digits an integer type, as in Python; `round(x, 0)` stays a float."""
        if ndigits is None:
            return self._rounded("math.roundeven", round)
        if type(self._value) in _PLAIN:
            return type(self)(round(self._value, ndigits))
        if ndigits != 0:
            raise TypeError(f"round(x, {ndigits}) of a dynamic value: only whole numbers (0 digits) can be rounded to")
        return type(self)._make(emit.float_unary("math.roundeven", type(self), self._value))

    def __floor__(self) -> Any:
        return self._rounded("math.floor", math.floor)

    def __ceil__(self) -> Any:
        return self._rounded("math.ceil", math.ceil)

    def __trunc__(self) -> Any:
        return self._rounded("math.trunc", math.trunc)


# -- operands ------------------------------------------------------------------------------------------------------


def _width_of(spec: str) -> str:
    """The part of a format specification that a `?` can obey."""
    return "".join(c for c in spec.split(".")[0] if c in "<>^ 0123456789").lstrip("0 ")


def _is_ir_value_class(dtype: object) -> bool:
    module = sys.modules.get("kiln.mlir")
    return module is not None and isinstance(dtype, type) and issubclass(dtype, module.ir.Value)


def _unwrap(value: Any, wanted: Any) -> Any:
    """What `T(x)` takes besides Python scalars and typed ones: IR values, operations, numpy scalars, bool/int subclasses."""
    module = sys.modules.get("kiln.mlir")
    if module is not None:
        ir = module.ir
        if isinstance(value, ir.OpView | ir.Operation):
            value = value.result
        if isinstance(value, ir.Value):
            own = value.type
            if own == wanted.mlir_type:
                return wanted._make(value)
            if str(own) == "index":
                value = trace.emit_value("arith.index_cast", INTEGERS[64, True].mlir_type, (value,))
            return NumericMeta.from_mlir_type(own)._make(value)
    found = plain_scalar(value)
    if found is not None:
        return found
    inner = getattr(value, "ir_value", None)
    if callable(inner) and module is not None:
        return _unwrap(inner(), wanted)
    from ..diagnostics import DSLUserCodeTypeError, error

    raise error(
        DSLUserCodeTypeError,
        f"{wanted.__name__} takes a Python number, a typed scalar or an IR value, got {type(value).__name__}",
        depth=3,
    )


def plain_scalar(value: Any) -> host.Plain | None:
    """A Python scalar for values of bool, int, float, their subclasses (enums) and numpy scalars; None for others."""
    if type(value) in _PLAIN:
        return value
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "shape", None) == ():
        item = value.item()
        return item if type(item) in _PLAIN else float(item)
    return None


def as_numeric(value: Any) -> Any:
    """A typed scalar as it is, a Python scalar as the type it becomes (plain outside a trace), or TypeError."""
    if isinstance(value, Numeric):
        return value
    plain = plain_scalar(value)
    if plain is not None:
        return type_of_python(plain)(plain)
    module = sys.modules.get("kiln.mlir")
    if module is not None and isinstance(value, module.ir.Value):
        t = NumericMeta.from_mlir_type(value.type)
        return t(value)
    raise TypeError(f"expected a number, got {type(value).__name__}")


def convert(x: Any, t: Any) -> Any:
    """A typed scalar as a value of type `t`."""
    s = type(x)
    value = x._value
    if type(value) in _PLAIN:
        return t._lift(value if s is t else host.cast(t, value))
    if s is t:
        return x
    if isinstance(s, IntegerMeta):
        nonneg = x.nonneg
        made = emit_convert(value, s, t, nonneg=nonneg)
        if isinstance(t, IntegerMeta) and not t.is_boolean:
            if t.width > s.width:
                return t._make(made, nonneg, x._divisibility)
            # cut off at a power of two: only powers of two of the divisor survive
            return t._make(made, False, x._divisibility & -x._divisibility if x._divisibility else 0)
        return t._make(made)
    return t._make(emit_convert(value, s, t))


def _operand(x: Any, t: Any) -> Any:
    """An operand of either kind as a Python scalar of type `t` or an IR-valued scalar of type `t`."""
    if isinstance(x, Numeric):
        if type(x._value) in _PLAIN:
            return x._value if type(x) is t else host.cast(t, x._value)
        return x if type(x) is t else convert(x, t)
    return host.cast(t, x)


def _ir(x: Any, t: Any) -> ir.Value:
    return trace.constant(t._ir_type or t.mlir_type, x) if type(x) in _PLAIN else x._value


def _typed_weak(value: host.Plain, t: Any) -> Any:
    """A Python scalar as a plain typed value beside a value of type `t`."""
    own = _arithmetic_type(weak_type(t, value))
    return own._make(host.cast(own, value))


def _arithmetic_type(t: Any) -> Any:
    """Boolean counts as Int32 in arithmetic."""
    return INTEGERS[32, True] if t is TYPES["Boolean"] else t


def _meet(a: Any, b: Any) -> Any:
    """The common type of a typed scalar with anything, or None if `b` is not a number."""
    if type(b) is type(a):
        return type(a)
    if isinstance(b, Numeric):
        return common_type(type(a), type(b))
    plain = plain_scalar(b)
    return None if plain is None else weak_type(type(a), plain)


_BITWISE = frozenset(("and", "or", "xor"))


def _binary(name: str, a: Any, b: Any, reflected: bool) -> Any:
    t = type(a)
    if type(b) is not t:
        t = _meet(a, b)
        if t is None:
            return NotImplemented
        if not isinstance(b, Numeric):
            b = plain_scalar(b)
    if isinstance(t, IntegerMeta):
        if t.is_boolean and name not in _BITWISE:
            t = INTEGERS[32, True]
        if name == "truediv":
            t = float_of(t)
    elif name in _BITWISE:
        raise TypeError(
            f"bitwise operators take integers, not {t.__name__}; .bitcast() gives a float's bits as an integer"
        )
    if t.is_float and t._format is None:
        raise TypeError(
            f"{t.__name__} is a packed storage type: convert its elements to a float type to compute with them"
        )
    x, y = _operand(a, t), _operand(b, t)
    if reflected:
        x, y = y, x
    if type(x) in _PLAIN and type(y) in _PLAIN:
        return t._make(host.binary(name, t, x, y))
    if isinstance(t, IntegerMeta):
        return _INTEGER[name](t, x, y)
    return t._make(emit.floating(name, t, _ir(x, t), _ir(y, t)))


# -- integers with an IR value among the operands ------------------------------------------------------------------
# x and y are Python ints or IR-valued scalars of type t, at least one of them the latter.


def _nonneg(x: Any) -> bool:
    return x >= 0 if type(x) in _PLAIN else x._nonneg


def _divisibility(x: Any) -> int:
    return abs(int(x)) if type(x) in _PLAIN else x._divisibility


def _add(t: Any, x: Any, y: Any) -> Any:
    if type(y) in _PLAIN and y == 0:
        return x
    if type(x) in _PLAIN and x == 0:
        return y
    made = emit.integer("add", t, _ir(x, t), _ir(y, t))
    return t._make(made, _nonneg(x) and _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))


def _sub(t: Any, x: Any, y: Any) -> Any:
    if type(y) in _PLAIN and y == 0:
        return x
    made = emit.integer("sub", t, _ir(x, t), _ir(y, t))
    return t._make(made, False, math.gcd(_divisibility(x), _divisibility(y)))


def _mul(t: Any, x: Any, y: Any) -> Any:
    for one, other in ((x, y), (y, x)):
        if type(one) in _PLAIN and one == 1:
            return other
        if type(one) in _PLAIN and one == 0:
            return t._lift(0)
    made = emit.integer("mul", t, _ir(x, t), _ir(y, t))
    return t._make(made, _nonneg(x) and _nonneg(y), _divisibility(x) * _divisibility(y))


def _check_divisor(y: Any, what: str) -> int | None:
    if type(y) not in _PLAIN:
        return None
    if y == 0:
        from ..diagnostics import DSLUserCodeRuntimeError, error

        raise error(DSLUserCodeRuntimeError, f"integer {what} by zero", depth=5)
    return y


def _floordiv(t: Any, x: Any, y: Any) -> Any:
    divisor = _check_divisor(y, "division")
    if divisor == 1:
        return x
    nonneg = _nonneg(x) and _nonneg(y)
    made = emit.integer_floordiv(t, _ir(x, t), _ir(y, t), nonneg=nonneg, divisor=divisor)
    multiple = _divisibility(x)
    exact = multiple // divisor if divisor and divisor > 0 and multiple % divisor == 0 else 1
    return t._make(made, nonneg, exact)


def _mod(t: Any, x: Any, y: Any) -> Any:
    divisor = _check_divisor(y, "modulo")
    if divisor is not None and _divisibility(x) % divisor == 0:
        return t._lift(0)
    nonneg = _nonneg(x) and _nonneg(y)
    made = emit.integer_mod(t, _ir(x, t), _ir(y, t), nonneg=nonneg, divisor=divisor)
    # the remainder has the sign of the divisor
    return t._make(made, _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))


def _power_of_two_part(x: Any) -> int:
    d = _divisibility(x)
    return d & -d


def _and(t: Any, x: Any, y: Any) -> Any:
    made = emit.integer("and", t, _ir(x, t), _ir(y, t))
    return t._make(made, _nonneg(x) or _nonneg(y), max(_power_of_two_part(x), _power_of_two_part(y), 1))


def _or(t: Any, x: Any, y: Any) -> Any:
    made = emit.integer("or", t, _ir(x, t), _ir(y, t))
    return t._make(made, _nonneg(x) and _nonneg(y))


def _xor(t: Any, x: Any, y: Any) -> Any:
    made = emit.integer("xor", t, _ir(x, t), _ir(y, t))
    return t._make(made, _nonneg(x) and _nonneg(y))


def _min(t: Any, x: Any, y: Any) -> Any:
    made = emit.integer_min(t, _ir(x, t), _ir(y, t))
    return t._make(made, _nonneg(x) and _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))


def _max(t: Any, x: Any, y: Any) -> Any:
    made = emit.integer_max(t, _ir(x, t), _ir(y, t))
    return t._make(made, _nonneg(x) or _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))


_INTEGER = {
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


def _shift(name: str, a: Any, amount: Any) -> Any:
    """The result has the type of the left operand; bits beyond its width are lost, as from any int that wraps."""
    if not isinstance(amount, Integer):
        amount = plain_scalar(amount)
        if amount is None or isinstance(amount, float):
            return NotImplemented
    t = _arithmetic_type(type(a))
    x = _operand(a, t)
    plain_amount = amount if type(amount) in _PLAIN else amount._value
    if type(plain_amount) in _PLAIN:
        if plain_amount < 0:
            raise ValueError("negative shift count")
        return _shift_by_constant(name, t, x, int(plain_amount))
    s = type(amount)
    if s.width > t.width:
        # clamp before cutting off high bits
        clamped = emit.integer_min(INTEGERS[s.width, False], plain_amount, emit.constant(s, t.width))
        count = emit_convert(clamped, s, t)
    else:
        count = emit_convert(plain_amount, s, t, nonneg=amount.nonneg)
    nonneg = _nonneg(x)
    if name == "lshift":
        return t._make(emit.shift_left(t, _ir(x, t), count), nonneg, _divisibility(x))
    return t._make(emit.shift_right(t, _ir(x, t), count, nonneg=nonneg), nonneg)


def _shift_by_constant(name: str, t: Any, x: Any, amount: int) -> Any:
    if type(x) in _PLAIN:
        return t._make(host.binary(name, t, x, amount))
    if amount == 0:
        return x
    vt = t.mlir_type
    if name == "lshift":
        if amount >= t.width:
            return t._lift(0)
        made = trace.emit_value("arith.shli", vt, (x._value, trace.constant(vt, amount)))
        return t._make(made, x._nonneg, x._divisibility << amount)
    if amount >= t.width:
        if x.nonneg:
            return t._lift(0)
        amount = t.width - 1
    op = "arith.shrui" if x.nonneg else "arith.shrsi"
    multiple = x._divisibility
    exact = multiple >> amount if multiple % (1 << amount) == 0 else 1
    return t._make(trace.emit_value(op, vt, (x._value, trace.constant(vt, amount))), x._nonneg, exact)


# -- powers --------------------------------------------------------------------------------------------------------

_LARGEST_UNROLLED_POWER = 64


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, Numeric):
        exponent = plain_scalar(exponent)
        if exponent is None:
            return NotImplemented
    plain = exponent._value if isinstance(exponent, Numeric) else exponent
    if type(plain) is int and not isinstance(exponent, Float):
        return _int_power(base, int(plain))
    t = _arithmetic_type(_meet(base, exponent))
    x, y = _operand(base, t), _operand(exponent, t)
    if isinstance(t, FloatMeta):
        if type(x) in _PLAIN and type(y) in _PLAIN:
            return t._make(host.binary("pow", t, x, y))
        if type(y) in _PLAIN and y == 0.5:
            return t._make(emit.float_unary("math.sqrt", t, _ir(x, t)))
        return t._make(emit.floating("pow", t, _ir(x, t), _ir(y, t)))
    if not exponent.nonneg:
        from ..diagnostics import DSLUserCodeTypeError, error

        raise error(
            DSLUserCodeTypeError,
            f"an integer to the power of a dynamic {type(exponent).__name__}: Python gives a float for a negative "
            "exponent, so the type of the result is not known",
            hint="make the exponent unsigned (Uint32(n)) for an integer result, or the base a float (Float32(x))",
            depth=3,
        )
    return t._make(emit.integer_power(t, _ir(x, t), _ir(y, t)), _nonneg(x))


def _int_power(base: Any, exponent: int) -> Any:
    """By a known integer: repeated squaring."""
    t = _arithmetic_type(type(base))
    if isinstance(t, IntegerMeta) and exponent < 0:
        t = float_of(t)
    x = base if type(base) is t else convert(base, t) if type(base._value) not in _PLAIN else t._make(_operand(base, t))
    if type(x._value) in _PLAIN:
        return t._make(host.binary("pow", t, x._value, exponent))
    if isinstance(t, FloatMeta) and abs(exponent) > _LARGEST_UNROLLED_POWER:
        return t._make(emit.floating("pow", t, x._value, trace.constant(t.mlir_type, host.cast(t, exponent))))
    if exponent < 0:
        return 1.0 / _int_power(x, -exponent)
    result: Any = None
    while exponent:
        if exponent & 1:
            result = x if result is None else result * x
        exponent >>= 1
        if exponent:
            x = x * x
    return t._lift(host.cast(t, 1)) if result is None else result


# -- comparisons and choices ---------------------------------------------------------------------------------------


def _comparison_type(a: Any, b: Any) -> Any:
    """Where two numbers are compared: integers in a type that has all values of both."""
    if isinstance(b, Integer) and isinstance(a, Integer):
        s, t = type(a), type(b)
        if s is t:
            return s
        if s._zero_extends != t._zero_extends and a.nonneg and b.nonneg:
            return INTEGERS[max(s.width, t.width), False] if max(s.width, t.width) > 1 else s
        return holding_both(s, t)
    return _meet(a, b)


def _compare(name: str, a: Any, b: Any) -> Any:
    t = type(a) if type(b) is type(a) else _comparison_type(a, b)
    if t is None:
        return NotImplemented
    x, y = _operand(a, t), _operand(b if isinstance(b, Numeric) else plain_scalar(b), t)
    boolean = TYPES["Boolean"]
    if type(x) in _PLAIN and type(y) in _PLAIN:
        return boolean._make(host.COMPARE[name](x, y))
    return boolean._make(emit.compare(name, t, _ir(x, t), _ir(y, t)))


def _extremum(name: str, a: Any, b: Any) -> Any:
    a, b = (a, b) if isinstance(a, Numeric) else (b, a)
    t = _meet(a, b)
    if t is None:
        return NotImplemented
    mixed = isinstance(b, Integer) and isinstance(a, Integer) and type(a)._zero_extends != type(b)._zero_extends
    if mixed and not (a.nonneg and b.nonneg):
        return select(_compare("lt" if name == "min" else "gt", a, b), a, b)
    if not isinstance(b, Numeric):
        b = plain_scalar(b)
    x, y = _operand(a, t), _operand(b, t)
    if type(x) in _PLAIN and type(y) in _PLAIN:
        return t._make(host.binary(name, t, x, y))
    if isinstance(t, IntegerMeta):
        return _INTEGER[name](t, x, y)
    return t._make(emit.floating(name, t, _ir(x, t), _ir(y, t)))


def minimum(a: Any, b: Any) -> Any:
    """The smaller of two numbers, in their common type. A NaN loses against a number."""
    if isinstance(a, Numeric) or isinstance(b, Numeric):
        return _extremum("min", a, b)
    return min(a, b)


def maximum(a: Any, b: Any) -> Any:
    """The larger of two numbers, in their common type. A NaN loses against a number."""
    if isinstance(a, Numeric) or isinstance(b, Numeric):
        return _extremum("max", a, b)
    return max(a, b)


def select(condition: Any, if_true: Any, if_false: Any) -> Any:
    """`if_true` where the condition holds, else `if_false`, in their common type. Both are already computed."""
    cond = condition._value if isinstance(condition, Numeric) else condition
    if type(cond) in _PLAIN:
        chosen = if_true if cond else if_false
        if not isinstance(if_true, Numeric) and not isinstance(if_false, Numeric):
            return chosen
        t = _meet(*((if_true, if_false) if isinstance(if_true, Numeric) else (if_false, if_true)))
        found = _operand(chosen, t)
        return t._make(found) if type(found) in _PLAIN else found
    mask = TYPES["Boolean"](condition)._value
    if not isinstance(if_true, Numeric) and not isinstance(if_false, Numeric):
        if_true = as_numeric(if_true)
    t = _meet(*((if_true, if_false) if isinstance(if_true, Numeric) else (if_false, if_true)))
    if t is None:
        raise TypeError(f"cannot choose between {type(if_true).__name__} and {type(if_false).__name__}")
    x, y = _operand(if_true, t), _operand(if_false, t)
    made = emit.select(t, mask, _ir(x, t), _ir(y, t))
    if isinstance(t, IntegerMeta):
        return t._make(made, _nonneg(x) and _nonneg(y), math.gcd(_divisibility(x), _divisibility(y)))
    return t._make(made)


def logical_not(x: Any) -> Any:
    """Python's `not`, for a dynamic value too."""
    if not isinstance(x, Numeric):
        return not x
    boolean = TYPES["Boolean"]
    if type(x._value) in _PLAIN:
        return boolean._make(not x._value)
    return boolean._make(emit.compare("eq", type(x), x._value, emit.constant(type(x), type(x).zero)))


def join(a: Any, b: Any) -> Any:
    """The type of a variable that is `a` on one path and `b` on the other, or None if there is none.

    Two typed values must be of one type. A Python scalar takes the typed one's type if that keeps its kind.
    """
    if isinstance(a, Numeric) and isinstance(b, Numeric):
        return type(a) if type(a) is type(b) else None
    if isinstance(b, Numeric):
        a, b = b, a
    other = plain_scalar(b)
    if other is None:
        return None
    if isinstance(a, Numeric):
        t = type(a)
        if isinstance(t, FloatMeta):
            return t if type(other) is not bool else None
        if isinstance(other, float):
            return None
        if t.is_boolean or type(other) is bool:
            return t if t.is_boolean and type(other) is bool else None
        return t if t.min <= other <= t.max else None
    first = plain_scalar(a)
    if first is None:
        return None
    kinds = {type(first), type(other)}
    if kinds == {int, float}:
        return TYPES["Float32"]
    if len(kinds) == 2:
        return None
    s, t = type_of_python(first), type_of_python(other)
    return s if s.width >= t.width else t


def zero_of(t: Any) -> Any:
    """Zero as a value of type `t`."""
    return t(t.zero)


def cast(x: Any, t: Any) -> Any:
    """`x` as a value of type `t`."""
    return t(x)
