"""The native libraries of the runtime, complete: modules add to them when they are imported."""

from __future__ import annotations

from . import engines, groups, reductions, registers, threads, tma
from .block_scaling import warp_mmas
from .launches import launching
from .tensor_maps import accelerator
from .threads import waiting
from .wgmma import wgmmas

assert engines.waiting is groups.waiting is threads.waiting is registers.waiting  # they add to it
assert tma.accelerator is reductions.accelerator is accelerator

__all__ = ["accelerator", "launching", "waiting", "warp_mmas", "wgmmas"]
