"""GEMM with an 8- or 4-bit integer B on sm_90a: B becomes f16 or bf16 in registers, from where WGMMA reads it.

Swap-AB: B is the left operand of the MMA, which may come from registers. A warpgroup loads its part of a stage of B and
dequantises it while the MMAs of the previous stage run. The order of K within a stage is free: each of the four lanes
that share a row takes 8, 16 or 32 consecutive bytes, and `PermuteA`, a kernel that runs before, permutes A in the same
way.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, const_expr, cute, minimum, pipeline, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, warpgroup
from ....utils import LayoutEnum, sm90
from ...dispatch import arrays, launches
from ...dispatch.config import Rule
from ...dispatch.devices import features
from ...dispatch.roofline import Roofline, us
from ...parts.accumulator import RegisterAccumulator
from ...parts.dequantize import int4_pairs, int8_alternate_pairs, scale_registers, scaled
from ...parts.tensor_views import tma_view
from ...parts.tma_operand import TmaOperand, cluster_coord
from ...tuned import coefficients
from .permute_a import PermuteA
from .sm80_epilogue import EpilogueTensors
from .sm90 import Sm90GemmKernel
from .sm90_config import ATOM_M, WARPGROUP_THREADS, Sm90MixedInputConfig
from .sm90_cost import at_once
from .sm90_implementation import Sm90Gemm
from .tma_gemm import TMA_ALIGNMENT, is_batched, rows_end_aligned, tma_readable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ....utils.schedulers import GemmTile
    from ...dispatch.devices import Device
    from .arguments import GemmArguments
    from .problem import GemmProblem, Operand

_STAGE_K = (64, 128)
"""K of a stage; each of four lanes has a quarter of it of a row of B."""
_MAX_TILE_N = {(2, 64): 256, (2, 128): 128, (4, 64): 64, (4, 128): 32}
"""The rows of A that consumer warpgroups have registers and stages for, by their number and the K of a stage."""
_TILE_N = (8, 16, 32, 64, 128, 144, 160, 192, 224, 256)
"""The rows of A that a tile may have."""
_MAX_FITTED_ROWS = 384
"""The rows of A up to which tiles of such widths were measured to be faster than those of 128 and 256."""
_WARPGROUPS = (2, 4)
_MIN_TRANSPOSED_ROWS = 32
"""With more rows of A results are transposed in shared memory, for TMA to store."""
_MAX_STAGES = 12
_MIN_STAGES = 3
_ALIGNMENT_BYTES = 1024
"""Shared memory that aligning the buffers may take."""


class _BSource(NamedTuple):
    """How a thread gets B of a stage: the copy from shared memory, its source and registers; and group scales: where
    they come from, and registers for those of the next stage."""

    copy: Any
    source: Any
    fragment: cute.Tensor
    scale_registers: Any
    thread: Int32 | int
    scales: Any
    tile: GemmTile


class Sm90MixedInputGemmKernel(Sm90GemmKernel):
    """The kernel for an integer B: `int4` with two elements in a byte; `group_size` of K with one scale factor, or 0.

    `PermuteA`, which runs before, has waited for the kernels before it.
    """

    def __init__(
        self,
        a: Operand,
        b: Operand,
        batched: tuple[bool, bool, bool],
        int4: bool,
        group_size: int,
        config: Sm90MixedInputConfig,
        scheduler: Any,
        epilogue: Any,
    ) -> None:
        super().__init__(a, b, batched, False, bool(group_size), config, scheduler, epilogue)
        self.int4 = int4
        self.group_size = group_size
        self.row_bytes: int = _row_bytes(config, int4)
        self.words: int = self.row_bytes // 16

    def stage_k(self) -> tuple[int, int]:
        return self.row_bytes, self.config.tile_shape_mnk[2]

    def scale_tensors(self, rest: list[cute.Tensor]) -> tuple[list[cute.Tensor], list[cute.Tensor]]:
        """Return the scales of groups of K, (N, groups, L), and the rest of the tensors."""
        if not self.group_size:
            return [], rest
        return [tma_view(rest[0], [2, 1, 0], 1, True)], rest[1:]

    def mma(self) -> cute.TiledMma:
        k = LayoutEnum.ROW_MAJOR.sm90_mma_major_mode()
        source = warpgroup.OperandSource.RMEM
        dtype = self.b.dtype
        shape = (64, self.config.tile_shape_mnk[1])
        return sm90.make_trivial_tiled_mma(
            dtype, dtype, k, k, Float32, (self.config.warpgroups_per_tile, 1, 1), shape, source
        )

    @cute.jit
    def produce(
        self,
        pipe: pipeline.PipelineTmaAsync,
        a: TmaOperand,
        sA: cute.Tensor,
        b: TmaOperand,
        sB: cute.Tensor,
        tiles: tuple[cute.Tensor, cute.Tensor | list[cute.FastDivmodDivisor]],
    ):
        """Load tiles as other kernels do, but the first integers, all that fit, while A is still permuted."""
        operands = ((a, sA), (b, sB))
        place = cluster_coord(self.config.cluster_shape_mn)
        loads = self.tma_loads(operands, place)
        first_k, k_tiles = self.k_range(a.tensor, tiles)
        producer = pipe.make_producer()
        loop = self.scheduler.tile_loop(tiles)
        tile = loop.tile()
        early = minimum(k_tiles, self.config.ab_stages)
        load_a = loads[0].of_tile(tile.m, tile.batch_b)
        for step in range(early):
            stage = producer.acquire_and_advance()
            load_a.issue(first_k + step, stage.index, stage.barrier)
        arch.griddepcontrol_wait()
        load_b = loads[1].of_tile(tile.n, tile.batch)
        for step in range(early):
            load_b.issue(first_k + step, step, pipe.sync_object_full.get_barrier(step))
        for work in loop:
            tile_loads = self.tile_loads(work.tile(), loads, operands, place)
            for k_tile in range(first_k + early, first_k + k_tiles):
                stage = producer.acquire_and_advance()
                for load in tile_loads:
                    load.issue(k_tile, stage.index, stage.barrier)
            early = Int32(0)
        producer.tail()  # other CTAs may still release stages here

    @cute.jit
    def consume(
        self,
        pipe: pipeline.PipelineTmaAsync,
        order: pipeline.PipelineOrder | None,
        mma: cute.TiledMma,
        consumer_idx: Int32,
        thread: Int32,
        k_range: tuple[Int32 | int, Int32],
        stages: Any,
        buffers: cute.Pointer | Sequence[cute.Pointer | cute.Tensor],
        tiles: tuple[cute.Tensor, cute.Tensor | list[cute.FastDivmodDivisor]],
        tensors: EpilogueTensors,
    ):
        config = self.config
        thr_mma = mma.get_slice(thread)
        uniform = mma.get_slice(consumer_idx * WARPGROUP_THREADS)
        b = mma.make_fragment_B(uniform.partition_B(stages[1]))
        acc = cute.make_rmem_tensor(mma.partition_shape_C(config.tile_shape_mnk[:2]), Float32)
        shape = ((2, 2, 2), 1, config.tile_shape_mnk[2] // 16)
        # one is dequantised while the other is multiplied
        operands = [cute.make_rmem_tensor(shape, self.b.dtype) for _ in range(2)]
        copy, source = self.lane_copy(stages[0], thread)
        fragment = cute.make_rmem_tensor(cute.shape(source)[:3], self.a.dtype)
        scale_registers = cute.make_rmem_tensor((2,), Float32)
        reading, releasing, loading = (
            pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.ab_stages) for _ in range(3)
        )
        first_k, k_tiles = k_range
        for work in self.scheduler.tile_loop(tiles):
            tile = work.tile()
            integers = _BSource(copy, source, fragment, scale_registers, thread, stages[2], tile)
            self.load_scales(integers, first_k)
            self.load_integers(pipe, loading, integers, True)
            scales = scale_registers.load()
            self.load_scales(integers, first_k + 1)
            for word in range_constexpr(self.words):
                self.dequantize(fragment, word, scales, operands[0])
            self.load_integers(pipe, loading, integers, k_tiles > 1)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            states = reading, releasing, loading
            for k in range(0, k_tiles - 1, 2):
                for n in range_constexpr(2):
                    self.mma_and_dequantize(pipe, mma, states, operands, n, b, acc, integers, (k + n, first_k, k_tiles))
            if k_tiles % 2 == 1:
                self.mma_and_dequantize(
                    pipe, mma, states, operands, 0, b, acc, integers, (k_tiles - 1, first_k, k_tiles)
                )
            warpgroup.wait_group(0)
            pipe.consumer_release(releasing)
            releasing.advance()
            arch.griddepcontrol_launch_dependents()
            result = RegisterAccumulator(acc, thr_mma)
            self.epilogue.write(result, thread % WARPGROUP_THREADS, consumer_idx, buffers, tensors, tile)
        self.epilogue.finish()

    @cute.jit
    def mma_and_dequantize(
        self,
        pipe: pipeline.PipelineTmaAsync,
        mma: cute.TiledMma,
        states: Any,
        operands: Any,
        number: Any,
        b: Any,
        acc: cute.Tensor,
        integers: _BSource,
        steps: Any,
    ):
        """Multiply a stage and dequantise the next, a part beside each MMA; then load the one after it."""
        reading, releasing, loading = states
        k, first_k, k_tiles = steps
        operand = operands[number]
        next_operand = operands[1 - number]
        scales = integers.scale_registers.load()
        self.load_scales(integers, first_k + k + 2)
        k_blocks = cute.size(operand, mode=[2])
        word_blocks = k_blocks // self.words
        warpgroup.fence()
        for k_block in range_constexpr(k_blocks):
            cute.gemm(mma, acc, operand[None, None, k_block], b[None, None, k_block, reading.index], acc)
            mma.set(warpgroup.Field.ACCUMULATE, True)
            if const_expr(k_block == 0):
                warpgroup.commit_group()
                warpgroup.wait_group(1)  # for the MMAs of the stage before, whose operand is written again
                if k > 0:
                    pipe.consumer_release(releasing)
                    releasing.advance()
            if const_expr(k_block % word_blocks == word_blocks - 1):
                self.dequantize(integers.fragment, k_block // word_blocks, scales, next_operand)
        warpgroup.commit_group()
        reading.advance()
        self.load_integers(pipe, loading, integers, k + 2 < k_tiles)

    @cute.jit
    def load_integers(
        self, pipe: pipeline.PipelineTmaAsync, loading: pipeline.PipelineState, integers: _BSource, exists: Any
    ):
        """Load a thread's integers of the next stage, if there is one."""
        if exists:
            pipe.consumer_wait(loading)
            cute.copy(integers.copy, integers.source[None, None, None, loading.index], integers.fragment)
            loading.advance()

    def lane_copy(self, stages: cute.Tensor, thread: Int32 | int) -> tuple[Any, Any]:
        """Return how a thread loads its integers of a stage, and where they lie: a quarter of two rows."""
        quarter = self.row_bytes // 4
        rows = self.config.tile_shape_mnk[0]
        atom = cute.make_copy_atom(CopyUniversalOp(), self.a.dtype, num_bits_per_copy=min(128, 8 * quarter))
        layout = cute.make_layout(
            ((4, 8, 4, self.config.mma_warpgroups), (quarter, 2)), stride=((quarter * rows, 1, 16, ATOM_M), (rows, 8))
        )
        copy = cute.make_tiled_copy(atom, layout, (rows, self.row_bytes)).get_slice(thread)
        return copy, copy.partition_S(stages)

    def dequantize(self, fragment: cute.Tensor, number: int, scales: Any, operand: Any) -> None:
        """Dequantise a word of both rows of a thread to pairs in K; rows and pairs are 8 apart, for each 16 of K."""
        words, targets = (cute.recast_tensor(x, Int32) for x in (fragment, operand))
        for row in range(2):
            word = words[number + self.words * row]
            if self.int4:
                pairs = int4_pairs(word, self.b.dtype)
            else:
                pairs = int8_alternate_pairs(word, self.a.dtype, self.b.dtype)
            scale = scale_registers(scales[row], self.b.dtype) if self.group_size else []
            for n, pair in enumerate(pairs):
                half = n + number * len(pairs)
                targets[row + 2 * half] = scaled(pair, scale, self.b.dtype) if self.group_size else pair

    def load_scales(self, integers: _BSource, k_tile: Any) -> None:
        """Begin to load the scales of a thread's rows in a K tile, or in the last."""
        if not self.group_size:
            return
        scales = integers.scales[0]
        thread = integers.thread
        tile = integers.tile
        rows, groups, _ = scales.shape
        row = (
            tile.m * self.config.tile_shape_mnk[0]
            + thread // WARPGROUP_THREADS * ATOM_M
            + thread % WARPGROUP_THREADS // 32 * 16
            + thread % 32 // 4
        )
        group = minimum(k_tile * self.config.tile_shape_mnk[2] // self.group_size, groups - 1)
        for i in range(2):
            integers.scale_registers[i] = Float32(scales[minimum(row + 8 * i, rows - 1), group, tile.batch_b])


class Sm90MixedInputGemm(Sm90Gemm):
    """WGMMA on an integer B that TMA loads and threads dequantise."""

    config = Sm90MixedInputConfig
    kernel = Sm90MixedInputGemmKernel

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if not problem.mixed_input:
            return "a and b have one element type"
        if (why := device.lacks(features.WARPGROUP_MMA)) is not None:
            return why
        if problem.reduces_rows:
            return "its tiles lie across the result, and row_reduction adds rows"
        if not (tma_readable(problem.a, 2) and tma_readable(problem.b, 1)):
            return (
                f"a or b are not contiguous in K, or rows begin between multiples of 16 bytes: {problem.a}, {problem.b}"
            )
        if problem.out.offset % TMA_ALIGNMENT:
            return f"the result does not begin at a multiple of {TMA_ALIGNMENT} bytes: {problem.out}"
        if problem.group_size % _STAGE_K[0] or problem.k % _STAGE_K[0]:
            return f"K, or groups of it, are no multiples of {_STAGE_K[0]}"
        return None

    def candidates(self, problem: GemmProblem, device: Device) -> Iterator[Sm90MixedInputConfig]:
        """Yield configs that may be worth it, with as many stages as fit."""
        rows = problem.shape[1]
        transposes = rows > _MIN_TRANSPOSED_ROWS and set(problem.out_bits) == {16} and _tma_outs(problem)
        tile_rows = -(-rows // -(-rows // _TILE_N[-1]))  # of each of the fewest tiles that have all rows
        fitted = next(n for n in _TILE_N if n >= tile_rows) if rows <= _MAX_FITTED_ROWS else _TILE_N[-1]
        widths = {fitted} | ({128} if rows > 128 else set())
        for tile_n, ((warpgroups, stage_k), most) in itertools.product(sorted(widths), _MAX_TILE_N.items()):
            if problem.group_size % stage_k or problem.k % stage_k or tile_n > most:
                continue
            if warpgroups > 2 and stage_k > 64 and (problem.group_size or not problem.int4):
                continue  # registers hold two stages
            for split_k in (1, 2, 4) if warpgroups == 2 and tile_n <= 128 else (1,):
                # Where not all CTAs have the same rows of A, those of a cluster load them for each other.
                cluster = (2, 1) if tile_n < rows and split_k == 1 else (1, 1)
                tile = ATOM_M * warpgroups, max(tile_n, 8 * split_k), stage_k  # a CTA writes eight columns at least
                config = Sm90MixedInputConfig(
                    tile, cluster, 1, 8, split_k_cluster=split_k, transpose_out=transposes and split_k == 1
                )
                stages = (device.smem - self.epilogue_bytes(problem, config)) // self.stage_bytes(problem, config)
                config = dataclasses.replace(config, ab_stages=max(1, min(_MAX_STAGES, stages)))
                if config.ab_stages > _MIN_STAGES and (split_k == 1 or problem.k >= split_k * 4 * stage_k):
                    yield config

    def epilogue_bytes(self, problem: GemmProblem, config: Sm90MixedInputConfig) -> int:
        """Return the shared memory beside the stages: of accumulators or results, and barriers."""
        return config.smem_bytes(16, *problem.out_bits) - config.ab_stages * config.stage_bytes(16) + _ALIGNMENT_BYTES

    def stage_bytes(self, problem: GemmProblem, config: Sm90MixedInputConfig) -> int:
        """Return the shared memory of a stage of integers and of A."""
        m, n, k = config.tile_shape_mnk
        return m * _row_bytes(config, problem.int4) + n * k * 2

    def roofline(self, problem: GemmProblem, config: Sm90MixedInputConfig, device: Device) -> Roofline:
        """Return the time of waves of tiles, in each stage of which B is dequantised and multiplied; and of memory."""
        batches, rows, n = problem.shape
        tile_m, tile_n, stage_k = config.tile_shape_mnk
        tiles = batches * -(-rows // tile_n) * -(-n // tile_m) * config.split_k_cluster
        waves = -(-tiles // at_once(config, device))
        stages = -(-problem.k // stage_k // config.split_k_cluster)
        c = coefficients("gemm_mixed_input", device)
        kind = "i4" if problem.int4 else "i8"
        fixed = c[f"{kind}_stage_us"]
        # of 128 x 64 of B, with group scales for it
        dequantized = c[f"{kind}_convert_us"] + c[f"{kind}_scale_us"] * bool(problem.group_size)
        multiplied = c["row_us"] * tile_n
        parts = stage_k / 64 * tile_m / 128
        tile = (
            c["tile_us"] + c["tile_area_us"] * tile_m * tile_n / 128**2 + c["split_us"] * (config.split_k_cluster - 1)
        )
        mma = waves * (stages * (fixed + (dequantized + multiplied) * parts) + tile)
        units = {
            "dequantisation": waves * (stages * (fixed + dequantized * parts) + tile),
            "tensor cores": max(mma, us(problem.flops, c["gpu_tflops"])),
            "memory": us(problem.bytes, c["dram_tbps"]),
        }
        return Roofline(units, {"launch": c["launch_us"]})

    def rules(self, problem: GemmProblem, config: Sm90MixedInputConfig, device: Device) -> Iterator[Rule]:
        tile_m, tile_n, stage_k = config.tile_shape_mnk
        stages = config.ab_stages
        k_tiles = -(-problem.k // stage_k)
        plain = config.swap_ab and not config.pingpong and config.split_k == 1
        plain = plain and config.cluster_shape_mn in ((1, 1), (2, 1))
        yield Rule(
            config.mma_warpgroups in _WARPGROUPS and tile_m % ATOM_M == 0 and stage_k in _STAGE_K and plain,
            "an integer B has 128 or 256 rows of the tile, for 64 or 128 of K",
            "tile_shape_mnk=(128, n, 64), cluster_shape_mn=(1, 1) or (2, 1)",
        )
        whole = problem.group_size % stage_k == 0 and problem.k % stage_k == 0
        yield Rule(whole, f"K, or groups of it, are no multiples of {stage_k}")
        text = f"K of {problem.k} is {k_tiles} stages, and each part of split-K must have one at least"
        yield Rule(config.split_k_cluster <= k_tiles, text, f"split_k_cluster up to {k_tiles}")
        text = "TMA stores rows that begin and end at multiples of 16 bytes"
        yield Rule(not config.transpose_out or _tma_outs(problem), text, "transpose_out=False")
        narrow = dataclasses.replace(config, tile_shape_mnk=(tile_m, tile_n, 64), ab_stages=2)
        yield from narrow.rules(problem.dtype, problem.out_types, False, device)
        yield config.split_k_smem(_row_bytes(config, problem.int4))
        hint = f"from {_MIN_STAGES} stages on (one is multiplied, one dequantised, one loaded), or a smaller tile"
        used = stages * self.stage_bytes(problem, config) + self.epilogue_bytes(problem, config)
        text = f"it takes {used} bytes of shared memory for {stages} stages, and a CTA has {device.smem}"
        yield Rule(stages >= _MIN_STAGES and used <= device.smem, text, hint)

    def kernel_options(self, problem: GemmProblem) -> tuple[Any, ...]:
        return problem.int4, problem.group_size

    def run(self, problem: GemmProblem, config: Sm90MixedInputConfig, args: GemmArguments) -> None:
        permuted = self.permuted_a(problem, config, args.a)
        self.launch(dataclasses.replace(problem, a=arrays.layout_of(permuted)), config, args._replace(a=permuted))

    def permuted_a(self, problem: GemmProblem, config: Sm90MixedInputConfig, a: Any) -> Any:
        """Return A with K of each stage in the order in which threads have the integers of it."""
        if not is_batched(problem.a):
            a = arrays.part(a, 0, slice(0, 1))
        permuted = arrays.empty(a, a.shape, None)
        words = _row_bytes(config, problem.int4) // 16
        word_k = 8 if problem.int4 else 4
        kernel = launches.cached_kernel(PermuteA, problem.dtype, words, word_k)
        launches.run_tensors(kernel, [a, permuted], [arrays.dynamic(x, 2, 8) for x in (a, permuted)], 2)
        return arrays.broadcast_to(permuted, problem.a.shape)


def _tma_outs(problem: GemmProblem) -> bool:
    """Return whether TMA can store all results."""
    return all(tma_readable(x, 2) and rows_end_aligned(x) for x in problem.outs)


def _row_bytes(config: Sm90MixedInputConfig, int4: bool) -> int:
    """Return the bytes of a row of B in a stage."""
    return config.tile_shape_mnk[2] // (2 if int4 else 1)
