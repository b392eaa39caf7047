"""Elements as whole numbers in the same order."""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32, Uint32, select_

_SIGN = 0x80000000
NOT_A_NUMBER = 0xFFFFFFFF
"""What stands for all that is not a number: it comes before all others."""
LOWEST = 0x007FFFFF
"""What stands for minus infinity."""


def order(value: Any) -> Any:
    """A number whose order is that of f32: all but 0, which stands for what is not there."""
    bits = Int32((value + 0.0).bitcast(Int32))  # there is one zero
    return select_(value == value, Uint32(bits) ^ (Uint32(bits >> 31) | _SIGN), Uint32(NOT_A_NUMBER))


def from_order(key: Any) -> Any:
    """The opposite; what stands for no number is one."""
    return select_((key & _SIGN) != 0, key ^ _SIGN, ~key).bitcast(Float32)
