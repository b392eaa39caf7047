"""The CuTe language: layouts, tensors, copies and MMAs, in kernels written in Python."""

from __future__ import annotations

import importlib
from typing import Any

from ..base_dsl.typing import *  # noqa: F403
from ..base_dsl.user_op import dsl_user_op
from . import arch
from .compile import *  # noqa: F403
from .compile import compile  # noqa: A004
from .dsl import DSL, CuteDSL
from .layout_algebra import *  # noqa: F403
from .printing import printf

jit = DSL.jit
kernel = DSL.kernel

_LAZY = ("runtime", "testing", "nvgpu", "math", "typing", "core", "atom", "export")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        try:
            return importlib.import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as missing:
            if missing.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
