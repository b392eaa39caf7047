"""The base of GEMM configs: frozen dataclasses of extents, counts and flags."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...dispatch import arrays


@dataclasses.dataclass(frozen=True)
class GemmConfig:
    """Checks the types of a config's fields, and its rules."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, default = getattr(self, field.name), field.default
            if isinstance(default, tuple):
                count = len(default)
                fits = isinstance(value, tuple) and len(value) == count and all(type(v) is int and v > 0 for v in value)
                kind = f"{count} positive integers"
            elif isinstance(default, bool):
                fits, kind = isinstance(value, bool), "True or False"
            else:
                fits, kind = type(value) is int and value > 0, "a positive integer"
            if not fits:
                raise arrays.refusal(f"{type(self).__name__}: {field.name} is {value!r}; it must be {kind}")

    def require(self, *rules: tuple[Any, ...]) -> None:
        """Refuse the config by the first of some rules that does not hold: (whether it holds, the rule, a hint)."""
        for holds, rule, *hint in rules:
            arrays.require(holds, f"{self}: {rule}", *hint)
