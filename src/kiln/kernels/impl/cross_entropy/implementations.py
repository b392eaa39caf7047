"""The implementations of cross-entropy: a kernel that reads each row once, and one for the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import MemoryBound, Registry, variants
from ..rowwise.row_kernel import RowProblem, RowwiseConfig
from .kernels import CrossEntropy, CrossEntropyGradient, Loss, Total

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import CrossEntropyProblem

REGISTRY = Registry("losses")

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


def loss_config(n: int, width: int, rows: int, device: Device) -> RowwiseConfig:
    """Small blocks, one to a row that is long enough for one; more of them where there are few rows."""
    units = -(-n // width)
    row_threads = min(128, max(8, arrays.power_of_two(-(-units // 4))))
    cluster = 1
    while cluster < device.cluster and 4 * rows * cluster <= device.multiprocessors and units >= 4096 * cluster:
        cluster *= 2
    return RowwiseConfig(128, row_threads, cluster, together=8)


def loss_vectors(n: int, width: int, config: RowwiseConfig, smoothed: bool) -> int:
    """Vectors of a row that a thread reads at a time; fewer for smoothed labels, which need more registers."""
    return min(4 if smoothed else 8, arrays.power_of_two(-(-n // (width * config.row_threads * config.cluster))))


class LossImplementation(MemoryBound):
    """What both have in common: memory takes the time."""

    config = RowwiseConfig

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return problem.exceeds_32_bits


@REGISTRY.register
class Losses(LossImplementation):
    """The loss and the logarithm of the sum of exponentials of each row, which is read once; then the sum or the mean."""

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return "it computes losses" if problem.out is not None else super().supports(problem, device)

    def configs(self, problem: CrossEntropyProblem, device: Device) -> Iterator[RowwiseConfig]:
        first = loss_config(problem.n, problem.accesses[0], problem.rows, device)
        return variants(
            first, lambda config: self.check(problem, config, device), cluster=(1, 2, 4, 8), together=(4, 8)
        )

    def check(self, problem: CrossEntropyProblem, config: RowwiseConfig, device: Device) -> None:
        config.check(problem.n, problem.accesses[0], problem.logits.dtype.width, 1, device)
        arrays.require(config.shared == 0, f"{config}: the rows of a loss are not held: nothing is in shared memory")

    def run(self, problem: CrossEntropyProblem, config: RowwiseConfig, given: Given) -> None:
        loss = Loss(problem.target.dtype, problem.smoothed, overlaps=devices.current().overlaps)
        (matrix,), (width, lead) = problem.matrices, problem.accesses
        vectors = loss_vectors(matrix.n, width, config, loss.smoothed)
        rows = RowProblem((problem.logits.dtype,), (), (), 0, width, vectors, False, config)
        blocks = -(-matrix.rows // config.rows) * config.cluster
        taken, total = [given.logits, given.target, given.losses, given.lse], None
        if given.total is not None:
            total = launches.cached_kernel(Total, loss.target, True, problem.reduction == "mean", loss.overlaps)
            taken.append(given.total)
        launches.launcher(
            launches.cached_kernel(CrossEntropy, rows, lead is not None, loss, total), taken, Int32(matrix.rows),
            Int32(matrix.n), Int64(matrix.step), Int32(lead or 0), Int64(given.ignored), Float32(given.smoothing),
            Int32(blocks),
        )(taken)  # fmt: skip


@REGISTRY.register
class LossGradients(LossImplementation):
    """The gradient of the logits: each block has a part of a row."""

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return "it computes gradients" if problem.out is None else super().supports(problem, device)

    def configs(self, problem: CrossEntropyProblem, device: Device) -> Iterator[RowwiseConfig]:
        sizes = {"threads": (64, 128, 256), "row_threads": (64, 128, 256)}
        return variants(RowwiseConfig(128, 128), lambda config: self.check(problem, config, device), **sizes)

    def check(self, problem: CrossEntropyProblem, config: RowwiseConfig, device: Device) -> None:
        config.check(1, problem.accesses[0], 32, 1, device)

    def run(self, problem: CrossEntropyProblem, config: RowwiseConfig, given: Given) -> None:
        assert problem.out is not None
        number, averaged = problem.outer is None, problem.reduction == "mean"
        each = problem.reduction == "none" and not number
        loss = Loss(problem.target.dtype, problem.smoothed, problem.outer, each, devices.current().overlaps)
        (read, written), (width, lead) = problem.matrices, problem.accesses
        part = config.threads * VECTORS * width
        counter = launches.cached_kernel(Total, loss.target, False, True, loss.overlaps) if averaged else None
        kernel = launches.cached_kernel(
            CrossEntropyGradient, problem.logits.dtype, problem.out.dtype, width, lead is not None,
            lead is None and read.n % part == 0, config.threads, VECTORS, loss, counter,
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
