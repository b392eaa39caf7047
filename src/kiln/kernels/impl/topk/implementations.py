"""The implementation of the largest elements of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import MemoryBound, Registry, variants
from ..rowwise.row_kernel import MOST_KEPT, WARP, RowwiseConfig
from .kernel import SelectionProblem, TopK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import TopKProblem

REGISTRY = Registry("selections")


class Given(NamedTuple):
    """The arrays: rows, values and columns."""

    x: Any
    values: Any
    indices: Any


_MANY = 1 << 15
"""Rows from which on what each of them takes is what counts, not how soon it is done."""


def selection_config(n: int, width: int, k: int, rows: int) -> RowwiseConfig:
    """A warp or less for short rows: few wait for each other. Longer ones have a block.

    Of many rows half a warp or less, where a row has twice as many threads as are asked for: else too many elements reach the number that
    is found of theirs.
    """
    units = -(-n // width)
    threads = arrays.power_of_two(units)
    if rows >= _MANY and n <= 512:
        threads = min(threads, WARP, max(arrays.power_of_two(2 * k), arrays.power_of_two(-(-n // 24)) // 2, 8))
    if threads > WARP:
        threads = min(512, max(WARP, arrays.power_of_two(-(-n // 32))))
    return RowwiseConfig(128 if threads <= WARP else threads, threads)


@REGISTRY.register
class OneAfterTheOther(MemoryBound):
    """The threads of a row find its largest elements one after the other."""

    config = RowwiseConfig

    def supports(self, problem: TopKProblem, device: Device) -> str | None:
        return problem.exceeds_32_bits

    def configs(self, problem: TopKProblem, device: Device) -> Iterator[RowwiseConfig]:
        first = selection_config(problem.n, problem.matrices[0].width, problem.k, problem.rows)

        def check(config: RowwiseConfig) -> None:
            self.check(problem, config, device)

        return variants(first, check, threads=[t for t in (128, 256, 512) if t >= first.row_threads])

    def check(self, problem: TopKProblem, config: RowwiseConfig, device: Device) -> None:
        config.check(problem.n, problem.matrices[0].width, problem.x.dtype.width, 1, device)
        arrays.require(
            config.cluster == 1 and config.shared == 0, f"{config}: rows are held in registers, each by one block"
        )
        arrays.require(
            config.row_threads <= WARP or config.row_threads == config.threads,
            f"{config}: a row has a block to itself, or at most a warp of one",
        )

    def run(self, problem: TopKProblem, config: RowwiseConfig, given: Given) -> None:
        ((rows, n, step, width),), k = problem.matrices, problem.k
        vectors = config.vectors(n, width)
        vectors = vectors if vectors * width <= MOST_KEPT else 0  # else there are registers for nothing besides
        kernel = launches.cached_kernel(
            TopK,
            SelectionProblem(
                (problem.x.dtype,), (), (), 0, width, vectors, n == config.row_threads * vectors * width, config,
                overlaps=devices.current().overlaps, renormalize=problem.renormalize, few=k <= config.row_threads,
                index=problem.indices.dtype,
            ),
        )  # fmt: skip
        taken = [given.x, given.values, given.indices]
        launches.launcher(
            kernel, taken, Int32(rows), Int32(n), Int32(k), Int64(step), Int32(-(-rows // config.rows))
        )(taken)  # fmt: skip
