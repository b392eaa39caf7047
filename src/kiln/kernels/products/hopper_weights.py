"""Products on sm_90a with weights of 8 or 4 bits: made f16 or bf16 in registers, from where warp groups multiply them.

Operands are swapped: weights are A of the tensor cores, which may come from registers. A warp group loads what it needs of a stage of
weights and converts it while the products of the stage before run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import Float32, Int32, const_expr, cute, pipeline, range_constexpr
from ...cute import arch
from ...cute.nvgpu import warpgroup
from ...utils import LayoutEnum, sm90
from .. import devices
from ..common import arrays, launches
from ..common.family import Implementation
from .given import more_tensors, other_tensors
from .hopper_kernel import HopperGemm
from .hopper_plan import GROUP, HopperTiling
from .hopper_products import batched, epilogue_of, steps, tensors_of
from .scheduler import PersistentTiles, SplitTiles

if TYPE_CHECKING:
    from ..devices import Device
    from .given import Given
    from .problem import Operand, Product

_DEPTH = 64
"""K of a stage: 128 bytes of A of the product."""
_ROWS = 128
"""Columns of the result in a tile."""
_MOST_STAGES = 12


class ConvertingGemm(HopperGemm):
    """The kernel for weights of some kind; `group`: K of those that have a factor in common, 0: none."""

    def __init__(
        self, a: Operand, b: Operand, batched: tuple[bool, bool, bool], packed: bool, group: int, plan: HopperTiling, scheduler: Any,
        epilogue: Any,
    ) -> None:  # fmt: skip
        super().__init__(a, b, batched, False, bool(group), plan, scheduler, epilogue)
        self.packed = packed
        self.group = group

    def depths(self) -> tuple[int, int]:
        return self.plan.block_mnk[2] // (2 if self.packed else 1), self.plan.block_mnk[2]

    def factors(self, given: Any) -> tuple[Any, Any]:
        """Those of groups of K, (N, groups, L), and the rest."""
        if not self.group:
            return [], given
        return [self.arranged(given[0], [2, 1, 0], 1, self.batched[1])], given[1:]

    def mma(self) -> Any:
        k, source = LayoutEnum.ROW_MAJOR.sm90_mma_major_mode(), warpgroup.OperandSource.RMEM
        dtype, shape = self.b.dtype, (64, self.plan.block_mnk[1])
        return sm90.make_trivial_tiled_mma(dtype, dtype, k, k, Float32, (self.plan.sharers, 1, 1), shape, source)

    @cute.jit
    def multiply(
        self, ring: Any, turns: Any, mma: Any, group: Any, thread: Any, steps: Any, ring_a: Any, ring_b: Any, buffers: Any,
        tiles: Any, blocks: Any, into: Any,
    ):  # fmt: skip
        plan, scheduler = self.plan, self.scheduler
        own = thread % GROUP
        part = mma.get_slice(thread)
        right = mma.make_fragment_B(mma.get_slice(group * GROUP).partition_B(ring_b))
        acc = cute.make_rmem_tensor(mma.partition_shape_C(plan.block_mnk[:2]), Float32)
        left = cute.make_rmem_tensor(((2, 2, 2), 1, _DEPTH // 16), self.b.dtype)
        reading = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, plan.stages)
        used = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, plan.stages)
        begin, depth = steps
        number, count = scheduler.first(), scheduler.count(tiles)
        while number < count:
            place = scheduler.tile(number, tiles)
            mma.set(warpgroup.Field.ACCUMULATE, False)
            for k in range(depth):
                ring.consumer_wait(reading)
                made = self.converted(part, ring_a, own + group * GROUP, reading.index, blocks, place, begin + k)
                warpgroup.wait_group(0)  # those of the stage before, which read the same registers
                if k > 0:
                    ring.consumer_release(used)
                    used.advance()
                left.store(made)
                warpgroup.fence()
                for block in range_constexpr(_DEPTH // 16):
                    cute.gemm(mma, acc, left[None, None, block], right[None, None, block, reading.index], acc)
                    mma.set(warpgroup.Field.ACCUMULATE, True)
                warpgroup.commit_group()
                reading.advance()
            warpgroup.wait_group(0)
            ring.consumer_release(used)
            used.advance()
            arch.griddepcontrol_launch_dependents()
            self.epilogue.write(part, own, group, acc, buffers, into, place)
            number = number + scheduler.step()
        self.epilogue.finish()

    @cute.jit
    def converted(self, part: Any, ring_a: Any, thread: Any, stage: Any, blocks: Any, place: Any, step: Any):
        """What a thread multiplies of a stage of weights: rows 8 apart, pairs in K, pairs of those 8 apart, for each 16 of K."""
        shape = ((2, 2, 2), 1, _DEPTH // 16)
        held = cute.make_rmem_tensor(shape, Float32)
        row = thread // GROUP * 64 + thread % GROUP // 32 * 16 + thread % 32 // 4
        if const_expr(self.packed):
            for i in range_constexpr(_DEPTH // 4):  # half of 16, rows, 16 of K
                half, down, block = i % 2, i // 2 % 2, i // 4
                pair = ring_a[row + 8 * down, thread % 4 + 4 * half + 8 * block, stage].to(Int32)
                for which, four in enumerate((pair & 15, (pair >> 4) & 15)):
                    held[((which, down, half), 0, block)] = Float32(four - ((four & 8) << 1))
        else:
            raw = cute.make_rmem_tensor(shape, self.a.dtype)
            cute.autovec_copy(part.partition_A(ring_a)[None, None, None, stage], raw)
            held.store(raw.load().to(Float32))
        if const_expr(self.group > 0):
            factors = blocks[0]
            k = step * _DEPTH // self.group
            for down in range_constexpr(2):
                at = min(place.m * _ROWS + row + 8 * down, factors.shape[0] - 1)
                factor = Float32(factors[at, k, place.matrix])
                for i in range_constexpr(_DEPTH // 4):
                    where = ((i % 2, down, i // 2 % 2), 0, i // 4)
                    held[where] = held[where] * factor
        return held.load().to(self.b.dtype)


class HopperWeights(Implementation):
    """`wgmma` on weights that threads convert, loaded by the copy engine."""

    plan = HopperTiling
    repeats = True

    def supports(self, problem: Product, device: Device) -> str | None:
        if not problem.weights:
            return "operands have elements of one kind"
        if not device.warp_groups:
            return f"warp groups multiply on sm_90a alone, and {device.name} is sm_{device.generation.number}"
        if problem.summed:
            return "tiles lie across the result, and sums are of its rows"
        if not (steps(problem.a, 2) and steps(problem.b, 1)):
            return f"a or b are not contiguous in K, or rows of them do not begin at multiples of 16 bytes: {problem.a}, {problem.b}"
        return None if self.group(problem) % _DEPTH == 0 else f"groups of K are no multiples of {_DEPTH}"

    def group(self, problem: Product) -> int:
        """K that has a factor in common; 0: there are none."""
        return 0 if problem.groups is None else problem.k // problem.groups.shape[1]

    def plans(self, problem: Product, device: Device) -> list[HopperTiling]:
        rows, found = problem.shape[1], []
        for least in [n for n in (8, 16, 32, 64, 128) if n >= rows][:1] or [128, 192]:
            for splits in (1, 2, 4):
                columns = max(least, 8 * splits)  # each block writes eight at least
                plan = HopperTiling((_ROWS, columns, _DEPTH), (1, 1), 1, 8, splits=splits, swapped=True)
                more = (device.smem - plan.smem_bytes(16, 32)) // plan.stage_bytes(16)
                plan = HopperTiling(plan.block_mnk, (1, 1), min(_MOST_STAGES, 1 + more), 8, splits=splits, swapped=True)
                if plan.stages >= 3 and (splits == 1 or problem.k >= splits * 4 * _DEPTH):
                    found.append((self.cost(problem, plan, device), plan))
        return [plan for _, plan in sorted(found, key=lambda pair: pair[0])]

    def cost(self, problem: Product, plan: HopperTiling, device: Device) -> float:
        """A stage takes as long as its weights take to come and to be converted, or to be multiplied."""
        (batches, rows, n), (m, columns, _) = problem.shape, plan.block_mnk
        tiles = batches * -(-rows // columns) * -(-n // m) * plan.splits
        waves, stages = -(-tiles // device.multiprocessors), -(-problem.k // _DEPTH // plan.splits)
        return 3.0 + waves * (stages * max(0.28, columns * 4 / 1500) + 1.0) + 3.0 * (plan.splits > 1)

    def check(self, problem: Product, plan: HopperTiling, device: Device) -> None:
        plan.check(problem.dtype, problem.out_types, False, device)
        arrays.require(
            plan.block_mnk[::2] == (_ROWS, _DEPTH) and plan.swapped and not (plan.pingpong or plan.turned) and plan.sums == 1 and plan.blocks == plan.splits,
            f"{plan}: weights are rows of the tile, {_ROWS} of them for {_DEPTH} of K",
            hint=f"block_mnk=({_ROWS}, n, {_DEPTH}), cluster_mn=(1, 1), swapped=True",
        )  # fmt: skip

    def run(self, problem: Product, plan: HopperTiling, given: Given) -> None:
        a, b = problem.operands()
        follow, tile, group = problem.follow, plan.block_mnk[:2], self.group(problem)
        widths = None if follow.plain else problem.other_widths
        differ = batched(problem.a), batched(problem.b), batched(problem.out)
        clusters = devices.clusters(plan.blocks)

        def make() -> ConvertingGemm:
            if plan.splits > 1:
                scheduler = SplitTiles(tile, plan.group, plan.splits)
            else:
                scheduler = PersistentTiles(tile, plan.cluster_mn, plan.group, clusters)
            return ConvertingGemm(
                a, b, differ, problem.packed, group, plan, scheduler, epilogue_of(problem, plan, widths)
            )

        kinds = (a.dtype, b.dtype, problem.packed, group, problem.out_types)
        key = (ConvertingGemm, kinds, differ, plan, clusters, problem.out_width, widths, follow.key)
        kernel = launches.made_of(follow.functions, make, *key)
        groups = [] if given.groups is None else [given.groups]
        launches.run_tensors(
            kernel, [given.a, given.b, given.out, *groups, *given.more, *given.others],
            [
                *tensors_of(problem, given), *[arrays.dynamic(x, 2, 1) for x in groups], *more_tensors(problem, given),
                *other_tensors(problem, given),
            ],
            3, given.alpha, given.beta,
        )  # fmt: skip
