"""Functions of `cuda.bindings.driver` and `cuda.bindings.runtime`, on host memory.

They return what the package's functions do: a tuple of the error code and the results. Types are the package's own, or
those of `types.py` if it is missing. A function that is not served raises an error that says so: the real one would
look for a driver.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kiln.hardware import limits

from . import device as served
from . import graphs, memory, streams, types

if TYPE_CHECKING:
    from collections.abc import Callable

_VERSION = 13000
_CONTEXT = 0xC0  # the handle of the only context
_events: dict[int, float] = {}


def serve_driver(module: ModuleType) -> None:
    """Put the functions into `cuda.bindings.driver`."""
    _serve(module, types.DRIVER, _driver_functions, r"cu[A-Z]\w*")


def serve_runtime(module: ModuleType) -> None:
    """Put the functions into `cuda.bindings.runtime`."""
    _serve(module, types.RUNTIME, _runtime_functions, r"cuda[A-Z]\w*")


def _serve(
    module: ModuleType, missing: dict[str, Any], functions: Callable[[Any], dict[str, Any]], pattern: str
) -> None:
    for name, value in missing.items():
        if not hasattr(module, name):
            setattr(module, name, value)
    for name, value in vars(module).copy().items():
        if re.fullmatch(pattern, name) and callable(value) and not isinstance(value, type):
            setattr(module, name, _refused(name))
    for name, function in functions(module).items():
        setattr(module, name, function)


def _refused(name: str) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise NotImplementedError(f"{name} is not served from host memory (`kiln run --target cpu`)")

    function.__name__ = name
    return function


def attribute(number: int) -> int:
    """Return a device attribute by its number, which the driver and the runtime share; 0 for a missing one."""
    found = served.current()
    return {
        1: found.max_threads_per_block, **dict(zip(range(2, 8), (*limits.BLOCK, *limits.GRID))),
        8: found.shared_memory_per_block, 9: 65536, 10: found.warp_size, 12: found.regs_per_block,
        13: found.clock_rate, 16: found.multi_processor_count, 18: found.is_integrated, 31: 1,
        36: found.memory_clock_rate, 37: found.memory_bus_width, 38: found.L2_cache_size,
        39: found.max_threads_per_multi_processor, 41: 1, 75: found.major, 76: found.minor,
        81: found.shared_memory_per_multiprocessor, 82: found.regs_per_multiprocessor, 83: 1, 95: 1,
        97: found.shared_memory_per_block_optin, 106: found.max_blocks_per_multi_processor, 111: limits.KEPT_SMEM,
        120: int(found.major >= 9),
    }.get(int(number), 0)  # fmt: skip


def _record(event: int) -> None:
    _events[event] = streams.seconds()


def _size(number: Any) -> int:
    """Return a size in bytes or elements; raise OverflowError beyond 64 bits."""
    if not 0 <= int(number) < 1 << 64:
        raise OverflowError(f"{number} is no size of 64 bits")
    return int(number)


def _copied(target: Any, source: Any, size: Any) -> bool:
    """Copy, or record a graph's copy; return whether both sides are memory."""
    size = _size(size)
    try:
        places = memory.address_of(target, size), memory.address_of(source, size)
        for place in places:  # checked now, since a graph copies later
            memory.check(place, size)
        graphs.perform(memory.copy, *places, size)
    except memory.BadAddress:
        return False
    return True


def _copied_rows(target: Any, target_pitch: Any, source: Any, source_pitch: Any, width: Any, height: Any) -> bool:
    """Copy rows of `width` bytes, `pitch` bytes apart; return whether both sides are memory and rows do not overlap."""
    width, height = _size(width), _size(height)
    if width > min(_size(target_pitch), _size(source_pitch)):
        return False
    places: list[tuple[int, int]] = []
    try:
        for side, pitch in ((target, int(target_pitch)), (source, int(source_pitch))):
            size = pitch * (height - 1) + width if width and height else 0
            places.append((memory.address_of(side, size), pitch))
            memory.check(places[-1][0], size)
        for row in range(height if width else 0):
            graphs.perform(memory.copy, *(place + row * pitch for place, pitch in places), width)
    except memory.BadAddress:
        return False
    return True


def _side(copy: Any, side: str) -> tuple[int, int]:
    """Return the address and pitch of a side (`src`, `dst`) of the driver's description of a 2D copy."""
    kind, pitch = int(getattr(copy, f"{side}MemoryType")), int(getattr(copy, f"{side}Pitch"))
    if kind not in (1, 2, 4):  # host, device, either
        raise NotImplementedError("arrays of CUDA are not served from host memory (`kiln run --target cpu`)")
    begin = memory.address_of(getattr(copy, f"{side}Host" if kind == 1 else f"{side}Device"), 0)
    return begin + int(getattr(copy, f"{side}Y")) * pitch + int(getattr(copy, f"{side}XInBytes")), pitch


def _filled(address: Any, value: Any, width: int, count: Any) -> bool:
    """Set elements, or record a graph's fill; return whether they are memory, and aligned."""
    count = _size(count)
    try:
        place = memory.address_of(address, width * count)
        memory.check(place, width * count)
        if place % width:
            return False
        graphs.perform(memory.fill, place, int(value), width, count)
    except memory.BadAddress:
        return False
    return True


def _driver_functions(cuda: Any) -> dict[str, Any]:
    result = cuda.CUresult
    good, bad = (result.CUDA_SUCCESS,), (result.CUDA_ERROR_INVALID_VALUE,)

    def success(*values: Any) -> Any:
        return lambda *_, **__: (*good, *values)

    def on_device(device: Any, *values: Any) -> Any:
        return (*good, *values) if int(device) == 0 else (result.CUDA_ERROR_INVALID_DEVICE, *[None for _ in values])

    def allocated(size: int, kind: str = "device") -> Any:
        address = memory.allocate(size, kind) if _size(size) > 0 else None
        if address is None:
            return (result.CUDA_ERROR_OUT_OF_MEMORY if int(size) > 0 else bad[0]), None
        return *good, address if kind == "host" else cuda.CUdeviceptr(address)

    def freed(kind: str) -> Any:
        return lambda address, *_: good if memory.free(memory.address_of(address, 0), kind) else bad

    def copied(target: Any, source: Any, size: int, *_: Any) -> Any:
        return good if _copied(target, source, size) else bad

    def copied_rows(copy: Any, *_: Any) -> Any:
        rows = (*_side(copy, "dst"), *_side(copy, "src"), copy.WidthInBytes, copy.Height)
        return good if _copied_rows(*rows) else bad

    def filled(width: int) -> Any:
        return lambda address, value, count, *_: good if _filled(address, value, width, count) else bad

    def recorded(event: Any, *_: Any) -> Any:
        _record(int(event))
        return good

    def elapsed(start: Any, end: Any) -> Any:
        if int(start) not in _events or int(end) not in _events:
            return result.CUDA_ERROR_INVALID_HANDLE, None
        return *good, (_events[int(end)] - _events[int(start)]) * 1e3

    def capturing(stream: Any) -> Any:
        status = cuda.CUstreamCaptureStatus
        active = graphs.is_current_stream_capturing()
        return *good, (status.CU_STREAM_CAPTURE_STATUS_ACTIVE if active else status.CU_STREAM_CAPTURE_STATUS_NONE)

    def named(error: Any) -> Any:
        return *good, result(int(error)).name.encode()

    return {
        "cuInit": success(),
        "cuDriverGetVersion": success(_VERSION),
        "cuGetErrorName": named,
        "cuGetErrorString": named,
        "cuDeviceGetCount": success(1),
        "cuDeviceGet": lambda ordinal: on_device(ordinal, cuda.CUdevice(0)),
        "cuDeviceGetName": lambda length, device: on_device(device, served.current().name.encode()[:length]),
        "cuDeviceGetAttribute": lambda which, device: on_device(device, attribute(int(which))),
        "cuDeviceTotalMem": lambda device: on_device(device, served.current().total_memory),
        "cuDeviceComputeCapability": lambda device: on_device(device, served.current().major, served.current().minor),
        "cuDevicePrimaryCtxRetain": lambda device: on_device(device, cuda.CUcontext(_CONTEXT)),
        "cuDevicePrimaryCtxRelease": on_device,
        "cuDevicePrimaryCtxReset": on_device,
        "cuDevicePrimaryCtxGetState": lambda device: on_device(device, 0, 1),
        "cuDevicePrimaryCtxSetFlags": lambda device, flags: on_device(device),
        "cuCtxCreate": lambda *arguments: on_device(arguments[-1], cuda.CUcontext(_CONTEXT)),
        "cuCtxDestroy": success(),
        "cuCtxGetCurrent": lambda: (*good, cuda.CUcontext(_CONTEXT)),
        "cuCtxSetCurrent": success(),
        "cuCtxPushCurrent": success(),
        "cuCtxPopCurrent": lambda: (*good, cuda.CUcontext(_CONTEXT)),
        "cuCtxGetDevice": lambda *_: (*good, cuda.CUdevice(0)),
        "cuCtxSynchronize": success(),
        "cuMemAlloc": allocated,
        "cuMemAllocManaged": lambda size, flags: allocated(size),
        "cuMemAllocAsync": lambda size, stream: allocated(size),
        "cuMemAllocHost": lambda size: allocated(size, "host"),
        "cuMemHostAlloc": lambda size, flags: allocated(size, "host"),
        "cuMemFree": freed("device"),
        "cuMemFreeAsync": freed("device"),
        "cuMemFreeHost": freed("host"),
        "cuMemGetInfo": lambda: (*good, served.current().free_memory, served.current().total_memory),
        **dict.fromkeys(
            [
                "cuMemcpy",
                *(f"cuMemcpy{way}{how}" for way in ("HtoD", "DtoH", "DtoD", "") for how in ("", "Async")),
            ],
            copied,
        ),
        **dict.fromkeys(["cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy2DAsync"], copied_rows),
        **{f"cuMemsetD{8 * width}{how}": filled(width) for width in (1, 2, 4) for how in ("", "Async")},
        "cuStreamCreate": lambda flags: (*good, cuda.CUstream(streams.new_handle())),
        "cuStreamCreateWithPriority": lambda flags, priority: (*good, cuda.CUstream(streams.new_handle())),
        "cuStreamDestroy": success(),
        "cuStreamSynchronize": success(),
        "cuStreamQuery": success(),
        "cuStreamWaitEvent": success(),
        "cuStreamIsCapturing": capturing,
        "cuEventCreate": lambda flags: (*good, cuda.CUevent(streams.new_handle())),
        "cuEventDestroy": success(),
        "cuEventRecord": recorded,
        "cuEventRecordWithFlags": recorded,
        "cuEventQuery": success(),
        "cuEventSynchronize": success(),
        "cuEventElapsedTime": elapsed,
    }


def _runtime_functions(cuda: Any) -> dict[str, Any]:
    error = cuda.cudaError_t
    good, bad = (error.cudaSuccess,), (error.cudaErrorInvalidValue,)

    def success(*values: Any) -> Any:
        return lambda *_, **__: (*good, *values)

    def on_device(device: Any, *values: Any) -> Any:
        return (*good, *values) if int(device) == 0 else (error.cudaErrorInvalidDevice, *[None for _ in values])

    def allocated(kind: str) -> Any:
        def allocate(size: int, *_: Any) -> Any:
            address = memory.allocate(_size(size), kind) if _size(size) else 0
            return (error.cudaErrorMemoryAllocation, None) if address is None else (*good, address)

        return allocate

    def freed(kind: str) -> Any:
        return lambda address, *_: good if memory.free(memory.address_of(address, 0), kind) else bad

    def copied(target: Any, source: Any, size: int, kind: Any = 4, *_: Any) -> Any:
        if int(kind) not in range(5):
            return (error.cudaErrorInvalidMemcpyDirection,)
        return good if _copied(target, source, size) else bad

    def copied_rows(
        target: Any, pitch: Any, source: Any, other: Any, width: Any, height: Any, kind: Any, *_: Any
    ) -> Any:
        if int(kind) not in range(5):
            return (error.cudaErrorInvalidMemcpyDirection,)
        return good if _copied_rows(target, pitch, source, other, width, height) else bad

    def copied_between(target: Any, device: Any, source: Any, other: Any, size: int, *_: Any) -> Any:
        if int(device) or int(other):
            return (error.cudaErrorInvalidDevice,)
        return good if _copied(target, source, size) else bad

    def filled(address: Any, value: int, count: int, *_: Any) -> Any:
        return good if _filled(address, value, 1, count) else bad

    def stream(*_: Any) -> Any:
        return *good, cuda.cudaStream_t(streams.new_handle())

    def event(*_: Any) -> Any:
        return *good, cuda.cudaEvent_t(streams.new_handle())

    def recorded(event: Any, *_: Any) -> Any:
        _record(int(event))
        return good

    def elapsed(start: Any, end: Any) -> Any:
        if int(start) not in _events or int(end) not in _events:
            return error.cudaErrorInvalidResourceHandle, None
        return *good, (_events[int(end)] - _events[int(start)]) * 1e3

    def named(code: Any) -> Any:
        return *good, error(int(code)).name.encode()

    return {
        "cudaRuntimeGetVersion": success(_VERSION),
        "cudaDriverGetVersion": success(_VERSION),
        "cudaGetErrorName": named,
        "cudaGetErrorString": named,
        "cudaGetLastError": success(),
        "cudaPeekAtLastError": success(),
        "cudaGetDeviceCount": success(1),
        "cudaGetDevice": success(0),
        "cudaSetDevice": on_device,
        "cudaDeviceGetAttribute": lambda which, device: on_device(device, attribute(int(which))),
        "cudaDeviceSynchronize": success(),
        "cudaDeviceReset": success(),
        "cudaMemGetInfo": lambda: (*good, served.current().free_memory, served.current().total_memory),
        **dict.fromkeys(["cudaMalloc", "cudaMallocManaged", "cudaMallocAsync"], allocated("device")),
        **dict.fromkeys(["cudaMallocHost", "cudaHostAlloc"], allocated("host")),
        **dict.fromkeys(["cudaFree", "cudaFreeAsync"], freed("device")),
        "cudaFreeHost": freed("host"),
        **dict.fromkeys(["cudaMemcpy", "cudaMemcpyAsync"], copied),
        **dict.fromkeys(["cudaMemcpy2D", "cudaMemcpy2DAsync"], copied_rows),
        **dict.fromkeys(["cudaMemcpyPeer", "cudaMemcpyPeerAsync"], copied_between),
        **dict.fromkeys(["cudaMemset", "cudaMemsetAsync"], filled),
        **dict.fromkeys(["cudaStreamCreate", "cudaStreamCreateWithFlags", "cudaStreamCreateWithPriority"], stream),
        **dict.fromkeys(["cudaEventCreate", "cudaEventCreateWithFlags"], event),
        **dict.fromkeys(["cudaEventRecord", "cudaEventRecordWithFlags"], recorded),
        "cudaStreamDestroy": success(),
        "cudaStreamSynchronize": success(),
        "cudaStreamQuery": success(),
        "cudaStreamWaitEvent": success(),
        "cudaEventDestroy": success(),
        "cudaEventQuery": success(),
        "cudaEventSynchronize": success(),
        "cudaEventElapsedTime": elapsed,
    }
