"""What a product of groups of rows, each with a matrix of its own, is asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...dispatch.arrays import require
from ...dispatch.problem import Laid
from .problem import BLOCK, Product


@dataclasses.dataclass(frozen=True)
class GroupedProduct(Product):
    """D = follow(A B, others) for B (G, K, N), of which rows of A and D take one each.

    `contiguous`: A is (1, T, K), D and others (1, T, N); group after group, where each ends is known to the device alone.
    Otherwise A is (G, M, K), D and others (G, M, N), and the device knows how many rows of each group count. `rows` are expected of a group.
    """

    contiguous: bool = True
    rows: int = 1

    name = "grouped_gemm"

    def check_shapes(self) -> None:
        a, b, out = self.a, self.b, self.out
        require(
            len(a.shape) == len(b.shape) == len(out.shape) == 3
            and (*a.shape[:2], b.shape[2]) == out.shape
            and a.shape[0] == (1 if self.contiguous else b.shape[0])
            and a.shape[2] == b.shape[1]
            and all(x.shape == out.shape for x in self.others),
            f"grouped_gemm of shapes {a.shape} and {b.shape} into {out.shape}",
        )

    @property
    def matrices(self) -> int:
        """One for each group."""
        return self.b.shape[0]

    def like(self) -> Product:
        """The batch of products of groups that are all as large as expected."""
        _, k, n = self.b.shape
        a, out = (Laid.dense(x.dtype, self.matrices, self.rows, columns) for x, columns in ((self.a, k), (self.out, n)))
        others = tuple(_repeated(x, self.matrices, self.rows) for x in self.others)
        blocks = tuple(
            Laid.dense(x.dtype, self.matrices, *shape) for x, shape in zip(self.blocks, _blocks(self.rows, k, n))
        )
        return Product(a, self.b, out, others, self.follow, self.precision, blocks)

    @property
    def flops(self) -> int:
        return 2 * self.matrices * self.rows * self.b.shape[2] * self.k

    @property
    def bytes(self) -> int:
        return self.like().bytes


def _blocks(rows: int, k: int, n: int) -> tuple[tuple[int, int], tuple[int, int]]:
    depth = -(-k // BLOCK)
    return (rows, depth), (depth, -(-n // BLOCK))


def _repeated(x: Laid, groups: int, rows: int) -> Any:
    _, row, column = x.strides
    return Laid(x.dtype, (groups, rows, x.shape[2]), (row * rows, row, column), x.offset)
