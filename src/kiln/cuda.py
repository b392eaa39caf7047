"""The CUDA context and its default stream, for programs without a framework that takes care of them.

On the CPU target there is no context, and a stream is a number that nothing waits for.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ._support import lazy, unavailable
from .base_dsl.diagnostics import DSLCudaRuntimeError
from .base_dsl.target import get_target
from .hardware import driver

__dir__ = lazy.listing(__name__)
__all__ = [
    "CUDA_VERSION",
    "checkCudaErrors",
    "default_stream",
    "initialize_cuda_context",
    "stream_sync",
    "target_version",
]


class CudaVersion(NamedTuple):
    """A version of CUDA."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


def _parsed(version: CudaVersion | str) -> CudaVersion:
    if not isinstance(version, str):
        return version
    numbers = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    if not numbers:
        raise ValueError(f"a version of CUDA is written like 12.9, got {version!r}")
    return CudaVersion(numbers[0], numbers[1] if len(numbers) > 1 else 0)


@functools.lru_cache(maxsize=1)
def _installed() -> CudaVersion:
    from importlib import metadata

    try:
        return _parsed(metadata.version("cuda-bindings"))
    except metadata.PackageNotFoundError:
        return CudaVersion(0, 0)


CUDA_VERSION: CudaVersion
"""The version of CUDA that the bindings were built for; 0.0 without them. Looked up when first used."""


def __getattr__(name: str) -> Any:
    if name == "CUDA_VERSION":
        return _installed()
    return unavailable.name(__name__, name)


def target_version(
    exact_version: CudaVersion | str | None = None,
    *,
    min_version: CudaVersion | str | None = None,
    max_version: CudaVersion | str | None = None,
) -> bool:
    """Return whether `CUDA_VERSION` is a version, or in a range, both ends included."""
    if exact_version is not None:
        return _parsed(exact_version) == _installed()
    low = min_version is None or _parsed(min_version) <= _installed()
    return low and (max_version is None or _parsed(max_version) >= _installed())


def initialize_cuda_context(device_id: int = 0, flags: int = 0) -> Any:
    """Make the primary context of a device this thread's current one, and return it.

    None on the CPU target, and in a dry run, which needs no driver (`kiln inspect`).
    """
    target = get_target()
    if target.on_host or not target.launches():
        return None
    from cuda.bindings.driver import CUcontext  # pyright: ignore[reportMissingImports]

    return CUcontext(driver.set_device(device_id))


def checkCudaErrors(result: tuple[Any, ...]) -> Any:
    """Return what a function of cuda-bindings returned besides its status (None, one value or a tuple); raise its
    error."""
    status = result[0]
    values = result[1:]
    if int(status):
        raise DSLCudaRuntimeError(f"{status.name} (error {int(status)})", error_code=status)
    return values[0] if len(values) == 1 else values or None


def default_stream() -> Any:
    """Return the default stream."""
    return stream(0)


def stream_sync(stream: Any) -> None:
    """Wait for a stream."""
    if not get_target().on_host:
        driver.synchronize(int(stream))


def stream(handle: int) -> Any:
    """Return a stream by its handle, as cuda-bindings' `CUstream`."""
    from cuda.bindings.driver import CUstream  # pyright: ignore[reportMissingImports]

    return CUstream(handle)
