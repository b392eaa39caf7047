"""Gradients of attention."""

from .implementations import FAMILY, Given
from .problem import AttentionBackwardProblem

__all__ = ["FAMILY", "AttentionBackwardProblem", "Given"]
