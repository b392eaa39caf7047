"""Functions of the rows of a matrix, and their gradients: softmax, norms."""

from .implementations import FAMILY, Given
from .problem import Rows

__all__ = ["FAMILY", "Given", "Rows"]
