"""The implementations of matrix products.

One for another architecture has a main loop of its own and the type of its configs; schedulers and epilogues can be those that are here.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from .... import Float32
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import Implementation, Registry
from . import sm80_cost
from .arguments import GemmArguments, group_tensors, more_tensors, other_tensors
from .epilogue_fusion import EpilogueFusion
from .mixed_input import DequantizeFallback
from .mixed_input_fragments import STEP
from .problem import FLOATS8, INTEGERS, SCALE_BLOCK, GemmProblem
from .simt import SimtGemmKernel
from .sm80 import Sm80GemmKernel
from .sm80_config import MAX_PORTABLE_CLUSTER, Sm80GemmConfig, k_step
from .sm80_epilogue import SimtEpilogue, Sm80Epilogue
from .sm80_mixed_input import Sm80MixedInputEpilogue, Sm80MixedInputGemmKernel
from .sm80_mixed_input import smem_bytes as narrow_smem_bytes
from .sm90_implementation import Sm90Gemm
from .sm90_mixed_input import Sm90MixedInputGemm
from .sm90_padded import Sm90PaddedGemm
from .split_k import combine_parts, run_parts
from .tile_scheduler import MAX_GRID_Y, Sm80TileScheduler

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .sm80_mainloop import MultistageGemmKernel

REGISTRY = Registry("gemm")


class MultistageGemm(Implementation):
    """Threads that copy and multiply in turn; K may be cut among the blocks of a cluster, or for a second kernel to add."""

    config = Sm80GemmConfig
    repeats = True
    kernel: type[MultistageGemmKernel]
    epilogue: type[Sm80Epilogue]

    def candidates(self, problem: GemmProblem) -> tuple[sm80_cost.Candidate, ...]:
        """Configs that were measured."""
        raise NotImplementedError

    def step(self, problem: GemmProblem) -> int:
        """K of an instruction."""
        raise NotImplementedError

    def smem_bytes(self, problem: GemmProblem, config: Sm80GemmConfig) -> int:
        """Shared memory of a block."""
        raise NotImplementedError

    def configs(self, problem: GemmProblem, device: Device) -> list[Sm80GemmConfig]:
        """Those that were measured, with K in parts; what is expected to take least time first."""
        found: list[tuple[float, Sm80GemmConfig]] = []
        for candidate, config in sm80_cost.cuts(problem, self.candidates(problem), self.step(problem), device):
            took = sm80_cost.expected(problem, candidate, config, self.smem_bytes(problem, config), device)
            if took < float("inf"):
                found.append((took, config))
        return [config for _, config in sorted(found, key=lambda pair: pair[0])]

    def cost(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> float:
        like = sm80_cost.nearest(config, self.candidates(problem))
        return sm80_cost.expected(problem, like, config, self.smem_bytes(problem, config), device)

    def check(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> None:
        if config.in_clusters(device):
            return
        config.check_splits(problem.k, problem.shape[0])
        arrays.require(
            config.split_k == 1 or problem.dtype not in INTEGERS,
            f"{config}: K is cut into parts that a second kernel adds only for floats",
        )

    def run(self, problem: GemmProblem, config: Sm80GemmConfig, given: GemmArguments) -> None:
        device = devices.current()
        if config.split_k > 1 and not config.in_clusters(device):
            run_parts(self, problem, dataclasses.replace(config, split_k=1), config.split_k, given)
            return
        half = problem.dtype in FLOATS8 and not device.float8
        a, b = (
            dataclasses.replace(operand, half=half, few=rows < tile)
            for operand, rows, tile in zip(
                problem.operands(), problem.shape[1:], config.tile_shape_mnk[:2], strict=True
            )
        )
        follow, tile = problem.fusion, config.tile_shape_mnk[:2]
        widths = None if follow.plain else problem.epilogue_input_widths
        out = (problem.acc_dtype, problem.out_types, problem.out_width)

        weights, many = self.of_weights(problem), problem.shape[0] > MAX_GRID_Y

        def make() -> MultistageGemmKernel:
            epilogue = self.epilogue(tile, config.threads, config.split_k, *out, follow.combiner(), widths)
            return self.kernel(a, b, config, Sm80TileScheduler(tile, config.split_k, many), epilogue, **weights)

        key = (self.kernel, a, b, out, config, many, widths, follow.key, *weights.values())
        kernel = launches.cached_kernel_of(follow.functions, make, *key)
        leading = problem.a.leading((1, 2)), problem.b.leading((2, 1))
        tensors = [
            arrays.dynamic(x, mode, operand.width)
            for x, mode, operand in zip((given.a, given.b), leading, (a, b), strict=True)
        ]
        result = arrays.dynamic(given.out, 2, problem.out_width)
        groups = [] if given.group_scales is None else [given.group_scales]
        launches.run_tensors(
            kernel, [given.a, given.b, given.out, *groups, *given.extra_outs, *given.epilogue_inputs],
            [
                *tensors, result, *group_tensors(problem, given), *more_tensors(problem, given),
                *other_tensors(problem, given),
            ],
            3, given.alpha, given.beta,
        )  # fmt: skip

    def of_weights(self, problem: GemmProblem) -> dict[str, Any]:
        """What the kernel is told of weights of few bits."""
        return {}


@REGISTRY.register
class Sm80Gemm(MultistageGemm):
    """`mma.sync`; f32 is rounded to TF32."""

    kernel = Sm80GemmKernel
    epilogue = Sm80Epilogue

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if problem.mixed_input:
            return "operands of the tensor cores have elements of one kind"
        if problem.block_scales or problem.reduces_rows:
            return _NO_BLOCKS if problem.block_scales else _NO_ROWS
        if problem.dtype is Float32 and problem.precision != "tf32":
            return "f32 is rounded to TF32, which precision='ieee' rules out"
        if problem.dtype in FLOATS8 and device.capability < (8, 9):
            return f"8-bit floats are converted from sm_89 on, and {device.name} is sm_{device.capability[0]}{device.capability[1]}"
        return None

    def candidates(self, problem: GemmProblem) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.tensor_core_candidates(problem.dtype)

    def step(self, problem: GemmProblem) -> int:
        return k_step(problem.dtype)

    def smem_bytes(self, problem: GemmProblem, config: Sm80GemmConfig) -> int:
        return config.smem_bytes(problem.dtype.width)

    def check(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> None:
        super().check(problem, config, device)
        config.check(problem.dtype.width, self.step(problem), device.smem)


@REGISTRY.register
class Sm80MixedInputGemm(MultistageGemm):
    """`mma.sync` on weights of 8 or 4 bits that threads convert in registers."""

    kernel = Sm80MixedInputGemmKernel
    epilogue = Sm80MixedInputEpilogue

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if not problem.mixed_input:
            return "operands have elements of one kind"
        if problem.reduces_rows:
            return _NO_ROWS
        if not all(x.k_major for x in problem.operands()):
            return f"a or b are not contiguous in K: {problem.a}, {problem.b}"
        if problem.group_scales is not None and problem.group_scales.dtype is not Float32:
            return f"factors of groups are {problem.group_scales.dtype.__name__}, not Float32"
        return None if problem.group_size % STEP == 0 else f"groups of K are no multiples of {STEP}"

    def candidates(self, problem: GemmProblem) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.TENSOR_CORE_WEIGHTS[problem.int4]

    def step(self, problem: GemmProblem) -> int:
        return STEP

    def configs(self, problem: GemmProblem, device: Device) -> list[Sm80GemmConfig]:
        # More blocks than two to a tile were never worth it.
        found = (x for x in super().configs(problem, device) if x.split_k <= 2 and self.suits(problem, x))
        return [x for x in found if x.split_k == 1 or x.in_clusters(device)]

    def suits(self, problem: GemmProblem, config: Sm80GemmConfig) -> bool:
        """Whether groups are parts or multiples of a tile in K, and there are whole tiles."""
        depth, group = config.tile_shape_mnk[2], problem.group_size
        return not group or (problem.k % depth == 0 and (group % depth == 0 or depth % group == 0))

    def smem_bytes(self, problem: GemmProblem, config: Sm80GemmConfig) -> int:
        return narrow_smem_bytes(config, problem.int4, problem.group_size)

    def check(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> None:
        most = min(MAX_PORTABLE_CLUSTER, device.cluster)
        arrays.require(
            config.split_k <= 1 or config.in_clusters(device),
            f"{config}: K of weights is cut into parts that the blocks of a cluster add, and one of {device.name} has at most {most}",
            hint=f"split_k up to {most}" if most > 1 else "split_k=1",
        )
        super().check(problem, config, device)
        config.check_weights(problem.int4, self.smem_bytes(problem, config), device.smem)
        arrays.require(
            self.suits(problem, config),
            f"{config}: groups of {problem.group_size} of K are parts or multiples of a tile in K, and {problem.k} are whole tiles",
        )

    def of_weights(self, problem: GemmProblem) -> dict[str, Any]:
        return {"packed": problem.int4, "group": problem.group_size}


@REGISTRY.register
class SimtGemm(MultistageGemm):
    """Each thread multiplies by itself, in f32 as it is."""

    kernel = SimtGemmKernel
    epilogue = SimtEpilogue

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if problem.dtype is not Float32:
            return f"it multiplies Float32, not {problem.dtype.__name__}"
        if problem.reduces_rows:
            return _NO_ROWS
        return None if problem.precision != "tf32" else "tensor cores are faster where 10 bits of mantissa will do"

    def candidates(self, problem: GemmProblem) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.SIMT

    def step(self, problem: GemmProblem) -> int:
        return 1

    def smem_bytes(self, problem: GemmProblem, config: Sm80GemmConfig) -> int:
        return config.simt_smem_bytes()

    def check(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> None:
        super().check(problem, config, device)
        config.check_simt(device.smem)


_NO_ROWS = "blocks have parts of rows alone, and sums of rows are made of all of them"
_NO_BLOCKS = "factors of blocks belong to sums of 128 products, and it makes sums of all"


@dataclasses.dataclass(frozen=True)
class BlockScaledFallbackConfig:
    """A config: a product for each block of 128 of K, cut as is expected to take least time, that adds to the sums of those before."""


@REGISTRY.register
class BlockScaledFallback(Implementation):
    """Products with factors of blocks, of every target and alignment: one for each block of K."""

    config = BlockScaledFallbackConfig
    repeats = True

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if problem.reduces_rows:
            return _NO_ROWS
        return None if problem.block_scales else "there are no factors of blocks"

    def configs(self, problem: GemmProblem, device: Device) -> list[BlockScaledFallbackConfig]:
        return [BlockScaledFallbackConfig()]

    def cost(self, problem: GemmProblem, config: BlockScaledFallbackConfig, device: Device) -> float:
        return math.inf

    def run(self, problem: GemmProblem, config: BlockScaledFallbackConfig, given: GemmArguments) -> None:
        """Sums in f32; what follows them is done with the last."""
        (_, _, n), k, laid = problem.shape, problem.k, arrays.layout_of
        sums = arrays.empty(given.a, problem.shape, arrays.dtype_named(given.a, "float32"))
        arrays.fill(sums, 0)
        of_columns = arrays.repeated(given.block_scales[1], SCALE_BLOCK, n)  # (L, K / 128, N)
        for first in range(0, k, SCALE_BLOCK):
            part = slice(first, first + SCALE_BLOCK)
            a, b = arrays.part(given.a, 2, part), arrays.part(given.b, 1, part)
            number = slice(first // SCALE_BLOCK, first // SCALE_BLOCK + 1)
            rows, columns = arrays.part(given.block_scales[0], 2, number), arrays.part(of_columns, 1, number)
            others = [arrays.broadcast_to(x, problem.shape) for x in (rows, columns)]
            own = GemmArguments(a, b, sums, [*others, sums])
            follow = EpilogueFusion(True, scales=2)
            REGISTRY.run(
                GemmProblem(laid(a), laid(b), laid(sums), tuple(map(laid, own.epilogue_inputs)), follow),
                devices.current(),
                own,
            )
        count = 1 + len(given.extra_outs)
        for one, *rest in zip(
            *map(arrays.slices, (sums, given.out, *given.extra_outs, *given.epilogue_inputs)), strict=True
        ):
            out, *more = rest[:count]
            combine_parts(
                problem,
                one,
                GemmArguments(given.a, given.b, out, rest[count:], given.alpha, given.beta, extra_outs=more),
            )


@dataclasses.dataclass(frozen=True)
class RowSumFallbackConfig:
    """A config: what is summed along rows is written, as a result of its own, cut as is expected to take least time, and then summed."""


@REGISTRY.register
class RowSumFallback(Implementation):
    """Products with sums of rows, of every target, type and alignment."""

    config = RowSumFallbackConfig
    repeats = True

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return None if problem.reduces_rows else "no sums of rows are asked for"

    def configs(self, problem: GemmProblem, device: Device) -> list[RowSumFallbackConfig]:
        return [RowSumFallbackConfig()]

    def cost(self, problem: GemmProblem, config: RowSumFallbackConfig, device: Device) -> float:
        return math.inf

    def run(self, problem: GemmProblem, config: RowSumFallbackConfig, given: GemmArguments) -> None:
        from ..reduction import reductions  # few products need another family

        values = arrays.empty(given.a, problem.shape, arrays.dtype_named(given.a, "float32"))
        whole = dataclasses.replace(problem, extra_outs=(*problem.extra_outs, arrays.layout_of(values)))
        REGISTRY.run(whole, devices.current(), given._replace(extra_outs=[*given.extra_outs, values], row_sum=None))
        reductions.sum(values, -1, out=arrays.reshaped(given.row_sum, problem.shape[:2]))


REGISTRY.register(DequantizeFallback(REGISTRY))
REGISTRY.register(Sm90MixedInputGemm)
REGISTRY.register(Sm90PaddedGemm(Sm90Gemm()))
REGISTRY.register(Sm90Gemm)
