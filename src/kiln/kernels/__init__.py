"""Kernels, written in Kiln: functions of arrays."""

from __future__ import annotations

import importlib
from typing import Any

_PLACES = {
    "AttentionTiling": ".attention_tiling",
    "ElementTiling": ".pointwise",
    "ReductionTiling": ".reductions",
    "RowTiling": ".row_kernel",
    "StreamTiling": ".row_stream",
    "Tiling": ".gemm_tiling",
    "argmax": ".reductions",
    "argmin": ".reductions",
    "cross_entropy": ".loss",
    "cross_entropy_backward": ".loss",
    "elementwise": ".pointwise",
    "flash_attention": ".attention",
    "gemm": ".products",
    "layer_norm": ".rows",
    "layer_norm_backward": ".row_gradients",
    "max": ".reductions",
    "mean": ".reductions",
    "min": ".reductions",
    "rms_norm": ".rows",
    "rms_norm_backward": ".row_gradients",
    "softmax": ".rows",
    "softmax_backward": ".row_gradients",
    "sum": ".reductions",
}
"""Where a name is defined."""


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_PLACES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
