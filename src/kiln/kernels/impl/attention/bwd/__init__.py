"""Gradients of attention."""

from .implementations import REGISTRY, Given
from .problem import AttentionBackwardProblem

__all__ = ["REGISTRY", "AttentionBackwardProblem", "Given"]
