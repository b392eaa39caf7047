"""The backward pass of attention."""

from .implementations import REGISTRY
from .problem import AttentionBackwardProblem

__all__ = ["REGISTRY", "AttentionBackwardProblem"]
