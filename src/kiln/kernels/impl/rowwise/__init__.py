"""Functions of the rows of a matrix, and their gradients: softmax, norms."""

from .implementations import REGISTRY, Given
from .problem import Rows

__all__ = ["REGISTRY", "Given", "Rows"]
