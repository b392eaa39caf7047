"""Products on sm_90a with weights of 8 or 4 bits: made f16 or bf16 in registers, from where warp groups multiply them.

Operands are swapped: weights are A of the tensor cores, which may come from registers. A warp group loads what it needs of a stage of
weights and converts it while the products of the stage before run. Sums do not depend on which K an instruction calls its first: of a stage each of
the four lanes that share a row takes 8, 16 or 32 bytes in succession, and what weights are multiplied with is laid in the same order by a kernel before.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

from .... import Float32, Int32, const_expr, cute, minimum, pipeline, range_constexpr
from ....cute import arch
from ....cute.nvgpu import CopyUniversalOp, warpgroup
from ....utils import LayoutEnum, sm90
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import Implementation
from ...parts.dequantize import every_other_byte, factor_pairs, halves_widened, scaled
from .arguments import group_tensors, more_tensors, other_tensors
from .permute_a import PermuteA
from .sm90 import Sm90GemmKernel
from .sm90_config import ATOM_M, WARPGROUP_THREADS, Sm90MixedInputConfig
from .sm90_cost import at_once
from .sm90_implementation import UNIT, batched, ends, epilogue_of, steps, tensors_of
from .tile_scheduler import PersistentTileScheduler, SplitKTileScheduler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .arguments import GemmArguments
    from .problem import GemmProblem, Operand

_DEPTHS = (64, 128)
"""K of a stage; of a row of weights each of four lanes has a quarter of it."""
_MOST_COLUMNS = {(2, 64): 256, (2, 128): 128, (4, 64): 64, (4, 128): 32}
"""Rows of the result that warp groups have registers and stages for: by their number, and K of a stage."""
_WIDTHS = (8, 16, 32, 64, 128, 144, 160, 192, 224, 256)
"""Rows of the result that a tile has."""
_MOST_OWN = 384
"""Rows of results up to which tiles of such widths were measured to be faster than those of 128 and 256."""
_GROUPS = (2, 4)
_FEW = 32
_TILE, _AREA, _SHARED = 1.7, 0.8, 1.1
_STAGE = (0.04, 0.152, 0.065), (0.04, 0.096, 0.084)
_COLUMN = 0.0021
_MEMORY, _PEAK = 3.5, 660
"""Microseconds, of an H200: of a tile, of each 128 x 128 of it and of each block that it is shared with, of a stage, of 128 x 64 weights of 8 and of 4 bits (and with factors of groups), of each row they
are multiplied with; TB/s, and TFLOP/s at the power limit."""
_MOST_STAGES, _LEAST_STAGES = 12, 3
_ALIGNED = 1024
"""Bytes that aligning the buffers may take."""


class Sm90MixedInputGemmKernel(Sm90GemmKernel):
    """The kernel for weights of some kind; `group`: K of those that have a factor in common, 0: none.

    The kernel before it has laid what they are multiplied with, and waited for those before that.
    """

    def __init__(
        self, a: Operand, b: Operand, batched: tuple[bool, bool, bool], packed: bool, group: int, config: Sm90MixedInputConfig, scheduler: Any,
        epilogue: Any,
    ) -> None:  # fmt: skip
        super().__init__(a, b, batched, False, bool(group), config, scheduler, epilogue)
        self.packed = packed
        self.group = group
        self.span = _span(config, packed)
        self.words = self.span // 16

    def depths(self) -> tuple[int, int]:
        return self.span, self.config.tile_shape_mnk[2]

    def factors(self, given: Any) -> tuple[Any, Any]:
        """Those of groups of K, (N, groups, L), and the rest."""
        if not self.group:
            return [], given
        return [self.arranged(given[0], [2, 1, 0], 1, True)], given[1:]

    def mma(self) -> Any:
        k, source = LayoutEnum.ROW_MAJOR.sm90_mma_major_mode(), warpgroup.OperandSource.RMEM
        dtype, shape = self.b.dtype, (64, self.config.tile_shape_mnk[1])
        return sm90.make_trivial_tiled_mma(
            dtype, dtype, k, k, Float32, (self.config.warpgroups_per_tile, 1, 1), shape, source
        )

    @cute.jit
    def fetch(
        self, ring: Any, load_a: Any, a: cute.Tensor, ring_a: Any, load_b: Any, b: cute.Tensor, ring_b: Any, tiles: Any
    ):
        """As of other products; but weights that fill the ring at first are asked for while rows are still laid: what ran before the kernel that lays them has ended."""
        side_a, side_b = self.sides((load_a, a, ring_a), (load_b, b, ring_b))
        to_a, of_a, mask_a = self.shared(*side_a)
        to_b, of_b, mask_b = self.shared(*side_b)
        begin, depth = self.scheduler.steps(Int32(cute.ceil_div(a.shape[1], self.depths()[0])), tiles)
        producer = ring.make_producer()
        number, count = self.scheduler.first(), self.scheduler.count(tiles)
        place, early = self.scheduler.tile(number, tiles), minimum(depth, self.config.ab_stages)
        own = of_a[None, place.m, None, place.matrix]
        for step in range(early):
            stage = producer.acquire_and_advance()
            self.ask(stage, begin + step, (load_a, own, to_a, mask_a))
        arch.griddepcontrol_wait()
        own = of_b[None, place.n, None, place.batch]
        for step in range(early):
            full = ring.sync_object_full.get_barrier(step)
            cute.copy(load_b, own[None, begin + step], to_b[None, step], tma_bar_ptr=full, mcast_mask=mask_b)
        while number < count:
            place = self.scheduler.tile(number, tiles)
            steps_a, steps_b = of_a[None, place.m, None, place.matrix], of_b[None, place.n, None, place.batch]
            for step in range(begin + early, begin + depth):
                stage = producer.acquire_and_advance()
                self.ask(stage, step, (load_a, steps_a, to_a, mask_a), (load_b, steps_b, to_b, mask_b))
            number, early = number + self.scheduler.step(), Int32(0)
        producer.tail()  # other blocks may still release stages here

    @cute.jit
    def multiply(
        self, ring: Any, turns: Any, mma: Any, group: Any, thread: Any, steps: Any, ring_a: Any, ring_b: Any, buffers: Any,
        tiles: Any, blocks: Any, into: Any,
    ):  # fmt: skip
        config, scheduler = self.config, self.scheduler
        own = thread % WARPGROUP_THREADS
        part = mma.get_slice(thread)
        right = mma.make_fragment_B(mma.get_slice(group * WARPGROUP_THREADS).partition_B(ring_b))
        acc = cute.make_rmem_tensor(mma.partition_shape_C(config.tile_shape_mnk[:2]), Float32)
        shape = ((2, 2, 2), 1, config.tile_shape_mnk[2] // 16)
        lefts = [cute.make_rmem_tensor(shape, self.b.dtype) for _ in range(2)]  # one is made while the other is read
        copy, source = self.lanes(ring_a, thread)
        held = cute.make_rmem_tensor(cute.shape(source)[:3], self.a.dtype)
        ahead = cute.make_rmem_tensor((2,), Float32)  # factors of the next stage
        reading, used, coming = (
            pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, config.ab_stages) for _ in range(3)
        )
        begin, depth = steps
        number, count = scheduler.first(), scheduler.count(tiles)
        while number < count:
            place = scheduler.tile(number, tiles)
            given = copy, source, held, ahead, thread, blocks, place
            self.fetch_factor(given, begin)
            self.fetch_weights(ring, coming, given, True)
            factors = ahead.load()
            self.fetch_factor(given, begin + 1)
            for word in range_constexpr(self.words):
                self.convert(held, word, factors, lefts[0])
            self.fetch_weights(ring, coming, given, depth > 1)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for k in range(0, depth - 1, 2):
                for n in range_constexpr(2):
                    self.add_stage(ring, mma, reading, used, coming, lefts, n, right, acc, given, (k + n, begin, depth))
            if depth % 2 == 1:
                self.add_stage(ring, mma, reading, used, coming, lefts, 0, right, acc, given, (depth - 1, begin, depth))
            warpgroup.wait_group(0)
            ring.consumer_release(used)
            used.advance()
            arch.griddepcontrol_launch_dependents()
            self.epilogue.write(part, own, group, acc, buffers, into, place)
            number = number + scheduler.step()
        self.epilogue.finish()

    @cute.jit
    def add_stage(
        self, ring: Any, mma: Any, reading: Any, used: Any, coming: Any, lefts: Any, number: Any, right: Any, acc: Any, given: Any, steps: Any,
    ):  # fmt: skip
        """Multiply what was made of a stage, and make the next one's of what has been loaded, a part beside each product; then load the one after it."""
        held, ahead = given[2:4]
        k, begin, depth = steps
        now, following = lefts[number], lefts[1 - number]
        factors = ahead.load()
        self.fetch_factor(given, begin + k + 2)
        blocks = cute.size(now, mode=[2])
        each = blocks // self.words
        warpgroup.fence()
        for block in range_constexpr(blocks):
            cute.gemm(mma, acc, now[None, None, block], right[None, None, block, reading.index], acc)
            mma.set(warpgroup.Field.ACCUMULATE, True)
            if const_expr(block == 0):
                warpgroup.commit_group()
                warpgroup.wait_group(1)  # for those of the stage before: what they read is made anew
                if k > 0:
                    ring.consumer_release(used)
                    used.advance()
            if const_expr(block % each == each - 1):
                self.convert(held, block // each, factors, following)
        warpgroup.commit_group()
        reading.advance()
        self.fetch_weights(ring, coming, given, k + 2 < depth)

    @cute.jit
    def fetch_weights(self, ring: Any, coming: Any, given: Any, there: Any):
        """Load a thread's weights of the next stage, if there is one."""
        copy, source, held, *_ = given
        if there:
            ring.consumer_wait(coming)
            cute.copy(copy, source[None, None, None, coming.index], held)
            coming.advance()

    def lanes(self, ring: Any, thread: Any) -> tuple[Any, Any]:
        """How a thread loads its weights of a stage, and where they lie: a quarter of two rows."""
        each, rows = self.span // 4, self.config.tile_shape_mnk[0]
        atom = cute.make_copy_atom(CopyUniversalOp(), self.a.dtype, num_bits_per_copy=min(128, 8 * each))
        places = cute.make_layout(
            ((4, 8, 4, self.config.mma_warpgroups), (each, 2)), stride=((each * rows, 1, 16, ATOM_M), (rows, 8))
        )
        copy = cute.make_tiled_copy(atom, places, (rows, self.span)).get_slice(thread)
        return copy, copy.partition_S(ring)

    def convert(self, held: Any, number: int, factors: Any, made: Any) -> None:
        """Make a word of each of a thread's rows what it multiplies: pairs in K, rows 8 apart, pairs of those 8 apart, for each 16 of K."""
        words, into = (cute.recast_tensor(x, Int32) for x in (held, made))
        for down in range(2):
            word = words[number + self.words * down]
            if self.packed:
                pairs = halves_widened(word, self.b.dtype)
            else:
                pairs = every_other_byte(word, self.a.dtype, self.b.dtype)
            factor = factor_pairs(factors[down], self.b.dtype) if self.group else []
            for n, pair in enumerate(pairs):
                half = n + number * len(pairs)
                into[down + 2 * half] = scaled(pair, factor, self.b.dtype) if self.group else pair

    def fetch_factor(self, given: Any, step: Any) -> None:
        """Begin to load those of a thread's rows of weights in a stage, or in the last."""
        if not self.group:
            return
        into, thread, blocks, place = given[3:]
        factors = blocks[0]
        rows, groups, _ = factors.shape
        first = (
            place.m * self.config.tile_shape_mnk[0]
            + thread // WARPGROUP_THREADS * ATOM_M
            + thread % WARPGROUP_THREADS // 32 * 16
            + thread % 32 // 4
        )
        group = minimum(step * self.config.tile_shape_mnk[2] // self.group, groups - 1)
        for down in range(2):
            into[down] = Float32(factors[minimum(first + 8 * down, rows - 1), group, place.matrix])


class Sm90MixedInputGemm(Implementation):
    """`wgmma` on weights that threads convert, loaded by the copy engine."""

    config = Sm90MixedInputConfig
    repeats = True

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if not problem.mixed_input:
            return "operands have elements of one kind"
        if not device.warp_groups:
            return f"warp groups multiply on sm_90a alone, and {device.name} is sm_{device.generation.number}"
        if problem.reduces_rows:
            return "tiles lie across the result, and sums are of its rows"
        if not (steps(problem.a, 2) and steps(problem.b, 1)):
            return f"a or b are not contiguous in K, or rows of them do not begin at multiples of 16 bytes: {problem.a}, {problem.b}"
        if problem.out.offset % UNIT:
            return f"the result does not begin at a multiple of {UNIT} bytes: {problem.out}"
        if problem.group_size % _DEPTHS[0] or problem.k % _DEPTHS[0]:
            return f"K, or groups of it, are no multiples of {_DEPTHS[0]}"
        return None

    def configs(self, problem: GemmProblem, device: Device) -> list[Sm90MixedInputConfig]:
        found = [(self.cost(problem, config, device), config) for config in self.candidates(problem, device)]
        return [config for _, config in sorted(found, key=lambda pair: pair[0])]

    def candidates(self, problem: GemmProblem, device: Device) -> Iterator[Sm90MixedInputConfig]:
        """Those that may be worth it, with as many stages as fit."""
        rows = problem.shape[1]
        turning = rows > _FEW and all(x.dtype.width == 16 and steps(x, 2) and ends(x) for x in problem.outs)
        own = -(-rows // -(-rows // _WIDTHS[-1]))  # of each of the fewest tiles that have all rows
        fits = next(n for n in _WIDTHS if n >= own) if rows <= _MOST_OWN else _WIDTHS[-1]
        widths = {fits} | ({128} if rows > 128 else set())
        for columns, ((groups, depth), most) in itertools.product(sorted(widths), _MOST_COLUMNS.items()):
            if problem.group_size % depth or problem.k % depth or columns > most:
                continue
            if (
                groups > 2 and depth > 64 and (problem.group_size or not problem.int4)
            ):  # two stages are made in registers
                continue
            for splits in (1, 2, 4) if groups == 2 and columns <= 128 else (1,):
                # Where not all blocks multiply with the same rows, those of a cluster get them at once.
                cluster = (2, 1) if columns < rows and splits == 1 else (1, 1)
                wide = max(columns, 8 * splits)  # each block writes eight at least
                config = Sm90MixedInputConfig(
                    (ATOM_M * groups, wide, depth),
                    cluster,
                    1,
                    8,
                    split_k_cluster=splits,
                    transpose_out=turning and splits == 1,
                )
                more = (device.smem - self.beside(problem, config)) // self.stage_bytes(problem, config)
                config = dataclasses.replace(config, ab_stages=max(1, min(_MOST_STAGES, more)))
                if config.ab_stages > _LEAST_STAGES and (splits == 1 or problem.k >= splits * 4 * depth):
                    yield config

    def beside(self, problem: GemmProblem, config: Sm90MixedInputConfig) -> int:
        """Bytes beside the ring: of sums or results, and barriers."""
        first, *more = (kind.width for kind in problem.out_types)
        return config.smem_bytes(16, first, tuple(more)) - config.ab_stages * config.stage_bytes(16) + _ALIGNED

    def stage_bytes(self, problem: GemmProblem, config: Sm90MixedInputConfig) -> int:
        """Of weights, and of what they are multiplied with."""
        return (
            config.tile_shape_mnk[0] * _span(config, problem.int4)
            + config.tile_shape_mnk[1] * config.tile_shape_mnk[2] * 2
        )

    def cost(self, problem: GemmProblem, config: Sm90MixedInputConfig, device: Device) -> float:
        return max(self.cost_terms(problem, config, device).values())

    def cost_terms(self, problem: GemmProblem, config: Sm90MixedInputConfig, device: Device) -> dict[str, float]:
        """Rounds of tiles, of which each stage has its weights converted and multiplied; and memory."""
        (batches, rows, n), (m, columns, depth) = problem.shape, config.tile_shape_mnk
        tiles = batches * -(-rows // columns) * -(-n // m) * config.split_k_cluster
        waves, stages = -(-tiles // at_once(config, device)), -(-problem.k // depth // config.split_k_cluster)
        fixed, each, scaling = _STAGE[problem.int4]
        made, multiplied = each + scaling * bool(problem.group_size), _COLUMN * columns
        share = depth / 64 * m / 128
        tile = _TILE + _AREA * m * columns / 128**2 + _SHARED * (config.split_k_cluster - 1)
        return {
            "conversion": waves * (stages * (fixed + made * share) + tile),
            "products": max(
                waves * (stages * (fixed + (made + multiplied) * share) + tile), problem.flops / 1e6 / _PEAK
            ),
            "memory": problem.bytes / 1e6 / _MEMORY,
        }

    def check(self, problem: GemmProblem, config: Sm90MixedInputConfig, device: Device) -> None:
        arrays.require(
            config.mma_warpgroups in _GROUPS and config.tile_shape_mnk[0] % ATOM_M == 0 and config.tile_shape_mnk[2] in _DEPTHS and config.swap_ab and not config.pingpong and config.split_k == 1 and config.cluster_shape_mn in ((1, 1), (2, 1)),
            f"{config}: weights are rows of the tile, 128 or 256 of them for 64 or 128 of K",
            hint="tile_shape_mnk=(128, n, 64), cluster_shape_mn=(1, 1) or (2, 1)",
        )  # fmt: skip
        arrays.require(
            problem.group_size % config.tile_shape_mnk[2] == 0 and problem.k % config.tile_shape_mnk[2] == 0,
            f"{config}: K, or groups of it, are no multiples of {config.tile_shape_mnk[2]}",
        )
        stages = problem.k // config.tile_shape_mnk[2]
        arrays.require(
            config.split_k_cluster <= stages,
            f"{config}: K of {problem.k} is {stages} stages, of which each part has one at least",
            hint=f"split_k_cluster up to {stages}",
        )
        arrays.require(
            not config.transpose_out or all(steps(x, 2) and ends(x) for x in problem.outs),
            f"{config}: the copy engine stores rows that begin and end at multiples of 16 bytes",
            hint="transpose_out=False",
        )
        narrow = dataclasses.replace(config, tile_shape_mnk=(*config.tile_shape_mnk[:2], 64), ab_stages=2)
        narrow.check(problem.dtype, problem.out_types, False, device)
        config.check_split_k_smem(_span(config, problem.int4))
        used = config.ab_stages * self.stage_bytes(problem, config) + self.beside(problem, config)
        arrays.require(
            config.ab_stages >= _LEAST_STAGES and used <= device.smem,
            f"{config} takes {used} bytes of shared memory for {config.ab_stages} stages, and a block has {device.smem}",
            hint=f"from {_LEAST_STAGES} stages on (one is multiplied, the next made, the one after it loaded), as many as fit, or a smaller tile",
        )

    def run(self, problem: GemmProblem, config: Sm90MixedInputConfig, given: GemmArguments) -> None:
        a, b = problem.operands()
        follow, tile, group = problem.fusion, config.tile_shape_mnk[:2], problem.group_size
        widths = None if follow.plain else problem.epilogue_input_widths
        differ = batched(problem.a), batched(problem.b), batched(problem.out)
        clusters = devices.max_active_clusters(config.cluster_size)

        def make() -> Sm90MixedInputGemmKernel:
            if config.split_k_cluster > 1:
                scheduler = SplitKTileScheduler(tile, config.raster_group, config.split_k_cluster)
            else:
                scheduler = PersistentTileScheduler(tile, config.cluster_shape_mn, config.raster_group, clusters)
            return Sm90MixedInputGemmKernel(
                a, b, differ, problem.int4, group, config, scheduler, epilogue_of(problem, config, widths)
            )

        kinds = (a.dtype, b.dtype, problem.int4, group, problem.out_types)
        key = (Sm90MixedInputGemmKernel, kinds, differ, config, clusters, problem.out_width, widths, follow.key)
        kernel = launches.cached_kernel_of(follow.functions, make, *key)
        groups = [] if given.group_scales is None else [given.group_scales]
        given = given._replace(a=self.laid(problem, config, given.a))
        problem = dataclasses.replace(problem, a=arrays.layout_of(given.a))
        launches.run_tensors(
            kernel, [given.a, given.b, given.out, *groups, *given.extra_outs, *given.epilogue_inputs],
            [
                *tensors_of(problem, given), *group_tensors(problem, given), *more_tensors(problem, given),
                *other_tensors(problem, given),
            ],
            3, given.alpha, given.beta,
        )  # fmt: skip

    def laid(self, problem: GemmProblem, config: Sm90MixedInputConfig, a: Any) -> Any:
        """A with K of each stage in the order in which threads have weights of it."""
        if not batched(problem.a):
            a = arrays.part(a, 0, slice(0, 1))
        made = arrays.empty(a, a.shape, None)
        kernel = launches.cached_kernel(
            PermuteA, problem.dtype, _span(config, problem.int4) // 16, _weights_of_word(problem.int4)
        )
        launches.run_tensors(kernel, [a, made], [arrays.dynamic(x, 2, 8) for x in (a, made)], 2)
        return arrays.broadcast_to(made, problem.a.shape)


def _weights_of_word(packed: bool) -> int:
    return 8 if packed else 4


def _span(config: Sm90MixedInputConfig, packed: bool) -> int:
    """Bytes of a row of weights in a stage."""
    return config.tile_shape_mnk[2] // (2 if packed else 1)
