"""GEMM of arrays that TMA cannot access: copied first to arrays that it can."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ...dispatch import arrays
from ...dispatch.problem import TensorLayout
from ...dispatch.registry import Implementation
from ...dispatch.roofline import us
from ...tuned import coefficients
from .problem import GroupedGemmProblem
from .tma_gemm import TMA_ALIGNMENT, is_batched, rows_end_aligned, tma_readable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...dispatch.config import Rule
    from ...dispatch.devices import Device
    from ...dispatch.roofline import Roofline
    from .arguments import GemmArguments
    from .problem import GemmProblem
    from .tma_gemm import TmaGemm, TmaGemmConfig


class PaddedGemm(Implementation):
    """Another implementation on copies of the arrays whose rows do not begin at multiples of 16 bytes, or of results
    with something else within 16 bytes behind a row."""

    repeats = True

    def __init__(self, other: TmaGemm) -> None:
        self.other = other
        self.config = other.config

    def supports(self, problem: GemmProblem, device: Device) -> str | None:
        if self.other.supports(problem, device) is None:
            return "TMA can access all arrays"
        return self.other.suits(self.padded(problem)[0], device)

    def configs(self, problem: GemmProblem, device: Device) -> list[TmaGemmConfig]:
        return self.other.configs(self.padded(problem)[0], device)

    def roofline(self, problem: GemmProblem, config: TmaGemmConfig, device: Device) -> Roofline:
        """Return the time of the GEMM and of each copy, which reads and writes an array once more."""
        padded, copied = self.padded(problem)
        names = "copy of a", "copy of b", *("copy of the result" for _ in problem.outs)
        rows = zip(names, (padded.a, padded.b, *padded.outs), copied, strict=True)
        c = coefficients("gemm_passes", device)
        copies = {name: c["copy_launch_us"] + us(2 * x.bytes, c["copy_dram_tbps"]) for name, x, copy in rows if copy}
        return self.other.roofline(padded, config, device).then(copies)

    def rules(self, problem: GemmProblem, config: TmaGemmConfig, device: Device) -> Iterable[Rule]:
        return self.other.rules(self.padded(problem)[0], config, device)

    def run(self, problem: GemmProblem, config: TmaGemmConfig, args: GemmArguments) -> None:
        padded, copied = self.padded(problem)
        own = (args.a, args.b, args.out, *args.extra_outs)
        layouts = (padded.a, padded.b, *padded.outs)
        rows = zip(own, layouts, copied, strict=True)
        a, b, out, *extra_outs = (_allocate(x, layout) if copy else x for x, layout, copy in rows)
        kept = [(out, args.out)] if args.group_bounds is not None else []  # rows that no group has
        for x, y in ((a, args.a), (b, args.b), *kept):
            if x is not y:
                arrays.assign(x, y if x.shape[0] == y.shape[0] else arrays.part(y, 0, slice(0, 1)))
        a, b = (arrays.broadcast_batches(x, layout.shape[0]) for x, layout in ((a, padded.a), (b, padded.b)))
        self.other.run(padded, config, args._replace(a=a, b=b, out=out, extra_outs=extra_outs))
        for x, target in zip((out, *extra_outs), own[2:], strict=True):
            if x is not target:
                arrays.assign(target, x)

    def padded(self, problem: GemmProblem) -> tuple[GemmProblem, list[bool]]:
        """Return the same problem on arrays that TMA can access, and which of A, B and the results are copied for it."""
        a, b = problem.operands()
        # K must be contiguous for some MMAs, and of A of groups, whose rows begin anywhere
        k_major = self.other.needs_k_major(problem)
        grouped = isinstance(problem, GroupedGemmProblem)
        modes = 2 if a.k_major or k_major or grouped else 1, 1 if b.k_major or k_major else 2
        accessible = [tma_readable(x, mode) for x, mode in zip((problem.a, problem.b), modes, strict=True)]
        accessible += [tma_readable(x, 2) and rows_end_aligned(x) for x in problem.outs]
        rows = zip((problem.a, problem.b, *problem.outs), (*modes, *(2 for _ in problem.outs)), accessible, strict=True)
        new_a, new_b, out, *extra_outs = (x if own else _pad(x, mode) for x, mode, own in rows)
        padded = dataclasses.replace(problem, a=new_a, b=new_b, out=out, extra_outs=tuple(extra_outs))
        return padded, [not own for own in accessible]


class Sm90PaddedGemm(PaddedGemm):
    """WGMMA on such copies."""


class Sm100PaddedGemm(PaddedGemm):
    """tcgen05 on such copies."""

    predicted = True


def _pad(x: TensorLayout, mode: int) -> TensorLayout:
    """Return a layout of the same extents, contiguous along a mode, whose rows begin at multiples of 16 bytes."""
    extents = x.shape[1:]
    vector = TMA_ALIGNMENT // x.size
    row = -(-extents[mode - 1] // vector) * vector
    strides = (row, 1) if mode == 2 else (1, row)
    return TensorLayout(x.dtype, x.shape, (row * extents[2 - mode] if is_batched(x) else 0, *strides), 0)


def _allocate(x: arrays.Array, layout: TensorLayout) -> arrays.Array:
    """Return a new array with a padded layout; of batches that are all the same, one."""
    batches, rows, columns = layout.shape
    if not is_batched(layout):
        batches = 1
    row_major = layout.leading((1, 2)) == 2
    row = layout.strides[1] if row_major else layout.strides[2]
    padded = arrays.empty(x, (batches, rows if row_major else columns, row), None)
    padded = arrays.part(padded, 2, slice(0, columns if row_major else rows))
    return padded if row_major else arrays.transposed(padded)
