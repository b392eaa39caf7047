"""What the gradient of attention is asked for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ....dispatch.problem import Problem
from ..problem import Attention

if TYPE_CHECKING:
    from ....parts.element_functions import Functions


@dataclasses.dataclass(frozen=True)
class AttentionGradient(Problem):
    """The gradients of queries, keys and values of an attention. `deterministic`: the same call gives the same bits. `functions`: what
    changes scores, and the derivative of that, or None."""

    attention: Attention
    deterministic: bool = True
    functions: Functions | None = None

    name = "flash_attention_backward"

    @property
    def masks(self) -> tuple[bool, bool, bool]:
        """Whether keys after, and before, a query's own are hidden, and scores capped."""
        of = self.attention
        return of.right is not None, of.left is not None, of.capped

    @property
    def dtype(self) -> Any:
        """Type of all arrays but the logarithms."""
        return self.attention.dtype

    @property
    def flops(self) -> int:
        """Five products for keys that are seen: scores and their gradients, and what both give to queries, keys and values."""
        of = self.attention
        return 2 * of.batches * of.heads * of.seen * (3 * of.head_dim + 2 * of.head_dim_v)

    @property
    def multiplies(self) -> str | None:
        return self.attention.multiplies

    @property
    def bytes(self) -> int:
        """Queries, keys, values, outputs, their gradients and logarithms read once; three gradients written once."""
        of = self.attention
        queries, keys = of.queries * of.heads, of.keys * of.heads_k
        read = 2 * (queries + keys) * of.head_dim + 2 * (2 * queries + keys) * of.head_dim_v
        written = 2 * (queries + keys) * of.head_dim + 2 * keys * of.head_dim_v
        return of.batches * (read + written + 4 * queries)
