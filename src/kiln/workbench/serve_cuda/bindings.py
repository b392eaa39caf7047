"""Functions of `cuda.bindings.driver` and `cuda.bindings.runtime`, on host memory.

They return what the package's functions do: a tuple of the error code and the results. Types are the package's own, or
those of `types.py` if it is missing. A function that is not served raises an error that says so: the real one would
look for a driver.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, SupportsInt

from kiln.hardware import limits

from . import device as served
from . import graphs, memory, streams, types

if TYPE_CHECKING:
    from collections.abc import Callable

_CONTEXT = 0xC0  # the handle of the first device's context; others follow
_events: dict[int, float] = {}


def serve_driver(module: ModuleType) -> None:
    """Put the functions into `cuda.bindings.driver`."""
    _serve(module, types.DRIVER, _driver_functions, r"cu[A-Z]\w*")


def serve_runtime(module: ModuleType) -> None:
    """Put the functions into `cuda.bindings.runtime`."""
    _serve(module, types.RUNTIME, _runtime_functions, r"cuda[A-Z]\w*")


def _serve(
    module: ModuleType, missing: Mapping[str, object], functions: Callable[[Any], dict[str, Any]], pattern: str
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
    device = served.current()
    return {
        1: device.max_threads_per_block,
        **dict(zip(range(2, 8), (*limits.BLOCK, *limits.GRID))),
        8: device.shared_memory_per_block,
        9: 65536,
        10: device.warp_size,
        12: device.regs_per_block,
        13: device.clock_rate,
        16: device.multi_processor_count,
        18: device.is_integrated,
        31: 1,
        36: device.memory_clock_rate,
        37: device.memory_bus_width,
        38: device.L2_cache_size,
        39: device.max_threads_per_multi_processor,
        41: 1,
        75: device.major,
        76: device.minor,
        81: device.shared_memory_per_multiprocessor,
        82: device.regs_per_multiprocessor,
        83: 1,
        95: 1,
        97: device.shared_memory_per_block_optin,
        106: device.max_blocks_per_multi_processor,
        111: limits.KEPT_SMEM,
        120: int(device.major >= 9),
        132: int(device.major >= 9 and served.count() > 1),
    }.get(int(number), 0)


def _size(number: Any) -> int:
    """Return a size in bytes or elements; raise OverflowError beyond 64 bits."""
    if not 0 <= int(number) < 1 << 64:
        raise OverflowError(f"{number} is not a 64-bit size")
    return int(number)


def _copied(target: object, source: object, size: object, stream: int | None = None) -> bool:
    """Copy, or record a graph's copy; return whether both sides are memory."""
    size = _size(size)
    try:
        places = memory.address_of(target, size), memory.address_of(source, size)
        for place in places:  # checked now, since a graph copies later
            memory.check(place, size)
        graphs.perform(memory.copy, *places, size, stream=stream)
    except memory.BadAddress:
        return False
    return True


def _copied_rows(target: Any, target_pitch: Any, source: Any, source_pitch: Any, width: object, height: object) -> bool:
    """Copy rows of `width` bytes, `pitch` bytes apart; return whether both sides are memory and rows do not overlap."""
    width = _size(width)
    height = _size(height)
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


def _side(copy: object, side: str) -> tuple[int, int]:
    """Return address and pitch of one side (`src`, `dst`) of the driver's CUDA_MEMCPY2D."""
    kind = int(getattr(copy, f"{side}MemoryType"))
    pitch = int(getattr(copy, f"{side}Pitch"))
    if kind not in (1, 2, 4):  # host, device, either
        raise NotImplementedError("arrays of CUDA are not served from host memory (`kiln run --target cpu`)")
    begin = memory.address_of(getattr(copy, f"{side}Host" if kind == 1 else f"{side}Device"), 0)
    return begin + int(getattr(copy, f"{side}Y")) * pitch + int(getattr(copy, f"{side}XInBytes")), pitch


def _filled(address: object, value: Any, width: int, count: Any) -> bool:
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


class _Calls:
    """The calls that both interfaces have. They differ in names, types and error codes, the names of which follow."""

    def __init__(self, codes: Any, success: str, value: str, device: str, handle: str, memory: str) -> None:
        self.codes = codes
        self.good = (getattr(codes, success),)
        self.bad = (getattr(codes, value),)
        self._bad_device = getattr(codes, device)
        self._bad_handle = getattr(codes, handle)
        self.no_memory = getattr(codes, memory)

    def done(self, *values: object) -> Callable[..., Any]:
        """Return a function that does nothing and returns values."""
        return lambda *_, **__: (*self.good, *values)

    def on_device(self, device: Any, *values: Any) -> Any:
        """Return values for a device that exists, the error for others."""
        good = 0 <= int(device) < served.count()
        return (*self.good, *values) if good else (self._bad_device, *[None for _ in values])

    def set_device(self, device: SupportsInt) -> tuple[object, ...]:
        status = self.on_device(device)
        if status == self.good:
            served.set_current(int(device))
        return status

    def attribute(self, which: Any, device: Any) -> Any:
        return self.on_device(device, attribute(int(which)))

    def memory_info(self) -> Any:
        return *self.good, served.current().free_memory, served.current().total_memory

    def status(self, good: bool) -> Any:
        return self.good if good else self.bad

    def free(self, kind: str) -> Callable[..., Any]:
        return lambda address, *_: self.status(memory.free(memory.address_of(address, 0), kind))

    def fill(self, width: int) -> Callable[..., Any]:
        return lambda address, value, count, *_: self.status(_filled(address, value, width, count))

    def handle(self, kind: Any) -> Callable[..., Any]:
        """Return a function that creates a stream or an event."""
        return lambda *_, **__: (*self.good, kind(streams.new_handle()))

    def record(self, event: Any, *_: object) -> Any:
        _events[int(event)] = streams.seconds()
        return self.good

    def elapsed(self, start: Any, end: Any) -> Any:
        if int(start) not in _events or int(end) not in _events:
            return self._bad_handle, None
        return *self.good, (_events[int(end)] - _events[int(start)]) * 1e3

    def error_name(self, code: Any) -> Any:
        return *self.good, self.codes(int(code)).name.encode()


_ERRORS = ("INVALID_VALUE", "INVALID_DEVICE", "INVALID_HANDLE", "OUT_OF_MEMORY")
_RUNTIME_ERRORS = ("InvalidValue", "InvalidDevice", "InvalidResourceHandle", "MemoryAllocation")


def _driver_functions(cuda: Any) -> dict[str, Any]:
    calls = _Calls(cuda.CUresult, "CUDA_SUCCESS", *(f"CUDA_ERROR_{name}" for name in _ERRORS))
    nothing = ("Init", "CtxDestroy", "CtxSynchronize", "StreamDestroy")
    nothing += ("StreamSynchronize", "StreamQuery", "StreamWaitEvent", "EventDestroy", "EventQuery", "EventSynchronize")
    functions = dict.fromkeys((f"cu{name}" for name in nothing), calls.done())
    functions |= _driver_devices(cuda, calls) | _driver_memory(cuda, calls)

    def capturing(stream: object) -> Any:
        status = cuda.CUstreamCaptureStatus
        active = graphs.is_current_stream_capturing()
        return *calls.good, status.CU_STREAM_CAPTURE_STATUS_ACTIVE if active else status.CU_STREAM_CAPTURE_STATUS_NONE

    return functions | {
        "cuDriverGetVersion": calls.done(served.CUDA_VERSION),
        **dict.fromkeys(["cuGetErrorName", "cuGetErrorString"], calls.error_name),
        **dict.fromkeys(["cuStreamCreate", "cuStreamCreateWithPriority"], calls.handle(cuda.CUstream)),
        "cuStreamIsCapturing": capturing,
        "cuEventCreate": calls.handle(cuda.CUevent),
        **dict.fromkeys(["cuEventRecord", "cuEventRecordWithFlags"], calls.record),
        "cuEventElapsedTime": calls.elapsed,
    }


def _driver_devices(cuda: Any, calls: _Calls) -> dict[str, Any]:
    """Return the functions about the device and its context."""
    on_device = calls.on_device
    context = lambda device=None: cuda.CUcontext(
        _CONTEXT + (served.current_number() if device is None else int(device))
    )

    def set_context(handle: SupportsInt) -> tuple[object, ...]:
        if int(handle):
            served.set_current(int(handle) - _CONTEXT)
        return calls.good

    def can_access_peer(device: SupportsInt, peer: SupportsInt) -> tuple[object, ...]:
        both = calls.on_device(device, 1) if calls.on_device(peer) == calls.good else calls.on_device(peer, None)
        return both if int(device) != int(peer) else (*calls.good, 0)

    return {
        "cuDeviceGetCount": lambda: (*calls.good, served.count()),
        "cuDeviceGet": lambda ordinal: on_device(ordinal, cuda.CUdevice(int(ordinal))),
        "cuDeviceCanAccessPeer": can_access_peer,
        "cuCtxEnablePeerAccess": calls.done(),
        **dict.fromkeys(["cuCtxSetCurrent", "cuCtxPushCurrent"], set_context),
        "cuDeviceGetName": lambda length, device: on_device(device, served.current().name.encode()[:length]),
        "cuDeviceGetAttribute": calls.attribute,
        "cuDeviceTotalMem": lambda device: on_device(device, served.current().total_memory),
        "cuDeviceComputeCapability": lambda device: on_device(device, served.current().major, served.current().minor),
        "cuDevicePrimaryCtxRetain": lambda device: on_device(device, context(device)),
        **dict.fromkeys(["cuDevicePrimaryCtxRelease", "cuDevicePrimaryCtxReset"], on_device),
        "cuDevicePrimaryCtxGetState": lambda device: on_device(device, 0, 1),
        "cuDevicePrimaryCtxSetFlags": lambda device, flags: on_device(device),
        "cuCtxCreate": lambda *arguments: on_device(arguments[-1], context()),
        **dict.fromkeys(["cuCtxGetCurrent", "cuCtxPopCurrent"], lambda: (*calls.good, context())),
        "cuCtxGetDevice": lambda *_: (*calls.good, cuda.CUdevice(served.current_number())),
    }


def _driver_memory(cuda: Any, calls: _Calls) -> dict[str, Any]:
    """Return the functions that allocate, copy and fill memory."""

    def allocate(size: int, kind: str = "device") -> Any:
        address = memory.allocate(size, kind) if _size(size) > 0 else None
        if address is None:
            return (calls.no_memory if int(size) > 0 else calls.bad[0]), None
        return *calls.good, address if kind == "host" else cuda.CUdeviceptr(address)

    def copy(target: object, source: object, size: int, stream: SupportsInt | None = None) -> Any:
        return calls.status(_copied(target, source, size, None if stream is None else int(stream)))

    def copy_rows(copy: Any, *_: object) -> Any:
        rows = (*_side(copy, "dst"), *_side(copy, "src"), copy.WidthInBytes, copy.Height)
        return calls.status(_copied_rows(*rows))

    ways = [f"cuMemcpy{way}{how}" for way in ("HtoD", "DtoH", "DtoD", "") for how in ("", "Async")]
    return {
        "cuMemAlloc": allocate,
        **dict.fromkeys(["cuMemAllocManaged", "cuMemAllocAsync"], lambda size, _: allocate(size)),
        "cuMemAllocHost": lambda size: allocate(size, "host"),
        "cuMemHostAlloc": lambda size, flags: allocate(size, "host"),
        **dict.fromkeys(["cuMemFree", "cuMemFreeAsync"], calls.free("device")),
        "cuMemFreeHost": calls.free("host"),
        "cuMemGetInfo": calls.memory_info,
        **dict.fromkeys(ways, copy),
        **dict.fromkeys(["cuMemcpy2D", "cuMemcpy2DUnaligned", "cuMemcpy2DAsync"], copy_rows),
        **{f"cuMemsetD{8 * width}{how}": calls.fill(width) for width in (1, 2, 4) for how in ("", "Async")},
    }


def _runtime_functions(cuda: Any) -> dict[str, Any]:
    calls = _Calls(cuda.cudaError_t, "cudaSuccess", *(f"cudaError{name}" for name in _RUNTIME_ERRORS))
    nothing = ("GetLastError", "PeekAtLastError", "DeviceSynchronize", "DeviceReset", "StreamDestroy", "StreamQuery")
    nothing += ("StreamSynchronize", "StreamWaitEvent", "EventDestroy", "EventQuery", "EventSynchronize")
    streams_ = [f"cudaStreamCreate{how}" for how in ("", "WithFlags", "WithPriority")]
    return dict.fromkeys((f"cuda{name}" for name in nothing), calls.done()) | {
        **dict.fromkeys(["cudaRuntimeGetVersion", "cudaDriverGetVersion"], calls.done(served.CUDA_VERSION)),
        **dict.fromkeys(["cudaGetErrorName", "cudaGetErrorString"], calls.error_name),
        "cudaGetDeviceCount": lambda: (*calls.good, served.count()),
        "cudaGetDevice": lambda: (*calls.good, served.current_number()),
        "cudaSetDevice": calls.set_device,
        "cudaDeviceCanAccessPeer": lambda device, peer: calls.on_device(
            device if calls.on_device(peer) == calls.good else peer, int(int(device) != int(peer))
        ),
        "cudaDeviceEnablePeerAccess": lambda peer, flags=0: calls.on_device(peer),
        "cudaDeviceGetAttribute": calls.attribute,
        **_runtime_memory(calls),
        **dict.fromkeys(streams_, calls.handle(cuda.cudaStream_t)),
        **dict.fromkeys(["cudaEventCreate", "cudaEventCreateWithFlags"], calls.handle(cuda.cudaEvent_t)),
        **dict.fromkeys(["cudaEventRecord", "cudaEventRecordWithFlags"], calls.record),
        "cudaEventElapsedTime": calls.elapsed,
    }


def _runtime_memory(calls: _Calls) -> dict[str, Any]:
    """Return the functions that allocate, copy and fill memory."""
    bad_direction = (calls.codes.cudaErrorInvalidMemcpyDirection,)

    def allocate(kind: str) -> Callable[..., Any]:
        def allocated(size: int, *_: object) -> Any:
            address = memory.allocate(_size(size), kind) if _size(size) else 0
            return (calls.no_memory, None) if address is None else (*calls.good, address)

        return allocated

    def copy(target: Any, source: Any, size: int, kind: Any = 4, *_: object) -> Any:
        return calls.status(_copied(target, source, size)) if int(kind) in range(5) else bad_direction

    def copy_rows(
        target: object,
        pitch: object,
        source: object,
        other: object,
        width: object,
        height: object,
        kind: Any,
        *_: object,
    ) -> Any:
        if int(kind) not in range(5):
            return bad_direction
        return calls.status(_copied_rows(target, pitch, source, other, width, height))

    def copy_between(target: object, device: Any, source: object, other: Any, size: int, *_: object) -> Any:
        for number in (device, other):
            if calls.on_device(number) != calls.good:
                return calls.on_device(number)
        return calls.status(_copied(target, source, size))

    functions = {
        "cudaMallocHost": allocate("host"),
        "cudaHostAlloc": allocate("host"),
        "cudaFreeHost": calls.free("host"),
        "cudaMemGetInfo": calls.memory_info,
    }
    functions |= dict.fromkeys(["cudaMalloc", "cudaMallocManaged", "cudaMallocAsync"], allocate("device"))
    for name, function in {
        "cudaFree": calls.free("device"),
        "cudaMemcpy": copy,
        "cudaMemcpy2D": copy_rows,
        "cudaMemcpyPeer": copy_between,
        "cudaMemset": calls.fill(1),
    }.items():
        functions[name] = functions[f"{name}Async"] = function
    return functions
