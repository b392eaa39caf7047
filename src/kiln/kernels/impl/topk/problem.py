"""The problem of `topk_softmax`."""

from __future__ import annotations

import dataclasses

from .... import Float32, Int32, Int64
from ...dispatch.arrays import require
from ...dispatch.matrices import RowwiseProblem, require_floats
from ...dispatch.problem import TensorLayout


@dataclasses.dataclass(frozen=True)
class TopKProblem(RowwiseProblem):
    """The `k` largest of the softmax of each row, and their columns; with `renormalize` divided by their sum."""

    x: TensorLayout
    k: int
    values: TensorLayout
    indices: TensorLayout
    renormalize: bool

    name = "topk_softmax"

    def __post_init__(self) -> None:
        shape = self.x.shape
        require(len(shape) >= 1, f"{self.name} of an array without modes")
        require_floats(self.name, [self.x])
        require(
            isinstance(self.k, int) and 1 <= self.k <= shape[-1],
            f"{self.name}: k is {self.k!r} for rows of {shape[-1]}",
            hint="k must be at least 1, and at most the length of a row",
        )
        for what, result, types in (("values", self.values, (Float32,)), ("indices", self.indices, (Int32, Int64))):
            require(
                result.shape == (*shape[:-1], self.k) and result.dtype in types,
                f"{self.name} of shape {shape}: {what} is {result.dtype.__name__} of shape {result.shape}",
                hint=f"{' or '.join(t.__name__ for t in types)} of shape {(*shape[:-1], self.k)}",
            )

    @property
    def row_arrays(self) -> tuple[TensorLayout]:
        return (self.x,)

    @property
    def flops(self) -> int:
        """About five for each element: comparisons, an exponential, a sum."""
        return 5 * self.rows * self.n

    @property
    def bytes(self) -> int:
        """Rows are read once, values and indices written once."""
        return self.x.bytes + self.values.bytes + self.indices.bytes
