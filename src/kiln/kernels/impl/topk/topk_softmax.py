"""`topk_softmax`."""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32
from ...dispatch import arrays, devices
from ...dispatch.recorder import kernel_function
from ..rowwise.arguments import as_rows
from .implementations import REGISTRY, TopKArguments
from .problem import TopKProblem

__all__ = ["topk_softmax"]


@kernel_function("x", "values", "indices", written=("values", "indices"))
def topk_softmax(
    x: Any, k: int, renormalize: bool = False, *, values: Any = None, indices: Any = None, config: Any = None
) -> tuple[Any, Any]:
    """Return the `k` largest values of the softmax along the last mode, in f32, the largest first, and their indices.

    Of equal elements the first counts.

    Args:
        x: (..., columns), the logits of a router for instance.
        k: how many.
        renormalize: divide them by their sum, as for the weights of experts.
        values: a contiguous array for the values.
        indices: a contiguous array for the indices, i32 (the default) or i64.
        config: a config of the implementation; by default the library chooses.
    """
    arrays.require(x.ndim >= 1, "topk_softmax of an array without modes")
    arrays.require(
        isinstance(k, int) and 1 <= k <= x.shape[-1],
        f"topk_softmax: k is {k!r} for rows of {x.shape[-1]}",
        hint="k must be at least 1, and at most the length of a row",
    )
    results = [
        arrays.empty(x, (*x.shape[:-1], k), arrays.framework_dtype(dtype, x)) if out is None else out
        for out, dtype in ((values, Float32), (indices, Int32))
    ]
    arrays.require_usable(x, "an array of topk_softmax")
    for out in results:
        arrays.require_usable(out, "a result of topk_softmax", written=True)
        arrays.require(
            arrays.is_contiguous(out),
            f"topk_softmax: a result has strides {arrays.strides(out)}, and must be contiguous",
        )
    rows = as_rows(x)
    problem = TopKProblem(
        arrays.layout_of(rows), k, arrays.layout_of(results[0]), arrays.layout_of(results[1]), bool(renormalize)
    )
    if 0 not in x.shape:
        REGISTRY.run(problem, devices.current(), TopKArguments(rows, *results), config)
    return tuple(results)  # type: ignore[return-value]
