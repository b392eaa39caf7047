"""Streams and events as arguments: whatever a framework or NVIDIA's bindings call one, it is a 64-bit handle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base_dsl.arguments import Node
from ..base_dsl.typing import Int64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..mlir import ir

_HANDLES = {"CUstream", "cudaStream_t", "CUevent", "cudaEvent_t"}


def handle_of(value: Any) -> int | None:
    """The handle of a stream or event object; None for anything else."""
    kind = type(value)
    if kind.__name__ in _HANDLES:
        return int(value)
    if kind.__name__ in ("Stream", "ExternalStream", "Event"):
        handle = getattr(value, "cuda_stream", None)  # torch
        if handle is None:
            handle = getattr(value, "cuda_event", None)
        if handle is None:
            handle = getattr(value, "ptr", None)  # cupy
        return int(handle) if handle is not None else None
    return None


class HandleNode(Node):
    """A stream or event argument."""

    key = "stream"
    formats = "Q"

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def types(self) -> list[ir.Type]:
        return [Int64.mlir_type]

    def leaves(self) -> list[Any]:
        return [self._handle]

    def rebuild(self, values: Iterator[ir.Value]) -> Any:
        return Int64._make(next(values))


def stream_node(value: Any) -> HandleNode | None:
    """The argument node of a stream or event."""
    handle = handle_of(value)
    return None if handle is None else HandleNode(handle)
