"""Products whose K is cut into parts that are products of their own: a second kernel adds their sums and does what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .... import Float32
from ...dispatch import arrays, launches
from ...dispatch.problem import TensorLayout
from .arguments import GemmArguments, more_tensors, other_tensors
from .problem import GemmProblem
from .split_k_reduction import SplitKReduction, together

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...dispatch.registry import Implementation


def run_parts(
    implementation: Implementation, problem: GemmProblem, config: Any, count: int, given: GemmArguments
) -> None:
    """Two kernels: the parts of K as a batch, computed by a config, then their sum and what follows it."""
    _, m, n = problem.shape
    k = problem.k // count
    a = arrays.permuted(arrays.reshaped(given.a, (m, count, k)), [1, 0, 2])
    b = arrays.reshaped(given.b, (count, k, n))
    _run_batch(problem, a, b, given, lambda parts, taken: implementation.run(parts, config, taken))


def run_sums(
    problem: GemmProblem, count: int, given: GemmArguments, run: Callable[[GemmProblem, GemmArguments], None]
) -> None:
    """The same with parts of whole stages of K: a kernel knows which of them is whose, and has all of A and B."""
    a, b = (arrays.broadcast_to(x, (count, *x.shape[1:])) for x in (given.a, given.b))
    _run_batch(problem, a, b, given, run)


def _run_batch(
    problem: GemmProblem, a: Any, b: Any, given: GemmArguments, run: Callable[[GemmProblem, GemmArguments], None]
) -> None:
    sums = arrays.empty(given.a, (a.shape[0], *problem.shape[1:]), arrays.dtype_named(given.a, "float32"))
    run(
        GemmProblem(arrays.layout_of(a), arrays.layout_of(b), arrays.layout_of(sums), precision=problem.precision),
        GemmArguments(a, b, sums),
    )
    combine_parts(problem, sums, given)


def combine_parts(problem: GemmProblem, sums: Any, given: GemmArguments) -> None:
    """Add parts (S, M, N) of sums to (1, M, N), and do what follows."""
    follow, out = problem.fusion, problem.out_types
    width, count = min(problem.out_width, arrays.layout_of(sums).width(2)), together(sums.shape[0])
    kernel = launches.cached_kernel_of(
        follow.functions, lambda: SplitKReduction(out, width, count, follow.combiner()), SplitKReduction, out, width, count, follow.key
    )  # fmt: skip
    tensors = [
        arrays.dynamic(sums, 2, width), arrays.dynamic(given.out, 2, width), *more_tensors(problem, given),
        *other_tensors(problem, given),
    ]  # fmt: skip
    launches.run_tensors(
        kernel, [sums, given.out, *given.extra_outs, *given.epilogue_inputs], tensors, 2, given.alpha, given.beta
    )


def add_rows(parts: Any, into: Any) -> None:
    """Add sums (S, L, M) of parts of rows to (L, M), in order."""
    count, batches, rows = parts.shape
    one = TensorLayout.dense(Float32, 1, 1, batches * rows)
    problem = GemmProblem(TensorLayout.dense(Float32, 1, 1, 1), one, one)
    flat = arrays.reshaped(into, (1, 1, batches * rows))
    combine_parts(problem, arrays.reshaped(parts, (count, 1, batches * rows)), GemmArguments(None, None, flat))
