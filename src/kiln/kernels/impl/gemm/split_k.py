"""Products whose K is cut into parts that are products of their own: a second kernel adds their sums and does what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32
from ...dispatch import arrays, launches
from ...dispatch.problem import Laid
from .arguments import Given, more_tensors, other_tensors
from .problem import Product
from .split_k_reduction import SplitSum, together

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...dispatch.registry import Implementation


def run_parts(implementation: Implementation, problem: Product, plan: Any, count: int, given: Given) -> None:
    """Two kernels: the parts of K as a batch, computed by a plan, then their sum and what follows it."""
    _, m, n = problem.shape
    k = problem.k // count
    a = arrays.permuted(arrays.reshaped(given.a, (m, count, k)), [1, 0, 2])
    b = arrays.reshaped(given.b, (count, k, n))
    _run_batch(problem, a, b, given, lambda parts, taken: implementation.run(parts, plan, taken))


def run_sums(problem: Product, count: int, given: Given, run: Callable[[Product, Given], None]) -> None:
    """The same with parts of whole stages of K: a kernel knows which of them is whose, and has all of A and B."""
    a, b = (arrays.broadcast_to(x, (count, *x.shape[1:])) for x in (given.a, given.b))
    _run_batch(problem, a, b, given, run)


def _run_batch(problem: Product, a: Any, b: Any, given: Given, run: Callable[[Product, Given], None]) -> None:
    sums = arrays.empty(given.a, (a.shape[0], *problem.shape[1:]), arrays.named_type(given.a, "float32"))
    run(Product(arrays.laid(a), arrays.laid(b), arrays.laid(sums), precision=problem.precision), Given(a, b, sums))
    combine_parts(problem, sums, given)


def combine_parts(problem: Product, sums: Any, given: Given) -> None:
    """Add parts (S, M, N) of sums to (1, M, N), and do what follows."""
    follow, out = problem.follow, problem.out_types
    width, count = min(problem.out_width, arrays.laid(sums).width(2)), together(sums.shape[0])
    kernel = launches.made_of(
        follow.functions, lambda: SplitSum(out, width, count, follow.combiner()), SplitSum, out, width, count, follow.key
    )  # fmt: skip
    tensors = [
        arrays.dynamic(sums, 2, width), arrays.dynamic(given.out, 2, width), *more_tensors(problem, given),
        *other_tensors(problem, given),
    ]  # fmt: skip
    launches.run_tensors(kernel, [sums, given.out, *given.more, *given.others], tensors, 2, given.alpha, given.beta)


def add_rows(parts: Any, into: Any) -> None:
    """Add sums (S, L, M) of parts of rows to (L, M), in order."""
    count, batches, rows = parts.shape
    one = Laid.dense(Float32, 1, 1, batches * rows)
    problem = Product(Laid.dense(Float32, 1, 1, 1), one, one)
    flat = arrays.reshaped(into, (1, 1, batches * rows))
    combine_parts(problem, arrays.reshaped(parts, (count, 1, batches * rows)), Given(None, None, flat))
