"""The registered implementations of GEMM.

One for another architecture brings a main loop and a config type; schedulers, epilogue fusion and fallbacks are shared.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float8E4M3FN, Float32, Int32, Uint8, cute
from ....utils import schedulers
from ...dispatch import arrays, devices, launches
from ...dispatch.config import Rule
from ...dispatch.problem import TensorLayout
from ...dispatch.registry import Implementation, Registry
from ...dispatch.roofline import Roofline, us
from ...tuned import coefficients
from . import sm80_cost
from .arguments import GemmArguments
from .epilogue_fusion import EpilogueFusion
from .padded import Sm90PaddedGemm, Sm100PaddedGemm
from .problem import FLOATS8, INTEGERS, SCALE_BLOCK, GemmProblem
from .simt import SimtGemmKernel
from .sm80 import Sm80GemmKernel
from .sm80_config import MAX_PORTABLE_CLUSTER, SIMT_VECTOR, SIMT_WARP, Sm80GemmConfig, instruction_k, is_power_of_two
from .sm80_epilogue import SimtEpilogue, Sm80Epilogue
from .sm80_mixed_input import K_STEP, Sm80MixedInputGemmKernel, mixed_input_smem_bytes
from .sm90_implementation import Sm90Gemm
from .sm90_mixed_input import Sm90MixedInputGemm
from .sm100_implementation import Sm100BlockScaledGemm, Sm100Gemm
from .split_k import reduce_partials, run_split_k
from .vector_scales import scale_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .sm80_mainloop import MultistageGemmKernel

REGISTRY = Registry("gemm")


class MultistageGemm(Implementation):
    """Multistage GEMM with `cp.async`: all threads copy and multiply. A cluster, or a second kernel, adds split-K
    partials."""

    config = Sm80GemmConfig
    repeats = True
    kernel: type[MultistageGemmKernel]
    epilogue = Sm80Epilogue
    warp_shape_mn: tuple[int, int] = (16, 16)
    """M and N that a warp covers with one step of its MMA."""

    def candidates(self, problem: GemmProblem, device: Device) -> tuple[sm80_cost.Candidate, ...]:
        """Return the tiles that were measured."""
        raise NotImplementedError

    def instruction_k(self, problem: GemmProblem) -> int:
        """Return the K of an MMA instruction, or of the instructions that are issued together."""
        raise NotImplementedError

    def smem_bytes(self, problem: GemmProblem, config: Sm80GemmConfig) -> int:
        """Return the shared memory of a CTA: of all stages, or later of the accumulators of a tile."""
        raise NotImplementedError

    def configs(self, problem: GemmProblem, device: Device) -> list[Sm80GemmConfig]:
        """Return configs with measured tiles, with and without split-K, the fastest expected first."""
        costs: list[tuple[float, Sm80GemmConfig]] = []
        candidates = self.candidates(problem, device)
        instruction_k = self.instruction_k(problem)
        for candidate, config in sm80_cost.configs(problem, candidates, instruction_k, device):
            smem = self.smem_bytes(problem, config)
            if smem <= device.smem:
                costs.append((sm80_cost.roofline(problem, candidate, config, smem, device).us, config))
        return [config for _, config in sorted(costs, key=lambda pair: pair[0])]

    def roofline(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> Roofline:
        nearest = sm80_cost.nearest(config, self.candidates(problem, device))
        return sm80_cost.roofline(problem, nearest, config, self.smem_bytes(problem, config), device)

    def rules(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> Iterator[Rule]:
        if not config.in_clusters(device):
            yield from config.split_k_rules(problem.k, problem.shape[0])
            floats = config.split_k == 1 or problem.dtype not in INTEGERS
            yield Rule(
                floats, f"a second kernel adds split-K partials of floats only, and a is {problem.dtype.__name__}"
            )
        yield from config.rules(self.warp_shape_mn, problem.bits, self.smem_bytes(problem, config), device)

    def run(self, problem: GemmProblem, config: Sm80GemmConfig, args: GemmArguments) -> None:
        device = devices.current()
        if config.split_k > 1 and not config.in_clusters(device):
            run_split_k(self, problem, dataclasses.replace(config, split_k=1), config.split_k, args)
            return
        half = problem.dtype in FLOATS8 and not device.float8
        a, b = (
            dataclasses.replace(operand, half=half, partial=rows < tile)
            for operand, rows, tile in zip(
                problem.operands(), problem.shape[1:], config.tile_shape_mnk[:2], strict=True
            )
        )
        fusion = problem.fusion
        tile = config.tile_shape_mnk[:2]
        widths = problem.epilogue_input_widths
        out = (problem.acc_dtype, problem.out_types, problem.out_width)
        options = self.kernel_options(problem)
        many = problem.shape[0] > schedulers.persistent.MAX_GRID_BATCHES

        def make() -> MultistageGemmKernel:
            swap_ab = self.kernel.swap_ab
            smem = self.smem_bytes(problem, config)
            epilogue = self.epilogue(tile, config.threads, config.split_k, *out, fusion.combiner(), widths, swap_ab)
            scheduler = schedulers.SingleTileScheduler(tile, config.split_k, many)
            return self.kernel(a, b, config, scheduler, epilogue, smem, **options)

        key = (self.kernel, a, b, out, config, many, widths, fusion, *options.values())
        kernel = launches.cached_kernel_of(fusion.functions, make, *key)
        args.launch(kernel, problem, (a.width, b.width, problem.out_width))

    def kernel_options(self, problem: GemmProblem) -> dict[str, Any]:
        """Return further arguments of the kernel's class."""
        return {}


@REGISTRY.register
class Sm80Gemm(MultistageGemm):
    """GEMM with `mma.sync`, for operands of one element type; f32 is rounded to TF32."""

    kernel = Sm80GemmKernel

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if problem.mixed_input:
            return "its MMA has operands of one element type"
        if problem.vector_scales:
            return "scales of vectors along K multiply operands, and its MMA has none"
        if problem.block_scales or problem.reduces_rows:
            return _NO_BLOCK_SCALES if problem.block_scales else _NO_ROW_SUM
        if problem.dtype is Float32 and problem.precision != "tf32":
            return "f32 is rounded to TF32, which precision='ieee' rules out"
        if problem.dtype in FLOATS8 and device.capability < (8, 9):
            major, minor = device.capability
            return f"8-bit floats are converted from sm_89 on, and {device.name} is sm_{major}{minor}"
        return None

    def candidates(self, problem: GemmProblem, device: Device) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.candidates("f16" if problem.dtype is BFloat16 else problem.mma_dtype or "tf32", device)

    def instruction_k(self, problem: GemmProblem) -> int:
        return instruction_k(problem.dtype)

    def smem_bytes(self, problem: GemmProblem, config: Sm80GemmConfig) -> int:
        m, n, k = config.tile_shape_mnk
        return max((m + n) * k * config.stages * problem.dtype.width // 8, m * n * 4)

    def rules(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> Iterator[Rule]:
        yield from super().rules(problem, config, device)
        k = config.tile_shape_mnk[2]
        least = self.instruction_k(problem)
        whole = k % least == 0 and k >= 2 * least
        vectors = all(extent * problem.dtype.width % 128 == 0 for extent in config.tile_shape_mnk)
        power_of_two = is_power_of_two(k) and is_power_of_two(config.threads)
        yield Rule(whole, f"K of a tile must be a multiple of the {least} of an instruction, and at least two of them")
        yield Rule(vectors, "extents of the tile must be whole vectors of 16 bytes")
        yield Rule(power_of_two, "K of the tile and the number of warps must be powers of two")


@REGISTRY.register
class Sm80MixedInputGemm(MultistageGemm):
    """`mma.sync` with swap-AB on 8- or 4-bit integers that threads dequantise in registers."""

    kernel = Sm80MixedInputGemmKernel
    warp_shape_mn = (8, 16)

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if not problem.mixed_input:
            return "a and b have one element type"
        if problem.reduces_rows:
            return _NO_ROW_SUM
        if not all(x.k_major for x in problem.operands()):
            return f"a or b are not contiguous in K: {problem.a}, {problem.b}"
        if problem.group_scales is not None and problem.group_scales.dtype is not Float32:
            return f"scales of groups are {problem.group_scales.dtype.__name__}, not Float32"
        return None if problem.group_size % K_STEP == 0 else f"groups of K are no multiples of {K_STEP}"

    def candidates(self, problem: GemmProblem, device: Device) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.candidates("f16_i4" if problem.int4 else "f16_i8", device)

    def instruction_k(self, problem: GemmProblem) -> int:
        return K_STEP

    def smem_bytes(self, problem: GemmProblem, config: Sm80GemmConfig) -> int:
        return mixed_input_smem_bytes(config, problem.int4, problem.group_size)

    def configs(self, problem: GemmProblem, device: Device) -> list[Sm80GemmConfig]:
        # Split-K of more than two was never best.
        configs = [x for x in super().configs(problem, device) if x.split_k <= 2 and self.suits(problem, x)]
        return [x for x in configs if x.split_k == 1 or x.in_clusters(device)]

    def suits(self, problem: GemmProblem, config: Sm80GemmConfig) -> bool:
        """Return whether groups are parts or multiples of a K tile, and K tiles are whole."""
        tile_k = config.tile_shape_mnk[2]
        group = problem.group_size
        return not group or (problem.k % tile_k == 0 and (group % tile_k == 0 or tile_k % group == 0))

    def rules(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> Iterator[Rule]:
        largest = min(MAX_PORTABLE_CLUSTER, device.cluster)
        text = f"a cluster adds split-K partials of mixed inputs, and {device.name} has clusters of at most {largest}"
        hint = f"split_k up to {largest}" if largest > 1 else "split_k=1"
        yield Rule(config.split_k == 1 or config.in_clusters(device), text, hint)
        yield from super().rules(problem, config, device)
        k = config.tile_shape_mnk[2]
        along_n = config.warp_layout_mn[0] == 1 and is_power_of_two(config.threads)
        text = "warps must lie along N, as many as a power of two, and K of the tile must be one, from 64 on"
        yield Rule(along_n and is_power_of_two(k) and k >= 64, text)
        text = (
            f"groups of {problem.group_size} must be parts or multiples of a K tile, and K of {problem.k} must be whole"
        )
        yield Rule(self.suits(problem, config), f"{text} tiles")

    def kernel_options(self, problem: GemmProblem) -> dict[str, int]:
        return {"group_size": problem.group_size}


@REGISTRY.register
class SimtGemm(MultistageGemm):
    """GEMM in f32 without tensor cores, by FMA."""

    kernel = SimtGemmKernel
    epilogue = SimtEpilogue
    warp_shape_mn = (SIMT_WARP[0] * SIMT_VECTOR, SIMT_WARP[1] * SIMT_VECTOR)

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if problem.dtype is not Float32:
            return f"it multiplies Float32, not {problem.dtype.__name__}"
        if problem.reduces_rows:
            return _NO_ROW_SUM
        return None if problem.precision != "tf32" else "tensor cores are faster where 10 bits of mantissa will do"

    def candidates(self, problem: GemmProblem, device: Device) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.candidates("simt", device)

    def instruction_k(self, problem: GemmProblem) -> int:
        return 1

    def smem_bytes(self, problem: GemmProblem, config: Sm80GemmConfig) -> int:
        m, n, k = config.tile_shape_mnk  # rows in shared memory are padded by a vector
        return max((m + n + 2 * SIMT_VECTOR) * k * config.stages * 4, m * n * 4)

    def rules(self, problem: GemmProblem, config: Sm80GemmConfig, device: Device) -> Iterator[Rule]:
        yield from super().rules(problem, config, device)
        m, n, _ = config.tile_shape_mnk
        least = 2 * SIMT_VECTOR
        registers = m * n // config.threads
        power_of_two = all(is_power_of_two(extent) and extent >= least for extent in config.tile_shape_mnk)
        yield Rule(power_of_two, f"extents of the tile must be powers of two, at least {least}")
        yield Rule(registers <= 128, f"a thread has {registers} accumulators; it may have 128")


_NO_ROW_SUM = "its CTAs have parts of rows only, and row_reduction adds whole rows"
_NO_BLOCK_SCALES = "block scales multiply accumulators of 128 elements of K, and it accumulates all of K"


@dataclasses.dataclass(frozen=True)
class FallbackConfig:
    """The config of a fallback: each of its GEMMs has the config that is expected to take least time."""


class Fallback(Implementation):
    """An implementation for every target and alignment, composed of other GEMMs; chosen where no other can."""

    config = FallbackConfig
    repeats = True

    def configs(self, problem: GemmProblem, device: Device) -> list[FallbackConfig]:
        return [FallbackConfig()]

    def roofline(self, problem: GemmProblem, config: FallbackConfig, device: Device) -> Roofline:
        return Roofline({}, {"parts": math.inf})


@REGISTRY.register
class BlockScaledFallback(Fallback):
    """Block-scaled GEMM: a GEMM for each block of 128 of K, which adds to the accumulators of those before."""

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if problem.reduces_rows:
            return _NO_ROW_SUM
        return None if problem.block_scales else "there are no block scales"

    def run(self, problem: GemmProblem, config: FallbackConfig, args: GemmArguments) -> None:
        """Accumulate in f32, and run the epilogue on the last accumulators."""
        layout = arrays.layout_of
        part = arrays.part
        acc = arrays.empty(args.a, problem.shape, arrays.dtype_named(args.a, "float32"))
        arrays.fill(acc, 0)
        column_scales = arrays.repeated(args.block_scales[1], SCALE_BLOCK, problem.shape[2])  # (L, K / 128, N)
        for block, first in enumerate(range(0, problem.k, SCALE_BLOCK)):
            k = slice(first, first + SCALE_BLOCK)
            number = slice(block, block + 1)
            a = part(args.a, 2, k)
            b = part(args.b, 1, k)
            scales = part(args.block_scales[0], 2, number), part(column_scales, 1, number)
            inputs = [*(arrays.broadcast_to(x, problem.shape) for x in scales), acc]
            fusion = EpilogueFusion(True, scales=2)
            single = GemmProblem(layout(a), layout(b), layout(acc), tuple(map(layout, inputs)), fusion)
            REGISTRY.run(single, devices.current(), GemmArguments(a, b, acc, inputs))
        count = 1 + len(args.extra_outs)
        outs = (args.out, *args.extra_outs)
        inputs = args.epilogue_inputs
        for partial, *rest in zip(*map(arrays.slices, (acc, *outs, *inputs)), strict=True):
            out, *extra = rest[:count]
            reduce_partials(problem, partial, args._replace(out=out, extra_outs=extra, epilogue_inputs=rest[count:]))


@REGISTRY.register
class RowSumFallback(Fallback):
    """GEMM with a row reduction: the values that are added along rows are one more result, which is then reduced."""

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return None if problem.reduces_rows else "there is no row_reduction"

    def run(self, problem: GemmProblem, config: FallbackConfig, args: GemmArguments) -> None:
        from ..reduction import reductions  # start-up: few GEMMs need another family

        values = arrays.empty(args.a, problem.shape, arrays.dtype_named(args.a, "float32"))
        written = dataclasses.replace(problem, extra_outs=(*problem.extra_outs, arrays.layout_of(values)))
        REGISTRY.run(written, devices.current(), args._replace(extra_outs=[*args.extra_outs, values], row_sum=None))
        reductions.sum(values, -1, out=arrays.reshaped(args.row_sum, problem.shape[:2]))


@REGISTRY.register
class DequantizeFallback(Fallback):
    """GEMM with an integer B: kernels dequantise B to the type of A, then a GEMM of one element type."""

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        return None if problem.mixed_input else "a and b have one element type"

    def roofline(self, problem: GemmProblem, config: FallbackConfig, device: Device) -> Roofline:
        """Return the time of the GEMM and of the passes over B: low and high halves of bytes have two passes that
        write every other element, and scales of groups are multiplied in place."""
        dequantized = self.dequantized(problem)
        passes = 1 + 3 * problem.int4 + (problem.group_scales is not None)
        c = coefficients("gemm_passes", device)
        moved = us(passes * (problem.b.bytes + dequantized.b.bytes), c["dequantize_dram_tbps"])
        gemm = REGISTRY.choose(dequantized, device).cost
        return Roofline({}, {"GEMM": gemm, "dequantisation": passes * c["dequantize_launch_us"] + moved})

    def dequantized(self, problem: GemmProblem) -> GemmProblem:
        """Return the same problem with B of A's type, contiguous in K."""
        batches, _, n = problem.b.shape
        k = problem.k
        b = TensorLayout(problem.dtype, (batches, k, n), (n * k if batches > 1 else 0, 1, k))
        return dataclasses.replace(problem, b=b, int4=False, group_scales=None)

    def run(self, problem: GemmProblem, config: FallbackConfig, args: GemmArguments) -> None:
        from ..elementwise.elementwise import elementwise  # start-up: few GEMMs need another family

        batches = problem.b.shape[0]
        k = problem.k
        n = problem.shape[2]
        b = arrays.transposed(arrays.empty(args.a, (batches, n, k), None))  # (L, K, N), K contiguous
        if problem.int4:
            pairs = arrays.split(b, 1, k // 2)  # neighbours in K
            for half, function in enumerate((_low, _high)):
                elementwise(function, args.b, out=arrays.part(pairs, 2, half))
        if problem.group_scales is not None:
            groups = problem.group_scales.shape[1]
            source, target = (arrays.split(x, 1, groups) for x in (b if problem.int4 else args.b, b))
            elementwise(_scaled, source, arrays.part(args.group_scales, 2, None), out=target)
        elif not problem.int4:
            elementwise(_converted, args.b, out=b)
        dequantized = dataclasses.replace(self.dequantized(problem), b=arrays.layout_of(b))
        REGISTRY.run(dequantized, devices.current(), args._replace(b=b, group_scales=None))


@REGISTRY.register
class VectorScaledFallback(Fallback):
    """GEMM of operands with scales of vectors along K: kernels multiply these into bf16 operands, which holds the
    values unless they are beyond 2^127 or below 2^-133."""

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if device.capability < (8, 9):
            return f"8-bit floats are converted from sm_89 on, and {device.name} is older"
        return None if problem.vector_scales else "there are no scales of vectors"

    def roofline(self, problem: GemmProblem, config: FallbackConfig, device: Device) -> Roofline:
        """Return the time of the GEMM and of the passes over A and B."""
        scaled = self.scaled(problem)
        c = coefficients("gemm_passes", device)
        moved = us(sum(x.bytes for x in (problem.a, problem.b, scaled.a, scaled.b)), c["dequantize_dram_tbps"])
        gemm = REGISTRY.choose(scaled, device).cost
        return Roofline({}, {"GEMM": gemm, "scaled operands": 2 * c["dequantize_launch_us"] + moved})

    def scaled(self, problem: GemmProblem) -> GemmProblem:
        """Return the same problem with operands of bf16, contiguous in K."""
        batches, m, n = problem.shape
        k = problem.k
        a = TensorLayout.dense(BFloat16, batches, m, k)
        b = TensorLayout(BFloat16, (batches, k, n), (k * n, 1, k))
        return dataclasses.replace(problem, a=a, b=b, vector_scales=(), scale_vector=0, fp4=False, precision="ieee")

    def run(self, problem: GemmProblem, config: FallbackConfig, args: GemmArguments) -> None:
        from ..elementwise.elementwise import elementwise  # start-up: few GEMMs need another family

        vectors = problem.k // problem.scale_vector
        kind = Float8E4M3FN if problem.scale_vector < 32 else Uint8  # a power of two is its exponent
        operands = []
        for x, atoms in zip((args.a, arrays.transposed(args.b)), args.vector_scales, strict=True):
            rows = x.shape[1]
            scales = scale_rows(atoms, rows, vectors)
            scales = arrays.split(arrays.viewed(scales, arrays.framework_dtype(kind, x)), 2, vectors)
            target = arrays.empty(x, (x.shape[0], rows, problem.k), arrays.framework_dtype(BFloat16, x))
            functions = _SCALED[problem.fp4, kind is Uint8]
            parts = arrays.split(target, 2, vectors)
            pairs = arrays.split(parts, 3, problem.scale_vector // len(functions))
            for number, function in enumerate(functions):
                elementwise(function, arrays.split(x, 2, vectors), scales, out=arrays.part(pairs, 4, number))
            operands.append(target)
        a = operands[0]
        b = arrays.transposed(operands[1])
        layouts = {"a": arrays.layout_of(a), "b": arrays.layout_of(b)}
        problem = dataclasses.replace(self.scaled(problem), **layouts)
        REGISTRY.run(problem, devices.current(), args._replace(a=a, b=b, vector_scales=()))


def _power(exponent: cute.TensorSSA) -> cute.TensorSSA:
    """Return the value of the bytes of an e8m0."""
    power = exponent.to(Float32) - 127.0
    return cute.where(power == 128.0, math.nan, cute.math.exp2(power))


def _e2m1(code: cute.TensorSSA) -> cute.TensorSSA:
    """Return the value of the lower 4 bits of integers."""
    exponent = (code >> 1) & 3
    fraction = (code & 1).to(Float32)
    small = fraction * 0.5
    value = cute.where(exponent == 0, small, (fraction + 2.0) * cute.math.exp2(exponent.to(Float32) - 2.0))
    return cute.where((code & 8) == 0, value, value * -1.0)


def _times_power(value: cute.TensorSSA, exponent: cute.TensorSSA) -> cute.TensorSSA:
    return value.to(Float32) * _power(exponent)


def _low_times_power(pair: cute.TensorSSA, exponent: cute.TensorSSA) -> cute.TensorSSA:
    return _e2m1(pair.to(Int32)) * _power(exponent)


def _high_times_power(pair: cute.TensorSSA, exponent: cute.TensorSSA) -> cute.TensorSSA:
    return _e2m1(pair.to(Int32) >> 4) * _power(exponent)


def _low_scaled(pair: cute.TensorSSA, scale: cute.TensorSSA) -> cute.TensorSSA:
    return _e2m1(pair.to(Int32)) * scale.to(Float32)


def _high_scaled(pair: cute.TensorSSA, scale: cute.TensorSSA) -> cute.TensorSSA:
    return _e2m1(pair.to(Int32) >> 4) * scale.to(Float32)


_SCALED = {
    (False, True): (_times_power,),
    (True, True): (_low_times_power, _high_times_power),
    (True, False): (_low_scaled, _high_scaled),
}
"""What scales the elements of a byte, by whether these are two, and whether scale factors are powers of two."""


def _low(pair: cute.TensorSSA) -> cute.TensorSSA:
    return (pair.to(Int32) << 28) >> 28


def _high(pair: cute.TensorSSA) -> cute.TensorSSA:
    return (pair.to(Int32) << 24) >> 28


def _converted(weight: Any) -> Any:
    return weight.to(Float32)


def _scaled(weight: cute.TensorSSA, scale: cute.TensorSSA) -> Any:
    return weight.to(Float32) * scale.to(Float32)


REGISTRY.register(Sm90MixedInputGemm)
REGISTRY.register(Sm90PaddedGemm(Sm90Gemm()))
REGISTRY.register(Sm90Gemm)
REGISTRY.register(Sm100PaddedGemm(Sm100Gemm()))
REGISTRY.register(Sm100Gemm)
REGISTRY.register(Sm100PaddedGemm(Sm100BlockScaledGemm()))
REGISTRY.register(Sm100BlockScaledGemm)
