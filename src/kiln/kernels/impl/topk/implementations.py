"""The implementation of `topk_softmax`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.config import Rule
from ...dispatch.registry import MemoryBound, Registry
from ..rowwise.config import WARP, RowwiseConfig
from ..rowwise.row_part import MAX_SAVED_ELEMENTS
from .kernel import TopK, TopKKernelProblem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import TopKProblem

REGISTRY = Registry("topk_softmax")


class TopKArguments(NamedTuple):
    """The arrays of `topk_softmax`."""

    x: Any
    values: Any
    indices: Any


_MANY_ROWS = 256
"""Rows from which on CTAs of long rows share an SM."""
_CTAS_PER_SM = {128: 8, 256: 3}
"""CTAs of an SM by threads: their registers allow as many without spills in the loops."""


def topk_config(n: int, width: int, k: int, rows: int) -> RowwiseConfig:
    """Return the measured config: as few threads as there are results, and 32 elements each, for short rows; a CTA for
    long ones.
    """
    threads = arrays.power_of_two(-(-n // width))
    if n <= 512:
        threads = min(threads, WARP, max(8, arrays.power_of_two(k), arrays.power_of_two(-(-n // 32))))
    if threads <= WARP:
        return RowwiseConfig(128, threads, ctas_per_sm=_CTAS_PER_SM[128])
    if n > 512 * MAX_SAVED_ELEMENTS and rows >= _MANY_ROWS:  # rows are read twice
        return RowwiseConfig(256, 256, ctas_per_sm=_CTAS_PER_SM[256])
    threads = min(512, max(WARP, arrays.power_of_two(-(-n // 32))))
    return RowwiseConfig(128 if threads <= WARP else threads, threads)


@REGISTRY.register
class TopKSoftmax(MemoryBound):
    """The threads of a row, in a CTA or part of one, select its largest elements."""

    config = RowwiseConfig
    tried = {"threads": (128, 256, 512)}

    def supports(self, problem: TopKProblem, device: Device) -> str | None:
        return problem.exceeds_32_bits

    def measured_config(self, problem: TopKProblem, device: Device) -> RowwiseConfig:
        return topk_config(problem.n, problem.matrices[0].width, problem.k, problem.rows)

    def rules(self, problem: TopKProblem, config: RowwiseConfig, device: Device) -> Iterator[Rule]:
        yield from config.rules(problem.n, problem.matrices[0].width, problem.x.dtype.width, 1, device)
        text = "rows are in the registers of one CTA, so cluster must be 1 and smem_vectors 0"
        yield Rule(config.cluster == 1 and config.smem_vectors == 0, text)
        text = f"row_threads must be {config.threads} or at most a warp"
        yield Rule(config.row_threads <= WARP or config.row_threads == config.threads, text)

    def run(self, problem: TopKProblem, config: RowwiseConfig, args: TopKArguments) -> None:
        ((rows, n, step, width),) = problem.matrices
        k = problem.k
        vectors = config.vectors(n, width)
        # More would not fit in registers. 56 of bf16 spill 200 bytes, and are a quarter faster than reading twice.
        vectors = vectors if vectors * width <= MAX_SAVED_ELEMENTS else 0
        kernel = launches.cached_kernel(
            TopK,
            TopKKernelProblem(
                (problem.x.dtype,),
                (),
                (),
                0,
                width,
                vectors,
                n == config.row_threads * vectors * width,
                config,
                overlaps=devices.current().overlaps,
                renormalize=problem.renormalize,
                has_threshold=k <= config.row_threads,
                index=problem.indices.dtype,
            ),
        )
        ctas = Int32(-(-rows // config.rows))
        launches.launch(kernel, args, Int32(rows), Int32(n), Int32(k), Int64(step), ctas)
