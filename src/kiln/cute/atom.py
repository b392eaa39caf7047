"""Atoms of copies and MMAs, and their tilings."""

from __future__ import annotations

from .._support import lazy
from .atoms.atom import *  # noqa: F403

__dir__ = lazy.listing(__name__)
