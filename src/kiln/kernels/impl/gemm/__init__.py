"""Matrix products."""

from .implementations import FAMILY, Given
from .problem import Product

__all__ = ["FAMILY", "Given", "Product"]
