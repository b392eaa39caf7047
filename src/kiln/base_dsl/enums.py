"""Enumerations, where programs look for them."""

from __future__ import annotations

from .arch import Arch

__all__ = ["Arch"]
