"""Lowerings that upstream MLIR does not have, for targets without instructions for them.

`expand_narrow_floats` rewrites conversions from and to narrow floats into integer arithmetic on bit patterns.
`saturate_float_to_int` gives `arith.fptosi` and `arith.fptoui` the meaning of the language: out of range saturates,
NaN is 0 (upstream leaves both undefined). Both work on scalars and on vectors of any shape, and are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..bindings import ir
from .formats import FLOAT32, FLOAT64, FloatFormat
from .meta import TYPES, FloatMeta


def _narrow_formats() -> dict[str, FloatFormat]:
    """Return the formats without arithmetic of their own, by the name of their IR type."""
    types = [t for t in TYPES.values() if isinstance(t, FloatMeta) and t._format is not None]
    return {t._mlir_name: t._format for t in types if t._compute is not t}


class Emitter:
    """Adds `arith` operations at one place, on scalars or on vectors shaped like `like`."""

    def __init__(self, like: ir.Type, point: ir.InsertionPoint, location: ir.Location) -> None:
        self._ir = ir
        self._shape = list(like.shape) if isinstance(like, ir.VectorType) else None
        self._point = point
        self._location = location

    def shaped(self, element: ir.Type) -> ir.Type:
        """Return the type of values here with elements of a type."""
        return element if self._shape is None else self._ir.VectorType.get(self._shape, element, loc=self._location)

    def integer(self, width: int) -> ir.Type:
        return self._ir.IntegerType.get_signless(width, self._location.context)

    def op(self, name: str, element: ir.Type, *operands: ir.Value, **attributes: ir.Attribute) -> ir.Value:
        return self._ir.Operation.create(
            name, (self.shaped(element),), operands, attributes or None, None, 0, self._location, self._point
        ).result

    def constant(self, element: ir.Type, value: int | float) -> ir.Value:
        ir = self._ir
        if isinstance(element, ir.IntegerType):
            attribute = ir.Attribute.parse(f"{value} : {element}", self._location.context)
        else:
            attribute = ir.FloatAttr.get(element, float(value), self._location)
        if self._shape is not None:
            attribute = ir.DenseElementsAttr.get_splat(self.shaped(element), attribute)
        return self.op("arith.constant", element, value=attribute)

    def compare(self, op: str, predicate: int, a: ir.Value, b: ir.Value) -> ir.Value:
        number = self._ir.IntegerAttr.get(self.integer(64), predicate)
        return self.op(op, self.integer(1), a, b, predicate=number)

    def select(self, element: ir.Type, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.op("arith.select", element, condition, a, b)


# of arith.cmpi
_EQ = 0
_ULT = 6
_UGT = 8
_UGE = 9
# of arith.cmpf
_OGE = 3
_OLE = 5
_UNO = 14


class _Bits:
    """Integer arithmetic of one width."""

    def __init__(self, emitter: Emitter, width: int) -> None:
        self.emitter = emitter
        self.type = emitter.integer(width)

    def constant(self, value: int) -> ir.Value:
        return self.emitter.constant(self.type, value)

    def _op(self, name: str, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return self.emitter.op(name, self.type, a, self.constant(b) if isinstance(b, int) else b)

    def add(self, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return self._op("arith.addi", a, b)

    def sub(self, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return self._op("arith.subi", a, b)

    def mask(self, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return self._op("arith.andi", a, b)

    def merge(self, a: ir.Value, b: ir.Value | int) -> ir.Value:
        return self._op("arith.ori", a, b)

    def left(self, a: ir.Value, by: int) -> ir.Value:
        return self._op("arith.shli", a, by) if by else a

    def right(self, a: ir.Value, by: int) -> ir.Value:
        return self._op("arith.shrui", a, by) if by else a

    def least(self, a: ir.Value, b: int) -> ir.Value:
        return self._op("arith.minui", a, b)

    def test(self, predicate: int, a: ir.Value, b: int) -> ir.Value:
        return self.emitter.compare("arith.cmpi", predicate, a, self.constant(b))

    def choose(self, condition: ir.Value, a: ir.Value | int, b: ir.Value | int) -> ir.Value:
        first = self.constant(a) if isinstance(a, int) else a
        second = self.constant(b) if isinstance(b, int) else b
        return self.emitter.select(self.type, condition, first, second)


def extend(emitter: Emitter, value: ir.Value, source: FloatFormat, float32: ir.Type) -> ir.Value:
    """Return a narrow float as an f32, exactly."""
    bits = _Bits(emitter, 32)
    field = emitter.op("arith.bitcast", emitter.integer(source.width), value)
    code = emitter.op("arith.extui", bits.type, field)
    if not source.mantissa_bits:
        return emitter.op("arith.bitcast", float32, _extend_power_of_two(bits, code))
    magnitude_bits = source.exponent_bits + source.mantissa_bits
    magnitude = bits.mask(code, (1 << magnitude_bits) - 1)
    to_top = FLOAT32.mantissa_bits - source.mantissa_bits
    normal = bits.add(bits.left(magnitude, to_top), (FLOAT32.bias - source.bias) << FLOAT32.mantissa_bits)
    # A subnormal is its mantissa times the smallest step: a small int times a power of two.
    step = emitter.constant(float32, math.ldexp(1.0, source.min_exponent - source.mantissa_bits))
    subnormal = emitter.op("arith.mulf", float32, emitter.op("arith.uitofp", float32, magnitude), step)
    subnormal = emitter.op("arith.bitcast", bits.type, subnormal)
    result = bits.choose(bits.test(_ULT, magnitude, 1 << source.mantissa_bits), subnormal, normal)
    if source.nan in ("ieee", "all_ones"):
        result = bits.choose(bits.test(_UGT, magnitude, source.max_code), 0x7FC00000, result)
    if source.has_inf:
        result = bits.choose(bits.test(_EQ, magnitude, source.max_code + 1), 0x7F800000, result)
    sign = bits.left(bits.right(code, magnitude_bits), 31)
    result = bits.merge(result, sign)
    if source.nan == "negative_zero":
        result = bits.choose(bits.test(_EQ, code, source.nan_code), 0x7FC00000, result)
    return emitter.op("arith.bitcast", float32, result)


def _extend_power_of_two(bits: _Bits, code: ir.Value) -> ir.Value:
    result = bits.left(code, FLOAT32.mantissa_bits)
    result = bits.choose(bits.test(_EQ, code, 0), 1 << 22, result)  # 2**-127 is a subnormal f32
    return bits.choose(bits.test(_EQ, code, 255), 0x7FC00000, result)


def truncate(
    emitter: Emitter, value: ir.Value, source: FloatFormat, source_type: ir.Type, target: FloatFormat
) -> ir.Value:
    """Return the code of an f32 or f64 in a narrower format, sign included, as an integer as wide as the source."""
    bits = _Bits(emitter, source.width)
    pattern = emitter.op("arith.bitcast", bits.type, value)
    magnitude = bits.mask(pattern, (1 << (source.width - 1)) - 1)
    is_nan = bits.test(_UGT, magnitude, source.encode(math.inf))
    if not target.mantissa_bits:
        return _truncate_power_of_two(bits, pattern, magnitude, is_nan, source, target)
    if target.saturates:
        magnitude = bits.least(magnitude, source.encode(target.max))
    drop = source.mantissa_bits - target.mantissa_bits
    # round to nearest even: add half of what is dropped, less one where the last bit kept is even
    last_kept = bits.mask(bits.right(magnitude, drop), 1)
    rounded = bits.right(bits.add(bits.add(magnitude, (1 << (drop - 1)) - 1), last_kept), drop)
    normal = bits.sub(rounded, (source.bias - target.bias) << target.mantissa_bits)
    if not target.saturates:
        infinity = target.max_code + 1
        normal = bits.choose(
            bits.test(_UGT, rounded, infinity + ((source.bias - target.bias) << target.mantissa_bits)), infinity, normal
        )
    # Below the smallest normal: adding a number whose last bit is worth one step lets the adder do the rounding.
    anchor = math.ldexp(1.0, target.min_exponent - target.mantissa_bits + source.mantissa_bits)
    sum_ = emitter.op(
        "arith.addf",
        source_type,
        emitter.op("arith.bitcast", source_type, magnitude),
        emitter.constant(source_type, anchor),
    )
    subnormal = bits.sub(emitter.op("arith.bitcast", bits.type, sum_), source.encode(anchor))
    smallest_normal = source.encode(math.ldexp(1.0, target.min_exponent))
    code = bits.choose(bits.test(_ULT, magnitude, smallest_normal), subnormal, normal)
    sign_at = target.exponent_bits + target.mantissa_bits
    sign = bits.left(bits.right(pattern, source.width - 1), sign_at)
    if target.nan == "none":
        return bits.choose(is_nan, target.max_code, bits.merge(code, sign))
    if target.nan == "negative_zero":
        signed = bits.choose(bits.test(_EQ, code, 0), 0, bits.merge(code, sign))
        return bits.choose(is_nan, target.nan_code, signed)
    return bits.merge(bits.choose(is_nan, target.nan_code, code), sign)


def _truncate_power_of_two(
    bits: _Bits, pattern: ir.Value, magnitude: ir.Value, is_nan: ir.Value, source: FloatFormat, target: FloatFormat
) -> ir.Value:
    """Emit the nearest power of two, ties up; clamped to the range; NaN for a negative number."""
    half = 1 << (source.mantissa_bits - 1)
    exponent = bits.right(bits.add(magnitude, half), source.mantissa_bits)
    lowest = source.bias - target.bias
    code = bits.sub(
        bits.least(
            bits.emitter.op("arith.maxui", bits.type, exponent, bits.constant(lowest)), lowest + target.max_code
        ),
        lowest,
    )
    if lowest == 0:  # the smallest power is a subnormal of the source
        subnormal = bits.choose(bits.test(_UGE, magnitude, half + half // 2), 1, 0)
        code = bits.choose(bits.test(_ULT, magnitude, 1 << source.mantissa_bits), subnormal, code)
    negative = bits.test(_UGT, pattern, 1 << (source.width - 1))
    return bits.choose(is_nan, target.nan_code, bits.choose(negative, target.nan_code, code))


BITCAST = "llvm.bitcast"
CONVERSIONS = ("arith.extf", "arith.truncf", BITCAST)
"""The names of operations that convert from and to narrow floats. Programs write `llvm.bitcast` themselves, though LLVM
has no types for narrow floats."""


def expand_narrow_floats(
    module: ir.Module,
    operations: Sequence[ir.Operation] | None = None,
    instruction: Callable[[ir.Operation, str, str], ir.Value | None] | None = None,
) -> None:
    """Rewrite conversions from and to narrow floats into integer arithmetic.

    Narrow floats become their bits (an integer in LLVM), and tf32 becomes f32. `operations` are those of the module to
    look at, at least its `CONVERSIONS` and those that produce tf32 from other types; by default all. `instruction(op,
    source, target)` returns the value of a target's own instruction for a conversion, or None.
    """
    formats = _narrow_formats()
    if operations is None:
        every: list[ir.Operation] = []
        _walk(module, every.append)
        operations = every
    todo: list[tuple[ir.Operation, str, str]] = []
    types = {a.type for f in module.body.operations for r in f.operation.regions for b in r for a in b.arguments}
    for op in operations:
        results = [result.type for result in op.results]
        types.update(results)
        if op.name in CONVERSIONS:
            source = str(_element(op.operands[0].type))
            target = str(_element(results[0]))
            if source in formats or target in formats:
                todo.append((op, source, target))
    if any(map(_is_tf32, types)):
        _retype_tf32(module)
    for op, source, target in todo:
        if op.name == BITCAST:
            expanded = _bits_as(op)
        else:
            expanded = None if instruction is None else instruction(op, source, target)
        if expanded is None:
            expanded = _expand_extf(op, formats[source]) if source in formats else _expand_truncf(op, formats[target])
        op.results[0].replace_all_uses_with(expanded)
        op.erase()


def saturate_float_to_int(module: ir.Module) -> None:
    """Guard every conversion of a float to an integer: out of range saturates, NaN gives 0."""
    conversions: list[ir.Operation] = []
    _walk(module, lambda op: conversions.append(op) if op.name in ("arith.fptosi", "arith.fptoui") else None)
    for op in conversions:
        _saturate(op)


def _walk(module: ir.Module, visit: Callable[[ir.Operation], object]) -> None:
    def advance(op: ir.Operation) -> ir.WalkResult:
        visit(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(advance)


def _element(type_: ir.Type) -> ir.Type:
    return type_.element_type if isinstance(type_, ir.VectorType) else type_


def _emitter(op: ir.Operation) -> Emitter:
    return Emitter(op.results[0].type, ir.InsertionPoint(op), op.location)


def _expand_extf(op: ir.Operation, source: FloatFormat) -> ir.Value:
    value = op.operands[0]
    emitter = _emitter(op)
    target = _element(op.results[0].type)
    float32 = ir.F32Type.get(op.context)
    # a tf32 has been made an f32 already
    wide = value if source.unused_low_bits else extend(emitter, value, source, float32)
    if target == float32:
        return wide
    return emitter.op("arith.extf" if target.width > 32 else "arith.truncf", target, wide)


def _expand_truncf(op: ir.Operation, target: FloatFormat) -> ir.Value:
    target_type = _element(op.results[0].type)
    emitter = _emitter(op)
    value = op.operands[0]
    source_type = _element(value.type)
    if source_type.width < 32:
        source_type = ir.F32Type.get(op.context)
        value = emitter.op("arith.extf", source_type, value)
    source = FLOAT64 if source_type.width == 64 else FLOAT32
    code = truncate(emitter, value, source, source_type, target)
    if target.width < source.width:
        code = emitter.op("arith.trunci", emitter.integer(target.width), code)
    if target.unused_low_bits:
        code = _Bits(emitter, target.width).left(code, target.unused_low_bits)
    return emitter.op("arith.bitcast", target_type, code)


def _bits_as(op: ir.Operation) -> ir.Value:
    """Return the bits of a number or vector as another type, by way of vectors of integers."""
    value = op.operands[0]
    result = op.results[0].type
    point = ir.InsertionPoint(op)

    def unary(name: str, type_: ir.Type, value: ir.Value, **attributes: ir.Attribute) -> ir.Value:
        return ir.Operation.create(name, (type_,), (value,), attributes or None, None, 0, op.location, point).result

    def vector(type_: ir.Type, element: ir.Type) -> ir.Type:
        shape = list(type_.shape) if isinstance(type_, ir.VectorType) else [1]
        return ir.VectorType.get(shape, element, loc=op.location)

    def integers(type_: ir.Type) -> ir.Type:
        return vector(type_, ir.IntegerType.get_signless(_element(type_).width, op.context))

    if not isinstance(value.type, ir.VectorType):
        value = unary("vector.broadcast", vector(value.type, value.type), value)
    value = unary("vector.bitcast", integers(result), unary("arith.bitcast", integers(value.type), value))
    value = unary("arith.bitcast", vector(result, _element(result)), value)
    if isinstance(result, ir.VectorType):
        return value
    return unary("vector.extract", result, value, static_position=ir.DenseI64ArrayAttr.get([0], op.context))


def _is_tf32(type_: ir.Type) -> bool:
    return isinstance(_element(type_), ir.FloatTF32Type)


def _retype_tf32(module: ir.Module) -> None:
    """Make every tf32 value the f32 with the same value, in place."""

    def as_f32(type_: ir.Type) -> ir.Type:
        if not _is_tf32(type_):
            return type_
        float32 = ir.F32Type.get(module.context)
        if isinstance(type_, ir.VectorType):
            return ir.VectorType.get(list(type_.shape), float32, loc=ir.Location.unknown(module.context))
        return float32

    def retype(op: ir.Operation) -> None:
        if op.name == "arith.constant" and _is_tf32(op.results[0].type):
            op.attributes["value"] = _constant_as_f32(op.attributes["value"], as_f32(op.results[0].type))
        for value in op.results:
            value.set_type(as_f32(value.type))
        for region in op.regions:
            for block in region:
                for argument in block.arguments:
                    argument.set_type(as_f32(argument.type))
        if "function_type" in op.attributes:
            signature = op.attributes["function_type"].value
            if isinstance(signature, ir.FunctionType) and any(map(_is_tf32, [*signature.inputs, *signature.results])):
                function_type = ir.FunctionType.get(
                    [as_f32(t) for t in signature.inputs], [as_f32(t) for t in signature.results], module.context
                )
                op.attributes["function_type"] = ir.TypeAttr.get(function_type, module.context)

    _walk(module, retype)


def _constant_as_f32(attribute: ir.Attribute, type_: ir.Type) -> ir.Attribute:
    if isinstance(type_, ir.VectorType):
        element = _constant_as_f32(attribute.get_splat_value(), type_.element_type)
        return ir.DenseElementsAttr.get_splat(type_, element)
    return ir.FloatAttr.get(type_, attribute.value, ir.Location.unknown(type_.context))


def _saturate(op: ir.Operation) -> None:
    value = op.operands[0]
    emitter = Emitter(op.results[0].type, ir.InsertionPoint.after(op), op.location)
    source = _element(value.type)
    target = _element(op.results[0].type)
    limits = next(t._format for t in TYPES.values() if isinstance(t, FloatMeta) and t._mlir_name == str(source))
    width = target.width
    low, high = (-(1 << (width - 1)), 1 << (width - 1)) if op.name == "arith.fptosi" else (0, 1 << width)
    # A limit beyond the range of the float is infinity: only infinity reaches it. Equality at the low end is harmless.
    below = emitter.compare("arith.cmpf", _OLE, value, emitter.constant(source, limits.round(float(low))))
    above = emitter.compare("arith.cmpf", _OGE, value, emitter.constant(source, limits.round(float(high))))
    is_nan = emitter.compare("arith.cmpf", _UNO, value, value)
    old = op.results[0]
    guarded = emitter.select(target, below, emitter.constant(target, low), old)
    first = guarded.owner.operation
    guarded = emitter.select(target, above, emitter.constant(target, high - 1), guarded)
    guarded = emitter.select(target, is_nan, emitter.constant(target, 0), guarded)
    old.replace_all_uses_except(guarded, [first])
