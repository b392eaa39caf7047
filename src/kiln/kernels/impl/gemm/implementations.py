"""The implementations of matrix products.

One for another architecture has a main loop of its own and the type of its plans; schedulers and epilogues can be those that are here.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from .... import Float32
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import Family, Implementation
from . import sm80_cost
from .arguments import Given, group_tensors, more_tensors, other_tensors
from .epilogue_fusion import Follow
from .mixed_input import DequantisedFirst
from .mixed_input_fragments import STEP
from .problem import BLOCK, FLOATS8, INTEGERS, Product
from .simt import SimtGemm
from .sm80 import TensorCoreGemm
from .sm80_config import MOST_IN_CLUSTER, Sm80GemmConfig, k_step
from .sm80_epilogue import DirectEpilogue, Epilogue
from .sm80_mixed_input import NarrowGemm, SwappedEpilogue
from .sm80_mixed_input import smem_bytes as narrow_smem_bytes
from .sm90_implementation import HopperProducts
from .sm90_mixed_input import HopperWeights
from .sm90_padded import Padded
from .split_k import combine_parts, run_parts
from .tile_scheduler import MOST_BATCHES, TileScheduler

if TYPE_CHECKING:
    from ...dispatch.devices import Device
    from .sm80_mainloop import MultistageGemm

FAMILY = Family("gemm")


class Multistage(Implementation):
    """Threads that copy and multiply in turn; K may be cut among the blocks of a cluster, or for a second kernel to add."""

    plan = Sm80GemmConfig
    repeats = True
    kernel: type[MultistageGemm]
    epilogue: type[Epilogue]

    def candidates(self, problem: Product) -> tuple[sm80_cost.Candidate, ...]:
        """Tilings that were measured."""
        raise NotImplementedError

    def step(self, problem: Product) -> int:
        """K of an instruction."""
        raise NotImplementedError

    def smem_bytes(self, problem: Product, plan: Sm80GemmConfig) -> int:
        """Shared memory of a block."""
        raise NotImplementedError

    def plans(self, problem: Product, device: Device) -> list[Sm80GemmConfig]:
        """Those that were measured, with K in parts; what is expected to take least time first."""
        found: list[tuple[float, Sm80GemmConfig]] = []
        for candidate, plan in sm80_cost.cuts(problem, self.candidates(problem), self.step(problem), device):
            took = sm80_cost.expected(problem, candidate, plan, self.smem_bytes(problem, plan), device)
            if took < float("inf"):
                found.append((took, plan))
        return [plan for _, plan in sorted(found, key=lambda pair: pair[0])]

    def cost(self, problem: Product, plan: Sm80GemmConfig, device: Device) -> float:
        like = sm80_cost.nearest(plan, self.candidates(problem))
        return sm80_cost.expected(problem, like, plan, self.smem_bytes(problem, plan), device)

    def check(self, problem: Product, plan: Sm80GemmConfig, device: Device) -> None:
        if plan.in_clusters(device):
            return
        plan.check_splits(problem.k, problem.shape[0])
        arrays.require(
            plan.split_k == 1 or problem.dtype not in INTEGERS,
            f"{plan}: K is cut into parts that a second kernel adds only for floats",
        )

    def run(self, problem: Product, plan: Sm80GemmConfig, given: Given) -> None:
        device = devices.current()
        if plan.split_k > 1 and not plan.in_clusters(device):
            run_parts(self, problem, dataclasses.replace(plan, split_k=1), plan.split_k, given)
            return
        half = problem.dtype in FLOATS8 and not device.float8
        a, b = (
            dataclasses.replace(operand, half=half, few=rows < tile)
            for operand, rows, tile in zip(problem.operands(), problem.shape[1:], plan.tile_shape_mnk[:2], strict=True)
        )
        follow, tile = problem.follow, plan.tile_shape_mnk[:2]
        widths = None if follow.plain else problem.other_widths
        out = (problem.acc_dtype, problem.out_types, problem.out_width)

        weights, many = self.of_weights(problem), problem.shape[0] > MOST_BATCHES

        def make() -> MultistageGemm:
            epilogue = self.epilogue(tile, plan.threads, plan.split_k, *out, follow.combiner(), widths)
            return self.kernel(a, b, plan, TileScheduler(tile, plan.split_k, many), epilogue, **weights)

        key = (self.kernel, a, b, out, plan, many, widths, follow.key, *weights.values())
        kernel = launches.made_of(follow.functions, make, *key)
        leading = problem.a.leading((1, 2)), problem.b.leading((2, 1))
        tensors = [
            arrays.dynamic(x, mode, operand.width)
            for x, mode, operand in zip((given.a, given.b), leading, (a, b), strict=True)
        ]
        result = arrays.dynamic(given.out, 2, problem.out_width)
        groups = [] if given.groups is None else [given.groups]
        launches.run_tensors(
            kernel, [given.a, given.b, given.out, *groups, *given.more, *given.others],
            [
                *tensors, result, *group_tensors(problem, given), *more_tensors(problem, given),
                *other_tensors(problem, given),
            ],
            3, given.alpha, given.beta,
        )  # fmt: skip

    def of_weights(self, problem: Product) -> dict[str, Any]:
        """What the kernel is told of weights of few bits."""
        return {}


@FAMILY.register
class TensorCoreProducts(Multistage):
    """`mma.sync`; f32 is rounded to TF32."""

    kernel = TensorCoreGemm
    epilogue = Epilogue

    def supports(self, problem: Product, device: Device) -> str | None:
        if problem.weights:
            return "operands of the tensor cores have elements of one kind"
        if problem.blocks or problem.summed:
            return _NO_BLOCKS if problem.blocks else _NO_ROWS
        if problem.dtype is Float32 and problem.precision != "tf32":
            return "f32 is rounded to TF32, which precision='ieee' rules out"
        if problem.dtype in FLOATS8 and device.capability < (8, 9):
            return f"8-bit floats are converted from sm_89 on, and {device.name} is sm_{device.capability[0]}{device.capability[1]}"
        return None

    def candidates(self, problem: Product) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.tensor_core_candidates(problem.dtype)

    def step(self, problem: Product) -> int:
        return k_step(problem.dtype)

    def smem_bytes(self, problem: Product, plan: Sm80GemmConfig) -> int:
        return plan.smem_bytes(problem.dtype.width)

    def check(self, problem: Product, plan: Sm80GemmConfig, device: Device) -> None:
        super().check(problem, plan, device)
        plan.check(problem.dtype.width, self.step(problem), device.smem)


@FAMILY.register
class NarrowProducts(Multistage):
    """`mma.sync` on weights of 8 or 4 bits that threads convert in registers."""

    kernel = NarrowGemm
    epilogue = SwappedEpilogue

    def supports(self, problem: Product, device: Device) -> str | None:
        if not problem.weights:
            return "operands have elements of one kind"
        if problem.summed:
            return _NO_ROWS
        if not all(x.k_major for x in problem.operands()):
            return f"a or b are not contiguous in K: {problem.a}, {problem.b}"
        if problem.groups is not None and problem.groups.dtype is not Float32:
            return f"factors of groups are {problem.groups.dtype.__name__}, not Float32"
        return None if problem.group % STEP == 0 else f"groups of K are no multiples of {STEP}"

    def candidates(self, problem: Product) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.TENSOR_CORE_WEIGHTS[problem.packed]

    def step(self, problem: Product) -> int:
        return STEP

    def plans(self, problem: Product, device: Device) -> list[Sm80GemmConfig]:
        # More blocks than two to a tile were never worth it.
        found = (x for x in super().plans(problem, device) if x.split_k <= 2 and self.suits(problem, x))
        return [x for x in found if x.split_k == 1 or x.in_clusters(device)]

    def suits(self, problem: Product, plan: Sm80GemmConfig) -> bool:
        """Whether groups are parts or multiples of a tile in K, and there are whole tiles."""
        depth, group = plan.tile_shape_mnk[2], problem.group
        return not group or (problem.k % depth == 0 and (group % depth == 0 or depth % group == 0))

    def smem_bytes(self, problem: Product, plan: Sm80GemmConfig) -> int:
        return narrow_smem_bytes(plan, problem.packed, problem.group)

    def check(self, problem: Product, plan: Sm80GemmConfig, device: Device) -> None:
        most = min(MOST_IN_CLUSTER, device.cluster)
        arrays.require(
            plan.split_k <= 1 or plan.in_clusters(device),
            f"{plan}: K of weights is cut into parts that the blocks of a cluster add, and one of {device.name} has at most {most}",
            hint=f"split_k up to {most}" if most > 1 else "split_k=1",
        )
        super().check(problem, plan, device)
        plan.check_weights(problem.packed, self.smem_bytes(problem, plan), device.smem)
        arrays.require(
            self.suits(problem, plan),
            f"{plan}: groups of {problem.group} of K are parts or multiples of a tile in K, and {problem.k} are whole tiles",
        )

    def of_weights(self, problem: Product) -> dict[str, Any]:
        return {"packed": problem.packed, "group": problem.group}


@FAMILY.register
class SimtProducts(Multistage):
    """Each thread multiplies by itself, in f32 as it is."""

    kernel = SimtGemm
    epilogue = DirectEpilogue

    def supports(self, problem: Product, device: Device) -> str | None:
        if problem.dtype is not Float32:
            return f"it multiplies Float32, not {problem.dtype.__name__}"
        if problem.summed:
            return _NO_ROWS
        return None if problem.precision != "tf32" else "tensor cores are faster where 10 bits of mantissa will do"

    def candidates(self, problem: Product) -> tuple[sm80_cost.Candidate, ...]:
        return sm80_cost.SIMT

    def step(self, problem: Product) -> int:
        return 1

    def smem_bytes(self, problem: Product, plan: Sm80GemmConfig) -> int:
        return plan.simt_smem_bytes()

    def check(self, problem: Product, plan: Sm80GemmConfig, device: Device) -> None:
        super().check(problem, plan, device)
        plan.check_simt(device.smem)


_NO_ROWS = "blocks have parts of rows alone, and sums of rows are made of all of them"
_NO_BLOCKS = "factors of blocks belong to sums of 128 products, and it makes sums of all"


@dataclasses.dataclass(frozen=True)
class BlockByBlock:
    """A plan: a product for each block of 128 of K, cut as is expected to take least time, that adds to the sums of those before."""


@FAMILY.register
class ProductsOfBlocks(Implementation):
    """Products with factors of blocks, of every target and alignment: one for each block of K."""

    plan = BlockByBlock
    repeats = True

    def supports(self, problem: Product, device: Device) -> str | None:
        if problem.summed:
            return _NO_ROWS
        return None if problem.blocks else "there are no factors of blocks"

    def plans(self, problem: Product, device: Device) -> list[BlockByBlock]:
        return [BlockByBlock()]

    def cost(self, problem: Product, plan: BlockByBlock, device: Device) -> float:
        return math.inf

    def run(self, problem: Product, plan: BlockByBlock, given: Given) -> None:
        """Sums in f32; what follows them is done with the last."""
        (_, _, n), k, laid = problem.shape, problem.k, arrays.laid
        sums = arrays.empty(given.a, problem.shape, arrays.named_type(given.a, "float32"))
        arrays.fill(sums, 0)
        of_columns = arrays.repeated(given.blocks[1], BLOCK, n)  # (L, K / 128, N)
        for first in range(0, k, BLOCK):
            part = slice(first, first + BLOCK)
            a, b = arrays.part(given.a, 2, part), arrays.part(given.b, 1, part)
            number = slice(first // BLOCK, first // BLOCK + 1)
            rows, columns = arrays.part(given.blocks[0], 2, number), arrays.part(of_columns, 1, number)
            others = [arrays.broadcast_to(x, problem.shape) for x in (rows, columns)]
            own = Given(a, b, sums, [*others, sums])
            follow = Follow(True, factors=2)
            FAMILY.run(
                Product(laid(a), laid(b), laid(sums), tuple(map(laid, own.others)), follow), devices.current(), own
            )
        count = 1 + len(given.more)
        for one, *rest in zip(*map(arrays.slices, (sums, given.out, *given.more, *given.others)), strict=True):
            out, *more = rest[:count]
            combine_parts(problem, one, Given(given.a, given.b, out, rest[count:], given.alpha, given.beta, more=more))


@dataclasses.dataclass(frozen=True)
class RowsAfterwards:
    """A plan: what is summed along rows is written, as a result of its own, cut as is expected to take least time, and then summed."""


@FAMILY.register
class SummedAfterwards(Implementation):
    """Products with sums of rows, of every target, type and alignment."""

    plan = RowsAfterwards
    repeats = True

    def supports(self, problem: Product, device: Device) -> str | None:
        return None if problem.summed else "no sums of rows are asked for"

    def plans(self, problem: Product, device: Device) -> list[RowsAfterwards]:
        return [RowsAfterwards()]

    def cost(self, problem: Product, plan: RowsAfterwards, device: Device) -> float:
        return math.inf

    def run(self, problem: Product, plan: RowsAfterwards, given: Given) -> None:
        from ..reduction import reductions  # few products need another family

        values = arrays.empty(given.a, problem.shape, arrays.named_type(given.a, "float32"))
        whole = dataclasses.replace(problem, more=(*problem.more, arrays.laid(values)))
        FAMILY.run(whole, devices.current(), given._replace(more=[*given.more, values], row_sums=None))
        reductions.sum(values, -1, out=arrays.reshaped(given.row_sums, problem.shape[:2]))


FAMILY.register(DequantisedFirst(FAMILY))
FAMILY.register(HopperWeights)
FAMILY.register(Padded(HopperProducts()))
FAMILY.register(HopperProducts)
