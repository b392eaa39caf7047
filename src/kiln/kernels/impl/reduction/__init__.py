"""Sums, means, extrema and their places."""

from .implementations import REGISTRY, Given
from .problem import ReductionProblem

__all__ = ["REGISTRY", "Given", "ReductionProblem"]
