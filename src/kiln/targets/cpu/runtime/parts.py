"""The parts of the native runtime that kernels need, and their settings."""

from __future__ import annotations

import ctypes
from typing import Any

from ....base_dsl import settings
from ....base_dsl.diagnostics import DSLRuntimeError
from ....native.deferred_library import DeferredLibrary
from ...host import jit, runtime
from . import launch_settings


def _code(name: str, attribute: str) -> DeferredLibrary:
    return DeferredLibrary(name, attribute, ".code", __package__)


LAUNCH = jit.Part(_code("launch", "launching"), (runtime.REPORTS, runtime.SIGNALS), launch_settings.load)
WAITING = jit.Part(_code("waiting", "waiting"), (runtime.REPORTS, LAUNCH))
ACCELERATOR = jit.Part(_code("accelerator", "accelerator"), (LAUNCH, WAITING))
WGMMA = jit.Part(_code("wgmma", "wgmmas"), (runtime.REPORTS, LAUNCH))
TCGEN05 = jit.Part(_code("tcgen05", "tcgen05"), (runtime.REPORTS, LAUNCH, WAITING))
WARP_MMA = jit.Part(_code("warp_mma", "warp_mmas"))
PARTS = (*runtime.PARTS, LAUNCH, WAITING, ACCELERATOR, WGMMA, TCGEN05, WARP_MMA)


def variable(name: str, kind: Any) -> Any:
    """Return a variable of the launcher, of a type of ctypes."""
    return kind.from_address(jit.part_library(LAUNCH).addresses[name])


def set_timeout(seconds: float) -> None:
    """Set the time limit of launches; 0 for none."""
    variable("kiln_cpu_timeout", ctypes.c_int64).value = round(1000 * seconds)


def set_max_steps(count: int) -> None:
    """Set the step limit of launches; 0 for none."""
    variable("kiln_cpu_max_steps", ctypes.c_int64).value = count


def set_seed(seed: int | None = None) -> None:
    """Set the seed of the schedule. 0: threads and blocks run in order and copies complete at once; None: the
    setting."""
    seed_variable().value = settings.get("KILN_CPU_SEED") if seed is None else seed


def seed_variable() -> ctypes.c_int64:
    """Return the variable with the seed of the schedule."""
    return variable("kiln_cpu_schedule", ctypes.c_int64)


def set_sample(groups: int) -> None:
    """Let launches run only some groups of their grids, spread over them; 0: all."""
    variable("kiln_cpu_sample", ctypes.c_uint32).value = groups


def set_workers(count: int | None = None) -> None:
    """Set the OS threads that a launch may use, 1 to 256; None: the setting."""
    from . import launches

    if count is None:
        count = int(settings.get("KILN_CPU_THREADS"))
    if not 1 <= count <= launches.MAX_WORKERS:
        raise DSLRuntimeError(f"{count} worker threads: expected 1 to {launches.MAX_WORKERS}")
    variable("kiln_cpu_workers", ctypes.c_int32).value = count
