"""The `cute_nvgpu` dialect: what NVIDIA hardware does beyond arithmetic and plain memory, a module for each unit.

Each operation stands beside the function that builds it: `nvgpu.warp.shuffle(...)`. Operations are for kernels only
unless they say otherwise. Importing this package makes the dialect known to the context.
"""

from ..cute import load_dialect as _load_cute
from ..definition import load
from . import (
    async_copy,
    cluster,
    control,
    launch,
    launch_control,
    mbarrier,
    memory,
    mma,
    multicast,
    sync,
    tcgen05,
    tma,
    trace,
    units,
    warp,
    wgmma,
)
from .dialect import CuteNvgpu

UNITS = (
    sync,
    warp,
    memory,
    multicast,
    mbarrier,
    async_copy,
    tma,
    cluster,
    mma,
    wgmma,
    tcgen05,
    launch_control,
    units,
    control,
    trace,
    launch,
)
OPERATIONS = tuple(CuteNvgpu.operations)  # pyright: ignore[reportAttributeAccessIssue]

__all__ = [
    "OPERATIONS",
    "UNITS",
    "CuteNvgpu",
    "async_copy",
    "cluster",
    "control",
    "launch",
    "launch_control",
    "load_dialect",
    "mbarrier",
    "memory",
    "mma",
    "multicast",
    "sync",
    "tcgen05",
    "tma",
    "trace",
    "units",
    "warp",
    "wgmma",
]


def load_dialect() -> None:
    """Make the dialect, and `cute`, known to the context."""
    _load_cute()
    load(CuteNvgpu)


load_dialect()
