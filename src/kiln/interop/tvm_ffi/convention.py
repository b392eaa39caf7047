"""TVM-FFI's calling convention as compiled functions know it; TVM-FFI itself need not be installed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ...base_dsl import packages
from ...base_dsl.conventions import Convention, brief_key, describe_key

if TYPE_CHECKING:
    from collections.abc import Hashable

    from ...base_dsl.compiled_function import CompiledFunction


class TvmFfi(Convention):
    """Functions are `tvm_ffi.Function`s where there is TVM-FFI, and errors have the words of its own messages."""

    plain_tuples = True
    ambient_stream = True

    def wrap(self, compiled: CompiledFunction[Any]) -> Any:
        if not packages.is_here("tvm_ffi"):
            return compiled
        from .function import of

        return of(compiled)

    def mismatch(self, compiled: CompiledFunction[Any], name: str, key: Hashable, expected: Hashable, why: str) -> str:
        what = _reason(name, why) if why else f"it is {describe_key(key)}"
        return (
            f"Mismatched argument #{compiled.passed.index(name)} ({name!r}) when calling `{signature(compiled)}`: {what}; "
            f"expected {describe_key(expected)}"
        )

    def complaint(self, compiled: CompiledFunction[Any]) -> str:
        return f"Mismatched arguments when calling `{signature(compiled)}`: "


CONVENTION = TvmFfi()


def signature(compiled: CompiledFunction[Any]) -> str:
    """Return the name and parameters of a function as TVM-FFI's errors show them."""
    passed = [name for name in compiled.passed if name not in compiled.ambient]
    return f"{compiled.function_name}({', '.join(f'{n}: {brief_key(compiled.keys.get(n))}' for n in passed)})"


def _reason(name: str, why: str) -> str:
    """Return why a tensor does not fit, in words that programs look for in TVM-FFI's messages."""
    mode = re.match(r"the (extent|stride) of mode (\d+)", why)
    if mode is not None:
        return f"Mismatched {name}.{'shape' if mode[1] == 'extent' else 'strides'}[{mode[2]}]: {why}"
    return f"{why}, expected device_type=cuda" if why.endswith("the memory of the host") else why
