"""Rotary position embeddings."""

from .implementations import REGISTRY, RopeArguments
from .problem import RopeProblem

__all__ = ["REGISTRY", "RopeArguments", "RopeProblem"]
