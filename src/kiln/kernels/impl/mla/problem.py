"""What attention to latents is asked for."""

from __future__ import annotations

import dataclasses
from typing import Any

from .... import BFloat16, Float8E4M3FN, Float8E5M2
from ...dispatch.arrays import require
from ...dispatch.problem import Problem, peak_name
from ..attention.problem import ELEMENTS

CACHE_DTYPES = {"float8_e4m3fn": Float8E4M3FN, "float8_e5m2": Float8E5M2}
PAGE_SIZE = 64
"""Rows of a page."""


@dataclasses.dataclass(frozen=True)
class MlaProblem(Problem):
    """softmax(scale q c^T) c[:value_dim] over the latents c of each sequence, which all heads share: sequences, queries of each, heads, the
    most latents of a sequence, columns of a latent and of them those that are values."""

    batch: int
    queries: int
    heads: int
    keys: int
    dim: int = 576
    value_dim: int = 512
    dtype: Any = BFloat16
    causal: bool = True
    lse: bool = False
    """Whether the logarithms of the sums are written, too."""
    cache_dtype: Any = None
    """The type of latents in the cache, if it is not that of queries: of 8 bits."""

    name = "mla_decode"

    def __post_init__(self) -> None:
        require(self.dtype in ELEMENTS.values(), f"mla_decode of {self.dtype.__name__}: Float16 or BFloat16")
        require(
            self.cache_dtype in (None, *CACHE_DTYPES.values()),
            f"mla_decode of latents of {getattr(self.cache_dtype, '__name__', None)}: those of queries, Float8E4M3FN or Float8E5M2",
        )
        require(
            0 < self.value_dim <= self.dim and self.dim % 8 == 0 and self.value_dim % 8 == 0,
            f"mla_decode of latents of {self.dim} with values of {self.value_dim}: multiples of 8, the latter the first columns of the former",
        )

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products, for latents that are seen."""
        return 2 * self.batch * self.heads * self.queries * self.keys * (self.dim + self.value_dim)

    @property
    def mma_dtype(self) -> str | None:
        return peak_name(self.dtype)

    @property
    def bytes(self) -> int:
        """Queries and latents read once, outputs written once."""
        rows = self.queries * self.heads
        size = 2 if self.cache_dtype is None else 1
        return self.batch * (size * self.keys * self.dim + 2 * rows * (self.dim + self.value_dim) + 4 * rows * self.lse)
