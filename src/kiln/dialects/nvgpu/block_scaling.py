"""Accumulation of block-scaled narrow floats in plain Python: an element of D of one MMA with scale factors.

PTX leaves order and rounding open. This is the model of MMA-Sim (arXiv 2511.10909), whose authors compared
it with Blackwell GPUs; corners that it does not state are marked below. All terms of an element of D are added at once:
each is cut off (towards zero) F bits below the largest exponent among the terms that are not 0, the sum of these is
exact, and it is cut off to f32.

- kind mxf8f6f4: a term for each pair of elements, and C. The exponent of a term is the sum of its factors' (that of the
  smallest normal number for subnormal ones) and of both scale factors'. F is 25.
- kinds mxf4 and mxf4nvf4: a term for each dot product of 16 elements, which is exact, times both scale factors, and C.
  Its exponent is the sum of the scale factors' (of ue4m3 at least -6). F is 35.

A NaN among factors, scale factors or C, infinity minus infinity and infinity times 0 give NaN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

FORMATS = {
    "e4m3": (4, 3),
    "e5m2": (5, 2),
    "e3m2": (3, 2),
    "e2m3": (2, 3),
    "e2m1": (2, 1),
    "ue8m0": (8, 0),
    "ue4m3": (4, 3),
}
"""Bits of exponent and fraction."""


def decode(kind: str, code: int) -> float:
    """Return the number that the bits of a narrow float or a scale factor are. Scale factors have no sign: the highest
    bit of ue4m3 is ignored."""
    exponent_bits, fraction_bits = FORMATS[kind]
    bias = (1 << exponent_bits - 1) - 1
    if kind == "ue8m0":
        return math.nan if code == 255 else 2.0 ** (code - bias)
    sign = -1.0 if code >> exponent_bits + fraction_bits & 1 and kind != "ue4m3" else 1.0
    field = code >> fraction_bits & (1 << exponent_bits) - 1
    fraction = code & (1 << fraction_bits) - 1
    if kind in ("e4m3", "ue4m3") and (field, fraction) == (15, 7):
        return math.nan
    if kind == "e5m2" and field == 31:
        return math.nan if fraction else sign * math.inf
    significand = fraction + (1 << fraction_bits if field else 0)
    return sign * significand * 2.0 ** (max(field, 1) - bias - fraction_bits)


def _exponent(value: float, kind: str) -> int:
    """Return e with 1 <= |value| / 2^e < 2, at least that of the smallest normal number."""
    least = {"f32": -126, "ue8m0": -127}.get(kind)
    if least is None:
        least = 2 - (1 << FORMATS[kind][0] - 1)
    return max(math.frexp(value)[1] - 1, least)


def _cut(value: Fraction, step: int) -> Fraction:
    """Return a number cut off towards zero to a multiple of 2^step."""
    unit = Fraction(2) ** step
    return math.trunc(value / unit) * unit


def _sum(terms: Sequence[tuple[Fraction, int]], fraction: int) -> float:
    """Return the sum of terms with their exponents, cut off to f32."""
    terms = [(value, exponent) for value, exponent in terms if value]
    if not terms:
        return 0.0
    largest = max(exponent for _, exponent in terms)
    total = sum((_cut(value, largest - fraction) for value, _ in terms), Fraction(0))
    if not total:
        return 0.0
    top = total.numerator.bit_length() - total.denominator.bit_length()
    top -= abs(total) < Fraction(2) ** top
    if top > 127:
        return math.copysign(math.inf, total)
    return float(_cut(total, max(top, -126) - 23))


def scaled_sum(
    kind: str,
    types: tuple[str, str, str],
    vector: int,
    a: Sequence[float],
    b: Sequence[float],
    c: float,
    scale_a: Sequence[float],
    scale_b: Sequence[float],
) -> float:
    """Return an element of D: the sum of a[k] scale_a[k / vector] b[k] scale_b[k / vector] and c.

    `types` are those of A, B and the scale factors. Overflow is infinite; a sum of 0 is positive. That terms of 0
    have no exponent is measured for `mma.sync` of bf16 on an H200, and assumed here.
    """
    a_type, b_type, scale_type = types
    special = [c]
    special += [x * y * scale_a[k // vector] * scale_b[k // vector] for k, (x, y) in enumerate(zip(a, b, strict=True))]
    if any(map(math.isnan, (*special, *scale_a, *scale_b))):
        return math.nan
    if any(map(math.isinf, (*a, *b, c))):
        return sum(x for x in special if math.isinf(x))
    terms = [(Fraction(c), _exponent(c, "f32"))]
    if kind == "mxf8f6f4":
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            p = scale_a[k // vector]
            q = scale_b[k // vector]
            exponents = _exponent(x, a_type), _exponent(y, b_type), _exponent(p, scale_type), _exponent(q, scale_type)
            terms.append((Fraction(x) * Fraction(y) * Fraction(p) * Fraction(q), sum(exponents)))
        return _sum(terms, 25)
    for k in range(0, len(a), 16):
        p = scale_a[k // vector]
        q = scale_b[k // vector]
        exact = sum((Fraction(x) * Fraction(y) for x, y in zip(a[k : k + 16], b[k : k + 16], strict=True)), Fraction(0))
        exponent = _exponent(p, scale_type) + _exponent(q, scale_type)
        terms.append((exact * Fraction(p) * Fraction(q), exponent))
    return _sum(terms, 35)
