"""How much shared memory one block can have."""

from __future__ import annotations

import os

from . import gpu_models


def get_smem_capacity_in_bytes(compute_capability: str | None = None) -> int:
    """Bytes of shared memory one block can have on an architecture such as "sm_90".

    By default that of `CUTE_DSL_ARCH`, or of the GPU programs run on, or of `gpu_models.DEFAULT`.
    """
    if compute_capability is None and not os.environ.get("CUTE_DSL_ARCH", "").strip():
        from .hardware_info import HardwareInfo

        return HardwareInfo().get_max_smem_per_block_in_bytes()
    if compute_capability is None:
        return gpu_models.chosen().smem_per_block
    return gpu_models.of_architecture(compute_capability).smem_per_block
