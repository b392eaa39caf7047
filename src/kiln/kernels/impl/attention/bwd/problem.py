"""The problem of attention's backward pass."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ....dispatch.problem import Problem
from ..problem import AttentionProblem

if TYPE_CHECKING:
    from ....parts.element_functions import Functions


@dataclasses.dataclass(frozen=True)
class AttentionBackwardProblem(Problem):
    """dQ, dK and dV of an attention.

    With `deterministic` equal calls give equal bits. `functions` are the user's score modification and its derivative,
    or None."""

    attention: AttentionProblem
    deterministic: bool = True
    functions: Functions | None = None

    name = "flash_attention_backward"

    @property
    def dtype(self) -> Any:
        """The element type of all arrays but LSE."""
        return self.attention.dtype

    @property
    def flops(self) -> int:
        """FLOPs of five GEMMs for keys that are seen: S, dP, dQ, dK and dV."""
        of = self.attention
        return 2 * of.batch * of.heads * of.visible_pairs * (3 * of.head_dim + 2 * of.head_dim_v)

    @property
    def mma_dtype(self) -> str | None:
        return self.attention.mma_dtype

    @property
    def bytes(self) -> int:
        """Bytes of Q, K, V, O, dO and LSE, read once, and of dQ, dK and dV, written once."""
        of = self.attention
        q_rows = of.seqlen_q * of.heads
        k_rows = of.seqlen_k * of.heads_k
        read = 2 * (q_rows + k_rows) * of.head_dim + 2 * (2 * q_rows + k_rows) * of.head_dim_v
        written = 2 * (q_rows + k_rows) * of.head_dim + 2 * k_rows * of.head_dim_v
        return of.batch * (read + written + 4 * q_rows)
