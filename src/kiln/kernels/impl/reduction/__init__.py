"""Sums, means, extrema and their places."""

from .implementations import FAMILY, Given
from .problem import ReductionProblem

__all__ = ["FAMILY", "Given", "ReductionProblem"]
