"""Operands of typed scalars in expressions, and their conversion."""

from __future__ import annotations

import sys
from typing import Any

from .. import trace
from ..diagnostics import type_error
from . import host
from .meta import INTEGERS, NumericMeta
from .promotion import type_of_python

PLAIN = frozenset((int, float, bool))
"""Classes of the values that typed scalars have outside a trace."""


def is_numeric(value: object) -> bool:
    """Return whether a value is a typed scalar."""
    return isinstance(type(value), NumericMeta)


def is_ir_value_class(dtype: object) -> bool:
    """Return whether `dtype` is the bindings' Value or a subclass of it."""
    module = sys.modules.get("kiln.mlir")
    return module is not None and isinstance(dtype, type) and issubclass(dtype, module.ir.Value)


def plain_scalar(value: Any) -> host.Plain | None:
    """Return a Python scalar for bool, int, float, their subclasses (enums) and numpy scalars; None for others."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, int | float):
        return float(value) if isinstance(value, float) else int(value)
    if hasattr(value, "dtype") and hasattr(value, "item") and getattr(value, "shape", None) == ():
        item = value.item()
        return item if type(item) in PLAIN else None if isinstance(item, complex) else float(item)
    return None


def refuse_complex(value: object) -> None:
    """Raise an error for a complex number, which numbers of a program cannot be compared with."""
    if isinstance(value, complex) or getattr(getattr(value, "dtype", None), "kind", "") == "c":
        raise type_error(
            f"a number of the program is compared with the complex number {value}",
            "numbers of a program are real: keep the real and the imaginary part as two numbers",
        )


def unwrap(value: Any, dtype: Any) -> Any:
    """Return as a scalar what `T(x)` takes besides Python and typed scalars.

    These are IR values, operations with one result, numpy scalars, and objects with an `ir_value()`.
    """
    module = sys.modules.get("kiln.mlir")
    if module is not None:
        ir = module.ir
        if isinstance(value, ir.OpView | ir.Operation):
            value = value.result
        if isinstance(value, ir.Value):
            return dtype._make(value) if value.type == dtype.mlir_type else _typed(value)
    number = plain_scalar(value)
    if number is not None:
        return number
    inner = getattr(value, "ir_value", None)
    if callable(inner) and module is not None:
        return unwrap(inner(), dtype)
    raise type_error(
        f"{dtype.__name__} takes a Python number, a typed scalar or an IR value, got {type(value).__name__}",
        f"a tensor's element is t[i]; a tensor or vector is converted with .to({dtype.__name__})",
    )


def _typed(value: Any) -> Any:
    """Return an IR value as a typed scalar. A signless integer is taken as signed."""
    own = value.type
    if str(own) == "index":
        value = trace.emit_value("arith.index_cast", INTEGERS[64, True].mlir_type, (value,))
    return NumericMeta.from_mlir_type(own)._make(value)


def as_numeric(obj: object) -> Any:
    """Return `obj` as a typed scalar: a Python number gets the type it has in a trace, an IR obj is wrapped.

    Raises TypeError for anything else.
    """
    if is_numeric(obj):
        return obj
    plain = plain_scalar(obj)
    if plain is not None:
        return type_of_python(plain)(plain)
    module = sys.modules.get("kiln.mlir")
    if module is not None and isinstance(obj, module.ir.Value):
        return _typed(obj)
    raise TypeError(f"expected a number, got {type(obj).__name__}")
