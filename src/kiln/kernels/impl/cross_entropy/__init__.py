"""Cross-entropy and its gradient."""

from .implementations import REGISTRY, Given
from .problem import CrossEntropyProblem

__all__ = ["REGISTRY", "CrossEntropyProblem", "Given"]
