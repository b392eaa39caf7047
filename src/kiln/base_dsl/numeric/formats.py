"""Binary floating-point formats on plain Python floats: rounding to a format, and its bit patterns.

This is the definition that the IR expansion in `expand` is tested against. Rounding is to nearest, ties to even.
Formats of eight bits and fewer saturate: a value beyond the largest finite one, infinity included, becomes the
largest finite one (what the hardware's `cvt...satfinite` does). See `docs/numeric-types.md`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Literal

NanEncoding = Literal["ieee", "all_ones", "negative_zero", "none"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False, match_args=False)
class FloatFormat:
    """Fields of a format. `saturates`: overflow gives the largest finite value instead of infinity.

    `unused_low_bits` pads a value on the right in memory (tf32 is an f32 whose last 13 bits are zero).
    Without a sign, a negative value has no representation: a power of two becomes NaN, other formats drop the sign.
    """

    exponent_bits: int
    mantissa_bits: int
    bias: int
    has_inf: bool = True
    nan: NanEncoding = "ieee"
    saturates: bool = False
    signed: bool = True
    unused_low_bits: int = 0

    @functools.cached_property
    def width(self) -> int:
        return int(self.signed) + self.exponent_bits + self.mantissa_bits + self.unused_low_bits

    @functools.cached_property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; subnormals share it."""
        return (1 if self.mantissa_bits else 0) - self.bias

    @functools.cached_property
    def max_code(self) -> int:
        """Bit pattern of the largest finite value, sign and padding left out."""
        top = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        if self.has_inf:
            return top - (1 << self.mantissa_bits)
        return top - 1 if self.nan == "all_ones" else top

    @functools.cached_property
    def nan_code(self) -> int:
        """Bit pattern of the canonical NaN, padding left out. Only where there is one."""
        if self.nan == "negative_zero":
            return 1 << (self.exponent_bits + self.mantissa_bits)
        if self.nan == "all_ones":
            return (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        infinity = ((1 << self.exponent_bits) - 1) << self.mantissa_bits
        return infinity | (1 << (self.mantissa_bits - 1))

    @functools.cached_property
    def max(self) -> float:
        """The largest finite value."""
        return self._decode_magnitude(self.max_code)

    @functools.cached_property
    def least_beyond(self) -> int | float:
        """The least number that does not round to a finite one, or only because the format saturates."""
        if not self.mantissa_bits:
            return 1.5 * self.max
        step = math.frexp(self.max)[1] - 1 - self.mantissa_bits
        if self.exponent_bits == 11:  # beyond the numbers of Python's own floats
            return int(self.max) + (1 << step - 1)
        halfway = self.max + math.ldexp(1.0, step - 1)
        return halfway if self.max_code & 1 else math.nextafter(halfway, math.inf)

    def has(self, value: int | float) -> bool:
        """Return whether a number, rounded to the format, is one of its numbers; so are infinities and NaN it has."""
        least = self.least_beyond
        if -least < value < least:
            return self.signed or value >= 0
        if value - value == 0:  # finite
            return False
        return self.nan != "none" if value != value else self.has_inf and not self.saturates

    @functools.cached_property
    def smallest(self) -> float:
        """The smallest positive value."""
        return self._decode_magnitude(1 if self.mantissa_bits else 0)

    @property
    def precision(self) -> int:
        """Significant bits of a normal number."""
        return self.mantissa_bits + 1

    def contains(self, other: FloatFormat) -> bool:
        """Return whether every finite value of `other` is exactly a value of this format."""
        if other.signed and not self.signed:
            return False
        if not self.mantissa_bits and other.mantissa_bits:
            return False
        if other.smallest < self.smallest or other.max > self.max or other.precision > self.precision:
            return False
        if not self.mantissa_bits:  # powers of two only, without zero
            return self == other
        # The finest step must not be finer than ours (subnormals have the smallest step).
        return other.min_exponent - other.mantissa_bits >= self.min_exponent - self.mantissa_bits

    def _decode_magnitude(self, code: int) -> float:
        exponent = code >> self.mantissa_bits
        mantissa = code & ((1 << self.mantissa_bits) - 1)
        if not self.mantissa_bits:
            return math.ldexp(1.0, exponent - self.bias)
        if exponent == 0:
            return math.ldexp(mantissa, self.min_exponent - self.mantissa_bits)
        return math.ldexp(mantissa + (1 << self.mantissa_bits), exponent - self.bias - self.mantissa_bits)

    def round(self, value: float) -> float:
        """Return the nearest value of the format."""
        if value != value:
            return self.max if self.nan == "none" else math.nan
        magnitude = abs(value)
        if not self.mantissa_bits:
            if value < 0:
                return math.nan
            return self._round_power_of_two(magnitude)
        if not self.signed:
            value = magnitude
        if magnitude == 0.0:
            return 0.0 if self.nan == "negative_zero" else value
        if magnitude > 2 * self.max:
            rounded = math.inf
        else:
            step = max(math.frexp(magnitude)[1] - 1, self.min_exponent) - self.mantissa_bits
            # Scaling by a power of two is exact here: the quotient has at most 53 significant bits.
            rounded = math.ldexp(float(round(math.ldexp(magnitude, -step))), step)
        if rounded > self.max:
            rounded = self.max if self.saturates else math.inf
        if rounded == 0.0 and self.nan == "negative_zero":
            return 0.0
        return math.copysign(rounded, value)

    def _round_power_of_two(self, magnitude: float) -> float:
        """Round to the nearest power of two (ties go up), clamped to the range of the format."""
        if magnitude <= self.smallest:
            return self.smallest
        if magnitude >= self.max:
            return self.max
        mantissa, exponent = math.frexp(magnitude)
        return math.ldexp(1.0, exponent if mantissa >= 0.75 else exponent - 1)

    def encode(self, value: float) -> int:
        """Return the bit pattern of a value of the format (round first)."""
        if value != value:
            return self.nan_code << self.unused_low_bits
        sign = 1 if math.copysign(1.0, value) < 0 and self.signed else 0
        magnitude = abs(value)
        if magnitude == math.inf:
            code = ((1 << self.exponent_bits) - 1) << self.mantissa_bits
        elif not self.mantissa_bits:
            code = math.frexp(magnitude)[1] - 1 + self.bias
        elif magnitude == 0.0:
            code = 0
            sign = 0 if self.nan == "negative_zero" else sign
        else:
            exponent = max(math.frexp(magnitude)[1] - 1, self.min_exponent)
            significand = int(math.ldexp(magnitude, self.mantissa_bits - exponent))
            code = ((exponent + self.bias - 1) << self.mantissa_bits) + significand
        return (code | sign << (self.exponent_bits + self.mantissa_bits)) << self.unused_low_bits

    def decode(self, bits: int) -> float:
        """Return the value of a bit pattern."""
        bits >>= self.unused_low_bits
        magnitude_bits = self.exponent_bits + self.mantissa_bits
        code = bits & ((1 << magnitude_bits) - 1)
        negative = self.signed and bool(bits >> magnitude_bits & 1)
        if self.nan == "negative_zero" and bits == self.nan_code:
            return math.nan
        if code > self.max_code:
            mantissa = code & ((1 << self.mantissa_bits) - 1)
            if self.has_inf and mantissa == 0:
                return -math.inf if negative else math.inf
            return math.nan
        value = self._decode_magnitude(code)
        return -value if negative else value


def float_of_int(value: int) -> float:
    """Return `value` as a float whose later rounding to 51 bits or fewer is the rounding of `value` itself."""
    magnitude = abs(value)
    excess = magnitude.bit_length() - 53
    if excess <= 0:
        return float(value)
    kept = magnitude >> excess
    if magnitude & ((1 << excess) - 1):
        kept |= 1  # round to odd: the lost bits stay visible to the next rounding
    if kept.bit_length() + excess > 1024:
        return -math.inf if value < 0 else math.inf
    return math.copysign(math.ldexp(kept, excess), value)


FLOAT64 = FloatFormat(11, 52, 1023)
FLOAT32 = FloatFormat(8, 23, 127)
TFLOAT32 = FloatFormat(8, 10, 127, unused_low_bits=13)
FLOAT16 = FloatFormat(5, 10, 15)
BFLOAT16 = FloatFormat(8, 7, 127)
FLOAT8_E5M2 = FloatFormat(5, 2, 15, saturates=True)
FLOAT8_E4M3 = FloatFormat(4, 3, 7, saturates=True)
FLOAT8_E4M3FN = FloatFormat(4, 3, 7, has_inf=False, nan="all_ones", saturates=True)
FLOAT8_E4M3B11FNUZ = FloatFormat(4, 3, 11, has_inf=False, nan="negative_zero", saturates=True)
FLOAT8_E5M3FNU = FloatFormat(5, 3, 15, has_inf=False, nan="all_ones", saturates=True, signed=False)
FLOAT8_E8M0FNU = FloatFormat(8, 0, 127, has_inf=False, nan="all_ones", saturates=True, signed=False)
FLOAT6_E3M2FN = FloatFormat(3, 2, 3, has_inf=False, nan="none", saturates=True)
FLOAT6_E2M3FN = FloatFormat(2, 3, 1, has_inf=False, nan="none", saturates=True)
FLOAT4_E2M1FN = FloatFormat(2, 1, 1, has_inf=False, nan="none", saturates=True)
