"""Atoms of copies and MMAs, and their tilings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy
from .atoms.atom import *  # noqa: F403
from .atoms.atom import Trait as Trait  # noqa: PLC0414 - a name programs know
from .atoms.mma import TiledMma  # noqa: F401

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, {"make_atom": "."})
