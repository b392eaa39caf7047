"""Registers, clocks, dependent grids."""

from __future__ import annotations

from typing import Any

from ...base_dsl.diagnostics import type_error
from ...base_dsl.typing import Int32, Int64
from ...hardware.limits import REGISTER_UNIT, SET_REGISTERS
from ..deferred_dialects import nvgpu
from .values import i32, kernel_only

__all__ = [
    "clock",
    "clock64",
    "globaltimer",
    "griddepcontrol_launch_dependents",
    "griddepcontrol_wait",
    "nanosleep",
    "setmaxregister_decrease",
    "setmaxregister_increase",
    "warpgroup_reg_alloc",
    "warpgroup_reg_dealloc",
]


def _registers(action: str, count: object) -> None:
    kernel_only(f"setmaxregister_{action}rease")
    least, most = SET_REGISTERS
    if not isinstance(count, int) or count % REGISTER_UNIT or not least <= count <= most:
        hint = f"a multiple of {REGISTER_UNIT} from {least} to {most}"
        raise type_error(f"reg_count is {count!r}", hint)
    nvgpu.control.set_max_register(count, action)


def setmaxregister_increase(reg_count: int, *, loc: object = None, ip: object = None) -> None:
    """Request more registers for each thread of the warpgroup. Needs sm_90a, or a later architecture of that kind.

    It waits until other warpgroups have released enough. All warps of the warpgroup execute it.

    Args:
        reg_count: registers of a thread, a multiple of 8 from 24 to 256, else TypeError is raised.
    """
    _registers("inc", reg_count)


def setmaxregister_decrease(reg_count: int, *, loc: object = None, ip: object = None) -> None:
    """Release registers of each thread of the warpgroup. Needs sm_90a, or a later architecture of that kind.

    All warps of the warpgroup execute it.

    Args:
        reg_count: registers that a thread keeps, a multiple of 8 from 24 to 256, else TypeError is raised.
    """
    _registers("dec", reg_count)


def warpgroup_reg_alloc(reg_count: int, *, loc: object = None, ip: object = None) -> None:
    """Request more registers for each thread of the warpgroup: the older name of `setmaxregister_increase`.

    Needs sm_90a, or a later architecture of that kind.

    Args:
        reg_count: registers of a thread, a multiple of 8 from 24 to 256.
    """
    _registers("inc", reg_count)


def warpgroup_reg_dealloc(reg_count: int, *, loc: object = None, ip: object = None) -> None:
    """Release registers of each thread of the warpgroup: the older name of `setmaxregister_decrease`.

    Needs sm_90a, or a later architecture of that kind.

    Args:
        reg_count: registers that a thread keeps, a multiple of 8 from 24 to 256.
    """
    _registers("dec", reg_count)


def griddepcontrol_wait(*, loc: object = None, ip: object = None) -> None:
    """Wait until the grids this one depends on are complete and their memory is visible. Needs sm_90 or later."""
    kernel_only("griddepcontrol_wait")
    nvgpu.control.grid_dependency("wait")


def griddepcontrol_launch_dependents(*, loc: object = None, ip: object = None) -> None:
    """Allow the grids that depend on this one to start. Needs sm_90 or later."""
    kernel_only("griddepcontrol_launch_dependents")
    nvgpu.control.grid_dependency("launch_dependents")


def _clock(which: str, kind: Any) -> Any:
    kernel_only(which)
    return kind._make(nvgpu.control.clock(which))


def clock(*, loc: object = None, ip: object = None) -> Int32:
    """Return a counter of cycles of this SM, 32 bits."""
    return _clock("clock", Int32)


def clock64(*, loc: object = None, ip: object = None) -> Int64:
    """Return a counter of cycles of this SM."""
    return _clock("clock64", Int64)


def globaltimer(*, loc: object = None, ip: object = None) -> Int64:
    """Return the time in nanoseconds, the same on all SMs."""
    return _clock("globaltimer", Int64)


def nanosleep(sleep_time: object, *, loc: object = None, ip: object = None) -> None:
    """Suspend the thread for about `sleep_time` nanoseconds."""
    kernel_only("nanosleep")
    nvgpu.control.nanosleep(i32(sleep_time))
