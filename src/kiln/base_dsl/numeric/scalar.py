"""A typed scalar: a plain Python value outside a trace, an IR value inside one.

An operation whose operands are all plain gives a plain value; with an IR value among them it emits operations.
`T(x)` inside a trace is always an IR value. Instances never change.
"""

from __future__ import annotations

import ctypes
import linecache
import math
import re
import struct
import sys
import types
from typing import TYPE_CHECKING, Any

from .. import trace
from ..bindings import ir
from ..diagnostics import frame_span, in_rewritten_code, is_internal, runtime_error, user_frame, warn_at
from . import emit, host
from .dunders import both_ways, one_way
from .meta import INTEGERS, FloatMeta, IntegerMeta, NumericMeta
from .operands import PLAIN, as_numeric, is_ir_value_class, unwrap
from .operators import arithmetic_type, binary, compare, convert, extremum, power, select, shift, typed_operand
from .promotion import float_of
from .text import DynamicText

state = trace.state

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from typing_extensions import Self

    from .operator_types import Number, arithmetic, bitwise, division
    from .operator_types import shift as shift_type
    from .types import Boolean, Int32

    T = TypeVar("T")


def _new(cls: type[Numeric], x: object = 0, *, loc: object = None, ip: Any = None) -> Any:
    """Return a number of a concrete type, or of the type of a family that suits `x`."""
    if ip is not None:
        with ip:
            return cls(x)
    if cls._abstract:
        return cls._of_family(x)
    if isinstance(x, Numeric):
        return convert(x, cls)
    if type(x) not in PLAIN:
        x = unwrap(x, cls)
        if isinstance(x, Numeric):
            return convert(x, cls)
    return cls._lift(host.cast(cls, x))  # pyright: ignore[reportArgumentType]


def _initialize(self: Numeric, x: object = 0, *, value: object = 0, loc: object = None, ip: object = None) -> None:
    """Set the value of a program's own type, whose `__init__` calls this; `T(x)` and `Numeric(value=x)` have set it."""
    own = type(self)
    if own._initializes:
        number = x if isinstance(x, own) else own._model(x, ip=ip)  # pyright: ignore[reportOptionalCall]
        for name in ("_value", "_nonneg", "_divisibility"):
            if hasattr(number, name):
                setattr(self, name, getattr(number, name))
        if not self.is_static and (current := state.trace) is not None:
            current.numbers.append(self)


class Numeric(metaclass=NumericMeta, abstract=True):
    """A scalar of a numeric type. `Numeric(value)`, `Integer(x)` and `Float(x)` choose the type as `from_python` does."""

    __slots__ = ("_buffer", "_value")

    _value: Any
    _buffer: Any

    def __new__(cls, value: object = 0, *, loc: object = None, ip: object = None) -> Self:
        return _new(cls, value, ip=ip)

    def __init__(self, value: object = 0, *, loc: object = None, ip: object = None) -> None:
        _initialize(self, value, ip=ip)

    @classmethod
    def _of_family(cls, value: object) -> Any:
        number = as_numeric(value)
        if isinstance(number, cls):
            return convert(number, type(number))
        if cls is Float and isinstance(number, Integer):
            return convert(number, float_of(type(number)))
        raise TypeError(f"{cls.__name__} does not take a value of type {type(number).__name__}")

    @classmethod
    def _make(cls, value: Any) -> Self:
        """Wrap a plain value of the type, or an IR value of the type's IR type, without looking at it."""
        number = object.__new__(cls)
        number._value = value
        if type(value) not in PLAIN and (current := state.trace) is not None:
            current.numbers.append(number)
        return number

    @classmethod
    def _lift(cls, value: host.Plain) -> Self:
        """Return a plain value as what `T(x)` is here: an IR value inside a function being traced."""
        current = trace.current()
        if current is None or not current.functions:
            return cls._make(value)
        return cls._make(trace.constant(cls._ir_type or cls.mlir_type, value))

    @property
    def value(self) -> Any:
        """A Python scalar, or the IR value."""
        return self._value

    @property
    def dtype(self) -> type[Self]:
        """The numeric type."""
        return type(self)

    @property
    def is_static(self) -> bool:
        """Whether the value is known while tracing."""
        return type(self._value) in PLAIN

    def ir_value(self, *, loc: object = None, ip: object = None) -> ir.Value:
        """Return the IR value; a plain value becomes a constant."""
        value = self._value
        if type(value) in PLAIN:
            trace.require(f"an IR value of {type(self).__name__}({value})")
            return trace.constant(type(self).mlir_type, value)
        return value

    def __str__(self) -> str:
        return host.text(type(self), self._value) if type(self._value) in PLAIN else _unknown("?")

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(self._value, spec) if type(self._value) in PLAIN else _unknown(format("?", _alignment_of(spec)))

    def to(self, dtype: type[T], *, loc: object = None, ip: Any = None) -> T:
        """Return the value as another type. Integers wrap; a float to an integer drops the fraction and saturates."""
        if isinstance(dtype, NumericMeta):
            if dtype._abstract:
                raise TypeError(f".to() takes a type such as Int32 or Float32; {dtype.__name__} is a family of types")
            if ip is not None:
                with ip:
                    return convert(self, dtype)
            return convert(self, dtype)
        if dtype in PLAIN:
            return dtype(self)
        if is_ir_value_class(dtype):
            return self.ir_value(loc=loc, ip=ip)
        raise TypeError(f".to() takes a numeric type such as Int32 or Float32, got {dtype!r}")

    def bitcast(self, dtype: type[T], *, loc: object = None, ip: object = None) -> T:
        """Return the same bits as a value of another type of the same width."""
        own = type(self)
        if not isinstance(dtype, NumericMeta) or dtype._abstract:
            raise TypeError(f".bitcast() takes a numeric type such as Int32 or Float32, got {dtype!r}")
        if dtype.width != own.width:
            raise TypeError(
                f".bitcast() keeps the bits: {own.__name__} has {own.width}, {dtype.__name__} has {dtype.width}; "
                f".to({dtype.__name__}) converts the value"
            )
        if type(self._value) in PLAIN:
            plain = host.from_bits(dtype, host.to_bits(own, self._value))
            return dtype._make(plain)
        return dtype._make(emit.bitcast(self._value, own, dtype))

    def _python(self, what: str, hint: str = "") -> Any:
        """Return the Python value; refused for a value that is not known while tracing."""
        if type(self._value) in PLAIN:
            return self._value
        if self._value is trace.STALE:
            raise trace.stale_use()

        raise runtime_error(
            f"a dynamic {type(self).__name__} was used where Python needs {what}: "
            "its value is not known until the program runs",
            _hint_of_expression(what)
            or hint
            or "pass the value as Constexpr if it is known when compiling, or keep the computation dynamic",
        )

    def __bool__(self) -> bool:
        if type(self._value) in PLAIN:
            return bool(self._value)
        if in_rewritten_code():
            hint = (
                "Python itself decides here (it compares tuples or lists, sorts, filters or matches): write the comparison "
                "element by element with `and` and `or`, or pass the value as Constexpr if it is known when compiling"
            )
        else:
            hint = (
                "decorate the enclosing function with @cute.jit (or @cute.kernel) so that its `if`, `while`, `and`, `or` "
                "and `not` take dynamic values; if the value is known when compiling, pass it as Constexpr and test "
                "kiln.const_expr(...)"
            )
        return bool(self._python("a concrete bool", hint))

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

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        return (type(self), (self._python("to pickle it"),))

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [self.ir_value()]

    def __new_from_mlir_values__(self, values: Any) -> Self:
        (value,) = values
        return value if isinstance(value, type(self)) else type(self)._make(value)

    def __get_mlir_types__(self) -> list[ir.Type]:
        return [type(self).mlir_type]

    def __c_pointers__(self) -> list[int]:
        """Return the address of the value in memory, valid as long as this object lives."""
        buffer = getattr(self, "_buffer", None)
        if buffer is None:
            buffer = self._buffer = ctypes.create_string_buffer(type(self)._pack(self), 16)
        return [ctypes.addressof(buffer)]

    @classmethod
    def _pack(cls, value: Any) -> bytes:
        """Return a value (typed or Python) as an argument slot: 8 bytes (16 for 128 bits), little endian, padded."""
        if isinstance(value, Numeric):
            value = value._python("to pass it to a compiled function")
        try:
            return struct.pack(cls._struct_format, value)
        except (struct.error, OverflowError):
            plain = host.cast(cls, value)
        bits = host.to_bits(cls, plain)
        return bits.to_bytes(16 if cls.width > 64 else 8, "little")

    if TYPE_CHECKING:
        __add__ = arithmetic
        __radd__ = arithmetic
        __sub__ = arithmetic
        __rsub__ = arithmetic
        __mul__ = arithmetic
        __rmul__ = arithmetic
        __truediv__ = division
        __rtruediv__ = division
        __floordiv__ = arithmetic
        __rfloordiv__ = arithmetic
        __mod__ = arithmetic
        __rmod__ = arithmetic
        __pow__ = arithmetic
        __rpow__ = arithmetic

        def __divmod__(self, other: Numeric | float) -> tuple[Number, Number]: ...
        def __rdivmod__(self, other: Numeric | float) -> tuple[Number, Number]: ...
        def __lt__(self, other: Numeric | float) -> Boolean: ...
        def __le__(self, other: Numeric | float) -> Boolean: ...
        def __gt__(self, other: Numeric | float) -> Boolean: ...
        def __ge__(self, other: Numeric | float) -> Boolean: ...
        def __eq__(self, other: object) -> Boolean: ...  # pyright: ignore[reportIncompatibleMethodOverride]
        def __ne__(self, other: object) -> Boolean: ...  # pyright: ignore[reportIncompatibleMethodOverride]

    else:
        __add__, __radd__ = both_ways(binary, "add")
        __sub__, __rsub__ = both_ways(binary, "sub")
        __mul__, __rmul__ = both_ways(binary, "mul")
        __truediv__, __rtruediv__ = both_ways(binary, "truediv")
        __floordiv__, __rfloordiv__ = both_ways(binary, "floordiv")
        __mod__, __rmod__ = both_ways(binary, "mod")

        def __divmod__(self, other: object) -> Any:
            quotient = binary("floordiv", self, other)
            return quotient if quotient is NotImplemented else (quotient, binary("mod", self, other))

        def __rdivmod__(self, other: object) -> Any:
            quotient = binary("floordiv", self, other, True)
            return quotient if quotient is NotImplemented else (quotient, binary("mod", self, other, True))

        def __pow__(self, other: object, modulus: object = None) -> Any:
            return power(self, other, modulus)

        def __rpow__(self, other: object) -> Any:
            if type(other) not in PLAIN:
                return NotImplemented
            return power(typed_operand(other, type(self)), self)

        __lt__, __le__, __gt__, __ge__, __eq__, __ne__ = one_way(compare, "lt", "le", "gt", "ge", "eq", "ne")

    def __pos__(self) -> Self:
        t = arithmetic_type(type(self))
        return convert(self, t)

    def __neg__(self) -> Self:
        t = arithmetic_type(type(self))
        x = convert(self, t)
        if type(x._value) in PLAIN:
            return t._make(host.cast(t, -x._value))
        return t._make(emit.negate(t, x._value))


class Integer(Numeric, metaclass=IntegerMeta, width=32, abstract=True):
    """A scalar of an integer type.

    `nonneg` says the value is known not to be negative, `divisibility` that it is a known multiple: facts about
    indices and sizes, which assume (as C does) that the arithmetic on them does not overflow. A language whose numbers
    wrap (`BaseDSL.wraps`) has neither.
    """

    __slots__ = ("_divisibility", "_nonneg")

    __new__ = _new  # pyright: ignore[reportAssignmentType]
    __init__ = _initialize  # pyright: ignore[reportAssignmentType]

    _nonneg: bool
    _divisibility: int
    _is_dynamic_int_leaf = True

    @classmethod
    def _make(cls, value: Any, nonneg: bool = False, divisibility: int = 1) -> Self:
        number = object.__new__(cls)
        number._value = value
        number._nonneg = nonneg
        number._divisibility = divisibility
        if type(value) not in PLAIN and (current := state.trace) is not None:
            current.numbers.append(number)
            if current.wraps:
                number._nonneg = False
                number._divisibility = 1
        return number

    @classmethod
    def _lift(cls, value: host.Plain) -> Self:
        current = trace.current()
        if current is None or not current.functions:
            return cls._make(value)
        return cls._make(trace.constant(cls._ir_type or cls.mlir_type, value), value >= 0)

    @property
    def nonneg(self) -> bool:
        """Whether the value is known not to be negative."""
        if self._nonneg or type(self)._zero_extends:
            return True
        return type(self._value) in PLAIN and self._value >= 0

    @property
    def divisibility(self) -> int:
        """A number the value is known to be a multiple of (0: the value is zero)."""
        return abs(int(self._value)) if type(self._value) in PLAIN else self._divisibility

    def _assume(self, *, nonneg: bool | None = None, divisibility: int | None = None) -> Self:
        """Return the same value with more known about it."""
        return self._make(
            self._value,
            self._nonneg if nonneg is None else nonneg,
            self._divisibility if divisibility is None else divisibility,
        )

    def __index__(self) -> int:
        return int(
            self._python(
                _INDEX,
                "a list index, a range_constexpr bound or a static shape must be known when compiling: "
                "use a Constexpr, or a `for` statement, whose range may be dynamic",
            )
        )

    def __tvm_ffi_int__(self) -> int:
        return int(self._python("to pass it to a compiled function"))

    if TYPE_CHECKING:
        __and__ = bitwise
        __rand__ = bitwise
        __or__ = bitwise
        __ror__ = bitwise
        __xor__ = bitwise
        __rxor__ = bitwise
        __lshift__ = shift_type
        __rlshift__ = shift_type
        __rshift__ = shift_type
        __rrshift__ = shift_type
    else:
        __and__, __rand__ = both_ways(binary, "and")
        __or__, __ror__ = both_ways(binary, "or")
        __xor__, __rxor__ = both_ways(binary, "xor")

        def __lshift__(self, other: object) -> Any:
            return shift("lshift", self, other)

        def __rlshift__(self, other: object) -> Any:
            return (
                NotImplemented
                if not isinstance(other, int)
                else shift("lshift", typed_operand(other, type(self)), self)
            )

        def __rshift__(self, other: object) -> Any:
            return shift("rshift", self, other)

        def __rrshift__(self, other: object) -> Any:
            return (
                NotImplemented
                if not isinstance(other, int)
                else shift("rshift", typed_operand(other, type(self)), self)
            )

    def __invert__(self) -> Self:
        """Return all bits flipped; `~` of a Boolean is its negation."""
        t = type(self)
        if type(self._value) in PLAIN:
            return t._make(not self._value if t.is_boolean else host.wrap(t, ~self._value))
        return t._make(emit.invert(t, self._value))

    def __abs__(self) -> Self:
        t = arithmetic_type(type(self))
        x = convert(self, t)
        if x.nonneg:
            return x
        if type(x._value) in PLAIN:
            return t._make(host.wrap(t, abs(x._value)))
        return t._make(
            emit.integer_abs(t, x._value), False, x._divisibility
        )  # of the smallest number it is that number

    def __round__(self, ndigits: int | None = None) -> Any:
        return convert(self, arithmetic_type(type(self)))

    def __floor__(self) -> Int32:
        return self.__round__()

    if TYPE_CHECKING:

        def __ceil__(self) -> Int32: ...
        def __trunc__(self) -> Int32: ...
    else:
        __ceil__ = __trunc__ = __floor__

    _leaf_min, _leaf_max = one_way(extremum, "min", "max")

    def _leaf_select(self, if_true: object, if_false: object) -> Any:
        """Return `if_true` where this value, a condition, is not zero."""
        return select(self, if_true, if_false)


class Float(Numeric, metaclass=FloatMeta, width=32, abstract=True):
    """A scalar of a float type."""

    __slots__ = ()

    __new__ = _new  # pyright: ignore[reportAssignmentType]
    __init__ = _initialize  # pyright: ignore[reportAssignmentType]

    def __tvm_ffi_float__(self) -> float:
        return float(self._python("to pass it to a compiled function"))

    def __abs__(self) -> Self:
        t = type(self)
        if type(self._value) in PLAIN:
            return t._make(abs(self._value))
        return t._make(emit.float_unary("math.absf", t, self._value))

    def _rounded(self, op: str, python: Callable[[float], int]) -> Any:
        """Return the value rounded to an integer type as wide as the float (at least 32 bits)."""
        t = INTEGERS[64 if type(self).width == 64 else 32, True]
        if type(self._value) in PLAIN:
            value = self._value
            return t._make(host.cast(t, float(python(value)) if math.isfinite(value) else value))
        own = type(self)
        return convert(own._make(emit.float_unary(op, own, self._value)), t)

    def __round__(self, ndigits: int | None = None) -> Any:
        """Round half to even. Without digits the result is an integer, as in Python; `round(x, 0)` stays a float."""
        if ndigits is None:
            return self._rounded("math.roundeven", round)
        if type(self._value) in PLAIN:
            return type(self)(round(self._value, ndigits))
        if ndigits != 0:
            raise TypeError(f"round(x, {ndigits}) of a dynamic value: only whole numbers (0 digits) can be rounded to")
        return type(self)._make(emit.float_unary("math.roundeven", type(self), self._value))

    def __floor__(self) -> Int32:
        return self._rounded("math.floor", math.floor)

    def __ceil__(self) -> Int32:
        return self._rounded("math.ceil", math.ceil)

    def __trunc__(self) -> Int32:
        return self._rounded("math.trunc", math.trunc)


def _unknown(text: str) -> str:
    """Return the text of a dynamic value, for the caller of the caller: a program must not look into it."""
    frame = sys._getframe(2)
    if state.trace is None or is_internal(frame.f_code):
        return text
    if not _printed:
        _hint_at_print(frame)
    return DynamicText(text)


_printed: list[str] = []
"""The place of the first `print` of a dynamic value: one hint is enough."""


def _hint_at_print(frame: types.FrameType) -> None:
    """Warn where the user's line prints with Python's `print`."""
    if not re.search(r"\bprint\(", linecache.getline(frame.f_code.co_filename, frame.f_lineno)):
        return
    _printed.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
    warn_at(
        frame_span(frame),
        "print() runs once, while the program is traced, and shows ? for what is known when the program runs: "
        'cute.printf("{}", x) prints it then (said once)',
    )


def _alignment_of(spec: str) -> str:
    """Return the part of a format specification that a `?` can obey."""
    return "".join(c for c in spec.partition(".")[0] if c in "<>^ 0123456789").lstrip("0 ")


_INDEX = "a concrete int"


def _hint_of_expression(what: str) -> str:
    """Return the help for what the user's expression does with a dynamic value, where that is a common mistake."""
    import ast

    from ..source_context import foreign_call, node_at, user_span, value_at

    span = user_span()
    active = state.trace
    called = foreign_call(span, user_frame())
    if called is not None and active is not None:
        written, name = called
        own = active.dsl.instead_of(name) or "the operators and functions of the language"
        return (
            f"{written} computes with numbers of Python while the program is traced; use {own}, which takes a Float32 (or "
            ".to(Float32)) and stays dynamic"
        )
    index = node_at(span, ast.Subscript)
    array = value_at(index.value, user_frame()) if index is not None else None
    package = type(array).__module__.partition(".")[0]
    if index is not None and package in ("numpy", "torch"):
        return (
            f"{ast.unparse(index.value)} is an array of {package}, which only exists while the program is traced: pass it as "
            "an argument, or make one of the kernel's own with cute.make_rmem_tensor(shape, dtype)"
        )
    if index is not None and what is _INDEX:
        return (
            "a list index must be known when compiling: use a Constexpr; to index "
            f"{ast.unparse(index.value)} when the program runs, put its numbers in a tensor: an argument, or "
            "cute.make_rmem_tensor(...) in a kernel"
        )
    return ""
