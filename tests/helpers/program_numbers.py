"""Numbers of all widths for plain Python: what `Int8`, `Uint64`, `BFloat16` and so on compute, by numpy and `ml_dtypes`.

Random programs name Kiln's types. Run as plain Python they get these instead, which know nothing of Kiln: the rules of
promotion are written here once more, from docs/numeric-types.md. A Python int counts as `Int32`.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import ml_dtypes
import numpy as np

ArithmeticResult = Any


class Number:
    """A number with a type. Subclasses are the types."""

    width = 0
    signed = True
    is_float = False
    dtype: Any = None
    __slots__ = ("value",)

    def __init__(self, x: Any) -> None:
        self.value = self.converted(x.value if isinstance(x, Number) else x)

    @classmethod
    def converted(cls, x: Any) -> Any:
        """A number of any kind as this type holds it."""
        if cls.is_float:
            with np.errstate(all="ignore"):
                if cls.dtype is ml_dtypes.bfloat16 and isinstance(x, int):
                    x = np.float32(x)
                return cls.dtype(x)
        if cls.width == 1:
            return bool(x != 0)
        if not isinstance(x, int):
            return cls._from_float(float(x))
        x = int(x) % (1 << cls.width)
        return x - (1 << cls.width) if cls.signed and x >> (cls.width - 1) else x

    @classmethod
    def _from_float(cls, x: float) -> int:
        low = -(1 << (cls.width - 1)) if cls.signed else 0
        high = (1 << (cls.width - cls.signed)) - 1
        if math.isnan(x):
            return 0
        if math.isinf(x):
            return high if x > 0 else low
        return min(max(int(x), low), high)

    def __index__(self) -> int:
        if self.is_float:
            raise TypeError("a float is no index")
        return int(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __bool__(self) -> bool:
        return bool(self.value != 0)

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return str(self.value)

    def __invert__(self) -> Any:
        return type(self)(not self.value) if self.width == 1 else type(self)(~self.value)

    def __neg__(self) -> Any:
        return type(self)(-self.value)

    def __abs__(self) -> Any:
        return type(self)(abs(self.value))

    def to(self, kind: type[Number]) -> Any:
        """This number as another type."""
        return kind(self)


def _type(name: str, width: int, signed: bool = True, dtype: Any = None) -> type[Number]:
    fields = {"width": width, "signed": signed, "is_float": dtype is not None, "dtype": dtype, "__slots__": ()}
    return type(name, (Number,), fields)


Boolean = _type("Boolean", 1, False)
Int8, Int16, Int32, Int64 = (_type(f"Int{w}", w) for w in (8, 16, 32, 64))
Uint8, Uint16, Uint32, Uint64 = (_type(f"Uint{w}", w, False) for w in (8, 16, 32, 64))
Float16, Float32, Float64 = (_type(f"Float{w}", w, dtype=getattr(np, f"float{w}")) for w in (16, 32, 64))
BFloat16 = _type("BFloat16", 16, dtype=ml_dtypes.bfloat16)

TYPES = {
    kind.__name__: kind
    for kind in (
        Boolean, Int8, Int16, Int32, Int64, Uint8, Uint16, Uint32, Uint64, Float16, BFloat16, Float32, Float64
    )
}  # fmt: skip


def common(a: type[Number], b: type[Number]) -> type[Number]:
    """The type that an operation of two types has."""
    if issubclass(a, b):
        return a
    if issubclass(b, a):
        return b
    if a.is_float and b.is_float:
        return Float32 if a.width == b.width else max(a, b, key=lambda kind: kind.width)
    if a.is_float or b.is_float:
        real, whole = (a, b) if a.is_float else (b, a)
        if whole.width < 16:
            return real
        return common(real, {16: Float16, 32: Float32, 64: Float64}[whole.width])
    if a.width == b.width:
        return a if not a.signed else b
    return max(a, b, key=lambda kind: kind.width)


def _typed(x: Any) -> Number | None:
    if isinstance(x, Number):
        return x
    if isinstance(x, bool):
        return Boolean(x)
    if isinstance(x, int):
        return Int32(x)
    return Float32(x) if isinstance(x, float) else None


def _meeting(a: Number, b: Any, arithmetic: bool) -> tuple[type[Number], Any, Any] | None:
    """The common type of two operands, and both as it holds them."""
    other = _typed(b)
    if other is None:
        return None
    kind = common(type(a), type(other))
    if not isinstance(b, Number) and isinstance(b, int) and kind in (Float16, BFloat16):
        kind = Float32
    if arithmetic and kind is Boolean:
        kind = Int32
    return kind, kind(a).value, kind(other).value


def _arithmetic(name: str) -> None:
    compute = getattr(operator, name)

    def forward(self: Number, other: Any, swapped: bool = False) -> Any:
        met = _meeting(self, other, name not in ("and_", "or_", "xor"))
        if met is None:
            return NotImplemented
        kind, x, y = met
        if swapped:
            x, y = y, x
        if name == "truediv" and not kind.is_float:
            kind = Float64 if kind.width > 32 else Float32
            x, y = kind(x).value, kind(y).value
        if name in ("lshift", "rshift") and not 0 <= y < kind.width:
            return kind(-1 if name == "rshift" and x < 0 else 0)
        with np.errstate(all="ignore"):
            return kind(compute(x, y))

    plain = name.rstrip("_")
    setattr(Number, f"__{plain}__", forward)
    setattr(Number, f"__r{plain}__", lambda self, other: forward(self, other, True))


def _comparison(name: str) -> None:
    compute = getattr(operator, name)

    def compare(self: Number, other: Any) -> Any:
        right = _typed(other)
        if right is None:
            return NotImplemented
        if type(self).is_float or type(right).is_float:
            kind = common(type(self), type(right))
            return bool(compute(kind(self).value, kind(right).value))
        return bool(compute(int(self), int(right)))

    setattr(Number, f"__{name}__", compare)


for _name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "and_", "or_", "xor", "lshift", "rshift"):
    _arithmetic(_name)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _comparison(_name)
Number.__hash__ = lambda self: hash(self.value)  # type: ignore[method-assign]


class Dynamic(Int32):
    """An argument as Kiln documents it where it deviates from Python: no `int`, and its comparisons are Booleans with `~`."""

    __slots__ = ()


def _documented(name: str) -> None:
    compare = getattr(Number, f"__{name}__")

    def compared(self: Any, other: Any) -> Any:
        found = compare(self, other)
        return found if found is NotImplemented else Boolean(found)

    setattr(Dynamic, f"__{name}__", compared)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _documented(_name)
Dynamic.__hash__ = Number.__hash__


def narrow(x: Any) -> int:
    """A number as an `Int32`: a plain int here."""
    return int(Int32(x))
