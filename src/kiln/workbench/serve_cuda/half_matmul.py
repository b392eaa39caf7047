"""GEMMs of 16-bit floats: a GPU accumulates in f32 and rounds once; torch on a CPU may round on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_HALVES = (torch.float16, torch.bfloat16)
_IN_PLACE = frozenset({"addmm_", "addbmm_", "baddbmm_", "addmv_", "addr_"})
NAMES = _IN_PLACE | {
    "matmul",
    "mm",
    "bmm",
    "mv",
    "dot",
    "vdot",
    "inner",
    "tensordot",
    "einsum",
    "linear",
    "bilinear",
    "addmm",
    "addbmm",
    "baddbmm",
    "addmv",
    "chain_matmul",
    "multi_dot",
    "linalg_multi_dot",
    "linalg_matmul",
    "__matmul__",
    "__rmatmul__",
}
"""Names of torch functions that multiply matrices."""


def of_halves(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute a call of one of `NAMES` in f32 and round the result once; None if torch can do that itself.

    `out_dtype`, which torch has for CUDA only, is the type of the inputs, or f32 for 16-bit floats.
    """
    halves: set[torch.dtype] = set()
    others: set[torch.dtype] = set()

    def widened(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            if x.dtype in _HALVES:
                halves.add(x.dtype)
                return x.float()
            others.add(x.dtype)
            return x
        return type(x)(widened(element) for element in x) if type(x) in (tuple, list) else x

    wide = [widened(x) for x in args]
    named = {name: x if name == "out" else widened(x) for name, x in kwargs.items()}
    dtype = named.pop("out_dtype", None)
    if dtype is not None and not halves and others == {dtype}:
        return func(*wide, **named)
    if len(halves) != 1 or (dtype is not None and dtype is not torch.float32 and dtype not in halves):
        return None  # nothing to do, or torch refuses it
    if func.__name__ in _IN_PLACE:
        return args[0].copy_(getattr(torch.Tensor, func.__name__[:-1])(*wide, **named))
    out = named.pop("out", None)
    result = func(*wide, **named).to(dtype or halves.pop())
    if out is None:
        return result
    return out.resize_(result.shape).copy_(result)
