"""The types of mixed numbers, against those that CuTe DSL 4.8.1 was seen to give (`observed_types.txt`).

Where Kiln's are others, `docs/numeric-types.md` has a line for the rule: the rules here are those lines.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kiln
from kiln import cute
from kiln.base_dsl.typing import dtype

OPERATORS = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv, "%": operator.mod,
    "**": operator.pow, "<": operator.lt, "==": operator.eq, "&": operator.and_, "<<": operator.lshift, ">>": operator.rshift,
}  # fmt: skip
SHORT = {"b1": "Boolean", "!": "TypeError", "!!": "ValueError"}
LONG = (("bf", "BFloat"), ("f", "Float"), ("u", "Uint"), ("i", "Int"))
PYTHON: dict[str, Any] = {"2": 2, "2.5": 2.5, "True": True}


def long_name(text: str) -> str:
    for short, name in LONG:
        if text.startswith(short):
            return name + text.removeprefix(short)
    return SHORT[text]


def observed(wanted: str) -> dict[str, list[tuple[str, str, str]]]:
    """By operator: left side, right side, the type of the result."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    lines: Iterator[str] = iter((Path(__file__).parent / "observed_types.txt").read_text().splitlines()[1:])
    kind, name, columns = "", "", []
    for line in filter(None, lines):
        first, *rest = line.split()
        if first in ("scalars", "vectors"):
            kind, name = first, rest[0]
        elif first == "_":
            columns = rest
        elif kind == wanted:
            cells = zip(columns, rest, strict=True)
            found.setdefault(name, []).extend((first, column, long_name(c)) for column, c in cells if c != "-")
    return found


def expected(name: str, a: str, b: str, there: str) -> str | None:
    """What Kiln gives; None: a number, which there is an error."""
    wide = [t for t in (a, b) if t.endswith("64")]
    if name in ("<<", ">>") and there == "ValueError":
        return "TypeError"  # as Python's, for a shift of a float
    if name == "**" and a in PYTHON and there == "TypeError":
        return None  # a Python number to the power of a typed one
    if there == "Boolean" and name not in ("&", "<", "=="):
        return "Int32"  # Booleans count as integers in arithmetic
    if name == "/" and there == "Float32" and wide:
        return "Float64"  # integers of 64 bits, divided
    if there == "Float16" and "BFloat16" in (a, b):
        return "Float32"  # which has all values of both
    return there


def test_how_much_was_observed() -> None:
    assert sum(map(len, observed("scalars").values())) > 2300
    assert sum(map(len, observed("vectors").values())) > 500


@pytest.mark.parametrize("name", OPERATORS)
def test_scalars(name: str) -> None:
    """Plain values outside a trace, and values of the program."""
    facts = observed("scalars")[name]

    def check(where: str) -> list[str]:
        wrong: list[str] = []
        for a, b, there in facts:
            x, y = (PYTHON[t] if t in PYTHON else dtype(t)(1) for t in (a, b))
            try:
                found: str | None = type(OPERATORS[name](x, y)).__name__
            except TypeError:
                found = "TypeError"
            wanted = expected(name, a, b, there)
            if found != wanted and (wanted is not None or found == "TypeError"):
                wrong.append(f"{where}: {a} {name} {b} is {found}, expected {wanted}")
        return wrong

    traced: list[str] = []

    @cute.jit
    def f():
        traced.extend(check("traced"))

    with kiln.target("cpu"):
        cute.compile(f)
    assert check("plain") + traced == []


@pytest.mark.parametrize("name", ["+", "*", "/", "<"])
def test_vectors(name: str) -> None:
    facts = observed("vectors")[name]
    wrong: list[str] = []

    @cute.jit
    def f():
        for a, b, there in facts:
            x, y = (PYTHON[t] if t in PYTHON else cute.full((2,), 1, dtype(t)) for t in (a, b))
            found = OPERATORS[name](x, y).dtype.__name__
            # `/` of integers is an integer there and here
            if found != expected(
                "/" if name == "/" and "Float" in there else "+" if name == "/" else name, a, b, there
            ):
                wrong.append(f"{a} {name} {b} is {found}, there {there}")

    with kiln.target("cpu"):
        cute.compile(f)
    assert wrong == []
