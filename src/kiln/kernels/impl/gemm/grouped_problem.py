"""What a product of groups of rows, each with a matrix of its own, is asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...dispatch.arrays import require
from ...dispatch.problem import TensorLayout
from .problem import SCALE_BLOCK, GemmProblem


@dataclasses.dataclass(frozen=True)
class GroupedGemmProblem(GemmProblem):
    """D = follow(A B, others) for B (G, K, N), of which rows of A and D take one each.

    `contiguous`: A is (1, T, K), D and others (1, T, N); group after group, where each ends is known to the device alone.
    Otherwise A is (G, M, K), D and others (G, M, N), and the device knows how many rows of each group count. `expected_rows` are expected of a group.
    """

    contiguous: bool = True
    expected_rows: int = 1

    name = "grouped_gemm"

    def check_shapes(self) -> None:
        a, b, out = self.a, self.b, self.out
        require(
            len(a.shape) == len(b.shape) == len(out.shape) == 3
            and (*a.shape[:2], b.shape[2]) == out.shape
            and a.shape[0] == (1 if self.contiguous else b.shape[0])
            and a.shape[2] == b.shape[1]
            and all(x.shape == out.shape for x in self.epilogue_inputs),
            f"grouped_gemm of shapes {a.shape} and {b.shape} into {out.shape}",
        )

    @property
    def num_groups(self) -> int:
        """One for each group."""
        return self.b.shape[0]

    def as_batch(self) -> GemmProblem:
        """The batch of products of groups that are all as large as expected."""
        _, k, n = self.b.shape
        a, out = (
            TensorLayout.dense(x.dtype, self.num_groups, self.expected_rows, columns)
            for x, columns in ((self.a, k), (self.out, n))
        )
        others = tuple(_repeated(x, self.num_groups, self.expected_rows) for x in self.epilogue_inputs)
        blocks = tuple(
            TensorLayout.dense(x.dtype, self.num_groups, *shape)
            for x, shape in zip(self.block_scales, _blocks(self.expected_rows, k, n))
        )
        return GemmProblem(a, self.b, out, others, self.fusion, self.precision, blocks)

    @property
    def flops(self) -> int:
        return 2 * self.num_groups * self.expected_rows * self.b.shape[2] * self.k

    @property
    def bytes(self) -> int:
        return self.as_batch().bytes


def _blocks(rows: int, k: int, n: int) -> tuple[tuple[int, int], tuple[int, int]]:
    depth = -(-k // SCALE_BLOCK)
    return (rows, depth), (depth, -(-n // SCALE_BLOCK))


def _repeated(x: TensorLayout, groups: int, rows: int) -> Any:
    _, row, column = x.strides
    return TensorLayout(x.dtype, (groups, rows, x.shape[2]), (row * rows, row, column), x.offset)
