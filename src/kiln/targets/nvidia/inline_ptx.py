"""Forms of PTX as inline PTX of LLVM: operands are `$0`, `$1`, ..., results first, and have letters as constraints."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from ...ptx.form import Form


@dataclasses.dataclass(frozen=True)
class Literal:
    """What is written as it is: a number, or a name that the text around the instruction declares."""

    text: str


@dataclasses.dataclass(frozen=True)
class Result:
    """The place of a result, or of several in a vector."""


Written = str | Literal | Result | tuple[str | Literal, ...] | None
"""How an operand is written: the letter of a register, or several in a vector, or not at all (None)."""


@functools.lru_cache(maxsize=1024)
def inline_ptx(
    form: Form, fields: tuple[tuple[str, Any], ...], written: tuple[Written, ...], results: tuple[str, ...], around: str
) -> tuple[str, str]:
    """Return inline PTX and its constraints.

    `written` is in the order of the form's places, `results` are letters. Predicates are made of registers and
    registers of predicates, since LLVM passes none. `around` has `%s` where the instruction stands.
    """
    parts = dict(fields)
    letters = [f"={letter}" for letter in results]
    numbers = itertools.count()
    inputs = itertools.count(len(results))
    singles = sum(isinstance(each, Result) and place not in form.lists for place, each in zip(form.places, written))
    before = after = ""
    for place, each in zip(form.places, written, strict=True):
        if each is None:
            parts.setdefault(place.name, None)
        elif isinstance(each, Result):
            names = [f"${next(numbers)}" for _ in range(len(results) - singles if place in form.lists else 1)]
            parts[place.name] = names if place in form.lists else names[0]
            if place.type == "pred":
                parts[place.name] = "p"
                after = f" selp.u32 {names[0]}, 1, 0, p;"
        elif isinstance(each, tuple):
            parts[place.name] = [_spelled(part, letters, inputs) for part in each]
        else:
            parts[place.name] = _spelled(each, letters, inputs)
            if place.type == "pred" and not place.out:
                before = f"setp.ne.b32 p, {parts[place.name]}, 0; "
                parts[place.name] = "p"
    code = around.replace("%s", f"{form.text(parts)};")
    if before or after:
        code = f"{{ .reg .pred p; {before}{code}{after} }}"
    return code, ",".join(letters)


def _spelled(each: str | Literal, letters: list[str], inputs: Iterator[int]) -> str:
    """Return how an operand is spelled; a register gets the next number."""
    if isinstance(each, Literal):
        return each.text
    letters.append(each)
    return f"${next(inputs)}"
