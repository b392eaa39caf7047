"""The problem of MLA decode."""

from __future__ import annotations

import dataclasses
from typing import Any

from .... import BFloat16, Float8E4M3FN, Float8E5M2, cute
from ...dispatch.arrays import require
from ...dispatch.problem import Problem, peak_name
from ..attention.problem import ELEMENTS

CACHE_DTYPES: dict[str, type[cute.Numeric]] = {"float8_e4m3fn": Float8E4M3FN, "float8_e5m2": Float8E5M2}
PAGE_SIZE = 64
"""Keys of a page."""


@dataclasses.dataclass(frozen=True)
class MlaProblem(Problem):
    """MLA decode: softmax(scale q c^T) c[:value_dim] over the compressed KV c of each sequence, which all heads
    share."""

    batch: int
    queries: int
    """Queries of each sequence."""
    heads: int
    keys: int
    """Keys of the longest sequence."""
    dim: int = 576
    """Columns of a key."""
    value_dim: int = 512
    """How many of them, the first, are also the value."""
    dtype: Any = BFloat16
    causal: bool = True
    lse: bool = False
    """Whether LSE is returned."""
    cache_dtype: Any = None
    """The element type of the cache, if it is an 8-bit float; None if it is that of the queries."""

    name = "mla_decode"

    def __post_init__(self) -> None:
        require(
            self.dtype in ELEMENTS.values(), f"mla_decode: q is {self.dtype.__name__}, and must be Float16 or BFloat16"
        )
        require(
            self.cache_dtype in (None, *CACHE_DTYPES.values()),
            f"mla_decode: the cache is {getattr(self.cache_dtype, '__name__', None)}, and must have the type of q, "
            "Float8E4M3FN or Float8E5M2",
        )
        require(
            0 < self.value_dim <= self.dim and self.dim % 8 == 0 and self.value_dim % 8 == 0,
            f"mla_decode: D is {self.dim} and value_dim {self.value_dim}; both must be multiples of 8, and value_dim at "
            "most D",
        )

    @property
    def flops(self) -> int:
        """FLOPs of both GEMMs, with all keys."""
        return 2 * self.batch * self.heads * self.queries * self.keys * (self.dim + self.value_dim)

    @property
    def mma_dtype(self) -> str | None:
        return peak_name(self.dtype)

    @property
    def bytes(self) -> int:
        """Queries and cache are read once, outputs written once."""
        rows = self.queries * self.heads
        size = 2 if self.cache_dtype is None else 1
        return self.batch * (size * self.keys * self.dim + 2 * rows * (self.dim + self.value_dim) + 4 * rows * self.lse)
