"""The native libraries of the runtime, complete: modules add to them when they are imported."""

from __future__ import annotations

from . import (
    device_group,
    engines,
    groups,
    launch_control,
    multicast,
    reductions,
    registers,
    tensor_memory,
    threads,
    tma,
)
from .block_scaling import warp_mmas
from .launches import launching
from .tensor_maps import accelerator
from .threads import waiting
from .umma import tcgen05
from .wgmma import wgmmas

assert engines.waiting is groups.waiting is threads.waiting is registers.waiting  # they add to it
assert tma.accelerator is reductions.accelerator is launch_control.accelerator is accelerator
assert tensor_memory.tcgen05 is tcgen05
assert multicast.launching is device_group.launching is launching

__all__ = ["accelerator", "launching", "tcgen05", "waiting", "warp_mmas", "wgmmas"]
