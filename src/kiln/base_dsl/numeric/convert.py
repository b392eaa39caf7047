"""Conversions between numeric types, as operations of `arith`.

Narrow floats are converted through Float32 with `arith.extf` and `arith.truncf`: a target that has instructions for
them uses those, others run `expand.expand_narrow_floats`. The rounding is to nearest even and saturating either way.
"""

from __future__ import annotations

from typing import Any

from ..bindings import ir
from ..trace import emit_value
from .emit import compare_ir, constant, integer_compare, ir_type
from .meta import TYPES, FloatMeta

_UNORDERED_NOT_EQUAL = 13
_NATIVE_SOURCES = ("Float64", "Float32")


def convert(value: ir.Value, source: Any, target: Any, n: int | None = None, *, nonneg: bool = False) -> ir.Value:
    """Return `value` of type `source` as a value of type `target`.

    Integers wrap; floats round to nearest even; a float becomes an integer by dropping the fraction, and saturates
    (NaN gives 0) once a target has lowered it; anything but zero is True. `nonneg`: an integer known not to be negative.
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
    made = emit_value(op, ir_type(compute, n), (value,))
    return made if compute is target else _float_to_float(made, compute, target, n)


def _float_to_integer(value: ir.Value, source: Any, target: Any, n: int | None) -> ir.Value:
    compute = source._compute
    if compute is not source:
        value = _float_to_float(value, source, compute, n)
    if target.is_boolean:
        return compare_ir("arith.cmpf", _UNORDERED_NOT_EQUAL, value, constant(compute, 0.0, n), n)
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
        value, source = _float_to_float(value, source, float32, n), float32
    if source.width == target.width and source._compute is source and target._compute is target:
        # Float16 and BFloat16 do not contain each other
        return _float_to_float(_float_to_float(value, source, float32, n), float32, target, n)
    widening = source.width < target.width or (target is float32 and source._compute is not source)
    return emit_value("arith.extf" if widening else "arith.truncf", ir_type(target, n), (value,))


def bitcast(value: ir.Value, source: Any, target: Any, n: int | None = None) -> ir.Value:
    """Return the same bits as another type of the same width."""
    if source is target:
        return value
    tf32, float32 = TYPES["TFloat32"], TYPES["Float32"]
    # MLIR's tf32 is 19 bits wide: its bits are those of the f32 with the same value
    if source is tf32:
        return bitcast(convert(value, tf32, float32, n), float32, target, n)
    if target is tf32:
        return convert(bitcast(value, source, float32, n), float32, tf32, n)
    if ir_type(source) == ir_type(target):
        return value
    return emit_value("arith.bitcast", ir_type(target, n), (value,))
