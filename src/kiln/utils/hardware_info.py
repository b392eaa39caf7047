"""`HardwareInfo`: what the GPU is like. On the CPU target, what a GPU of the architecture compiled for would be like."""

from __future__ import annotations

import functools
from typing import Any

from ..base_dsl.target import target_name
from . import gpu_models
from ._driver import check, driver

__all__ = ["HardwareInfo"]


class HardwareInfo:
    """The numbers of a GPU."""

    def __init__(self, device_id: int = 0) -> None:
        self.device_id = device_id
        self._model = gpu_models.chosen() if target_name() == "cpu" else None
        if self._model is None:
            count = check(driver().cuDeviceGetCount())
            if not 0 <= device_id < count:
                raise ValueError(f"there is no device {device_id}: the driver shows {count}")

    def get_device_multiprocessor_count(self) -> int:
        """How many multiprocessors the GPU has."""
        return self._number("multiprocessors", "MULTIPROCESSOR_COUNT")

    def get_l2_cache_size_in_bytes(self) -> int:
        """Size of the L2 cache."""
        return self._number("l2_cache", "L2_CACHE_SIZE")

    def get_max_smem_per_block_in_bytes(self) -> int:
        """Shared memory one block can have."""
        return self._number("smem_per_block", "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    def get_max_active_clusters(self, cluster_size: int, stream: Any = None) -> int:
        """How many clusters of that many blocks, each with all shared memory of a multiprocessor, run at a time.

        Measured by the driver, for not every group of multiprocessors is whole; on the CPU target, as if all were.
        """
        if cluster_size < 1 or cluster_size > 32:
            raise ValueError(f"a cluster of {cluster_size} blocks: expected 1 to 32")
        if self._model is not None:
            return self._model.multiprocessors // cluster_size
        return _active_clusters(self.device_id, cluster_size, 0 if stream is None else int(stream))

    def _number(self, known: str, attribute: str) -> int:
        if self._model is not None:
            return getattr(self._model, known)
        cuda = driver()
        return check(
            cuda.cuDeviceGetAttribute(
                getattr(cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{attribute}"), self.device_id
            )
        )


# The driver answers for a kernel, so there must be one.
_EMPTY_KERNEL = b".version 7.8\n.target sm_%d\n.address_size 64\n.visible .entry empty() { ret; }\n\0"


@functools.lru_cache(maxsize=256)
def _active_clusters(device: int, cluster_size: int, stream: int) -> int:
    cuda = driver()
    context = check(cuda.cuCtxGetCurrent())
    retained = not int(context)
    if retained:
        check(cuda.cuCtxSetCurrent(check(cuda.cuDevicePrimaryCtxRetain(device))))
    which = cuda.CUdevice_attribute
    major = check(cuda.cuDeviceGetAttribute(which.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device))
    smem = check(cuda.cuDeviceGetAttribute(which.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device))
    if major < 9:  # no clusters: a block is one
        return check(cuda.cuDeviceGetAttribute(which.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device)) // cluster_size
    module = check(cuda.cuModuleLoadData(_EMPTY_KERNEL % 90))
    try:
        kernel = check(cuda.cuModuleGetFunction(module, b"empty"))
        attributes = cuda.CUfunction_attribute
        check(cuda.cuFuncSetAttribute(kernel, attributes.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, smem))
        check(cuda.cuFuncSetAttribute(kernel, attributes.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1))
        cluster = cuda.CUlaunchAttribute()
        cluster.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x = cluster_size
        cluster.value.clusterDim.y = cluster.value.clusterDim.z = 1
        launch = cuda.CUlaunchConfig()
        launch.gridDimX, launch.gridDimY, launch.gridDimZ = cluster_size, 1, 1
        launch.blockDimX, launch.blockDimY, launch.blockDimZ = 128, 1, 1
        launch.sharedMemBytes = smem
        launch.hStream = stream
        launch.attrs = [cluster]
        launch.numAttrs = 1
        return check(cuda.cuOccupancyMaxActiveClusters(kernel, launch))
    finally:
        check(cuda.cuModuleUnload(module))
