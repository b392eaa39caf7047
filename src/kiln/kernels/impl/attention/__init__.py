"""Attention."""

from .fwd.implementations import FAMILY, Given
from .problem import AttentionProblem

__all__ = ["FAMILY", "AttentionProblem", "Given"]
