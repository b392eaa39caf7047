"""`topk_softmax`."""

from __future__ import annotations

from typing import Any

from .... import Float32, Int32
from ...dispatch import arrays, devices
from ...dispatch.recorder import kernel_function
from ..rowwise.arguments import as_rows
from .implementations import REGISTRY, Given
from .problem import TopKProblem

__all__ = ["topk_softmax"]


@kernel_function("x", "values", "indices", written=("values", "indices"))
def topk_softmax(
    x: Any, k: int, renormalize: bool = False, *, values: Any = None, indices: Any = None, config: Any = None
) -> tuple[Any, Any]:
    """The `k` largest of the softmax of each row along the last mode, in f32, the largest first, and their columns, in i32.

    Of equal elements the first counts. `renormalize`: over their sum, as the weights of experts are. `values` and `indices` are
    arrays to write to, without gaps; indices may be i64.
    """
    arrays.require(x.ndim >= 1, "topk_softmax of an array without modes")
    arrays.require(
        isinstance(k, int) and 1 <= k <= x.shape[-1],
        f"topk_softmax: {k!r} of rows of {x.shape[-1]}",
        hint="k is at least 1, and at most the length of a row",
    )
    made = [
        arrays.empty(x, (*x.shape[:-1], k), arrays.framework_dtype(dtype, x)) if out is None else out
        for out, dtype in ((values, Float32), (indices, Int32))
    ]
    arrays.require_usable(x, "an array of topk_softmax")
    for out in made:
        arrays.require_usable(out, "a result of topk_softmax", written=True)
        arrays.require(arrays.is_contiguous(out), f"topk_softmax into strides {arrays.strides(out)}, with gaps")
    taken = as_rows(x)
    problem = TopKProblem(
        arrays.layout_of(taken), k, arrays.layout_of(made[0]), arrays.layout_of(made[1]), bool(renormalize)
    )
    if 0 not in x.shape:
        REGISTRY.run(problem, devices.current(), Given(taken, *made), config)
    return tuple(made)  # type: ignore[return-value]
