"""`cutlass._mlir.dialects.math`: the bindings' dialect, whose functions also take and return Kiln's numbers."""

from __future__ import annotations

import functools
import types
from typing import Any

from ...base_dsl.typing import Numeric, NumericMeta
from ...mlir import dialect_module


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [public for public in __dir__() if not public.startswith("_")]
    builder = getattr(dialect_module("math"), name)
    if not isinstance(builder, types.FunctionType):
        return builder

    @functools.wraps(builder)
    def function(*args: object, **kwargs: object) -> Any:
        result = builder(*map(_value, args), **{key: _value(value) for key, value in kwargs.items()})
        typed = any(isinstance(x, Numeric) for x in (*args, *kwargs.values()))
        return NumericMeta.from_mlir_type(result.type)._make(result) if typed else result

    return function


def _value(x: object) -> Any:
    return x.ir_value() if isinstance(x, Numeric) else x


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(dialect_module("math"))})
