"""Arithmetic of floats written as Python expressions, for the functions of `f32.py` and `f64.py`."""

from __future__ import annotations

import dataclasses

from ....mlir import ir
from ...lowering.builder import int_type
from ..device_builder import DeviceBuilder


@dataclasses.dataclass(eq=False)
class Float:
    """A float of the program, with Python's operators; `b` is where they are emitted."""

    b: DeviceBuilder
    v: ir.Value

    def _of(self, other: Float | float) -> Float:
        return other if isinstance(other, Float) else self.const(other)

    def const(self, value: float) -> Float:
        return Float(
            self.b, self.b.value("arith.constant", self.v.type, (), {"value": ir.FloatAttr.get(self.v.type, value)})
        )

    def _binary(self, name: str, left: Float | float, right: Float | float) -> Float:
        return Float(self.b, self.b.value(f"arith.{name}", self.v.type, (self._of(left).v, self._of(right).v)))

    def __add__(self, other: Float | float) -> Float:
        return self._binary("addf", self, other)

    __radd__ = __add__

    def __sub__(self, other: Float | float) -> Float:
        return self._binary("subf", self, other)

    def __rsub__(self, other: Float | float) -> Float:
        return self._binary("subf", other, self)

    def __mul__(self, other: Float | float) -> Float:
        return self._binary("mulf", self, other)

    __rmul__ = __mul__

    def __truediv__(self, other: Float | float) -> Float:
        return self._binary("divf", self, other)

    def __rtruediv__(self, other: Float | float) -> Float:
        return self._binary("divf", other, self)

    def __neg__(self) -> Float:
        return Float(self.b, self.b.value("arith.negf", self.v.type, (self.v,)))

    def __abs__(self) -> Float:
        return self.call("absf")

    def call(self, name: str, *others: Float | float) -> Float:
        """Return a function of `math` that has an instruction."""
        return Float(self.b, self.b.value(f"math.{name}", self.v.type, (self.v, *(self._of(o).v for o in others))))

    def fma(self, factor: Float | float, addend: Float | float) -> Float:
        """Return self * factor + addend, rounded once."""
        return self.call("fma", factor, addend)

    def sign_of(self, other: Float) -> Float:
        """Return the magnitude with the sign of another number."""
        return self.call("copysign", other)

    def compare(self, predicate: str, other: Float | float) -> ir.Value:
        """Return an ordered comparison (`olt`, ...), or `uno`."""
        number = {"oeq": 1, "ogt": 2, "oge": 3, "olt": 4, "ole": 5, "one": 6, "uno": 14}[predicate]
        attributes = {"predicate": ir.IntegerAttr.get(int_type(64), number)}
        return self.b.value("arith.cmpf", int_type(1), (self.v, self._of(other).v), attributes)

    def where(self, condition: ir.Value, otherwise: Float | float) -> Float:
        """Return this number where the condition holds, else another."""
        return Float(self.b, self.b.select(condition, self.v, self._of(otherwise).v))

    def bits(self) -> ir.Value:
        """Return the bit pattern."""
        return self.b.value("arith.bitcast", int_type(self.v.type.width), (self.v,))

    def of_bits(self, bits: ir.Value) -> Float:
        """Return the number of a bit pattern."""
        return Float(self.b, self.b.value("arith.bitcast", self.v.type, (bits,)))

    def to_int(self) -> ir.Value:
        """Return a whole number as an i32."""
        return self.b.value("arith.fptosi", int_type(32), (self.v,))

    def of_int(self, value: ir.Value) -> Float:
        return Float(self.b, self.b.value("arith.sitofp", self.v.type, (value,)))

    def as_type(self, type_: ir.Type) -> Float:
        """Return the number in another precision."""
        if type_ == self.v.type:
            return self
        name = "arith.extf" if type_.width > self.v.type.width else "arith.truncf"
        return Float(self.b, self.b.value(name, type_, (self.v,)))


def poly(x: Float, *coefficients: float) -> Float:
    """Return a polynomial, highest power first, by fused steps."""
    result = x.const(coefficients[0])
    for c in coefficients[1:]:
        result = result.fma(x, c)
    return result


def clamp(x: Float, low: float, high: float) -> Float:
    """Return the number, or the limit that it exceeds; a NaN gives a limit."""
    x = x.where(x.compare("ogt", low), low)
    return x.where(x.compare("olt", high), high)
