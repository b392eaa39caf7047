"""Row functions and their gradients: softmax, norms, gated activations."""

from .implementations import REGISTRY, RowFunctionArguments
from .problem import RowFunctionProblem

__all__ = ["REGISTRY", "RowFunctionArguments", "RowFunctionProblem"]
