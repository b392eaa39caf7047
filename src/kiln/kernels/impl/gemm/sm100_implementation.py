"""The implementation of GEMM with tcgen05: what it supports, and how its kernel is made."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .... import Float32
from ....utils import schedulers
from ...dispatch.config import Rule
from ...dispatch.devices import features
from ...parts.clc_tiles import ClcTileScheduler
from . import sm100_cost
from .problem import INTEGERS
from .sm100 import Sm100GemmKernel
from .sm100_block_scaled import Sm100BlockScaledGemmKernel
from .sm100_config import Sm100GemmConfig
from .sm100_epilogue import Sm100Epilogue
from .tma_gemm import TmaGemm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ....utils.schedulers import PersistentTileScheduler
    from ...dispatch.devices import Device
    from ...dispatch.roofline import Roofline
    from .arguments import GemmArguments
    from .problem import GemmProblem


class Sm100Gemm(TmaGemm):
    """tcgen05 on tiles that TMA loads and stores, with accumulators in tensor memory."""

    config = Sm100GemmConfig
    predicted = True
    scaled = False
    """Whether operands have scales of vectors along K."""
    kernel = Sm100GemmKernel

    def lacks(self, problem: GemmProblem, device: Device) -> str | None:
        if (why := device.lacks(features.TCGEN05)) is not None:
            return why
        if problem.mixed_input:
            return "its MMA has operands of one element type"
        if bool(problem.vector_scales) != self.scaled:
            return f"operands have {'no ' * self.scaled}scales of vectors"
        if problem.block_scales:
            return "block scales of f32 multiply accumulators of 128 elements of K, and it accumulates all of K"
        if problem.dtype in INTEGERS:
            if (why := device.lacks(features.TCGEN05_I8)) is not None:
                return why
            if problem.a.dtype is not problem.b.dtype:
                return (
                    f"its MMA has integers of one type, and a is {problem.dtype.__name__}, b {problem.b.dtype.__name__}"
                )
        return None

    def needs_k_major(self, problem: GemmProblem) -> bool:
        return problem.fp4  # two elements along K are a byte

    def candidates(self, problem: GemmProblem, device: Device) -> Iterable[Sm100GemmConfig]:
        return sm100_cost.candidates(problem, device, problem.scale_vector)

    def roofline(self, problem: GemmProblem, config: Sm100GemmConfig, device: Device) -> Roofline:
        return sm100_cost.roofline(problem, config, device)

    def rules(self, problem: GemmProblem, config: Sm100GemmConfig, device: Device) -> Iterator[Rule]:
        stored = (Float32,) if config.split_k > 1 else problem.out_types  # partials are f32
        batches, _, n = problem.shape
        yield from config.rules(problem.dtype, stored, device, problem.scale_vector)
        whole = not config.swap_ab and config.split_k == 1
        text = "row_reduction needs whole accumulators, in rows of the tile"
        yield Rule(not problem.reduces_rows or whole, text, "swap_ab=False, split_k=1")
        k_tiles = -(-problem.k // config.tile_shape_mnk[2])
        text = f"K of {problem.k} is {k_tiles} stages, and each part of split-K must have one at least"
        yield Rule(config.split_k <= k_tiles, text)
        summed = batches == 1 and problem.acc_dtype is Float32 and n % 4 == 0
        text = f"split_k is for one GEMM of floats, and N of {n} must be a multiple of 4"
        yield Rule(config.split_k == 1 or summed, text)

    def launch(self, problem: GemmProblem, config: Sm100GemmConfig, args: GemmArguments) -> None:
        if args.alpha == 1.0 and problem.acc_dtype is Float32:  # a third of the instructions of a plain epilogue
            problem = dataclasses.replace(problem, fusion=dataclasses.replace(problem.fusion, scaled=False))
        super().launch(problem, config, args)

    def row_width(self, problem: GemmProblem, config: Sm100GemmConfig, scheduler: PersistentTileScheduler) -> int:
        return problem.out_width if scheduler.ragged else 0

    def scheduler(
        self, problem: GemmProblem, config: Sm100GemmConfig, batched: bool, clusters: int
    ) -> PersistentTileScheduler:
        tile = config.cta_tile_mn
        shape = config.cluster_shape_mn
        if config.dynamic:
            return ClcTileScheduler(tile, shape, config.raster_group, config.tile_readers, batched)
        return schedulers.PersistentTileScheduler(tile, shape, config.raster_group, clusters, batched)

    def make_kernel(
        self,
        problem: GemmProblem,
        config: Sm100GemmConfig,
        scheduler: PersistentTileScheduler,
        batched: tuple[bool, bool, bool],
    ) -> Sm100GemmKernel:
        a, b = problem.operands()
        widths = problem.epilogue_input_widths
        epilogue = Sm100Epilogue(
            config,
            problem.acc_dtype,
            problem.out_types,
            problem.fusion.combiner(),
            widths,
            problem.reduces_rows,
            self.row_width(problem, config, scheduler),
        )
        return self.kernel(a, b, batched, config, scheduler, epilogue, *self.kernel_options(problem))


class Sm100BlockScaledGemm(Sm100Gemm):
    """tcgen05 on operands with scale factors, which tensor cores multiply (mxfp8, mxfp4, nvfp4)."""

    scaled = True
    kernel = Sm100BlockScaledGemmKernel

    def kernel_options(self, problem: GemmProblem) -> tuple[int, ...]:
        """Return how many elements share a scale factor."""
        return (problem.scale_vector,)
