"""Tensors, pointers and streams to call compiled functions with."""

from __future__ import annotations

from .host.runtime import *  # noqa: F403
