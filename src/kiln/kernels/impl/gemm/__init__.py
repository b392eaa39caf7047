"""General matrix multiplication (GEMM), dense, grouped, block-scaled and with integer weights."""

from .arguments import GemmArguments
from .implementations import REGISTRY
from .problem import GemmProblem

__all__ = ["REGISTRY", "GemmArguments", "GemmProblem"]
