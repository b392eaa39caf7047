"""The implementations of cross-entropy: a kernel that reads each row once, and one for the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.registry import MemoryBound, Registry, variants
from ..rowwise.config import RowwiseConfig
from ..rowwise.row_kernel import RowProblem
from .kernels import CrossEntropy, CrossEntropyBackward, Loss, LossReduction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import CrossEntropyProblem

REGISTRY = Registry("cross_entropy")

VECTORS = 2
"""Vectors of a row of which a thread computes gradients."""


class CrossEntropyArguments(NamedTuple):
    """The arrays of a cross-entropy, with the layouts of its problem, and its scalars.

    `losses` and `total` (None with reduction "none") are written forward, `out` backward; `dloss` is an array or a number.
    """

    logits: Any
    target: Any
    lse: Any
    ignore_index: int
    smoothing: float
    losses: Any = None
    total: Any = None
    out: Any = None
    dloss: Any = None


def loss_config(n: int, width: int, rows: int, device: Device) -> RowwiseConfig:
    """Returns the measured config: small CTAs, one to a row that is long enough; more of them where there are few rows."""
    units = -(-n // width)
    row_threads = min(128, max(8, arrays.power_of_two(-(-units // 4))))
    cluster = 1
    while cluster < device.cluster and 4 * rows * cluster <= device.sm_count and units >= 4096 * cluster:
        cluster *= 2
    return RowwiseConfig(128, row_threads, cluster, ctas_per_sm=8)


def loss_vectors(n: int, width: int, config: RowwiseConfig, smoothed: bool) -> int:
    """Returns the vectors of a row that a thread reads at a time; fewer for smoothed labels, which need more registers."""
    return min(4 if smoothed else 8, arrays.power_of_two(-(-n // (width * config.row_threads * config.cluster))))


class CrossEntropyImplementation(MemoryBound):
    """The base of both implementations."""

    config = RowwiseConfig

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return problem.exceeds_32_bits


@REGISTRY.register
class CrossEntropyRows(CrossEntropyImplementation):
    """The loss and LSE of each row, which is read once; then the sum or the mean."""

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return (
            "it computes the loss, not its gradient" if problem.out is not None else super().supports(problem, device)
        )

    def configs(self, problem: CrossEntropyProblem, device: Device) -> Iterator[RowwiseConfig]:
        first = loss_config(problem.n, problem.accesses[0], problem.rows, device)
        return variants(
            first, lambda config: self.check(problem, config, device), cluster=(1, 2, 4, 8), ctas_per_sm=(4, 8)
        )

    def check(self, problem: CrossEntropyProblem, config: RowwiseConfig, device: Device) -> None:
        config.check(problem.n, problem.accesses[0], problem.logits.dtype.width, 1, device)
        arrays.require(config.smem_vectors == 0, f"{config}: rows are not held on chip, so smem_vectors must be 0")

    def run(self, problem: CrossEntropyProblem, config: RowwiseConfig, args: CrossEntropyArguments) -> None:
        loss = Loss(problem.target.dtype, problem.smoothed, overlaps=devices.current().overlaps)
        (matrix,), (width, lead) = problem.matrices, problem.accesses
        vectors = loss_vectors(matrix.n, width, config, loss.smoothed)
        rows = RowProblem((problem.logits.dtype,), (), (), 0, width, vectors, False, config)
        ctas = -(-matrix.rows // config.rows) * config.cluster
        given, reduction = [args.logits, args.target, args.losses, args.lse], None
        if args.total is not None:
            averages = problem.reduction == "mean"
            reduction = launches.cached_kernel(LossReduction, loss.target, True, averages, loss.overlaps)
            given.append(args.total)
        launches.launcher(
            launches.cached_kernel(CrossEntropy, rows, lead is not None, loss, reduction), given, Int32(matrix.rows),
            Int32(matrix.n), Int64(matrix.step), Int32(lead or 0), Int64(args.ignore_index),
            Float32(args.smoothing), Int32(ctas),
        )(given)  # fmt: skip


@REGISTRY.register
class CrossEntropyGradient(CrossEntropyImplementation):
    """The gradient of the logits: each CTA has a part of a row."""

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return "it computes the gradient, not the loss" if problem.out is None else super().supports(problem, device)

    def configs(self, problem: CrossEntropyProblem, device: Device) -> Iterator[RowwiseConfig]:
        sizes = {"threads": (64, 128, 256), "row_threads": (64, 128, 256)}
        return variants(RowwiseConfig(128, 128), lambda config: self.check(problem, config, device), **sizes)

    def check(self, problem: CrossEntropyProblem, config: RowwiseConfig, device: Device) -> None:
        config.check(1, problem.accesses[0], 32, 1, device)

    def run(self, problem: CrossEntropyProblem, config: RowwiseConfig, args: CrossEntropyArguments) -> None:
        assert problem.out is not None
        number, averages = problem.dloss is None, problem.reduction == "mean"
        each = problem.reduction == "none" and not number
        loss = Loss(problem.target.dtype, problem.smoothed, problem.dloss, each, devices.current().overlaps)
        (read, written), (width, lead) = problem.matrices, problem.accesses
        part = config.threads * VECTORS * width
        counter = launches.cached_kernel(LossReduction, loss.target, False, True, loss.overlaps) if averages else None
        kernel = launches.cached_kernel(
            CrossEntropyBackward, problem.logits.dtype, problem.out.dtype, width, lead is not None,
            lead is None and read.n % part == 0, config.threads, VECTORS, loss, counter,
        )  # fmt: skip
        given = [args.logits, args.target, args.lse, args.out]
        if averages:
            given.append(arrays.empty(args.logits, (), arrays.framework_dtype(Float32, args.logits)))
        if not number:
            given.append(args.dloss)
        launches.launcher(
            kernel, given, Int32(read.rows), Int32(read.n), (Int64(read.step), Int64(written.step)), Int32(lead or 0),
            Int64(args.ignore_index), Float32(args.smoothing), Float32(args.dloss if number else 0.0),
            Int32(max(1, -(-read.n // part))),
        )(given)  # fmt: skip
