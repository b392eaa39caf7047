"""Atoms of copies and MMAs, and their tilings."""

from __future__ import annotations

from .atoms.atom import *  # noqa: F403
