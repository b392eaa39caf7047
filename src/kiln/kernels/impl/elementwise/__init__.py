"""Element-wise functions."""

from .implementations import FAMILY, Given
from .problem import Pointwise

__all__ = ["FAMILY", "Given", "Pointwise"]
