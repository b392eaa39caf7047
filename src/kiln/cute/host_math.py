"""Mathematical functions of numbers outside a trace: those of the C library, so they are as in compiled host code."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable

from ..base_dsl.numeric.host import FLOAT, divide

_C_NAMES = {"powf": "pow", "remf": "fmod", "roundeven": "rint"}
"""Functions of the C library that have other names than operations; `rint` rounds halves to even, and every C library has it."""


@functools.cache
def _library() -> ctypes.CDLL:
    process = ctypes.CDLL(None)
    return process if hasattr(process, "roundf") else ctypes.CDLL("libm.so.6")


def _c_function(name: str, suffix: str, arguments: int) -> Callable[..., float]:
    kind = ctypes.c_float if suffix else ctypes.c_double
    function = ctypes.CFUNCTYPE(kind, *[kind] * arguments)  # an object of its own, whose types no other caller sees
    return function((_C_NAMES.get(name, name) + suffix, _library()))


def _propagating(name: str) -> Callable[[float, float], float]:
    return lambda a, b: math.nan if a != a or b != b else FLOAT[name](a, b)


@functools.cache
def function(op: str, single: bool, arguments: int) -> Callable[..., float]:
    """Return the function that an operation of `math` or `arith` computes, of numbers in single or double precision."""
    name = op.partition(".")[2]
    if name == "rsqrt":
        root = function("math.sqrt", single, 1)
        return lambda x: divide(1.0, root(x))
    own: dict[str, Callable[..., float]] = {
        "divf": divide,
        "isnan": math.isnan,
        "isinf": math.isinf,
        "isfinite": math.isfinite,
        "isnormal": lambda x: math.isfinite(x) and abs(x) >= 2.0 ** (-126 if single else -1022),
        "maximumf": _propagating("max"),
        "minimumf": _propagating("min"),
    }
    return own.get(name) or _c_function(name, "f" if single else "", arguments)
