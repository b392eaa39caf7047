"""The implementation of the largest elements of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import Family, MemoryBound, varied
from ..rowwise.row_kernel import MOST_KEPT, WARP, RowwiseConfig
from .kernel import SelectionProblem, TopK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import TopKProblem

FAMILY = Family("selections")


class Given(NamedTuple):
    """The arrays: rows, values and columns."""

    x: Any
    values: Any
    indices: Any


_MANY = 1 << 15
"""Rows from which on what each of them takes is what counts, not how soon it is done."""


def selection_tiling(n: int, width: int, k: int, rows: int) -> RowwiseConfig:
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


@FAMILY.register
class OneAfterTheOther(MemoryBound):
    """The threads of a row find its largest elements one after the other."""

    plan = RowwiseConfig

    def supports(self, problem: TopKProblem, device: Device) -> str | None:
        return problem.uncountable

    def plans(self, problem: TopKProblem, device: Device) -> Iterator[RowwiseConfig]:
        first = selection_tiling(problem.n, problem.matrices[0].width, problem.k, problem.rows)

        def check(plan: RowwiseConfig) -> None:
            self.check(problem, plan, device)

        return varied(first, check, threads=[t for t in (128, 256, 512) if t >= first.row_threads])

    def check(self, problem: TopKProblem, plan: RowwiseConfig, device: Device) -> None:
        plan.check(problem.n, problem.matrices[0].width, problem.x.dtype.width, 1, device)
        arrays.require(plan.cluster == 1 and plan.shared == 0, f"{plan}: rows are held in registers, each by one block")
        arrays.require(
            plan.row_threads <= WARP or plan.row_threads == plan.threads,
            f"{plan}: a row has a block to itself, or at most a warp of one",
        )

    def run(self, problem: TopKProblem, plan: RowwiseConfig, given: Given) -> None:
        ((rows, n, step, width),), k = problem.matrices, problem.k
        vectors = plan.vectors(n, width)
        vectors = vectors if vectors * width <= MOST_KEPT else 0  # else there are registers for nothing besides
        kernel = launches.made(
            TopK,
            SelectionProblem(
                (problem.x.dtype,), (), (), 0, width, vectors, n == plan.row_threads * vectors * width, plan,
                overlaps=devices.current().overlaps, renormalize=problem.renormalize, few=k <= plan.row_threads,
                index=problem.indices.dtype,
            ),
        )  # fmt: skip
        taken = [given.x, given.values, given.indices]
        launches.launcher(
            kernel, taken, Int32(rows), Int32(n), Int32(k), Int64(step), Int32(-(-rows // plan.rows))
        )(taken)  # fmt: skip
