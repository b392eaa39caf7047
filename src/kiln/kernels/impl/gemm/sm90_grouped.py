"""Grouped GEMM on sm_90a, in one kernel: CTAs find out on the device which tiles there are."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....utils import schedulers
from ...dispatch.config import Rule
from . import sm90_cost
from .sm90_config import ATOM_M, MMA_WARPGROUPS
from .sm90_implementation import Sm90Gemm
from .tma_gemm import is_batched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....utils.schedulers import GroupedRowsTileScheduler
    from ...dispatch.devices import Device
    from ...dispatch.roofline import Roofline
    from .problem import GroupedGemmProblem
    from .sm90_config import Sm90GemmConfig

_LEAST_STAGES = 3
_LEAST_SCALED_STAGES = 5


class Sm90GroupedGemm(Sm90Gemm):
    """WGMMA on tiles that TMA loads, of groups that CTAs look up."""

    def suits(self, problem: GroupedGemmProblem, device: Device) -> str | None:
        return problem.why_no_tma() or super().suits(problem, device)

    def configs(self, problem: GroupedGemmProblem, device: Device) -> list[Sm90GemmConfig]:
        costs: dict[Sm90GemmConfig, float] = {}
        for config in sm90_cost.candidates(problem.as_batch(), device, grouped=True):
            if not _suits_groups(config, problem):
                continue
            if config.cluster_shape_mn == (2, 1):  # a group's last rows may fill one tile of two: along N instead
                config = dataclasses.replace(config, cluster_shape_mn=(1, 2), raster_group=2 * config.raster_group)
            # The table of many groups takes the place of stages.
            over = max(0, _smem_bytes(problem, config) - device.smem)
            stages = config.ab_stages - -(-over // config.stage_bytes(problem.dtype.width, bool(problem.block_scales)))
            if stages >= _LEAST_STAGES:
                config = dataclasses.replace(config, ab_stages=stages)
                costs[config] = self.cost(problem, config, device)
        return sorted(costs, key=lambda config: costs[config])

    def roofline(self, problem: GroupedGemmProblem, config: Sm90GemmConfig, device: Device) -> Roofline:
        """Return the time for groups of equal size, with the rows that tiles have besides where sizes differ."""
        rows = problem.expected_rows
        tile_m, tile_n, _ = config.tile_shape_mnk
        tile_rows = tile_n if config.swap_ab else tile_m * config.cluster_shape_mn[0]
        halved = tile_rows == MMA_WARPGROUPS * ATOM_M and config.warpgroups_per_tile > 1 and not config.swap_ab
        steps = ATOM_M if halved and _memory_bound(problem) else tile_rows, tile_rows
        multiplied, loaded = (max(rows + step / 2, step) / (-(-rows // tile_rows) * tile_rows) for step in steps)
        growth = {"tensor cores": multiplied, "L2 cache": loaded}
        return sm90_cost.roofline(problem.as_batch(), config, device, growth=growth)

    def rules(self, problem: GroupedGemmProblem, config: Sm90GemmConfig, device: Device) -> Iterator[Rule]:
        yield from super().rules(problem, config, device)
        text = "groups have no split-K and no transpose_out, since rows of a group begin and end anywhere"
        plain = config.split_k_cluster * config.split_k == 1 and not config.transpose_out
        yield Rule(plain, text, "split_k_cluster=1, split_k=1, transpose_out=False")
        table = f" with a table of {problem.num_groups} groups"
        yield config.fits_smem(_smem_bytes(problem, config), device.smem, "fewer stages or a smaller tile", table)

    def batched(self, problem: GroupedGemmProblem) -> tuple[bool, bool, bool]:
        return is_batched(problem.a), problem.num_groups > 1, is_batched(problem.out)

    def scheduler(
        self, problem: GroupedGemmProblem, config: Sm90GemmConfig, batched: bool, clusters: int
    ) -> GroupedRowsTileScheduler:
        return schedulers.GroupedRowsTileScheduler(
            config.tile_shape_mnk[:2],
            config.cluster_shape_mn,
            config.raster_group,
            clusters,
            problem.table_groups,
            problem.contiguous,
            config.swap_ab,
            _memory_bound(problem),
        )


def _suits_groups(config: Sm90GemmConfig, problem: GroupedGemmProblem) -> bool:
    """Return whether a config may be worth it for groups; those that are left out were slower, or never measured."""
    tile_m = config.tile_shape_mnk[0]
    memory_bound = _memory_bound(problem)
    if config.split_k_cluster * config.split_k > 1:
        return False
    if tile_m == ATOM_M and not config.swap_ab:  # reads B twice as often; of few rows a tile of 128 multiplies half
        return False
    if memory_bound and (config.pingpong or config.swap_ab):  # multiply rows that are not there
        return False
    # accumulators of a stage are waited for: more stages have to be in flight, and not for two CTAs at once
    many_stages = config.cluster_size == 1 and config.ab_stages >= _LEAST_SCALED_STAGES
    if memory_bound and problem.block_scales and not many_stages:
        return False
    # which the model of single GEMMs does not see: 192 columns are 2 to 4 % slower than 160, and of few rows than 256
    slower = (160, 192) if memory_bound else (192,)
    columns = config.tile_shape_mnk[1]
    return tile_m != 192 and columns not in slower and not (config.swap_ab and tile_m > MMA_WARPGROUPS * ATOM_M)


def _memory_bound(problem: GroupedGemmProblem) -> bool:
    """Return whether groups have so few rows that memory bounds the GEMM."""
    return problem.expected_rows <= MMA_WARPGROUPS * ATOM_M


def _smem_bytes(problem: GroupedGemmProblem, config: Sm90GemmConfig) -> int:
    """Return the shared memory of a CTA, with the table of groups."""
    kernel_bytes = config.smem_bytes(problem.dtype.width, *problem.out_bits, block_scaled=bool(problem.block_scales))
    return kernel_bytes + problem.table_bytes
