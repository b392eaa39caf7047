"""The implementation of matrix products for sm_90a, and what its configs are expected to take."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Uint8
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import Implementation
from . import sm90_cost
from .arguments import GemmArguments, block_tensors, more_tensors, other_tensors
from .problem import SCALE_BLOCK
from .sm90 import Sm90GemmKernel
from .sm90_config import Sm90GemmConfig
from .sm90_epilogue import TmaStoreEpilogue
from .sm90_smem_epilogue import SmemEpilogue
from .split_k import add_rows, run_sums
from .tile_scheduler import PersistentTileScheduler, SplitKTileScheduler

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from ...dispatch.problem import TensorLayout
    from .problem import GemmProblem

_STORED = (Float16, BFloat16, Float32, Float8E4M3FN, Float8E5M2, Int8, Uint8, Int32)
"""Types of results."""
UNIT = 16
"""Bytes that rows begin at multiples of, for the copy engine."""
_FARTHEST = 1 << 40
"""Bytes that a step of the copy engine is less than."""


class Sm90Gemm(Implementation):
    """`wgmma` on tiles that the copy engine loads and stores."""

    config = Sm90GemmConfig
    repeats = True

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if (why := self.suits(problem, device)) is not None:
            return why
        for out in problem.outs:
            if not ends(out):
                return f"the copy engine stores {UNIT} bytes at a time, and rows of the result end between: {out}"
        return None

    def suits(self, problem: GemmProblem, device: Device) -> str | None:
        """Why it cannot compute a problem, if nothing is lost that lies behind rows of the result."""
        if not device.warp_groups:
            return f"warp groups multiply on sm_90a alone, and {device.name} is sm_{device.generation.number}"
        dtype = problem.dtype
        if problem.mixed_input:
            return "operands of the tensor cores have elements of one kind; weights have kernels.Sm90MixedInputConfig"
        if dtype is Float32 and problem.precision != "tf32":
            return "f32 is rounded to TF32, which precision='ieee' rules out"
        for out in problem.out_types:
            if out not in _STORED:
                return f"the copy engine stores no {out.__name__}"
        operands = problem.operands()
        if dtype.width != 16 and not all(x.k_major for x in operands):
            return "operands of the tensor cores of sm_90a that have no 16 bits are contiguous in K"
        for name, x, mode in zip("ab", (problem.a, problem.b), (2, 1), strict=True):
            k_major = operands[name == "b"].k_major
            if not steps(x, mode if k_major else 3 - mode):
                return f"rows of {name} do not begin at multiples of {UNIT} bytes: {x}"
        for out in problem.outs:
            if not steps(out, 2):
                return f"rows of the result do not begin at multiples of {UNIT} bytes: {out}"
        return None

    def configs(self, problem: GemmProblem, device: Device) -> list[Sm90GemmConfig]:
        """The most promising first."""
        found = [(self.cost(problem, config, device), config) for config in sm90_cost.candidates(problem, device)]
        return [config for _, config in sorted(found, key=lambda pair: pair[0])]

    def cost(self, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> float:
        return sm90_cost.expected(problem, config, device)

    def cost_terms(self, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> dict[str, float]:
        return sm90_cost.bounds(problem, config, device)

    def check(self, problem: GemmProblem, config: Sm90GemmConfig, device: Device) -> None:
        stored = (Float32,) if config.split_k > 1 else problem.out_types  # sums are, for the second kernel
        config.check(problem.dtype, stored, problem.promoted, device, bool(problem.block_scales))
        config.check_split_k_smem(config.tile_shape_mnk[2] * problem.dtype.width // 8)
        arrays.require(
            not problem.reduces_rows or not (config.smem_epilogue or config.swap_ab or config.split_k > 1),
            f"{config}: sums of rows are made of whole sums, in rows of the tile",
            hint="split_k_cluster=1, swap_ab=False, split_k=1",
        )
        if problem.block_scales:
            arrays.require(
                config.tile_shape_mnk[2] == SCALE_BLOCK and not config.swap_ab,
                f"{config}: factors are of blocks of {SCALE_BLOCK} of K, and of rows of the tile",
                hint=f"K of {SCALE_BLOCK}, swap_ab=False",
            )
        stages = -(-problem.k // config.tile_shape_mnk[2])
        arrays.require(
            config.split_k_cluster * config.split_k <= stages,
            f"{config}: K of {problem.k} is {stages} stages, of which each part has one at least",
        )
        arrays.require(
            config.split_k == 1
            or (
                problem.shape[0] == 1
                and problem.acc_dtype is Float32
                and not problem.block_scales
                and problem.shape[2] % 4 == 0
            ),
            f"{config}: parts that a second kernel adds are of one product of floats without factors of blocks, and N of {problem.shape[2]} "
            f"is a multiple of 4",
        )

    def run(self, problem: GemmProblem, config: Sm90GemmConfig, given: GemmArguments) -> None:
        if config.split_k > 1:
            own = dataclasses.replace(config, split_k=2)  # however many there are: the same kernel
            run_sums(problem, config.split_k, given, lambda laid, parts: self.launch(laid, own, parts))
        else:
            self.launch(problem, config, given)

    def launch(self, problem: GemmProblem, config: Sm90GemmConfig, given: GemmArguments) -> None:
        """Run the kernel. Where a config has `sums`, batches of the result are of parts of K."""
        a, b = problem.operands()
        follow, tile = problem.fusion, config.tile_shape_mnk[:2]
        widths = None if follow.plain else problem.epilogue_input_widths
        differ = batched(problem.a), batched(problem.b), batched(problem.out)
        clusters = devices.max_active_clusters(config.cluster_size)

        def make() -> Sm90GemmKernel:
            if config.split_k_cluster * config.split_k > 1:
                scheduler = SplitKTileScheduler(
                    tile, config.raster_group, config.split_k_cluster, differ[2], config.split_k > 1
                )
            else:
                scheduler = PersistentTileScheduler(
                    tile, config.cluster_shape_mn, config.raster_group, clusters, differ[2]
                )
            epilogue = epilogue_of(problem, config, widths)
            return Sm90GemmKernel(
                a, b, differ, problem.promoted, bool(problem.block_scales), config, scheduler, epilogue
            )

        kinds = (a.dtype, a.k_major, b.dtype, b.k_major, problem.acc_dtype, problem.out_types)
        width = problem.out_width if config.smem_epilogue else 0
        key = (
            Sm90GemmKernel, kinds, differ, problem.promoted, bool(problem.block_scales), config, clusters, width, widths, follow.key,
        )  # fmt: skip
        kernel = launches.cached_kernel_of(follow.functions, make, *key)
        (batches, rows, n), sums = problem.shape, []
        if problem.reduces_rows:
            sums = [arrays.empty(given.a, (-(-n // tile[1]), batches, rows), arrays.dtype_named(given.a, "float32"))]
        launches.run_tensors(
            kernel, [given.a, given.b, given.out, *given.block_scales, *sums, *given.extra_outs, *given.epilogue_inputs],
            [
                *tensors_of(problem, given), *block_tensors(problem, given), *[arrays.dynamic(x, 2, 1) for x in sums],
                *more_tensors(problem, given), *other_tensors(problem, given),
            ],
            3, given.alpha, given.beta,
        )  # fmt: skip
        for x in sums:
            add_rows(x, given.row_sum)


def epilogue_of(
    problem: GemmProblem, config: Sm90GemmConfig, widths: tuple[int, ...] | None, grouped: bool = False
) -> TmaStoreEpilogue | SmemEpilogue:
    """What writes the results of a problem; `grouped`: rows of tiles begin and end anywhere."""
    out, acc, follow = problem.out_types, problem.acc_dtype, problem.fusion
    if config.smem_epilogue:
        return SmemEpilogue(config, acc, out, problem.out_width, follow.combiner(), widths, grouped)
    first, *more = (kind.width for kind in out)
    piece = config.epi_tile_n(first, not follow.plain, tuple(more))
    row_width = problem.out_width if grouped else 0
    return TmaStoreEpilogue(config, piece, acc, out, follow.combiner(), widths, row_width, problem.reduces_rows)


def tensors_of(problem: GemmProblem, given: GemmArguments) -> list[Any]:
    """A, B and the result as arguments."""
    a, b = problem.operands()
    modes = (2 if a.k_major else 1, 1 if b.k_major else 2, 2)
    return [
        arrays.dynamic(x, mode, UNIT // arrays.itemsize(x))
        for x, mode in zip((given.a, given.b, given.out), modes, strict=True)
    ]


def batched(x: TensorLayout) -> bool:
    """Whether batches of an array differ."""
    return x.shape[0] > 1 and x.strides[0] != 0


def ends(x: TensorLayout) -> bool:
    """Whether the copy engine can store rows of a result and nothing behind them: what is not there it leaves out by 16 bytes, and
    writes zeros behind the last column up to there (seen on an H200)."""
    return x.shape[2] * x.size % UNIT == 0


def steps(x: TensorLayout, leading: int) -> bool:
    """Whether the copy engine can step through an array that is contiguous along a mode."""
    return x.offset % UNIT == 0 and all(
        (mode == leading and step == 1)
        or (mode == 0 and not batched(x))
        or (step > 0 and step * x.size % UNIT == 0 and step * x.size < _FARTHEST)
        for mode, step in enumerate(x.strides)
    )
