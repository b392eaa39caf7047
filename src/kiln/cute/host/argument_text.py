"""Descriptions of arguments in a line: `f16[m,n%8]@16`, for annotations of tensors and for `kiln export --arg`."""

from __future__ import annotations

import math
import re
from typing import Any, NamedTuple

from ...base_dsl.numeric.meta import TYPES
from .runtime import SymInt

ELEMENTS = {
    "bool": "Boolean",
    "bf16": "BFloat16",
    "tf32": "TFloat32",
    "f8e4m3": "Float8E4M3FN",
    "f8e5m2": "Float8E5M2",
    **{f"f{bits}": f"Float{bits}" for bits in (16, 32, 64)},
    **{f"i{bits}": f"Int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"Uint{bits}" for bits in (8, 16, 32, 64)},
}
"""Names of numeric types, by their short names here."""
_ARGUMENT = re.compile(r"([a-z0-9]+)(?:\[([^\]]*)\]|(\*))?(?:@([^\]@]*))?")
_EXTENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?:%(.*))?")
_MOST_EXTENT = (1 << 63) - 1
_MOST_ALIGNMENT = 1 << 30
_MOST_MODES = 32


class WrongText(Exception):
    """A description that breaks a rule; its text says which."""


class Described(NamedTuple):
    """What a description says."""

    dtype: Any
    shape: tuple[int | SymInt, ...] | None
    """The extents of a row-major tensor; None for a number or pointer."""
    is_pointer: bool
    alignment: int | None
    """The bytes that the address is a multiple of; None if the description says nothing."""


def described(text: str, symbols: dict[str, SymInt]) -> Described | None:
    """Return what a description says; None if it begins with no type. `symbols` are the named extents so far."""
    if split := re.search(r"\b\w+\s+\w+", text):
        raise WrongText(f"a name or a number is one word, and extents are separated by commas, not {split[0]!r}")
    match = _ARGUMENT.fullmatch(re.sub(r"\s", "", text))
    if match is None or match[1] not in ELEMENTS:
        return None
    kind = TYPES[ELEMENTS[match[1]]]
    align = None
    if match[4] is not None:
        align = _number(match[4], "an alignment", _MOST_ALIGNMENT)
        least = max(1, kind.width // 8)
        if match[2] is None and not match[3]:
            raise WrongText(f"a number has no address: @{match[4]} is for tensors and pointers")
        if align & (align - 1) or align < least:
            raise WrongText(f"an alignment is a power of two, {least} or more for {match[1]}, and not {align}")
    if match[2] is None:
        return Described(kind, None, bool(match[3]), align)
    shape = tuple(_extent(part, symbols) for part in match[2].split(",")) if match[2] else ()
    if len(shape) > _MOST_MODES:
        raise WrongText(f"{len(shape)} extents, and a tensor has {_MOST_MODES} at most")
    if math.prod(each for each in shape if isinstance(each, int)) > _MOST_EXTENT:
        raise WrongText("more elements than 64 bits count")
    return Described(kind, shape, False, align)


def _number(digits: str, what: str, most: int) -> int:
    """Return a positive number."""
    if not re.fullmatch("[0-9]{1,19}", digits) or not 0 < int(digits) <= most:
        raise WrongText(f"{what} is a number from 1 to {most}, and not {digits[:20]!r}")
    return int(digits)


def _extent(part: str, symbols: dict[str, SymInt]) -> int | SymInt:
    if part[:1].isdigit():
        return _number(part, "an extent", _MOST_EXTENT)
    match = _EXTENT.fullmatch(part)
    if match is None:
        raise WrongText(f"{part!r} is not an extent: write a number, a name, or a name%16")
    has_multiple = match[2] is not None
    multiple = _number(match[2], f"the divisor of {match[1]}", _MOST_ALIGNMENT) if has_multiple else 1
    symbol = symbols.setdefault(match[1], SymInt(divisibility=multiple))
    if has_multiple and multiple != symbol.divisibility:
        where = f"and of {symbol.divisibility} where it was named first: write {part} there"
        raise WrongText(f"{match[1]} is a multiple of {multiple} here, {where}")
    return symbol
