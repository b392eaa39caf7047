"""Cross-entropy and its gradient."""

from .implementations import FAMILY, Given
from .problem import CrossEntropyProblem

__all__ = ["FAMILY", "CrossEntropyProblem", "Given"]
