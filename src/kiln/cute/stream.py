"""Streams and events as arguments: whatever a framework or NVIDIA's bindings call one, it is a 64-bit handle."""

from __future__ import annotations

from typing import Any

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
