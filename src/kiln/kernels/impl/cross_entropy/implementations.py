"""The implementations of cross-entropy: a kernel that reads each row once, and one for the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from .... import Float32, Int32, Int64
from ...dispatch import arrays, devices, launches
from ...dispatch.config import Rule
from ...dispatch.registry import MemoryBound, Registry
from ..rowwise.config import RowwiseConfig
from ..rowwise.row_kernel import RowProblem
from .kernels import CrossEntropy, CrossEntropyBackward, Loss, LossNumbers, LossReduction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...dispatch.devices import Device
    from .problem import CrossEntropyProblem

REGISTRY = Registry("cross_entropy")

VECTORS = 2
"""Vectors of a row of which a thread computes gradients."""


class CrossEntropyArguments(NamedTuple):
    """The arrays of a cross-entropy, with the layouts of its problem, and its scalars.

    `losses` and `total` (None with reduction "none") are written forward, `out` backward; `dloss` is an array or a
    number.
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
    """Return the measured config: small CTAs, one to a row that is long enough; more of them where there are few
    rows."""
    units = -(-n // width)
    row_threads = min(128, max(8, arrays.power_of_two(-(-units // 4))))
    cluster = 1
    while cluster < device.cluster and 4 * rows * cluster <= device.sm_count and units >= 4096 * cluster:
        cluster *= 2
    return RowwiseConfig(128, row_threads, cluster, ctas_per_sm=8)


def loss_vectors(n: int, width: int, config: RowwiseConfig, smoothed: bool) -> int:
    """Return the vectors of a row that a thread reads at a time; fewer for smoothed labels, which need more
    registers."""
    return min(4 if smoothed else 8, arrays.power_of_two(-(-n // (width * config.row_threads * config.cluster))))


class CrossEntropyImplementation(MemoryBound):
    """The base of both implementations."""

    config = RowwiseConfig

    def numbers(self, problem: CrossEntropyProblem, args: CrossEntropyArguments) -> LossNumbers:
        """Return the sizes and options that the kernels take."""
        return LossNumbers(
            Int32(problem.rows),
            Int32(problem.n),
            Int32(problem.accesses[1] or 0),
            Int64(args.ignore_index),
            Float32(args.smoothing),
        )

    def reduction(self, problem: CrossEntropyProblem, adds_losses: bool) -> LossReduction | None:
        """Return the kernel that adds losses, or counts rows, as the problem's reduction needs; None if it needs
        neither."""
        averages = problem.reduction == "mean"
        if problem.reduction == "none" or not (adds_losses or averages):
            return None
        overlaps = devices.current().overlaps
        return launches.cached_kernel(LossReduction, problem.target.dtype, adds_losses, averages, overlaps)


@REGISTRY.register
class CrossEntropyRows(CrossEntropyImplementation):
    """The loss and LSE of each row, which is read once; then the sum or the mean."""

    tried = {"cluster": (1, 2, 4, 8), "ctas_per_sm": (4, 8)}

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return "it computes the loss, not its gradient" if problem.out is not None else problem.exceeds_32_bits

    def measured_config(self, problem: CrossEntropyProblem, device: Device) -> RowwiseConfig:
        return loss_config(problem.n, problem.accesses[0], problem.rows, device)

    def rules(self, problem: CrossEntropyProblem, config: RowwiseConfig, device: Device) -> Iterator[Rule]:
        yield from config.rules(problem.n, problem.accesses[0], problem.logits.dtype.width, 1, device)
        yield Rule(config.smem_vectors == 0, "rows are not held on chip, so smem_vectors must be 0")

    def run(self, problem: CrossEntropyProblem, config: RowwiseConfig, args: CrossEntropyArguments) -> None:
        (matrix,) = problem.matrices
        width, lead = problem.accesses
        overlaps = devices.current().overlaps
        loss = Loss(problem.target.dtype, problem.smoothed, overlaps=overlaps, unaligned=lead is not None)
        vectors = loss_vectors(matrix.n, width, config, loss.smoothed)
        rows = RowProblem((problem.logits.dtype,), (), (), 0, width, vectors, False, config)
        kernel = launches.cached_kernel(CrossEntropy, rows, loss, self.reduction(problem, adds_losses=True))
        operands = [args.logits, args.target, args.losses, args.lse, *([] if args.total is None else [args.total])]
        ctas = Int32(-(-matrix.rows // config.rows) * config.cluster)
        launches.launch(kernel, operands, self.numbers(problem, args), Int64(matrix.step), ctas)


@REGISTRY.register
class CrossEntropyGradient(CrossEntropyImplementation):
    """The gradient of the logits: each CTA has a part of a row."""

    tried = {"threads": (64, 128, 256), "row_threads": (64, 128, 256)}

    def supports(self, problem: CrossEntropyProblem, device: Device) -> str | None:
        return "it computes the gradient, not the loss" if problem.out is None else problem.exceeds_32_bits

    def measured_config(self, problem: CrossEntropyProblem, device: Device) -> RowwiseConfig:
        return RowwiseConfig(128, 128)

    def rules(self, problem: CrossEntropyProblem, config: RowwiseConfig, device: Device) -> Iterator[Rule]:
        return config.rules(1, problem.accesses[0], 32, 1, device)

    def run(self, problem: CrossEntropyProblem, config: RowwiseConfig, args: CrossEntropyArguments) -> None:
        assert problem.out is not None
        is_number = problem.dloss is None
        overlaps = devices.current().overlaps
        row_dloss = problem.reduction == "none" and not is_number
        read, written = problem.matrices
        width, lead = problem.accesses
        loss = Loss(problem.target.dtype, problem.smoothed, problem.dloss, row_dloss, overlaps, lead is not None)
        part = config.threads * VECTORS * width
        counter = self.reduction(problem, adds_losses=False)
        kernel = launches.cached_kernel(
            CrossEntropyBackward,
            problem.logits.dtype,
            problem.out.dtype,
            width,
            lead is None and read.n % part == 0,
            config.threads,
            VECTORS,
            loss,
            counter,
        )
        operands = [args.logits, args.target, args.lse, args.out]
        if counter is not None:
            operands.append(arrays.empty(args.logits, (), arrays.framework_dtype(Float32, args.logits)))
        if not is_number:
            operands.append(args.dloss)
        launches.launch(
            kernel,
            operands,
            self.numbers(problem, args),
            (Int64(read.step), Int64(written.step)),
            Float32(args.dloss if is_number else 0.0),
            Int32(max(1, -(-read.n // part))),
        )
