"""What attention is asked for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float8E4M3FN, Float16
from ...dispatch.arrays import require
from ...dispatch.problem import Problem, peak_name

if TYPE_CHECKING:
    from ...parts.element_functions import Functions

ELEMENTS = {"float16": Float16, "bfloat16": BFloat16}
ALL_ELEMENTS = {**ELEMENTS, "float8_e4m3fn": Float8E4M3FN}
"""Those that `flash_attention` takes."""
MOST_LAYERS = 65535
"""Extent of a grid in its last mode, which has sequences and the parts of their keys."""


@dataclasses.dataclass(frozen=True)
class Attention(Problem):
    """softmax(scale q k^T) v: sequences, their queries and keys (the most, or as many as they have on average), heads.

    A query sees `left` keys before its own and `right` after it (None: all). Elements of a head are contiguous, and heads
    begin at multiples of 16 bytes.
    """

    batches: int
    queries: int
    keys: int
    heads: int
    heads_k: int
    head_dim: int
    head_dim_v: int
    dtype: Any = Float16
    left: int | None = None
    right: int | None = None
    capped: bool = False
    lse: bool = False
    """Whether the logarithms of the sums are written, too."""
    packed: bool = False
    """Whether sequences lie one after another, each with a length of its own."""
    partial: bool = False
    """Whether only some of the keys of a sequence exist."""
    page: int = 0
    """Rows of a page, where keys and values lie in pages; 0: they do not."""
    room: int = 0
    """Rows that the pages of a sequence have."""

    sloped: bool = False
    """Whether scores have slopes (ALiBi)."""
    sinks: bool = False
    """Whether the sums of each head have one more term."""
    score: Functions | None = None
    """A function that changes scores."""
    out_dtype: Any = None
    """The type of outputs, where it is another: of 8 bits it is."""
    q_dtype: Any = None
    """The type of queries, where keys and values have another: 8 bits, as caches have."""

    name = "flash_attention"

    def __post_init__(self) -> None:
        require(
            self.heads_k > 0 and self.heads % self.heads_k == 0,
            f"flash_attention of {self.heads} heads with {self.heads_k} of keys: the latter divide the former",
        )
        for dim in (self.head_dim, self.head_dim_v):
            unit = 128 // self.dtype.width
            require(
                0 < dim <= 256 and dim % unit == 0,
                f"flash_attention with heads of {dim} elements: a multiple of {unit}, up to 256",
                hint="fill heads up with zeros, and give the scale that they have without" if dim <= 256 else "",
            )
        require(
            self.dtype in ALL_ELEMENTS.values(),
            f"flash_attention of {self.dtype.__name__}: Float16, BFloat16 or Float8E4M3FN",
        )

    @property
    def head_dims(self) -> tuple[int, int]:
        """Elements of a head of queries and keys, and of values."""
        return self.head_dim, self.head_dim_v

    @property
    def share(self) -> int:
        """Heads that share keys."""
        return self.heads // self.heads_k

    @property
    def seen(self) -> int:
        """Pairs of a query and a key that it sees, in one head of one sequence."""
        behind = self.keys - self.queries  # the last query is aligned with the last key
        left, right = (self.keys if x is None else x for x in (self.left, self.right))
        if left >= self.keys and right >= self.keys:
            return self.queries * self.keys
        positions = range(behind, behind + self.queries)
        return sum(max(0, min(self.keys, p + right + 1) - max(0, p - left)) for p in positions)

    @property
    def flops(self) -> int:
        """Multiplications and additions of both products, for keys that are seen."""
        return 2 * self.batches * self.heads * self.seen * (self.head_dim + self.head_dim_v)

    @property
    def multiplies(self) -> str | None:
        return peak_name(self.dtype)

    @property
    def bytes(self) -> int:
        """Queries, keys and values read once, outputs written once."""
        size, size_q = self.dtype.width // 8, (self.q_dtype or self.dtype).width // 8
        read = size_q * self.queries * self.heads * self.head_dim + size * self.keys * self.heads_k * sum(
            self.head_dims
        )
        logarithms = 4 * self.queries * self.heads if self.lse else 0
        return self.batches * (read + 2 * self.queries * self.heads * self.head_dim_v + logarithms)
