"""Element-wise functions."""

from .implementations import REGISTRY, ElementwiseArguments
from .problem import ElementwiseProblem

__all__ = ["REGISTRY", "ElementwiseArguments", "ElementwiseProblem"]
