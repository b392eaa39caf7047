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
    "Sm80GemmConfig": (
        "Tiling",
        {"tile_shape_mnk": "block_mnk", "warp_layout_mn": "warps_mn", "warps_mn": "warps_mn", "ab_stages": "stages", "split_k": "splits"},
    ),
    "Sm90GemmConfig": (
        "HopperTiling",
        {
            "tile_shape_mnk": "block_mnk", "cluster_shape_mn": "cluster_mn", "ab_stages": "stages", "raster_group": "group",
            "split_k_cluster": "splits", "swap_ab": "swapped", "split_k": "sums", "epi_stages": "buffers",
            "transpose_out": "turned",
        },
    ),
}  # fmt: skip
"""Config classes that were renamed since the measurements of `benchmarks/data` were made: the class then, and its fields by their new
names. Fields that are not listed kept theirs. A class that is not listed and has as many fields as one of its family had then is taken
for that one, its fields by position."""


def recorded_name(kind: str, values: dict[str, Any], known: dict[str, tuple[str, ...]]) -> tuple[str, dict[str, Any]]:
    """Return the class and the fields that a config had when measurements were made; `known`: fields of the classes of then."""
    if kind in RENAMED:
        kind, fields = RENAMED[kind]
        return kind, {fields.get(name, name): value for name, value in values.items()}
    if kind in known:
        return kind, values
    same = [old for old, fields in known.items() if len(fields) == len(values)]
    if len(same) == 1:
        return same[0], dict(zip(known[same[0]], values.values(), strict=True))
    return kind, values
