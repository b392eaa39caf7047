"""The implementation of matrix products for sm_90a, and what its plans are expected to take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import BFloat16, Float8E4M3FN, Float8E5M2, Float16, Float32, Int8, Int32, Uint8
from .. import devices
from ..common import arrays, launches
from ..common.family import Implementation
from . import hopper_cost
from .given import Given, other_tensors
from .hopper_epilogue import StoredEpilogue
from .hopper_kernel import HopperGemm
from .hopper_plan import HopperTiling
from .problem import FLOATS8
from .scheduler import PersistentTiles

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
            if not _steps(x, mode if k_major else 3 - mode):
                return f"rows of {name} do not begin at multiples of {_UNIT} bytes: {x}"
        if not _steps(problem.out, 2):
            return f"rows of the result do not begin at multiples of {_UNIT} bytes: {problem.out}"
        return None

    def plans(self, problem: Product, device: Device) -> list[HopperTiling]:
        """The most promising first."""
        found = [(self.cost(problem, plan, device), plan) for plan in hopper_cost.candidates(problem, device)]
        return [plan for _, plan in sorted(found, key=lambda pair: pair[0])]

    def cost(self, problem: Product, plan: HopperTiling, device: Device) -> float:
        return hopper_cost.expected(problem, plan, device)

    def check(self, problem: Product, plan: HopperTiling, device: Device) -> None:
        plan.check(problem.dtype, problem.out.dtype, problem.dtype in FLOATS8, device)

    def run(self, problem: Product, plan: HopperTiling, given: Given) -> None:
        a, b = problem.operands()
        follow, tile = problem.follow, plan.block_mnk[:2]
        widths, promoted = None if follow.plain else problem.other_widths, problem.dtype in FLOATS8
        out, acc = problem.out.dtype, problem.acc_dtype
        batched = _batched(problem.a), _batched(problem.b), _batched(problem.out)
        clusters = devices.clusters(plan.blocks)

        def make() -> HopperGemm:
            piece = plan.piece(out.width, not follow.plain)
            epilogue = StoredEpilogue(tile, plan.sharers, piece, acc, out, follow.combiner(), widths)
            scheduler = PersistentTiles(tile, plan.cluster_mn, plan.group, clusters)
            return HopperGemm(a, b, batched, promoted, plan, scheduler, epilogue)

        kinds = (a.dtype, a.k_major, b.dtype, b.k_major, acc, out)
        key = (HopperGemm, kinds, batched, plan, clusters, widths, follow.c, follow.bias, follow.scaled)
        kernel = launches.made_of(follow.functions, make, *key)
        arrays_ = (given.a, given.b, given.out)
        modes = (2 if a.k_major else 1, 1 if b.k_major else 2, 2)
        tensors = [arrays.dynamic(x, mode, _UNIT // arrays.itemsize(x)) for x, mode in zip(arrays_, modes, strict=True)]
        launches.run_tensors(
            kernel, [*arrays_, *given.others], [*tensors, *other_tensors(problem, given)], 3, given.alpha, given.beta
        )


def _batched(x: Laid) -> bool:
    """Whether batches of an array differ."""
    return x.shape[0] > 1 and x.strides[0] != 0


def _steps(x: Laid, leading: int) -> bool:
    """Whether the copy engine can step through an array that is contiguous along a mode."""
    return x.offset % _UNIT == 0 and all(
        (mode == leading and step == 1)
        or (mode == 0 and not _batched(x))
        or (step > 0 and step * x.size % _UNIT == 0 and step * x.size < _FARTHEST)
        for mode, step in enumerate(x.strides)
    )
