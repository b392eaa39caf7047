"""Reductions: sum, mean, max, min, argmax and argmin."""

from .implementations import REGISTRY, ReductionArguments
from .problem import ReductionProblem

__all__ = ["REGISTRY", "ReductionArguments", "ReductionProblem"]
