"""The attention problem: extents, element types and options, without the arrays."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .... import BFloat16, Float8E4M3FN, Float16, cute
from ...dispatch.arrays import require
from ...dispatch.problem import Problem, peak_name

if TYPE_CHECKING:
    from ...parts.element_functions import Functions

ELEMENTS: dict[str, type[cute.Numeric]] = {"float16": Float16, "bfloat16": BFloat16}
"""Element types of outputs, by the names that array libraries give them."""
ALL_ELEMENTS: dict[str, type[cute.Numeric]] = {**ELEMENTS, "float8_e4m3fn": Float8E4M3FN}
"""Element types of Q, K and V."""
MAX_GRID_Z = 65535
"""CUDA's limit on the last extent of a grid, which counts sequences times KV splits."""


@dataclasses.dataclass(frozen=True)
class AttentionProblem(Problem):
    """softmax(scale Q K^T) V for `batch` sequences, whose lengths are the longest or the mean ones.

    A query sees `window_left` keys before its own and `window_right` after it; None means all. Elements of a head are
    contiguous, and heads begin at multiples of 16 bytes."""

    batch: int
    seqlen_q: int
    seqlen_k: int
    heads: int
    heads_k: int
    head_dim: int
    head_dim_v: int
    dtype: Any = Float16
    """The element type of K and V, and of Q unless `q_dtype` says otherwise."""
    window_left: int | None = None
    window_right: int | None = None
    has_softcap: bool = False
    return_lse: bool = False
    varlen: bool = False
    """Whether sequences are concatenated and have lengths of their own (`cu_seqlens_q`)."""
    has_seqused_k: bool = False
    """Whether only a part of each sequence's keys exists, as in a KV cache."""
    page_size: int = 0
    """Rows of a page of a paged KV cache, or 0."""
    kv_capacity: int = 0
    """Rows that a sequence's pages have together."""
    has_alibi: bool = False
    has_sinks: bool = False
    score_mod: Functions | None = None
    """The user's score modification, or None."""
    out_dtype: type[cute.Numeric] | None = None
    """The element type of O, if it is not that of Q: O of 8-bit inputs has 16 bits."""
    q_dtype: Any = None
    """The element type of Q, if K and V have another: an fp8 KV cache."""

    name = "flash_attention"

    def __post_init__(self) -> None:
        require(
            self.heads_k > 0 and self.heads % self.heads_k == 0,
            f"flash_attention: q has {self.heads} heads and k has {self.heads_k}; heads of k must divide those of q",
        )
        for dim in (self.head_dim, self.head_dim_v):
            unit = 128 // self.dtype.width
            require(
                0 < dim <= 256 and dim % unit == 0,
                f"flash_attention: head_dim is {dim}; it must be a multiple of {unit}, up to 256",
                hint="pad heads with zeros, and pass the scale of the unpadded head_dim" if dim <= 256 else "",
            )
        require(
            self.dtype in ALL_ELEMENTS.values(),
            f"flash_attention: the element type is {self.dtype.__name__}; it must be Float16, BFloat16 or Float8E4M3FN",
        )

    @property
    def head_dims(self) -> tuple[int, int]:
        """head_dim of Q and K, and of V."""
        return self.head_dim, self.head_dim_v

    @property
    def masks(self) -> tuple[bool, bool, bool]:
        """Whether keys after, and before, the window are masked, and whether scores have a softcap."""
        return self.window_right is not None, self.window_left is not None, self.has_softcap

    @property
    def group_size(self) -> int:
        """Query heads that share a KV head (GQA)."""
        return self.heads // self.heads_k

    @property
    def visible_pairs(self) -> int:
        """Pairs of a query and a key that it sees, in one head of one sequence."""
        offset = self.seqlen_k - self.seqlen_q  # the last query is aligned with the last key
        left, right = (self.seqlen_k if x is None else x for x in (self.window_left, self.window_right))
        if left >= self.seqlen_k and right >= self.seqlen_k:
            return self.seqlen_q * self.seqlen_k
        positions = range(offset, offset + self.seqlen_q)
        return sum(max(0, min(self.seqlen_k, p + right + 1) - max(0, p - left)) for p in positions)

    @property
    def flops(self) -> int:
        """FLOPs of both GEMMs, for keys that are seen."""
        return 2 * self.batch * self.heads * self.visible_pairs * (self.head_dim + self.head_dim_v)

    @property
    def mma_dtype(self) -> str | None:
        return peak_name(self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of Q, K and V, read once, and of O and LSE, written once."""
        size = self.dtype.width // 8
        size_q = (self.q_dtype or self.dtype).width // 8
        q = self.seqlen_q * self.heads * self.head_dim
        kv = self.seqlen_k * self.heads_k * sum(self.head_dims)
        lse = 4 * self.seqlen_q * self.heads if self.return_lse else 0
        return self.batch * (size_q * q + size * kv + 2 * self.seqlen_q * self.heads * self.head_dim_v + lse)
