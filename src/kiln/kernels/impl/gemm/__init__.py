"""Matrix products."""

from .implementations import FAMILY, GemmArguments
from .problem import GemmProblem

__all__ = ["FAMILY", "GemmArguments", "GemmProblem"]
