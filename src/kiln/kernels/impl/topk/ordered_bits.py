"""Floats as integers of the same order."""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Uint32, select_

_SIGN = 0x80000000
NAN_KEY = 0xFFFFFFFF
"""The key of NaN, which comes before all others."""
LOWEST = 0x007FFFFF
"""The key of minus infinity."""


def order(value: Float32) -> Uint32:
    """Return the key of an f32, ordered as the values; 0 is left for elements that do not exist."""
    bits = Int32((value + 0.0).bitcast(Int32))  # there is one zero
    return select_(value == value, Uint32(bits) ^ (Uint32(bits >> 31) | _SIGN), Uint32(NAN_KEY))


def from_order(key: Any) -> Float32:
    """Return the value of a key; NaN for that of NaN."""
    return select_((key & _SIGN) != 0, key ^ _SIGN, ~key).bitcast(Float32)
