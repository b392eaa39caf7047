"""Arithmetic that LLVM leaves undefined, or cannot do on every host, with one meaning.

Integer division by zero and a shift by a negative number record a fault and give 0; in kernels a division by zero gives
all bits set, as on a GPU, and a warning. The quotient of the lowest integer and -1 wraps. Shifts by the width or more
give 0 (-1 for an arithmetic shift of a negative number). Floats outside an integer type saturate, NaN gives 0. bf16 is
computed in f32 and rounded to nearest even after each operation, f16 functions likewise: x86-64 would call library
functions that not every system has. Functions under `fastmath` are computed like the others. Functions without an LLVM intrinsic call libm, element by element.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...mlir import context, ir
from ..lowering.arithmetic import ROUNDED_QUOTIENTS, rounded_quotient, saturated
from ..lowering.arithmetic import element_of as _element
from ..lowering.builder import Builder, constant_values, flat_type, int_type, like, reshape
from ..lowering.expansion import KEEP, Handlers

if TYPE_CHECKING:
    from .expand import Expander

HANDLERS = Handlers()

# --- integer division ------------------------------------------------------------------------------------------------


def _never_zero(x: Expander, value: ir.Value, depth: int = 4) -> bool:
    values = constant_values(value)
    if values is not None:
        return 0 not in values
    if value in x.function.positive:
        return True
    owner = value.owner
    if isinstance(owner, ir.Block) or not depth:
        return False
    op = owner.operation
    if op.name in ("arith.extsi", "arith.extui"):
        return _never_zero(x, op.operands[0], depth - 1)
    if op.name in ("arith.maxsi", "arith.maxui"):
        constants = [v for operand in op.operands for v in constant_values(operand) or []]
        return bool(constants) and (min(constants) > 0 or (op.name == "arith.maxui" and 0 not in constants))
    if op.name == "arith.select":
        return _never_zero(x, op.operands[1], depth - 1) and _never_zero(x, op.operands[2], depth - 1)
    return False


_QUOTIENTS = ("divsi", "floordivsi", "ceildivsi", "divs", "floordivs", "ceildivs", "sdiv")
_UNSIGNED = ("divui", "ceildivui", "remui", "divu", "ceildivu", "remu", "udiv", "urem")
_DIVISIONS = (
    *(f"arith.{name}" for name in ("divsi", "floordivsi", "ceildivsi", "remsi", "divui", "ceildivui", "remui")),
    *(f"index.{name}" for name in ("divs", "floordivs", "ceildivs", "rems", "divu", "ceildivu", "remu")),
    *(f"llvm.{name}" for name in ("sdiv", "srem", "udiv", "urem")),
)


@HANDLERS.expands(*_DIVISIONS)
def _divide(x: Expander, op: ir.Operation, b: Builder) -> Any:
    name = op.name.split(".")[1]
    a, d = op.operands
    signed = name not in _UNSIGNED
    values = constant_values(d)
    type_ = d.type
    if values is not None and 0 not in values and not (signed and -1 in values):
        return rounded_quotient(b, name, a, d) if name in ROUNDED_QUOTIENTS else KEEP
    one = b.const(type_, 1)
    zero = b.const(type_, 0)
    safe = d
    is_zero = None
    is_minus = None
    if not _never_zero(x, d):
        is_zero = b.compare("eq", d, zero)
        safe = b.select(is_zero, one, safe)
        x.divided_by_zero(op, b.if_(b.any(is_zero)))
    if signed:
        is_minus = b.compare("eq", d, b.const(type_, -1))
        safe = b.select(is_minus, one, safe)

    def divide(plain: str) -> ir.Value:
        result = b.value(plain, type_, (a, safe))
        if is_minus is not None and name in _QUOTIENTS:
            result = b.select(is_minus, b.binary("subi", zero, a), result)
        if is_zero is not None:
            result = b.select(is_zero, b.const(type_, -1) if x.function.is_kernel else zero, result)
        return result

    return rounded_quotient(b, name, a, d, divide) if name in ROUNDED_QUOTIENTS else divide(op.name)


# --- floats to integers ----------------------------------------------------------------------------------------------


@HANDLERS.expands("arith.fptosi", "arith.fptoui")
def _float_to_int(_x: Expander, op: ir.Operation, b: Builder) -> ir.Value:
    value = op.operands[0]
    if isinstance(_element(value.type), ir.BF16Type):
        value = widen_bf16(b, value)
    return saturated(b, op.name.removeprefix("arith."), value, op.results[0].type)


@HANDLERS.expands("arith.sitofp", "arith.uitofp")
def _int_to_float(_x: Expander, op: ir.Operation, b: Builder) -> Any:
    """Convert integers to bf16, rounded once, and 128-bit ones to f16.

    For the latter LLVM ends the process if a processor has instructions for f16. Past 2**16 all are infinite.
    """
    value = op.operands[0]
    result = op.results[0].type
    width = _element(value.type).width
    if isinstance(_element(result), ir.BF16Type):
        if width < 32:
            return round_to_bf16(b, b.value(op.name, like(result, _f32()), (value,)))
        signed = op.name == "arith.sitofp"
        scale = None
        if width == 128:
            value, scale = _of_64_bits(b, value, signed)
        if width >= 64:
            value = _at_most_53_bits(b, value, signed)
        exact = b.value(op.name, like(result, ir.F64Type.get(context())), (value,))
        odd = _f64_to_f32_odd(b, exact)
        return round_to_bf16(b, odd if scale is None else b.binary("mulf", odd, scale))
    if not isinstance(_element(result), ir.F16Type) or width != 128:
        return KEEP
    if op.name == "arith.sitofp":
        value = b.binary("maxsi", value, b.const(value.type, -65536))
        value = b.binary("minsi", value, b.const(value.type, 65536))
    else:
        value = b.binary("minui", value, b.const(value.type, 65536))
    near = b.value("arith.trunci", like(value.type, int_type(32)), (value,))
    return b.value("arith.sitofp", result, (near,))


def _of_64_bits(b: Builder, value: ir.Value, signed: bool) -> tuple[ir.Value, ir.Value]:
    """Return a 128-bit integer as 64 bits with a sticky last bit, and the power of 2 that scales it."""
    type_ = value.type
    narrow = like(value.type, int_type(64))
    i32 = like(value.type, int_type(32))
    narrowed = b.value("arith.trunci", narrow, (value,))
    scale = b.const(i32, 127 << 23)
    for shift in (32, 64):
        bits = b.value(
            "arith.trunci", narrow, (b.binary("shrsi" if signed else "shrui", value, b.const(type_, shift)),)
        )
        rest = b.binary("andi", value, b.const(type_, (1 << shift) - 1))
        any_set = b.value("arith.extui", narrow, (b.compare("ne", rest, b.const(type_, 0)),))
        limit = 1 << (30 + shift)
        moved = b.binary("addi", value, b.const(type_, limit)) if signed else value
        is_long = b.compare("uge", moved, b.const(type_, 2 * limit if signed else limit))
        narrowed = b.select(is_long, b.binary("ori", bits, any_set), narrowed)
        scale = b.select(is_long, b.const(i32, 127 + shift << 23), scale)
    return narrowed, b.value("arith.bitcast", like(type_, _f32()), (scale,))


def _at_most_53_bits(b: Builder, value: ir.Value, signed: bool) -> ir.Value:
    """Return a 64-bit integer with at most 53 significant bits: the last 12 bits become one sticky bit."""
    type_ = value.type
    low = b.binary("andi", value, b.const(type_, 0xFFF))
    high = b.binary("subi", value, low)
    rest = b.select(b.compare("ne", low, b.const(type_, 0)), b.const(type_, 0x800), b.const(type_, 0))
    shifted = b.binary("addi", value, b.const(type_, 1 << 53)) if signed else value
    is_long = b.compare("ugt", shifted, b.const(type_, 1 << 54 if signed else 1 << 53))
    return b.select(is_long, b.binary("ori", high, rest), value)


# --- bf16 and f16 ----------------------------------------------------------------------------------------------------


def _f32() -> ir.Type:
    return ir.F32Type.get(context())


def widen_bf16(b: Builder, value: ir.Value) -> ir.Value:
    """Convert bf16 to f32, which is exact."""
    shape = value.type
    i16 = like(shape, int_type(16))
    i32 = like(shape, int_type(32))
    bits = b.value("arith.extui", i32, (b.value("arith.bitcast", i16, (value,)),))
    return b.value("arith.bitcast", like(shape, _f32()), (b.binary("shli", bits, b.const(i32, 16)),))


def round_to_bf16(b: Builder, value: ir.Value) -> ir.Value:
    """Round f32 to bf16, to nearest even; a NaN stays one."""
    shape = value.type
    i16 = like(shape, int_type(16))
    i32 = like(shape, int_type(32))
    bits = b.value("arith.bitcast", i32, (value,))
    high = b.binary("shrui", bits, b.const(i32, 16))
    even = b.binary("andi", high, b.const(i32, 1))
    rounded = b.binary("addi", bits, b.binary("addi", even, b.const(i32, 0x7FFF)))
    rounded = b.binary("shrui", rounded, b.const(i32, 16))
    unordered = {"predicate": ir.IntegerAttr.get(int_type(64), 14)}
    is_nan = b.value("arith.cmpf", like(shape, int_type(1)), (value, value), unordered)
    chosen = b.select(is_nan, b.binary("ori", high, b.const(i32, 0x40)), rounded)
    return b.value("arith.bitcast", like(shape, ir.BF16Type.get(context())), (b.value("arith.trunci", i16, (chosen,)),))


def _f64_to_f32_odd(b: Builder, value: ir.Value) -> ir.Value:
    """Round f64 to f32 to odd, so that rounding the result again to a narrower type rounds only once."""
    shape = value.type
    i32 = like(shape, int_type(32))
    i64 = like(shape, int_type(64))
    near = b.value("arith.truncf", like(shape, _f32()), (value,))
    back = b.value("arith.extf", shape, (near,))
    magnitude = b.const(i64, (1 << 63) - 1)
    want = b.binary("andi", b.value("arith.bitcast", i64, (value,)), magnitude)
    got = b.binary("andi", b.value("arith.bitcast", i64, (back,)), magnitude)
    bits = b.value("arith.bitcast", i32, (near,))
    above = b.value("arith.extui", i32, (b.compare("ugt", got, want),))
    inexact = b.value("arith.extui", i32, (b.compare("ne", got, want),))
    odd = b.binary("ori", b.binary("subi", bits, above), inexact)
    # infinity minus one step is the largest number, which is right for a finite value; a NaN must be left alone
    is_nan = b.compare("ugt", want, b.const(i64, 0x7FF << 52))
    return b.value("arith.bitcast", near.type, (b.select(is_nan, bits, odd),))


def _is_odd(type_: Any) -> bool:
    """Return whether a type is a vector whose length is no power of two."""
    return isinstance(type_, ir.VectorType) and len(type_.shape) == 1 and bool(type_.shape[0] & (type_.shape[0] - 1))


def _in_pieces(b: Builder, name: str, value: ir.Value, result: Any) -> ir.Value:
    """Return a conversion of f16, done with vectors of 2, 4, 8 or 16 elements.

    LLVM's optimized code for others may be wrong: of 40, 48, 104 or 112 elements that had just been put together, some
    that were rounded to f16 came from other places (LLVM 22 on x86-64).
    """
    if not _is_odd(result):
        return b.value(name, result, (value,))
    length = result.shape[0]
    whole = value.type
    assembled = b.value("ub.poison", result, (), {"value": ir.Attribute.parse("#ub.poison", context())})
    first = 0
    while first < length:
        size = min(16, 1 << (length - first).bit_length() - 1)
        place = {key: ir.Attribute.parse(f"[{n} : i64]", context()) for key, n in (("offsets", first), ("strides", 1))}
        sizes = {"sizes": ir.Attribute.parse(f"[{size} : i64]", context())}
        of, to = (ir.VectorType.get([size], _element(x), loc=b.location) for x in (whole, result))
        piece = b.value("vector.extract_strided_slice", of, (value,), place | sizes)
        assembled = b.value("vector.insert_strided_slice", result, (b.value(name, to, (piece,)), assembled), place)
        first += size
    return assembled


@HANDLERS.expands("arith.extf")
def _extend(_x: Expander, op: ir.Operation, b: Builder) -> Any:
    value = op.operands[0]
    result = op.results[0].type
    if isinstance(_element(value.type), ir.F16Type) and _is_odd(result):
        return _in_pieces(b, op.name, value, result)
    if not isinstance(_element(value.type), ir.BF16Type):
        return KEEP
    wide = widen_bf16(b, value)
    return wide if wide.type == result else b.value("arith.extf", result, (wide,))


@HANDLERS.expands("arith.truncf")
def _truncate(_x: Expander, op: ir.Operation, b: Builder) -> Any:
    value = op.operands[0]
    result = op.results[0].type
    source = _element(value.type)
    target = _element(result)
    if isinstance(source, ir.F64Type) and isinstance(target, (ir.BF16Type, ir.F16Type)):
        value = _f64_to_f32_odd(b, value)
    if isinstance(target, ir.BF16Type):
        return round_to_bf16(b, value)
    changed = value != op.operands[0] or (isinstance(target, ir.F16Type) and _is_odd(result))
    return _in_pieces(b, op.name, value, result) if changed else KEEP


_OWN_HANDLER = frozenset(f"arith.{name}" for name in ("extf", "truncf", "fptosi", "fptoui", "sitofp", "uitofp"))
_UNCHANGED = frozenset({"arith.constant", "arith.select", "arith.bitcast"})
_EXACT_IN_F16 = frozenset(
    f"math.{name}" for name in ("absf", "copysign", "ceil", "floor", "trunc", "round", "roundeven", "fma", "sqrt")
)


@functools.cache
def _without_approximations(flags: ir.Attribute) -> ir.Attribute:
    """Return flags of fast math as they are on the host: only `reassoc` and `contract` are left."""
    asked = set(str(flags).removeprefix("#arith.fastmath<").removesuffix(">").split(","))
    left = ("reassoc", "contract") if "fast" in asked else [name for name in ("reassoc", "contract") if name in asked]
    return ir.Attribute.parse(f"#arith.fastmath<{','.join(left) or 'none'}>", context())


def drop_fast_math(op: ir.Operation) -> None:
    """Drop flags with which LLVM may use the processor's approximations, or assume that there are no infinities.

    The approximations of 1 / x and 1 / sqrt(x) are corrected by a step that makes NaN of an infinity, so a sigmoid of -100 would be NaN. A
    GPU has no such step: the flags allow approximations there that are right at the ends of the range.
    """
    flags = op.attributes.get("fastmath")
    if flags is not None and (left := _without_approximations(flags)) != flags:
        op.attributes["fastmath"] = left


def computes_in_f32(op: ir.Operation) -> bool:
    """Return whether an `arith`, `math` or `vector` operation on bf16 or f16 is to be computed in f32."""
    name = op.name
    if name in _UNCHANGED or name in _OWN_HANDLER or (name.startswith("vector.") and name != "vector.fma"):
        return False
    # the types of the first operand and of the first result decide: no operation mixes float types otherwise
    kinds = {_narrow_kind(operands[0].type) for operands in (op.operands, op.results) if len(operands)}
    return "bf16" in kinds or ("f16" in kinds and name.startswith("math.") and name not in _EXACT_IN_F16)


@functools.lru_cache(maxsize=1024)
def _narrow_kind(type_: ir.Type) -> str:
    element = _element(type_)
    return str(element) if isinstance(element, (ir.BF16Type, ir.F16Type)) else ""


def in_f32(x: Expander, op: ir.Operation, b: Builder) -> ir.Value:
    """Return the operation on f32 operands, its result rounded."""

    def widen(value: ir.Value) -> ir.Value:
        element = _element(value.type)
        if isinstance(element, ir.BF16Type):
            return widen_bf16(b, value)
        if isinstance(element, ir.F16Type):
            return _in_pieces(b, "arith.extf", value, like(value.type, _f32()))
        return value

    result = op.results[0].type
    element = _element(result)
    narrow = isinstance(element, (ir.BF16Type, ir.F16Type))
    extended = b.op(
        op.name,
        [like(result, _f32()) if narrow else result],
        [widen(v) for v in op.operands],
        dict(op.attributes.items()),
    )
    handler = x.module.handlers.get(op.name)  # the f32 operation may need one itself
    value = extended.result
    if handler is not None:
        replacement = handler.expand(x, extended, b)
        if replacement is not KEEP:
            extended.erase()
            value = replacement
    if isinstance(element, ir.BF16Type):
        value = round_to_bf16(b, value)
    elif narrow:
        value = _in_pieces(b, "arith.truncf", value, result)
    return value


# --- libm ------------------------------------------------------------------------------------------------------------


def _libm(function: str) -> Callable[..., ir.Value]:
    """Return a handler that calls a libm function for each element."""

    def expand(x: Expander, op: ir.Operation, b: Builder) -> ir.Value:
        result = op.results[0].type
        element = _element(result)
        name = function if isinstance(element, ir.F64Type) else f"{function}f"
        x.module.declare(name, [element] * len(op.operands), [element])
        if not isinstance(result, ir.VectorType):
            return b.call(name, [element], list(op.operands)).result
        flat: Any = flat_type(result)
        operands = [reshape(b, value, flat) for value in op.operands]
        elements: list[ir.Value] = []
        for number in range(flat.shape[0]):
            elements.append(b.call(name, [element], [b.element(value, number) for value in operands]).results[0])
        return reshape(b, b.value("vector.from_elements", flat, elements), result)

    return expand


# Those without an LLVM intrinsic, and those that upstream lowers with a loss of precision.
for _name in ("acosh", "asinh", "atanh", "cbrt", "erf", "erfc", "expm1", "log1p"):
    HANDLERS.expands(f"math.{_name}")(_libm(_name))


@HANDLERS.expands("vector.reduction")
def _reduction(_x: Expander, op: ir.Operation, b: Builder) -> Any:
    """Expand a reduction of bf16 to a chain of bf16 operations, each rounded."""
    if not isinstance(op.results[0].type, ir.BF16Type):
        return KEEP
    kind = str(op.attributes["kind"]).removeprefix("#vector.kind<").removesuffix(">")
    combine = {"add": "addf", "mul": "mulf"}.get(kind, kind)
    vector: Any = op.operands[0].type
    value = op.operands[1] if len(op.operands) > 1 else None
    for number in range(vector.shape[0]):
        part = b.element(op.operands[0], number)
        if value is None:
            value = part
            continue
        wide = b.value(f"arith.{combine}", _f32(), (widen_bf16(b, value), widen_bf16(b, part)))
        value = round_to_bf16(b, wide)
    return KEEP if value is None else value
