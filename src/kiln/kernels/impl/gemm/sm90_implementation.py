"""The implementation of GEMM for sm_90a: what it supports, and how its kernel is made and launched."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Uint8
from ....utils import schedulers
from ...dispatch import arrays, devices, launches
from ...dispatch.config import Rule
from ...dispatch.devices import features
from ...dispatch.registry import Implementation
from . import sm90_cost
from .problem import SCALE_BLOCK
from .sm90 import Sm90GemmKernel
from .sm90_config import Sm90GemmConfig
from .sm90_epilogue import TmaGemmEpilogue
from .sm90_smem_epilogue import SmemEpilogue
from .split_k import reduce_row_partials, run_split_k_in_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ....utils.schedulers import PersistentTileScheduler, SplitKTileScheduler
    from ...dispatch.devices import Device
    from ...dispatch.problem import TensorLayout
    from ...dispatch.roofline import Roofline
    from .arguments import GemmArguments
    from .problem import GemmProblem

_STORED = (Float16, BFloat16, Float32, Float8E4M3FN, Float8E5M2, Int8, Uint8, Int32)
"""The types of results that TMA stores."""
TMA_ALIGNMENT = 16
"""Rows of a tensor begin at multiples of so many bytes for TMA."""
_MAX_TMA_STRIDE = 1 << 40
"""Strides of a TMA descriptor are less than so many bytes."""


class Sm90Gemm(Implementation):
    """WGMMA on tiles that TMA loads and stores."""

    config = Sm90GemmConfig
    repeats = True
    kernel: type[Any] = Sm90GemmKernel

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (why := self.suits(problem, device)) is not None:
            return why
        for out in problem.outs:
            if not rows_end_aligned(out):
                return f"TMA stores {TMA_ALIGNMENT} bytes at a time, and rows of the result end between: {out}"
        return None

    def suits(self, problem: GemmProblem, device: Device) -> str | None:
        """Return why it cannot compute a problem, if nothing is lost that lies behind rows of the result."""
        if (why := device.lacks(features.WARPGROUP_MMA)) is not None:
            return why
        dtype = problem.dtype
        if problem.mixed_input:
            return "its MMA has operands of one element type; an integer b has kernels.Sm90MixedInputConfig"
        if dtype is Float32 and problem.precision != "tf32":
            return "f32 is rounded to TF32, which precision='ieee' rules out"
        for out in problem.out_types:
            if out not in _STORED:
                return f"TMA stores no {out.__name__}"
        a, b = problem.operands()
        if dtype.width != 16 and not (a.k_major and b.k_major):
            return "WGMMA operands that have no 16 bits must be contiguous in K"
        operands = ("a", problem.a, 2 if a.k_major else 1), ("b", problem.b, 1 if b.k_major else 2)
        for name, x, mode in (*operands, *(("the result", out, 2) for out in problem.outs)):
            if not tma_readable(x, mode):
                return f"rows of {name} do not begin at multiples of {TMA_ALIGNMENT} bytes: {x}"
        return None

    def configs(self, problem: GemmProblem, device: Device) -> list[Sm90GemmConfig]:
        costs = [(self.cost(problem, config, device), config) for config in self.candidates(problem, device)]
        return [config for _, config in sorted(costs, key=lambda pair: pair[0])]

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

    def run(self, problem: GemmProblem, config: Sm90GemmConfig, args: GemmArguments) -> None:
        if config.split_k > 1:
            kernel_config = dataclasses.replace(config, split_k=2)  # however many parts there are: the same kernel
            run = lambda parts, batch: self.launch(parts, kernel_config, batch)
            run_split_k_in_kernel(problem, config.split_k, args, run)
        else:
            self.launch(problem, config, args)

    def launch(self, problem: GemmProblem, config: Sm90GemmConfig, args: GemmArguments) -> None:
        """Run the kernel. With `split_k`, the batches of the result are the partials of the slices of K."""
        batched = self.batched(problem)
        options = self.kernel_options(problem)
        fusion = problem.fusion
        scheduler = self.scheduler(problem, config, batched[2], devices.max_active_clusters(config.cluster_size))
        a, b = problem.operands()

        def make() -> Sm90GemmKernel:
            epilogue = make_epilogue(problem, config, scheduler.ragged)
            return self.kernel(a, b, batched, *options, config, scheduler, epilogue)

        operands = a.dtype, a.k_major, b.dtype, b.k_major, problem.acc_dtype, problem.out_types
        out_width = problem.out_width if config.smem_epilogue or scheduler.ragged else 0
        key = (
            type(self),
            operands,
            batched,
            *options,
            config,
            out_width,
            problem.epilogue_input_widths,
            fusion,
            *vars(scheduler).values(),
        )
        kernel = launches.cached_kernel_of(fusion.functions, make, *key)
        batches, rows, n = problem.shape
        partials = []
        if problem.reduces_rows:
            shape = (-(-n // config.tile_shape_mnk[1]), batches, rows)
            partials = [arrays.empty(args.a, shape, arrays.dtype_named(args.a, "float32"))]
        a_width, b_width, out_width = (TMA_ALIGNMENT // x.size for x in (problem.a, problem.b, problem.out))
        args.launch(kernel, problem, (a_width, b_width, out_width), partials)
        for x in partials:
            reduce_row_partials(x, args.row_sum)

    def batched(self, problem: GemmProblem) -> tuple[bool, bool, bool]:
        """Return whether A, B and D differ from batch to batch."""
        return is_batched(problem.a), is_batched(problem.b), is_batched(problem.out)

    def kernel_options(self, problem: GemmProblem) -> tuple[bool, ...]:
        """Return the kernel's options: whether accumulators are promoted, and have block scales."""
        return problem.promoted, bool(problem.block_scales)

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


def is_batched(x: TensorLayout) -> bool:
    """Return whether batches of an array differ."""
    return x.shape[0] > 1 and x.strides[0] != 0


def rows_end_aligned(x: TensorLayout) -> bool:
    """Return whether TMA stores rows of a result and nothing behind them: it leaves out whole 16 bytes only, and writes
    zeros behind the last column up to there (seen on an H200)."""
    return x.shape[2] * x.size % TMA_ALIGNMENT == 0


def tma_readable(x: TensorLayout, leading: int) -> bool:
    """Return whether TMA can access an array that is contiguous along a mode."""
    return x.offset % TMA_ALIGNMENT == 0 and all(
        (mode == leading and stride == 1)
        or (mode == 0 and not is_batched(x))
        or (stride > 0 and stride * x.size % TMA_ALIGNMENT == 0 and stride * x.size < _MAX_TMA_STRIDE)
        for mode, stride in enumerate(x.strides)
    )
