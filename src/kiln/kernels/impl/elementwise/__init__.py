"""Element-wise functions."""

from .implementations import REGISTRY, Given
from .problem import Pointwise

__all__ = ["REGISTRY", "Given", "Pointwise"]
