"""Attention."""

from .fwd.implementations import FAMILY, Given
from .problem import Attention

__all__ = ["FAMILY", "Attention", "Given"]
