"""Tables that libraries extend for numeric types of their own, and a function that they wrap.

Kiln reads how an argument is passed from the types themselves (`interop/tvm_ffi`), and asks nothing here.
"""

from __future__ import annotations

from typing import Any

NumericToTVMFFIDtype: dict[Any, str] = {}
AcceptableNumericTypesForScalar: list[Any] = []


def _convert_single_arg(arg: Any, arg_name: str, arg_type: Any, ctx: Any, *, is_constexpr: bool = False) -> Any:
    raise NotImplementedError("Kiln makes no TVM-FFI argument specs: see kiln.interop.tvm_ffi")
