"""The roles of the warps of GEMM on sm_90a."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...parts.warp_roles import RoleBarrier, WarpgroupRole, WarpRoles

if TYPE_CHECKING:
    from .sm90_config import Sm90GemmConfig

_REGISTERS = {2: (40, 232), 4: (32, 112)}
"""Registers of a producer thread and of a consumer thread, by the number of consumer warpgroups: all that there are."""


def gemm_roles(config: Sm90GemmConfig) -> WarpRoles:
    """Return the roles: a producer warpgroup, whose warps load operands and block scales, and consumer warpgroups.

    In the epilogue, warpgroups meet one by one, or those that share a tile, if threads write it together.
    """
    producer, consumer = _REGISTERS[config.mma_warpgroups]
    together = config.warpgroups_per_tile if config.smem_epilogue else 1
    return WarpRoles(
        WarpgroupRole("producer", producer, warps=("load", "load scales")),
        WarpgroupRole("consumer", consumer, config.mma_warpgroups),
        barriers=(RoleBarrier("epilogue", {"consumer": 4 * together}, config.mma_warpgroups // together),),
    )
