"""Gradients of attention."""

from .implementations import FAMILY, Given
from .problem import AttentionGradient

__all__ = ["FAMILY", "AttentionGradient", "Given"]
