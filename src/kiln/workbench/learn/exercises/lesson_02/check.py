"""Checks of lesson 2."""

from __future__ import annotations

import contextlib
import io
import math
from typing import Any

import numpy as np

import kiln.cute as cute

from ...checking import Exercise, Wrong, same


def _six(module: Any) -> None:
    for x in (-3, 0, 7):
        same(f"absolute({x})", module.absolute(x), abs(x))
    numbers = np.array([0.5, 1.5, -0.25], np.float32)
    same("total([0.5, 1.5, -0.25])", module.total(numbers), 1.75)
    halves = np.array([1, 2, -3], np.float16)
    module.scale(halves, 0.5)
    same("scale([1, 2, -3], 0.5)", halves, np.array([0.5, 1, -1.5], np.float16))
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        module.show(7)
    if printed.getvalue() != "x = 7\n":
        raise Wrong("show(7)", expected="x = 7\n", got=printed.getvalue())
    for x in (-1.0, 0.0, 2.0):
        same(f"sigmoid({x})", module.sigmoid(x), 1 / (1 + math.exp(-x)), tolerance=1e-6)
    for i, weight in enumerate((0.25, 0.5, 0.25)):
        same(f"tap(2.0, {i})", module.tap(2.0, i), 2 * weight)


def _polynomial(module: Any) -> None:
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    for coefficients in ((1.0,), (0.0, 2.0), (1.0, -2.0, 0.5, 3.0)):
        y = np.full_like(x, np.nan)
        module.polynomial(x, y, coefficients)
        expected = sum(c * x.astype(np.float64) ** k for k, c in enumerate(coefficients))
        same(f"polynomial with coefficients {coefficients}", y, expected, tolerance=1e-5)
    loops = cute.compile(module.polynomial, x, np.empty_like(x), (1.0, 2.0, 3.0)).__mlir__.count("scf.for")
    if loops:
        raise Wrong("the program has a loop", expected="0 loops (scf.for)", got=f"{loops}")


EXERCISES = (
    Exercise(
        "fix six functions",
        _six,
        (
            "Run the file's functions one by one: each error names the line and what to write.",
            "absolute: y needs a value before the `if`. total: begin with Float32(0).",
            "scale: convert what you store, .to(x.element_type). tap: a Constexpr is known while tracing.",
        ),
    ),
    Exercise(
        "a polynomial without a loop",
        _polynomial,
        (
            "A `for` over a Python tuple is unrolled: each coefficient is a number of Python.",
            "Horner's rule: begin with the last coefficient, then multiply by x and add the one before.",
        ),
    ),
)
