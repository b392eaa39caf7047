"""The largest elements of rows."""

from .implementations import REGISTRY, Given
from .problem import TopKProblem

__all__ = ["REGISTRY", "Given", "TopKProblem"]
