"""Parts of the interface that may still change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._support import lazy

if TYPE_CHECKING:  # what loads when it is first used
    from . import cuda as cuda
    from . import primitives as primitives
    from . import task_scheduling as task_scheduling

if not TYPE_CHECKING:
    __getattr__ = lazy.names(__name__, {}, ("cuda", "primitives", "task_scheduling"))
