"""The problem of cross-entropy and of its gradient."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from .... import Float32, Int32, Int64
from ...dispatch.arrays import require
from ...dispatch.matrices import RowwiseProblem, require_floats, shared_alignment
from ...dispatch.problem import TensorLayout

REDUCTIONS = ("mean", "sum", "none")


@dataclasses.dataclass(frozen=True)
class CrossEntropyProblem(RowwiseProblem):
    """The cross-entropy of logits along their last mode with a class for each row, or, with `out`, the gradient of the
    logits.

    `dloss` is the element type of the gradient of the loss; None for a Python number.
    """

    logits: TensorLayout
    target: TensorLayout
    reduction: str = "mean"
    smoothed: bool = False
    out: TensorLayout | None = None
    dloss: Any = None

    @property
    def name(self) -> str:
        return "cross_entropy" if self.out is None else "cross_entropy_backward"

    def __post_init__(self) -> None:
        name = self.name
        shape = self.logits.shape
        require(len(shape) >= 1, f"{name} of logits without modes")
        require(shape[-1] > 0, f"{name} of logits of shape {shape}: there are no classes")
        require(
            self.target.shape == shape[:-1],
            f"{name} of logits of shape {shape} with targets of shape {self.target.shape}",
            hint=f"a class for each row: {shape[:-1]}",
        )
        require_floats(name, [self.logits], "logits")
        kind = self.target.dtype
        require(kind in (Int32, Int64), f"{name} with {kind.__name__} targets: classes are Int32 or Int64")
        require(self.reduction in REDUCTIONS, f"{name} with reduction {self.reduction!r}", hint=", ".join(REDUCTIONS))
        if self.out is not None:
            require(self.out.shape == shape, f"{name} of logits of shape {shape} into {self.out.shape}")
            require_floats(name, [self.out], "gradients")
        if self.dloss is not None:
            require(self.dloss.is_float, f"{name} with dloss of {self.dloss.__name__}")

    @property
    def row_arrays(self) -> list[TensorLayout]:
        """The logits, and their gradient."""
        return [x for x in (self.logits, self.out) if x is not None]

    @functools.cached_property
    def accesses(self) -> tuple[int, int | None]:
        """Elements of a vector access, and how far behind a multiple of it the first row begins; None if all rows are
        aligned."""
        narrow = min(m.width for m in self.matrices)
        alignment = shared_alignment(self.row_arrays, [m.step for m in self.matrices])
        return (narrow, None) if alignment is None or alignment[0] == narrow else alignment

    @property
    def flops(self) -> int:
        """About five for each logit: a difference, an exponential, additions."""
        return 5 * self.rows * self.n

    @property
    def bytes(self) -> int:
        """Logits and classes are read once, losses and LSE (or gradients) written once."""
        written = self.rows * 2 * Float32.width // 8 if self.out is None else self.out.bytes
        return self.logits.bytes + self.target.bytes + written
