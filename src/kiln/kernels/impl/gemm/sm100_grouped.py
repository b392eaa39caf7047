"""Grouped GEMM with tcgen05, in one kernel: CTAs find out on the device which tiles there are."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ....utils import schedulers
from ...dispatch.config import Rule
from . import sm100_cost
from .sm100_implementation import Sm100BlockScaledGemm, Sm100Gemm
from .tma_gemm import is_batched

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ....utils.schedulers import GroupedRowsTileScheduler
    from ...dispatch.devices import Device
    from ...dispatch.roofline import Roofline
    from .problem import GroupedGemmProblem
    from .sm100_config import Sm100GemmConfig

_LEAST_STAGES = 3


class Sm100GroupedGemm(Sm100Gemm):
    """tcgen05 on tiles that TMA loads, of groups that CTAs look up."""

    def suits(self, problem: GroupedGemmProblem, device: Device) -> str | None:
        return problem.why_no_tma() or super().suits(problem, device)

    def candidates(self, problem: GroupedGemmProblem, device: Device) -> Iterator[Sm100GemmConfig]:
        bits = problem.dtype.width
        for config in sm100_cost.candidates(problem.as_batch(), device, problem.scale_vector):
            if config.dynamic or config.split_k > 1:
                continue
            used = config.smem_bytes(bits, *problem.out_bits, vector=problem.scale_vector) + problem.table_bytes
            # The table of many groups takes the place of stages.
            over = max(0, used - device.smem)
            stages = config.ab_stages - -(-over // config.stage_bytes(bits, problem.scale_vector))
            if stages >= _LEAST_STAGES:
                yield dataclasses.replace(config, ab_stages=stages)

    def roofline(self, problem: GroupedGemmProblem, config: Sm100GemmConfig, device: Device) -> Roofline:
        """Return the time for groups of equal size, with the rows that tiles have besides where sizes differ."""
        rows = problem.expected_rows
        mode = 1 if config.swap_ab else 0
        step = config.cta_tile_mn[mode] * config.cluster_shape_mn[mode]
        growth = max(rows + step / 2, step) / (-(-rows // step) * step)
        return sm100_cost.roofline(problem.as_batch(), config, device, growth)

    def rules(self, problem: GroupedGemmProblem, config: Sm100GemmConfig, device: Device) -> Iterator[Rule]:
        yield from super().rules(problem, config, device)
        plain = config.split_k == 1 and not config.dynamic
        text = "groups have no split-K, and no cluster launch control: the host does not know how many tiles there are"
        yield Rule(plain, text, "split_k=1, dynamic=False")
        used = config.smem_bytes(problem.dtype.width, *problem.out_bits, vector=problem.scale_vector)
        table = f" with a table of {problem.num_groups} groups"
        yield config.fits_smem(used + problem.table_bytes, device.smem, "fewer stages or a smaller tile", table)

    def batched(self, problem: GroupedGemmProblem) -> tuple[bool, bool, bool]:
        return is_batched(problem.a), problem.num_groups > 1, is_batched(problem.out)

    def scheduler(
        self, problem: GroupedGemmProblem, config: Sm100GemmConfig, batched: bool, clusters: int
    ) -> GroupedRowsTileScheduler:
        return schedulers.GroupedRowsTileScheduler(
            config.cta_tile_mn,
            config.cluster_shape_mn,
            config.raster_group,
            clusters,
            problem.table_groups,
            problem.contiguous,
            config.swap_ab,
        )


class Sm100BlockScaledGroupedGemm(Sm100GroupedGemm, Sm100BlockScaledGemm):
    """tcgen05 on operands with scale factors, those of each group in atoms of its own."""
