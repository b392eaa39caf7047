"""The largest elements of rows."""

from .implementations import FAMILY, Given
from .problem import TopKProblem

__all__ = ["FAMILY", "Given", "TopKProblem"]
