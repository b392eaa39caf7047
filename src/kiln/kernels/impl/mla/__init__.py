"""Attention to latents (MLA)."""

from .implementations import FAMILY, Given
from .problem import LatentAttention

__all__ = ["FAMILY", "Given", "LatentAttention"]
