"""Division by an invariant divisor: a multiplication and shifts in place of a division.

A scheduler that turns tile numbers into coordinates divides by extents that are fixed for a launch. The multiplier of
such a division is computed once, on the host, where a division is cheap, and passed to the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...base_dsl.bindings import ir
from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Integer, Uint32, Uint64
from ..arch.arithmetic import clz, mul_hi

__all__ = ["FastDivmodDivisor", "FastDivmodDivisorV2", "fast_divmod_create_divisor", "fast_divmod_create_divisor_v2"]


class FastDivmodDivisor:
    """A divisor of 32 bits: `x // d`, `x % d` and `divmod(x, d)` for x >= 0, with the quotient in the type of x.

    It is one 64-bit value: the divisor, and above it the number that dividends are multiplied with. The divisor is at
    least 1.
    """

    __kiln_immutable__ = True
    __slots__ = ("_divisor", "_packed")

    def __init__(self, divisor: Any, is_power_of_2: bool | None = None) -> None:
        kind = type(divisor) if isinstance(divisor, Integer) else None
        if kind is None and not isinstance(divisor, int):
            raise type_error(f"a divisor is an integer, got {type(divisor).__name__}")
        if kind is not None and kind.width != 32:
            raise type_error(
                f"FastDivmodDivisor takes an integer of 32 bits, got {kind.__name__}", "convert it: Int32(x)"
            )
        if isinstance(divisor, int) and not 1 <= divisor < 1 << 31:
            raise type_error(f"a divisor is at least 1 and below 2**31, got {divisor}")
        self._divisor = divisor
        narrow = Uint32(divisor)
        # With 2**(bits - 1) < d <= 2**bits, n // d is the upper half of n * (2**32 * (2**bits - d) // d + 1), corrected.
        above = (Uint64(1) << Uint64(_bits(narrow))) - Uint64(narrow)
        multiplier = (above << 32) // Uint64(narrow) + 1
        self._packed = (multiplier << 32) | Uint64(narrow)

    @property
    def divisor(self) -> Any:
        """The number divided by."""
        return self._divisor

    def _quotient(self, dividend: Any) -> tuple[Any, Any]:
        """Return the dividend, typed, and the quotient."""
        if isinstance(dividend, int):
            dividend = type(self._divisor)(dividend) if isinstance(self._divisor, Integer) else Uint32(dividend)
        kind = type(dividend)
        if not isinstance(dividend, Integer) or kind.width > 32:
            raise type_error(f"a dividend of FastDivmodDivisor is an integer of up to 32 bits, got {kind.__name__}")
        number = Uint32(dividend)
        divisor = Uint32(self._packed)
        bits = _bits(divisor)
        high = mul_hi(number, Uint32(self._packed >> 32))
        one = Uint32(bits != 0)  # the first shift: 1, or 0 for a divisor of 1
        quotient = (high + ((number - high) >> one)) >> (bits - one)
        # no more than the dividend, which is not negative
        return dividend, kind(quotient)._assume(nonneg=True)

    def __rdivmod__(self, dividend: Any) -> tuple[Any, Any]:
        dividend, quotient = self._quotient(dividend)
        return quotient, dividend - quotient * type(dividend)(Uint32(self._packed))

    def __rfloordiv__(self, dividend: object) -> Any:
        return self._quotient(dividend)[1]

    def __rmod__(self, dividend: object) -> Any:
        return self.__rdivmod__(dividend)[1]

    def __str__(self) -> str:
        return f"FastDivmodDivisor({self._divisor})"

    __repr__ = __str__

    def __extract_mlir_values__(self) -> list[ir.Value]:
        return [self._packed.ir_value()]

    def __new_from_mlir_values__(self, values: Sequence[object]) -> FastDivmodDivisor:
        rebuilt = object.__new__(FastDivmodDivisor)
        rebuilt._packed = Uint64._make(values[0])
        kind: Any = type(self._divisor) if isinstance(self._divisor, Integer) else Uint32
        rebuilt._divisor = self._divisor if isinstance(self._divisor, int) else kind(Uint32(rebuilt._packed))
        return rebuilt

    def __get_mlir_types__(self) -> list[ir.Type]:
        return [Uint64.mlir_type]

    def __kiln_static_key__(self) -> Any:
        return self._divisor if isinstance(self._divisor, int) else type(self._divisor)

    def __kiln_join__(self, other: FastDivmodDivisor) -> tuple[FastDivmodDivisor, FastDivmodDivisor]:
        """Return both as they are if they agree, else as divisors that are only known when the program runs."""
        keys = self.__kiln_static_key__(), other.__kiln_static_key__()
        if keys[0] == keys[1]:
            return self, other
        kinds = {key for key in keys if not isinstance(key, int)}
        kind = kinds.pop() if len(kinds) == 1 else Uint32
        return self._dynamic(kind), other._dynamic(kind)

    def __kiln_coerce__(self, like: FastDivmodDivisor) -> FastDivmodDivisor | None:
        first, second = like.__kiln_join__(self)
        return second if first.__kiln_static_key__() == like.__kiln_static_key__() else None

    def _dynamic(self, kind: Any) -> FastDivmodDivisor:
        """Return the divisor with a type in place of its number, which rebuilding reads from the packed value."""
        divisor = object.__new__(FastDivmodDivisor)
        divisor._packed = self._packed
        divisor._divisor = kind._make(0)
        return divisor


def _bits(divisor: Any) -> Any:
    """Return how many doublings of 1 reach the divisor."""
    return 32 - clz(divisor - 1)


def fast_divmod_create_divisor(divisor: object, *, loc: object = None, ip: object = None) -> FastDivmodDivisor:
    """Return a divisor by which kernels divide with a multiplication and shifts, made on the host.

    Args:
        divisor: an integer from 1 to 2**31 - 1, static or of 32 bits.
    """
    return FastDivmodDivisor(divisor)


FastDivmodDivisorV2 = FastDivmodDivisor
fast_divmod_create_divisor_v2 = fast_divmod_create_divisor
