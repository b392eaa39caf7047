"""Matrix products."""

from .implementations import REGISTRY, GemmArguments
from .problem import GemmProblem

__all__ = ["REGISTRY", "GemmArguments", "GemmProblem"]
