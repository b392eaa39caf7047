"""The arrays and numbers that implementations of GEMM get, and how kernels are launched on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ...dispatch import arrays, launches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .... import cute
    from .problem import GemmProblem


class GemmArguments(NamedTuple):
    """The arrays of a GEMM, with the layouts of its problem, and its scalars. Results go to `out` and `extra_outs`."""

    a: Any
    b: Any
    out: Any
    epilogue_inputs: Sequence[Any] = ()
    alpha: float = 1.0
    beta: float = 1.0
    block_scales: Sequence[Any] = ()
    group_bounds: Any = None
    """Of a grouped GEMM: where each group ends, or how many rows it has."""
    extra_outs: Sequence[Any] = ()
    group_scales: Any = None
    """Scale factors of groups of K of an integer B."""
    vector_scales: Sequence[Any] = ()
    """Scale factors of vectors along K, in atoms."""
    row_sum: Any = None
    """The result of `row_reduction`, (L, M)."""

    def launch(
        self, kernel: Any, problem: GemmProblem, widths: tuple[int, int, int], row_partials: Sequence[Any] = ()
    ) -> None:
        """Launch a kernel on A, B and D, which it accesses some elements at a time, and the other arrays that there
        are: group bounds, block or group scales, row partials, further results, epilogue inputs."""
        modes = problem.a.leading((1, 2)), problem.b.leading((2, 1)), 2
        rest = [] if self.group_bounds is None else [(self.group_bounds, arrays.dynamic(self.group_bounds, 0, 1))]
        scales = list(zip(self.block_scales, problem.block_scales, strict=True))
        scales += zip(self.vector_scales, problem.vector_scales, strict=True)
        if problem.group_scales is not None:
            scales.append((self.group_scales, problem.group_scales))
        rest += [(x, arrays.dynamic(x, layout.leading((1, 2)), 1)) for x, layout in scales]
        rest += [(x, arrays.dynamic(x, 2, 1)) for x in row_partials]
        rest += self.epilogue_tensors(problem)
        first = self.a, self.b, self.out
        tensors = [arrays.dynamic(x, mode, width) for x, mode, width in zip(first, modes, widths, strict=True)]
        launches.run_tensors(
            kernel, [*first, *(x for x, _ in rest)], [*tensors, *(x for _, x in rest)], 3, self.alpha, self.beta
        )

    def epilogue_tensors(self, problem: GemmProblem) -> list[tuple[Any, cute.Tensor]]:
        """Return the results after the first and the epilogue inputs, each with its tensor argument."""
        pairs = [
            (x, arrays.dynamic(x, 2, y.width(2))) for x, y in zip(self.extra_outs, problem.extra_outs, strict=True)
        ]
        for x, y in zip(self.epilogue_inputs, problem.epilogue_inputs, strict=True):
            row = y.leading((2,))
            pairs.append((x, arrays.dynamic(x, y.leading((0, 1)) if row is None else row, y.width(row))))
        return pairs
