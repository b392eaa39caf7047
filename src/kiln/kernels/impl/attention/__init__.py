"""Attention."""

from .fwd.implementations import REGISTRY, Given
from .problem import AttentionProblem

__all__ = ["REGISTRY", "AttentionProblem", "Given"]
