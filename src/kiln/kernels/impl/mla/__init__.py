"""Multi-head latent attention (MLA)."""

from .implementations import REGISTRY, MlaArguments
from .problem import MlaProblem

__all__ = ["REGISTRY", "MlaArguments", "MlaProblem"]
