"""Streams and events as arguments: whatever a framework or NVIDIA's bindings call one, it is a 64-bit handle."""

from __future__ import annotations

from typing import Any

from ...base_dsl import packages

HANDLES = {"CUstream", "cudaStream_t", "CUevent", "cudaEvent_t"}


def handle_attribute(value: object) -> str | None:
    """Return the attribute with the handle of a stream object, empty if it is its `int()`; None for anything else."""
    name = type(value).__name__
    if name in ("CUstream", "cudaStream_t"):
        return ""
    if name in ("Stream", "ExternalStream"):
        return next((attribute for attribute in ("cuda_stream", "ptr") if hasattr(value, attribute)), None)
    return None


def handle_of(value: Any) -> int | None:
    """Return the handle of a stream or event object; None for anything else."""
    kind = type(value)
    if kind is Stream:
        return int(value)
    if kind.__name__ in HANDLES:
        return int(value)
    if kind.__name__ in ("Stream", "ExternalStream", "Event"):
        handle = getattr(value, "cuda_stream", None)  # torch
        if handle is None:
            handle = getattr(value, "cuda_event", None)
        if handle is None:
            handle = getattr(value, "ptr", None)  # cupy
        return int(handle) if handle is not None else None
    return None


class Stream(int):
    """A stream by its handle."""


def current_stream() -> Stream:
    """Return the stream that PyTorch is using; the default stream where it is not used."""
    torch = packages.loaded("torch")
    if torch is None or not torch.cuda.is_available():
        return Stream(0)
    return Stream(torch.cuda.current_stream().cuda_stream)
