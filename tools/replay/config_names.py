"""Names that differ between revisions: config classes and keyword arguments of the library's functions.

A case says which config it wants by a name of this file, so that it runs on a revision before a rename and on one after it.
"""

from __future__ import annotations

import inspect
from typing import Any

from kiln import kernels

CLASSES = {
    "sm80_gemm": ("Sm80GemmConfig", "Tiling"),
    "sm90_gemm": ("Sm90GemmConfig", "HopperTiling"),
    "sm90_attention": ("Sm90AttentionConfig", "HopperAttentionTiling"),
    "sm80_attention": ("Sm80AttentionConfig", "AttentionTiling"),
}
"""The names that a config class has had, the newest first."""


def config(kind: str, *values: Any) -> Any:
    """Return a config of a kind of `CLASSES`, with its fields by position."""
    for name in CLASSES[kind]:
        if hasattr(kernels, name):
            return getattr(kernels, name)(*values)
    raise AttributeError(f"kiln.kernels has none of {', '.join(CLASSES[kind])}")


def option(function: Any, value: Any, *names: str) -> dict[str, Any]:
    """Return a keyword argument under the first of some names that a function has."""
    known = inspect.signature(function).parameters
    return {next(name for name in names if name in known): value}


def with_config(function: Any, kind: str, *values: Any) -> dict[str, Any]:
    """Return the keyword argument that gives a config to a function."""
    return option(function, config(kind, *values), "config", "plan")


RENAMED = {
    "Tiling": "Sm80GemmConfig",
    "HopperTiling": "Sm90GemmConfig",
    "WeightTiling": "Sm90MixedInputConfig",
    "Sm100GemmConfig": "Sm100GemmConfig",
    "AttentionTiling": "Sm80AttentionConfig",
    "HopperAttentionTiling": "Sm90AttentionConfig",
    "GradientTiling": "Sm80AttentionBackwardConfig",
    "HopperGradientTiling": "Sm90AttentionBackwardConfig",
    "HopperDeepGradientTiling": "Sm90AttentionBackwardHd256Config",
    "LatentTiling": "Sm90MlaConfig",
    "ElementTiling": "ElementwiseConfig",
    "ReductionTiling": "ReductionConfig",
    "RotationTiling": "RopeConfig",
    "RowTiling": "RowwiseConfig",
    "StreamTiling": "StreamingRowwiseConfig",
    "TurnTiling": "RowwiseConfig",
    "DoubleBufferedRowwiseConfig": "RowwiseConfig",
    "OddTiling": "UnalignedRowwiseConfig",
}
"""Config classes of earlier revisions by the names that they have now."""
FIELDS = {
    "Sm90MixedInputConfig": (
        "tile_shape_mnk",
        "cluster_shape_mn",
        "ab_stages",
        "raster_group",
        "pingpong",
        "split_k_cluster",
        "swap_ab",
        "split_k",
        "epi_stages",
        "transpose_out",
    ),
    "Sm80AttentionBackwardConfig": ("tile_m", "tile_n"),
    "ElementwiseConfig": ("threads", "elements"),
    "ReductionConfig": ("threads", "row_threads", "vectors", "parts"),
    "RopeConfig": ("threads", "heads"),
    "RowwiseConfig": ("threads", "row_threads", "cluster", "shared", "together", "turns"),
    "StreamingRowwiseConfig": ("threads", "row_threads", "cluster", "ahead", "overlapped"),
    "UnalignedRowwiseConfig": ("threads", "row_threads", "cluster", "shared", "together", "held", "ahead"),
}
"""Fields, in order, of classes that nothing was measured of; `benchmarks/recorded.py` has those of the others."""


GAINED = {"RowwiseConfig": (1,)}
"""Values of the last fields of classes, for configs of revisions that did not have them."""


def recorded_name(kind: str, values: dict[str, Any], known: dict[str, tuple[str, ...]]) -> tuple[str, dict[str, Any]]:
    """Return class and fields of a config as the measurements name them; `known`: fields of the measured classes.

    Fields are taken by position, so that a renamed one is the same; where a class has lost or gained one, by name.
    """
    kind = RENAMED.get(kind, kind)
    fields = (known | FIELDS).get(kind, ())
    present = [*values.values(), *GAINED.get(kind, ())[: len(fields) - len(values)]]
    return kind, dict(zip(fields, present, strict=True)) if len(fields) == len(present) else values
