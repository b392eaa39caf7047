"""Tensors, pointers and streams to call compiled functions with."""

from __future__ import annotations

from .._support import lazy
from .host.runtime import *  # noqa: F403

__dir__ = lazy.listing(__name__)
