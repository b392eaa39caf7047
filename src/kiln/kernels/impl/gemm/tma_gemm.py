"""What implementations of GEMM with TMA loads and stores share: which arrays they take, and how kernels are launched."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .... import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Uint8
from ....utils import schedulers
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import Implementation
from .split_k import reduce_row_partials, run_split_k_in_kernel

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...dispatch.devices import Device
    from ...dispatch.problem import TensorLayout
    from .arguments import GemmArguments
    from .problem import GemmProblem
    from .sm90 import Sm90GemmKernel
    from .sm90_config import Sm90GemmConfig
    from .sm100 import Sm100GemmKernel
    from .sm100_config import Sm100GemmConfig

    TmaGemmConfig = Sm90GemmConfig | Sm100GemmConfig

STORED = (Float16, BFloat16, Float32, Float8E4M3FN, Float8E5M2, Int8, Uint8, Int32)
"""The types of results that TMA stores."""
TMA_ALIGNMENT = 16
"""Rows of a tensor begin at multiples of so many bytes for TMA."""
_MAX_TMA_STRIDE = 1 << 40
"""Strides of a TMA descriptor are less than so many bytes."""


class TmaGemm(Implementation):
    """A kernel on tiles that TMA loads and stores; subclasses make it."""

    repeats = True

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (why := self.suits(problem, device)) is not None:
            return why
        for out in problem.outs:
            if not rows_end_aligned(out):
                return f"TMA stores {TMA_ALIGNMENT} bytes at a time, and rows of the result end between: {out}"
        return None

    def suits(self, problem: GemmProblem, device: Device) -> str | None:
        """Return why it cannot compute a problem, if nothing is lost that lies behind rows of the result."""
        if (why := self.lacks(problem, device)) is not None:
            return why
        if problem.dtype is Float32 and problem.precision != "tf32":
            return "f32 is rounded to TF32, which precision='ieee' rules out"
        for out in problem.out_types:
            if out not in STORED:
                return f"TMA stores no {out.__name__}"
        a, b = problem.operands()
        if self.needs_k_major(problem) and not (a.k_major and b.k_major):
            return "operands of its MMA that have no 16 bits must be contiguous in K"
        operands = ("a", problem.a, 2 if a.k_major else 1), ("b", problem.b, 1 if b.k_major else 2)
        for name, x, mode in (*operands, *(("the result", out, 2) for out in problem.outs)):
            if not tma_readable(x, mode):
                return f"rows of {name} do not begin at multiples of {TMA_ALIGNMENT} bytes: {x}"
        return None

    def lacks(self, problem: GemmProblem, device: Device) -> str | None:
        """Return why its MMA cannot multiply the operands of a problem, however they lie in memory."""
        raise NotImplementedError

    def needs_k_major(self, problem: GemmProblem) -> bool:
        """Return whether operands of its MMA must be contiguous in K."""
        return problem.dtype.width != 16

    def configs(self, problem: GemmProblem, device: Device) -> list[TmaGemmConfig]:
        costs = [(self.cost(problem, config, device), config) for config in self.candidates(problem, device)]
        return [config for _, config in sorted(costs, key=lambda pair: pair[0])]

    def candidates(self, problem: GemmProblem, device: Device) -> Iterable[TmaGemmConfig]:
        """Return the configs that may be worth it, in any order."""
        raise NotImplementedError

    def run(self, problem: GemmProblem, config: TmaGemmConfig, args: GemmArguments) -> None:
        if config.split_k > 1:
            kernel_config = dataclasses.replace(config, split_k=2)  # however many parts there are: the same kernel
            run = lambda parts, batch: self.launch(parts, kernel_config, batch)
            run_split_k_in_kernel(problem, config.split_k, args, run)
        else:
            self.launch(problem, config, args)

    def launch(self, problem: GemmProblem, config: TmaGemmConfig, args: GemmArguments) -> None:
        """Run the kernel. With `split_k`, the batches of the result are the partials of the slices of K."""
        batched = self.batched(problem)
        options = self.kernel_options(problem)
        fusion = problem.fusion
        scheduler = self.scheduler(problem, config, batched[2], devices.max_active_clusters(config.cluster_size))
        a, b = problem.operands()
        operands = a.dtype, a.k_major, b.dtype, b.k_major, problem.acc_dtype, problem.out_types
        key = (
            type(self),
            operands,
            batched,
            *options,
            config,
            self.row_width(problem, config, scheduler),
            problem.epilogue_input_widths,
            fusion,
            type(scheduler),
            *vars(scheduler).values(),
        )
        make = lambda: self.make_kernel(problem, config, scheduler, batched)
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

    def kernel_options(self, problem: GemmProblem) -> tuple[int, ...]:
        """Return options of the kernel besides types, config and epilogue."""
        return ()

    def row_width(
        self, problem: GemmProblem, config: TmaGemmConfig, scheduler: schedulers.PersistentTileScheduler
    ) -> int:
        """Return how many elements of a row one access writes, if threads store rows; 0: TMA stores all."""
        return 0

    def scheduler(
        self, problem: GemmProblem, config: TmaGemmConfig, batched: bool, clusters: int
    ) -> schedulers.PersistentTileScheduler:
        """Return the tile scheduler, for a result with several batches or one."""
        raise NotImplementedError

    def make_kernel(
        self,
        problem: GemmProblem,
        config: TmaGemmConfig,
        scheduler: schedulers.PersistentTileScheduler,
        batched: tuple[bool, bool, bool],
    ) -> Sm90GemmKernel | Sm100GemmKernel:
        """Return the kernel for a config."""
        raise NotImplementedError


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
