"""Fix-ups of LLVM IR text between the two LLVMs: the MLIR bindings print with a newer one than llvmlite reads with.

The newer printer writes floating-point literals in forms the older reader rejects (`f0x45EE6D24`, `+qnan`, `-inf`,
`+nan(0x1)`, decimals that are not exact); every literal becomes a bit pattern, by the type that precedes it.
"""

from __future__ import annotations

import functools
import re

_FORMATS = {"half": (5, 10), "bfloat": (8, 7), "float": (8, 23), "double": (11, 52)}
"""Bits of exponent and of fraction."""

# what can stand for a number; the sign is always printed before names
_LITERAL = r"[-+]?\d+\.\d*(?:[eE][-+]?\d+)?|f0x[0-9A-Fa-f]+|[-+](?:inf\b|qnan\b|s?nan\(0x[0-9A-Fa-f]+\))"
_HINTS = tuple(map(re.compile, (r"\.[\deE,)>\]\s]", "f0x", "inf", "nan")))
_ANY_LITERAL = re.compile(rf"[\s(\[<,](?:{_LITERAL})")
_TOKEN = re.compile(rf'"[^"]*"|;.*|[%@!$#][-\w.$]+|\b(half|bfloat|float|double)\b|(?<![\w.])({_LITERAL})')


def fix_float_literals(text: str) -> str:
    """Rewrite the floating-point literals of a module's text as bit patterns every LLVM reads."""
    # Few lines have any. What every literal has in it is looked for first: a search for plain characters is quick.
    starts = {text.rfind("\n", 0, match.start()) + 1 for hint in _HINTS for match in hint.finditer(text)}
    fixed: list[str] = []
    done = 0
    for start in sorted(starts):
        end = text.find("\n", start)
        line = text[start:] if end < 0 else text[start:end]
        if _ANY_LITERAL.search(line):
            fixed += (text[done:start], _fix_line(line))
            done = start + len(line)
    return "".join([*fixed, text[done:]])


def _fix_line(line: str) -> str:
    kind = ""

    def replace(match: re.Match[str]) -> str:
        nonlocal kind
        if match.group(1):
            kind = match.group(1)
        elif match.group(2) and kind:
            return _spell(kind, literal_bits(kind, match.group(2)))
        return match.group(0)

    return _TOKEN.sub(replace, line)


@functools.lru_cache(maxsize=65536)
def literal_bits(kind: str, literal: str) -> int:
    """Return the bit pattern of a literal of type `kind` (half, bfloat, float, double)."""
    exponent_bits, fraction_bits = _FORMATS[kind]
    if literal.startswith("f0x"):
        return int(literal[3:], 16)
    sign = int(literal.startswith("-")) << (exponent_bits + fraction_bits)
    digits = literal.lstrip("+-")
    infinity = ((1 << exponent_bits) - 1) << fraction_bits
    quiet = 1 << (fraction_bits - 1)
    if digits == "inf":
        return sign | infinity
    if digits == "qnan":
        return sign | infinity | quiet
    if digits.startswith("snan("):
        return sign | infinity | int(digits[5:-1], 16)
    if digits.startswith("nan("):
        return sign | infinity | quiet | int(digits[4:-1], 16)
    return sign | _round(digits, exponent_bits, fraction_bits)


def _round(digits: str, exponent_bits: int, fraction_bits: int) -> int:
    """Return the bits of the nearest number, ties to even. It is not negative."""
    from fractions import Fraction  # few modules have such literals

    value = Fraction(digits)
    if value == 0:
        return 0
    bias = (1 << (exponent_bits - 1)) - 1
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    if value < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, 1 - bias)  # below it numbers are subnormal: the spacing stays
    steps = round(value / Fraction(2) ** (exponent - fraction_bits))  # Fraction rounds halves to even
    # a carry out of the fraction runs into the exponent, as it should
    return ((exponent + bias - 1) << fraction_bits) + steps


def _spell(kind: str, bits: int) -> str:
    if kind == "half":
        return f"0xH{bits:04X}"
    if kind == "bfloat":
        return f"0xR{bits:04X}"
    if kind == "double":
        return f"0x{bits:016X}"
    return f"0x{_float_as_double(bits):016X}"  # LLVM writes a float as the double of the same value


def _float_as_double(bits: int) -> int:
    sign = bits >> 31
    exponent = bits >> 23 & 0xFF
    fraction = bits & 0x7FFFFF
    if exponent == 0xFF:
        wide_exponent = 0x7FF
    elif exponent:
        wide_exponent = exponent - 127 + 1023
    elif fraction:  # subnormal as a float, normal as a double
        shift = 24 - fraction.bit_length()
        fraction = fraction << shift & 0x7FFFFF
        wide_exponent = 1023 - 126 - shift
    else:
        wide_exponent = 0
    return sign << 63 | wide_exponent << 52 | fraction << 29


_BF16 = re.compile(r'"[^"]*"|[%@!$#][-\w.$]+|\bbfloat\b|\b0xR([0-9A-Fa-f]{4})\b')


def bf16_as_integers(text: str) -> str:
    """Return a module whose bf16 values are 16-bit integers instead; nothing in it computes with them.

    A processor without registers for bf16 gets code that moves such values through f32, by a function call each, and
    makes signaling NaNs quiet: other data that only passes as bf16 would change.
    """
    if "bfloat" not in text:
        return text
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if "bf" in line:
            lines[number] = _BF16.sub(_as_integer, line)
    return "\n".join(lines)


def _as_integer(match: re.Match[str]) -> str:
    token = match.group()
    if match.group(1):
        return str(int(match.group(1), 16))
    if token.startswith("@llvm."):
        return token.replace("bf16", "i16")
    return "i16" if token == "bfloat" else token


_CALL = re.compile(r"\bcall\b")
_METADATA = re.compile(r"((?:, ![a-z.]+ !\d+)*)\s*$")
_CONVERGENT = "900"


def mark_asm_convergent(text: str) -> str:
    """Make every inline assembly call convergent: MLIR cannot say so, and LLVM may duplicate a barrier that is not."""
    parts: list[str] = []
    done = 0
    asm = text.find(" asm ")
    while asm >= 0:
        # of the line
        start = text.rfind("\n", 0, asm) + 1
        end = text.find("\n", asm)
        end = len(text) if end < 0 else end
        closed = text.rfind(")", asm, end) + 1  # behind the arguments
        metadata = _METADATA.match(text, closed, end) if closed and _CALL.search(text, start, asm) else None
        if metadata:
            parts += (text[done:closed], f" #{_CONVERGENT}", metadata.group(1))
            done = end
        asm = text.find(" asm ", end)
    if parts:
        parts += (text[done:], f"\nattributes #{_CONVERGENT} = {{ convergent nounwind }}\n")
    return "".join(parts) or text
