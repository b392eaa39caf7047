"""Rotary position embeddings."""

from .implementations import REGISTRY, Given
from .problem import Rotation

__all__ = ["REGISTRY", "Given", "Rotation"]
