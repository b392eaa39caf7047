"""`cutlass._mlir_helpers`: functions on values of the IR that libraries take from there."""

from __future__ import annotations

from typing import Any

from ...base_dsl import trace as tracing
from ...base_dsl.typing import Float32, Numeric
from .arithmetic import rcp_approx

__all__ = ["DialectAutoConvertProxy", "bitcast", "rcp"]


class DialectAutoConvertProxy:
    """A dialect of the bindings whose functions take values of the language, too."""

    def __init__(self, dialect: Any) -> None:
        self._dialect = dialect

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._dialect, name)
        if not callable(attribute):
            return attribute

        def call(*args: object, **kwargs: object) -> Any:
            return attribute(*map(_as_value, args), **{key: _as_value(value) for key, value in kwargs.items()})

        return call


def _as_value(x: Any) -> Any:
    if hasattr(x, "to_llvm_ptr"):
        return x.to_llvm_ptr()
    return x.ir_value() if hasattr(x, "ir_value") else x


def bitcast(src: object, res_elem_type: object, *, loc: object = None, ip: object = None) -> Any:
    """Return the bits of a value as another type of the same width."""
    value = src.ir_value() if isinstance(src, Numeric) else src
    return tracing.emit_value("arith.bitcast", res_elem_type, (value,))


def rcp(a: object, *, approx: bool = False, ftz: bool = False, loc: object = None, ip: object = None) -> Float32:
    """Return 1 / a: by the hardware's approximation, or rounded to nearest."""
    return rcp_approx(a) if approx else 1.0 / Float32(a)
