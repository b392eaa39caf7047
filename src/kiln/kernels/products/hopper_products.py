"""The implementation of matrix products for sm_90a, and what its plans are expected to take."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ... import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Uint8
from .. import devices
from ..common import arrays, launches
from ..common.family import Implementation
from . import hopper_cost
from .given import Given, block_tensors, other_tensors
from .hopper_epilogue import StoredEpilogue
from .hopper_kernel import HopperGemm
from .hopper_plan import HopperTiling
from .hopper_staged import StagedEpilogue
from .parts import run_parts
from .problem import BLOCK
from .scheduler import PersistentTiles, SplitTiles

if TYPE_CHECKING:
    from ..common.problem import Laid
    from ..devices import Device
    from .problem import Product

_STORED = (Float16, BFloat16, Float32, Float8E4M3FN, Float8E5M2, Int8, Uint8, Int32)
"""Types of results."""
_UNIT = 16
"""Bytes that rows begin at multiples of, for the copy engine."""
_FARTHEST = 1 << 40
"""Bytes that a step of the copy engine is less than."""


class HopperProducts(Implementation):
    """`wgmma` on tiles that the copy engine loads and stores."""

    plan = HopperTiling
    repeats = True

    def supports(self, problem: Product, device: Device) -> str | None:
        if not device.warp_groups:
            return f"warp groups multiply on sm_90a alone, and {device.name} is sm_{device.generation.number}"
        dtype, out = problem.dtype, problem.out.dtype
        if dtype is Float32:
            return "the tensor cores take f32 as it is and leave out the last bits, which is not rounded to TF32"
        if out not in _STORED:
            return f"the copy engine stores no {out.__name__}"
        operands = problem.operands()
        if dtype.width == 8 and not all(x.k_major for x in operands):
            return "8-bit operands of the tensor cores of sm_90a are contiguous in K"
        for name, x, mode in zip("ab", (problem.a, problem.b), (2, 1), strict=True):
            k_major = operands[name == "b"].k_major
            if not steps(x, mode if k_major else 3 - mode):
                return f"rows of {name} do not begin at multiples of {_UNIT} bytes: {x}"
        if not steps(problem.out, 2):
            return f"rows of the result do not begin at multiples of {_UNIT} bytes: {problem.out}"
        return None

    def plans(self, problem: Product, device: Device) -> list[HopperTiling]:
        """The most promising first."""
        found = [(self.cost(problem, plan, device), plan) for plan in hopper_cost.candidates(problem, device)]
        return [plan for _, plan in sorted(found, key=lambda pair: pair[0])]

    def cost(self, problem: Product, plan: HopperTiling, device: Device) -> float:
        return hopper_cost.expected(problem, plan, device)

    def parts(self, problem: Product, plan: HopperTiling, device: Device) -> dict[str, float]:
        return hopper_cost.bounds(problem, plan, device)

    def check(self, problem: Product, plan: HopperTiling, device: Device) -> None:
        plan.check(problem.dtype, problem.out.dtype, problem.promoted, device)
        if problem.blocks:
            arrays.require(
                plan.block_mnk[2] == BLOCK and not plan.swapped,
                f"{plan}: factors are of blocks of {BLOCK} of K, and of rows of the tile",
                hint=f"K of {BLOCK}, swapped=False",
            )
        stages = -(-problem.k // plan.block_mnk[2])
        arrays.require(
            plan.splits * plan.sums <= stages,
            f"{plan}: K of {problem.k} is {stages} stages, of which each part has one at least",
        )
        if plan.sums > 1:
            unit = plan.sums * 8 * _UNIT // problem.dtype.width
            arrays.require(
                problem.k % unit == 0 and problem.shape[2] % 4 == 0 and problem.shape[0] == 1 and problem.acc_dtype is Float32
                and not problem.blocks,
                f"{plan}: parts that a second kernel adds are of one product of floats, and K of {problem.k} is a multiple of {unit}, N of "
                f"{problem.shape[2]} of 4",
            )  # fmt: skip

    def run(self, problem: Product, plan: HopperTiling, given: Given) -> None:
        if plan.sums > 1:
            run_parts(self, problem, dataclasses.replace(plan, sums=1), plan.sums, given)
            return
        a, b = problem.operands()
        follow, tile = problem.follow, plan.block_mnk[:2]
        widths = None if follow.plain else problem.other_widths
        out, acc = problem.out.dtype, problem.acc_dtype
        differ = batched(problem.a), batched(problem.b), batched(problem.out)
        clusters = devices.clusters(plan.blocks)

        def make() -> HopperGemm:
            if plan.splits > 1:
                scheduler = SplitTiles(tile, plan.group, plan.splits)
            else:
                scheduler = PersistentTiles(tile, plan.cluster_mn, plan.group, clusters)
            epilogue = epilogue_of(problem, plan, widths)
            return HopperGemm(a, b, differ, problem.promoted, bool(problem.blocks), plan, scheduler, epilogue)

        kinds = (a.dtype, a.k_major, b.dtype, b.k_major, acc, out)
        width = problem.out_width if plan.staged else 0
        key = (
            HopperGemm, kinds, differ, problem.promoted, bool(problem.blocks), plan, clusters, width, widths, follow.c, follow.bias,
            follow.scaled, follow.factors,
        )  # fmt: skip
        kernel = launches.made_of(follow.functions, make, *key)
        launches.run_tensors(
            kernel, [given.a, given.b, given.out, *given.blocks, *given.others],
            [*tensors_of(problem, given), *block_tensors(problem, given), *other_tensors(problem, given)], 3, given.alpha, given.beta,
        )  # fmt: skip


def epilogue_of(
    problem: Product, plan: HopperTiling, widths: tuple[int, ...] | None, grouped: bool = False
) -> StoredEpilogue | StagedEpilogue:
    """What writes the results of a problem; `grouped`: rows of tiles begin and end anywhere."""
    out, acc, follow = problem.out.dtype, problem.acc_dtype, problem.follow
    if plan.staged:
        return StagedEpilogue(plan, acc, out, problem.out_width, follow.combiner(), widths, grouped)
    piece = plan.piece(out.width, not follow.plain)
    return StoredEpilogue(plan.block_mnk[:2], plan.sharers, piece, acc, out, follow.combiner(), widths, grouped)


def tensors_of(problem: Product, given: Given) -> list[Any]:
    """A, B and the result as arguments."""
    a, b = problem.operands()
    modes = (2 if a.k_major else 1, 1 if b.k_major else 2, 2)
    return [
        arrays.dynamic(x, mode, _UNIT // arrays.itemsize(x))
        for x, mode in zip((given.a, given.b, given.out), modes, strict=True)
    ]


def batched(x: Laid) -> bool:
    """Whether batches of an array differ."""
    return x.shape[0] > 1 and x.strides[0] != 0


def steps(x: Laid, leading: int) -> bool:
    """Whether the copy engine can step through an array that is contiguous along a mode."""
    return x.offset % _UNIT == 0 and all(
        (mode == leading and step == 1)
        or (mode == 0 and not batched(x))
        or (step > 0 and step * x.size % _UNIT == 0 and step * x.size < _FARTHEST)
        for mode, step in enumerate(x.strides)
    )
