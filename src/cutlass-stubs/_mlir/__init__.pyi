"""The MLIR bindings, which carry no types."""

from typing import Any

def __getattr__(name: str) -> Any: ...
