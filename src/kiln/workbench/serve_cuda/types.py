"""Types of `cuda.bindings.driver` and `cuda.bindings.runtime`, for machines without the package."""

from __future__ import annotations

import enum
from typing import Any


class _Handle:
    """A number with a type."""

    def __init__(self, init_value: Any = 0) -> None:
        self._value = int(init_value)

    def __int__(self) -> int:
        return self._value

    __index__ = __int__

    def getPtr(self) -> int:
        """Return the handle itself as its address."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handle) and type(other) is type(self) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._value:#x}>"


def _handles(*names: str) -> dict[str, type]:
    return {name: type(name, (_Handle,), {"__module__": __name__}) for name in names}


def _enum(name: str, values: dict[str, int]) -> Any:
    return enum.IntEnum(name, values, module=__name__)


_RESULTS = {
    "INVALID_VALUE": 1,
    "OUT_OF_MEMORY": 2,
    "NOT_INITIALIZED": 3,
    "DEINITIALIZED": 4,
    "NO_DEVICE": 100,
    "INVALID_DEVICE": 101,
    "INVALID_IMAGE": 200,
    "INVALID_CONTEXT": 201,
    "NO_BINARY_FOR_GPU": 209,
    "INVALID_PTX": 218,
    "INVALID_HANDLE": 400,
    "NOT_FOUND": 500,
    "NOT_READY": 600,
    "ILLEGAL_ADDRESS": 700,
    "LAUNCH_OUT_OF_RESOURCES": 701,
    "LAUNCH_TIMEOUT": 702,
    "ILLEGAL_INSTRUCTION": 715,
    "MISALIGNED_ADDRESS": 716,
    "LAUNCH_FAILED": 719,
    "COOPERATIVE_LAUNCH_TOO_LARGE": 720,
    "NOT_PERMITTED": 800,
    "NOT_SUPPORTED": 801,
    "STREAM_CAPTURE_UNSUPPORTED": 900,
    "INVALID_CLUSTER_SIZE": 912,
    "UNKNOWN": 999,
}
_RUNTIME_RESULTS = {
    "InvalidValue": 1,
    "MemoryAllocation": 2,
    "InitializationError": 3,
    "InvalidConfiguration": 9,
    "InvalidMemcpyDirection": 21,
    "NoDevice": 100,
    "InvalidDevice": 101,
    "InvalidResourceHandle": 400,
    "NotReady": 600,
    "IllegalAddress": 700,
    "LaunchOutOfResources": 701,
    "LaunchFailure": 719,
    "CooperativeLaunchTooLarge": 720,
    "NotSupported": 801,
    "Unknown": 999,
}

_ATTRIBUTES = {
    "MAX_THREADS_PER_BLOCK": 1,
    "MAX_BLOCK_DIM_X": 2,
    "MAX_BLOCK_DIM_Y": 3,
    "MAX_BLOCK_DIM_Z": 4,
    "MAX_GRID_DIM_X": 5,
    "MAX_GRID_DIM_Y": 6,
    "MAX_GRID_DIM_Z": 7,
    "MAX_SHARED_MEMORY_PER_BLOCK": 8,
    "WARP_SIZE": 10,
    "MAX_REGISTERS_PER_BLOCK": 12,
    "CLOCK_RATE": 13,
    "MULTIPROCESSOR_COUNT": 16,
    "INTEGRATED": 18,
    "CONCURRENT_KERNELS": 31,
    "MEMORY_CLOCK_RATE": 36,
    "GLOBAL_MEMORY_BUS_WIDTH": 37,
    "L2_CACHE_SIZE": 38,
    "MAX_THREADS_PER_MULTIPROCESSOR": 39,
    "UNIFIED_ADDRESSING": 41,
    "COMPUTE_CAPABILITY_MAJOR": 75,
    "COMPUTE_CAPABILITY_MINOR": 76,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 81,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 82,
    "MANAGED_MEMORY": 83,
    "COOPERATIVE_LAUNCH": 95,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 97,
    "MAX_BLOCKS_PER_MULTIPROCESSOR": 106,
    "RESERVED_SHARED_MEMORY_PER_BLOCK": 111,
    "CLUSTER_LAUNCH": 120,
}

_RUNTIME_ATTRIBUTES = {
    "MaxThreadsPerBlock": 1,
    "MaxSharedMemoryPerBlock": 8,
    "WarpSize": 10,
    "MaxRegistersPerBlock": 12,
    "ClockRate": 13,
    "MultiProcessorCount": 16,
    "L2CacheSize": 38,
    "MaxThreadsPerMultiProcessor": 39,
    "ComputeCapabilityMajor": 75,
    "ComputeCapabilityMinor": 76,
    "MaxSharedMemoryPerMultiprocessor": 81,
    "MaxRegistersPerMultiprocessor": 82,
    "CooperativeLaunch": 95,
    "MaxSharedMemoryPerBlockOptin": 97,
    "MaxBlocksPerMultiprocessor": 106,
}

_COPIES = ("HostToHost", "HostToDevice", "DeviceToHost", "DeviceToDevice", "Default")

DRIVER: dict[str, Any] = {
    "CUresult": _enum("CUresult", {"CUDA_SUCCESS": 0} | {f"CUDA_ERROR_{k}": v for k, v in _RESULTS.items()}),
    "CUdevice_attribute": _enum("CUdevice_attribute", {f"CU_DEVICE_ATTRIBUTE_{k}": v for k, v in _ATTRIBUTES.items()}),
    "CUstream_flags": _enum("CUstream_flags", {"CU_STREAM_DEFAULT": 0, "CU_STREAM_NON_BLOCKING": 1}),
    "CUevent_flags": _enum(
        "CUevent_flags",
        {"CU_EVENT_DEFAULT": 0, "CU_EVENT_BLOCKING_SYNC": 1, "CU_EVENT_DISABLE_TIMING": 2, "CU_EVENT_INTERPROCESS": 4},
    ),
    "CUctx_flags": _enum("CUctx_flags", {"CU_CTX_SCHED_AUTO": 0, "CU_CTX_SCHED_SPIN": 1, "CU_CTX_MAP_HOST": 8}),
    "CUmemAttach_flags": _enum("CUmemAttach_flags", {"CU_MEM_ATTACH_GLOBAL": 1, "CU_MEM_ATTACH_HOST": 2}),
    "CUstreamCaptureStatus": _enum(
        "CUstreamCaptureStatus", {"CU_STREAM_CAPTURE_STATUS_NONE": 0, "CU_STREAM_CAPTURE_STATUS_ACTIVE": 1}
    ),
    **_handles("CUstream", "CUevent", "CUcontext", "CUdevice", "CUdeviceptr"),
}
"""Names of `cuda.bindings.driver`."""

RUNTIME: dict[str, Any] = {
    "cudaError_t": _enum("cudaError_t", {"cudaSuccess": 0} | {f"cudaError{k}": v for k, v in _RUNTIME_RESULTS.items()}),
    "cudaDeviceAttr": _enum("cudaDeviceAttr", {f"cudaDevAttr{k}": v for k, v in _RUNTIME_ATTRIBUTES.items()}),
    "cudaMemcpyKind": _enum("cudaMemcpyKind", {f"cudaMemcpy{way}": number for number, way in enumerate(_COPIES)}),
    "cudaStreamDefault": 0,
    "cudaStreamNonBlocking": 1,
    "cudaEventDefault": 0,
    "cudaEventBlockingSync": 1,
    "cudaEventDisableTiming": 2,
    "cudaMemAttachGlobal": 1,
    **_handles("cudaStream_t", "cudaEvent_t"),
}
"""Names of `cuda.bindings.runtime`."""
