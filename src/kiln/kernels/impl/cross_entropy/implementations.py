"""The implementations of cross-entropy: a kernel that reads each row once, and one for the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import Family, MemoryBound, varied
from ..rowwise.row_kernel import RowProblem, RowwiseConfig
from .kernels import CrossEntropy, CrossEntropyGradient, Loss, Total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import CrossEntropyProblem

FAMILY = Family("losses")

VECTORS = 2
"""Vectors of a row for which a thread computes gradients."""


class Given(NamedTuple):
    """The arrays of a cross-entropy, as its problem says they lie, and its numbers.

    `losses` and `total` (None with reduction "none") are written forward, `out` backward; `dloss` is an array or a number.
    """

    logits: Any
    target: Any
    lse: Any
    ignored: int
    smoothing: float
    losses: Any = None
    total: Any = None
    out: Any = None
    dloss: Any = None


def loss_tiling(n: int, width: int, rows: int, device: Device) -> RowwiseConfig:
    """Small blocks, one to a row that is long enough for one; more of them where there are few rows."""
    units = -(-n // width)
    row_threads = min(128, max(8, arrays.power_of_two(-(-units // 4))))
    cluster = 1
    while cluster < device.cluster and 4 * rows * cluster <= device.multiprocessors and units >= 4096 * cluster:
        cluster *= 2
    return RowwiseConfig(128, row_threads, cluster, together=8)


def loss_vectors(n: int, width: int, tiling: RowwiseConfig, smoothed: bool) -> int:
    """Vectors of a row that a thread reads at a time; fewer for smoothed labels, which need more registers."""
    return min(4 if smoothed else 8, arrays.power_of_two(-(-n // (width * tiling.row_threads * tiling.cluster))))


class LossImplementation(MemoryBound):
    """What both have in common: memory takes the time."""

    plan = RowwiseConfig

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return problem.uncountable


@FAMILY.register
class Losses(LossImplementation):
    """The loss and the logarithm of the sum of exponentials of each row, which is read once; then the sum or the mean."""

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return "it computes losses" if problem.out is not None else super().supports(problem, device)

    def plans(self, problem: CrossEntropyProblem, device: Device) -> Iterator[RowwiseConfig]:
        first = loss_tiling(problem.n, problem.accesses[0], problem.rows, device)
        return varied(first, lambda plan: self.check(problem, plan, device), cluster=(1, 2, 4, 8), together=(4, 8))

    def check(self, problem: CrossEntropyProblem, plan: RowwiseConfig, device: Device) -> None:
        plan.check(problem.n, problem.accesses[0], problem.logits.dtype.width, 1, device)
        arrays.require(plan.shared == 0, f"{plan}: the rows of a loss are not held: nothing is in shared memory")

    def run(self, problem: CrossEntropyProblem, plan: RowwiseConfig, given: Given) -> None:
        loss = Loss(problem.target.dtype, problem.smoothed, overlaps=devices.current().overlaps)
        (matrix,), (width, lead) = problem.matrices, problem.accesses
        vectors = loss_vectors(matrix.n, width, plan, loss.smoothed)
        rows = RowProblem((problem.logits.dtype,), (), (), 0, width, vectors, False, plan)
        blocks = -(-matrix.rows // plan.rows) * plan.cluster
        taken, total = [given.logits, given.target, given.losses, given.lse], None
        if given.total is not None:
            total = launches.made(Total, loss.target, True, problem.reduction == "mean", loss.overlaps)
            taken.append(given.total)
        launches.launcher(
            launches.made(CrossEntropy, rows, lead is not None, loss, total), taken, Int32(matrix.rows),
            Int32(matrix.n), Int64(matrix.step), Int32(lead or 0), Int64(given.ignored), Float32(given.smoothing),
            Int32(blocks),
        )(taken)  # fmt: skip


@FAMILY.register
class LossGradients(LossImplementation):
    """The gradient of the logits: each block has a part of a row."""

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return "it computes gradients" if problem.out is None else super().supports(problem, device)

    def plans(self, problem: CrossEntropyProblem, device: Device) -> Iterator[RowwiseConfig]:
        sizes = {"threads": (64, 128, 256), "row_threads": (64, 128, 256)}
        return varied(RowwiseConfig(128, 128), lambda plan: self.check(problem, plan, device), **sizes)

    def check(self, problem: CrossEntropyProblem, plan: RowwiseConfig, device: Device) -> None:
        plan.check(1, problem.accesses[0], 32, 1, device)

    def run(self, problem: CrossEntropyProblem, plan: RowwiseConfig, given: Given) -> None:
        assert problem.out is not None
        number, averaged = problem.outer is None, problem.reduction == "mean"
        each = problem.reduction == "none" and not number
        loss = Loss(problem.target.dtype, problem.smoothed, problem.outer, each, devices.current().overlaps)
        (read, written), (width, lead) = problem.matrices, problem.accesses
        part = plan.threads * VECTORS * width
        counter = launches.made(Total, loss.target, False, True, loss.overlaps) if averaged else None
        kernel = launches.made(
            CrossEntropyGradient, problem.logits.dtype, problem.out.dtype, width, lead is not None,
            lead is None and read.n % part == 0, plan.threads, VECTORS, loss, counter,
        )  # fmt: skip
        taken = [given.logits, given.target, given.lse, given.out]
        if averaged:
            taken.append(arrays.empty(given.logits, (), arrays.framework_dtype(Float32, given.logits)))
        if not number:
            taken.append(given.dloss)
        launches.launcher(
            kernel, taken, Int32(read.rows), Int32(read.n), (Int64(read.step), Int64(written.step)), Int32(lead or 0),
            Int64(given.ignored), Float32(given.smoothing), Float32(given.dloss if number else 0.0),
            Int32(max(1, -(-read.n // part))),
        )(taken)  # fmt: skip
