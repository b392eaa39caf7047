"""Functions that LLVM's code generators call for what a processor has no instruction for, as C compilers' runtimes have.

libgcc has those for 128-bit integers since ever, those for f16 since 2022 and those for bf16 since 2023: the latter two
are defined here. They work on bit patterns with integer instructions, so none can be compiled into a call of itself, and
give the same bits as the instructions of processors that have them: rounded once, to nearest even; a NaN stays one,
quiet, with its sign and the upper bits of its payload.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...base_dsl.numeric.formats import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ...mlir import context, ir
from ..lowering.builder import Builder, function, int_type, parsed_type

if TYPE_CHECKING:
    from collections.abc import Callable

_FORMATS = {"f16": FLOAT16, "bf16": BFLOAT16, "f32": FLOAT32, "f64": FLOAT64}

# name: types of the argument and the result; `__gnu` ones take and give bit patterns
_CONVERSIONS = {
    "__truncsfhf2": ("f32", "f16"), "__truncdfhf2": ("f64", "f16"), "__gnu_f2h_ieee": ("f32", "f16"),
    "__truncsfbf2": ("f32", "bf16"), "__truncdfbf2": ("f64", "bf16"),
    "__extendhfsf2": ("f16", "f32"), "__extendhfdf2": ("f16", "f64"), "__gnu_h2f_ieee": ("f16", "f32"),
    "__extendbfsf2": ("bf16", "f32"), "__extendbfdf2": ("bf16", "f64"),
}  # fmt: skip

EXPORTS = (*_CONVERSIONS, "__floattihf", "__floatuntihf", "__fixhfti", "__fixunshfti")


def build() -> ir.Module:
    """All of them, as a module of `func` and `arith` operations."""
    with context(), ir.Location.unknown():
        module = ir.Module.create()
        for name, (source, target) in _CONVERSIONS.items():
            convert = _truncated if _FORMATS[source].width > _FORMATS[target].width else _extended
            inputs, results = parsed_type(source), parsed_type(target)
            if name.startswith("__gnu"):
                inputs, results = (int_type(16) if type_.width == 16 else type_ for type_ in (inputs, results))
            _define(module, name, inputs, results, lambda b, value, c=convert, s=source, t=target: c(b, value, s, t))
        f16, i128 = parsed_type("f16"), int_type(128)
        for name, signed in (("__floattihf", True), ("__floatuntihf", False)):
            _define(module, name, i128, f16, lambda b, value, signed=signed: _from_wide(b, value, signed))
        for name, signed in (("__fixhfti", True), ("__fixunshfti", False)):
            _define(module, name, f16, i128, lambda b, value, signed=signed: _to_wide(b, value, signed))
        return module


def _define(
    module: ir.Module, name: str, source: ir.Type, target: ir.Type, convert: Callable[[Builder, ir.Value], ir.Value]
) -> None:
    """A function of a value's bits that gives a result's bits."""
    entry = function(module, name, [source], [target]).regions[0].blocks[0]
    b = Builder(ir.InsertionPoint(entry), ir.Location.unknown())
    value = entry.arguments[0]
    bits = convert(b, value if isinstance(source, ir.IntegerType) else _cast(b, value, int_type(source.width)))
    b.op("func.return", (), (bits if bits.type == target else _cast(b, bits, target),))


def _cast(b: Builder, value: ir.Value, type_: ir.Type) -> ir.Value:
    return b.value("arith.bitcast", type_, (value,))


def _truncated(b: Builder, bits: ir.Value, source_name: str, target_name: str) -> ir.Value:
    """The bits of a float in a format with fewer."""
    source, target = _FORMATS[source_name], _FORMATS[target_name]
    wide = bits.type

    def const(value: int) -> ir.Value:
        return b.const(wide, value)

    one = const(1)
    magnitude = b.binary("andi", bits, const((1 << source.width - 1) - 1))
    fraction = b.binary("andi", bits, const((1 << source.mantissa_bits) - 1))
    field = b.binary("shrui", magnitude, const(source.mantissa_bits))
    exponent = b.binary("maxui", field, one)  # subnormals share the smallest normal number's
    leading = b.select(b.compare("ne", field, const(0)), const(1 << source.mantissa_bits), const(0))
    significand = b.binary("ori", fraction, leading)
    # Numbers below the target's normal ones lose more bits, in the end all of them.
    lowest = const(source.bias - target.bias + 1)  # exponent field of the target's smallest normal number
    above = b.binary("subi", b.binary("maxui", exponent, lowest), lowest)
    below = b.binary("subi", lowest, b.binary("minui", exponent, lowest))
    below = b.binary("minui", below, const(target.mantissa_bits + 2))
    shorter = const(source.mantissa_bits - target.mantissa_bits)
    dropped = b.binary("addi", below, shorter)
    odd = b.binary("andi", b.binary("shrui", significand, dropped), one)
    half = b.binary("shli", one, b.binary("subi", dropped, one))
    nearest = b.binary("addi", significand, b.binary("addi", b.binary("subi", half, one), odd))
    kept = b.binary("shrui", nearest, dropped)
    # A significand's leading bit, and a carry out of it, count in the exponent.
    code = b.binary("addi", b.binary("shli", above, const(target.mantissa_bits)), kept)
    infinity = target.max_code + 1
    code = b.binary("minui", code, const(infinity))
    payload = b.binary("shrui", fraction, shorter)
    is_nan = b.compare("ugt", magnitude, const(source.max_code + 1))
    code = b.select(is_nan, b.binary("ori", payload, const(target.nan_code)), code)
    sign = b.binary("shrui", b.binary("subi", bits, magnitude), const(source.width - target.width))
    return b.value("arith.trunci", int_type(target.width), (b.binary("ori", code, sign),))


def _extended(b: Builder, bits: ir.Value, source_name: str, target_name: str) -> ir.Value:
    """The bits of a float in a format with more."""
    source, target = _FORMATS[source_name], _FORMATS[target_name]
    wide = int_type(target.width)

    def const(value: int) -> ir.Value:
        return b.const(wide, value)

    bits = b.value("arith.extui", wide, (bits,))
    magnitude = b.binary("andi", bits, const((1 << source.width - 1) - 1))
    longer = target.mantissa_bits - source.mantissa_bits
    rebias = const((target.bias - source.bias) << target.mantissa_bits)
    normal = b.binary("addi", b.binary("shli", magnitude, const(longer)), rebias)
    special = b.binary("addi", normal, rebias)  # infinities and NaNs: all bits of the exponent are set
    quiet = b.binary("ori", special, const(1 << target.mantissa_bits - 1))
    infinity = const(source.max_code + 1)
    code = b.select(b.compare("uge", magnitude, infinity), special, normal)
    code = b.select(b.compare("ugt", magnitude, infinity), quiet, code)
    if source.bias != target.bias:  # a subnormal is a normal number there: its first set bit becomes the leading one
        unset = b.value("math.ctlz", wide, (magnitude,))
        shift = b.binary("subi", unset, const(target.width - target.mantissa_bits - 1))
        fraction = b.binary("subi", b.binary("shli", magnitude, shift), const(1 << target.mantissa_bits))
        top = target.bias - source.bias + 1 + longer
        exponent = b.binary("shli", b.binary("subi", const(top), shift), const(target.mantissa_bits))
        subnormal = b.binary("addi", exponent, fraction)
        is_zero = b.compare("eq", magnitude, const(0))
        subnormal = b.select(is_zero, const(0), subnormal)
        code = b.select(b.compare("ult", magnitude, const(1 << source.mantissa_bits)), subnormal, code)
    sign = b.binary("shli", b.binary("subi", bits, magnitude), const(target.width - source.width))
    return b.binary("ori", code, sign)


def _from_wide(b: Builder, value: ir.Value, signed: bool) -> ir.Value:
    """The f16 of a 128-bit integer: what is above all of them is infinite."""
    wide, i32 = value.type, int_type(32)
    if signed:
        value = b.binary("minsi", b.binary("maxsi", value, b.const(wide, -65536)), b.const(wide, 65536))
    else:
        value = b.binary("minui", value, b.const(wide, 65536))
    near = b.value("arith.trunci", i32, (value,))
    exact = _cast(b, b.value("arith.sitofp", parsed_type("f32"), (near,)), i32)
    return _truncated(b, exact, "f32", "f16")


def _to_wide(b: Builder, bits: ir.Value, signed: bool) -> ir.Value:
    """A 128-bit integer of an f16, toward zero; what no integer is may become any."""
    exact = _cast(b, _extended(b, bits, "f16", "f32"), parsed_type("f32"))
    near = b.value("arith.fptosi", int_type(32), (exact,))
    return b.value("arith.extsi" if signed else "arith.extui", int_type(128), (near,))
