"""The CUDA driver, through `libcuda` itself: no package and no toolkit is needed, and no GPU to import this."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator
from typing import Any

from ..base_dsl.diagnostics import DSLCudaRuntimeError

_RELAXED = 2
SUCCESS = 0
INVALID_VALUE = 1
NOT_INITIALIZED = 3
NO_BINARY = 209
INVALID_CONTEXT = 201
INVALID_HANDLE = 400
OUT_OF_RESOURCES = 701

_ATTRIBUTES = {
    "max_threads_per_block": 1,
    "max_block_x": 2,
    "max_block_y": 3,
    "max_block_z": 4,
    "max_grid_x": 5,
    "max_grid_y": 6,
    "max_grid_z": 7,
    "clock_rate": 13,
    "sm_count": 16,
    "l2_bytes": 38,
    "max_threads_per_sm": 39,
    "major": 75,
    "minor": 76,
    "smem_per_sm": 81,
    "registers_per_block": 12,
    "cooperative_launch": 95,
    "smem_optin": 97,
    "cluster_launch": 120,
}


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("smem", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("count", ctypes.c_uint32),
    ]


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute, with the extents of a cluster as its value."""

    CLUSTER = 4
    _fields_ = [("kind", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_uint32 * 16)]


_FUNCTION_ATTRIBUTES = {"max_dynamic_smem": 8, "carveout": 9, "non_portable_cluster": 14}

# What to do about an error, where there is something to say.
_ADVICE = {
    2: "free GPU memory, or make the problem smaller",
    100: "this process sees no GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES",
    209: "compile for the architecture of this GPU: leave --gpu-arch and CUTE_DSL_ARCH unset",
    222: "the driver is too old for this PTX: update it, or install ptxas (pip install nvidia-cuda-nvcc)",
    700: "a kernel launched before this call read or wrote outside its memory: run the program under compute-sanitizer",
    701: "use fewer threads per block, or fewer registers (min_blocks_per_mp, max_number_threads)",
    702: "a kernel ran too long for a GPU that also draws the screen",
    715: "a kernel executed an instruction this GPU does not have",
    716: "a kernel made an access that is not aligned: check the alignment of pointers and assumed_align",
    719: "a kernel failed on the device: run the program under compute-sanitizer",
    720: "the grid of a cooperative launch must fit on the device at once",
    900: "this is not possible while a stream is being captured",
    912: "too many blocks or too much shared memory for the cluster size",
}
STICKY = frozenset({700, 702, 709, 710, 714, 715, 716, 717, 718, 719})
"""Errors of kernels that ended: every later call in the process reports them too."""

last_launches: Callable[[], str] = str
"""Describes the launches made last, for such errors; whoever launches kernels sets it."""
launches: Callable[[], int] = int
"""How many there were; likewise."""


@functools.lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """`libcuda`, or None where there is no driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def function(name: str) -> Any:
    """Return a function of the driver."""
    cuda = library()
    if cuda is None:
        raise DSLCudaRuntimeError(
            "there is no CUDA driver on this machine (libcuda.so.1 was not found)",
            hint='run on the CPU: kiln.target("cpu") or KILN_TARGET=cpu',
            error_code=error_code(35),
        )
    try:
        return getattr(cuda, name)
    except AttributeError:
        raise DSLCudaRuntimeError(
            f"the CUDA driver has no {name}: it is older than CUDA 12.0", hint="update the driver"
        ) from None


@functools.lru_cache(maxsize=1)
def _initialized() -> int:
    return function("cuInit")(0)


def call(name: str, *arguments: object) -> None:
    """Call a function of the driver; an error it returns is raised."""
    entry = function(name)
    status = _initialized()
    if not status:
        status = entry(*arguments)
    if status:
        raise failure(status, name)


def status_name(status: int) -> str:
    """Return the name of a status, for example "CUDA_ERROR_ILLEGAL_ADDRESS"."""
    text = ctypes.c_char_p()
    cuda = library()
    if cuda is None or cuda.cuGetErrorName(status, ctypes.byref(text)) or not text.value:
        return f"CUDA error {status}"
    return text.value.decode()


def error_code(status: int) -> Any:
    """Return the status as cuda-bindings' `CUresult` where that package is there, else a number; both compare equal."""
    try:
        from cuda.bindings import driver as bindings  # pyright: ignore[reportAttributeAccessIssue, reportMissingImports]

        return bindings.CUresult(status)
    except (ImportError, ValueError):
        return status


def failure(status: int, doing: str, hint: str = "") -> DSLCudaRuntimeError:
    """Return the error to raise for a status."""
    message = f"{doing}: {status_name(status)} (error {status})"
    if status in STICKY:
        message += ", from a kernel launched earlier"
        suspects = last_launches()
        if suspects:
            message += f"; the last launches were:\n{suspects}"
            hint = hint or f"{_ADVICE.get(status, '')}; with CUDA_LAUNCH_BLOCKING=1 the launch itself fails".lstrip(
                "; "
            )
    return DSLCudaRuntimeError(message, hint=hint or _ADVICE.get(status, ""), error_code=error_code(status))


@functools.lru_cache(maxsize=1)
def available() -> bool:
    """Return whether there is a driver and a GPU it shows to this process."""
    if library() is None or _initialized():
        return False
    return device_count() > 0


def device_count() -> int:
    """Return how many GPUs the driver shows."""
    count = ctypes.c_int()
    call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


@functools.lru_cache(maxsize=1)
def several() -> bool:
    """Return whether there is more than one GPU."""
    return available() and device_count() > 1


def is_current(device: int) -> bool:
    """Return whether a device is the one that kernels are launched on."""
    return current_device() == device


@functools.lru_cache(maxsize=64)
def _primary_context(device: int) -> int:
    """Return the primary context of a device, which is what the CUDA runtime uses; kept for the life of the process."""
    context = ctypes.c_void_p()
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return context.value or 0


@contextlib.contextmanager
def on_device(device: int) -> Iterator[None]:
    """While open, the primary context of a device is the current one of this thread."""
    call("cuCtxPushCurrent_v2", ctypes.c_void_p(_primary_context(device)))
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


def current_device() -> int:
    """Return the device of the current context; 0 if there is none."""
    device = ctypes.c_int()
    if function("cuCtxGetDevice")(ctypes.byref(device)):
        return 0
    return device.value


def ensure_context() -> None:
    """Make the primary context of device 0 current if no context is: what the CUDA runtime does too."""
    current = ctypes.c_void_p()
    call("cuCtxGetCurrent", ctypes.byref(current))
    if not current.value:
        set_device(0)


DEVICE_ORDINAL = 9
"""The CU_POINTER_ATTRIBUTEs of memory."""


def device_of(address: int) -> int | None:
    """Return the number of the device that memory belongs to; None if the driver does not know it."""
    number = ctypes.c_int(0)
    status = function("cuPointerGetAttribute")(ctypes.byref(number), DEVICE_ORDINAL, ctypes.c_uint64(address))
    return None if status or number.value < 0 else number.value


def set_device(device: int) -> int:
    """Make the primary context of a device this thread's current one; its handle."""
    context = _primary_context(device)
    call("cuCtxSetCurrent", ctypes.c_void_p(context))
    return context


@functools.lru_cache(maxsize=1024)
def attribute(name: str, device: int) -> int:
    """Return an attribute of a device, by Kiln's name for it."""
    value = ctypes.c_int()
    call("cuDeviceGetAttribute", ctypes.byref(value), _ATTRIBUTES[name], device)
    return value.value


def capability(device: int | None = None) -> tuple[int, int]:
    """Return the compute capability of a device; by default, of the current one."""
    device = current_device() if device is None else device
    return attribute("major", device), attribute("minor", device)


def device_name(device: int) -> str:
    """Return what the device calls itself."""
    text = ctypes.create_string_buffer(256)
    call("cuDeviceGetName", text, len(text), device)
    return text.value.decode(errors="replace")


def uuid(device: int) -> str:
    """Return the UUID of a device, as in "GPU-5a7f...", which does not depend on the visible devices as numbers do."""
    raw = (ctypes.c_ubyte * 16)()
    call("cuDeviceGetUuid_v2", raw, device)
    text = bytes(raw).hex()
    return "GPU-" + "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def total_memory(device: int) -> int:
    """Bytes of memory of a device."""
    size = ctypes.c_size_t()
    call("cuDeviceTotalMem_v2", ctypes.byref(size), device)
    return size.value


def set_kernel_attribute(kernel: int, name: str, value: int, device: int) -> int:
    """Set an attribute of a loaded kernel on a device; the status."""
    return function("cuKernelSetAttribute")(_FUNCTION_ATTRIBUTES[name], value, ctypes.c_void_p(kernel), device)


def load_library(image: bytes) -> int:
    """Load a cubin or PTX (a string that ends in a zero byte) for all devices; its handle."""
    handle = ctypes.c_void_p()
    call("cuLibraryLoadData", ctypes.byref(handle), image, None, None, 0, None, None, 0)
    return handle.value or 0


def library_kernel(library_: int, name: str) -> int:
    """Return the handle of a kernel, usable in every context."""
    handle = ctypes.c_void_p()
    call("cuLibraryGetKernel", ctypes.byref(handle), ctypes.c_void_p(library_), name.encode())
    return handle.value or 0


def library_global(library_: int, name: str) -> tuple[int, int]:
    """Return the address, in the current context, and the size of a global variable."""
    address = ctypes.c_void_p()
    size = ctypes.c_size_t()
    call("cuLibraryGetGlobal", ctypes.byref(address), ctypes.byref(size), ctypes.c_void_p(library_), name.encode())
    return address.value or 0, size.value


def read_memory(address: int, size: int) -> bytes:
    """Bytes of device memory."""
    data = ctypes.create_string_buffer(size)
    call("cuMemcpyDtoH_v2", data, ctypes.c_uint64(address), ctypes.c_size_t(size))
    return data.raw


def clear_memory(address: int, size: int) -> None:
    """Set bytes of device memory to zero."""
    call("cuMemsetD8_v2", ctypes.c_uint64(address), 0, ctypes.c_size_t(size))


def copy_memory(target: int, source: int, size: int, stream: int) -> None:
    """Copy device memory, as the driver does it."""
    places = ctypes.c_uint64(target), ctypes.c_uint64(source)
    call("cuMemcpyDtoDAsync_v2", *places, ctypes.c_size_t(size), ctypes.c_void_p(stream))


@contextlib.contextmanager
def uncaptured() -> Iterator[None]:
    """While open, this thread may load code although a stream is being captured: it is no part of the graph."""
    mode = ctypes.c_int(_RELAXED)
    call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    try:
        yield
    finally:
        call("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))


@functools.lru_cache(maxsize=1)
def cuda_version() -> str | None:
    """Return the CUDA release of the driver, as in "13.0"; None without one."""
    if library() is None:
        return None
    number = ctypes.c_int()
    status = function("cuDriverGetVersion")(ctypes.byref(number))  # a driver that shows no GPU has a version, too
    if status:
        raise failure(status, "cuDriverGetVersion")
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def is_capturing(stream: int) -> bool:
    """Return whether work on a stream is being recorded into a graph."""
    status = ctypes.c_int()
    call("cuStreamIsCapturing", ctypes.c_void_p(stream), ctypes.byref(status))
    return status.value != 0


def synchronize(stream: int) -> None:
    """Wait for a stream."""
    call("cuStreamSynchronize", ctypes.c_void_p(stream))


# The driver counts clusters for a kernel, so there must be one.
_EMPTY_KERNEL = b".version 7.8\n.target sm_90\n.address_size 64\n.visible .entry empty() { ret; }\n\0"


@functools.lru_cache(maxsize=256)
def active_clusters(device: int, smem: int, size: int, stream: int) -> int:
    """Return how many clusters of `size` blocks with `smem` bytes of shared memory run on a device at a time."""
    count = ctypes.c_int()
    with on_device(device):
        loaded = load_library(_EMPTY_KERNEL)
        try:
            kernel = library_kernel(loaded, "empty")
            for name, value in (("max_dynamic_smem", smem), ("non_portable_cluster", 1)):
                status = set_kernel_attribute(kernel, name, value, device)
                if status:
                    raise failure(status, "cuKernelSetAttribute")
            cluster = LaunchAttribute(LaunchAttribute.CLUSTER, 0, (size, 1, 1))
            config = LaunchConfig((size, 1, 1), (128, 1, 1), smem, stream, ctypes.addressof(cluster), 1)
            place = ctypes.byref(count)
            handle = ctypes.c_void_p(kernel)
            call("cuOccupancyMaxActiveClusters", place, handle, ctypes.byref(config))
        finally:
            call("cuLibraryUnload", ctypes.c_void_p(loaded))
    return count.value


# --- streams, events, graphs ------------------------------------------------------------------------------------------


def _destroy(name: str, handle: object) -> None:
    """Give back what was made, if it was."""
    cuda = library()
    if handle and cuda is not None:
        getattr(cuda, name)(handle)


class Stream:
    """A stream of its own, which does not wait for the default one."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(self._handle), 1)

    def __int__(self) -> int:
        return self._handle.value or 0

    def __del__(self) -> None:
        _destroy("cuStreamDestroy_v2", self._handle)


class Event:
    """A point in the work of a stream, and when it was reached."""

    def __init__(self) -> None:
        self._handle = ctypes.c_void_p()
        call("cuEventCreate", ctypes.byref(self._handle), 0)

    def record(self, stream: int) -> None:
        """Let it be what is on the stream now."""
        call("cuEventRecord", self._handle, ctypes.c_void_p(stream))

    def record_in_graph(self, stream: int) -> None:
        """While the stream is captured: let it be reached anew whenever the graph comes to this point."""
        external = 1
        call("cuEventRecordWithFlags", self._handle, ctypes.c_void_p(stream), external)

    def microseconds_since(self, start: Event) -> float:
        """Wait for both; the time between them."""
        call("cuEventSynchronize", self._handle)
        passed = ctypes.c_float()
        call("cuEventElapsedTime", ctypes.byref(passed), start._handle, self._handle)
        return passed.value * 1e3

    def __del__(self) -> None:
        _destroy("cuEventDestroy_v2", self._handle)


class Graph:
    """What a function put on a stream while it was captured; a call launches it."""

    def __init__(self, stream: int, work: Callable[[], None]) -> None:
        thread_local = 1
        self._stream = ctypes.c_void_p(stream)
        self._graph = ctypes.c_void_p()
        self._executable = ctypes.c_void_p()
        call("cuStreamBeginCapture_v2", self._stream, thread_local)
        try:
            work()
        finally:
            call("cuStreamEndCapture", self._stream, ctypes.byref(self._graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(self._executable), self._graph, ctypes.c_ulonglong(0))

    def __call__(self) -> None:
        call("cuGraphLaunch", self._executable, self._stream)

    def __del__(self) -> None:
        _destroy("cuGraphExecDestroy", self._executable)
        _destroy("cuGraphDestroy", self._graph)


captured = Graph


def captured_nodes(stream: int) -> int:
    """Return how many nodes the graph has that a stream is captured into now."""
    status = ctypes.c_int()
    graph = ctypes.c_void_p()
    count = ctypes.c_size_t()
    place = ctypes.byref(graph)
    call("cuStreamGetCaptureInfo_v2", ctypes.c_void_p(stream), ctypes.byref(status), None, place, None, None)
    if not graph:
        return 0
    call("cuGraphGetNodes", graph, None, ctypes.byref(count))
    return count.value


def synchronize_device() -> None:
    """Wait for all work of the current context, whatever stream it is on."""
    call("cuCtxSynchronize")


class Memory:
    """Device memory, zero at first."""

    def __init__(self, size: int) -> None:
        self._address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self._address), ctypes.c_size_t(size))
        clear_memory(self.address, size)
        synchronize(0)  # other streams do not wait for the one it is cleared on

    @property
    def address(self) -> int:
        return self._address.value

    def __del__(self) -> None:
        _destroy("cuMemFree_v2", self._address)
