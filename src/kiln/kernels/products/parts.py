"""Products whose K is cut into parts that are products of their own: a second kernel adds their sums and does what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..common import arrays, launches
from .given import Given, other_tensors
from .problem import Product
from .split_sum import SplitSum

if TYPE_CHECKING:
    from ..common.family import Implementation


def run_parts(implementation: Implementation, problem: Product, plan: Any, count: int, given: Given) -> None:
    """Two kernels: the parts of K as a batch, computed by a plan, then their sum and what follows it."""
    _, m, n = problem.shape
    k = problem.k // count
    a = arrays.permuted(arrays.reshaped(given.a, (m, count, k)), [1, 0, 2])
    b = arrays.reshaped(given.b, (count, k, n))
    sums = arrays.empty(given.a, (count, m, n), arrays.named_type(given.a, "float32"))
    laid = Product(arrays.laid(a), arrays.laid(b), arrays.laid(sums), precision=problem.precision)
    implementation.run(laid, plan, Given(a, b, sums))
    combine_parts(problem, sums, given)


def combine_parts(problem: Product, sums: Any, given: Given) -> None:
    """Add parts (S, M, N) of sums to (1, M, N), and do what follows."""
    follow, out = problem.follow, problem.out.dtype
    width = min(problem.out_width, arrays.laid(sums).width(2))
    kernel = launches.made_of(
        follow.functions, lambda: SplitSum(out, width, follow.combiner()), SplitSum, out, width, follow.c,
        follow.bias, follow.scaled, follow.factors,
    )  # fmt: skip
    tensors = [arrays.dynamic(sums, 2, width), arrays.dynamic(given.out, 2, width), *other_tensors(problem, given)]
    launches.run_tensors(kernel, [sums, given.out, *given.others], tensors, 2, given.alpha, given.beta)
