"""The CUDA driver through cuda-bindings."""

from __future__ import annotations

from typing import Any

from ..base_dsl.diagnostics import DSLCudaRuntimeError


def driver() -> Any:
    """`cuda.bindings.driver`, initialized."""
    try:
        from cuda.bindings import driver as cuda  # pyright: ignore[reportMissingImports, reportAttributeAccessIssue]
    except ImportError as missing:
        raise DSLCudaRuntimeError(
            "the package cuda-bindings is missing", hint='install it: pip install "kiln-dsl[cuda]"'
        ) from missing
    check(cuda.cuInit(0))
    return cuda


def check(returned: tuple[Any, ...]) -> Any:
    """What a function of cuda-bindings returned besides its status (None, one value or a tuple); an error is raised."""
    status, values = returned[0], returned[1:]
    if int(status):
        raise DSLCudaRuntimeError(f"{status.name} (error {int(status)})", error_code=status)
    return values[0] if len(values) == 1 else values or None
