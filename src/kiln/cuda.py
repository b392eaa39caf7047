"""The CUDA context and its default stream, for programs without a framework that takes care of them.

On the CPU target there is no context, and a stream is a number that nothing waits for.
"""

from __future__ import annotations

from typing import Any

from .base_dsl.target import target_name
from .utils._driver import check, driver

__all__ = ["checkCudaErrors", "default_stream", "initialize_cuda_context", "stream_sync"]


def initialize_cuda_context(device_id: int = 0, flags: int = 0) -> Any:
    """Make the primary context of a device this thread's current one, and return it; on the CPU target, None."""
    if target_name() == "cpu":
        return None
    cuda = driver()
    context = check(cuda.cuDevicePrimaryCtxRetain(check(cuda.cuDeviceGet(device_id))))
    check(cuda.cuCtxSetCurrent(context))
    return context


def checkCudaErrors(result: tuple[Any, ...]) -> Any:
    """What a function of cuda-bindings returned besides its status; raises DSLCudaRuntimeError for an error."""
    return check(result)


def default_stream() -> Any:
    """The default stream."""
    return stream(0)


def stream_sync(stream: Any) -> None:
    """Wait for a stream."""
    if target_name() != "cpu":
        check(driver().cuStreamSynchronize(stream))


def stream(handle: int) -> Any:
    """A stream by its handle: cuda-bindings' `CUstream`."""
    from cuda.bindings.driver import CUstream  # pyright: ignore[reportMissingImports]

    return CUstream(handle)
