"""The base of configs: frozen dataclasses of extents, counts and flags, which check themselves."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from . import arrays

_MAX_COUNT = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class Config:
    """How a problem is computed. It refuses values that are of no use in any problem when it is made; `check` of a
    subclass refuses those that cannot work for a problem."""

    may_be_zero: ClassVar[tuple[str, ...]] = ()
    """Integer fields that may be 0; all others are positive."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            default = field.default
            if isinstance(default, tuple):
                fits = isinstance(value, tuple) and len(value) == len(default) and all(_is_count(x, 1) for x in value)
                kind = f"{len(default)} positive integers"
            elif isinstance(default, bool):
                fits = isinstance(value, bool)
                kind = "True or False"
            else:
                least = 0 if field.name in self.may_be_zero else 1
                fits = _is_count(value, least)
                kind = "0 or a positive integer" if least == 0 else "a positive integer"
            if not fits:
                raise arrays.refusal(f"{type(self).__name__}: {field.name} is {value!r}; it must be {kind}")

    def require(self, *rules: tuple[Any, ...]) -> None:
        """Refuse the config by the first of some rules that does not hold: (whether it holds, the rule, a hint)."""
        for holds, rule, *hint in rules:
            arrays.require(holds, f"{self}: {rule}", *hint)


def _is_count(value: Any, least: int) -> bool:
    """Return whether a value is an integer of 32 bits that is not below `least`."""
    return type(value) is int and least <= value <= _MAX_COUNT
