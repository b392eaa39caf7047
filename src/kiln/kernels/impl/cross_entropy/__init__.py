"""Cross-entropy and its gradient."""

from .implementations import REGISTRY, CrossEntropyArguments
from .problem import CrossEntropyProblem

__all__ = ["REGISTRY", "CrossEntropyArguments", "CrossEntropyProblem"]
