"""Conversion functions that LLVM's code generators call where a processor has no instruction, as in compiler runtimes.

libgcc has those for 128-bit integers since ever, those for f16 since 2022 and those for bf16 since 2023: the latter two
are defined here. They work on bit patterns with integer instructions, so none can be compiled into a call of itself,
and give the same bits as the instructions of processors that have them: rounded once, to nearest even; a NaN stays one,
quiet, with its sign and the upper bits of its payload.
"""

from __future__ import annotations

from ...base_dsl.numeric.formats import BFLOAT16, FLOAT16, FLOAT32, FLOAT64
from ...base_dsl.typing import BFloat16, Float16, Int128, Uint128
from ...native import Library, f32, f64, i32, inline, leading_zeros, u8, u16, u32, u64

floats: Library = Library("soft_float")

_TYPES = {"f16": Float16, "bf16": BFloat16, "f32": f32, "f64": f64}
_FORMATS = {"f16": FLOAT16, "bf16": BFLOAT16, "f32": FLOAT32, "f64": FLOAT64}
_BITS = {8: u8, 16: u16, 32: u32, 64: u64}

# name: types of the argument and the result; `__gnu` ones take and give bit patterns
_CONVERSIONS = {
    "__truncsfhf2": ("f32", "f16"),
    "__truncdfhf2": ("f64", "f16"),
    "__gnu_f2h_ieee": ("f32", "f16"),
    "__truncsfbf2": ("f32", "bf16"),
    "__truncdfbf2": ("f64", "bf16"),
    "__extendhfsf2": ("f16", "f32"),
    "__extendhfdf2": ("f16", "f64"),
    "__gnu_h2f_ieee": ("f16", "f32"),
    "__extendbfsf2": ("bf16", "f32"),
    "__extendbfdf2": ("bf16", "f64"),
}


@inline
def truncated(bits, source, target):
    """Return the bits of a float in a format with fewer."""
    wide = type(bits)
    counts = source.width - 1
    magnitude = bits & (1 << source.width - 1) - 1
    fraction = bits & (1 << source.mantissa_bits) - 1
    field = magnitude >> source.mantissa_bits
    exponent = max(field, 1)  # subnormals share the smallest normal number's
    significand = fraction | (wide(1 << source.mantissa_bits) if field != 0 else wide(0))
    # Numbers below the target's normal ones lose more bits, in the end all of them.
    lowest = source.bias - target.bias + 1  # exponent field of the target's smallest normal number
    above = max(exponent, lowest) - lowest
    below = min(lowest - min(exponent, lowest), target.mantissa_bits + 2)
    shorter = source.mantissa_bits - target.mantissa_bits
    dropped = below + shorter
    odd = significand >> (dropped & counts) & 1
    half = wide(1) << (dropped - 1 & counts)
    kept = significand + (half - 1 + odd) >> (dropped & counts)
    # A significand's leading bit, and a carry out of it, count in the exponent.
    code = min((above << target.mantissa_bits) + kept, target.max_code + 1)  # at most infinity
    nan = fraction >> shorter | target.nan_code
    code = nan if magnitude > source.max_code + 1 else code
    sign = bits - magnitude >> source.width - target.width
    return _BITS[target.width](code | sign)


@inline
def extended(bits, source, target):
    """Return the bits of a float in a format with more."""
    wide = _BITS[target.width]
    bits = wide(bits)
    magnitude = bits & (1 << source.width - 1) - 1
    longer = target.mantissa_bits - source.mantissa_bits
    rebias = (target.bias - source.bias) << target.mantissa_bits
    infinity = source.max_code + 1
    normal = (magnitude << longer) + rebias
    special = normal + rebias  # infinities and NaNs: all bits of the exponent are set
    code = special if magnitude >= infinity else normal
    code = special | 1 << target.mantissa_bits - 1 if magnitude > infinity else code  # NaNs are quiet
    if source.bias != target.bias:  # a subnormal is a normal number there: its first set bit becomes the leading one
        shift = leading_zeros(magnitude) - (target.width - target.mantissa_bits - 1)
        fraction = (magnitude << (shift & target.width - 1)) - (1 << target.mantissa_bits)
        exponent = (target.bias - source.bias + 1 + longer) - shift << target.mantissa_bits
        subnormal = exponent + fraction if magnitude != 0 else wide(0)
        code = subnormal if magnitude < 1 << source.mantissa_bits else code
    return code | bits - magnitude << target.width - source.width


def _define_conversion(name: str, source: str, target: str) -> None:
    origin = _FORMATS[source]
    result = _FORMATS[target]
    convert = truncated if origin.width > result.width else extended
    as_bits = [name.startswith("__gnu") and each.width == 16 for each in (origin, result)]

    def conversion(x):
        bits = convert(x if as_bits[0] else x.bitcast(_BITS[origin.width]), origin, result)
        return bits if as_bits[1] else bits.bitcast(_TYPES[target])

    types = [u16 if bits else _TYPES[each] for each, bits in zip((source, target), as_bits)]
    _export(conversion, name, *types)


def _export(function, name: str, source, result) -> None:
    function.__name__ = name
    function.__annotations__ = {"x": source, "return": result}
    floats.export(function)


for _name, _both in _CONVERSIONS.items():
    _define_conversion(_name, *_both)


def _define_wide(name: str, opposite: str, integer) -> None:
    """Define conversions between f16 and a 128-bit integer."""

    def from_wide(x):
        near = min(x, 65536)  # what is above all of them is infinite
        near = max(near, -65536) if integer.signed else near
        return truncated(f32(i32(near)).bitcast(u32), FLOAT32, FLOAT16).bitcast(Float16)

    def to_wide(x):
        """Convert toward zero; NaN and infinity give any integer."""
        near = i32(extended(x.bitcast(u16), FLOAT16, FLOAT32).bitcast(f32))
        return integer(near if integer.signed else u32(near))

    _export(from_wide, name, integer, Float16)
    _export(to_wide, opposite, Float16, integer)


_define_wide("__floattihf", "__fixhfti", Int128)
_define_wide("__floatuntihf", "__fixunshfti", Uint128)
