"""Attention to latents (MLA)."""

from .implementations import REGISTRY, Given
from .problem import LatentAttention

__all__ = ["REGISTRY", "Given", "LatentAttention"]
