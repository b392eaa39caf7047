"""Attention: forward, backward and decode."""

from .args import AttentionArguments, AttentionParams
from .fwd.implementations import REGISTRY
from .problem import AttentionProblem

__all__ = ["REGISTRY", "AttentionArguments", "AttentionParams", "AttentionProblem"]
