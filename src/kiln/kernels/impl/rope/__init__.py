"""Rotary position embeddings."""

from .implementations import FAMILY, Given
from .problem import Rotation

__all__ = ["FAMILY", "Given", "Rotation"]
