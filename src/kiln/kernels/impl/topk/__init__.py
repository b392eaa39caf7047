"""Top-k of the softmax of rows."""

from .implementations import REGISTRY, TopKArguments
from .problem import TopKProblem

__all__ = ["REGISTRY", "TopKArguments", "TopKProblem"]
