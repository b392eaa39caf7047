"""The implementation of GEMM for sm_90a: what it supports, and how its kernel is made and launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32
from ....utils import schedulers
from ...dispatch.config import Rule
from ...dispatch.devices import features
from . import sm90_cost
from .problem import SCALE_BLOCK
from .sm90 import Sm90GemmKernel
from .sm90_config import Sm90GemmConfig
from .sm90_epilogue import TmaGemmEpilogue
from .sm90_smem_epilogue import SmemEpilogue
from .tma_gemm import TmaGemm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ....utils.schedulers import PersistentTileScheduler, SplitKTileScheduler
    from ...dispatch.devices import Device
    from ...dispatch.roofline import Roofline
    from .problem import GemmProblem


class Sm90Gemm(TmaGemm):
    """WGMMA on tiles that TMA loads and stores."""

    config = Sm90GemmConfig
    kernel: type[Any] = Sm90GemmKernel

    def lacks(self, problem: GemmProblem, device: Device) -> str | None:
        if (why := device.lacks(features.WARPGROUP_MMA)) is not None:
            return why
        if problem.vector_scales:
            return "scales of vectors along K multiply operands, and its MMA has none"
        if problem.mixed_input:
            return "its MMA has operands of one element type; an integer b has kernels.Sm90MixedInputConfig"
        return None

    def candidates(self, problem: GemmProblem, device: Device) -> Iterable[Sm90GemmConfig]:
        """Return the configs that may be worth it, in any order."""
        return sm90_cost.candidates(problem, device)

    def roofline(self, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> Roofline:
        return sm90_cost.roofline(problem, config, device)

    def rules(self, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> Iterator[Rule]:
        stored = (Float32,) if config.split_k > 1 else problem.out_types  # partials are f32
        batches, _, n = problem.shape
        tile_k = config.tile_shape_mnk[2]
        yield from config.rules(problem.dtype, stored, problem.promoted, device, bool(problem.block_scales))
        yield config.split_k_smem(tile_k * problem.dtype.width // 8)
        whole = not (config.smem_epilogue or config.swap_ab or config.split_k > 1)
        text = "row_reduction needs whole accumulators, in rows of the tile"
        yield Rule(not problem.reduces_rows or whole, text, "split_k_cluster=1, swap_ab=False, split_k=1")
        text = f"block scales are of {SCALE_BLOCK} of K, and of rows of the tile"
        scaled = tile_k == SCALE_BLOCK and not config.swap_ab
        yield Rule(not problem.block_scales or scaled, text, f"K of {SCALE_BLOCK}, swap_ab=False")
        k_tiles = -(-problem.k // tile_k)
        text = f"K of {problem.k} is {k_tiles} stages, and each part of split-K must have one at least"
        yield Rule(config.split_k_cluster * config.split_k <= k_tiles, text)
        summed = batches == 1 and problem.acc_dtype is Float32 and not problem.block_scales and n % 4 == 0
        text = f"split_k is for one GEMM of floats without block scales, and N of {n} must be a multiple of 4"
        yield Rule(config.split_k == 1 or summed, text)

    def kernel_options(self, problem: GemmProblem) -> tuple[bool, ...]:
        """Return the kernel's options: whether accumulators are promoted, and have block scales."""
        return problem.promoted, bool(problem.block_scales)

    def row_width(self, problem: GemmProblem, config: Sm90GemmConfig, scheduler: PersistentTileScheduler) -> int:
        return problem.out_width if config.smem_epilogue or scheduler.ragged else 0

    def make_kernel(
        self,
        problem: GemmProblem,
        config: Sm90GemmConfig,
        scheduler: PersistentTileScheduler,
        batched: tuple[bool, bool, bool],
    ) -> Sm90GemmKernel:
        a, b = problem.operands()
        epilogue = make_epilogue(problem, config, scheduler.ragged)
        return self.kernel(a, b, batched, *self.kernel_options(problem), config, scheduler, epilogue)

    def scheduler(
        self, problem: GemmProblem, config: Sm90GemmConfig, batched: bool, clusters: int
    ) -> PersistentTileScheduler | SplitKTileScheduler:
        """Return the tile scheduler, for a result with several batches or one."""
        tile = config.tile_shape_mnk[:2]
        in_cluster = config.split_k_cluster
        if in_cluster * config.split_k > 1:
            return schedulers.SplitKTileScheduler(tile, config.raster_group, in_cluster, batched, config.split_k > 1)
        return schedulers.PersistentTileScheduler(tile, config.cluster_shape_mn, config.raster_group, clusters, batched)


def make_epilogue(problem: GemmProblem, config: Sm90GemmConfig, ragged: bool = False) -> TmaGemmEpilogue | SmemEpilogue:
    """Return the epilogue of a problem; `ragged`: rows of tiles begin and end anywhere."""
    out = problem.out_types
    acc = problem.acc_dtype
    fusion = problem.fusion
    widths = problem.epilogue_input_widths
    if config.smem_epilogue:
        return SmemEpilogue(config, acc, out, problem.out_width, fusion.combiner(), widths, ragged)
    columns = config.epi_tile_n(*problem.out_bits, fused=not fusion.plain)
    row_width = problem.out_width if ragged else 0
    return TmaGemmEpilogue(config, columns, acc, out, fusion.combiner(), widths, row_width, problem.reduces_rows)
