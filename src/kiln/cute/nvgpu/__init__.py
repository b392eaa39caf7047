"""Operations of NVIDIA GPUs as atoms, and those that every processor has."""

from __future__ import annotations

from .common import *
