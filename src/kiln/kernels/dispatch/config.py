"""The base of configs: frozen dataclasses of extents, counts and flags, each with one list of rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from . import arrays

_MAX_COUNT = (1 << 31) - 1


class Rule(NamedTuple):
    """What must hold for a config to work."""

    holds: bool
    text: str
    """The rule, with the values that break it; an error puts the config before it."""
    hint: str = ""


@dataclasses.dataclass(frozen=True)
class Config:
    """How a problem is computed. It refuses values that are of no use in any problem when it is made; `rules` of a
    subclass are those that a problem and a device add."""

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

    def rules(self, *of: Any, **options: Any) -> Iterable[Rule]:
        """Return the rules for what a subclass needs of a problem and a device. Each may rely on those before it."""
        return ()

    def check(self, *of: Any, **options: Any) -> None:
        """Raise if the config breaks one of its rules."""
        require(self, self.rules(*of, **options))

    def multiples(self, unit: int, most: int, *names: str) -> Iterator[Rule]:
        """Yield rules that fields are multiples of `unit`, up to `most`."""
        for name in names:
            value = getattr(self, name)
            yield Rule(value % unit == 0 and value <= most, f"{name} must be a multiple of {unit}, up to {most}")

    def fits_smem(self, used: int, capacity: int, hint: str, what: str = "") -> Rule:
        """Return the rule that a CTA has the shared memory that it needs `what` for."""
        return Rule(used <= capacity, f"it takes {used} bytes of shared memory{what}, and a CTA has {capacity}", hint)


def whole_warps(threads: int) -> Rule:
    """Return the rule that a CTA can have so many threads."""
    text = f"threads is {threads!r}, and must be 32 to 1024, in whole warps of 32"
    return Rule(32 <= threads <= 1024 and threads % 32 == 0, text)


def require(config: Any, rules: Iterable[Rule]) -> None:
    """Raise the first of some rules that does not hold."""
    for rule in rules:
        if not rule.holds:
            raise arrays.refusal(f"{config}: {rule.text}", rule.hint)


def _is_count(value: Any, least: int) -> bool:
    """Return whether a value is an integer of 32 bits that is not below `least`."""
    return type(value) is int and least <= value <= _MAX_COUNT
